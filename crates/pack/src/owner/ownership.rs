//! Ownership of this worker's prefix in the backend, as last read. Every check goes through here, and its result
//! decides if requests are served. `numbering.rs` has the checks.
//!
//! A worker may run on after its directory was given up for lost, or copied, while its heir or the
//! other copy serves clients. Or it may wake up to that after a night's suspend. Uploads and
//! removals ask before they count. A worker that does neither asks all the same, every
//! [`OWNER_PERIOD`]: else it would show for ever what was true before the take-over.
//!
//! # Invariants
//!
//! 1. Once a claim after this worker's is known, or a process with a greater number, requests are refused, and the store
//!    stops: that never ends.
//! 2. A request is answered if this worker was the owner [`OWNER_UNSEEN_MAX`] ago or later. If nobody asked for that long,
//!    as after a suspend, it asks first. Times are those of a clock that goes on while the machine is suspended.
//! 3. A backend that does not answer stops nobody: it may be away for days, and an operator who takes a worker over is
//!    told to stop it first.
//! 4. A question counts from when it was begun: a claim may come right after the backend looked.
//! 5. Requests wait for no write to the backend: what lets them in takes no number ([`Numbering::refresh`]).

use std::sync::Arc;
use std::time::Duration;

use larder_objects::ObjectError;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::{SuspendAwareInstant, Uptime};
use crate::commit::queue::Queue;
use crate::commit::spool::Spool;
use crate::counters::count;
use crate::error::{PackError, unavailable};
use crate::format::rows::BlobRow;
use crate::ids::ProcessId;
use crate::limits::{OWNER_CHECK_MAX, OWNER_PERIOD, OWNER_UNSEEN_MAX};
use crate::owner::counting;
use crate::owner::numbering::{Knows, Numbering, NumberingEvidence};

/// Ages of the last answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OwnerState {
    /// The last question began that found this worker to be the owner.
    owned: Duration,
    /// The last question ended without an answer; `None` if it had one.
    failed: Option<Duration>,
}

/// Treatment of a request by a worker that knows of no heir.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServeDecision {
    /// It answers.
    Owner,
    /// It asks first.
    Unasked,
    /// It answers: the backend was asked, and did not.
    Unanswered,
}

impl OwnerState {
    fn decision(self) -> ServeDecision {
        match self.failed {
            _ if self.owned <= OWNER_UNSEEN_MAX => ServeDecision::Owner,
            Some(failed) if failed <= OWNER_UNSEEN_MAX => ServeDecision::Unanswered,
            _ => ServeDecision::Unasked,
        }
    }

    /// Time until the next question; none if it is due.
    fn due_in(self) -> Duration {
        let asked = self.failed.map_or(self.owned, |failed| failed.min(self.owned));
        OWNER_PERIOD.saturating_sub(asked)
    }
}

/// The last answers about the owner, and when they were seen.
struct Seen {
    owned: SuspendAwareInstant,
    failed: Option<SuspendAwareInstant>,
    /// The error that names who took over, and says what to do about that.
    superseded: Option<PackError>,
}

/// A worker's ownership of its place in the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerStatus {
    /// Time since the last question began that found it to be the owner.
    pub unseen: Duration,
    /// True once another process is known to own the place.
    pub superseded: bool,
    /// The number of this process; 0 while it has none.
    pub process: ProcessId,
}

/// Tracks who owns this worker's place.
pub(crate) struct Ownership {
    numbering: Arc<Numbering>,
    spool: Arc<Spool>,
    seen: Mutex<Seen>,
    /// Held by a request that asks for others too.
    asking: tokio::sync::Mutex<()>,
    queue: Arc<Queue>,
    fatal: watch::Sender<Option<String>>,
    uptime: Uptime,
}

impl Ownership {
    /// Of a process that was the owner when `owned` was seen. Once it is not, the queue is stopped and `fatal` says why.
    pub(crate) fn new(
        (numbering, spool): (Arc<Numbering>, Arc<Spool>),
        owned: SuspendAwareInstant,
        queue: Arc<Queue>,
        fatal: watch::Sender<Option<String>>,
        uptime: Uptime,
    ) -> Self {
        let seen = Mutex::new(Seen { owned, failed: None, superseded: None });
        let asking = tokio::sync::Mutex::default();
        Self { numbering, spool, seen, asking, queue, fatal, uptime }
    }

    /// Asks now, on behalf of what is to count: the number of the process, which it has from then on.
    ///
    /// # Errors
    /// [`PackError::is_superseded`], for ever, or that the backend does not answer.
    pub(crate) async fn ask(&self) -> Result<ProcessId, PackError> {
        self.check_by(NumberingEvidence::Backend).await
    }

