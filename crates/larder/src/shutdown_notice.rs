//! The shutdown notice of a process: `/readyz` answers 503 while requests are still served. So a balancer that polls it
//! sends new requests elsewhere before the listener closes.
//!
//! # Invariants
//!
//! 1. Nothing else changes meanwhile: the listener is open, and requests are served.
//! 2. A process that never was ready, or gets a second signal, gives no notice: no client is sent to it, or the
//!    operator does not want to wait. One that is not ready at the moment does: all machines are so during a failover, and
//!    balancers keep sending until several probes have failed.

use std::sync::Arc;

use crate::config::Notice;
use crate::metrics::Metrics;

/// The time between the signal and the stop of a process.
pub(crate) struct ShutdownNotice {
    notice: Notice,
    metrics: Arc<Metrics>,
}

impl ShutdownNotice {
    pub(crate) fn new(notice: Notice, metrics: Arc<Metrics>) -> Self {
        Self { notice, metrics }
    }

    /// Gives notice, if it is set and of use, and waits for its time; `again` cuts it short.
    pub(crate) async fn give_notice(self, again: impl Future<Output = ()>) {
        let Some(time) = self.notice.time().filter(|_| self.metrics.has_been_ready()) else {
            return;
        };
        tracing::info!(
            seconds = time.as_secs(),
            "shutting down: /readyz answers 503 while requests are still served"
        );
        self.metrics.leave();
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = again => tracing::info!("received a second signal: stopping at once"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use larder_s3::ServerHooks;
    use tokio::time::Instant;

    use super::*;
    use crate::metrics::RoleMetrics;

    struct Role(Arc<AtomicBool>);

    impl RoleMetrics for Role {
        fn is_ready(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }

        fn counters(&self) -> Vec<crate::metrics::Metric> {
            Vec::new()
        }

        fn gauges(&self) -> Vec<crate::metrics::Metric> {
            Vec::new()
        }
    }

    /// Gives notice; returns the time that it took, and if the process is ready afterwards. It was ready, or never, when
    /// somebody asked for the first time, and is ready or not when the signal comes.
    async fn given(
        setting: &str,
        (was_ready, is_ready): (bool, bool),
        again: impl Future<Output = ()>,
    ) -> (Duration, bool) {
        let role = Arc::new(AtomicBool::new(was_ready));
        let metrics = Arc::new(Metrics::new(Role(role.clone())));
        assert_eq!(metrics.ready(), was_ready);
        role.store(is_ready, Ordering::Relaxed);
        let notice = Notice::try_from(setting.to_owned()).unwrap();
        let begun = Instant::now();
        ShutdownNotice::new(notice, metrics.clone()).give_notice(again).await;
        (begun.elapsed(), metrics.ready())
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_not_ready_for_some_time_before_it_stops() {
        let time = Duration::from_secs(4);
        assert_eq!(given("4s", (true, true), pending()).await, (time, false));
        assert_eq!(given("4s", (false, true), pending()).await, (time, false));
        assert_eq!(given("off", (true, true), pending()).await, (Duration::ZERO, true));
    }

    /// As during the failover that the stop of another machine makes.
    #[tokio::test(start_paused = true)]
    async fn a_process_that_is_not_ready_for_a_moment_gives_notice() {
        let time = Duration::from_secs(4);
        assert_eq!(given("4s", (true, false), pending()).await, (time, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_never_ready_or_signalled_twice_gives_no_notice() {
        assert_eq!(given("60s", (false, false), pending()).await, (Duration::ZERO, false));
        assert_eq!(given("60s", (true, true), async {}).await, (Duration::ZERO, false));
    }
}
