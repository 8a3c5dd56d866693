//! Reads of objects that are replaced or deleted meanwhile: one version whole, as long as space is not short.

use bytes::BytesMut;
use larder_objects::PieceStream;

use super::*;

/// Opens an object and reads its first piece. The rest is to come.
async fn begin(proxy: &Proxy, name: &str) -> (BytesMut, PieceStream) {
    let object = proxy.open(&bucket(), &key(name)).await.unwrap();
    let ReadBody::Stream(mut pieces) = proxy.read(&object, 0..object.metax.size).await.unwrap()
    else {
        panic!("an object of several pieces is read as a stream");
    };
    let first = pieces.next().await.unwrap().unwrap();
    (BytesMut::from(&first[..]), pieces)
}

async fn end((mut read, mut pieces): (BytesMut, PieceStream)) -> Result<Bytes, ObjectError> {
    while let Some(piece) = pieces.next().await {
        read.extend_from_slice(&piece?);
    }
    Ok(read.freeze())
}

fn space(store: &Store) -> larder_roles::SpaceUse {
    let mut sum = larder_roles::SpaceUse::default();
    for pg in store.meta().pg_ids() {
        let space = store.meta().gauges(pg).space;
        sum.resting += space.resting;
        sum.waiting += space.waiting;
        sum.total += space.total;
    }
    sum
}

async fn until(store: &Store, is_so: impl Fn(&larder_roles::SpaceUse) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so(&space(store)) {
        assert!(Instant::now() < deadline, "the floors are raised: {:?}", space(store));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until all that was freed could be given again, or rests.
async fn floors_are_raised(store: &Store, blocks: u64) {
    until(store, |space| space.resting >= blocks).await;
}

fn blocks(bytes: usize) -> u64 {
    bytes as u64 / 4096
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_of_a_replaced_object_ends_with_the_bytes_that_it_began_with() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy();
    proxy.create_bucket(&bucket(), None).await.unwrap();
    let len = 2 * CHUNK_BYTES_MAX as usize + 100_000;
    let (first, other) = (content(1, len), content(2, len));
    put(proxy, "large", &first).await;
    let reading = begin(proxy, "large").await;
    put(proxy, "large", &other).await;
    floors_are_raised(&store, blocks(len)).await;
    // It would get the blocks of the first.
    put(proxy, "large", &content(3, len)).await;
    assert_eq!(end(reading).await.unwrap(), first);
    assert_eq!(get(proxy, "large").await.unwrap(), content(3, len));
    store.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_of_a_deleted_upload_ends_with_the_bytes_that_it_began_with() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy();
    proxy.create_bucket(&bucket(), None).await.unwrap();
    let (bucket, key) = (bucket(), key("parts"));
    let upload = proxy.create_upload(&bucket, &key, UploadOptions::default()).await.unwrap();
    let (mut all, mut parts) = (BytesMut::new(), Vec::new());
    for number in 1..=3 {
        let bytes = content(u64::from(number), PART_BYTES_MIN as usize + 4096);
        let part = proxy.put_part(&bucket, &key, upload, number, Body::of(&bytes)).await.unwrap();
        parts.push(NamedPart { number, etag: part.etag.text(), checksum: None });
        all.extend_from_slice(&bytes);
    }
    let options = CompleteOptions { parts, ..CompleteOptions::default() };
    proxy.complete_upload(&bucket, &key, upload, options).await.unwrap();
    let reading = begin(proxy, "parts").await;
    let opened = proxy.open(&bucket, &key).await.unwrap();
    proxy.delete(&bucket, &key, Condition::default()).await.unwrap();
    floors_are_raised(&store, blocks(all.len())).await;
    put(proxy, "parts", &content(9, all.len())).await;
    assert_eq!(end(reading).await.unwrap(), all);
    assert_eq!(proxy.part(&opened, 3).await.unwrap().number, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_of_a_deleted_log_ends_with_the_records_that_it_began_with() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy();
    proxy.create_bucket(&bucket(), None).await.unwrap();
    let mut all = BytesMut::new();
    // More pieces than are looked up at a time.
    for record in 0..200 {
        let bytes = content(record, 40_000 + 1000 * (record as usize % 7));
        append(proxy, "log", AppendAt::End, &bytes).await;
        all.extend_from_slice(&bytes);
    }
    let reading = begin(proxy, "log").await;
    proxy.delete(&bucket(), &key("log"), Condition::default()).await.unwrap();
    floors_are_raised(&store, blocks(all.len())).await;
    put(proxy, "log", &content(999, all.len())).await;
    assert_eq!(end(reading).await.unwrap(), all);
}

#[tokio::test(flavor = "multi_thread")]
async fn space_that_rests_is_given_to_puts_that_find_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy();
    proxy.create_bucket(&bucket(), None).await.unwrap();
    let len = CHUNK_BYTES_MAX as usize;
    put(proxy, "one", &content(0, len)).await;
    let before = space(&store).total;
    // Many times what a volume has.
    for round in 1..=40 {
        put(proxy, "one", &content(round, len)).await;
        until(&store, |space| space.waiting < blocks(len)).await;
    }
    assert_eq!(get(proxy, "one").await.unwrap(), content(40, len));
    assert_eq!(space(&store).total, before, "no other volume was drawn");
}
