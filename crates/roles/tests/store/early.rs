//! A start serves before the rows are read for free space.

use larder_kv::{Batch, Kv, KvReader, LsmKv};
use larder_protocol::placement::pg_of;
use larder_roles::meta::KV_DIR;
use larder_types::{PgId, rows};

use super::*;

const PGS: u32 = 4;

fn index(dir: &tempfile::TempDir) -> LsmKv {
    LsmKv::open(&dir.path().join(KV_DIR), 1 << 20).unwrap()
}

fn marks(kv: &LsmKv) -> Vec<(Vec<u8>, Bytes)> {
    let row = |pg| (rows::high_water(PgId(pg)), kv.get(&rows::high_water(PgId(pg))).unwrap());
    (0..PGS).map(row).filter_map(|(row, value)| Some((row, value?))).collect()
}

fn name(turn: u64, number: u64) -> String {
    format!("{turn}/{number}")
}

/// Puts 40 objects of 1 to 13 blocks.
async fn put_some(store: &Store, turn: u64) {
    for number in 0..40 {
        let bytes = content(turn * 100 + number, 3000 + 1300 * number as usize);
        put(store.proxy(), &name(turn, number), &bytes).await;
    }
}

async fn assert_some(store: &Store, turn: u64) {
    for number in 0..40 {
        let bytes = content(turn * 100 + number, 3000 + 1300 * number as usize);
        assert!(get(store.proxy(), &name(turn, number)).await.unwrap() == bytes, "{turn}/{number}");
    }
}

fn used(store: &Store) -> u64 {
    let meta = store.meta();
    meta.pg_ids()
        .map(|pg| meta.gauges(pg).space)
        .map(|it| it.total - it.free - it.waiting - it.resting)
        .sum()
}

/// Objects and bytes of the bucket, once all is applied.
fn counted(store: &Store) -> (u64, u64) {
    let meta = store.meta();
    while meta.pg_ids().any(|pg| meta.gauges(pg).tail_ops > 0) {
        std::thread::yield_now();
    }
    let (used, names) = (meta.bucket_use(), meta.bucket_names());
    assert_eq!((used.uncounted, names.len(), names.values().next()), (0, 1, Some(&bucket())));
    let count = names.keys().find_map(|id| used.counts.get(id).copied()).unwrap_or_default();
    (count.objects, count.bytes)
}

/// Closes a store whose index shows all of it.
fn close(store: Store) {
    store.meta().kv().flush().unwrap();
    store.close();
}

