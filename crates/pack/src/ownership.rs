//! Ownership of this worker's place in the backend, as far as the worker knows it. Every question goes through here, and
//! requests are answered by what came of them.
//!
//! A worker may run on after its directory was given up for lost, or wake up after a night's suspend, while its heir
//! serves clients. Uploads and removals ask before they count. A worker that does neither asks all the same, every
//! [`OWNER_PERIOD`]: else it would show for ever what was true before the take-over.
//!
//! # Invariants
//!
//! 1. Once a claim after this worker's is known, requests are refused, and the store stops: that never ends.
//! 2. A request is answered if this worker was the owner [`OWNER_UNSEEN_MAX`] ago or later. If nobody asked for that long,
//!    as after a suspend, it asks first. Times are those of a clock that goes on while the machine is suspended.
//! 3. A backend that does not answer stops nobody: it may be away for days, and an operator who takes a worker over is
//!    told to stop it first.
//! 4. A question counts from when it was begun: a claim may come right after the backend looked.

use std::sync::Arc;
use std::time::Duration;

use larder_objects::ObjectError;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::backend::Backend;
use crate::counters::count;
use crate::entry::WorkerId;
use crate::error::PackError;
use crate::identity::check_owner;
use crate::limits::{OWNER_PERIOD, OWNER_UNSEEN_MAX};
use crate::plan::unavailable;
use crate::queue::Queue;
use crate::workers::{Sighting, Uptime};

/// Ages of the last answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    /// The last question began that found this worker to be the owner.
    owned: Duration,
    /// The last question ended without an answer; `None` if it had one.
    failed: Option<Duration>,
}

/// Treatment of a request by a worker that knows of no heir.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    /// It answers.
    Owner,
    /// It asks first.
    Unasked,
    /// It answers: the backend was asked, and did not.
    Unanswered,
}

impl Known {
    fn stand(self) -> Stand {
        match self.failed {
            _ if self.owned <= OWNER_UNSEEN_MAX => Stand::Owner,
            Some(failed) if failed <= OWNER_UNSEEN_MAX => Stand::Unanswered,
            _ => Stand::Unasked,
        }
    }

    /// Time until the next question; none if it is due.
    fn due_in(self) -> Duration {
        let asked = self.failed.map_or(self.owned, |failed| failed.min(self.owned));
        OWNER_PERIOD.saturating_sub(asked)
    }
}

/// When everything was seen.
struct Seen {
    owned: Sighting,
    failed: Option<Sighting>,
    /// The one that took over.
    heir: Option<WorkerId>,
}

/// A worker's ownership of its place in the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerStatus {
    /// Time since the last question began that found it to be the owner.
    pub unseen: Duration,
    /// True once another worker is known to have taken over.
    pub superseded: bool,
}

/// Tracks who owns this worker's place.
pub(crate) struct Ownership {
    backend: Backend,
    worker: WorkerId,
    seen: Mutex<Seen>,
    /// Held by whoever asks for others too.
    asking: tokio::sync::Mutex<()>,
    queue: Arc<Queue>,
    fatal: watch::Sender<Option<String>>,
    uptime: Uptime,
}

impl Ownership {
    /// Of a worker that was the owner when `owned` was seen. Once it is not, the queue is stopped and `fatal` says why.
    pub(crate) fn new(
        backend: Backend,
        worker: WorkerId,
        owned: Sighting,
        queue: Arc<Queue>,
        fatal: watch::Sender<Option<String>>,
        uptime: Uptime,
    ) -> Self {
        let seen = Mutex::new(Seen { owned, failed: None, heir: None });
        let asking = tokio::sync::Mutex::default();
        Self { backend, worker, seen, asking, queue, fatal, uptime }
    }

    /// Asks now.
    ///
    /// # Errors
    /// [`PackError::Superseded`], for ever, or that the backend does not answer.
    pub(crate) async fn ask(&self) -> Result<(), PackError> {
        self.known()?;
        let begun = Sighting::now(self.uptime);
        count(&self.backend.counters().owner_questions);
        let answer = check_owner(&self.backend, self.worker).await;
        match &answer {
            Ok(()) => {
                let mut seen = self.seen.lock();
                if begun.elapsed() <= seen.owned.elapsed() {
                    (seen.owned, seen.failed) = (begun, None);
                }
            }
            Err(PackError::Superseded { by, .. }) => self.end(*by),
            Err(_) => self.seen.lock().failed = Some(Sighting::now(self.uptime)),
        }
        answer
    }

    /// Nothing is taken or answered any more.
    fn end(&self, by: WorkerId) {
        // First, so that whoever is refused by what stops can say why.
        let is_new = self.seen.lock().heir.replace(by).is_none();
        if is_new {
            let error = self.superseded(by);
            tracing::error!(%error, "the store stops");
            self.queue.stop();
            self.fatal.send_replace(Some(error.to_string()));
        }
    }

    fn superseded(&self, by: WorkerId) -> PackError {
        PackError::Superseded { worker: self.worker, by }
    }

    fn known(&self) -> Result<(), PackError> {
        let heir = self.seen.lock().heir;
        heir.map_or(Ok(()), |by| Err(self.superseded(by)))
    }

    fn times(&self) -> Known {
        let seen = self.seen.lock();
        Known { owned: seen.owned.elapsed(), failed: seen.failed.map(|failed| failed.elapsed()) }
    }

    /// Refuses what comes after a take-over that is known.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`].
    pub(crate) fn refuse_superseded(&self) -> Result<(), ObjectError> {
        self.known().map_err(|error| unavailable(&error.to_string()))
    }

    /// Lets a request in. Asks first if it was not asked for long.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`].
    pub(crate) async fn admit(&self) -> Result<(), ObjectError> {
        self.refuse_superseded()?;
        if self.times().stand() == Stand::Unasked {
            let _turn = self.asking.lock().await;
            // Whoever waited for another finds what that one was told.
            if self.times().stand() == Stand::Unasked
                && let Err(error) = self.ask().await
            {
                tracing::warn!(%error, "it is not known who owns the backend; this worker answers all the same");
            }
        }
        self.refuse_superseded()
    }

    /// Asks at every period if nobody else does, until another worker has taken over.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.times().due_in()).await;
            let _turn = self.asking.lock().await;
            let Known { owned, failed } = self.times();
            if !self.times().due_in().is_zero() {
                continue;
            }
            match self.ask().await {
                Ok(()) => {}
                Err(PackError::Superseded { .. }) => return,
                // Once for each time that the backend is away.
                Err(error) if failed.is_none() => {
                    tracing::warn!(%error, unseen = ?owned, "the backend does not say who owns it; this worker answers all the same");
                }
                Err(_) => {}
            }
        }
    }

    /// The present state, for metrics.
    pub(crate) fn status(&self) -> OwnerStatus {
        OwnerStatus { unseen: self.times().owned, superseded: self.known().is_err() }
    }
}

#[cfg(test)]
mod tests;
