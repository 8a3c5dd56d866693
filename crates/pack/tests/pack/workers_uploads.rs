//! Requests of uploads that another worker has begun.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use larder_objects::{
    CompleteOptions, ListItem, ListRequest, NamedPart, ObjectError, Objects, UploadOptions,
};
use larder_pack::limits::HANDED_ON_TO_ONE_MAX;
use larder_pack::{HandedBody, Packer};
use larder_types::UploadId;

use crate::support::*;
use crate::workers::{answering, everybody_uploads, shared, workers};

async fn begin(store: &Packer) -> UploadId {
    store.create_upload(&bucket("first"), &key("k"), UploadOptions::default()).await.unwrap()
}

fn request(method: Method, body: &'static str) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri("/first/k?partNumber=1&uploadId=x");
    request.header("host", "a.example").body(Full::from(body)).unwrap()
}

fn text(text: String) -> HandedBody {
    HandedBody::new(Full::from(text).map_err(|never| match never {}))
}

#[tokio::test]
async fn a_request_comes_to_the_worker_that_began_the_upload_as_it_was() {
    let (_backend, [a, b]) = workers::<2>(answering).await;
    let upload = begin(&a.store).await;
    assert!(b.store.is_of_another(upload) && !a.store.is_of_another(upload));
    let own = a.store.hand_on(upload, request(Method::PUT, "part")).await;
    assert!(matches!(own, Err(ObjectError::NoSuchUpload)), "{own:?}");
    let early = b.store.hand_on(upload, request(Method::PUT, "part")).await;
    assert!(matches!(early, Err(ObjectError::Unavailable { .. })), "it has no face yet: {early:?}");

    a.store.answer_handed_on(Box::new(|request| {
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let names = parts.headers.keys().filter(|name| name.as_str().starts_with("x-larder"));
            let (extra, host) = (names.count(), &parts.headers["host"]);
            Response::new(text(format!("{} {} {host:?} {extra} {body:?}", parts.method, parts.uri)))
        }
        .boxed()
    }));
    let answer = b.store.hand_on(upload, request(Method::PUT, "part")).await.unwrap();
    let answer = answer.into_body().collect().await.unwrap().to_bytes();
    let seen = r#"PUT /first/k?partNumber=1&uploadId=x "a.example" 0 b"part""#;
    assert_eq!(answer, seen);
    assert_eq!(b.store.workers().unwrap().handed_on, 1);
}

#[tokio::test]
async fn what_was_completed_through_a_worker_is_there_with_the_answer() {
    let (_backend, [a, b]) = workers::<2>(answering).await;
    let upload = begin(&a.store).await;
    let a = Arc::new(a.store);
    let store: Weak<Packer> = Arc::downgrade(&a);
    a.answer_handed_on(Box::new(move |_request| {
        let store = store.upgrade().unwrap();
        async move {
            put(&store, "k", content(1, 5000)).await.unwrap();
            Response::new(text(String::new()))
        }
        .boxed()
    }));
    for _ in 0..20 {
        b.store.hand_on(upload, request(Method::POST, "")).await.unwrap();
        let (at_a, at_b) = (open_version(&a).await, open_version(&b.store).await);
        assert_eq!(at_a, at_b);
    }
}

async fn open_version(store: &Packer) -> larder_types::OpId {
    store.open(&bucket("first"), &key("k")).await.unwrap().op
}

#[tokio::test]
async fn uploads_of_all_workers_are_listed_once_page_by_page() {
    let (_backend, all) = workers::<2>(shared).await;
    let [a, b] = &all;
    let mut begun = [begin(&a.store).await, begin(&b.store).await];
    begun.sort();
    let over = begin(&a.store).await;
    everybody_uploads(&all).await;
    a.store.abort_upload(&bucket("first"), &key("k"), over).await.unwrap();
    everybody_uploads(&all).await;
    for worker in &all {
        let mut found: Vec<UploadId> = Vec::new();
        loop {
            let last = found.last().copied();
            let after = last.map(|_| "k".to_owned());
            let request = ListRequest { max: 1, after, ..ListRequest::default() };
            let page = worker.store.list_uploads(&bucket("first"), request, last).await.unwrap();
            let Some(ListItem::Entry(row)) = page.items.into_iter().next() else { break };
            found.push(row.upload);
        }
        assert_eq!(found, begun);
    }
}

