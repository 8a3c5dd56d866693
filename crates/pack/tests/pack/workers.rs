//! Several workers over one bucket.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_objects::{ListRequest, ObjectError, Objects, PutOptions};
use larder_pack::{PackConfig, PackError, Packer, Sharing, WorkerName};
use larder_types::{Condition, EtagList};
use object_store::ObjectStoreExt;

use crate::support::*;

/// A worker of a name that learns of the others only when it is told to.
pub fn shared(dir: &Path, name: &str) -> PackConfig {
    let sharing = Sharing {
        // Long: looks are made by hand.
        look_period: Duration::from_secs(3600),
        unseen_max: Duration::from_secs(2 * 3600),
        kept: Duration::from_secs(4 * 3600),
        ..Sharing::new(WorkerName::new(name).unwrap())
    };
    PackConfig { sharing: Some(sharing), ..config(dir) }
}

/// The same, that answers the others.
pub fn answering(dir: &Path, name: &str) -> PackConfig {
    let mut config = shared(dir, name);
    config.sharing.as_mut().unwrap().listen = Some("127.0.0.1:0".into());
    config
}

pub struct Worker {
    pub dir: tempfile::TempDir,
    pub store: Packer,
}

async fn worker(backend: &Arc<Faulty>, make: fn(&Path, &str) -> PackConfig, name: &str) -> Worker {
    let dir = tempfile::tempdir().unwrap();
    let store = try_open(make(dir.path(), name), backend).await.unwrap();
    Worker { dir, store }
}

/// Workers a, b, … with a bucket that all know.
pub async fn workers<const N: usize>(
    make: fn(&Path, &str) -> PackConfig,
) -> (Arc<Faulty>, [Worker; N]) {
    let backend = Arc::<Faulty>::default();
    let mut all = Vec::new();
    for name in ["a", "b", "c", "d"].into_iter().take(N) {
        all.push(worker(&backend, make, name).await);
    }
    all[0].store.create_bucket(&bucket("first"), None).await.unwrap();
    assert!(all[0].store.flush().await);
    let all: [Worker; N] = all.try_into().ok().unwrap();
    poll_all(&all).await;
    (backend, all)
}

async fn poll_all(all: &[Worker]) {
    for worker in all {
        worker.store.refresh().await.unwrap();
    }
}

pub async fn everybody_uploads(all: &[Worker]) {
    for worker in all {
        assert!(worker.store.flush().await);
    }
    poll_all(all).await;
}

async fn keys(store: &Packer) -> Vec<String> {
    list(store, &bucket("first")).await.into_iter().map(|e| e.key.as_str().to_owned()).collect()
}

pub fn missing<T: std::fmt::Debug>(got: Result<T, ObjectError>) {
    assert!(matches!(got, Err(ObjectError::NoSuchKey)), "{got:?}");
}

