use futures::FutureExt;
use larder_env::SimDisk;
use larder_protocol::manager::state::{
    ClusterId, KeyPair, MapVersion, RootRecord, Settings, Timeline,
};

use super::*;

const ME: ServerId = ServerId(3);

fn map(version: u64) -> Topology {
    let settings = Settings {
        pg_count: 1,
        members: 1,
        min_members: 1,
        copies: 1,
        min_copies: 1,
        lv_blocks: 1,
    };
    let pgs = vec![Default::default()];
    let (founded, version) = (Some((ClusterId(1), settings)), MapVersion(version));
    Topology { founded, version, pgs, ..Topology::default() }
}

fn kept(disk: &Arc<SimDisk>) -> StoredMap {
    StoredMap::decode(&read_file(&**disk, MAP_FILE).unwrap()).unwrap()
}

fn open(disk: &Arc<SimDisk>) -> Arc<MapStore> {
    MapStore::on(disk.clone(), ME).unwrap()
}

/// Accepts a map, and keeps it.
async fn keep(map_store: &MapStore, map: Topology) -> Result<bool, OlderMap> {
    let accepted = map_store.accept(&map)?;
    let (shown, version) = (Versions::new(map.version), map.version);
    let (map, mut kept) = (Arc::new(map), map_store.versions());
    tokio::select! {
        never = map_store.keep(shown.subscribe(), || map.clone()) => match never {},
        reached = kept.reaches(version) => reached.unwrap(),
    }
    Ok(accepted)
}

#[tokio::test]
async fn the_latest_map_is_kept_and_one_that_lacks_something_is_refused() {
    let disk = SimDisk::new(1, 1 << 30);
    let map_store = open(&disk);
    assert_eq!(map_store.version(), MapVersion(0));
    assert_eq!(map_store.accept(&Topology::default()), Ok(false), "nothing is founded");
    assert_eq!(keep(&map_store, map(5)).await, Ok(true));
    assert_eq!(kept(&disk), StoredMap { server: ME, map: map(5) });
    assert_eq!(keep(&map_store, map(6)).await, Ok(true));
    assert_eq!(map_store.version(), MapVersion(6));
    assert_eq!(map_store.accept(&map(5)), Ok(false), "answers of two managers may cross");
    let map_store = open(&disk);
    let older = OlderMap { newest: 5, kept: 6 };
    assert_eq!(map_store.accept(&map(5)), Err(older));
    assert!(!older.is_of_another_history(), "a manager may be behind");
    assert_eq!(kept(&disk).map, map(6), "it is not replaced");
    assert_eq!(map_store.accept(&map(6)), Ok(true), "the first of this run");
    let of_timeline = |id, version| {
        let timelines = vec![Timeline { id, since: MapVersion(7) }];
        Topology { timelines, ..map(version) }
    };
    assert_eq!(map_store.accept(&of_timeline(1, 8)), Ok(true), "it counts before it is kept");
    let other = OlderMap { newest: 9, kept: 8 };
    assert_eq!(map_store.accept(&of_timeline(2, 9)), Err(other));
    assert!(other.is_of_another_history());
    assert_eq!(map_store.accept(&of_timeline(1, 9)), Ok(true));
}

#[tokio::test]
async fn no_secret_is_kept() {
    let disk = SimDisk::new(1, 1 << 30);
    let pair = KeyPair { access_key: "abc".to_owned(), secret_key: "a-secret-key".to_owned() };
    let root = Some(RootRecord { generation: 1, current: pair, previous: None });
    keep(&open(&disk), Topology { root, ..map(5) }).await.unwrap();
    let bytes = read_file(&*disk, MAP_FILE).unwrap();
    assert!(!bytes.windows(8).any(|window| window == b"a-secret"));
    assert_eq!(kept(&disk).map.root_generation(), 1);
}

#[tokio::test]
async fn a_mark_of_the_release_before_counts_until_all_servers_keep_maps() {
    let disk = SimDisk::new(1, 1 << 30);
    // Cluster 1, version 6, nothing else.
    replace_file(&*disk, "", MARK_FILE, &[1, 1, 6, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let map_store = open(&disk);
    assert_eq!(map_store.accept(&map(5)), Err(OlderMap { newest: 5, kept: 6 }));
    keep(&map_store, map(7)).await.unwrap();
    assert!(read_file(&*disk, MARK_FILE).is_ok(), "the release before may come back");
    let cluster_version = TIMELINES_VERSION;
    keep(&map_store, Topology { cluster_version, ..map(8) }).await.unwrap();
    assert!(matches!(read_file(&*disk, MARK_FILE), Err(DiskError::NotFound { .. })));
}

#[tokio::test]
async fn a_damaged_map_is_taken_for_none_and_one_of_a_later_release_ends_the_start() {
    let disk = SimDisk::new(1, 1 << 30);
    replace_file(&*disk, "", MAP_FILE, b"?").unwrap();
    assert_eq!(open(&disk).accept(&map(1)), Ok(true));
    let mut later = StoredMap::encode(ME, &map(1));
    later[16] = 2;
    let sum = xxhash_rust::xxh3::xxh3_64(&later[16..]);
    later[8..16].copy_from_slice(&sum.to_le_bytes());
    replace_file(&*disk, "", MAP_FILE, &later).unwrap();
    let refused = MapStore::on(disk.clone(), ME).err().unwrap();
    assert!(matches!(refused, MapStoreError::File(BadMap::Later(2))), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_map_that_the_disk_does_not_take_is_kept_when_it_does() {
    let disk = SimDisk::new(1, 1 << 30);
    let map_store = open(&disk);
    keep(&map_store, map(5)).await.unwrap();
    disk.set_capacity(0);
    let late = tokio::time::timeout(Duration::from_secs(9), keep(&map_store, map(6))).await;
    assert!(late.is_err(), "it is not kept");
    assert_eq!((map_store.version(), kept(&disk).map), (MapVersion(5), map(5)));
    assert_eq!(map_store.accept(&map(5)), Ok(false), "and counts all the same");
    disk.set_capacity(1 << 30);
    keep(&map_store, map(7)).await.unwrap();
}

/// The end of a process cancels the write: that is no fault of the disk's, and is not logged as one.
#[tokio::test]
async fn a_write_that_the_end_of_the_process_cancels_has_no_outcome() {
    let cancelled = tokio::spawn(pending());
    cancelled.abort();
    while !cancelled.is_finished() {
        tokio::task::yield_now().await;
    }
    assert_eq!(outcome(cancelled).now_or_never(), None);
    let written = tokio::spawn(async { Ok(()) });
    assert_eq!(outcome(written).await, Ok(()));
}
