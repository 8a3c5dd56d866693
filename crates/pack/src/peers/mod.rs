//! Several workers over one bucket: each is a whole packed store of its own, in a place of its own of the bucket, and
//! shows what all of them have.
//!
//! ```text
//!  face ──▶ Packer ──▶ newest of: own index, peer a's, peer b's …     by clock, then worker: the last put or delete counts
//!              │                            ▲          ▲
//!     changes  ▼                            │ follow   │
//!        own log, spool, blobs      footers in the bucket; before that, the worker itself (feed/)
//! ```
//!
//! A worker changes nothing but its own. A put of a key that another has is a newer version here. A
//! delete is a *tombstone*, an empty object in a bucket for them ([`hidden`]). A worker gives up what
//! it has that became older than either (`version_gc.rs`), and so the bytes come free. ADR 25 says why.
//!
//! # Invariants
//!
//! 1. Nobody writes, removes or repacks what lies in another worker's place. A name's place has one owner at a time
//!    ([`crate::owner::identity`]).
//! 2. Of a key, the version or tombstone with the greatest (clock, worker) counts, at every worker. A worker's clock is past
//!    all that it knows: what is put or deleted knowing of a version is newer.
//! 3. A version or tombstone that counts less than another worker's goes only after that one has been
//!    in the bucket for [`Sharing::kept`]. A worker that has not seen the bucket for
//!    [`Sharing::unseen_max`] answers nobody. So nobody sees the one gone and not the other.
//! 4. A tombstone goes only when no worker has, or can come to have, an older version.
//! 5. A body that is only in another worker's spool comes from there or not at all: never an older version in its place.

pub(crate) mod buckets;
pub(crate) mod feed;
mod follow;
pub(crate) mod hidden;
pub(crate) mod index_store;
mod joining;
pub(crate) mod list;
mod loss;
pub(crate) mod peer;
pub(crate) mod received_log;
mod sharing;
mod status;
mod tasks;
pub(crate) mod version_gc;
pub(crate) mod view;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use larder_objects::ObjectError;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::backend::Backend;
use crate::clock::{SuspendAwareInstant, Uptime};
use crate::commit::peer_clock::PeerClock;
use crate::error::{PackError, unavailable};
use crate::ids::WorkerId;
use crate::limits::{GAP_CHECKS_MAX, RECHECK_PAUSE};
use crate::owner::announce::{self, Announcement};
use crate::owner::identity::is_claimed;
use crate::owner::name::WorkerName;
use crate::read::cache::Cache;

pub(crate) use joining::{Joined, Shares};
pub use sharing::Sharing;
pub use status::{OtherStatus, WorkersStatus};

use feed::Caller;
use follow::is_gap;
use index_store::PeerIndexStore;
use peer::{FollowedIndex, Peer};

/// The other workers of a bucket.
pub(crate) struct Others {
    /// The announcement of this worker.
    me: Announcement,
    /// The whole bucket.
    root: Backend,
    settings: Sharing,
    index_store: Box<dyn PeerIndexStore>,
    reads: Reads,
    caller: Arc<Caller>,
    peers: RwLock<BTreeMap<WorkerName, Arc<Peer>>>,
    peer_clock: Arc<PeerClock>,
    /// The time at which the last look for workers that share the bucket began; `None` before the
    /// first.
    listed: Mutex<Option<SuspendAwareInstant>>,
    uptime: Uptime,
    /// Another directory has this worker's name by now.
    superseded: AtomicBool,
    /// The time at which the status of the others was last written down.
    last_written: Mutex<Option<Instant>>,
    handed_on: AtomicU64,
}

/// The things that reads of others' objects share with those of own ones.
pub(crate) struct Reads {
    pub(crate) cache: Option<Arc<Cache>>,
    pub(crate) ahead_bytes: u64,
    /// Where losses are written down.
    pub(crate) dir: PathBuf,
    /// True if an index is made without blobs that another worker has lost.
    pub(crate) accept_loss: bool,
}

impl Others {
    pub(crate) fn new(
        me: Announcement,
        root: Backend,
        settings: Sharing,
        index_store: Box<dyn PeerIndexStore>,
        reads: Reads,
        caller: Caller,
        uptime: Uptime,
    ) -> Self {
        Self {
            me,
            root,
            settings,
            index_store,
            reads,
            caller: Arc::new(caller),
            peers: RwLock::default(),
            peer_clock: Arc::default(),
            listed: Mutex::new(None),
            uptime,
            superseded: AtomicBool::new(false),
            last_written: Mutex::new(None),
            handed_on: AtomicU64::new(0),
        }
    }

    pub(crate) fn name(&self) -> &WorkerName {
        &self.me.name
    }

    pub(crate) fn settings(&self) -> &Sharing {
        &self.settings
    }

    fn index_store(&self) -> &dyn PeerIndexStore {
        &*self.index_store
    }

    fn cache(&self) -> (Option<Arc<Cache>>, u64) {
        (self.reads.cache.clone(), self.reads.ahead_bytes)
    }

    pub(crate) fn caller(&self) -> Arc<Caller> {
        self.caller.clone()
    }

