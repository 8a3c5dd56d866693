//! Learns the changes of another worker: from the footers of its blobs in the bucket, which always
//! remain, and before that from the worker itself (`feed/`). Both give the same entries, and each
//! counts once.

use std::sync::Arc;

use bytes::Bytes;

use super::Others;
use super::feed::{FeedUpdate, Link};
use super::index_store::PeerIndex;
use super::peer::{FollowedIndex, Mark, Peer};
use super::received_log::ReceivedEntries;
use crate::backend::{Backend, Unread};
use crate::backup;
use crate::blocking;
use crate::bugs::{self, Bug};
use crate::clock::{SuspendAwareInstant, now_ms};
use crate::error::PackError;
use crate::format::blob::{self, BlobName, FooterReader};
use crate::format::entry::Entry;
use crate::format::rows::{Applied, BlobContent, BlobRow};
use crate::ids::{BlobId, WorkerId};
use crate::index::Index;
use crate::limits::{CLOCK_AHEAD_LOG_PAUSE, GAP_CHECKS_MAX, RECEIVED_BYTES_MAX};
use crate::owner::counting::Listed;
use crate::owner::identity::check_owner;
use crate::owner::name::WorkerName;
use crate::owner::takeover_fence::TakeoverFence;
use crate::read::fetch::Fetcher;
use crate::read::{Bodies, Waits};
use crate::start::rebuild::Rebuild;

impl Others {
    /// Looks at what a worker has in the bucket, and takes what is new.
    pub(super) async fn look_at(&self, peer: &Arc<Peer>) -> Result<(), PackError> {
        let _following = peer.following.lock().await;
        let begun = SuspendAwareInstant::now(self.uptime);
        let reported = peer.announcement();
        let known = match peer.known() {
            Some(known) if known.worker == reported.worker => known,
            before => match self.begin(peer, reported.worker, before).await {
                Ok(Some(known)) => known,
                // Its successor has not recorded what it takes over: that is still unknown.
                Ok(None) => return Ok(()),
                Err(error) => {
                    if is_gap(&error) {
                        peer.count_gap();
                    }
                    return Err(error);
                }
            },
        };
        let mark = match self.catch_up(peer, &known).await? {
            Caught::Up => known.mark(),
            Caught::Undecided => {
                let unseen = peer.unseen();
                tracing::info!(worker = %peer.name, ?unseen, "another worker or its successor has not decided on its last blob yet");
                return Ok(());
            }
            // Its directory was put back from an older copy, which gave the same numbers again.
            Caught::StaleBlobs(blob) => {
                tracing::warn!(worker = %peer.name, %blob, "another worker's announced changes differ from its uploads: rebuilding its index");
                let lost = |made: &Index, _: &TakeoverFence| {
                    self.write_stale_blobs(peer, &known, made, blob)
                };
                let made = self.make(peer, known.worker, lost).await?;
                let Some(made) = made else { return Ok(()) };
                self.show(peer, &made);
                made.mark()
            }
            Caught::Gap if peer.count_gap() < GAP_CHECKS_MAX => return Ok(()),
            Caught::Gap => {
                tracing::warn!(worker = %peer.name, "blobs are missing that were never retired: rebuilding the worker's index");
                let made = self.make(peer, known.worker, |_, _| Ok(())).await?;
                // Changes that it told and has not uploaded yet are not forgotten for it.
                let is_behind = |made: &Arc<FollowedIndex>| made.at().seq < known.at().seq;
                let Some(made) = made.filter(|made| !is_behind(made)) else { return Ok(()) };
                self.show(peer, &made);
                made.mark()
            }
        };
        peer.no_gap();
        let clock = mark.clock.max(known.at().clock);
        let ahead_ms = clock.ms().saturating_sub(now_ms());
        if u128::from(ahead_ms) > CLOCK_AHEAD_LOG_PAUSE.as_millis() {
            tracing::warn!(worker = %peer.name, ahead_ms, "another worker's clock is ahead: puts here use its time");
        }
        self.peer_clock.observe(clock);
        peer.looked(begun, mark, self.settings().kept / 16);
        Ok(())
    }

    fn show(&self, peer: &Peer, known: &Arc<FollowedIndex>) {
        self.peer_clock.show(known.at().clock, || peer.show(known.clone()));
    }

