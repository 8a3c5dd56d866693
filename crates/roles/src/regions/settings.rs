//! Applies settings of buckets that a command left in the directory of a single node.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use larder_link::{LinkError, Setting, SharingSetting, Waiting};
use tokio::time::{MissedTickBehavior, interval};

use super::Shared;
use crate::blocking;
use crate::limits::REGION_SETTINGS_MS;
use crate::proxy::RegionAccess;

/// See the module's head. Does not end.
pub(super) async fn take_up<R: RegionAccess>(shared: Arc<Shared<R>>, dir: PathBuf) {
    let mut times = interval(Duration::from_millis(REGION_SETTINGS_MS));
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        let access = shared.shown.access();
        let taken =
            take_up_once(&dir, async |asked: Vec<Setting>| access.take_settings(asked).await);
        let taken = taken.await;
        let shared_or_not =
            take_up_once(&dir, async |asked: Vec<SharingSetting>| access.take_sharing(asked).await);
        if let Err(error) = taken.and(shared_or_not.await) {
            tracing::warn!(%error, "settings of a command will be applied later");
        }
    }
}

/// Takes up what is asked of a kind: `take` returns what is settled.
async fn take_up_once<W: Waiting + Send + 'static>(
    dir: &Path,
    take: impl AsyncFnOnce(Vec<W>) -> Vec<W>,
) -> Result<(), LinkError> {
    let of = dir.to_owned();
    let Ok(asked) = blocking::run(move || larder_link::asked(&of)).await else { return Ok(()) };
    let asked: Vec<W> = asked?;
    if asked.is_empty() {
        return Ok(());
    }
    let settled = take(asked).await;
    let of = dir.to_owned();
    let forgotten = blocking::run(move || larder_link::forget(&of, &settled)).await;
    // A panic has said why.
    forgotten.unwrap_or(Ok(()))
}
