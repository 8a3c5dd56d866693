//! Bounds the requests worked on, and the memory of their bodies.
//!
//! # Invariants
//!
//! 1. Requests worked on never exceed `requests`, bytes of bodies held never exceed `body_bytes`. Both are taken by
//!    requests whose signature is verified ([`crate::auth::gate`]); HTML forms before that have places of their own.
//! 2. Requests that wait never exceed `waiting`, and none waits longer than [`WAIT_MAX`]. A request beyond that is
//!    told to slow down before a byte of its body is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::limits::{FORMS_UNVERIFIED_MAX, WAIT_MAX};

/// The server is at its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overloaded;

/// The places that a request holds while it is worked on; dropping it lets others in.
#[derive(Debug)]
pub(crate) struct Admitted {
    turn: OwnedSemaphorePermit,
    _bytes: Option<OwnedSemaphorePermit>,
}

impl Admitted {
    /// The turn alone, once the body's memory is no longer needed.
    pub(crate) fn into_turn(self) -> Turn {
        Turn { _turn: self.turn }
    }
}

/// A request's turn; dropping it lets another in.
#[derive(Debug)]
pub(crate) struct Turn {
    _turn: OwnedSemaphorePermit,
}

/// Turns and body memory of one server.
#[derive(Debug)]
pub(crate) struct Admission {
    turns: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    forms: Arc<Semaphore>,
    bytes_max: u32,
    waiting: AtomicUsize,
    waiting_max: usize,
}

impl Admission {
    pub(crate) fn new(requests: usize, body_bytes: usize, waiting_max: usize) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(requests)),
            bytes: Arc::new(Semaphore::new(body_bytes)),
            forms: Arc::new(Semaphore::new(FORMS_UNVERIFIED_MAX)),
            bytes_max: u32::try_from(body_bytes).unwrap_or(u32::MAX),
            waiting: AtomicUsize::new(0),
            waiting_max,
        }
    }

    /// Lets a request in whose body will take `bytes` of memory, or all there is, or makes it wait.
    pub(crate) async fn admit(&self, bytes: u32) -> Result<Admitted, Overloaded> {
        let turn = self.take(&self.turns, 1).await?;
        let bytes = match bytes.min(self.bytes_max) {
            0 => None,
            bytes => Some(self.take(&self.bytes, bytes).await?),
        };
        Ok(Admitted { turn, _bytes: bytes })
    }

    /// A place for a form whose signature is not verified yet, if there is one at once.
    pub(crate) fn form(&self) -> Result<OwnedSemaphorePermit, Overloaded> {
        Arc::clone(&self.forms).try_acquire_owned().map_err(|_| Overloaded)
    }

    async fn take(
        &self,
        from: &Arc<Semaphore>,
        many: u32,
    ) -> Result<OwnedSemaphorePermit, Overloaded> {
        if let Ok(permit) = Arc::clone(from).try_acquire_many_owned(many) {
            return Ok(permit);
        }
        let _place = Place::take(self)?;
        match timeout(WAIT_MAX, Arc::clone(from).acquire_many_owned(many)).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(AcquireError { .. })) | Err(_) => Err(Overloaded),
        }
    }
}

/// A place in the queue.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(admission: &'a Admission) -> Result<Self, Overloaded> {
        let place = Self(&admission.waiting);
        let before = admission.waiting.fetch_add(1, Ordering::Relaxed);
        if before < admission.waiting_max { Ok(place) } else { Err(Overloaded) }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_is_refused_at_once_and_a_waiter_in_time() {
        let admission = Arc::new(Admission::new(1, 100, 1));
        let first = admission.admit(100).await.unwrap();
        let waiter = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { admission.admit(1).await.map(drop) }
        });
        tokio::task::yield_now().await;
        let started = tokio::time::Instant::now();
        assert_eq!(admission.admit(1).await.map(drop), Err(Overloaded));
        assert_eq!(started.elapsed().as_millis(), 0, "a full queue answers at once");
        assert_eq!(waiter.await.unwrap(), Err(Overloaded));
        assert_eq!(started.elapsed(), WAIT_MAX);
        drop(first);
        assert!(admission.admit(100).await.is_ok());
    }

    #[tokio::test]
    async fn memory_is_given_back() {
        let admission = Admission::new(2, 100, 1);
        let first = admission.admit(60).await.unwrap();
        assert_eq!(admission.bytes.available_permits(), 40);
        drop(first);
        assert_eq!(admission.bytes.available_permits(), 100);
        assert!(admission.admit(1000).await.is_ok(), "more than there is means all there is");
    }
}
