//! Versions of the map, for those who wait for a newer one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_protocol::manager::state::MapVersion;

use crate::notifier::{Notifier, NotifierWatch};

/// Shows versions; when it is dropped no more come.
#[derive(Debug)]
pub struct Versions {
    version: Arc<AtomicU64>,
    notifier: Notifier,
}

/// One that waits for versions. A clone is another, which has seen the same.
#[derive(Debug, Clone)]
pub struct VersionWatch {
    version: Arc<AtomicU64>,
    notifier: NotifierWatch,
}

/// No version comes any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no version of the map will arrive any more")]
pub struct NoMoreVersions;

impl Versions {
    /// With the first.
    #[must_use]
    pub fn new(first: MapVersion) -> Self {
        Self { version: Arc::new(AtomicU64::new(first.0)), notifier: Notifier::default() }
    }

    /// Shows one to all who wait. The latest never goes back.
    pub fn show(&self, version: MapVersion) {
        self.version.fetch_max(version.0, Ordering::SeqCst);
        self.notifier.notify();
    }

    /// One that waits for the next.
    #[must_use]
    pub fn subscribe(&self) -> VersionWatch {
        VersionWatch { version: self.version.clone(), notifier: self.notifier.subscribe() }
    }
}

impl VersionWatch {
    /// The latest.
    #[must_use]
    pub fn latest(&self) -> MapVersion {
        MapVersion(self.version.load(Ordering::SeqCst))
    }

    /// Returns when one was shown since the last look.
    ///
    /// # Errors
    /// If none comes any more.
    pub async fn changed(&mut self) -> Result<(), NoMoreVersions> {
        self.notifier.changed().await.map_err(|_| NoMoreVersions)
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
    async fn whoever_waits_for_a_version_waits_until_it_or_a_later_one_is_shown() {
        let versions = Versions::new(MapVersion(1));
        let mut watch = versions.subscribe();
        assert!(watch.changed().now_or_never().is_none(), "the first is known");
        let later = tokio::spawn(async move { watch.reaches(MapVersion(4)).await });
        versions.show(MapVersion(3));
        tokio::task::yield_now().await;
        assert!(!later.is_finished());
        versions.show(MapVersion(4));
        assert_eq!(later.await.unwrap(), Ok(()));
    }
}
