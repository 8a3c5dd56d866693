//! The mark of the latest map that a server has heard of, in its directory: `map-mark`.
//!
//! # Invariants
//!
//! 1. A server that holds data begins with no map that lacks what a kept mark has: it waits for one that does not.
//! 2. The mark kept is that of a map that managers agreed on. It may be some [`MARK_PAUSE_MS`] behind the latest one.
//! 3. A mark never makes a map: a server that has none, or one that cannot be read, takes what managers tell.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError, RealDisk};
use larder_protocol::manager::state::MapMark;
use tokio::time::{Instant, sleep_until, timeout};

use super::Managers;
use crate::limits::{MARK_PAUSE_MS, MARK_TOLD_MS};

/// File in a server's directory.
pub const MARK_FILE: &str = "map-mark";

/// Managers tell an older map than was heard of before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the managers' map is of version {told} and lacks what this server has heard of in version {kept}: put back the managers' latest \
     directories. With an older copy of them, which gives volumes and ids a second time, what was acknowledged since would be \
     overwritten"
)]
pub struct OlderMap {
    /// Version of the map that managers tell.
    pub told: u64,
    /// Version of the map that was heard of.
    pub kept: u64,
}

/// See the module's head.
pub struct MarkKeeper {
    disk: Arc<dyn Disk>,
    kept: Option<MapMark>,
}

