//! Answers programs that ask for the state of the store or its cluster, as `larder status --json` prints it or as MinIO's client
//! reads it, or for metrics.
//!
//! # Invariants
//!
//! 1. Nothing is sent or done before root's signature is verified, or for metrics a token signed with root's keys.
//! 2. At most one query of the program runs at a time, also if a client disconnects meanwhile. Its result is cached for
//!    [`STATE_CACHED_FOR`].
//! 3. These requests use no slot of others. Their number and the time that each waits are bounded.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response};
use s3s::{S3Error, S3ErrorCode};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};

use super::hooks::ServerHooks;
use crate::errors;
use crate::limits::{STATE_CACHED_FOR, STATE_CLIENTS_MAX, STATE_TIMEOUT};

/// The last answer, and those who wait for one.
pub(crate) struct Admin {
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
    places: Semaphore,
}

impl Default for Admin {
    fn default() -> Self {
        Self { last: Arc::default(), places: Semaphore::new(STATE_CLIENTS_MAX) }
    }
}

/// Refuses methods that would change something.
pub(crate) fn check(method: &Method) -> Result<(), S3Error> {
    match *method {
        Method::GET | Method::HEAD => Ok(()),
        _ => {
            let message = "The state can be read by GET, and nothing can be changed here.";
            let mut refused = errors::error(S3ErrorCode::MethodNotAllowed, message);
            let allowed = (ALLOW, HeaderValue::from_static("GET, HEAD"));
            refused.set_headers(HeaderMap::from_iter([allowed]));
            Err(refused)
        }
    }
}

impl Admin {
    /// Answers a request whose signature was verified.
    pub(crate) async fn state<H: ServerHooks>(
        &self,
        hooks: &Arc<H>,
    ) -> Result<Response<s3s::Body>, S3Error> {
        Ok(shown(self.cached_state(hooks).await?, "application/json"))
    }

    /// Answers such a request of MinIO's client.
    pub(crate) async fn info<H: ServerHooks>(
        &self,
        hooks: &Arc<H>,
    ) -> Result<Response<s3s::Body>, S3Error> {
        let info =
            hooks.minio_info(&self.cached_state(hooks).await?).ok_or_else(state_unavailable)?;
        Ok(shown(info, "application/json"))
    }

    /// Answers a request for metrics whose token was verified.
    pub(crate) fn metrics(
        &self,
        hooks: &impl ServerHooks,
        headers: &HeaderMap,
    ) -> Result<Response<s3s::Body>, S3Error> {
        let _place = self.places.try_acquire().map_err(|_full| errors::slow_down())?;
        let (kind, text) = hooks.metrics(headers).ok_or_else(state_unavailable)?;
        Ok(shown(text.into(), kind))
    }

    async fn cached_state<H: ServerHooks>(&self, hooks: &Arc<H>) -> Result<Bytes, S3Error> {
        let _place = self.places.try_acquire().map_err(|_full| errors::slow_down())?;
        let state = timeout(STATE_TIMEOUT, self.asked(hooks)).await;
        state.unwrap_or_else(|_late| Err(state_unavailable()))
    }

    async fn asked<H: ServerHooks>(&self, hooks: &Arc<H>) -> Result<Bytes, S3Error> {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((_, state)) = last.as_ref().filter(|(at, _)| at.elapsed() < STATE_CACHED_FOR) {
            return Ok(state.clone());
        }
        let hooks = Arc::clone(hooks);
        // It goes on if its client goes away: else the next one would begin another beside it.
        let asking = tokio::spawn(async move {
            let state = hooks.status().await?;
            *last = Some((Instant::now(), state.clone()));
            Some(state)
        });
        asking.await.map_err(|_panicked| state_unavailable())?.ok_or_else(|| {
            let message =
                "This server tells no state. A pack worker's is shown by `larder pack status DIR`.";
            errors::error(S3ErrorCode::NotImplemented, message)
        })
    }
}

fn shown(bytes: Bytes, kind: &'static str) -> Response<s3s::Body> {
    let mut response = Response::new(s3s::Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn state_unavailable() -> S3Error {
    errors::error(S3ErrorCode::ServiceUnavailable, "The state is not told in time. Ask again.")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::yield_now;

    use super::*;

    /// A program whose answer takes until it is let go.
    struct Slow {
        asked: AtomicUsize,
        answers: Semaphore,
    }

    impl Slow {
        fn new() -> Arc<Self> {
            Arc::new(Self { asked: AtomicUsize::new(0), answers: Semaphore::new(0) })
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::Relaxed)
        }
    }

    impl ServerHooks for Slow {
        async fn status(&self) -> Option<Bytes> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.answers.acquire().await.ok()?.forget();
            Some(Bytes::from_static(b"{}"))
        }
    }

    /// Someone who asks, and waits.
    async fn begin(
        admin: &Arc<Admin>,
        hooks: &Arc<Slow>,
    ) -> tokio::task::JoinHandle<Result<Bytes, S3Error>> {
        let (admin, hooks) = (Arc::clone(admin), Arc::clone(hooks));
        let asking = tokio::spawn(async move { admin.cached_state(&hooks).await });
        for _ in 0..4 {
            yield_now().await;
        }
        asking
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_goes_on_for_others_when_its_client_goes_away() {
        let (admin, hooks) = (Arc::new(Admin::default()), Slow::new());
        for _ in 0..3 {
            let asking = begin(&admin, &hooks).await;
            asking.abort();
            assert!(asking.await.is_err(), "it was aborted");
        }
        assert_eq!(hooks.asked(), 1);
        hooks.answers.add_permits(1);
        assert_eq!(admin.cached_state(&hooks).await.ok(), Some(Bytes::from_static(b"{}")));
        assert_eq!(hooks.asked(), 1, "the answer to the first is told");
        tokio::time::advance(STATE_CACHED_FOR).await;
        hooks.answers.add_permits(1);
        admin.cached_state(&hooks).await.expect("it answers");
        assert_eq!(hooks.asked(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let (admin, hooks) = (Arc::new(Admin::default()), Slow::new());
        let begun = Instant::now();
        for _ in 0..2 {
            let refused = admin.cached_state(&hooks).await.expect_err("nothing is told");
            assert_eq!(*refused.code(), S3ErrorCode::ServiceUnavailable);
        }
        assert_eq!(begun.elapsed(), 2 * STATE_TIMEOUT);
        assert_eq!(hooks.asked(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_too_many_is_refused_at_once() {
        let (admin, hooks) = (Arc::new(Admin::default()), Slow::new());
        let mut waiting = Vec::new();
        for _ in 0..STATE_CLIENTS_MAX {
            waiting.push(begin(&admin, &hooks).await);
        }
        let begun = Instant::now();
        let refused = admin.cached_state(&hooks).await.expect_err("it is one too many");
        assert_eq!(*refused.code(), S3ErrorCode::SlowDown);
        assert_eq!(begun.elapsed().as_millis(), 0);
        hooks.answers.add_permits(1);
        for asking in waiting {
            asking.await.expect("it ends").expect("it is told");
        }
    }
}
