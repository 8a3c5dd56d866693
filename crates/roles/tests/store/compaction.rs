//! A volume in pieces too small for a large chunk, which finds room there when it was compacted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use larder_objects::{Objects, Opened};
use larder_roles::{BackgroundConfig, Proxy, Store, StoreConfig};
use larder_types::limits::CHUNK_BYTES_MAX;
use larder_types::{Body, Chunk, Condition, Extent};

use super::{assert_sound, bucket, config, content, get, key, put, read};

/// Bytes of a small object: eight blocks.
const SMALL: usize = 32 * 1024;
/// They fill a volume of 64 MiB nearly as far as it goes.
const OBJECTS: u64 = 1700;
/// Objects that are deleted at once.
const AT_ONCE: usize = 32;

fn one_group(dir: &tempfile::TempDir) -> StoreConfig {
    StoreConfig { pg_count: Some(1), ..config(dir) }
}

fn name(at: u64) -> String {
    format!("small/{at:04}")
}

/// The chunk of an object that has one.
async fn chunk(proxy: &Proxy, name: &str) -> Chunk {
    match proxy.open(&bucket(), &key(name)).await.unwrap().body {
        Body::Chunk(chunk) => chunk,
        other => panic!("{name} is no chunk: {other:?}"),
    }
}

/// Fills a volume with small objects and deletes every other; returns those that stay.
async fn scatter(proxy: &Proxy) -> Vec<u64> {
    let all: Vec<u64> = (0..OBJECTS).collect();
    // One after the other, so that they lie in this order.
    for &at in &all {
        put(proxy, &name(at), &content(at, SMALL)).await;
    }
    let (stay, go): (Vec<u64>, Vec<u64>) = all.into_iter().partition(|at| at % 2 == 0);
    for some in go.chunks(AT_ONCE) {
        let deletes = some.iter().map(|&at| async move {
            proxy.delete(&bucket(), &key(&name(at)), Condition::default()).await.unwrap();
        });
        join_all(deletes).await;
    }
    stay
}

async fn open_all(proxy: &Proxy, stay: &[u64]) -> Vec<(u64, Opened)> {
    let mut opened = Vec::new();
    for &at in stay {
        opened.push((at, proxy.open(&bucket(), &key(&name(at))).await.unwrap()));
    }
    opened
}

async fn assert_readable(proxy: &Proxy, stay: &[u64]) {
    for &at in stay {
        assert_eq!(get(proxy, &name(at)).await.unwrap(), content(at, SMALL), "{}", name(at));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fragmented_volume_is_compacted_while_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&one_group(&dir)).unwrap();
    let proxy = store.proxy().clone();
    proxy.create_bucket(&bucket(), None).await.unwrap();
    let stay = scatter(&proxy).await;
    let volume = chunk(&proxy, &name(0)).await.lv;
    assert_eq!(chunk(&proxy, &name(OBJECTS - 2)).await.lv, volume, "one volume has them all");

    let large = content(77, CHUNK_BYTES_MAX as usize);
    put(&proxy, "large/behind", &large).await;
    assert_eq!(chunk(&proxy, "large/behind").await.lv, volume, "behind all others is room for one");
    put(&proxy, "large/before", &large).await;
    assert_ne!(chunk(&proxy, "large/before").await.lv, volume, "it would take too many pieces");

    let opened = open_all(&proxy, &stay).await;
    let background = BackgroundConfig { bytes_per_s: 1 << 30, scrub_period: None };
    store.start_background(&background);
    let is_over = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn({
        let (proxy, stay, is_over) = (proxy.clone(), stay.clone(), is_over.clone());
        async move {
            while !is_over.load(Ordering::Relaxed) {
                assert_readable(&proxy, &stay).await;
            }
        }
    });
    let begun = Instant::now();
    loop {
        let now = store.meta().compaction_now();
        // Most of what lay high was moved; between two chunks none is under way.
        if now.chunks > 100 && now.under_way == 0 {
            assert_eq!((now.failed, now.bytes), (0, now.chunks * SMALL as u64));
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "never compacted: {now:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The space that the chunks have left is free when the floors have passed their moves.
    let waiting = || store.meta().floors_now().waiting_bytes;
    while waiting() > 1024 * 1024 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} bytes wait", waiting());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    reader.await.unwrap();
    drop(proxy);
    // The blocks that the chunks have left rest until the store begins anew.
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    let store = Store::open(&one_group(&dir)).unwrap();
    let proxy = store.proxy().clone();
    let unread = || store.meta().pg_ids().map(|pg| store.meta().gauges(pg).space.unread);
    while unread().sum::<u64>() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(90), "the rows are not read");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    put(&proxy, "large/after", &large).await;
    let after = chunk(&proxy, "large/after").await;
    assert_eq!((after.lv, after.extents.len()), (volume, 1), "there is room for it in one piece");
    assert_readable(&proxy, &stay).await;
    // A reader that found an object before it moved reads it where it lies now: another lies in its former
    // place.
    let (mut followed, overwritten) = (0, after.extents[0]);
    for (at, object) in opened {
        let Body::Chunk(before) = &object.body else { panic!("no chunk: {object:?}") };
        let is_in = |it: &Extent| (overwritten.first..overwritten.end()).contains(&it.first);
        followed += u32::from(before.lv == volume && before.extents.iter().any(is_in));
        let size = object.metax.size;
        assert_eq!(read(&proxy, &object, 0..size).await, content(at, SMALL), "{}", name(at));
    }
    assert!(followed > 0, "nothing was overwritten");
    drop(proxy);
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();

    assert_sound(&dir);
    let store = Store::open(&one_group(&dir)).unwrap();
    assert_readable(store.proxy(), &stay).await;
    assert_eq!(get(store.proxy(), "large/after").await.unwrap(), large);
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    assert_sound(&dir);
}