    /// As [`Ownership::ask`], but for work that begins now: only a check that starts after this call counts.
    ///
    /// # Errors
    /// As for [`Ownership::ask`].
    pub(crate) async fn check_before_begin(&self) -> Result<ProcessId, PackError> {
        self.check_by(NumberingEvidence::Clocks).await
    }

    async fn check_by(&self, by: NumberingEvidence) -> Result<ProcessId, PackError> {
        self.known()?;
        let begun = SuspendAwareInstant::now(self.uptime);
        let answer = self.numbering.check(Knows::All(&self.spool), by).await;
        self.learn(begun, answer)
    }

    /// Asks now, on behalf of requests.
    async fn refresh(&self) -> Result<(), PackError> {
        self.known()?;
        let begun = SuspendAwareInstant::now(self.uptime);
        let answer = in_time(self.numbering.refresh()).await;
        self.learn(begun, answer)
    }

    fn learn<T>(
        &self,
        begun: SuspendAwareInstant,
        answer: Result<T, PackError>,
    ) -> Result<T, PackError> {
        count(&self.numbering.backend().counters().owner_questions);
        match &answer {
            Ok(_) => {
                let mut seen = self.seen.lock();
                if begun.elapsed() <= seen.owned.elapsed() {
                    (seen.owned, seen.failed) = (begun, None);
                }
            }
            Err(error) if error.is_superseded() => self.end(error),
            Err(_) => self.seen.lock().failed = Some(SuspendAwareInstant::now(self.uptime)),
        }
        answer
    }

    /// Records of processes that were read.
    pub(crate) fn records(&self) -> &counting::Known {
        self.numbering.records()
    }

    /// The row of a blob that waits and is in the backend already; `None` if it is not there.
    pub(crate) fn adopted(&self, seq: u64) -> Option<BlobRow> {
        self.numbering.adopted(seq)
    }

    /// Nothing is taken or answered any more.
    fn end(&self, error: &PackError) {
        // First, so that requests which are refused by what stops can say why.
        let before = std::mem::replace(&mut self.seen.lock().superseded, error.superseded());
        if before.is_none() {
            tracing::error!(%error, "the store stops");
            self.queue.stop();
            self.fatal.send_replace(Some(error.to_string()));
        }
    }

    fn known(&self) -> Result<(), PackError> {
        let superseded = self.seen.lock().superseded.as_ref().and_then(PackError::superseded);
        superseded.map_or(Ok(()), Err)
    }

    fn times(&self) -> OwnerState {
        let seen = self.seen.lock();
        OwnerState {
            owned: seen.owned.elapsed(),
            failed: seen.failed.map(|failed| failed.elapsed()),
        }
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
        if self.times().decision() == ServeDecision::Unasked {
            let _turn = self.asking.lock().await;
            // A request that waited for another finds the answer of that one.
            if self.times().decision() == ServeDecision::Unasked
                && let Err(error) = self.refresh().await
            {
                tracing::warn!(%error, "cannot read who owns the backend: this worker serves all the same");
            }
        }
        self.refuse_superseded()
    }

    /// Asks at every period if nobody else does, until another process owns the place; takes a number, if there is none.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.times().due_in()).await;
            let answer = {
                let _turn = self.asking.lock().await;
                if !self.times().due_in().is_zero() {
                    continue;
                }
                let OwnerState { owned, failed } = self.times();
                let answer = self.refresh().await;
                if let Err(error) = &answer
                    && !error.is_superseded()
                    && failed.is_none()
                {
                    // Once for each time that the backend is away.
                    tracing::warn!(%error, unseen = ?owned, "the backend has no owner record: this worker serves all the same");
                }
                answer
            };
            let numbered = match answer {
                Ok(()) if self.numbering.known().is_none() => in_time(self.ask()).await.map(drop),
                answer => answer,
            };
            if numbered.is_err_and(|error| error.is_superseded()) {
                return;
            }
        }
    }

    /// The present state, for metrics.
    pub(crate) fn status(&self) -> OwnerStatus {
        let process = self.numbering.known().unwrap_or_default();
        OwnerStatus { unseen: self.times().owned, superseded: self.known().is_err(), process }
    }
}

/// Waits for an answer, unless it takes too long.
async fn in_time<T>(asked: impl Future<Output = Result<T, PackError>>) -> Result<T, PackError> {
    let late = |_| PackError::Backend {
        operation: "say",
        name: "who owns it".to_owned(),
        reason: format!("it did not within {OWNER_CHECK_MAX:?}"),
    };
    tokio::time::timeout(OWNER_CHECK_MAX, asked).await.map_err(late)?
}

#[cfg(test)]
mod tests;
