//! Makes backups, and removes old ones.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_kv::KvReader;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::v1::{Head, Segment};
use super::{Backups, HEADS, SEGMENTS};
use crate::backend::Backend;
use crate::backend::token_bucket::TokenBucket;
use crate::blocking;
use crate::bugs::{self, Bug};
use crate::commit::queue::{Queue, Request, Snapshot};
use crate::commit::spool::Spool;
use crate::counters::{Counters, count};
use crate::error::PackError;
use crate::ids::{BackupId, WorkerId};
use crate::limits::{BACKUPS_KEPT, SEGMENT_BYTES};
use crate::owner::ownership::Ownership;

/// The maker of backups.
pub(crate) struct BackupWriter {
    pub(crate) backend: Backend,
    pub(crate) spool: Arc<Spool>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) backups: Arc<Backups>,
    pub(crate) worker: WorkerId,
    pub(crate) owner: Arc<Ownership>,
    pub(crate) pace: TokenBucket,
    /// Time from one backup to the next; none are made if it is zero.
    pub(crate) interval: Duration,
    /// The time at which the last backup was made, or the process was started.
    pub(crate) last: Instant,
    /// The last blob of which the last backup shows everything.
    pub(crate) through: u64,
    /// The number of the last one that was begun; 0 if none was.
    pub(crate) tried: u64,
}

impl BackupWriter {
    /// Makes a backup if it is time and there is something new. Returns true if one was made.
    pub(crate) async fn make_if_due(&mut self, now_ms: u64) -> Result<bool, PackError> {
        let uploaded = *self.spool.uploaded().borrow();
        let is_due = !self.interval.is_zero() && self.last.elapsed() >= self.interval;
        if !is_due || uploaded <= self.through {
            return Ok(false);
        }
        self.make(now_ms).await?;
        Ok(true)
    }

    /// Makes a backup, and removes those that are too many.
    pub(crate) async fn make(&mut self, now_ms: u64) -> Result<(), PackError> {
        let begun = Instant::now();
        let Snapshot { rows, at } = self.snapshot().await?;
        // Of the clock, so that no try has the names of one before, of which anything may still arrive.
        let number = now_ms.max(self.greatest().await? + 1);
        let id = BackupId { worker: self.worker, number };
        self.tried = number;
        let mut head = Head {
            id,
            made_ms: now_ms,
            seq: at.seq,
            clock: at.clock,
            blob: at.blob,
            segments: Vec::new(),
        };
        self.write_segments(rows.into(), &mut head).await?;
        if !bugs::planted(Bug::BackupAheadOfBlobs) {
            self.wait_for(at.blob).await?;
        }
        self.owner.ask().await?;
        // Before it may be there: a request that failed may have come through.
        self.backups.add(&head);
        self.backend.put(&id.head_path(), Bytes::from(head.encode())).await?;
        count(&self.counters.backups);
        (self.last, self.through) = (Instant::now(), at.blob);
        tracing::info!(number = id.number, segments = head.segments.len(), took = ?begun.elapsed(), "the index was backed up");
        self.remove_old().await
    }

    async fn snapshot(&self) -> Result<Snapshot, PackError> {
        let (reply, answer) = oneshot::channel();
        let asked = self.queue.push(Request::Snapshot { reply });
        match (asked, answer.await) {
            (Ok(()), Ok(snapshot)) => Ok(snapshot),
            _ => Err(stopping()),
        }
    }

    /// The greatest number of a backup of this worker, whole or not.
    async fn greatest(&mut self) -> Result<u64, PackError> {
        let mut greatest = self.tried;
        for prefix in [HEADS, SEGMENTS] {
            self.pace.spend(0).await;
            for (name, _) in self.backend.names(prefix).await? {
                match BackupId::parse(&name) {
                    Some((id, _)) if id.worker == self.worker => greatest = greatest.max(id.number),
                    _ => {}
                }
            }
        }
        let known = self.backups.ids().into_iter().filter(|id| id.worker == self.worker);
        Ok(known.map(|id| id.number).max().unwrap_or(0).max(greatest))
    }

    async fn write_segments(
        &mut self,
        rows: Arc<dyn KvReader>,
        head: &mut Head,
    ) -> Result<(), PackError> {
        let mut from = Some(Vec::new());
        while let Some(begin) = from {
            let rows = rows.clone();
            let (segment, next) = blocking::run(move || fill(&*rows, &begin)).await??;
            let (bytes, sum) = segment.finish();
            self.pace.spend(sum.bytes).await;
            let name = head.id.segment_path(head.segments.len());
            self.backend.put(&name, Bytes::from(bytes)).await?;
            head.segments.push(sum);
            from = next;
        }
        Ok(())
    }

