//! Names of blobs in the backend: enough to find every footer with one request.

use crate::ids::{BlobId, ProcessId, WorkerId};

/// Prefix of all blobs' names.
pub(crate) const PREFIX: &str = "blobs";
/// Digits of a process in names.
pub(crate) const PROCESS_DIGITS: usize = 8;

/// The fields of a blob's name. Names sort by worker, then by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlobName {
    /// The blob.
    pub id: BlobId,
    /// Milliseconds since 1970 of its first change.
    pub created_ms: u64,
    /// Where its footer begins.
    pub footer_offset: u64,
    /// The process that uploaded it. No other uploads anything of this name.
    pub process: ProcessId,
}

impl BlobName {
    /// The object's name, with its prefix.
    #[must_use]
    pub fn path(&self) -> String {
        let Self { id, created_ms, footer_offset, process } = self;
        let (worker, seq, process) = (id.worker.0, id.seq, process_field(*process));
        format!("{PREFIX}/{worker:016x}-{seq:016x}-{created_ms:012x}-{footer_offset:010x}{process}")
    }

    /// A text that sorts behind all names of a blob and before those of the next, without the
    /// prefix.
    pub(crate) fn behind(id: BlobId) -> String {
        format!("{:016x}-{:016x}-g", id.worker.0, id.seq)
    }

    /// Reads what [`BlobName::path`] wrote, without the prefix; `None` for anything else.
    #[must_use]
    pub fn parse(file: &str) -> Option<Self> {
        let mut fields = file.split('-');
        let mut field = |width: usize| {
            let text = fields.next().filter(|text| text.len() == width)?;
            let hex = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            if hex { u64::from_str_radix(text, 16).ok() } else { None }
        };
        let id = BlobId { worker: WorkerId(field(16)?), seq: field(16)? };
        let (created_ms, footer_offset) = (field(12)?, field(10)?);
        let process = match field(PROCESS_DIGITS) {
            Some(number) => ProcessId::new(number)?,
            None => ProcessId::UNNUMBERED,
        };
        let name = Self { id, created_ms, footer_offset, process };
        (name.path()[PREFIX.len() + 1..] == *file).then_some(name)
    }
}

/// The last field of the names of what a process uploaded, with what parts it from those before.
pub(crate) fn process_field(process: ProcessId) -> String {
    match process {
        ProcessId::UNNUMBERED => String::new(),
        process => format!("-{:0width$x}", process.number(), width = PROCESS_DIGITS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_sort_by_worker_and_number() {
        let name = |worker, seq, created_ms, process| BlobName {
            id: BlobId { worker: WorkerId(worker), seq },
            created_ms,
            footer_offset: 0x4000_0000,
            process: ProcessId::new(process).unwrap(),
        };
        let last = (1 << ProcessId::BITS) - 1;
        let names = [name(1, 9, 77, 0), name(1, 9, 77, last), name(1, 10, 5, 1), name(2, 1, 1, 2)];
        for name in names {
            let path = name.path();
            assert_eq!(BlobName::parse(path.strip_prefix("blobs/").unwrap()), Some(name));
        }
        assert!(names.map(|name| name.path()).is_sorted());
        for other in ["", "x", "0-0-0-0", "000000000000000g-0000000000000001-0-0"] {
            assert_eq!(BlobName::parse(other), None, "{other}");
        }
        let behind = format!("{PREFIX}/{}", BlobName::behind(names[0].id));
        assert!(names[1].path() < behind && behind < names[2].path());
        for end in ["-0", "-00000000", "-01000000", "-00000001-0"] {
            let longer = format!("{}{end}", &names[0].path()[6..]);
            assert_eq!(BlobName::parse(&longer), None, "{longer}");
        }
    }
}
