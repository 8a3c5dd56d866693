//! Requests that are spelled otherwise than they were signed: they do what was signed.

use crate::client::{Form, Server, Sign};

const PRESIGNED: Sign = Sign::Query { expires_s: 100 };

/// The address with a part of it spelled in another way.
fn spelled(from: &'static str, to: &'static str) -> impl FnOnce(&str) -> String {
    move |address| {
        assert!(address.contains(from), "{address} has {from}");
        address.replacen(from, to, 1)
    }
}

#[tokio::test]
async fn a_presigned_copy_stays_a_copy() {
    let server = Server::bucket().await;
    server.put("/bkt/src", "source").await.expect(200);
    for (from, to) in
        [("X-Amz-Signature=", "X-Amz-Signatur%65="), ("x-amz-copy-source=", "%78-amz-copy-source=")]
    {
        let copy = server.ask("PUT", "/bkt/dst?x-amz-copy-source=%2Fbkt%2Fsrc").sign(PRESIGNED);
        copy.body("other").send_spelled(spelled(from, to)).await.expect(200);
        assert_eq!(server.get("/bkt/dst").await.text(), "source", "{to}");
    }
}

#[tokio::test]
async fn presigned_metadata_is_kept() {
    let server = Server::bucket().await;
    let put = server.ask("PUT", "/bkt/k?x-amz-meta-a=1").sign(PRESIGNED).body("hello");
    put.send_spelled(spelled("x-amz-meta-a=", "x-amz-met%61-a=")).await.expect(200);
    assert_eq!(server.head("/bkt/k").await.header("x-amz-meta-a"), "1");
}

#[tokio::test]
async fn a_signed_digest_holds_for_the_body() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "hello").await.expect(200);
    let body = "<Delete><Object><Key>k</Key></Object></Delete>";
    let delete = server.ask("POST", "/bkt?delete=").sign(PRESIGNED).body(body);
    let delete = delete.header("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==");
    let spelled = spelled("delete=", "delet%65=");
    delete.send_spelled(spelled).await.refused(400, "BadDigest");
    server.get("/bkt/k").await.expect(200);
}

#[tokio::test]
async fn a_sub_resource_that_is_not_there_is_refused() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "hello").await.expect(200);
    for (from, to) in [("encryption", "encryptio%6e"), ("/bkt/k", "/bkt%2Fk")] {
        let put = server.ask("PUT", "/bkt/k?encryption=").body("<Xml/>");
        put.send_spelled(spelled(from, to)).await.refused(501, "NotImplemented");
        assert_eq!(server.get("/bkt/k").await.text(), "hello");
    }
}

#[tokio::test]
async fn lists_and_reads_take_parameters_in_any_spelling() {
    let server = Server::bucket().await;
    for key in ["a%20b/1", "a%20b/2", "c"] {
        server.put(&format!("/bkt/{key}"), key).await.expect(200);
    }
    let plain = server.get("/bkt?list-type=2").await.expect(200);
    let names = plain.tags("Key");
    assert_eq!(names, ["a b/1", "a b/2", "c"]);
    for query in [
        "list-type=2&prefix",
        "list-type=2&prefix=&delimiter=&continuation-token=&start-after=",
        "list-type=2&fetch-owner=true&x-other=1&x-other=2",
    ] {
        assert_eq!(
            server.get(&format!("/bkt?{query}")).await.expect(200).tags("Key"),
            names,
            "{query}"
        );
    }
    let list = server.ask("GET", "/bkt?list-type=2").sign(PRESIGNED);
    let list = list.send_spelled(spelled("list-type=2", "list-typ%65=%32")).await.expect(200);
    assert_eq!((list.tags("Key"), list.tag("KeyCount")), (names, Some("3".into())));
    let grouped = server.get("/bkt?list-type=2&prefix=a%20b%2F&delimiter=1&max-keys=9");
    let grouped = grouped.await.expect(200);
    assert_eq!(grouped.tag("CommonPrefixes").as_deref(), Some("<Prefix>a b/1</Prefix>"));
    assert_eq!(
        (grouped.tags("Key"), grouped.tag("KeyCount")),
        (vec!["a b/2".into()], Some("2".into()))
    );
    for (query, code) in [
        ("list-type=2&max-keys=", "InvalidArgument"),
        ("list-type=2&max-keys=-1", "InvalidArgument"),
        ("list-type=2&fetch-owner=True", "InvalidArgument"),
        ("list-type=2&encoding-type=x", "InvalidArgument"),
        ("list-type=2&prefix=a&prefix=a", "InvalidRequest"),
    ] {
        server.get(&format!("/bkt?{query}")).await.refused(400, code);
    }
    server.get("/bkt/c?partNumber=1&partNumber=1").await.refused(400, "InvalidRequest");
    server.get("/bkt/c?partNumber=one").await.refused(400, "InvalidArgument");
    let part = server.head("/bkt/c?partNumber=1").await.expect(206);
    assert_eq!((part.header("content-length"), part.header("content-range")), ("1", "bytes 0-0/1"));
    server.head("/bkt/c?partNumber=2").await.expect(416);
}