/// Waits until it holds.
pub async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(std::time::Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_one_worker_uploaded_all_have_once_and_the_last_put_counts() {
    let (_backend, all) = workers::<3>(shared).await;
    let [a, b, c] = &all;
    put(&a.store, "k", content(1, 1000)).await.unwrap();
    put(&b.store, "l", content(2, 70_000)).await.unwrap();
    put(&c.store, "large", content(3, 2 * MIB)).await.unwrap();
    missing(get(&b.store, "k").await);
    everybody_uploads(&all).await;
    for worker in &all {
        assert_eq!(keys(&worker.store).await, ["k", "l", "large"]);
        assert_eq!(get(&worker.store, "k").await.unwrap(), content(1, 1000));
        assert_eq!(
            get_range(&worker.store, "l", Some(65_000..66_000)).await.unwrap(),
            content(2, 70_000).slice(65_000..66_000)
        );
        assert_eq!(get(&worker.store, "large").await.unwrap(), content(3, 2 * MIB));
    }
    put(&b.store, "k", content(4, 500)).await.unwrap();
    assert_eq!(get(&b.store, "k").await.unwrap(), content(4, 500), "at once where it was put");
    everybody_uploads(&all).await;
    for worker in &all {
        assert_eq!(get(&worker.store, "k").await.unwrap(), content(4, 500));
        assert_eq!(keys(&worker.store).await, ["k", "l", "large"], "each once");
    }
}

#[tokio::test]
async fn a_delete_is_of_whatever_was_known_to_any_worker() {
    let (_backend, all) = workers::<3>(shared).await;
    let [a, b, c] = &all;
    put(&a.store, "k", content(1, 1000)).await.unwrap();
    everybody_uploads(&all).await;
    delete(&b.store, "k").await;
    missing(get(&b.store, "k").await);
    assert_eq!(get(&c.store, "k").await.unwrap(), content(1, 1000), "c does not know yet");
    everybody_uploads(&all).await;
    for worker in &all {
        missing(get(&worker.store, "k").await);
        assert!(keys(&worker.store).await.is_empty());
    }
    // A delete of what its worker does not know of yet counts all the same.
    put(&a.store, "k", content(2, 1000)).await.unwrap();
    delete(&c.store, "k").await;
    everybody_uploads(&all).await;
    for worker in &all {
        missing(get(&worker.store, "k").await);
    }
    put(&c.store, "k", content(3, 10)).await.unwrap();
    everybody_uploads(&all).await;
    for worker in &all {
        assert_eq!(get(&worker.store, "k").await.unwrap(), content(3, 10));
    }
}

#[tokio::test]
async fn buckets_are_those_of_all_workers() {
    let (_backend, all) = workers::<2>(shared).await;
    let [a, b] = &all;
    let (first, second) = (bucket("first"), bucket("second"));
    let refused = b.store.create_bucket(&first, None).await.unwrap_err();
    assert_eq!(refused, ObjectError::BucketExists);
    b.store.create_bucket(&second, Some("eu".into())).await.unwrap();
    everybody_uploads(&all).await;
    for worker in &all {
        let names: Vec<_> = worker.store.buckets().unwrap().into_iter().map(|r| r.name).collect();
        assert_eq!(names, [first.clone(), second.clone()]);
        assert_eq!(worker.store.bucket(&second).unwrap().location, Some("eu".into()));
    }
    put(&a.store, "k", content(1, 10)).await.unwrap();
    everybody_uploads(&all).await;
    let refused = b.store.delete_bucket(&first).await.unwrap_err();
    assert_eq!(refused, ObjectError::BucketNotEmpty, "a has an object in it");
    a.store.delete_bucket(&second).await.unwrap();
    everybody_uploads(&all).await;
    assert_eq!(b.store.bucket(&second).unwrap_err(), ObjectError::NoSuchBucket);
    b.store.create_bucket(&second, None).await.unwrap();
    assert_eq!(b.store.bucket(&second).unwrap().location, None, "it is another one");
    let hidden = bucket("larder.buckets");
    assert_eq!(a.store.bucket(&hidden).unwrap_err(), ObjectError::NoSuchBucket);
    assert!(matches!(
        a.store.create_bucket(&hidden, None).await,
        Err(ObjectError::Unsupported { .. })
    ));
    assert!(
        a.store
            .put(&hidden, &key("k"), PutOptions::default(), Sent::whole(Bytes::new()))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_bucket_that_was_removed_over_an_objects_head_comes_back_with_it() {
    let (_backend, all) = workers::<2>(shared).await;
    let [a, b] = &all;
    put(&a.store, "k", content(1, 10)).await.unwrap();
    b.store.delete_bucket(&bucket("first")).await.unwrap();
    everybody_uploads(&all).await;
    for worker in &all {
        let gone = get(&worker.store, "k").await.unwrap_err();
        assert_eq!(gone, ObjectError::NoSuchBucket);
    }
    a.store.run_maintenance().await.unwrap();
    everybody_uploads(&all).await;
    for worker in &all {
        assert_eq!(get(&worker.store, "k").await.unwrap(), content(1, 10));
    }
}

#[tokio::test]
async fn conditions_are_decided_on_what_is_known() {
    let (_backend, all) = workers::<2>(shared).await;
    let [a, b] = &all;
    let done = put(&a.store, "k", content(1, 10)).await.unwrap();
    everybody_uploads(&all).await;
    let first = bucket("first");
    let body = || Sent::whole(content(2, 10));
    let refused = b.store.put(&first, &key("k"), only_if_new(), body()).await.unwrap_err();
    assert_eq!(refused, ObjectError::PreconditionFailed);
    let matching = |etag: &str| Condition {
        if_match: Some(EtagList::Of(vec![etag.into()])),
        ..Condition::default()
    };
    let refused = b.store.delete(&first, &key("k"), matching("other")).await.unwrap_err();
    assert_eq!(refused, ObjectError::PreconditionFailed);
    let condition = matching(&done.etag.text());
    let options = PutOptions { condition: condition.clone(), ..PutOptions::default() };
    b.store.put(&first, &key("k"), options, body()).await.unwrap();
    let refused = b.store.delete(&first, &key("k"), condition).await.unwrap_err();
    assert_eq!(refused, ObjectError::PreconditionFailed, "it is b's by now");
    delete(&b.store, "k").await;
    b.store.put(&first, &key("k"), only_if_new(), body()).await.unwrap();
}

#[tokio::test]
async fn another_workers_object_is_tagged_and_copied_with_its_bytes() {
    let (_backend, all) = workers::<2>(shared).await;
    let [a, b] = &all;
    let first = bucket("first");
    let done = put(&a.store, "k", content(1, 100_000)).await.unwrap();
    everybody_uploads(&all).await;
    let tags = vec![("colour".to_owned(), "green".to_owned())];
    b.store.set_tags(&first, &key("k"), tags.clone()).await.unwrap();
    let opened = b.store.open(&first, &key("k")).await.unwrap();
    assert_eq!((opened.metax.etag, opened.metax.attributes.tags), (done.etag, tags));
    everybody_uploads(&all).await;
    assert_eq!(get(&a.store, "k").await.unwrap(), content(1, 100_000));
    // For the face to copy.
    let opened = a.store.open(&first, &key("k")).await.unwrap();
    let linked = a.store.link(&opened, &first, &key("l"), PutOptions::default()).await.unwrap();
    assert!(linked.is_none(), "the bytes are b's");
}

#[tokio::test]
async fn an_upload_belongs_to_the_worker_that_began_it() {
    let (_backend, all) = workers::<2>(shared).await;
    let [a, b] = &all;
    let first = bucket("first");
    let upload = a.store.create_upload(&first, &key("k"), Default::default()).await.unwrap();
    let body = || Sent::whole(content(1, 10));
    let refused = b.store.put_part(&first, &key("k"), upload, 1, body()).await.unwrap_err();
    assert!(matches!(refused, ObjectError::Unavailable { .. }), "{refused}");
    let done = a.store.put_part(&first, &key("k"), upload, 1, body()).await.unwrap();
    let parts =
        vec![larder_objects::NamedPart { number: 1, etag: done.etag.text(), checksum: None }];
    let options = larder_objects::CompleteOptions { parts, ..Default::default() };
    a.store.complete_upload(&first, &key("k"), upload, options).await.unwrap();
    everybody_uploads(&all).await;
    assert_eq!(get(&b.store, "k").await.unwrap(), content(1, 10));
    let opened = b.store.open(&first, &key("k")).await.unwrap();
    assert_eq!(b.store.part(&opened, 1).await.unwrap().metax.size, 10);
}

#[tokio::test]
async fn a_list_of_uploads_changes_nothing_in_a_bucket_that_only_others_use() {
    let (_backend, [a, b]) = workers::<2>(shared).await;
    let first = bucket("first");
    a.store.create_upload(&first, &key("k"), Default::default()).await.unwrap();
    let listed = |store| {
        Packer::list_uploads(store, &first, ListRequest { max: 10, ..ListRequest::default() }, None)
    };
    assert_eq!(listed(&a.store).await.unwrap().items.len(), 1);
    let before = (count(&b.store.counters().changes), b.store.waiting());
    assert!(listed(&b.store).await.unwrap().items.is_empty());
    assert_eq!((count(&b.store.counters().changes), b.store.waiting()), before);
    let request = ListRequest { max: 10, ..ListRequest::default() };
    let refused = b.store.list_uploads(&bucket("none"), request, None).await.unwrap_err();
    assert_eq!(refused, ObjectError::NoSuchBucket);
}

#[tokio::test]
async fn lists_are_merged_page_by_page_with_groups() {
    let (_backend, all) = workers::<3>(shared).await;
    let name = |number: usize| format!("d{}/k{number:02}", number % 3);
    for number in 0..60 {
        put(&all[number % 3].store, &name(number), content(number as u64, 10)).await.unwrap();
    }
    everybody_uploads(&all).await;
    let mut expected = Vec::new();
    for number in 0..60 {
        // Replaced, deleted by another, or left alone.
        let (name, other) = (name(number), &all[(number + 1) % 3].store);
        match number % 4 {
            0 => drop(put(other, &name, content(7, 20)).await.unwrap()),
            1 => delete(other, &name).await,
            _ => {}
        }
        if number % 4 != 1 {
            expected.push((name, if number % 4 == 0 { 20 } else { 10 }));
        }
    }
    everybody_uploads(&all).await;
    expected.sort();
    for worker in &all {
        let found = list(&worker.store, &bucket("first")).await;
        let found: Vec<_> =
            found.into_iter().map(|e| (e.key.as_str().to_owned(), e.metax.size)).collect();
        assert_eq!(found, expected);
        let (mut paged, mut after) = (Vec::new(), None);
        loop {
            let request = ListRequest { max: 7, after: after.clone(), ..ListRequest::default() };
            let page = worker.store.list(&bucket("first"), request).await.unwrap();
            for item in page.items {
                let larder_objects::ListItem::Entry(entry) = item else { panic!("a group") };
                after = Some(entry.key.as_str().to_owned());
                paged.push(entry.key.as_str().to_owned());
            }
            if !page.truncated {
                break;
            }
        }
        assert_eq!(paged, expected.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
        let delimiter = Some("/".to_owned());
        let request = ListRequest { max: 100, delimiter, ..ListRequest::default() };
        let page = worker.store.list(&bucket("first"), request).await.unwrap();
        let groups = ["d0/", "d1/", "d2/"].map(|g| larder_objects::ListItem::Group(g.to_owned()));
        assert_eq!(page.items, groups);
    }
}

#[tokio::test]
async fn what_is_not_uploaded_is_told_and_read_from_its_worker_or_not_at_all() {
    let (_backend, [a, b]) = workers::<2>(answering).await;
    put(&a.store, "k", content(1, 1000)).await.unwrap();
    a.store.flush().await;
    put(&a.store, "k", content(2, 200_000)).await.unwrap();
    until("b hears of it", async || {
        get(&b.store, "k").await.is_ok_and(|bytes| bytes == content(2, 200_000))
    })
    .await;
    assert_eq!(keys(&b.store).await, ["k"]);
    let status = b.store.workers().unwrap();
    assert!(status.others[0].not_uploaded > 0, "{status:?}");
    let dir = a.dir;
    drop(a.store);
    let refused = get(&b.store, "k").await.unwrap_err();
    assert!(matches!(refused, ObjectError::Unavailable { .. }), "not the one before: {refused}");
    assert_eq!(keys(&b.store).await, ["k"]);
    b.store.refresh().await.unwrap();
    drop(dir);
}

#[tokio::test]
async fn a_restarted_workers_changes_are_still_received() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    put(&a.store, "k", content(1, 1000)).await.unwrap();
    until("b hears of it", async || get(&b.store, "k").await.is_ok()).await;
    a.store.close();
    let copy = snapshot(a.dir.path());
    std::fs::copy(a.dir.path().join("name"), copy.path().join("name")).unwrap();
    drop(a);
    let a = try_open(answering(copy.path(), "a"), &backend).await.unwrap();
    put(&a, "l", content(2, 1000)).await.unwrap();
    b.store.refresh().await.unwrap();
    until("b hears of it again", async || get(&b.store, "l").await.is_ok()).await;
    assert_eq!(get(&b.store, "k").await.unwrap(), content(1, 1000));
}

#[tokio::test]
async fn what_a_worker_tells_of_itself_stands_whatever_comes_late() {
    let (backend, [a, b]) = workers::<2>(answering).await;
    let earlier = backend.bytes("announced/a").await;
    let Worker { dir, store } = a;
    store.close();
    drop(store);
    let store = try_open(answering(dir.path(), "a"), &backend).await.unwrap();
    let reported = backend.bytes("announced/a").await;
    assert_ne!(reported, earlier, "another port");
    backend.inner.put(&"announced/a".into(), earlier.into()).await.unwrap();
    b.store.refresh().await.unwrap();
    store.refresh().await.unwrap();
    assert_eq!(backend.bytes("announced/a").await, reported);
    backend.inner.delete(&"announced/a".into()).await.unwrap();
    store.refresh().await.unwrap();
    assert_eq!(backend.bytes("announced/a").await, reported);
    b.store.refresh().await.unwrap();
    put(&store, "k", content(1, 1000)).await.unwrap();
    until("it is heard of", async || get(&b.store, "k").await.is_ok()).await;
}

#[tokio::test]
async fn a_lost_worker_is_taken_over_and_what_it_had_not_uploaded_is_written_down() {
    let (backend, [a, b, c]) = workers::<3>(answering).await;
    put(&a.store, "kept", content(1, 1000)).await.unwrap();
    a.store.flush().await;
    put(&a.store, "lost", content(2, 1000)).await.unwrap();
    until("b hears of it", async || get(&b.store, "lost").await.is_ok()).await;
    until("c hears of it", async || get(&c.store, "lost").await.is_ok()).await;
    b.store.close();
    drop(a);
    let dir = tempfile::tempdir().unwrap();
    let refused = try_open(answering(dir.path(), "a"), &backend).await.err().unwrap();
    assert!(matches!(refused, PackError::Owned { .. }), "{refused}");
    let config = PackConfig { take_over: true, ..answering(dir.path(), "a") };
    let heir = try_open(config, &backend).await.unwrap();
    assert_eq!(get(&heir, "kept").await.unwrap(), content(1, 1000));
    missing(get(&heir, "lost").await);
    c.store.refresh().await.unwrap();
    missing(get(&c.store, "lost").await);
    // One that did not run meanwhile.
    let dir = b.dir;
    drop(b.store);
    let store = try_open(answering(dir.path(), "b"), &backend).await.unwrap();
    let b = Worker { dir, store };
    missing(get(&b.store, "lost").await);
    assert_eq!(get(&b.store, "kept").await.unwrap(), content(1, 1000));
    for dir in [b.dir.path(), c.dir.path()] {
        let report = std::fs::read_to_string(dir.join("lost-a.txt")).unwrap();
        assert!(report.contains("lost first/lost: 1000 bytes"), "{report}");
        assert!(!report.contains("first/kept"), "{report}");
    }
    // Numbers of blobs begin anew with the heir.
    put(&heir, "new", content(3, 1000)).await.unwrap();
    heir.flush().await;
    b.store.refresh().await.unwrap();
    assert_eq!(get(&b.store, "new").await.unwrap(), content(3, 1000));
}

#[tokio::test]
async fn a_worker_rediscovers_the_others_after_a_restart_and_without_its_directory() {
    let (backend, [a, b]) = workers::<2>(shared).await;
    for number in 0..20 {
        put(&a.store, &format!("k{number:02}"), content(number, 1000)).await.unwrap();
    }
    a.store.flush().await;
    b.store.refresh().await.unwrap();
    let before = keys(&b.store).await;
    assert_eq!(before.len(), 20);
    b.store.close();
    let dir = b.dir;
    drop(b.store);
    let b = try_open(shared(dir.path(), "b"), &backend).await.unwrap();
    assert_eq!(keys(&b).await, before);
    drop(b);
    std::fs::remove_dir_all(dir.path().join("peers")).unwrap();
    let b = try_open(shared(dir.path(), "b"), &backend).await.unwrap();
    assert_eq!(keys(&b).await, before);
    drop(b);
    let new = tempfile::tempdir().unwrap();
    let c = try_open(shared(new.path(), "c"), &backend).await.unwrap();
    assert_eq!(keys(&c).await, before, "a new one knows all before it serves");
    assert_eq!(get(&c, "k07").await.unwrap(), content(7, 1000));
}

#[tokio::test]
async fn names_and_places_do_not_mix() {
    let (backend, [a]) = workers::<1>(shared).await;
    let (other, alone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let refused = try_open(shared(other.path(), "a"), &backend).await.err().unwrap();
    assert!(matches!(refused, PackError::Owned { .. }), "another directory: {refused}");
    let refused = try_open(config(alone.path()), &backend).await.err().unwrap();
    assert!(matches!(refused, PackError::Config { .. }), "without a name: {refused}");
    drop(a.store);
    let refused = try_open(shared(a.dir.path(), "b"), &backend).await.err().unwrap();
    assert!(matches!(refused, PackError::Config { .. }), "another name: {refused}");
    // A directory keeps its name, also if it is not said again.
    let again = PackConfig { sharing: None, ..shared(a.dir.path(), "a") };
    assert_eq!(try_open(again, &backend).await.unwrap().workers().unwrap().name, "a");

    let (dir, backend, lonely) = made().await;
    put(&lonely, "k", content(1, 100)).await.unwrap();
    lonely.flush().await;
    let refused = try_open(shared(other.path(), "b"), &backend).await.err().unwrap();
    assert!(matches!(refused, PackError::Config { .. }), "beside one without: {refused}");
    drop(lonely);
    // It gets a name, and stays where it is.
    let first = try_open(shared(dir.path(), "first"), &backend).await.unwrap();
    first.flush().await;
    let new = tempfile::tempdir().unwrap();
    let second = try_open(shared(new.path(), "second"), &backend).await.unwrap();
    assert_eq!(get(&second, "k").await.unwrap(), content(1, 100));
    delete(&second, "k").await;
    second.flush().await;
    first.refresh().await.unwrap();
    missing(get(&first, "k").await);
    assert!(backend.names("blobs").await.len() > 1, "where it was");
    assert!(!backend.names("workers/second/blobs").await.is_empty());
}

#[tokio::test]
async fn who_has_not_seen_the_bucket_for_long_answers_nobody() {
    let backend = Arc::<Faulty>::default();
    let dir = tempfile::tempdir().unwrap();
    let mut config = shared(dir.path(), "a");
    let sharing = config.sharing.as_mut().unwrap();
    sharing.unseen_max = Duration::from_millis(200);
    sharing.look_period = Duration::from_millis(100);
    sharing.kept = Duration::from_secs(3600);
    let store = try_open(config, &backend).await.unwrap();
    let gate = backend.clone();
    let made =
        |result: Result<_, ObjectError>| matches!(result, Ok(_) | Err(ObjectError::BucketExists));
    until("it answers", async || made(store.create_bucket(&bucket("first"), None).await)).await;
    let closed = gate.gate.write().await;
    until("it answers nobody", async || {
        let refused = get(&store, "k").await.unwrap_err();
        matches!(refused, ObjectError::Unavailable { .. })
    })
    .await;
    drop(closed);
    until("it answers again", async || {
        matches!(get(&store, "k").await, Err(ObjectError::NoSuchKey))
    })
    .await;
}
