//! The gate between a request that anybody can send and one whose signature is verified, and the turns and the memory of the
//! server that it gives out.
//!
//! # Invariants
//!
//! 1. A turn and memory for the body are taken when the signature is verified, and not before.
//! 2. No byte of a body is read before that, except the head of an HTML form, where its signature is.
//! 3. Memory is given back when the body has been read or cut off, a turn when the answer has been sent.
//! 4. Requests worked on never exceed `requests`, bytes of bodies held never exceed `body_bytes`. HTML forms whose signature is
//!    not verified yet have places of their own.
//! 5. Requests that wait never exceed `waiting`, and none waits longer than [`WAIT_MAX`]. A request beyond that is
//!    told to slow down before a byte of its body is read.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use s3s::{S3Error, S3ErrorCode};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::errors;
use crate::limits::{FORM_HEAD_BYTES_MAX, FORMS_UNVERIFIED_MAX, WAIT_MAX};
use crate::request::bytes_moved::BytesMoved;

/// The reason that a body was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cut {
    #[error("the client sends its body too slowly")]
    Stalled,
    #[error("the form's signature did not come in time")]
    Unverified,
    #[error("the request is not authenticated yet")]
    Early,
}

impl Cut {
    /// The error that S3 answers.
    pub(crate) fn refusal(self) -> S3Error {
        match self {
            Self::Stalled => errors::error(
                S3ErrorCode::RequestTimeout,
                "Your socket connection to the server was not read from or written to within the timeout period.",
            ),
            Self::Unverified => errors::error(
                S3ErrorCode::AccessDenied,
                format!(
                    "The fields before the file of a form, its signature among them, must come within \
                     {FORM_HEAD_BYTES_MAX} bytes."
                ),
            ),
            Self::Early => errors::error(S3ErrorCode::AccessDenied, "Access Denied"),
        }
    }
}

/// The gate of one request.
pub(crate) struct Gate {
    admission: Arc<Admission>,
    body_bytes: u32,
    is_form: bool,
    admitted: Mutex<Option<Admitted>>,
    /// The place among unverified forms.
    form: Mutex<Option<OwnedSemaphorePermit>>,
    is_open: AtomicBool,
    cut: OnceLock<Cut>,
    /// Bytes of the body that were read.
    received: AtomicU64,
    /// Access key by which the request is signed, once that is verified.
    user: OnceLock<String>,
    /// The bytes of its body that became part of an object, once they have, and how.
    moved: OnceLock<BytesMoved>,
}

impl Gate {
    /// A gate that is shut, of a request whose body takes so much memory.
    pub(crate) fn new(admission: Arc<Admission>, body_bytes: u32, is_form: bool) -> Self {
        Self {
            admission,
            body_bytes,
            is_form,
            admitted: Mutex::default(),
            form: Mutex::default(),
            is_open: AtomicBool::new(false),
            cut: OnceLock::new(),
            received: AtomicU64::new(0),
            user: OnceLock::new(),
            moved: OnceLock::new(),
        }
    }

    /// Opens once the signature is verified: waits for a turn and for memory.
    pub(crate) async fn open(&self) -> Result<(), Overloaded> {
        self.open_for(self.body_bytes).await
    }

    /// Opens for a verified request whose body only passes through.
    pub(crate) async fn open_to_pass(&self) -> Result<(), Overloaded> {
        self.open_for(0).await
    }

    async fn open_for(&self, bytes: u32) -> Result<(), Overloaded> {
        if self.is_open() {
            return Ok(());
        }
        let admitted = self.admission.admit(bytes).await?;
        *self.admitted.lock().unwrap_or_else(PoisonError::into_inner) = Some(admitted);
        self.leave_forms();
        self.is_open.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// True if the head of the body may be read while the gate is shut.
    pub(crate) fn is_form(&self) -> bool {
        self.is_form
    }

    /// Takes a place among the forms whose signature is not verified yet.
    pub(crate) fn enter_forms(&self) -> Result<(), Overloaded> {
        let place = self.admission.form()?;
        *self.form.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        Ok(())
    }

    fn leave_forms(&self) {
        drop(self.form.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Notes bytes of the body that were read.
    pub(crate) fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Notes whose signature was verified.
    pub(crate) fn verified(&self, user: &str) {
        self.user.get_or_init(|| user.to_owned());
    }

    pub(crate) fn user(&self) -> Option<&str> {
        self.user.get().map(String::as_str)
    }

    /// Notes that its body became part of an object.
    pub(crate) fn note_moved(&self, moved: BytesMoved) {
        self.moved.get_or_init(|| moved);
    }

    pub(crate) fn moved(&self) -> Option<BytesMoved> {
        self.moved.get().copied()
    }

    /// Cuts the body off; the first reason counts.
    pub(crate) fn cut_off(&self, cut: Cut) -> Cut {
        *self.cut.get_or_init(|| cut)
    }

    pub(crate) fn was_cut(&self) -> Option<Cut> {
        self.cut.get().copied()
    }

    /// Gives memory back, and returns the turn to hold until the answer has been sent.
    pub(crate) fn finish(&self) -> Option<Slot> {
        self.leave_forms();
        let admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner).take();
        admitted.map(Admitted::into_slot)
    }
}

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
    pub(crate) fn into_slot(self) -> Slot {
        Slot { _slot: self.turn }
    }
}

/// A request's turn; dropping it lets another in.
#[derive(Debug)]
pub(crate) struct Slot {
    _slot: OwnedSemaphorePermit,
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