#[tokio::test]
async fn a_header_that_is_empty_is_none_and_one_that_is_repeated_is_refused() {
    let server = Server::bucket().await;
    let names = ["x-amz-acl", "x-amz-storage-class", "x-amz-tagging", "expires", "content-type"];
    let mut put = server.ask("PUT", "/bkt/k").body("x");
    for name in names {
        put = put.header(name, "");
    }
    put.send().await.expect(200);
    for (method, name, value) in [
        ("PUT", "content-type", "text/plain"),
        ("PUT", "if-none-match", "\"a\""),
        ("PUT", "expires", "0"),
        ("GET", "range", "bytes=0-0"),
        ("GET", "if-match", "a_b"),
        ("HEAD", "if-modified-since", "soon"),
        ("DELETE", "if-match", "\"a\""),
    ] {
        let twice = server.ask(method, "/bkt/k").sign(PRESIGNED);
        let answer = twice.unsigned(name, value).unsigned(name, value).send().await.expect(400);
        assert!(method == "HEAD" || answer.tag("Code").as_deref() == Some("InvalidRequest"));
    }
    let put = server.ask("PUT", "/bkt/k").sign(PRESIGNED).body("x");
    let put = put.unsigned("cache-control", "no-cache").unsigned("cache-control", "private");
    put.send().await.expect(200);
    assert_eq!(server.head("/bkt/k").await.header("cache-control"), "no-cache,private");
    for (method, name) in [("PUT", "x-amz-write-offset-bytes"), ("DELETE", "x-amz-if-match-size")] {
        let odd = server.ask(method, "/bkt/k").header(name, "1 byte").send().await;
        odd.refused(400, "InvalidArgument");
    }
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "x");
}

#[tokio::test]
async fn an_empty_offset_or_condition_changes_nothing() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "whole").await.expect(200);
    server.put("/bkt/src", "source").await.expect(200);
    let put = server.ask("PUT", "/bkt/k").header("x-amz-write-offset-bytes", "").body("more");
    put.send().await.refused(400, "InvalidArgument");
    for name in ["if-modified-since", "if-unmodified-since", "if-match", "if-none-match"] {
        let name = format!("x-amz-copy-source-{name}");
        let copy = server.ask("PUT", "/bkt/k").header("x-amz-copy-source", "/bkt/src");
        copy.header(&name, "").send().await.refused(400, "InvalidArgument");
    }
    let put = server.ask("PUT", "/bkt/k?x-amz-write-offset-bytes=").sign(PRESIGNED).body("more");
    put.send().await.refused(400, "InvalidArgument");
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "whole");
}

#[tokio::test]
async fn headers_beside_a_form_are_ignored() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "one").await.expect(200);
    let form = Form::of(&server, "bkt", "k").file(b"two").bytes();
    let post = server.ask("POST", "/bkt").sign(Sign::Not).body(form);
    let post = post.header("content-type", "multipart/form-data; boundary=edge");
    post.header("x-larder-append", "record").send().await.expect(204);
    assert_eq!(server.get("/bkt/k").await.text(), "two", "it is a put, as it was signed");
}
