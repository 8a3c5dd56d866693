//! Upload units: the blob itself, and its bundles. They hold the bodies accepted for one blob.
//!
//! A *bundle* is an object of its own with the bodies of one group ([`crate::Packing`]). The footer of its blob tells of
//! them, as it does of all changes: a bundle adds nothing to the order of changes. It ends with a footer too, so that it
//! can be read with nothing else at hand; nothing but `larder pack inspect` and `extract` read that.
//!
//! # Invariants
//!
//! 1. A bundle is in the backend before the blob that tells of it.
//! 2. A bundle's number follows from its blob's: after a restart the same bundle is made. Its name has the process that
//!    uploads it besides, as its blob's has: no two processes write to one name.

use serde::{Deserialize, Serialize};

use crate::format::entry::Container;
use crate::ids::{BlobId, ProcessId, StandaloneId, WorkerId};
use crate::limits::BUNDLES_MAX;

/// The run that bundles have in their names. No process draws it.
pub(crate) const BUNDLE_RUN: u64 = 0;
/// Bits of a bundle's number that say which of its blob's it is.
const NTH_BITS: u32 = 8;
/// Set in what stands for a bundle where blobs are told apart. No blob has such a number.
const BUNDLE_BIT: u64 = 1 << 63;

const _: () = assert!((BUNDLES_MAX as u64) < 1 << NTH_BITS, "every bundle has a number");

/// The number of a unit within its blob.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct UploadUnit(u8);

/// The content of a bundle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredBundleContent", into = "StoredBundleContent")]
pub(crate) struct BundleContent {
    /// Where the last of its bodies ends.
    pub(crate) end: u64,
    /// Bytes of bodies that versions and parts have; those that several have count once.
    pub(crate) live: u64,
    /// The process that uploaded it, once its blob is in the backend.
    pub(crate) process: ProcessId,
}

/// A [`BundleContent`] as it is stored. That of a process without a number is as it was before there were numbers.
#[derive(Serialize, Deserialize)]
struct StoredBundleContent {
    /// Where the last of its bodies ends, with the process.
    end: u64,
    live: u64,
}

impl From<StoredBundleContent> for BundleContent {
    fn from(stored: StoredBundleContent) -> Self {
        let (process, end) = ProcessId::without(stored.end);
        Self { end, live: stored.live, process }
    }
}

impl From<BundleContent> for StoredBundleContent {
    fn from(content: BundleContent) -> Self {
        let BundleContent { end, live, process } = content;
        Self { end: process.with(end), live }
    }
}

impl UploadUnit {
    /// The blob itself, whose bodies are of any group.
    pub const SHARED: Self = Self(0);

    /// The bundle with this number, from 1 on; 0 is the blob itself.
    #[must_use]
    pub fn numbered(nth: u8) -> Option<Self> {
        (nth <= BUNDLES_MAX).then_some(Self(nth))
    }

    /// All bundles that a blob may have.
    pub(crate) fn bundles() -> impl Iterator<Item = Self> {
        (1..=BUNDLES_MAX).map(Self)
    }

    /// Its number.
    #[must_use]
    pub fn nth(self) -> u8 {
        self.0
    }

    /// The object that its bodies lie within.
    #[must_use]
    pub fn container(self, blob: BlobId) -> Container {
        match self {
            Self::SHARED => Container::Blob(blob),
            Self(nth) => {
                assert!(blob.seq < BUNDLE_BIT >> NTH_BITS, "blobs are numbered one by one");
                let number = blob.seq << NTH_BITS | u64::from(nth);
                Container::Own(StandaloneId { worker: blob.worker, run: BUNDLE_RUN, number })
            }
        }
    }

    /// The unit that these bytes are of, and its blob; `None` of a large object.
    #[must_use]
    pub fn of(container: Container) -> Option<(BlobId, Self)> {
        match container {
            Container::Blob(blob) => Some((blob, Self::SHARED)),
            Container::Own(own) => own.bundle(),
        }
    }
}

impl StandaloneId {
    /// If it is a bundle: which of which blob.
    #[must_use]
    pub fn bundle(self) -> Option<(BlobId, UploadUnit)> {
        let unit = UploadUnit((self.number % (1 << NTH_BITS)) as u8);
        let blob = BlobId { worker: self.worker, seq: self.number >> NTH_BITS };
        (self.run == BUNDLE_RUN && unit != UploadUnit::SHARED).then_some((blob, unit))
    }
}

impl Container {
    /// The id that stands for it where blobs and bundles are told apart by one id; `None` of a
    /// large object.
    pub(crate) fn packed_id(self) -> Option<BlobId> {
        match self {
            Self::Blob(id) => Some(id),
            Self::Own(own) => own
                .bundle()
                .map(|_| BlobId { worker: WorkerId(own.worker.0), seq: BUNDLE_BIT | own.number }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOB: BlobId = BlobId { worker: WorkerId(3), seq: 257 };

    #[test]
    fn a_bundle_is_recognized_by_its_name() {
        for nth in 0..=BUNDLES_MAX {
            let unit = UploadUnit::numbered(nth).unwrap();
            assert_eq!(UploadUnit::of(unit.container(BLOB)), Some((BLOB, unit)));
        }
        assert_eq!(UploadUnit::numbered(BUNDLES_MAX + 1), None);
        let large = StandaloneId { worker: BLOB.worker, run: 7, number: 257 << 8 | 1 };
        assert_eq!(UploadUnit::of(Container::Own(large)), None);
    }

    #[test]
    fn no_bundle_is_taken_for_a_blob() {
        let bundle = UploadUnit(1).container(BlobId { worker: WorkerId(3), seq: 1 });
        assert_eq!(BLOB.seq, 1 << 8 | 1, "what its number is");
        assert_ne!(bundle.packed_id(), Container::Blob(BLOB).packed_id());
    }
}
