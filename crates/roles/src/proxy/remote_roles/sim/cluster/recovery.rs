//! All lose their power, and the managers their disks: managers are made anew from the maps that the other servers keep.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use larder_env::DiskError;
use larder_env::disk::read_file;
use larder_types::ServerId;
use tokio::time::sleep;

use super::super::{DATA, METAS};
use super::World;
use super::faults::ends;
use super::managers::ClusterManagers;
use super::places::Ends;
use crate::managers::MAP_FILE;
use crate::recover::{NotMade, Source, make, read};

/// Time after which a server that was stopped does nothing any more.
const SETTLED: Duration = Duration::from_secs(3);
/// Time before the loss in which no map is kept: another view begins within it.
const LATE_MS: u64 = 6_000;

/// Loses the managers, if the others can tell their map by now; one at a time.
pub(super) async fn recover(world: Arc<World>) {
    let ClusterManagers::Quorum(quorum) = &world.managing else { return };
    let all_run = || world.metas.all_run() && world.datas.all_run();
    if !all_run() || make(&sources(&world).0, &[], true).is_err() {
        return;
    }
    if world.is_recovering.swap(true, Ordering::Relaxed) {
        return;
    }
    // Maps are kept late. Meanwhile a view ends, or volumes are filled: what comes of that nobody may have done.
    let hold_maps = |ms| {
        let places = world.metas.places().iter().chain(world.datas.places());
        places.for_each(|place| place.pace.hold_map(ms));
    };
    hold_maps(LATE_MS);
    if world.sim_rng.one_in(2) {
        let at = world.sim_rng.below(METAS.len() as u64) as usize;
        let away = Duration::from_millis(2 * LATE_MS);
        drop(tokio::spawn(world.clone().restart_meta(at, Ends::Killed, away)));
    }
    sleep(Duration::from_millis(LATE_MS / 2 + world.sim_rng.below(LATE_MS / 2))).await;
    let ran = quorum.lose_all().await;
    let ends = ends(&world.sim_rng);
    let metas = join_all((0..METAS.len()).map(|at| world.stop_meta(at, ends))).await;
    let datas = join_all((0..DATA.len()).map(|at| world.stop_data(at, ends))).await;
    hold_maps(0);
    sleep(SETTLED).await;
    // A server without a map has done nothing in this run of the cluster.
    let (sources, lost) = sources(&world);
    match make(&sources, &lost, true) {
        Ok(made) => quorum.take(&made.recovery, &ran),
        Err(error @ NotMade::OtherHistory { .. }) => {
            return world.findings.violated(format!("no managers are made: {error}"));
        }
        Err(error) => panic!("it could be made before: {error}"),
    }
    join_all((0..DATA.len()).filter(|at| datas[*at]).map(|at| world.return_data(at))).await;
    join_all((0..METAS.len()).filter(|at| metas[*at]).map(|at| world.return_meta(at))).await;
    world.is_recovering.store(false, Ordering::Relaxed);
}

/// The maps that servers keep, and those that have none.
fn sources(world: &World) -> (Vec<Source>, Vec<String>) {
    let metas = METAS.zip(world.metas.places());
    let (mut maps, mut without) = (Vec::new(), Vec::new());
    for (id, place) in metas.chain(DATA.zip(world.datas.places())) {
        let disk = place.disk.lock().reopen();
        match read_file(&*disk, MAP_FILE) {
            Ok(bytes) => {
                let name = format!("the map of {}", ServerId(id));
                maps.push(read(name, &bytes).unwrap_or_else(|error| panic!("{id}: {error}")));
            }
            Err(DiskError::NotFound { .. }) => without.push(id.to_string()),
            Err(error) => panic!("the map of {id}: {error}"),
        }
    }
    (maps, without)
}