    /// The index of a worker's claim: the one that is there, or one made of what is in the bucket.
    async fn begin(
        &self,
        peer: &Arc<Peer>,
        worker: WorkerId,
        before: Option<Arc<FollowedIndex>>,
    ) -> Result<Option<Arc<FollowedIndex>>, PackError> {
        let takeover_fence = TakeoverFence::read(&peer.backend).await?;
        if !takeover_fence.is_of(worker) {
            return Ok(None);
        }
        let mut before = before;
        if before.is_some() {
            // It was taken over.
        } else if let Some((stored, at)) = self.index_store().open(&peer.name, worker)? {
            let known = self.known_versions(peer, worker, stored, at)?;
            known.recall(&peer.name)?;
            self.show(peer, &known);
            return Ok(Some(known));
        } else if let Some((claim, stored, at)) = self.index_store().earlier(&peer.name, worker)? {
            // It was taken over while this worker did not run.
            let known = self.known_versions(peer, claim, stored, at)?;
            known.recall(&peer.name)?;
            before = Some(known);
        }
        let lost = |_: &Index, takeover_fence: &TakeoverFence| match &before {
            Some(before) => self.write_loss(peer, (before.worker, before.index()), takeover_fence),
            None => Ok(()),
        };
        let Some(known) = self.make(peer, worker, lost).await? else { return Ok(None) };
        self.show(peer, &known);
        Ok(Some(known))
    }