#[tokio::test]
async fn an_upload_ends_with_its_bucket_whoever_removed_that() {
    let (_backend, all) = workers::<2>(shared).await;
    let [a, b] = &all;
    let (first, k) = (bucket("first"), key("k"));
    let upload = begin(&b.store).await;
    let part = |seed| Sent::whole(content(seed, 1000));
    let sent = b.store.put_part(&first, &k, upload, 1, part(1)).await.unwrap();
    a.store.delete_bucket(&first).await.unwrap();
    everybody_uploads(&all).await;
    let refused = b.store.put_part(&first, &k, upload, 2, part(2)).await;
    assert_eq!(refused.unwrap_err(), ObjectError::NoSuchBucket);
    let named = NamedPart { number: 1, etag: sent.etag.text(), checksum: None };
    let options = CompleteOptions { parts: vec![named], ..CompleteOptions::default() };
    let refused = b.store.complete_upload(&first, &k, upload, options).await;
    assert_eq!(refused.unwrap_err(), ObjectError::NoSuchBucket);
    let refused = b.store.list_parts(&first, &k, upload, 0, 10).await;
    assert_eq!(refused.unwrap_err(), ObjectError::NoSuchBucket);
    everybody_uploads(&all).await;
    for worker in &all {
        assert!(worker.store.bucket(&first).is_err(), "it did not come back");
    }
    b.store.abort_upload(&first, &k, upload).await.unwrap();
}

#[tokio::test]
async fn an_unresponsive_worker_is_named() {
    let (_backend, [a, b]) = workers::<2>(shared).await;
    let upload = begin(&a.store).await;
    let refused = b.store.hand_on(upload, request(Method::PUT, "part")).await;
    let Err(ObjectError::Unavailable { reason }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("worker a"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_the_clear_is_not_answered() {
    let (_backend, [a]) = workers::<1>(answering).await;
    a.store.answer_handed_on(Box::new(|_| panic!("nobody has shown a certificate")));
    let address = a.store.workers().unwrap().address.unwrap();
    let mut stream = TcpStream::connect(&address).unwrap();
    let head = "PUT /first/k?uploadId=x HTTP/1.1\r\nhost: a\r\nx-larder-handed-on: 1\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // It may also be reset, as some of the request was not read.
    let _reset = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

/// More at once than a worker hands on: the rest waits, and all are answered.
#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_are_handed_on_at_once_are_all_answered() {
    let (_backend, [a, b]) = workers::<2>(answering).await;
    let upload = begin(&a.store).await;
    let (under_way, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (under_way, most.clone());
    a.store.answer_handed_on(Box::new(move |request| {
        let (under_way, most) = counts.clone();
        async move {
            most.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let body = request.into_body().collect().await.unwrap().to_bytes();
            under_way.fetch_sub(1, Ordering::SeqCst);
            Response::new(text(format!("{} bytes", body.len())))
        }
        .boxed()
    }));
    let all = (0..2 * HANDED_ON_TO_ONE_MAX).map(async |_| {
        let body = Full::from(vec![1; 1024 * 1024]);
        let request =
            Request::builder().method(Method::PUT).uri("/first/k?partNumber=1&uploadId=x");
        let answer = b.store.hand_on(upload, request.body(body).unwrap()).await.unwrap();
        answer.into_body().collect().await.unwrap().to_bytes()
    });
    for answer in futures::future::join_all(all).await {
        assert_eq!(answer, "1048576 bytes");
    }
    assert!(most.load(Ordering::SeqCst) <= HANDED_ON_TO_ONE_MAX);
    assert_eq!(b.store.workers().unwrap().handed_on, 2 * HANDED_ON_TO_ONE_MAX as u64);
}
