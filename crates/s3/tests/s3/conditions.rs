//! Conditions whose headers come in forms that the protocol library does not read, and `If-Range`.

use crate::client::{Server, Sign};

const OLD: &str = "Wed, 21 Oct 2015 07:28:00 GMT";
/// The same instant as [`OLD`], in HTTP's obsolete forms.
const OBSOLETE: [&str; 2] = ["Wednesday, 21-Oct-15 07:28:00 GMT", "Wed Oct 21 07:28:00 2015"];
const INVALID: [&str; 4] = ["0", "soon", "Wed, 32 Oct 2015 07:28:00 GMT", "2015-10-21T07:28:00Z"];

#[tokio::test]
async fn a_range_whose_if_range_does_not_match_is_the_whole_object() {
    let server = Server::bucket().await;
    let etag = server.put("/bkt/k", "0123456789").await.expect(200).header("etag").to_owned();
    let date = server.head("/bkt/k").await.header("last-modified").to_owned();
    let ask = |range: &'static str, value: String| {
        server.ask("GET", "/bkt/k").header("range", range).header("if-range", value).send()
    };
    for same in [etag.clone(), date.clone()] {
        assert_eq!(ask("bytes=2-4", same).await.expect(206).text(), "234");
    }
    let bare = etag.trim_matches('"').to_owned();
    for other in
        ["\"other\"".to_owned(), format!("W/{etag}"), bare, OLD.into(), "soon".into(), "*".into()]
    {
        let got = ask("bytes=2-4", other.clone()).await.expect(200);
        assert_eq!(
            (got.text().as_str(), got.header("content-range")),
            ("0123456789", ""),
            "{other}"
        );
        ask("bytes=20-", other).await.expect(200);
    }
    ask("bytes=20-", etag.clone()).await.refused(416, "InvalidRange");
    let head = server.ask("HEAD", "/bkt/k").header("range", "bytes=2-4");
    let head = head.header("if-range", "\"other\"").send().await.expect(200);
    assert_eq!(head.header("content-length"), "10");
    let alone = server.ask("GET", "/bkt/k").header("if-range", "\"other\"").send().await;
    assert_eq!(alone.expect(200).text(), "0123456789");
}

#[tokio::test]
async fn dates_in_obsolete_forms_count_and_invalid_ones_do_not() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    let read = |name: &'static str, value: &'static str| {
        server.ask("GET", "/bkt/k").header(name, value).send()
    };
    let copy = |name: &'static str, value: &'static str| {
        let copy = server.ask("PUT", "/bkt/copy").header("x-amz-copy-source", "/bkt/k");
        copy.header(name, value).send()
    };
    for date in OBSOLETE {
        read("if-modified-since", date).await.expect(200);
        read("if-unmodified-since", date).await.expect(412);
        copy("x-amz-copy-source-if-modified-since", date).await.expect(200);
        copy("x-amz-copy-source-if-unmodified-since", date).await.expect(412);
    }
    for date in INVALID {
        for name in ["if-modified-since", "if-unmodified-since"] {
            read(name, date).await.expect(200);
            server.ask("HEAD", "/bkt/k").header(name, date).send().await.expect(200);
        }
        copy("x-amz-copy-source-if-modified-since", date).await.expect(200);
        copy("x-amz-copy-source-if-unmodified-since", date).await.expect(200);
    }
    let denied = server.ask("GET", "/bkt/k").header("if-modified-since", "0");
    denied.clone().sign(Sign::Not).send().await.refused(403, "AccessDenied");
    denied.clone().keys("NOBODY", "x").send().await.refused(403, "InvalidAccessKeyId");
    denied.sign(Sign::Query { expires_s: 10 }).send().await.expect(200);
}

#[tokio::test]
async fn entity_tags_that_are_none_match_nothing() {
    let server = Server::bucket().await;
    let etag = server.put("/bkt/k", "x").await.expect(200).header("etag").to_owned();
    let bare = etag.trim_matches('"').to_owned();
    for odd in ["a_b", "a b", "a, b", "\"unclosed", "\"a\"b"] {
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            let ask = server.ask(method, "/bkt/k").header("if-match", odd);
            ask.send().await.expect(412);
        }
        let fresh = server.ask("GET", "/bkt/k").header("if-none-match", odd);
        fresh.send().await.expect(200);
        let copy = server.ask("PUT", "/bkt/copy").header("x-amz-copy-source", "/bkt/k");
        copy.clone().header("x-amz-copy-source-if-match", odd).send().await.expect(412);
        copy.header("x-amz-copy-source-if-none-match", odd).send().await.expect(200);
    }
    for (name, status) in
        [("x-amz-copy-source-if-match", 412), ("x-amz-copy-source-if-none-match", 200)]
    {
        let copy = server.ask("PUT", "/bkt/copy").header("x-amz-copy-source", "/bkt/k");
        copy.header(name, "\u{e9}").send().await.expect(status);
    }
    let list = format!("a_b, {bare}");
    server.ask("GET", "/bkt/k").header("if-match", &list).send().await.expect(200);
    server.ask("GET", "/bkt/k").header("if-none-match", list).send().await.expect(304);
}