    /// Makes an index of what a worker has in the bucket. `write_lost` writes down what is lost
    /// with the one before, once the new one is made and before it counts. So neither is it written
    /// again at each try, nor never if the process ends between.
    async fn make(
        &self,
        peer: &Arc<Peer>,
        worker: WorkerId,
        write_lost: impl FnOnce(&Index, &TakeoverFence) -> Result<(), PackError> + Send,
    ) -> Result<Option<Arc<FollowedIndex>>, PackError> {
        let backend = &peer.backend;
        let takeover_fence = TakeoverFence::read(backend).await?;
        if !takeover_fence.is_of(worker) {
            return Ok(None);
        }
        let backups = backup::known(backend, &takeover_fence).await?;
        let PeerIndex { index, received } = self.index_store().make(&peer.name, worker)?;
        // A blob that a list was late with is no loss: an index without it would never learn what is in it.
        let is_lost = peer.gaps() + 1 >= GAP_CHECKS_MAX;
        let report = self.blobs_report(&peer.name).filter(|_| is_lost);
        let rebuild = Rebuild {
            backend,
            worker,
            takeover_fence: &takeover_fence,
            records: peer.records(),
            backups: &backups,
            accept_loss: report.as_deref(),
            is_own: false,
        };
        let rebuilt = match rebuild.run(&index).await {
            Ok(rebuilt) => rebuilt,
            // Nobody is shown what may become void; what was known is kept, or nobody is answered.
            Err(PackError::Deferred { reason }) => {
                tracing::info!(worker = %peer.name, reason, "another worker's index has not been built yet");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // After the list, as in `catch_up`: it may have a blob that an heir, whose takeover fence came too late, does not.
        match check_owner(backend, worker).await {
            Ok(()) => {}
            Err(PackError::Superseded { by, .. }) => {
                tracing::info!(worker = %peer.name, %by, "another worker's index will be built once its successor has said which blobs are valid");
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let at = Applied { lsn: 0, ..rebuilt.applied };
        write_lost(&index, &takeover_fence)?;
        index.set_applied(&at)?;
        index.flush()?;
        self.known_versions(peer, worker, PeerIndex { index, received }, at).map(Some)
    }

    fn known_versions(
        &self,
        peer: &Arc<Peer>,
        worker: WorkerId,
        PeerIndex { index, received }: PeerIndex,
        at: Applied,
    ) -> Result<Arc<FollowedIndex>, PackError> {
        let parts = (self.bodies(peer, index), received);
        Ok(Arc::new(FollowedIndex::new(worker, parts, at, self.peer_clock.clone())?))
    }

    fn bodies(&self, peer: &Arc<Peer>, index: Index) -> Bodies {
        let (index, backend) = (Arc::new(index), peer.backend.clone());
        let (cache, ahead) = self.cache();
        let fetcher = Arc::new(Fetcher::new(backend.clone(), index.clone(), cache, ahead));
        let link = Arc::new(Link::new(peer.peer_clock(), self.caller()));
        Bodies { backend, index, fetcher, waiting: Waits::There(link) }
    }

    /// Takes the blobs of a claim that are new in the bucket, in their order.
    async fn catch_up(&self, peer: &Peer, known: &Arc<FollowedIndex>) -> Result<Caught, PackError> {
        let last = BlobId { worker: known.worker, seq: known.at().rebuilt };
        let after = BlobName::behind(last);
        let mut listed = Listed::all(peer.backend.names_after(blob::PREFIX, &after).await?)?;
        // Another directory's: its announcement says so soon.
        listed.retain(|blob| blob.name.id.worker == known.worker);
        if listed.is_empty() {
            known.flush()?;
            return Ok(Caught::Up);
        }
        // After the list: a process has its record before it uploads, and an heir its claim before it lists.
        match check_owner(&peer.backend, known.worker).await {
            Ok(()) => {}
            Err(PackError::Superseded { .. }) => return Ok(Caught::Undecided),
            Err(error) => return Err(error),
        }
        let (blobs, is_undecided) = peer.counting().await?.decided(listed, |_| false)?;
        let mut caught = if is_undecided { Caught::Undecided } else { Caught::Up };
        for blob in blobs {
            let (name, row) = (blob.name, blob.row());
            if name.id.seq != known.at().rebuilt + 1 {
                caught = Caught::Gap;
                break;
            }
            if !take_blob(&peer.backend, known, name, &row).await? {
                return Ok(Caught::StaleBlobs(name.id));
            }
            known.uploaded(name.id.seq, &row)?;
        }
        known.flush()?;
        Ok(caught)
    }

    /// Takes what a worker told of itself.
    pub(crate) async fn take_received(
        &self,
        peer: &Peer,
        known: &Arc<FollowedIndex>,
        received: FeedUpdate,
    ) -> Result<(), PackError> {
        let _following = peer.following.lock().await;
        let at = known.at();
        let current = peer.known();
        let is_current = current.is_some_and(|current| Arc::ptr_eq(&current, known));
        let is_next = received.blob() == at.blob + 1;
        if !is_current || !is_next {
            return Ok(());
        }
        match received {
            FeedUpdate::Entries { blob, from, bytes, is_whole } if from == at.lsn => {
                let (taking, name) = (known.clone(), peer.name.clone());
                let received = ReceivedEntries { blob, from, is_whole, bytes: bytes.to_vec() };
                blocking::run(move || taking.hear(&name, &received)).await??;
            }
            FeedUpdate::Uploaded { blob, row } => {
                let name = row.name(known.blob(blob));
                if !take_blob(&peer.backend, known, name, &row).await? {
                    let reason = "it has uploaded something else than it told".to_owned();
                    return Err(PackError::Deferred { reason });
                }
            }
            FeedUpdate::Entries { .. } | FeedUpdate::Nothing { .. } => {}
        }
        let is_due = known.index().unflushed_bytes() >= larder_kv::limits::FLUSH_BYTES;
        if is_due || known.received_bytes() >= RECEIVED_BYTES_MAX {
            known.flush()?;
        }
        Ok(())
    }
}

/// The outcome of a look for what is in the bucket.
enum Caught {
    Up,
    /// This blob lacks changes that were announced for it: the process that announced them has been superseded, and
    /// they are void.
    StaleBlobs(BlobId),
    /// A later process of the worker, or its heir, may yet judge a blob void.
    Undecided,
    /// A blob is missing: it is not listed yet, or was removed while this worker was away.
    Gap,
}

/// Returns true if a blob is missing or damaged that the others said is there: it may be lost, or
/// the list was late.
pub(super) fn is_gap(error: &PackError) -> bool {
    matches!(error, PackError::Missing { .. } | PackError::Damaged { .. })
}

impl ReceivedEntries {
    /// The entries, each with where it ends; the last may be cut off.
    pub(super) fn parse(&self, name: &WorkerName) -> Result<Vec<(Entry, u64)>, PackError> {
        let (mut entries, mut rest) = (Vec::new(), &self.bytes[..]);
        while let Some((entry, tail)) = next_entry(name, rest, self.is_whole)? {
            rest = tail;
            entries.push((entry, self.from + (self.bytes.len() - rest.len()) as u64));
        }
        Ok(entries)
    }
}

/// The next of some entries; `None` at their end, or where the last of them is cut off.
fn next_entry<'a>(
    name: &WorkerName,
    bytes: &'a [u8],
    is_whole: bool,
) -> Result<Option<(Entry, &'a [u8])>, PackError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    match postcard::take_from_bytes::<Entry>(bytes) {
        Ok(found) => Ok(Some(found)),
        Err(postcard::Error::DeserializeUnexpectedEnd) if !is_whole => Ok(None),
        Err(error) => {
            let reported = format!("what worker {name} tells of itself");
            Err(PackError::damaged(reported, error.to_string()))
        }
    }
}

/// Takes what is not known yet of a blob that is in the bucket, from its footer; false if what was heard of it is not there.
async fn take_blob(
    backend: &Backend,
    known: &Arc<FollowedIndex>,
    name: BlobName,
    row: &BlobRow,
) -> Result<bool, PackError> {
    let path = name.path();
    if row.footer_offset >= row.bytes {
        return Err(PackError::damaged(path, "it is shorter than its name says"));
    }
    let tail: Bytes = match backend.read(&path, row.footer_offset..row.bytes).await {
        Ok(tail) => tail,
        Err(Unread::Missing) => return Err(PackError::Missing { blob: name.id }),
        Err(Unread::Failed(error)) => return Err(error),
    };
    let (known, bytes) = (known.clone(), row.bytes);
    blocking::run(move || {
        let footer = FooterReader::new(&path, &tail)?;
        if footer.trailer.id != name.id || footer.trailer.blob_bytes() != bytes {
            return Err(PackError::damaged(&path, "it is not the blob that its name says"));
        }
        if !has_received_all(&known, name.id, footer)? {
            return Ok(false);
        }
        if name.id.seq <= known.at().blob {
            return Ok(true);
        }
        known.takes_unlogged();
        let received = known.at().lsn;
        for entry in FooterReader::new(&path, &tail)? {
            known.take(name.id.seq, &entry?, received)?;
        }
        known.whole(name.id.seq)?;
        Ok(true)
    })
    .await?
}

/// Returns true if a footer has the received changes of its blob: their first and last entry, and if all were received,
/// no more. Each has its number and its clock, which no two processes give alike; rows of earlier builds lack the first
/// clock.
fn has_received_all(
    known: &FollowedIndex,
    blob: BlobId,
    footer: FooterReader<'_>,
) -> Result<bool, PackError> {
    let received = known.index().blob_content(blob)?;
    let Some(received) = received else {
        // No change was received, or a later one retired it.
        return Ok(true);
    };
    has_heard(&received, blob.seq <= known.at().blob, footer)
}

fn has_heard(
    received: &BlobContent,
    is_whole: bool,
    footer: FooterReader<'_>,
) -> Result<bool, PackError> {
    let (mut first, mut has_last, mut is_longer) = (None, false, false);
    for entry in footer {
        let entry = entry?;
        first.get_or_insert((entry.seq, entry.clock));
        has_last |= (entry.seq, entry.clock) == (received.last, received.clock);
        is_longer |= entry.seq > received.last;
    }
    let has_first = first.is_some_and(|(seq, clock)| {
        seq == received.first && received.first_clock.is_none_or(|received| received == clock)
    });
    Ok(has_first && has_last && !(is_whole && is_longer))
}

/// Returns true if a mark is past a change of that worker and number.
pub(super) fn is_past(mark: &Mark, worker: WorkerId, seq: larder_types::OpSeq) -> bool {
    bugs::planted(Bug::GivenUpEarly)
        || mark.worker > worker
        || mark.worker == worker && mark.seq >= seq
}

#[cfg(test)]
mod tests {
    use larder_types::{BucketId, HybridClock, OpSeq};

    use super::*;
    use crate::format::blob::{FooterHead, encode_footer};
    use crate::format::entry::Change;
    use crate::format::upload_unit::UploadUnit;

    /// The footer of a blob with changes of these numbers and clocks.
    fn footer(changes: &[(u64, u64)]) -> Vec<u8> {
        let (id, mut entries) = (BlobId { worker: WorkerId(3), seq: 4 }, Vec::new());
        for (seq, clock) in changes {
            let change = Change::BucketRemoved(BucketId(1));
            let entry = Entry { seq: OpSeq(*seq), clock: HybridClock(*clock), change };
            entries = postcard::to_extend(&entry, entries).unwrap();
        }
        let head = FooterHead { created_ms: 1, entries: changes.len() as u64, buckets: Vec::new() };
        encode_footer(id, UploadUnit::SHARED, 0, &head, &entries)
    }

    #[test]
    fn what_was_heard_is_in_a_footer_that_begins_with_the_same_change() {
        let (first_clock, clock) = (Some(HybridClock(100)), HybridClock(102));
        let (first, last) = (OpSeq(10), OpSeq(12));
        let received = BlobContent { first, first_clock, last, clock, end: 0, live: 0 };
        let has = |received: &BlobContent, changes: &[(u64, u64)]| {
            let tail = footer(changes);
            has_heard(received, false, FooterReader::new("a blob", &tail).unwrap()).unwrap()
        };
        let theirs = [(10, 100), (11, 101), (12, 102), (13, 103)];
        assert!(has(&received, &theirs));
        let mixed = [(10, 99), (11, 101), (12, 102)];
        assert!(!has(&received, &mixed), "another process gave the first number");
        let of_v1 = BlobContent { first_clock: None, ..received };
        assert!(has(&of_v1, &theirs) && has(&of_v1, &mixed), "a row of an earlier build");
        assert!(!has(&received, &[(10, 100), (11, 101), (12, 103)]));
        assert!(!has(&received, &[(9, 99), (10, 100), (12, 102)]));
    }
}