fn says(dir: &tempfile::TempDir) -> String {
    let report = inspect(&config(dir), true).unwrap();
    assert!(report.is_sound(), "{report}");
    report.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_put_replaced_and_deleted_while_rows_are_read_lies_where_nothing_did() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    store.proxy().create_bucket(&bucket(), None).await.unwrap();
    for turn in 0..3 {
        put_some(&store, turn).await;
    }
    store.close();
    for turn in 3..8 {
        assert!(says(&dir).contains("0 groups without high-water marks"));
        let store = Store::open(&config(&dir)).unwrap();
        // All of this while the rows are read, or in part: it makes no difference.
        for number in 0..40 {
            let gone = key(&name(turn - 3, number));
            store.proxy().delete(&bucket(), &gone, Condition::default()).await.unwrap();
        }
        put_some(&store, turn - 1).await;
        put_some(&store, turn).await;
        assert_some(&store, turn - 2).await;
        if turn % 2 == 0 {
            // Else it is stopped in the middle of the walk, or behind it.
            assert!(store.meta().await_space());
        }
        store.close();
        let store = Store::open(&config(&dir)).unwrap();
        for turn in turn - 2..=turn {
            assert_some(&store, turn).await;
        }
        assert!(store.meta().await_space());
        let blocks = (0..40).map(|number| (3000u64 + 1300 * number).div_ceil(4096)).sum::<u64>();
        assert_eq!(used(&store), 3 * blocks, "what rows leave is free, and nothing else");
        let bytes = (0..40).map(|number| 3000u64 + 1300 * number).sum::<u64>();
        assert_eq!(counted(&store), (120, 3 * bytes));
        store.close();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_that_an_older_release_left_behind_are_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    store.proxy().create_bucket(&bucket(), None).await.unwrap();
    put_some(&store, 0).await;
    close(store);
    let left = marks(&index(&dir));
    assert_eq!(left.len(), PGS as usize);
    let store = Store::open(&config(&dir)).unwrap();
    put_some(&store, 1).await;
    close(store);
    // As if that had been a release that knows no marks. The log goes on from what the index shows.
    let kv = index(&dir);
    let mut batch = Batch::new();
    left.iter().for_each(|(row, value)| batch.position(row, value));
    kv.apply(&batch).unwrap();
    kv.flush().unwrap();
    drop(kv);
    assert!(
        says(&dir).contains("4 groups without high-water marks: the next start reads all rows")
    );
    let store = Store::open(&config(&dir)).unwrap();
    put_some(&store, 2).await;
    for turn in 0..3 {
        assert_some(&store, turn).await;
    }
    store.close();
    assert!(
        says(&dir).contains("0 groups without"),
        "the rows were read: the marks are good again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_that_a_map_from_before_lacks_are_not_drawn_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    store.proxy().create_bucket(&bucket(), None).await.unwrap();
    let map = dir.path().join("manager/map");
    let before = std::fs::read(&map).unwrap();
    put_some(&store, 0).await;
    close(store);
    assert_ne!(std::fs::read(&map).unwrap(), before, "volumes were drawn");
    std::fs::write(&map, before).unwrap();
    let refused = Store::open(&config(&dir)).err().expect("rows name what the map lacks");
    assert!(refused.to_string().contains("is not in the map"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_that_is_lost_is_not_replaced_by_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    store.proxy().create_bucket(&bucket(), None).await.unwrap();
    put_some(&store, 0).await;
    close(store);
    let map = dir.path().join("manager/map");
    let lost = std::fs::read(&map).unwrap();
    std::fs::remove_file(&map).unwrap();
    // With all else of the store, or only a part.
    let away = |name: &str| (dir.path().join(name), dir.path().join(format!("{name}.away")));
    for (gone, left) in [("", "a log"), ("log", "an index"), ("kv", "data of a store")] {
        if !gone.is_empty() {
            let (from, to) = away(gone);
            std::fs::rename(from, to).unwrap();
        }
        let expected = format!("it is missing, though there is {left}");
        for _ in 0..2 {
            let refused = Store::open(&config(&dir)).err().expect("its map is lost").to_string();
            assert!(refused.contains(&expected), "{refused}");
            assert!(!map.exists());
        }
        let refused = inspect(&config(&dir), true).expect_err("it says the same").to_string();
        assert!(refused.contains(&expected), "{refused}");
    }
    for gone in ["log", "kv"] {
        let (to, from) = away(gone);
        std::fs::rename(from, to).unwrap();
    }
    std::fs::write(&map, lost).unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    assert_some(&store, 0).await;
    close(store);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_contradict_each_other_stop_their_group_alone_and_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    store.proxy().create_bucket(&bucket(), None).await.unwrap();
    put_some(&store, 0).await;
    let id = store.manager().map().bucket(&bucket()).unwrap().id;
    close(store);
    let group = |name: &str| pg_of(id, &key(name), PGS);
    let row = |name: &str| rows::version(id, &key(name), rows::UNVERSIONED);
    let damaged = name(0, 7);
    let other = (0..).map(|number| format!("other {number}"));
    let twin = other.clone().find(|twin| group(twin) == group(&damaged)).unwrap();
    let elsewhere = other.clone().find(|name| group(name) != group(&damaged)).unwrap();
    {
        let kv = index(&dir);
        let value = kv.get(&row(&damaged)).unwrap().unwrap();
        let mut batch = Batch::new();
        batch.put(&row(&twin), &value);
        kv.apply(&batch).unwrap();
        kv.flush().unwrap();
    }
    let store = Store::open(&config(&dir)).unwrap();
    assert!(!store.meta().await_space(), "what is free is not known in one group");
    assert_eq!(store.meta().contradictions(), 1);
    assert!(store.meta().fatal().borrow().is_none(), "the process goes on");
    let bytes = content(9, 9000);
    put(store.proxy(), &elsewhere, &bytes).await;
    assert!(get(store.proxy(), &elsewhere).await.unwrap() == bytes);
    assert!(matches!(get(store.proxy(), &damaged).await, Err(ObjectError::Unavailable { .. })));
    let refused =
        store.proxy().put(&bucket(), &key(&damaged), PutOptions::default(), Body::of(&bytes)).await;
    assert!(matches!(refused, Err(ObjectError::Unavailable { .. })), "{refused:?}");
    store.close();
    let refused = Store::open(&config(&dir)).err().expect("a known contradiction is not served");
    assert!(refused.to_string().contains("contradicts itself"), "{refused}");
}
