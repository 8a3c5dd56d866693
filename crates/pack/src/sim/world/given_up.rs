//! A directory that is given up, as somebody takes over: what it knew, and what counts besides.

use std::collections::BTreeSet;

use super::super::process::Process;
use super::*;
use crate::format::blob::{BlobName, FooterReader};
use crate::format::entry::Change;
use crate::format::rows::BlobRow;
use crate::owner::numbering::Knows;

/// The state of a directory at the time another worker takes over from it.
pub(super) struct GivenUp {
    /// Names of all blobs that it counted as uploaded.
    pub(super) acknowledged: BTreeSet<String>,
    /// Through this one it knew that they are.
    pub(super) through: BlobId,
    /// True if a later blob counts that another copy of the directory uploaded.
    is_older: bool,
    /// Keys and uploads that later blobs change, its own too.
    keys: BTreeSet<String>,
    uploads: BTreeSet<UploadId>,
}

impl GivenUp {
    pub(super) fn is_older(&self) -> bool {
        self.is_older
    }

    /// An heir shows what the directory had acknowledged, but for what blobs behind that have changed.
    pub(super) fn check_inherited(&self, acknowledged: &State, found: &State) {
        let without = |state: &State| {
            let mut state = state.clone();
            state.objects.retain(|key, _| !self.keys.contains(key));
            state.uploads.retain(|upload, _| !self.uploads.contains(upload));
            state
        };
        assert_eq!(without(found), without(acknowledged), "what was acknowledged is lost");
    }

    fn has_changed(&mut self, change: Change) {
        match change {
            Change::Put { key, .. }
            | Change::Deleted { key, .. }
            | Change::Gone { key, .. }
            | Change::Moved { key, .. } => {
                self.keys.insert(key.as_str().to_owned());
            }
            Change::UploadCompleted { key, upload, .. } => {
                self.keys.insert(key.as_str().to_owned());
                self.uploads.insert(upload);
            }
            Change::UploadBegun { row, .. } => {
                self.uploads.insert(row.upload);
            }
            Change::PartPut { upload, .. }
            | Change::PartMoved { upload, .. }
            | Change::UploadAborted { upload, .. }
            | Change::UploadGone { upload, .. } => {
                self.uploads.insert(upload);
            }
            Change::BucketMade(_)
            | Change::BucketRemoved(_)
            | Change::BucketGone { .. }
            | Change::Retired { .. } => {}
        }
    }
}

impl World {
    /// Reads the state of the directory before another worker takes over.
    pub(super) async fn given_up(&mut self) -> GivenUp {
        let process = self.process.as_ref().expect("a process runs");
        let through = BlobId { worker: self.worker, seq: *process.spool.uploaded().borrow() };
        let mut given_up = GivenUp {
            acknowledged: process.acknowledged(),
            through,
            is_older: false,
            keys: BTreeSet::new(),
            uploads: BTreeSet::new(),
        };
        for path in self.store.counted("").await {
            let (_, name) = path.rsplit_once('/').unwrap();
            let name = BlobName::parse(name).unwrap();
            if name.id.worker != self.worker || name.id <= through {
                continue;
            }
            let bytes = self.store.get(&path).await.unwrap();
            given_up.is_older |= !is_own(process, name, &bytes);
            let tail = &bytes[name.footer_offset as usize..];
            for entry in FooterReader::new(&path, tail).unwrap() {
                given_up.has_changed(entry.unwrap().change);
            }
        }
        self.store.set_calm(true);
        let known = process.numbering.refuse_older_copy(Knows::All(&process.spool)).await;
        self.store.set_calm(false);
        // A disk that has no power says nothing.
        if self.disk.is_up() {
            let is_refused = matches!(known, Err(crate::error::PackError::OlderCopy { .. }));
            assert_eq!(is_refused, given_up.is_older, "{known:?}");
        }
        given_up
    }

    /// Returns true if the directory was an older copy. A blob of another copy came late, and the
    /// process has no number yet that would have made it void. Then somebody has taken over.
    pub(super) async fn gives_up_older(&mut self) -> bool {
        if self.copies.is_none() {
            return false;
        }
        let given_up = self.given_up().await;
        if given_up.is_older() {
            self.stop(|disk| disk.crash());
            self.take_over(Some(given_up)).await;
            return true;
        }
        false
    }
}

/// Returns true if a blob of the backend is one that waits here, to the byte.
fn is_own(process: &Process, name: BlobName, bytes: &Bytes) -> bool {
    let Some((row, trailer)) = process.spool.sealed(name.id.seq) else { return false };
    let row = BlobRow { process: name.process, ..row };
    row.name(name.id) == name && row.bytes == bytes.len() as u64 && bytes.ends_with(&trailer)
}
