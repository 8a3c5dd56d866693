//! Sightings of the bucket, or of the answer who owns it, by a clock that goes on while the machine
//! is suspended. The steady clock of `Instant` stands still then: a worker that woke up after a
//! night would take what it saw the evening before for new.

use std::time::Duration;

use tokio::time::Instant;

/// The machine's uptime, with the time for which it was suspended.
pub(crate) type Uptime = fn() -> Duration;

/// That of this machine.
pub(crate) fn uptime() -> Duration {
    Duration::from_millis(larder_env::clock::uptime_ms())
}

/// The time at which the bucket was looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sighting {
    pub(super) steady: Instant,
    at: Duration,
    uptime: Uptime,
}

impl Sighting {
    pub(crate) fn now(uptime: Uptime) -> Self {
        Self { steady: Instant::now(), at: uptime(), uptime }
    }

    /// Time since then: by the clock by which it is longer.
    pub(crate) fn elapsed(&self) -> Duration {
        self.steady.elapsed().max((self.uptime)().saturating_sub(self.at))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use object_store::memory::InMemory;

    use super::super::announce::Announcement;
    use super::super::feed::Caller;
    use super::super::shelf::Directory;
    use super::super::{Others, Reads, Sharing, WorkerName};
    use super::*;
    use crate::backend::Backend;
    use crate::entry::WorkerId;

    /// Hours of uptime, suspended ones among them.
    static HOURS: AtomicU64 = AtomicU64::new(5);

    fn slept() -> Duration {
        Duration::from_secs(3600 * HOURS.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn time_for_which_the_machine_was_suspended_counts() {
        let sighting = Sighting::now(slept);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(sighting.elapsed(), Duration::from_secs(60));
        HOURS.fetch_add(8, Ordering::Relaxed);
        assert_eq!(sighting.elapsed(), Duration::from_secs(8 * 3600));
        assert!(uptime() >= Duration::from_secs(1));
    }

    /// Hours of uptime of the other test's machine.
    static NIGHT: AtomicU64 = AtomicU64::new(0);

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_wakes_up_answers_only_once_it_has_looked() {
        let root = Backend::over(Arc::new(InMemory::new()));
        let dir = tempfile::tempdir().unwrap();
        let name = WorkerName::new("a").unwrap();
        let me = Announcement {
            prefix: name.prefix(),
            name: name.clone(),
            worker: WorkerId(1),
            address: None,
            announced_ms: 0,
        };
        let path = dir.path().to_owned();
        let reads = Reads { cache: None, ahead_bytes: 0, dir: path, accept_loss: false };
        let shelf = Box::new(Directory::of(dir.path()).unwrap());
        let night = || Duration::from_secs(3600 * NIGHT.load(Ordering::Relaxed));
        let (sharing, caller) = (Sharing::new(name), Caller::default());
        let others = Others::new(me, root, sharing, shelf, reads, caller, night);
        others.announce().await.unwrap();
        others.look().await.unwrap();
        others.fresh().unwrap();
        NIGHT.store(8, Ordering::Relaxed);
        assert!(others.fresh().is_err());
        others.look().await.unwrap();
        others.fresh().unwrap();
    }
}
