//! Names in the backend of bodies that are objects of their own: large ones, and bundles.

use crate::format::blob::process_field;
use crate::ids::{ProcessId, StandaloneId, WorkerId};

/// Prefix of the names.
pub(crate) const PREFIX: &str = "objects";
/// Bytes of the name of a large object, without the prefix; those of bundles that a process with a number uploaded are
/// longer.
pub(crate) const NAME_BYTES: usize = 50;

impl StandaloneId {
    /// The name of a large object in the backend, or the beginning of a bundle's name.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{PREFIX}/{:016x}-{:016x}-{:016x}", self.worker.0, self.run, self.number)
    }

    /// The name of a bundle that a process uploaded.
    pub(crate) fn path_of(&self, process: ProcessId) -> String {
        self.path() + &process_field(process)
    }

    /// Reads what [`StandaloneId::path`] or [`StandaloneId::path_of`] wrote, without the prefix; `None` for anything else.
    pub(crate) fn parse(file: &str) -> Option<(Self, ProcessId)> {
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let mut fields = file.split('-').map(number);
        let mut field = || fields.next().flatten();
        let id = Self { worker: WorkerId(field()?), run: field()?, number: field()? };
        let process = match fields.next() {
            Some(number) if id.bundle().is_some() => ProcessId::new(number?)?,
            Some(_) => return None,
            None => ProcessId::UNNUMBERED,
        };
        (id.path_of(process)[PREFIX.len() + 1..] == *file).then_some((id, process))
    }
}
