//! Copies.

use std::sync::atomic::Ordering;

use crate::client::{Ask, Server};

fn copy(server: &Server, from: &str, to: &str) -> Ask {
    server.ask("PUT", to).header("x-amz-copy-source", from)
}

async fn with_source() -> Server {
    let server = Server::bucket().await;
    let put = server.ask("PUT", "/bkt/src%20%2B").body("hello").header("content-type", "text/x");
    let put = put.header("x-amz-meta-a", "1").header("x-amz-tagging", "t=1");
    put.header("x-amz-website-redirect-location", "/r").send().await.expect(200);
    server
}

#[tokio::test]
async fn a_copy_has_the_sources_bytes_and_attributes() {
    let server = with_source().await;
    let done = copy(&server, "bkt/src%20%2B", "/bkt/k").send().await.expect(200);
    assert!(done.tag("ETag").unwrap().contains("5d41402abc4b2a76b9719d911017c592"));
    assert!(done.tag("LastModified").is_some());
    let got = server.get("/bkt/k").await.expect(200);
    assert_eq!(got.text(), "hello");
    assert_eq!((got.header("content-type"), got.header("x-amz-meta-a")), ("text/x", "1"));
    assert_eq!(got.header("x-amz-tagging-count"), "1");
    assert_eq!(got.header("x-amz-website-redirect-location"), "", "it belongs to the name");
    copy(&server, "/bkt/src%20%2B?versionId=null", "/bkt/k").send().await.expect(200);
    let gone = format!("/bkt/src%20%2B?versionId={}", "v".repeat(32));
    copy(&server, &gone, "/bkt/k").send().await.refused(404, "NoSuchVersion");
    copy(&server, "/bkt/none", "/bkt/k").send().await.refused(404, "NoSuchKey");
    copy(&server, "/none/k", "/bkt/k").send().await.refused(404, "NoSuchBucket");
}

#[tokio::test]
async fn attributes_may_be_replaced() {
    let server = with_source().await;
    let replace = copy(&server, "/bkt/src%20%2B", "/bkt/k")
        .header("x-amz-metadata-directive", "REPLACE")
        .header("x-amz-tagging-directive", "REPLACE")
        .header("x-amz-meta-b", "2")
        .header("content-type", "text/y");
    replace.send().await.expect(200);
    let got = server.get("/bkt/k").await.expect(200);
    assert_eq!((got.header("x-amz-meta-a"), got.header("x-amz-meta-b")), ("", "2"));
    assert_eq!(got.header("content-type"), "text/y");
    assert_eq!(got.header("x-amz-tagging-count"), "");
    let wrong = copy(&server, "/bkt/src%20%2B", "/bkt/k");
    let wrong = wrong.header("x-amz-metadata-directive", "MIX").send().await;
    wrong.refused(400, "InvalidArgument");
}

#[tokio::test]
async fn a_copy_onto_itself_must_change_something() {
    let server = with_source().await;
    let path = "/bkt/src%20%2B";
    copy(&server, path, path).send().await.refused(400, "InvalidRequest");
    let replace = copy(&server, path, path).header("x-amz-metadata-directive", "REPLACE");
    replace.header("x-amz-meta-new", "1").send().await.expect(200);
    let got = server.get(path).await.expect(200);
    assert_eq!((got.text().as_str(), got.header("x-amz-meta-new")), ("hello", "1"));
}

#[tokio::test]
async fn conditions_hold_for_source_and_target() {
    let server = with_source().await;
    let ask = |name: &'static str, value: &'static str| {
        copy(&server, "/bkt/src%20%2B", "/bkt/k").header(name, value).send()
    };
    let etag = "\"5d41402abc4b2a76b9719d911017c592\"";
    ask("x-amz-copy-source-if-match", "\"x\"").await.refused(412, "PreconditionFailed");
    ask("x-amz-copy-source-if-none-match", etag).await.refused(412, "PreconditionFailed");
    ask("x-amz-copy-source-if-match", etag).await.expect(200);
    ask("if-none-match", "*").await.refused(412, "PreconditionFailed");
    ask("if-match", etag).await.expect(200);
}

#[tokio::test]
async fn a_copy_starts_again_when_its_source_changes() {
    let server = with_source().await;
    server.store.change.store(3, Ordering::Relaxed);
    copy(&server, "/bkt/src%20%2B", "/bkt/k").send().await.expect(200);
    server.store.change.store(1000, Ordering::Relaxed);
    let refused = copy(&server, "/bkt/src%20%2B", "/bkt/k").send().await;
    refused.refused(409, "OperationAborted");
}

