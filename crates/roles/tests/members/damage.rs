//! A member whose index has rotted: it is set aside, and the other members give it another.

use std::path::PathBuf;

use larder_kv::{Kv, KvReader};
use larder_protocol::Answer;
use larder_roles::meta::{INDEX_DAMAGE_FILE, KV_DIR, LOG_DIR, SET_ASIDE_FILE};
use larder_types::{ServerId, View, rows};

use super::support::{Cluster, PG, inline, put, request, until};

/// More than its primary remembers: the group is copied by a snapshot.
const OBJECTS: u64 = larder_protocol::limits::HISTORY_OPS_MIN as u64 + 100;

/// A cluster with objects that a backup has in the tables of its index, and that backup.
async fn filled() -> (Cluster, ServerId, Vec<String>) {
    let cluster = Cluster::start(1).await;
    let victim = cluster.members(PG).1[2];
    let keys: Vec<String> = (1..=OBJECTS).map(|number| format!("key {number}")).collect();
    for (number, key) in (1..).zip(&keys) {
        let answer = cluster.call(PG, put(request(number), key, inline())).await;
        assert!(matches!(answer, Answer::Done { .. }), "{answer:?}");
    }
    cluster.shows(victim, &keys).await;
    cluster.meta(victim).kv().flush().unwrap();
    (cluster, victim, keys)
}

fn tables(cluster: &Cluster, of: ServerId) -> Vec<PathBuf> {
    let tables = std::fs::read_dir(cluster.dir(of).join(KV_DIR).join("tables")).unwrap();
    tables.map(|entry| entry.unwrap().path()).collect()
}

/// Flips a bit of a row in the middle of the objects'. The positions lie in another block, and what names blocks as well.
fn rot(cluster: &Cluster, of: ServerId) {
    let mut rotten = 0;
    for path in tables(cluster, of) {
        let mut file = std::fs::read(&path).unwrap();
        let places = file.windows(4).enumerate().filter(|(_, window)| *window == b"key ");
        let places: Vec<usize> = places.map(|(at, _)| at).collect();
        if let Some(at) = places.get(places.len() / 2) {
            file[at + 1] ^= 1;
            std::fs::write(path, file).unwrap();
            rotten += 1;
        }
    }
    assert!(rotten > 0, "no table has the objects");
}

/// The server has all of it again, from another member, and the damaged index is kept.
async fn is_rebuilt(cluster: &Cluster, victim: ServerId, keys: &[String]) {
    until("it is a member again", async || cluster.members(PG).1.contains(&victim)).await;
    cluster.shows(victim, keys).await;
    let meta = cluster.meta(victim);
    assert!(meta.kv().get(&rows::snapshot(PG)).unwrap().is_some(), "it took a snapshot");
    assert!(!meta.has_met_damage() && meta.keeps_index_aside());
    let kept = std::fs::read_dir(cluster.dir(victim)).unwrap().map(|entry| entry.unwrap().path());
    let mut folders = kept.filter(|path| {
        path.is_dir() && path.file_name().unwrap().to_string_lossy().starts_with(SET_ASIDE_FILE)
    });
    let folder = folders.next().unwrap();
    assert!(folder.join(KV_DIR).is_dir() && folder.join(LOG_DIR).is_dir());
    assert!(folders.next().is_none());
    assert!(!cluster.dir(victim).join(INDEX_DAMAGE_FILE).exists());
    std::fs::remove_dir_all(folder).unwrap();
    assert!(!meta.keeps_index_aside(), "an operator has removed it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_meets_rot_ends_and_is_rebuilt_by_the_others() {
    let (mut cluster, victim, keys) = filled().await;
    cluster.end(victim).await;
    rot(&cluster, victim);
    // It opens, and meets the rot when it reads its rows.
    cluster.begin(victim).await;
    until("it ends", async || cluster.meta(victim).fatal().borrow().is_some()).await;
    assert!(cluster.dir(victim).join(INDEX_DAMAGE_FILE).exists());
    cluster.end(victim).await;
    cluster.begin(victim).await;
    is_rebuilt(&cluster, victim, &keys).await;
    // Another start finds nothing to do, and nothing that it was told is forgotten.
    cluster.end(victim).await;
    cluster.begin(victim).await;
    until("it is a member again", async || cluster.members(PG).1.contains(&victim)).await;
    assert!(!cluster.dir(victim).join(SET_ASIDE_FILE).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_whose_table_is_missing_leaves_the_lead_before_it_forgets() {
    let (mut cluster, _, keys) = filled().await;
    let (view, victim) = cluster.leads(PG);
    cluster.shows(victim, &keys).await;
    cluster.meta(victim).kv().flush().unwrap();
    cluster.end(victim).await;
    let lost = tables(&cluster, victim);
    assert!(!lost.is_empty());
    lost.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    cluster.begin(victim).await;
    let (next, primary) = cluster.serving(PG, View(view.0 + 1)).await;
    assert!(next > view && primary != victim, "view {next}, server {primary}");
    is_rebuilt(&cluster, victim, &keys).await;
}

/// The managers cannot begin a view of one member, and a third cannot join while nobody leads.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_with_one_backup_is_rebuilt_by_it() {
    let (mut cluster, away, keys) = filled().await;
    let (view, victim) = cluster.leads(PG);
    cluster.end(away).await;
    until("it is let go", async || cluster.members(PG).1.len() == 2).await;
    let (view, _) = cluster.serving(PG, View(view.0 + 1)).await;
    assert_eq!(cluster.members(PG).1[0], victim);
    cluster.shows(victim, &keys).await;
    cluster.meta(victim).kv().flush().unwrap();
    cluster.end(victim).await;
    tables(&cluster, victim).iter().for_each(|path| std::fs::remove_file(path).unwrap());
    cluster.begin(victim).await;
    let (_, primary) = cluster.serving(PG, View(view.0 + 1)).await;
    assert_ne!(primary, victim);
    is_rebuilt(&cluster, victim, &keys).await;
}
