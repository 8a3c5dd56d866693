//! A store that was filled without requests serves what it was filled with like everything else.

use larder_roles::fill::{FillConfig, FillError, Filled, fill};
use larder_types::ETag;
use md5::{Digest, Md5};

use super::*;

const SEED: u64 = 7;

fn filled_content(key: &str, bytes: u64) -> Bytes {
    let seed = key.bytes().fold(bytes, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    content(seed, bytes as usize)
}

fn try_fill(dir: &tempfile::TempDir, objects: u64, bytes: u64) -> Result<Filled, FillError> {
    let config = FillConfig { store: config(dir), bucket: bucket(), objects, bytes, seed: SEED };
    fill(&config, &filled_content, &|_| {})
}

fn name(number: u64) -> String {
    format!("fill-{SEED:016x}/{number:012}")
}

/// Every key of the bucket, page by page.
async fn all_keys(proxy: &Proxy) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    loop {
        let after = all.last().cloned();
        let page = keys(proxy, ListRequest { max: 1000, after, ..ListRequest::default() }).await;
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

async fn assert_whole(proxy: &Proxy, number: u64, bytes: u64) {
    let (name, expected) = (name(number), filled_content(&name(number), bytes));
    assert!(get(proxy, &name).await.unwrap() == expected, "{name} of {bytes} bytes");
    let object = proxy.open(&bucket(), &key(&name)).await.unwrap();
    assert_eq!(object.metax.etag, ETag::Md5(Md5::digest(&expected).into()), "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_store_was_filled_with_is_read_listed_replaced_and_deleted_like_all_else() {
    let dir = tempfile::tempdir().unwrap();
    // The second fill, and every other, goes on behind the first.
    let mut from = 0;
    let mut sizes = Vec::new();
    for (objects, bytes) in [(3000, 100), (2, 0), (400, 5000), (3, u64::from(CHUNK_BYTES_MAX))] {
        let filled = try_fill(&dir, objects, bytes).unwrap();
        assert_eq!((filled.first, filled.objects), (from, objects));
        from += objects;
        sizes.extend((0..objects).map(|_| bytes));
        assert_sound(&dir);
    }
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy();
    let expected: Vec<String> = (0..from).map(name).collect();
    assert!(all_keys(proxy).await == expected);
    for (number, &bytes) in (0..from).zip(&sizes).step_by(7) {
        assert_whole(proxy, number, bytes).await;
    }
    // Objects that are put now are later than any filled object, and lie where none does.
    for number in (0..from).step_by(5) {
        put(proxy, &name(number), &content(number, 3000)).await;
    }
    for number in (1..from).step_by(5) {
        proxy.delete(&bucket(), &key(&name(number)), Condition::default()).await.unwrap();
    }
    store.close();
    assert_sound(&dir);
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy();
    for (number, &bytes) in (0..from).zip(&sizes) {
        match number % 5 {
            0 => assert!(get(proxy, &name(number)).await.unwrap() == content(number, 3000)),
            1 => assert!(get(proxy, &name(number)).await.is_err(), "{number} was deleted"),
            _ if number % 3 == 0 => assert_whole(proxy, number, bytes).await,
            _ => {}
        }
    }
    store.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_with_objects_of_others_and_a_store_in_use_are_not_filled() {
    let dir = tempfile::tempdir().unwrap();
    for other in ["a", "z", &format!("fill-{SEED:016x}/a")] {
        let store = Store::open(&config(&dir)).unwrap();
        let _is_new = store.proxy().create_bucket(&bucket(), None).await;
        put(store.proxy(), other, &content(1, 10)).await;
        let refused = try_fill(&dir, 1, 1);
        assert!(matches!(refused, Err(FillError::Store(_))), "it is in use: {refused:?}");
        store.close();
        let refused = try_fill(&dir, 1, 1);
        assert!(matches!(refused, Err(FillError::NotOfAFill { .. })), "{other}: {refused:?}");
        let store = Store::open(&config(&dir)).unwrap();
        store.proxy().delete(&bucket(), &key(other), Condition::default()).await.unwrap();
        assert!(all_keys(store.proxy()).await.is_empty(), "{other} was there alone");
        store.close();
    }
    assert_eq!(try_fill(&dir, 1, 1).unwrap().first, 0);
    assert!(matches!(try_fill(&dir, 0, 1), Err(FillError::Config { field: "objects", .. })));
    let large = u64::from(CHUNK_BYTES_MAX) + 1;
    assert!(matches!(try_fill(&dir, 1, large), Err(FillError::Config { field: "size", .. })));
}
