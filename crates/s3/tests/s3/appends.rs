//! Appends: at an offset, and as records.

use std::sync::atomic::Ordering;

use crate::client::{Answer, Server};

const OFFSET: &str = "x-amz-write-offset-bytes";
const RECORD: &str = "x-larder-append";

async fn append(server: &Server, offset: &str, body: &'static str) -> Answer {
    server.ask("PUT", "/bkt/k").header(OFFSET, offset).body(body).send().await
}

async fn record(server: &Server, body: &'static str) -> Answer {
    server.ask("PUT", "/bkt/k").header(RECORD, "record").body(body).send().await
}

#[tokio::test]
async fn an_append_at_the_objects_size_is_answered_the_new_size() {
    let server = Server::bucket().await;
    let made = append(&server, "0", "hello").await.expect(200);
    assert_eq!(made.header("x-amz-object-size"), "5");
    let grown = append(&server, "5", ", world").await.expect(200);
    assert_eq!(grown.header("x-amz-object-size"), "12");
    assert_eq!(grown.header("x-larder-offset"), "", "it was given");
    let got = server.get("/bkt/k").await.expect(200);
    assert_eq!((got.text().as_str(), got.header("etag")), ("hello, world", grown.header("etag")));
    assert!(got.header("etag").ends_with("-2\""), "{}", got.header("etag"));
}

#[tokio::test]
async fn another_offset_is_refused_with_the_size_in_the_message() {
    let server = Server::bucket().await;
    append(&server, "1", "x").await.refused(400, "InvalidWriteOffset");
    append(&server, "0", "hello").await.expect(200);
    for offset in ["0", "4", "6"] {
        let refused = append(&server, offset, "x").await.refused(400, "InvalidWriteOffset");
        let message = refused.tag("Message").unwrap();
        assert!(message.contains(OFFSET) && message.contains("which is 5"), "{message}");
    }
    append(&server, "-1", "x").await.refused(400, "InvalidArgument");
    assert_eq!(server.get("/bkt/k").await.text(), "hello");
}

#[tokio::test]
async fn a_record_is_answered_where_it_begins() {
    let server = Server::bucket().await;
    for (body, offset, size) in [("one", "0", "3"), ("three", "3", "8"), ("six", "8", "11")] {
        let answer = record(&server, body).await.expect(200);
        assert_eq!(answer.header("x-larder-offset"), offset);
        assert_eq!(answer.header("x-amz-object-size"), size);
    }
    assert_eq!(server.get("/bkt/k").await.text(), "onethreesix");
}

#[tokio::test]
async fn what_does_not_go_with_an_append_is_refused() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    let ask = || server.ask("PUT", "/bkt/k").body("y");
    let both = ask().header(RECORD, "record").header(OFFSET, "1").send().await;
    both.refused(400, "InvalidRequest");
    let other = ask().header(RECORD, "line").send().await.refused(400, "InvalidArgument");
    assert!(other.tag("Message").unwrap().contains(RECORD));
    let metadata = ask().header(OFFSET, "1").header("x-amz-meta-a", "b").send().await;
    metadata.refused(400, "InvalidRequest");
    append(&server, "1", "").await.refused(400, "InvalidRequest");
    record(&server, "").await.refused(400, "InvalidRequest");
    let unsigned = ask().unsigned(RECORD, "record").send().await;
    unsigned.refused(403, "AccessDenied");
    assert_eq!(server.get("/bkt/k").await.text(), "x");
}

#[tokio::test]
async fn a_record_that_is_too_large_is_refused_with_the_remedy() {
    let server = Server::bucket().await;
    let body = vec![0; larder_types::limits::RECORD_BYTES_MAX as usize + 1];
    let answer = server.ask("PUT", "/bkt/k").header(RECORD, "record").body(body).send().await;
    let message = answer.refused(400, "EntityTooLarge").tag("Message").unwrap();
    assert!(message.contains(RECORD) && message.contains(OFFSET), "{message}");
}

#[tokio::test]
async fn the_checksum_of_all_bytes_is_kept_whatever_the_client_sends() {
    let server = Server::bucket().await;
    // CRC-32 of "12345" and of "123456789"; CRC-32C of "6789".
    let put = server.ask("PUT", "/bkt/k").header("x-amz-checksum-crc32", "y/U6HA==");
    put.body("12345").send().await.expect(200);
    append(&server, "5", "67").await.expect(200);
    let bad = server.ask("PUT", "/bkt/k").header(OFFSET, "7");
    bad.header("x-amz-checksum-crc32c", "AAAAAA==")
        .body("89")
        .send()
        .await
        .refused(400, "BadDigest");
    record(&server, "89").await.expect(200);
    let head = server.ask("HEAD", "/bkt/k").header("x-amz-checksum-mode", "ENABLED").send().await;
    assert_eq!(head.header("x-amz-checksum-crc32"), "y/Q5Jg==");
    assert_eq!(head.header("x-amz-checksum-type"), "FULL_OBJECT");
}

#[tokio::test]
async fn a_store_without_appends_refuses_them() {
    let server = Server::bucket().await;
    server.store.no_appends.store(true, Ordering::Relaxed);
    append(&server, "0", "x").await.refused(501, "NotImplemented");
    let refused = record(&server, "x").await.refused(501, "NotImplemented");
    assert!(refused.tag("Message").unwrap().contains(RECORD));
    server.get("/bkt/k").await.refused(404, "NoSuchKey");
}
