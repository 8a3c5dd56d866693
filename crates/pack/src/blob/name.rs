//! Names of blobs in the backend: enough to find every footer with one request.

use crate::entry::{BlobId, WorkerId};

/// Prefix of all blobs' names.
pub(crate) const PREFIX: &str = "blobs";

/// What a blob's name says. Names sort by worker, then by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlobName {
    /// The blob.
    pub id: BlobId,
    /// Milliseconds since 1970 of its first change.
    pub created_ms: u64,
    /// Where its footer begins.
    pub footer_offset: u64,
}

impl BlobName {
    /// The object's name, with its prefix.
    #[must_use]
    pub fn path(&self) -> String {
        let Self { id, created_ms, footer_offset } = self;
        format!(
            "{PREFIX}/{:016x}-{:016x}-{created_ms:012x}-{footer_offset:010x}",
            id.worker.0, id.seq
        )
    }

    /// What sorts behind all names of a blob and before those of the next, without the prefix.
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
        let name = Self { id, created_ms: field(12)?, footer_offset: field(10)? };
        fields.next().is_none().then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_sort_by_worker_and_number() {
        let name = |worker, seq, created_ms| BlobName {
            id: BlobId { worker: WorkerId(worker), seq },
            created_ms,
            footer_offset: 0x4000_0000,
        };
        let names = [name(1, 9, 77), name(1, 10, 5), name(2, 1, 1)];
        for name in names {
            let path = name.path();
            assert_eq!(BlobName::parse(path.strip_prefix("blobs/").unwrap()), Some(name));
        }
        assert!(names.map(|name| name.path()).is_sorted());
        for other in ["", "x", "0-0-0-0", "000000000000000g-0000000000000001-0-0"] {
            assert_eq!(BlobName::parse(other), None, "{other}");
        }
        let behind = format!("{PREFIX}/{}", BlobName::behind(names[0].id));
        assert!(names[0].path() < behind && behind < names[1].path());
        let longer = format!("{}-0", &names[0].path()[6..]);
        assert_eq!(BlobName::parse(&longer), None);
    }
}
