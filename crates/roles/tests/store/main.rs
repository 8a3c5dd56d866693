//! A whole store on a real directory, through the interface that gateways use.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod coalesce;
mod compaction;
mod damage;
mod early;
mod fill;
mod reading;
mod regions;
mod uploads;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use larder_objects::{
    AppendAt, AppendOptions, BodyDigest, BodyError, CompleteOptions, ListItem, ListRequest,
    NamedPart, ObjectError, Objects, Opened, PutBody, PutOptions, ReadBody, UploadOptions,
};
use larder_roles::inspect::inspect;
use larder_roles::progress::ScrubStatus;
use larder_roles::{BackgroundConfig, Proxy, Store, StoreConfig};
use larder_types::limits::{CHUNK_BYTES_MAX, INLINE_BYTES_MAX, PART_BYTES_MIN};
use larder_types::{Attributes, BucketName, Condition, EtagList, ObjectKey};

/// A body in pieces, whose "MD5" is derived from its length: the store does not look at it.
struct Body {
    pieces: Vec<Bytes>,
    len: u64,
    fails: bool,
}

impl Body {
    fn of(bytes: &Bytes) -> Self {
        let pieces = bytes.chunks(100_000).rev().map(|piece| bytes.slice_ref(piece)).collect();
        Self { pieces, len: bytes.len() as u64, fails: false }
    }
}

impl PutBody for Body {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        self.pieces.pop().map(Ok)
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        if self.fails {
            return Err(BodyError::BadDigest);
        }
        let mut md5 = [0; 16];
        md5[..8].copy_from_slice(&self.len.to_be_bytes());
        Ok(BodyDigest { md5, checksum: None })
    }
}

fn config(dir: &tempfile::TempDir) -> StoreConfig {
    StoreConfig {
        root: dir.path().to_owned(),
        data: larder_roles::store::DATA_FILE.to_owned(),
        pg_count: Some(4),
        // Not as large as the disk of this machine makes it.
        lv_bytes: Some(64 * 1024 * 1024),
        log_segment_bytes: 4 * 1024 * 1024,
        region: larder_types::RegionId::OWN,
    }
}

fn content(seed: u64, len: usize) -> Bytes {
    let mut rng = larder_env::SeededRng::new(seed);
    let mut bytes = BytesMut::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes.freeze()
}

fn bucket() -> BucketName {
    BucketName::new("bucket").unwrap()
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(name).unwrap()
}

async fn put(proxy: &Proxy, name: &str, bytes: &Bytes) {
    proxy.put(&bucket(), &key(name), PutOptions::default(), Body::of(bytes)).await.unwrap();
}

async fn get(proxy: &Proxy, name: &str) -> Result<Bytes, ObjectError> {
    let object = proxy.open(&bucket(), &key(name)).await?;
    match proxy.read(&object, 0..object.metax.size).await? {
        ReadBody::Whole(bytes) => Ok(bytes),
        ReadBody::Stream(mut stream) => {
            let mut all = BytesMut::new();
            while let Some(piece) = stream.next().await {
                all.extend_from_slice(&piece?);
            }
            Ok(all.freeze())
        }
    }
}

async fn keys(proxy: &Proxy, request: ListRequest) -> Vec<String> {
    let page = proxy.list(&bucket(), request).await.unwrap();
    let name = |item| match item {
        ListItem::Entry(larder_objects::ListedObject { key, .. }) => key.as_str().to_owned(),
        ListItem::Group(group) => format!("[{group}]"),
    };
    page.items.into_iter().map(name).collect()
}

