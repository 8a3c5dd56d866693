//! Uploads that other workers have begun. Only the worker that began one has its parts: a request of it goes there as it
//! came, and is answered there.
//!
//! ```text
//!  client ── UploadPart ──▶ worker b ── as it came, over a stream ─▶ feed of worker a ──▶ face of worker a
//!  client ◀─────────────── worker b ◀── the answer, and a's clock ◀─────────────────────────────┘
//!                              └─ of a completion: once b has heard of everything until then
//! ```
//!
//! # Invariants
//!
//! 1. A worker answers what was handed to it, or refuses; it hands nothing on again.
//! 2. An object that was completed by way of this worker is shown by it when the answer leaves, unless nothing is heard of
//!    the other for [`RECEIVED_WAIT_MAX`].

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::{Body, Incoming};
use larder_objects::ObjectError;
use larder_types::{BucketName, HybridClock, UploadId};

use crate::error::unavailable;
use crate::ids::WorkerId;
use crate::limits::RECEIVED_WAIT_MAX;
use crate::packer::Packer;
use crate::peers::Others;
use crate::peers::feed::wire::CLOCK;
use crate::peers::feed::{Answering, BodyBroken};
use crate::peers::peer::Peer;

impl Packer {
    /// Returns true if another worker has begun an upload: its requests are answered there alone.
    #[must_use]
    pub fn is_of_another(&self, upload: UploadId) -> bool {
        self.owner_of(upload).is_some()
    }

    /// Has another worker answer a request of an upload that it has begun, and returns its answer.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if it does not answer, [`ObjectError::NoSuchUpload`] if it is no other's.
    pub async fn hand_on<B>(
        &self,
        upload: UploadId,
        request: Request<B>,
    ) -> Result<Response<Incoming>, ObjectError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyBroken>,
    {
        let (others, peer) = self.owner_of(upload).ok_or(ObjectError::NoSuchUpload)?;
        let reported = peer.announcement();
        if reported.address.is_none() {
            return Err(unreachable(&peer));
        }
        let completes = *request.method() == Method::POST;
        let is_silent = |reason: &str| {
            tracing::warn!(worker = %peer.name, reason, "an upload's request could not be forwarded to the worker that began it");
            let name = &peer.name;
            unavailable(&format!("worker {name}, which began the upload, does not answer"))
        };
        let answer = others.caller().hand_on(&reported, request).await;
        let mut answer = answer.map_err(|reason| is_silent(&reason))?;
        // The answer is not of its face, which is not there yet, or has as much to do for others as it may.
        let clock = clock_of(&answer).ok_or_else(|| is_silent(answer.status().as_str()))?;
        answer.headers_mut().remove(CLOCK);
        others.count_handed_on();
        if completes && let Some(known) = peer.known() {
            let reached = tokio::time::timeout(RECEIVED_WAIT_MAX, known.reaches(clock)).await;
            if reached.is_err() {
                tracing::warn!(worker = %peer.name, "an upload was completed at another worker, whose change has not arrived: it will be visible here later");
            }
        }
        Ok(answer)
    }

    /// Sets the handler of requests that other workers forward. Until then they are asked to retry.
    pub fn answer_handed_on(&self, answering: Answering) {
        if let Some(handed) = self.handed()
            && !handed.answers(answering)
        {
            tracing::error!("two gateways want to answer forwarded requests: the first one does");
        }
    }

    /// Refuses an upload of another worker, and one to a bucket that another worker has removed.
    /// This worker's record of the bucket stays, and what is completed in it would bring the bucket
    /// back.
    pub(crate) fn own_upload(
        &self,
        bucket: &BucketName,
        upload: UploadId,
    ) -> Result<(), ObjectError> {
        self.begun_here(upload)?;
        match &self.shared.others {
            Some(others) => self.shared_bucket(others, bucket).map(drop),
            None => Ok(()),
        }
    }

    /// Refuses an upload of another worker.
    pub(crate) fn begun_here(&self, upload: UploadId) -> Result<(), ObjectError> {
        self.owner_of(upload).map_or(Ok(()), |(_, peer)| Err(unreachable(&peer)))
    }

    fn owner_of(&self, upload: UploadId) -> Option<(&Others, Arc<Peer>)> {
        let others = self.shared.others.as_deref()?;
        let worker = WorkerId(upload.op.view.0);
        if others.is_own(worker) {
            return None;
        }
        let is_owner = |peer: &Arc<Peer>| peer.announcement().worker.line() == worker.line();
        Some((others, others.peers().into_iter().find(is_owner)?))
    }
}

fn unreachable(peer: &Peer) -> ObjectError {
    unavailable(&format!(
        "the upload belongs to worker {}, which this one does not reach: its requests must go there",
        peer.name
    ))
}

fn clock_of(answer: &Response<Incoming>) -> Option<HybridClock> {
    let clock = answer.headers().get(CLOCK)?.to_str().ok()?;
    clock.parse().ok().map(HybridClock)
}
