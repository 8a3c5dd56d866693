//! The footers of blobs, in the order of their names, twice.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::future::join_all;

use crate::backend::{Backend, Unread};
use crate::error::PackError;
use crate::format::blob::{self, FooterReader};
use crate::ids::WorkerId;
use crate::limits::{FOOTERS_AHEAD, FOOTERS_BYTES_MAX};
use crate::owner::counting::{Counting, Known, Listed};
use crate::owner::takeover_fence::TakeoverFence;

/// The reason for which nobody can go by a list yet.
pub(crate) const UNDECIDED: &str = "a process of the worker has numbered itself and not judged the last blob before it; it, \
     the next process or an heir does";

/// The blobs in the backend.
pub(super) struct List {
    /// All blobs that count, oldest first.
    pub(super) blobs: Vec<Listed>,
    /// The records by which they count.
    pub(super) counting: Counting,
    /// The last blob of the worker that its last process knew as uploaded: the list has it, or a later one.
    pub(super) known: u64,
}

/// Lists the blobs for a worker.
///
/// # Errors
/// [`PackError::Deferred`] while it is undecided whether a blob counts.
pub(super) async fn list(
    backend: &Backend,
    (worker, takeover_fence): (WorkerId, &TakeoverFence),
    records: &Known,
) -> Result<List, PackError> {
    // Before the list: a blob that a later record names may not be listed yet.
    let known = match takeover_fence.is_settled(worker) {
        true => None,
        false => Counting::read(backend, records).await?.known().get(&worker).copied(),
    };
    let known = known.unwrap_or(0);
    let mut listed = Listed::all(backend.names(blob::PREFIX).await?)?;
    let counting = Counting::read(backend, records).await?;
    listed.retain(|blob| takeover_fence.has(blob.name.id));
    match counting.decided(listed, |worker| takeover_fence.is_settled(worker))? {
        (blobs, false) => Ok(List { blobs, counting, known }),
        (_, true) => Err(PackError::Deferred { reason: UNDECIDED.to_owned() }),
    }
}

/// Reads footers, some ahead. Those that were read are kept for the second time as far as they are small.
pub(super) struct Footers<'a> {
    backend: &'a Backend,
    blobs: Vec<Listed>,
    kept: Vec<Option<Bytes>>,
    kept_bytes: usize,
    next: usize,
    ready: VecDeque<(Listed, Result<Bytes, PackError>)>,
}

impl<'a> Footers<'a> {
    pub(super) fn new(backend: &'a Backend, blobs: Vec<Listed>) -> Self {
        let (kept, ready) = (vec![None; blobs.len()], VecDeque::new());
        Self { backend, blobs, kept, kept_bytes: 0, next: 0, ready }
    }

    pub(super) fn len(&self) -> usize {
        self.blobs.len()
    }

    /// Begins anew.
    pub(super) fn again(&mut self) {
        self.next = 0;
        self.ready.clear();
    }

    /// The next blob, with footer and trailer or why they cannot be used. An error of the backend is no fault of the
    /// blob.
    pub(super) async fn next(
        &mut self,
    ) -> Result<Option<(Listed, Result<Bytes, PackError>)>, PackError> {
        if self.ready.is_empty() {
            self.fetch().await?;
        }
        Ok(self.ready.pop_front())
    }

    async fn fetch(&mut self) -> Result<(), PackError> {
        let end = (self.next + FOOTERS_AHEAD).min(self.blobs.len());
        let some = self.next..end;
        self.next = end;
        let backend = self.backend;
        let fetching = some.clone().map(|at| {
            let (blob, kept) = (self.blobs[at], self.kept[at].clone());
            async move {
                match kept {
                    Some(tail) => Ok(tail),
                    None => read(backend, blob).await,
                }
            }
        });
        let fetched = join_all(fetching).await;
        for (at, tail) in some.zip(fetched) {
            if let Ok(tail) = &tail
                && self.kept[at].is_none()
                && self.kept_bytes + tail.len() <= FOOTERS_BYTES_MAX
            {
                self.kept_bytes += tail.len();
                self.kept[at] = Some(tail.clone());
            }
            match tail {
                Err(error @ (PackError::Damaged { .. } | PackError::Missing { .. })) => {
                    self.ready.push_back((self.blobs[at], Err(error)));
                }
                tail => self.ready.push_back((self.blobs[at], Ok(tail?))),
            }
        }
        Ok(())
    }
}

async fn read(backend: &Backend, blob: Listed) -> Result<Bytes, PackError> {
    let Listed { name, bytes } = blob;
    let path = name.path();
    if name.footer_offset >= bytes {
        return Err(PackError::damaged(path, "it is shorter than its name says"));
    }
    let tail = backend.read(&path, name.footer_offset..bytes).await;
    let tail = tail.map_err(|unread| match unread {
        Unread::Missing => PackError::Missing { blob: name.id },
        Unread::Failed(error) => error,
    })?;
    let trailer = FooterReader::new(&path, &tail)?.trailer;
    if trailer.id != name.id || trailer.blob_bytes() != bytes {
        return Err(PackError::damaged(path, "it is not the blob that its name says"));
    }
    Ok(tail)
}