#[tokio::test]
async fn expires_is_kept_as_it_came() {
    let server = Server::bucket().await;
    for text in ["0", "-1", "Thu, 21 Oct 2015 07:28:00 GMT", OBSOLETE[0], OLD] {
        let put = server.ask("PUT", "/bkt/k").header("expires", text).body("hello");
        put.clone().send().await.expect(200);
        let got = server.get("/bkt/k").await.expect(200);
        assert_eq!((got.header("expires"), got.text().as_str()), (text, "hello"));
        assert_eq!(server.head("/bkt/k").await.expect(200).header("expires"), text);
        put.header("x-amz-meta-a", "b").signed_chunks(2, false).send().await.expect(200);
        let got = server.get("/bkt/k").await.expect(200);
        assert_eq!((got.header("expires"), got.header("x-amz-meta-a")), (text, "b"));
        let copy = server.ask("PUT", "/bkt/copy").header("x-amz-copy-source", "/bkt/k");
        copy.clone().send().await.expect(200);
        assert_eq!(server.head("/bkt/copy").await.header("expires"), text);
        let copy = copy.header("x-amz-metadata-directive", "REPLACE").header("expires", "never");
        copy.send().await.expect(200);
        assert_eq!(server.head("/bkt/copy").await.header("expires"), "never");
        let fresh = server.ask("GET", "/bkt/k").header("if-none-match", got.header("etag"));
        assert_eq!(fresh.send().await.expect(304).header("expires"), text);
        let begun = server.ask("POST", "/bkt/k?uploads").header("expires", text).send().await;
        let id = begun.expect(200).tag("UploadId").unwrap();
        let path = format!("/bkt/k?uploadId={id}");
        let etag = server.put(&format!("{path}&partNumber=1"), "x").await.header("etag").to_owned();
        let parts = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>\
             </CompleteMultipartUpload>"
        );
        server.ask("POST", &path).body(parts).send().await.expect(200);
        assert_eq!(server.head("/bkt/k").await.expect(200).header("expires"), text);
    }
    let put = server.ask("PUT", "/bkt/k").header("expires", "0").body("1234");
    let put = put.unsigned_trailer(3, "x-amz-checksum-crc32", "AAAAAA==");
    put.send().await.refused(400, "BadDigest");
}

#[tokio::test]
async fn conditions_that_an_operation_does_not_know_change_nothing() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "old").await.expect(200);
    let date = "Thu, 01 Jan 1970 00:00:00 GMT";
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    for (method, path, name, value) in [
        ("PUT", "/bkt/k", "if-unmodified-since", date),
        ("PUT", "/bkt/k", "if-modified-since", date),
        ("PUT", "/bkt/k", "content-range", "bytes 0-2/100"),
        ("PUT", "/bkt/k?tagging", "if-match", "\"a\""),
        ("DELETE", "/bkt/k", "if-none-match", "*"),
        ("DELETE", "/bkt/k", "if-unmodified-since", date),
        ("DELETE", "/bkt/k?tagging", "if-match", "\"a\""),
        ("DELETE", "/bkt", "if-match", "\"a\""),
        ("POST", "/bkt?delete", "if-match", "\"a\""),
    ] {
        let body = if path.ends_with("tagging") { tags } else { "new" };
        let refused = server.ask(method, path).header(name, value).body(body).send().await;
        let refused = refused.refused(501, "NotImplemented");
        assert_eq!(refused.tag("Header").as_deref(), Some(name), "{method} {path}");
    }
    for star in ["*", "\"*\"", "\"a\", \"*\""] {
        let put = server.ask("PUT", "/bkt/k").header("if-none-match", star).body("new");
        put.send().await.refused(412, "PreconditionFailed");
    }
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "old");
}
