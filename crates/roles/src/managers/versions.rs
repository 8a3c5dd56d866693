//! Versions of the map, for those who wait for a newer one.
//!
//! They are woken in an order that only the order of their waiting decides. Tokio's `watch`, which does the same, draws it: a
//! simulation of the roles would not be the same twice (ADR 36).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use larder_protocol::manager::state::MapVersion;
use tokio::sync::Notify;

/// Lists of those who wait, so that the many calls of a proxy seldom meet at a lock.
const LISTS: usize = 8;

#[derive(Debug)]
struct Shared {
    version: AtomicU64,
    /// Counts what was shown.
    shown: AtomicU64,
    is_over: AtomicBool,
    waiting: [Notify; LISTS],
    next: AtomicUsize,
}

/// Shows versions; when it is dropped no more come.
#[derive(Debug)]
pub struct Versions(Arc<Shared>);

/// One that waits for versions. A clone is another, which has seen the same.
#[derive(Debug)]
pub struct VersionWatch {
    shared: Arc<Shared>,
    /// What had been shown when it was looked last.
    seen: u64,
    list: usize,
}

/// No version comes any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no version of the map comes any more")]
pub struct NoMoreVersions;

impl Versions {
    /// With the first.
    #[must_use]
    pub fn new(first: MapVersion) -> Self {
        Self(Arc::new(Shared {
            version: AtomicU64::new(first.0),
            shown: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            waiting: std::array::from_fn(|_| Notify::new()),
            next: AtomicUsize::new(0),
        }))
    }

    /// Shows one to all who wait. The latest never goes back.
    pub fn show(&self, version: MapVersion) {
        self.0.version.fetch_max(version.0, Ordering::SeqCst);
        self.0.shown.fetch_add(1, Ordering::SeqCst);
        self.0.wake();
    }

    /// One that waits for the next.
    #[must_use]
    pub fn subscribe(&self) -> VersionWatch {
        let list = self.0.next_list();
        let seen = self.0.shown.load(Ordering::SeqCst);
        VersionWatch { shared: self.0.clone(), seen, list }
    }
}

impl Drop for Versions {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        self.0.wake();
    }
}

impl Shared {
    fn next_list(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % LISTS
    }

    fn wake(&self) {
        self.waiting.iter().for_each(Notify::notify_waiters);
    }
}

impl Clone for VersionWatch {
    fn clone(&self) -> Self {
        let list = self.shared.next_list();
        Self { shared: self.shared.clone(), seen: self.seen, list }
    }
}

impl VersionWatch {
    /// The latest.
    #[must_use]
    pub fn latest(&self) -> MapVersion {
        MapVersion(self.shared.version.load(Ordering::SeqCst))
    }

    /// Returns when one was shown since the last look.
    ///
    /// # Errors
    /// If none comes any more.
    pub async fn changed(&mut self) -> Result<(), NoMoreVersions> {
        loop {
            // It hears of what is shown from here on, so that nothing is missed between the look and the wait.
            let woken = self.shared.waiting[self.list].notified();
            let shown = self.shared.shown.load(Ordering::SeqCst);
            if shown != self.seen {
                self.seen = shown;
                return Ok(());
            }
            if self.shared.is_over.load(Ordering::SeqCst) {
                return Err(NoMoreVersions);
            }
            woken.await;
        }
    }

    /// Returns when this version or a later one is the latest.
    ///
    /// # Errors
    /// If none comes any more.
    pub async fn reaches(&mut self, version: MapVersion) -> Result<(), NoMoreVersions> {
        while self.latest() < version {
            self.changed().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn what_was_shown_since_the_last_look_is_not_missed() {
        let versions = Versions::new(MapVersion(1));
        let mut watch = versions.subscribe();
        assert!(watch.changed().now_or_never().is_none(), "the first is known");
        versions.show(MapVersion(2));
        assert_eq!(watch.changed().await, Ok(()));
        assert!(watch.changed().now_or_never().is_none());
        let later = tokio::spawn(async move { watch.reaches(MapVersion(4)).await });
        versions.show(MapVersion(3));
        tokio::task::yield_now().await;
        assert!(!later.is_finished());
        versions.show(MapVersion(4));
        assert_eq!(later.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn whoever_waits_hears_that_none_comes_any_more() {
        let versions = Versions::new(MapVersion(1));
        let mut watch = versions.subscribe();
        let waits = tokio::spawn(async move { watch.changed().await });
        tokio::task::yield_now().await;
        drop(versions);
        assert_eq!(waits.await.unwrap(), Err(NoMoreVersions));
    }
}
