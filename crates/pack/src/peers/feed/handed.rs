//! Requests that other workers hand on to this one: its face answers them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;

use super::wire::CLOCK;
use crate::commit::committer::Marks;

/// The error that breaks a body off.
pub type BodyBroken = Box<dyn std::error::Error + Send + Sync>;
/// The body of an answer.
pub type HandedBody = UnsyncBoxBody<Bytes, BodyBroken>;
/// Answers a request that another worker has handed on: the face of this one.
pub type Answering =
    Box<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<HandedBody>> + Send + Sync>;

/// Answers requests that others hand to a worker.
pub(crate) struct Handed {
    answering: OnceLock<Answering>,
    marks: Arc<Marks>,
}

impl Handed {
    pub(crate) fn new(marks: Arc<Marks>) -> Self {
        Self { answering: OnceLock::new(), marks }
    }

    /// Sets the face, once. Returns true if it is the first.
    pub(crate) fn answers(&self, answering: Answering) -> bool {
        self.answering.set(answering).is_ok()
    }

    /// Answers a request, if there is a face; the worker that handed it on is known to share the bucket.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Option<Response<HandedBody>> {
        let answering = self.answering.get()?;
        let mut answer = answering(request).await;
        let clock = self.marks.clock.load(Ordering::Relaxed);
        answer.headers_mut().insert(CLOCK, clock.into());
        Some(answer)
    }
}