    /// Requests of uploads that were handed on to the workers that began them.
    pub(crate) fn handed_on(&self) -> u64 {
        self.handed_on.load(Ordering::Relaxed)
    }

    pub(crate) fn count_handed_on(&self) {
        self.handed_on.fetch_add(1, Ordering::Relaxed);
    }

    /// All other workers, by name.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.read().values().cloned().collect()
    }

    /// The workers of which something is known, each as it is known.
    pub(crate) fn known(&self) -> Vec<Arc<FollowedIndex>> {
        self.peers.read().values().filter_map(|peer| peer.known()).collect()
    }

    /// Tells the others where this worker is, and looks for a worker that does not know of them.
    pub(crate) async fn announce(&self) -> Result<(), PackError> {
        self.me.write(&self.root).await?;
        let all = announce::all(&self.root).await?;
        let is_at_root = all.iter().any(|announcement| announcement.prefix.is_empty());
        if !is_at_root && is_claimed(&self.root).await? {
            return Err(PackError::Config {
                what: "a worker with a name",
                found: format!("{}, over the bucket of a worker without", self.me.name),
                remedy: "--worker NAME with that worker's directory first".to_owned(),
            });
        }
        Ok(())
    }

    /// Looks for the first time, before this worker serves. A blob that is missing counts as lost
    /// only when as many looks in a row missed it as for [`Others::refresh`]. The others go on
    /// meanwhile, and a list is not of one moment.
    ///
    /// # Errors
    /// As for [`Others::refresh`].
    pub(crate) async fn poll_first(&self) -> Result<(), PackError> {
        for _ in 1..GAP_CHECKS_MAX {
            match self.refresh().await {
                Err(error) if is_gap(&error) => tokio::time::sleep(RECHECK_PAUSE).await,
                looked => return looked,
            }
        }
        self.refresh().await
    }

    /// Looks in the bucket for what the others changed. One that cannot be looked at does not keep it from the rest.
    ///
    /// # Errors
    /// The first that there was.
    pub(crate) async fn refresh(&self) -> Result<(), PackError> {
        let begun = SuspendAwareInstant::now(self.uptime);
        let (own, all): (Vec<_>, Vec<_>) = announce::all(&self.root)
            .await?
            .into_iter()
            .partition(|announcement| announcement.name == self.me.name);
        self.check_own_status(own.first()).await?;
        let before = *self.listed.lock();
        for announcement in all {
            let mut peers = self.peers.write();
            match peers.get(&announcement.name) {
                Some(peer) => peer.announced(announcement),
                None => {
                    tracing::info!(worker = %announcement.name, "another worker shares the bucket");
                    let peer = Arc::new(Peer::new(announcement, &self.root, before));
                    peers.insert(peer.name.clone(), peer);
                }
            }
        }
        *self.listed.lock() = Some(begun);
        let mut first = None;
        for peer in self.peers() {
            if let Err(error) = self.look_at(&peer).await {
                let unseen = peer.unseen();
                tracing::warn!(worker = %peer.name, %error, ?unseen, "another worker's blobs could not be read: will retry");
                first.get_or_insert(error);
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Checks if this worker's status in the bucket is the one that it wrote last. A late request of an earlier run may
    /// have overwritten it.
    async fn check_own_status(&self, announcement: Option<&Announcement>) -> Result<(), PackError> {
        match announcement {
            Some(announcement) if announcement.worker > self.me.worker => {
                self.superseded.store(true, Ordering::Relaxed);
                Ok(())
            }
            Some(announcement) if *announcement == self.me => Ok(()),
            _ => {
                tracing::warn!(
                    "this worker's status in the bucket is out of date: writing it again"
                );
                self.me.write(&self.root).await
            }
        }
    }

    /// Makes the indexes of all of them durable. Changes in an index that is not durable are known
    /// from what was heard, or learned again.
    pub(crate) fn flush(&self) {
        for known in self.known() {
            if let Err(error) = known.flush() {
                tracing::warn!(%error, "the index of another worker was not made durable");
            }
        }
    }

    /// Time since the last look began that found everything of all.
    pub(crate) fn unseen(&self) -> Duration {
        let listed = self.listed.lock().map_or(Duration::MAX, |listed| listed.elapsed());
        self.peers().iter().map(|peer| peer.unseen()).max().unwrap_or_default().max(listed)
    }

    /// Refuses to answer from what may be too old.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`].
    pub(crate) fn fresh(&self) -> Result<(), ObjectError> {
        if self.superseded.load(Ordering::Relaxed) {
            return Err(unavailable("another directory has taken this worker over"));
        }
        let unseen = self.unseen();
        if unseen <= self.settings.unseen_max {
            return Ok(());
        }
        let max = self.settings.unseen_max;
        Err(unavailable(&format!("what other workers changed was not looked at for {max:?}")))
    }

    /// Returns true if a change is one of this worker, or of one that it took over.
    pub(crate) fn is_own(&self, worker: WorkerId) -> bool {
        worker.line() == self.me.worker.line()
    }
}

#[cfg(test)]
mod tests;
