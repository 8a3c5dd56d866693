//! A store whose index has rotted in part serves the rest, and takes no changes.

use larder_kv::{Kv, LsmKv};
use larder_roles::meta::{INDEX_DAMAGE_FILE, KV_DIR};

use super::*;

const OBJECTS: u64 = 400;
/// It lies in the middle of the rows.
const VICTIM: u64 = 200;

fn name(number: u64) -> String {
    format!("{}/{number:04}", number / 100)
}

fn inline(number: u64) -> Bytes {
    content(number, 400)
}

/// A store with inline objects, of which the whole index is in tables.
async fn filled(dir: &tempfile::TempDir) -> Store {
    let store = Store::open(&config(dir)).unwrap();
    store.proxy().create_bucket(&bucket(), None).await.unwrap();
    for number in 0..OBJECTS {
        put(store.proxy(), &name(number), &inline(number)).await;
    }
    flush(&store);
    store
}

/// Flushes the index, once it shows all.
fn flush(store: &Store) {
    let meta = store.meta();
    while meta.pg_ids().any(|pg| meta.gauges(pg).tail_ops > 0) {
        std::thread::yield_now();
    }
    meta.kv().flush().unwrap();
}

/// Flips a bit of the only place in the index's tables that has the bytes of an object. The second time it flips it back.
fn flip(dir: &tempfile::TempDir, number: u64) {
    let (bytes, mut places) = (inline(number), Vec::new());
    for entry in std::fs::read_dir(dir.path().join(KV_DIR).join("tables")).unwrap() {
        let path = entry.unwrap().path();
        let file = std::fs::read(&path).unwrap();
        // Behind the byte that is flipped.
        let needle = &bytes[100..];
        let found = file.windows(needle.len()).position(|window| window == needle);
        places.extend(found.map(|at| (path, at - 50)));
    }
    let [(path, at)] = &places[..] else { panic!("{} places have it", places.len()) };
    let mut file = std::fs::read(path).unwrap();
    file[*at] ^= 1;
    std::fs::write(path, file).unwrap();
}

/// The objects that are lost; all others are read.
async fn lost(store: &Store) -> Vec<u64> {
    let mut lost = Vec::new();
    for number in 0..OBJECTS {
        match get(store.proxy(), &name(number)).await {
            Ok(bytes) => assert!(bytes == inline(number), "{number}"),
            Err(ObjectError::IndexDamaged) => lost.push(number),
            Err(error) => panic!("{number}: {error}"),
        }
    }
    lost
}

fn prefixed(prefix: &str) -> ListRequest {
    ListRequest { prefix: prefix.to_owned(), max: 1000, ..ListRequest::default() }
}

async fn change(store: &Store, name: &str) -> Result<(), ObjectError> {
    let (bucket, key, bytes) = (bucket(), key(name), inline(1));
    let done = store.proxy().put(&bucket, &key, PutOptions::default(), Body::of(&bytes)).await;
    done.map(|_| ())
}

