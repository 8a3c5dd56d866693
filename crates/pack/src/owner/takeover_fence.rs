//! The takeover fence of a worker that took over: the blobs of those before it that there are for it, and
//! for all after it.
//!
//! A worker that was superseded may have an upload under way, and learns at its end that it does
//! not count. Its successor has built its index by then. So the successor writes down, before it
//! does anything else, the last blob that it knows of each worker before it: later ones are void. A
//! rebuild does not read them, and they are removed.
//!
//! # Invariants
//!
//! 1. An heir's takeover fence is written once, before its index, and never changed or removed. It is made of a list that
//!    begins after the claim is there: a worker acknowledges no blob that the list lacks (`uploader.rs`). Before the list it
//!    closes the numbers of processes that have no record: none of them judges a blob of the list void later.
//!    A blob that the last process knew as uploaded is in it too, if the list lacks it: it is missing then, and not void.
//! 2. A blob is void if any takeover fence says so; takeover fences of later heirs leave out what is void.

use std::collections::BTreeMap;

use bytes::Bytes;
use larder_types::codec::{decode, encode};
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Unread};
use crate::bugs::{self, Bug};
use crate::error::PackError;
use crate::format::blob;
use crate::ids::{BlobId, WorkerId};
use crate::limits::TAKEOVER_FENCE_BYTES_MAX;
use crate::owner::counting::{Counting, Known, Listed, Numbers};
use crate::owner::marker::{MARKER, TAKEOVER_FENCES};
use crate::owner::numbering::close;

/// Through which blob an heir knows each worker before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inheritance {
    pub(crate) last: Vec<BlobId>,
}

/// The takeover fences of all workers that took the place over.
#[derive(Debug, Clone, Default)]
pub(crate) struct TakeoverFence(BTreeMap<WorkerId, Inheritance>);

impl TakeoverFence {
    /// Reads those of all workers, and makes that of `worker` if it is missing.
    pub(crate) async fn establish(
        backend: &Backend,
        worker: WorkerId,
        records: &Known,
    ) -> Result<Self, PackError> {
        let mut takeover_fence = Self::read(backend).await?;
        if !takeover_fence.is_of(worker) {
            takeover_fence.inherit(backend, worker, records).await?;
        }
        Ok(takeover_fence)
    }

    /// Returns true if all that `worker` inherited is recorded. Otherwise it is not known yet what that is.
    pub(crate) fn is_of(&self, worker: WorkerId) -> bool {
        worker == worker.first() || self.0.contains_key(&worker)
    }

    /// Returns true if all blobs that a worker will ever have are written down, as it has an heir.
    pub(crate) fn is_settled(&self, worker: WorkerId) -> bool {
        self.0.keys().any(|heir| *heir > worker)
    }

    /// Reads those of all workers.
    pub(crate) async fn read(backend: &Backend) -> Result<Self, PackError> {
        let mut takeover_fence = Self::default();
        let names = backend.names(TAKEOVER_FENCES).await?.into_iter();
        for (name, bytes) in names.filter(|(name, _)| name != MARKER) {
            let heir = u64::from_str_radix(&name, 16).ok().filter(|_| name.len() == 16);
            let path = format!("{TAKEOVER_FENCES}/{name}");
            let heir = heir.ok_or_else(|| PackError::unknown(&path, "a takeover fence"))?;
            takeover_fence.0.insert(WorkerId(heir), read(backend, &path, bytes).await?);
        }
        Ok(takeover_fence)
    }

    /// Takes down what there is of earlier workers.
    async fn inherit(
        &mut self,
        backend: &Backend,
        heir: WorkerId,
        records: &Known,
    ) -> Result<(), PackError> {
        let mut last: BTreeMap<WorkerId, u64> = BTreeMap::new();
        // After the claim: a process that numbers itself later sees that.
        let numbers = Numbers::list(backend).await?;
        close(backend, &numbers, |(worker, _)| worker < heir).await?;
        let names = backend.names(blob::PREFIX).await?;
        let counting = Counting::read(backend, records).await?;
        // One that is named otherwise is of a later release, and must not be left out for good.
        let there = Listed::all(names)?.into_iter().map(|blob| blob.name);
        let there = there.filter(|name| counting.counts(name.id.worker, name.process, name.id.seq));
        let there = there.map(|name| name.id);
        // Of some that earlier heirs knew there is no blob left.
        let known = self.0.values().flat_map(|inheritance| inheritance.last.clone());
        // Nor one that a process knew, if it is lost: a rebuild misses it then, and it counts when it is back.
        let reported = counting.known().into_iter().filter(|(_, seq)| *seq > 0);
        let reported = reported.map(|(worker, seq)| BlobId { worker, seq });
        for id in there.chain(known).chain(reported) {
            if id.worker < heir && self.has(id) {
                let seq = last.entry(id.worker).or_default();
                *seq = id.seq.max(*seq);
            }
        }
        if bugs::planted(Bug::HalfInherited) {
            last.values_mut().for_each(|seq| *seq /= 2);
        }
        let last = last.into_iter().map(|(worker, seq)| BlobId { worker, seq }).collect();
        let inheritance = Inheritance { last };
        let path = format!("{TAKEOVER_FENCES}/{:016x}", heir.0);
        let bytes = Bytes::from(encode(&inheritance));
        let inheritance = match backend.put_new(&path, bytes.clone()).await? {
            true => inheritance,
            // A try before came through: that one counts.
            false => {
                let bytes = backend.size(&path).await?.unwrap_or(0);
                read(backend, &path, bytes).await?
            }
        };
        self.0.insert(heir, inheritance);
        Ok(())
    }

    /// Returns true if a blob is there for all workers that came after its own.
    pub(crate) fn has(&self, blob: BlobId) -> bool {
        if bugs::planted(Bug::TakeoverFenceNotKept) {
            return true;
        }
        self.0.iter().filter(|(heir, _)| **heir > blob.worker).all(|(_, inheritance)| {
            inheritance.last.iter().any(|last| last.worker == blob.worker && blob.seq <= last.seq)
        })
    }

    /// The last blob of a worker that its successors know; `None` if it has none, or no heir.
    pub(crate) fn last(&self, worker: WorkerId) -> Option<u64> {
        let heirs = self.0.iter().filter(|(heir, _)| **heir > worker);
        let last = heirs.flat_map(|(_, inheritance)| &inheritance.last);
        last.filter(|last| last.worker == worker).map(|last| last.seq).min()
    }
}

async fn read(backend: &Backend, path: &str, bytes: u64) -> Result<Inheritance, PackError> {
    if bytes > TAKEOVER_FENCE_BYTES_MAX {
        return Err(PackError::damaged(path, "it is too long for a takeover fence"));
    }
    match backend.read(path, 0..bytes).await {
        Ok(bytes) => Ok(decode("a takeover fence", &bytes)?),
        Err(Unread::Missing) => Err(PackError::damaged(path, "it was listed and is not there")),
        Err(Unread::Failed(error)) => Err(error),
    }
}