impl MarkKeeper {
    /// That of a server's directory, which is there.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn open(dir: &Path) -> Result<Self, DiskError> {
        Ok(Self::on(Arc::new(RealDisk::open(dir)?)))
    }

    fn on(disk: Arc<dyn Disk>) -> Self {
        let kept = match read_file(&*disk, MARK_FILE) {
            Ok(bytes) => match MapMark::decode(&bytes) {
                Ok(mark) => Some(mark),
                Err(error) => {
                    tracing::warn!(%error, file = MARK_FILE, "this server does not know how far the map was");
                    None
                }
            },
            Err(DiskError::NotFound { .. }) => None,
            Err(error) => {
                tracing::warn!(%error, file = MARK_FILE, "this server does not know how far the map was");
                None
            }
        };
        Self { disk, kept }
    }

    fn objection(&self, managers: &dyn Managers) -> Option<OlderMap> {
        let (kept, map) = (self.kept.as_ref()?, managers.map());
        (!kept.is_reached_by(&map))
            .then_some(OlderMap { told: map.version.0, kept: kept.version.0 })
    }

    /// Waits for a map that lacks nothing; for so long, if for any time. A manager may be behind for a moment.
    ///
    /// # Errors
    /// [`OlderMap`] if there is none by then.
    pub async fn until_reached(
        &self,
        managers: &dyn Managers,
        patience: Option<Duration>,
    ) -> Result<(), OlderMap> {
        let mut versions = managers.versions();
        let reached = async {
            while self.objection(managers).is_some() {
                if versions.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let told = Duration::from_millis(MARK_TOLD_MS);
        tokio::pin!(reached);
        if timeout(patience.map_or(told, |patience| patience.min(told)), &mut reached).await.is_ok()
        {
            return Ok(());
        }
        if let Some(older) = self.objection(managers) {
            tracing::error!(%older, "this server serves nothing until then");
        }
        match patience {
            None => reached.await,
            Some(patience) if timeout(patience.saturating_sub(told), reached).await.is_ok() => {}
            Some(_) => return self.objection(managers).map_or(Ok(()), Err),
        }
        tracing::info!("the managers' map has all that this server has heard of");
        Ok(())
    }

    /// Keeps the marks of later maps; ends when managers tell a map that lacks what was heard of.
    pub async fn keep(mut self, managers: &dyn Managers) -> OlderMap {
        let mut versions = managers.versions();
        loop {
            if let Some(older) = self.objection(managers) {
                return older;
            }
            let mark = managers.map().map_mark();
            if let Some(mark) = mark.filter(|mark| self.kept.as_ref() != Some(mark)) {
                let again = Instant::now() + Duration::from_millis(MARK_PAUSE_MS);
                let (disk, bytes) = (self.disk.clone(), mark.encode());
                let kept = move || replace_file(&*disk, "", MARK_FILE, &bytes);
                match tokio::task::spawn_blocking(kept).await {
                    Ok(Ok(())) => self.kept = Some(mark),
                    Ok(Err(error)) => {
                        tracing::warn!(%error, file = MARK_FILE, "the map's mark was not kept");
                    }
                    // The process ends.
                    Err(_) => {}
                }
                sleep_until(again).await;
            } else if versions.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use larder_env::SimDisk;
    use larder_protocol::manager::policy::ServerMessage;
    use larder_protocol::manager::state::{
        Applied, ClusterId, Command, MapVersion, NextIds, Settings, Topology,
    };
    use larder_types::View;
    use parking_lot::Mutex;

    use super::*;
    use crate::managers::{NotProposed, VersionWatch, Versions};

    /// Managers that tell the maps that they are given.
    struct Told(Mutex<Arc<Topology>>, Versions);

    impl Told {
        fn new(version: u64) -> Self {
            Self(Mutex::new(map(version)), Versions::new(MapVersion(version)))
        }

        fn tell(&self, version: u64) {
            *self.0.lock() = map(version);
            self.1.show(MapVersion(version));
        }
    }

    impl Managers for Told {
        fn map(&self) -> Arc<Topology> {
            self.0.lock().clone()
        }

        fn versions(&self) -> VersionWatch {
            self.1.subscribe()
        }

        fn told_of(&self, _: MapVersion) {}

        fn propose(&self, _: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
            Box::pin(std::future::ready(Err(NotProposed::NoLeader)))
        }

        fn say(&self, _: ServerMessage) {}
    }

    const SETTINGS: Settings = Settings {
        pg_count: 1,
        members: 1,
        min_members: 1,
        copies: 1,
        min_copies: 1,
        lv_blocks: 1,
    };

    fn map(version: u64) -> Arc<Topology> {
        let (founded, version) = (Some((ClusterId(1), SETTINGS)), MapVersion(version));
        Arc::new(Topology { founded, version, ..Topology::default() })
    }

    fn kept(disk: &Arc<SimDisk>) -> Option<MapMark> {
        MarkKeeper::on(disk.clone()).kept
    }

    fn mark(version: u64) -> MapMark {
        let (cluster, version) = (ClusterId(1), MapVersion(version));
        MapMark {
            cluster,
            version,
            next: NextIds::default(),
            volumes: 0,
            view: View(0),
            runs: Vec::new(),
            last_bucket: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_latest_mark_is_kept_and_an_older_map_is_waited_out() {
        let (disk, told) = (SimDisk::new(1, 1 << 30), Told::new(5));
        let keeper = MarkKeeper::on(disk.clone());
        assert_eq!(keeper.until_reached(&told, None).await, Ok(()), "it knows of none");
        let pause = Duration::from_millis(MARK_PAUSE_MS);
        tokio::select! {
            older = keeper.keep(&told) => panic!("{older}"),
            () = async {
                tokio::time::sleep(pause / 2).await;
                told.tell(6);
                tokio::time::sleep(pause / 4).await;
                assert_eq!(kept(&disk), Some(mark(5)), "not at each version");
                tokio::time::sleep(pause * 2).await;
            } => {}
        }
        assert_eq!(kept(&disk), Some(mark(6)));
        let of_another = Told::new(7);
        of_another.0.lock().clone_from(&Arc::new(Topology {
            founded: Some((ClusterId(2), SETTINGS)),
            ..Topology::clone(&map(7))
        }));
        let ended = MarkKeeper::on(disk.clone()).keep(&of_another).await;
        assert_eq!(ended, OlderMap { told: 7, kept: 6 }, "a server that runs ends");
        let older = Told::new(4);
        let keeper = MarkKeeper::on(disk.clone());
        let patience = Some(Duration::from_millis(2 * MARK_TOLD_MS));
        let refused = keeper.until_reached(&older, patience).await;
        assert_eq!(refused, Err(OlderMap { told: 4, kept: 6 }));
        // One without a limit goes on as soon as there is a map that has all.
        let waits = keeper.until_reached(&older, None);
        tokio::pin!(waits);
        assert!(timeout(2 * Duration::from_millis(MARK_TOLD_MS), &mut waits).await.is_err());
        older.tell(6);
        assert_eq!(waits.await, Ok(()));
    }

    #[tokio::test]
    async fn a_mark_that_cannot_be_read_keeps_no_server_from_beginning() {
        let disk = SimDisk::new(1, 1 << 30);
        replace_file(&*disk, "", MARK_FILE, b"?").unwrap();
        assert_eq!(kept(&disk), None);
        let keeper = MarkKeeper::on(disk);
        assert_eq!(keeper.until_reached(&Told::new(1), None).await, Ok(()));
    }
}
