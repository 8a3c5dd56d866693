//! The gate between a request that anybody can send and one whose signature is verified.
//!
//! # Invariants
//!
//! 1. A turn and memory for the body are taken when the signature is verified, and not before.
//! 2. No byte of a body is read before that, except the head of an HTML form, where its signature is.
//! 3. Memory is given back when the body has been read or cut off, a turn when the answer has been sent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use s3s::{S3Error, S3ErrorCode};
use tokio::sync::OwnedSemaphorePermit;

use crate::admission::{Admission, Admitted, Overloaded, Turn};
use crate::errors;
use crate::limits::FORM_HEAD_BYTES_MAX;
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
    pub(crate) fn finish(&self) -> Option<Turn> {
        self.leave_forms();
        let admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner).take();
        admitted.map(Admitted::into_turn)
    }
}
