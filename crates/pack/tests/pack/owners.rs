//! Processes that believe that they own one backend: what only the owner may acknowledge.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use larder_objects::{
    BodyDigest, BodyError, ListRequest, ObjectError, Objects, PutBody, PutOptions,
};
use larder_pack::limits::{OWNER_PERIOD, OWNER_UNSEEN_MAX};
use larder_pack::{Acknowledge, PackConfig};
use object_store::ObjectStoreExt;
use object_store::path::Path as Name;
use tokio::sync::oneshot;

use crate::support::{
    Faulty, MIB, Sent, bucket, config, content, count, get, key, made, put, put_and_flush,
    successor_of, try_open,
};
use crate::workers::shared;

/// A store that answers once a change is uploaded, which is at once.
fn sure(dir: &Path) -> PackConfig {
    PackConfig {
        flush_timeout: Duration::from_millis(10),
        acknowledge: Acknowledge::Uploaded,
        ..config(dir)
    }
}

fn spooled(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("spool")).unwrap().count()
}

#[tokio::test]
async fn a_blob_that_arrives_after_a_take_over_is_not_acknowledged_and_stays_in_the_spool() {
    let (dir, backend) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    let store = Arc::new(try_open(sure(dir.path()), &backend).await.unwrap());
    store.create_bucket(&bucket("first"), None).await.unwrap();
    let held = backend.puts.write().await;
    let putting = store.clone();
    let putting = tokio::spawn(async move { put(&putting, "late", content(1, 1000)).await });
    while backend.puts_waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let (_dir, heir) = successor_of(&backend).await;
    drop(held);
    let answer = putting.await.unwrap();
    assert!(matches!(answer, Err(ObjectError::Unavailable { .. })), "{answer:?}");
    assert_eq!(backend.names("blobs").await.len(), 2, "it came all the same");
    let fatal = store.fatal().borrow().clone().unwrap();
    assert!(fatal.contains("has taken over"), "{fatal}");
    assert_eq!(get(&heir, "late").await, Err(ObjectError::NoSuchKey));
    drop(store);
    assert_eq!(spooled(dir.path()), 1, "the only copy that counts");
}

/// A body whose last piece comes when it is told.
struct Slow {
    body: Sent,
    asked: Option<oneshot::Sender<()>>,
    released: Option<oneshot::Receiver<()>>,
}

impl PutBody for Slow {
    fn len(&self) -> Option<u64> {
        self.body.len()
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        if let (Some(asked), Some(released)) = (self.asked.take(), self.released.take()) {
            asked.send(()).unwrap();
            released.await.unwrap();
        }
        self.body.next().await
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        self.body.finish()
    }
}

#[tokio::test]
async fn a_large_object_that_arrives_after_a_take_over_is_not_acknowledged() {
    let (_dir, backend, store) = made().await;
    assert!(store.flush().await);
    let store = Arc::new(store);
    let ((asked, waits), (tell, released)) = (oneshot::channel(), oneshot::channel());
    let body = Sent::whole(content(1, 2 * MIB));
    let body = Slow { body, asked: Some(asked), released: Some(released) };
    let putting = store.clone();
    let putting = tokio::spawn(async move {
        putting.put(&bucket("first"), &key("large"), PutOptions::default(), body).await
    });
    waits.await.unwrap();
    let (_dir, heir) = successor_of(&backend).await;
    tell.send(()).unwrap();
    let answer = putting.await.unwrap();
    let Err(ObjectError::Unavailable { reason }) = &answer else { panic!("{answer:?}") };
    assert!(reason.contains("has taken over"), "{reason}");
    assert_eq!(get(&heir, "large").await, Err(ObjectError::NoSuchKey));
}

/// Time passes for what waits for it, and for nothing else.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn an_idle_worker_that_was_superseded_answers_nothing_any_more() {
    let (_dir, backend, store) = made().await;
    put_and_flush(&store, "k", 1).await;
    let opened = store.open(&bucket("first"), &key("k")).await.unwrap();
    let (_dir, heir) = successor_of(&backend).await;
    put(&heir, "k", content(2, 1000)).await.unwrap();
    pass(OWNER_PERIOD).await;
    let fatal = async { store.fatal().wait_for(Option::is_some).await.unwrap().clone() };
    let fatal = tokio::time::timeout(Duration::from_secs(60), fatal).await;
    let fatal = fatal.expect("it asks though it is idle").unwrap();
    assert!(fatal.contains("worker 2 has taken over"), "{fatal}");
    assert!(store.owner().superseded);
    let of = bucket("first");
    let refused = [
        ("read", get(&store, "k").await.err()),
        ("read on", store.read(&opened, 0..10).await.err()),
        ("put", put(&store, "k", content(3, 1000)).await.err()),
        ("delete", store.delete(&of, &key("k"), Default::default()).await.err()),
        ("list", store.list(&of, ListRequest::default()).await.err()),
        ("bucket", store.bucket(&of).err()),
        ("buckets", store.buckets().err()),
    ];
    for (what, refused) in refused {
        let why = ObjectError::Unavailable { reason: fatal.clone() };
        assert_eq!(refused, Some(why), "{what}");
    }
    assert_eq!(get(&heir, "k").await.unwrap(), content(2, 1000));
}

#[tokio::test]
async fn a_worker_answers_while_the_backend_does_not() {
    let (_dir, backend, store) = made().await;
    put(&store, "k", content(1, 1000)).await.unwrap();
    backend.silent.store(true, Ordering::Relaxed);
    let asked = count(&store.counters().owner_questions);
    pass(OWNER_UNSEEN_MAX + OWNER_PERIOD).await;
    assert_eq!(get(&store, "k").await.unwrap(), content(1, 1000), "it waits in the directory");
    put(&store, "k", content(2, 1000)).await.unwrap();
    assert!(count(&store.counters().owner_questions) > asked);
    assert!(store.owner().unseen > OWNER_UNSEEN_MAX, "whoever operates it can see that");
    backend.silent.store(false, Ordering::Relaxed);
    let (_dir, _heir) = successor_of(&backend).await;
    pass(OWNER_PERIOD).await;
    let fatal = async { store.fatal().wait_for(Option::is_some).await.unwrap().clone() };
    tokio::time::timeout(Duration::from_secs(60), fatal).await.expect("it asks again");
    assert!(matches!(get(&store, "k").await, Err(ObjectError::Unavailable { .. })));
}

#[tokio::test]
async fn a_first_start_that_is_refused_once_it_has_claimed_owns_nothing() {
    let (named, elsewhere) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
    drop(try_open(shared(named.path(), "a"), &elsewhere).await.unwrap());
    let announced = Name::from("announced/a");
    let word = elsewhere.bytes(announced.as_ref()).await;
    let backend = Arc::<Faulty>::default();
    // A worker with a name begins to share the bucket meanwhile.
    *backend.beside_claim.lock() = Some((announced.clone(), word));
    let refused = tempfile::tempdir().unwrap();
    let error = try_open(config(refused.path()), &backend).await.err().unwrap();
    assert!(error.to_string().contains("--worker NAME"), "{error}");
    assert_eq!(backend.names("claims").await.len(), 1, "it had claimed the backend");

    // And goes again: there is no owner who could be in the way.
    backend.inner.delete(&announced).await.unwrap();
    let next = tempfile::tempdir().unwrap();
    let next = try_open(config(next.path()), &backend).await;
    assert!(next.is_ok(), "without a take-over: {}", next.err().unwrap());
}
