//! The right to act for a worker. It belongs to the directory with the latest claim (`identity.rs`), and there to the
//! process that started last: a copy of the directory has the same claim.
//!
//! # Invariants
//!
//! 1. A start makes the next [`Incarnation`] before it lists the worker's blobs, and refuses the directory if that list
//!    has a blob that the directory does not know (`recover.rs`).
//! 2. A process uploads a blob, then looks for a later claim or incarnation, then acknowledges. So, as with claims
//!    (`uploader.rs`), of two processes on copies of a directory the later one sees in its list what the earlier one
//!    acknowledged, or the earlier one sees that it was superseded, and does not acknowledge.
//! 3. Objects of incarnations are never removed: that the next one is missing says that there is none.
//!
//! So no two blobs of one number are ever acknowledged. What a superseded process uploads late, one blob at most, is
//! replaced or removed by the owner.
//!
//! A process that is idle asks too ([`Owner::watch`]): it answers reads only while it was told not long ago that it is
//! the owner. So what it shows is never older than [`PackConfig::unowned_max`](crate::PackConfig::unowned_max).

use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use larder_env::Disk;
use larder_objects::ObjectError;
use larder_types::OpSeq;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use crate::backend::Backend;
use crate::entry::WorkerId;
use crate::error::PackError;
use crate::identity::check_claim;
use crate::lineage::{Incarnation, Lineage};
use crate::plan::unavailable;
use crate::queue::Queue;

/// What one process asks before it does what only the owner may.
#[derive(Clone)]
pub(crate) struct Owner {
    backend: Backend,
    worker: WorkerId,
    incarnation: Incarnation,
    /// The directory, for the operator.
    dir: String,
    standing: Arc<Mutex<Standing>>,
}

/// What was found out last.
struct Standing {
    /// When the last look began that found that this process is the owner.
    owned: Instant,
    is_superseded: bool,
}

impl Owner {
    /// Begins the next incarnation of a directory's worker, of which `begun` is the last entry.
    pub(crate) async fn begin(
        backend: &Backend,
        disk: &dyn Disk,
        (worker, begun): (WorkerId, OpSeq),
        dir: String,
    ) -> Result<(Self, Lineage), PackError> {
        let before = Lineage::of(disk)?;
        let mut known = before.last();
        loop {
            let next = Lineage::latest(backend, worker, known).await?.next();
            let lineage = before.grown(next, begun);
            if lineage.make(backend, worker).await? {
                // After it is there: a number that is another's must never be in this lineage.
                lineage.keep(disk)?;
                let backend = backend.clone();
                let standing = Standing { owned: Instant::now(), is_superseded: false };
                let standing = Arc::new(Mutex::new(standing));
                let owner = Self { backend, worker, incarnation: next, dir, standing };
                return Ok((owner, lineage));
            }
            // Another process has it, or a repeated request met its own first try.
            known = next;
        }
    }

    /// Whether nobody has claimed the backend since, nor started with a copy of the directory.
    ///
    /// # Errors
    /// [`PackError::Superseded`], [`PackError::Copied`], or why nobody knows.
    pub(crate) async fn check(&self) -> Result<(), PackError> {
        let begun = Instant::now();
        let checked = self.look().await;
        let mut standing = self.standing.lock();
        match &checked {
            Ok(()) => standing.owned = standing.owned.max(begun),
            Err(error) => standing.is_superseded |= error.is_superseded(),
        }
        checked
    }

    async fn look(&self) -> Result<(), PackError> {
        let &Self { worker, incarnation, .. } = self;
        let next = incarnation.next().path(worker);
        let (claim, later) =
            join(check_claim(&self.backend, worker), self.backend.size(&next)).await;
        claim?;
        match later? {
            None => Ok(()),
            Some(_) => Err(PackError::Copied { worker, dir: self.dir.clone() }),
        }
    }

    /// Refuses to show what may be older than `unowned_max`.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`].
    pub(crate) fn fresh(&self, unowned_max: Duration) -> Result<(), ObjectError> {
        let standing = self.standing.lock();
        if standing.is_superseded {
            return Err(unavailable("another process has taken this worker over"));
        }
        if standing.owned.elapsed() <= unowned_max {
            return Ok(());
        }
        Err(unavailable(&format!(
            "whether this worker still owns the backend was not found out for {unowned_max:?}"
        )))
    }

    /// Asks once in a period, unless an upload has asked meanwhile, until this process is superseded: then the store stops.
    pub(crate) async fn watch(
        self,
        period: Duration,
        queue: Arc<Queue>,
        fatal: watch::Sender<Option<String>>,
    ) {
        let mut turns = tokio::time::interval_at(Instant::now() + period, period);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            if self.standing.lock().owned.elapsed() < period / 2 {
                continue;
            }
            match self.check().await {
                Ok(()) => {}
                Err(error) if error.is_superseded() => {
                    tracing::error!(%error, "the store stops");
                    queue.stop();
                    fatal.send_replace(Some(error.to_string()));
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "who owns the backend was not found out; it is asked again");
                }
            }
        }
    }
}
