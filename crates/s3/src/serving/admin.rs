//! Answers programs that ask for the state of the store or its cluster, as `larder status --json` prints it.
//!
//! # Invariants
//!
//! 1. Nothing is told before root's signature is verified, nor done for a request without one.
//! 2. Requests ask the program at most one at a time; what it told is told again for a second.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Response};
use s3s::{S3Error, S3ErrorCode};
use tokio::sync::Mutex;

use super::hooks::ServerHooks;
use crate::errors;

/// Time for which an answer is told again.
const TOLD_AGAIN: Duration = Duration::from_secs(1);

/// The last answer.
#[derive(Default)]
pub(crate) struct Admin(Mutex<Option<(Instant, Bytes)>>);

/// Refuses methods that would change something.
pub(crate) fn check(method: &Method) -> Result<(), S3Error> {
    match *method {
        Method::GET | Method::HEAD => Ok(()),
        _ => {
            let message = "The state can be read by GET, and nothing can be changed here.";
            Err(errors::error(S3ErrorCode::MethodNotAllowed, message))
        }
    }
}

impl Admin {
    /// Answers a request whose signature was verified.
    pub(crate) async fn answer(
        &self,
        hooks: &impl ServerHooks,
    ) -> Result<Response<s3s::Body>, S3Error> {
        let told = self.told(hooks).await?;
        let mut response = Response::new(s3s::Body::from(told));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    async fn told(&self, hooks: &impl ServerHooks) -> Result<Bytes, S3Error> {
        let mut last = self.0.lock().await;
        if let Some((_, told)) = last.as_ref().filter(|(at, _)| at.elapsed() < TOLD_AGAIN) {
            return Ok(told.clone());
        }
        match hooks.status().await {
            Some(told) => {
                *last = Some((Instant::now(), told.clone()));
                Ok(told)
            }
            None => {
                let message = "This server tells no state. A pack worker's is shown by `larder pack status DIR`.";
                Err(errors::error(S3ErrorCode::NotImplemented, message))
            }
        }
    }
}