    /// Waits until the backend has the blobs up to this one.
    async fn wait_for(&self, blob: u64) -> Result<(), PackError> {
        let (reply, sealed) = oneshot::channel();
        let asked = self.queue.push(Request::Seal { reply });
        let (Ok(()), Ok(_)) = (asked, sealed.await) else { return Err(stopping()) };
        let mut uploaded = self.spool.uploaded();
        uploaded.wait_for(|through| *through >= blob).await.map(drop).map_err(|_| stopping())
    }

    /// Removes all but the newest, heads first; and segments without a head, which a crash has left.
    async fn remove_old(&mut self) -> Result<(), PackError> {
        let ids = self.backups.ids();
        let kept = &ids[ids.len().saturating_sub(BACKUPS_KEPT)..];
        self.pace.spend(0).await;
        let heads = self.backend.names(HEADS).await?;
        // After the list: what a later owner has made since is not in it.
        self.owner.ask().await?;
        for (name, _) in heads {
            match BackupId::parse(&name) {
                Some((id, None)) if id.worker <= self.worker && !kept.contains(&id) => {
                    self.remove(&id.head_path()).await?;
                }
                _ => {}
            }
        }
        for id in ids.iter().filter(|id| !kept.contains(id)) {
            self.backups.forget(*id);
        }
        self.pace.spend(0).await;
        let segments = self.backend.names(SEGMENTS).await?;
        self.owner.ask().await?;
        for (name, _) in segments {
            match BackupId::parse(&name) {
                Some((id, Some(segment))) if id.worker <= self.worker && !kept.contains(&id) => {
                    self.remove(&id.segment_path(segment)).await?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn remove(&mut self, name: &str) -> Result<(), PackError> {
        self.pace.spend(0).await;
        self.backend.remove(name).await
    }
}

/// Rows from `begin` on, and where the next segment begins.
fn fill(rows: &dyn KvReader, begin: &[u8]) -> Result<(Segment, Option<Vec<u8>>), PackError> {
    let (mut segment, mut next) = (Segment::default(), None);
    rows.scan(begin, None, &mut |key, value| {
        // The head has the position of the index, and its layout.
        if matches!(key.first(), Some(b'A' | b'L')) {
            return ControlFlow::Continue(());
        }
        if segment.len() >= SEGMENT_BYTES {
            next = Some(key.to_vec());
            return ControlFlow::Break(());
        }
        segment.push(key, value);
        ControlFlow::Continue(())
    })?;
    Ok((segment, next))
}

fn stopping() -> PackError {
    PackError::Deferred { reason: "the store is stopping".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_env::SimDisk;
    use object_store::memory::InMemory;
    use tokio::sync::watch;

    use super::*;
    use crate::clock::{SuspendAwareInstant, uptime};
    use crate::owner::numbering::Numbering;

    const WORKER: WorkerId = WorkerId(1);

    /// A writer of backups in a backend.
    fn writer(backend: &Backend) -> BackupWriter {
        let (queue, disk) = (Arc::<Queue>::default(), SimDisk::new(1, 1 << 20));
        let spool = Arc::new(Spool::new(disk.clone(), WORKER).unwrap());
        let numbering = Arc::new(Numbering::new(backend.clone(), WORKER, disk, uptime));
        let (fatal, owned) = (watch::Sender::new(None), SuspendAwareInstant::now(uptime));
        let owner = Ownership::new((numbering, spool.clone()), owned, queue.clone(), fatal, uptime);
        BackupWriter {
            backend: backend.clone(),
            spool,
            queue,
            counters: backend.counters().clone(),
            backups: Arc::new(Backups::of(&[])),
            worker: WORKER,
            owner: Arc::new(owner),
            pace: TokenBucket::new(1 << 30, 1 << 40),
            interval: Duration::ZERO,
            last: Instant::now(),
            through: 0,
            tried: 0,
        }
    }

    #[tokio::test]
    async fn an_owner_that_was_superseded_since_it_asked_removes_no_backup() {
        let backend = Backend::over(Arc::new(InMemory::new()));
        let mut writer = writer(&backend);
        writer.owner.ask().await.unwrap();
        // A copy of the directory starts, and makes one.
        let id = BackupId { worker: WORKER, number: 9 };
        let theirs = [id.head_path(), id.segment_path(0)];
        for name in &theirs {
            backend.put(name, Bytes::from_static(b"theirs")).await.unwrap();
        }
        assert!(
            backend.put_new("incarnations/0000000000000001-00000002", "2".into()).await.unwrap()
        );
        assert!(writer.remove_old().await.unwrap_err().is_superseded());
        for name in &theirs {
            assert!(backend.size(name).await.unwrap().is_some(), "{name}");
        }
    }
}
