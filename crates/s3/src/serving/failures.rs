//! Failures of the server's own, in the log. A refusal is for its client to know: it is counted, and noted in a log of
//! accesses.
//!
//! # Invariants
//!
//! 1. Failures that strangers, or clients of a server that is at its limit, can repeat at will get one line in ten seconds, which
//!    says how many had none. `SlowDown` is one kind, whatever its cause: the line tells of one request, not of all.
//! 2. Every other failure to serve gets a line, with what it was about.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use http::StatusCode;
use larder_types::LogLimiter;
use tracing::field::display;

use super::hooks::ServerHooks;
use super::reply::Tally;
use crate::answer::Failure;

/// Failures that come in floods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flood {
    /// Forms whose signature was not verified.
    StrangersForms,
    /// Requests beyond what the server works on.
    SlowDown,
    /// Puts for which there is no room.
    Full,
}

impl Flood {
    fn of(is_strangers_form: bool, code: &str) -> Option<Self> {
        match code {
            _ if is_strangers_form => Some(Self::StrangersForms),
            "SlowDown" => Some(Self::SlowDown),
            "InsufficientStorage" => Some(Self::Full),
            _ => None,
        }
    }
}

/// Writes them.
pub(crate) struct Failures {
    begun: Instant,
    floods: Mutex<[LogLimiter; Flood::Full as usize + 1]>,
}

impl Failures {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), floods: Mutex::default() }
    }

    /// Logs a request that was refused, if the server is why.
    pub(crate) fn log<H: ServerHooks>(
        &self,
        tally: &Tally<H>,
        failure: &Failure,
        is_strangers_form: bool,
    ) {
        let is_own = tally.status >= 500 && tally.status != StatusCode::NOT_IMPLEMENTED.as_u16();
        let flood = Flood::of(is_strangers_form, &failure.code);
        let Some(without_line) = is_own.then(|| self.gets_line(flood)).flatten() else { return };
        let (request, op, status) = (tally.shown_id(), tally.op, tally.status);
        let (bucket, key) = (tally.target.bucket(), tally.target.key());
        let (bucket, key) = (bucket.as_deref(), key.as_deref());
        let client = tally.caller.client.map(display);
        let (code, detail) = (failure.code.as_str(), failure.message.as_str());
        match StatusCode::from_u16(status) {
            Ok(StatusCode::SERVICE_UNAVAILABLE | StatusCode::INSUFFICIENT_STORAGE) => {
                tracing::warn!(%request, op, bucket, key, client, status, code, without_line, detail, "a request was rejected");
            }
            _ => {
                tracing::error!(%request, op, bucket, key, client, status, code, detail, "a request failed");
            }
        }
    }

    /// The number of those of its kind before it that had no line, if it gets one.
    fn gets_line(&self, flood: Option<Flood>) -> Option<u64> {
        let Some(flood) = flood else { return Some(0) };
        let now_ms = self.begun.elapsed().as_millis() as u64;
        let mut floods = self.floods.lock().unwrap_or_else(PoisonError::into_inner);
        floods[flood as usize].happens(now_ms)
    }
}

/// Notes an answer in the log, where all are wanted: what was asked, by whom, and why it was refused.
pub(crate) fn note<H: ServerHooks>(tally: &Tally<H>) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let (request, op, status) = (tally.shown_id(), tally.op, tally.status);
    let (bucket, key) = (tally.target.bucket(), tally.target.key());
    let (bucket, key) = (bucket.as_deref(), key.as_deref());
    let client = tally.caller.client.map(display);
    let code = tally.failure.as_ref().map(|failure| failure.code.as_str());
    let detail = tally.failure.as_ref().map(|failure| failure.message.as_str());
    tracing::debug!(%request, op, bucket, key, client, status, code, detail, "answered");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_get_one_line_each_and_all_else_gets_its_own() {
        let failures = Failures::new();
        let lines = |is_strangers_form, code: &str| {
            let flood = Flood::of(is_strangers_form, code);
            (0..5).filter(|_| failures.gets_line(flood).is_some()).count()
        };
        assert_eq!(lines(true, "SlowDown"), 1);
        assert_eq!(lines(false, "SlowDown"), 1);
        assert_eq!(lines(false, "InsufficientStorage"), 1);
        assert_eq!(lines(false, "ServiceUnavailable"), 5);
        assert_eq!(lines(false, "InternalError"), 5);
    }
}