#[tokio::test]
async fn a_copy_may_have_another_checksum() {
    let server = with_source().await;
    let ask = copy(&server, "/bkt/src%20%2B", "/bkt/k").header("x-amz-checksum-algorithm", "CRC32");
    let done = ask.send().await.expect(200);
    assert_eq!(done.tag("ChecksumCRC32").as_deref(), Some("NhCmhg=="));
    let empty = server.put("/bkt/empty", "").await;
    empty.expect(200);
    copy(&server, "/bkt/empty", "/bkt/k").send().await.expect(200);
    assert!(server.get("/bkt/k").await.expect(200).body.is_empty());
}

#[tokio::test]
async fn a_large_object_is_copied_as_a_stream() {
    let server = Server::bucket().await;
    let data: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    server.put("/bkt/src", data.clone()).await.expect(200);
    copy(&server, "/bkt/src", "/bkt/k").send().await.expect(200);
    assert!(server.get("/bkt/k").await.expect(200).body == data);
}

#[tokio::test]
async fn a_store_that_can_links_a_copy_whose_digests_stay() {
    let server = with_source().await;
    server.store.links.store(true, Ordering::Relaxed);
    let puts = server.store.commits.load(Ordering::Relaxed);
    let to = copy(&server, "bkt/src%20%2B", "/bkt/k").header("x-amz-metadata-directive", "REPLACE");
    to.header("x-amz-meta-b", "2").send().await.expect(200);
    let got = server.get("/bkt/k").await.expect(200);
    assert_eq!((got.text(), got.header("x-amz-meta-b")), ("hello".into(), "2"));
    assert_eq!(server.store.commits.load(Ordering::Relaxed), puts, "nothing was put");
    let other = copy(&server, "bkt/src%20%2B", "/bkt/l").header("x-amz-checksum-algorithm", "SHA1");
    other.send().await.expect(200).tag("ChecksumSHA1").unwrap();
    assert_eq!(server.store.commits.load(Ordering::Relaxed), puts + 1, "its checksum is new");
    let onto = copy(&server, "bkt/src%20%2B", "/bkt/k").header("if-none-match", "*").send().await;
    onto.refused(412, "PreconditionFailed");
}

#[tokio::test]
async fn a_copy_shows_the_checksum_it_has_from_its_source() {
    let server = Server::bucket().await;
    let crc = "y/Q5Jg==";
    let put = server.ask("PUT", "/bkt/src").header("x-amz-checksum-crc32", crc).body("123456789");
    put.send().await.expect(200);
    let namespace = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
    for links in [false, true] {
        server.store.links.store(links, Ordering::Relaxed);
        let done = copy(&server, "/bkt/src", "/bkt/k").send().await.expect(200);
        assert_eq!(done.tag("ChecksumCRC32").as_deref(), Some(crc), "{}", done.text());
        assert_eq!(done.tag("ChecksumType").as_deref(), Some("FULL_OBJECT"));
        assert!(done.text().contains(&format!("<CopyObjectResult {namespace}>")));
    }
    let begun = server.ask("POST", "/bkt/k?uploads").send().await.expect(200);
    let path = format!("/bkt/k?partNumber=1&uploadId={}", begun.tag("UploadId").unwrap());
    let part = copy(&server, "/bkt/src", &path).send().await.expect(200);
    assert!(part.text().contains(&format!("<CopyPartResult {namespace}>")), "{}", part.text());
}

#[tokio::test]
async fn a_copy_has_the_storage_class_it_asks_for_and_not_its_sources() {
    let server = Server::bucket().await;
    let put = server.ask("PUT", "/bkt/src").header("x-amz-storage-class", "GLACIER_IR").body("x");
    put.send().await.expect(200);
    copy(&server, "/bkt/src", "/bkt/k").send().await.expect(200);
    assert_eq!(server.head("/bkt/k").await.header("x-amz-storage-class"), "");
    let class = |to: &str| {
        copy(&server, "/bkt/src", to).header("x-amz-storage-class", "STANDARD_IA").send()
    };
    class("/bkt/k").await.expect(200);
    assert_eq!(server.head("/bkt/k").await.header("x-amz-storage-class"), "STANDARD_IA");
    class("/bkt/src").await.expect(200);
    assert_eq!(server.head("/bkt/src").await.header("x-amz-storage-class"), "STANDARD_IA");
}

#[tokio::test]
async fn a_condition_of_a_copy_has_one_line() {
    let server = Server::bucket().await;
    for key in ["/bkt/src", "/bkt/k"] {
        server.put(key, "x").await.expect(200);
    }
    let twice = copy(&server, "/bkt/src", "/bkt/k").unsigned("if-none-match", "\"other\"");
    twice.unsigned("if-none-match", "*").send().await.refused(400, "InvalidRequest");
}

#[tokio::test]
async fn a_copy_names_bucket_and_key() {
    let server = Server::bucket().await;
    for source in ["bkt", "/bkt/", "/", "/bkt/%FF"] {
        copy(&server, source, "/bkt/k").send().await.refused(400, "InvalidArgument");
    }
    server.head("/bkt/k").await.expect(404);
}