fn assert_sound(dir: &tempfile::TempDir) {
    let report = inspect(&config(dir), true).unwrap();
    assert!(report.is_sound(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_every_shape_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [
        0,
        1,
        INLINE_BYTES_MAX as usize,
        INLINE_BYTES_MAX as usize + 1,
        65_536,
        70_000,
        CHUNK_BYTES_MAX as usize,
        CHUNK_BYTES_MAX as usize + 1,
        2 * CHUNK_BYTES_MAX as usize + 12_345,
    ];
    let store = Store::open(&config(&dir)).unwrap();
    store.proxy().create_bucket(&bucket(), None).await.unwrap();
    for (n, size) in sizes.iter().enumerate() {
        put(store.proxy(), &format!("o{n}"), &content(n as u64, *size)).await;
    }
    store.close();
    assert_sound(&dir);
    let store = Store::open(&config(&dir)).unwrap();
    for (n, size) in sizes.iter().enumerate() {
        let got = get(store.proxy(), &format!("o{n}")).await.unwrap();
        assert!(got == content(n as u64, *size), "size {size}");
    }
    let object = store.proxy().open(&bucket(), &key("o8")).await.unwrap();
    let from = u64::from(CHUNK_BYTES_MAX) - 5;
    let ReadBody::Whole(ten) = store.proxy().read(&object, from..from + 5).await.unwrap() else {
        panic!("a short range within a chunk is one piece");
    };
    assert_eq!(ten, content(8, sizes[8]).slice(from as usize..from as usize + 5));
    store.close();
}

async fn append(proxy: &Proxy, name: &str, at: AppendAt, bytes: &Bytes) -> u64 {
    let (attributes, condition) = (Attributes::default(), Condition::default());
    let options = AppendOptions { at, attributes, condition };
    let done = proxy.append(&bucket(), &key(name), options, Body::of(bytes)).await.unwrap();
    assert_eq!(done.object.size, done.offset + bytes.len() as u64);
    done.offset
}

async fn read(proxy: &Proxy, object: &Opened, range: Range<u64>) -> Bytes {
    match proxy.read(object, range).await.unwrap() {
        ReadBody::Whole(bytes) => bytes,
        ReadBody::Stream(stream) => {
            let pieces: Vec<Bytes> = stream.map(Result::unwrap).collect().await;
            pieces.concat().into()
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_every_shape_can_be_appended_to_by_every_shape() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    store.proxy().create_bucket(&bucket(), None).await.unwrap();
    let chunk = CHUNK_BYTES_MAX as usize;
    let first = [None, Some(0), Some(100), Some(70_000), Some(chunk + 5)];
    let pieces = [1, 2048, 2049, 100_000, chunk + 12_345, 3, 65_536, 7];
    let mut whole = Vec::new();
    for (n, size) in first.into_iter().enumerate() {
        let name = format!("o{n}");
        let mut expected = content(n as u64, size.unwrap_or(0)).to_vec();
        if size.is_some() {
            put(store.proxy(), &name, &content(n as u64, expected.len())).await;
        }
        let before = store.proxy().open(&bucket(), &key(&name)).await.ok();
        for (piece, len) in pieces.into_iter().enumerate() {
            let bytes = content(1000 + piece as u64, len);
            let record = piece % 2 == 0 && len <= chunk;
            let at = if record { AppendAt::End } else { AppendAt::Offset(expected.len() as u64) };
            let offset = append(store.proxy(), &name, at, &bytes).await;
            assert_eq!(offset, expected.len() as u64, "{name}, piece {piece}");
            expected.extend_from_slice(&bytes);
        }
        if let Some(before) = before.filter(|before| before.metax.size > 0) {
            let size = before.metax.size;
            let seen = read(store.proxy(), &before, 0..size).await;
            assert!(seen == expected[..size as usize], "what was opened before is as it was");
        }
        whole.push(expected);
    }
    store.close();
    assert_sound(&dir);
    let store = Store::open(&config(&dir)).unwrap();
    let mut rng = larder_env::SeededRng::new(15);
    for (n, expected) in whole.iter().enumerate() {
        assert!(get(store.proxy(), &format!("o{n}")).await.unwrap() == expected[..], "o{n}");
        let object = store.proxy().open(&bucket(), &key(&format!("o{n}"))).await.unwrap();
        for _ in 0..40 {
            let from = rng.below(expected.len() as u64);
            let to = from + 1 + rng.below((expected.len() as u64 - from).min(300_000));
            let found = read(store.proxy(), &object, from..to).await;
            assert!(found == expected[from as usize..to as usize], "o{n}, {from} to {to}");
        }
        let name = key(&format!("o{n}"));
        store.proxy().delete(&bucket(), &name, Condition::default()).await.unwrap();
    }
    store.close();
    assert_sound(&dir);
    let store = Store::open(&config(&dir)).unwrap();
    assert!(store.meta().await_space());
    let held: u64 = (store.meta().pg_ids())
        .map(|pg| store.meta().gauges(pg).space)
        .map(|space| space.total - space.free)
        .sum();
    assert_eq!(held, 0, "deletes freed every piece");
    store.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_records_at_once_each_is_there_once_and_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    store.proxy().create_bucket(&bucket(), None).await.unwrap();
    let writers = (0..16u64).map(|writer| {
        let proxy = store.proxy().clone();
        tokio::spawn(async move {
            let mut written = Vec::new();
            for n in 0..20 {
                let record = content(writer * 100 + n, 50 + (n as usize * 331) % 9_000);
                written.push((append(&proxy, "log", AppendAt::End, &record).await, record));
            }
            written
        })
    });
    let mut records = Vec::new();
    for writer in futures::future::join_all(writers).await {
        records.extend(writer.unwrap());
    }
    records.sort_by_key(|(offset, _)| *offset);
    let expected: Vec<u8> = records.iter().flat_map(|(_, record)| record.to_vec()).collect();
    let mut end = 0;
    for (offset, record) in &records {
        assert_eq!(*offset, end, "no gap, and nothing twice");
        end += record.len() as u64;
    }
    assert!(get(store.proxy(), "log").await.unwrap() == expected[..]);
    let wrong = AppendOptions {
        at: AppendAt::Offset(end - 1),
        attributes: Attributes::default(),
        condition: Condition::default(),
    };
    let body = Body::of(&content(1, 9_000));
    let refused = store.proxy().append(&bucket(), &key("log"), wrong, body).await;
    assert_eq!(refused, Err(ObjectError::WriteOffset { size: end }));
    store.close();
    assert_sound(&dir);
}

#[tokio::test(flavor = "multi_thread")]
async fn space_of_overwritten_and_deleted_objects_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy();
    proxy.create_bucket(&bucket(), None).await.unwrap();
    let used = |store: &Store| {
        store.meta().pg_ids().fold((0, 0), |(held, total), pg| {
            let space = store.meta().gauges(pg).space;
            (held + space.total - space.free, total + space.total)
        })
    };
    for round in 0..40u64 {
        for n in 0..4 {
            put(proxy, &format!("big{n}"), &content(round * 10 + n, 4_000_000)).await;
        }
    }
    for n in 0..4 {
        proxy.delete(&bucket(), &key(&format!("big{n}")), Condition::default()).await.unwrap();
        assert_eq!(get(proxy, &format!("big{n}")).await, Err(ObjectError::NoSuchKey));
    }
    // 640 MB were written; what is held must be bounded by what waits below the floors.
    let (held, total) = used(&store);
    assert!(held * 4096 < 200_000_000, "{held} blocks of {total} are held");
    store.close();
    assert_sound(&dir);
    let store = Store::open(&config(&dir)).unwrap();
    assert!(store.meta().await_space());
    assert_eq!(used(&store).0, 0, "nothing waits across a restart");
    store.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_racing_creations_exactly_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    store.proxy().create_bucket(&bucket(), None).await.unwrap();
    for round in 0..20 {
        let mut tasks = Vec::new();
        for n in 0..16u64 {
            let proxy: Arc<Proxy> = store.proxy().clone();
            tasks.push(tokio::spawn(async move {
                let condition =
                    Condition { if_none_match: Some(EtagList::Any), ..Condition::default() };
                let options = PutOptions { condition, ..PutOptions::default() };
                let bytes = content(n, 10_000);
                let name = key(&format!("lock{round}"));
                proxy.put(&bucket(), &name, options, Body::of(&bytes)).await
            }));
        }
        let mut won = 0;
        for task in tasks {
            match task.await.unwrap() {
                Ok(_) => won += 1,
                Err(error) => assert_eq!(error, ObjectError::PreconditionFailed),
            }
        }
        assert_eq!(won, 1, "round {round}");
    }
    store.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_is_given_up_leaves_the_old_version_and_no_block() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy();
    proxy.create_bucket(&bucket(), None).await.unwrap();
    let old = content(1, 50_000);
    put(proxy, "kept", &old).await;
    for size in [50_000, 3 * CHUNK_BYTES_MAX as usize] {
        let bytes = content(2, size);
        let body = Body { fails: true, ..Body::of(&bytes) };
        let put = proxy.put(&bucket(), &key("kept"), PutOptions::default(), body).await;
        assert_eq!(put, Err(ObjectError::Body(BodyError::BadDigest)));
    }
    for _ in 0..50 {
        // Polled once or twice and dropped: wherever that catches it, the put is whole or not there.
        let bytes = content(3, 30_000);
        let (bucket, name) = (bucket(), key("torn"));
        let put = proxy.put(&bucket, &name, PutOptions::default(), Body::of(&bytes));
        let _dropped =
            futures::future::select(Box::pin(put), Box::pin(tokio::task::yield_now())).await;
    }
    assert_eq!(get(proxy, "kept").await.unwrap(), old);
    match get(proxy, "torn").await {
        Ok(bytes) => assert!(bytes == content(3, 30_000)),
        Err(error) => assert_eq!(error, ObjectError::NoSuchKey),
    }
    keys(proxy, ListRequest { max: 10, ..ListRequest::default() }).await;
    store.close();
    assert_sound(&dir);
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_are_completed_without_moving_data_and_repeatably() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy();
    proxy.create_bucket(&bucket(), None).await.unwrap();
    let name = key("upload");
    let upload = proxy.create_upload(&bucket(), &name, UploadOptions::default()).await.unwrap();
    let first = content(1, PART_BYTES_MIN as usize + 4_000_000);
    let last = content(2, 1000);
    let mut parts = Vec::new();
    for (number, bytes) in [(2u16, &last), (1, &content(9, 70_000)), (1, &first)] {
        let done = proxy.put_part(&bucket(), &name, upload, number, Body::of(bytes)).await.unwrap();
        parts.push(NamedPart { number, etag: done.etag.text(), checksum: None });
    }
    let options = CompleteOptions {
        parts: vec![parts[2].clone(), parts[0].clone()],
        ..CompleteOptions::default()
    };
    let stale = CompleteOptions {
        parts: vec![parts[1].clone(), parts[0].clone()],
        ..CompleteOptions::default()
    };
    assert_eq!(
        proxy.complete_upload(&bucket(), &name, upload, stale).await,
        Err(ObjectError::InvalidPart { number: 1 })
    );
    let done = proxy.complete_upload(&bucket(), &name, upload, options.clone()).await.unwrap();
    let again = proxy.complete_upload(&bucket(), &name, upload, options).await.unwrap();
    assert_eq!(done, again);
    let whole = get(proxy, "upload").await.unwrap();
    assert!(whole == [&first[..], &last[..]].concat());
    let end = append(proxy, "upload", AppendAt::Offset(done.size), &content(3, 5_000)).await;
    assert_eq!(end, done.size);
    let grown = get(proxy, "upload").await.unwrap();
    assert!(grown == [&first[..], &last[..], &content(3, 5_000)[..]].concat());
    assert_eq!(proxy.abort_upload(&bucket(), &name, upload).await, Err(ObjectError::NoSuchUpload));
    let open = proxy.create_upload(&bucket(), &name, UploadOptions::default()).await.unwrap();
    proxy.put_part(&bucket(), &name, open, 1, Body::of(&first)).await.unwrap();
    proxy.abort_upload(&bucket(), &name, open).await.unwrap();
    store.close();
    assert_sound(&dir);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_in_byte_order_and_see_what_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let proxy = store.proxy();
    proxy.create_bucket(&bucket(), None).await.unwrap();
    let small = content(1, 5000);
    for name in ["b/1", "a", "b/2", "b0", "c/x/y", "ä", "a\u{1}"] {
        put(proxy, name, &small).await;
    }
    let all = ListRequest { max: 100, ..ListRequest::default() };
    assert_eq!(keys(proxy, all.clone()).await, ["a", "a\u{1}", "b/1", "b/2", "b0", "c/x/y", "ä"]);
    let grouped = ListRequest { delimiter: Some("/".into()), ..all.clone() };
    assert_eq!(keys(proxy, grouped.clone()).await, ["a", "a\u{1}", "[b/]", "b0", "[c/]", "ä"]);
    let two = ListRequest { max: 2, after: Some("a\u{1}".into()), ..grouped };
    assert_eq!(keys(proxy, two.clone()).await, ["[b/]", "b0"]);
    let behind = ListRequest { after: Some("b/".into()), ..two };
    assert_eq!(keys(proxy, behind).await, ["b0", "[c/]"]);
    let page = proxy.list(&bucket(), ListRequest { max: 7, ..all.clone() }).await.unwrap();
    assert!(!page.truncated);
    let page = proxy.list(&bucket(), ListRequest { max: 6, ..all }).await.unwrap();
    assert!(page.truncated);
    store.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_bucket_goes_only_when_it_is_empty_also_against_racing_puts() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    for round in 0..20u64 {
        let proxy = store.proxy().clone();
        proxy.create_bucket(&bucket(), None).await.unwrap();
        let racing = {
            let proxy = proxy.clone();
            tokio::spawn(async move {
                let bytes = content(round, 4000);
                let name = key("racer");
                proxy.put(&bucket(), &name, PutOptions::default(), Body::of(&bytes)).await
            })
        };
        let gone = proxy.delete_bucket(&bucket()).await;
        let stored = racing.await.unwrap();
        match (gone, stored) {
            (Ok(()), Ok(_)) => panic!("round {round}: the bucket went with an object in it"),
            (Ok(()), Err(error)) => {
                assert!(matches!(error, ObjectError::NoSuchBucket | ObjectError::SlowDown));
            }
            (Err(error), stored) => {
                assert_eq!(error, ObjectError::BucketNotEmpty, "{stored:?}");
                proxy.delete(&bucket(), &key("racer"), Condition::default()).await.unwrap();
                proxy.delete_bucket(&bucket()).await.unwrap();
            }
        }
    }
    store.close();
    assert_sound(&dir);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_on_the_same_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&config(&dir)).unwrap();
    let second = Store::open(&config(&dir)).err().expect("the directory is in use");
    assert!(second.to_string().contains("in use"), "{second}");
    assert!(inspect(&config(&dir), true).is_err());
    store.close();
    Store::open(&config(&dir)).unwrap().close();
}

#[test]
fn a_store_is_not_made_with_volumes_of_a_size_that_is_none() {
    let dir = tempfile::tempdir().unwrap();
    for lv_bytes in [0, 32 * 1024 * 1024, 96 * 1024 * 1024] {
        let wrong = StoreConfig { lv_bytes: Some(lv_bytes), ..config(&dir) };
        let Err(error) = Store::open(&wrong) else { panic!("made with {lv_bytes}") };
        let text = error.to_string();
        assert!(text.starts_with("lv_bytes: ") && text.contains("a power of two"), "{text}");
    }
}

/// Waits until the scrub of a store says so.
async fn until(store: &Store, what: &str, is_so: impl Fn(&ScrubStatus) -> bool) {
    let begun = Instant::now();
    while !store.meta().scrub_now().is_some_and(|now| is_so(&now)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "never came: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_only_copy_is_found_and_kept() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let background = BackgroundConfig {
        bytes_per_s: 64 * 1024 * 1024,
        scrub_period: Some(Duration::from_secs(4)),
    };
    let store = Store::open(&config(&dir)).unwrap();
    store.proxy().create_bucket(&bucket(), None).await.unwrap();
    let bytes = content(1, 70_000);
    put(store.proxy(), "rotten", &bytes).await;
    put(store.proxy(), "sound", &content(2, 9_000_000)).await;
    store.start_background(&background);
    until(&store, "a round", |now| now.rounds > 0 && now.right >= 3).await;
    let now = store.meta().scrub_now().unwrap();
    assert_eq!((now.bad, now.unanswered), (0, 0));

    let file = dir.path().join(larder_roles::store::DATA_FILE);
    let data = std::fs::read(&file).unwrap();
    let at = data.windows(64).position(|window| window == &bytes[4096..4160]).unwrap();
    let device = std::fs::File::options().write(true).open(&file).unwrap();
    device.write_all_at(b"rotten!!", at as u64).unwrap();
    device.sync_all().unwrap();
    until(&store, "it is found", |now| now.bad == 1 && now.share.is_none()).await;
    let rounds = store.meta().scrub_now().unwrap().rounds;
    // By then the end of the round is written down.
    until(&store, "the next", |now| now.share.is_some() || now.rounds > rounds).await;
    assert_eq!(
        keys(store.proxy(), ListRequest { max: 10, ..ListRequest::default() }).await.len(),
        2,
        "it is there still"
    );
    assert!(matches!(get(store.proxy(), "rotten").await, Err(ObjectError::Damaged)));
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();

    let report = inspect(&config(&dir), false).unwrap().to_string();
    assert!(report.contains("1 damaged copies"), "{report}");
    let store = Store::open(&config(&dir)).unwrap();
    let hours = BackgroundConfig { scrub_period: Some(Duration::from_secs(36_000)), ..background };
    store.start_background(&hours);
    until(&store, "it goes on where it was", |now| now.rounds >= rounds && now.bad == 1).await;
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
}