/// Only a block is lost, changes are refused, and lists say so where they would show less than there is.
async fn assert_serves_the_rest(store: &Store) {
    let lost = lost(store).await;
    assert!(lost.contains(&VICTIM) && lost.len() < 30, "{lost:?}");
    assert!(store.meta().index_damage().is_some());
    assert_eq!(change(store, "new").await, Err(ObjectError::IndexDamaged));
    let deleted = store.proxy().delete(&bucket(), &key(&name(1)), Condition::default()).await;
    assert_eq!(deleted.err(), Some(ObjectError::IndexDamaged));
    let all = store.proxy().list(&bucket(), prefixed("")).await;
    assert_eq!(all.err(), Some(ObjectError::IndexDamaged), "it would show less than there is");
    assert_eq!(keys(store.proxy(), prefixed("0/")).await.len(), 100);
    assert_eq!(keys(store.proxy(), prefixed("3/")).await.len(), 100);
    assert_eq!(*store.meta().fatal().borrow(), None, "the process goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rotten_block_of_the_index_takes_its_rows_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    filled(&dir).await.close();
    flip(&dir, VICTIM);
    let mut since = None;
    for _ in 0..3 {
        let store = Store::open(&config(&dir)).unwrap();
        assert!(!store.meta().await_space());
        assert_serves_the_rest(&store).await;
        let found = store.meta().index_damage().unwrap().since_ms;
        assert_eq!(*since.get_or_insert(found), found, "a restart does not forget it");
        store.close();
    }
    assert!(dir.path().join(INDEX_DAMAGE_FILE).exists());
    // The table is as it was: a start reads all, and takes changes again.
    flip(&dir, VICTIM);
    let store = Store::open(&config(&dir)).unwrap();
    assert!(store.meta().await_space());
    assert_eq!(store.meta().index_damage(), None);
    assert_eq!(lost(&store).await, [0; 0]);
    change(&store, "new").await.unwrap();
    store.close();
    assert!(!dir.path().join(INDEX_DAMAGE_FILE).exists());
    assert_sound(&dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_first_read_that_meets_the_rot_ends_changes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    filled(&dir).await.close();
    flip(&dir, VICTIM);
    let store = Store::open(&config(&dir)).unwrap();
    assert_eq!(get(store.proxy(), &name(VICTIM)).await.err(), Some(ObjectError::IndexDamaged));
    assert_eq!(change(&store, "after").await, Err(ObjectError::IndexDamaged));
    assert!(get(store.proxy(), &name(1)).await.unwrap() == inline(1));
    store.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_marks_a_store_with_a_rotten_index_starts_too() {
    let dir = tempfile::tempdir().unwrap();
    filled(&dir).await.close();
    {
        let kv = LsmKv::open(&dir.path().join(KV_DIR), 1 << 20).unwrap();
        let mut batch = larder_kv::Batch::new();
        for pg in 0..4 {
            batch.delete(&larder_types::rows::high_water(larder_types::PgId(pg)));
        }
        kv.apply(&batch).unwrap();
        kv.flush().unwrap();
    }
    flip(&dir, VICTIM);
    for _ in 0..2 {
        let store = Store::open(&config(&dir)).unwrap();
        assert!(!store.meta().await_space());
        assert_serves_the_rest(&store).await;
        store.close();
    }
    // The table is as it was: a start reads all, and takes changes again.
    flip(&dir, VICTIM);
    let store = Store::open(&config(&dir)).unwrap();
    assert!(store.meta().await_space(), "what is free is known, now that the rows are read");
    change(&store, "new").await.unwrap();
    store.close();
    assert_sound(&dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_op_that_cannot_be_applied_halts_its_group_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(&dir).await;
    let meta = store.meta().clone();
    let id = *meta.bucket_names().keys().next().unwrap();
    // The log has an overwrite of the victim that the tables lack, and one of a key of another group.
    let halted = meta.pg_of(id, &key(&name(VICTIM)));
    let other = (0..100).find(|number| meta.pg_of(id, &key(&name(*number))) != halted).unwrap();
    let same = (0..100).find(|number| meta.pg_of(id, &key(&name(*number))) == halted).unwrap();
    drop(meta);
    put(store.proxy(), &name(VICTIM), &content(77, 400)).await;
    put(store.proxy(), &name(other), &content(78, 400)).await;
    store.close();
    flip(&dir, VICTIM);
    for _ in 0..2 {
        let store = Store::open(&config(&dir)).unwrap();
        assert!(matches!(get(store.proxy(), &name(VICTIM)).await, Err(ObjectError::IndexDamaged)));
        assert!(get(store.proxy(), &name(other)).await.unwrap() == content(78, 400));
        assert!(get(store.proxy(), &name(same)).await.unwrap() == inline(same), "it is at rest");
        assert_eq!(keys(store.proxy(), prefixed("0/")).await.len(), 100);
        assert_eq!(store.meta().groups_halted(), 1);
        let list = store.proxy().list(&bucket(), prefixed("2/0200")).await;
        assert_eq!(list.err(), Some(ObjectError::IndexDamaged));
        assert_eq!(change(&store, &name(same)).await, Err(ObjectError::IndexDamaged));
        assert_eq!(*store.meta().fatal().borrow(), None);
        store.close();
    }
    // The table is as it was: a start reads all, and takes changes again.
    flip(&dir, VICTIM);
    let store = Store::open(&config(&dir)).unwrap();
    assert!(store.meta().await_space());
    assert!(
        get(store.proxy(), &name(VICTIM)).await.unwrap() == content(77, 400),
        "it was in the log"
    );
    store.close();
    assert_sound(&dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_op_that_fails_for_another_reason_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(&dir).await;
    let id = *store.meta().bucket_names().keys().next().unwrap();
    put(store.proxy(), &name(VICTIM), &content(77, 400)).await;
    store.close();
    {
        // The row can be read, and says nothing.
        let kv = LsmKv::open(&dir.path().join(KV_DIR), 1 << 20).unwrap();
        let mut batch = larder_kv::Batch::new();
        let row =
            larder_types::rows::version(id, &key(&name(VICTIM)), larder_types::rows::UNVERSIONED);
        batch.put(&row, b"rot");
        kv.apply(&batch).unwrap();
        kv.flush().unwrap();
    }
    std::fs::write(dir.path().join(INDEX_DAMAGE_FILE), b"found by an earlier start").unwrap();
    let refused = Store::open(&config(&dir)).err().expect("no read of the index failed");
    assert!(refused.to_string().contains("has no view"), "{refused}");
    assert!(dir.path().join(INDEX_DAMAGE_FILE).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_that_meets_the_rot_is_answered_and_halts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    filled(&dir).await.close();
    flip(&dir, VICTIM);
    let store = Store::open(&config(&dir)).unwrap();
    let (bucket, key, bytes) = (bucket(), key(&name(VICTIM)), inline(1));
    let if_absent = PutOptions {
        condition: Condition {
            if_none_match: Some(larder_types::EtagList::Any),
            ..Condition::default()
        },
        ..PutOptions::default()
    };
    let put =
        async |options| store.proxy().put(&bucket, &key, options, Body::of(&bytes)).await.err();
    // The first may be the one that meets the rot, behind the look for it.
    let first = put(if_absent.clone()).await;
    let may_try_again = matches!(first, Some(ObjectError::Unavailable { .. }));
    assert!(may_try_again || first == Some(ObjectError::IndexDamaged), "{first:?}");
    assert_eq!(put(if_absent).await, Some(ObjectError::IndexDamaged));
    assert_eq!(store.meta().groups_halted(), 0);
    store.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_of_damage_that_cannot_be_read_says_that_there_is_some() {
    let dir = tempfile::tempdir().unwrap();
    filled(&dir).await.close();
    // A read of a folder fails, as one of a bad sector does.
    std::fs::create_dir(dir.path().join(INDEX_DAMAGE_FILE)).unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    assert!(store.meta().index_damage().is_some());
    assert!(get(store.proxy(), &name(1)).await.unwrap() == inline(1));
    store.close();
}
