//! Objects: put, get, head, delete.

use std::sync::atomic::Ordering;

use crate::client::{Server, Sign};

#[tokio::test]
async fn a_read_may_ask_for_other_headers_than_the_object_has() {
    let server = Server::bucket().await;
    server
        .ask("PUT", "/bkt/k")
        .header("cache-control", "no-store")
        .body("hello")
        .send()
        .await
        .expect(200);
    let asked = "response-cache-control=private&response-content-disposition=inline\
        &response-content-encoding=x&response-content-language=de&response-content-type=text%2Fx\
        &response-expires=Wed%2C%2021%20Oct%202015%2007%3A28%3A00%20GMT";
    for method in ["GET", "HEAD"] {
        let shown = server.ask(method, &format!("/bkt/k?{asked}")).send().await.expect(200);
        for (name, value) in [
            ("cache-control", "private"),
            ("content-disposition", "inline"),
            ("content-encoding", "x"),
            ("content-language", "de"),
            ("content-type", "text/x"),
            ("expires", "Wed, 21 Oct 2015 07:28:00 GMT"),
            ("content-length", "5"),
        ] {
            assert_eq!(shown.header(name), value, "{method}: {name}");
        }
        let refused = server.ask(method, "/bkt/k?response-content-type=a%0Ab").send().await;
        assert_eq!(refused.status, 400, "{method}");
    }
    assert_eq!(server.head("/bkt/k").await.header("cache-control"), "no-store", "as it was put");
}

#[tokio::test]
async fn what_is_put_is_got_with_all_its_headers() {
    let server = Server::bucket().await;
    let headers = [
        ("content-type", "text/plain; charset=utf-8"),
        ("cache-control", "no-cache"),
        ("content-disposition", "attachment"),
        ("content-encoding", "gzip"),
        ("content-language", "de"),
        ("expires", "Wed, 21 Oct 2015 07:28:00 GMT"),
        ("x-amz-website-redirect-location", "/elsewhere"),
        ("x-amz-meta-colour", "blue"),
        ("x-amz-meta-name", "B. Test"),
    ];
    let mut put = server.ask("PUT", "/bkt/dir/k%C3%A4y").body("hello");
    for (name, value) in headers {
        put = put.header(name, value);
    }
    let put = put.header("x-amz-tagging", "a=1&b=2").send().await.expect(200);
    assert_eq!(put.header("etag"), "\"5d41402abc4b2a76b9719d911017c592\"");
    let got = server.get("/bkt/dir/k%C3%A4y").await.expect(200);
    let head = server.head("/bkt/dir/k%C3%A4y").await.expect(200);
    assert_eq!(got.text(), "hello");
    assert_eq!(got.header("x-amz-tagging-count"), "2");
    for answer in [&got, &head] {
        for (name, value) in headers {
            assert_eq!(answer.header(name), value, "{name}");
        }
        assert_eq!(answer.header("etag"), put.header("etag"));
        assert_eq!(answer.header("content-length"), "5");
        assert_eq!(answer.header("accept-ranges"), "bytes");
        assert!(answer.header("last-modified").ends_with(" GMT"));
        assert_eq!(answer.header("x-amz-request-id").len(), 16);
        assert_ne!(answer.header("x-amz-id-2"), "");
    }
    assert_eq!(head.header("x-amz-tagging-count"), "2");
    assert!(head.body.is_empty());
}

#[tokio::test]
async fn an_object_without_a_type_has_the_default_one() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    let got = server.get("/bkt/k").await.expect(200);
    assert_eq!(got.header("content-type"), "binary/octet-stream");
    assert_eq!(got.header("x-amz-checksum-crc64nvme"), "", "a checksum is shown when asked for");
    server.put("/bkt/empty", "").await.expect(200);
    assert!(server.get("/bkt/empty").await.expect(200).body.is_empty());
}

#[tokio::test]
async fn a_delete_answers_the_same_whether_the_key_existed() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    server.delete("/bkt/k?versionId=null").await.expect(204);
    server.delete("/bkt/k").await.expect(204);
    server.get("/bkt/k").await.refused(404, "NoSuchKey");
    assert!(server.head("/bkt/k").await.expect(404).body.is_empty());
    server.delete("/none/k").await.refused(404, "NoSuchBucket");
    server.put("/bkt/k2", "x").await.expect(200);
    server.delete("/bkt").await.refused(409, "BucketNotEmpty");
}

#[tokio::test]
async fn the_null_version_is_the_only_one() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    server.get("/bkt/k?versionId=null").await.expect(200);
    let gone = format!("/bkt/k?versionId={}", "v".repeat(32));
    server.get(&gone).await.refused(404, "NoSuchVersion");
    server.delete(&gone).await.refused(404, "NoSuchVersion");
}

#[tokio::test]
async fn ranges_are_parts_of_the_whole() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "0123456789").await.expect(200);
    let ranged = |range: &'static str| server.ask("GET", "/bkt/k").header("range", range).send();
    for (range, body, shown) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=3-5", "345", "bytes 3-5/10"),
        ("bytes=8-", "89", "bytes 8-9/10"),
        ("bytes=8-99", "89", "bytes 8-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
    ] {
        let got = ranged(range).await.expect(206);
        assert_eq!((got.text().as_str(), got.header("content-range")), (body, shown));
        assert_eq!(got.header("content-length"), body.len().to_string());
    }
    let refused = ranged("bytes=10-").await.refused(416, "InvalidRange");
    assert_eq!(refused.header("content-range"), "bytes */10");
    for unread in ["bytes=0-1,3-4", "bytes=5-1", "lines=1-2"] {
        let got = ranged(unread).await.expect(200);
        assert_eq!((got.text().as_str(), got.header("content-range")), ("0123456789", ""));
    }
    let denied = server.ask("GET", "/bkt/k").header("range", "bytes=5-1");
    denied.clone().sign(Sign::Not).send().await.refused(403, "AccessDenied");
    denied.clone().keys("NOBODY", "x").send().await.refused(403, "InvalidAccessKeyId");
    let presigned = denied.sign(Sign::Query { expires_s: 10 }).send().await.expect(200);
    assert_eq!(presigned.text(), "0123456789");
    let head = server.ask("HEAD", "/bkt/k").header("range", "bytes=3-5").send().await.expect(206);
    assert_eq!(head.header("content-length"), "3");
    let part = server.get("/bkt/k?partNumber=1").await.expect(206);
    assert_eq!(part.text(), "0123456789");
    server.get("/bkt/k?partNumber=2").await.refused(416, "InvalidPartNumber");
}

#[tokio::test]
async fn conditional_reads_save_the_body() {
    let server = Server::bucket().await;
    let etag = server.put("/bkt/k", "x").await.expect(200).header("etag").to_owned();
    let ask = |name: &'static str, value: &str| {
        server.ask("GET", "/bkt/k").header(name, value.to_owned()).send()
    };
    ask("if-match", &etag).await.expect(200);
    ask("if-match", "\"other\"").await.refused(412, "PreconditionFailed");
    let fresh = ask("if-none-match", &etag).await.expect(304);
    assert!(fresh.body.is_empty());
    assert_eq!(fresh.header("etag"), etag);
    assert_ne!(fresh.header("last-modified"), "");
    let date = fresh.header("last-modified").to_owned();
    ask("if-none-match", "\"other\"").await.expect(200);
    ask("if-modified-since", &date).await.expect(304);
    ask("if-modified-since", "Wed, 21 Oct 2015 07:28:00 GMT").await.expect(200);
    ask("if-unmodified-since", &date).await.expect(200);
    ask("if-unmodified-since", "Wed, 21 Oct 2015 07:28:00 GMT").await.expect(412);
    let head = server.ask("HEAD", "/bkt/k").header("if-none-match", etag).send().await;
    head.expect(304);
}

#[tokio::test]
async fn conditional_puts_are_decided_by_the_store() {
    let server = Server::bucket().await;
    let put = |name: &'static str, value: &str| {
        server.ask("PUT", "/bkt/k").header(name, value.to_owned()).body("y").send()
    };
    put("if-match", "*").await.refused(404, "NoSuchKey");
    put("if-none-match", "*").await.expect(200);
    put("if-none-match", "*").await.refused(412, "PreconditionFailed");
    put("if-match", "\"00000000000000000000000000000000\"").await.expect(412);
    let etag = server.head("/bkt/k").await.header("etag").to_owned();
    put("if-match", &etag).await.expect(200);
    let delete = server.ask("DELETE", "/bkt/k").header("if-match", "\"0\"").send().await;
    delete.refused(412, "PreconditionFailed");
    let delete = server.ask("DELETE", "/bkt/k").header("if-match", etag);
    delete.clone().send().await.expect(204);
    delete.send().await.expect(204);
}

#[tokio::test]
async fn announced_digests_are_verified_before_the_store_commits() {
    let server = Server::bucket().await;
    let put = |name: &'static str, value: &'static str| {
        server.ask("PUT", "/bkt/k").header(name, value).body("123456789").send()
    };
    put("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==").await.refused(400, "BadDigest");
    put("content-md5", "not base64").await.refused(400, "InvalidDigest");
    put("x-amz-checksum-crc32", "AAAAAA==").await.refused(400, "BadDigest");
    put("x-amz-checksum-crc32", "AAAA").await.refused(400, "InvalidRequest");
    put("x-amz-sdk-checksum-algorithm", "MD4").await.refused(400, "InvalidRequest");
    assert_eq!(server.store.commits.load(Ordering::Relaxed), 0);
    put("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==").await.expect(200);
    for (name, value) in [
        ("x-amz-checksum-crc32", "y/Q5Jg=="),
        ("x-amz-checksum-crc32c", "4waSgw=="),
        ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
        ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
        ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
    ] {
        assert_eq!(put(name, value).await.expect(200).header(name), value);
        let head = server.ask("HEAD", "/bkt/k").header("x-amz-checksum-mode", "ENABLED");
        let head = head.send().await.expect(200);
        assert_eq!(head.header(name), value);
        assert_eq!(head.header("x-amz-checksum-type"), "FULL_OBJECT");
    }
    let named = put("x-amz-checksum-algorithm", "SHA256").await.expect(200);
    assert!(!named.header("x-amz-checksum-sha256").is_empty(), "computed and returned");
}

#[tokio::test]
async fn a_checksum_may_follow_the_body() {
    let server = Server::bucket().await;
    let put = |value| {
        let put = server.ask("PUT", "/bkt/k").body("123456789");
        put.unsigned_trailer(4, "x-amz-checksum-crc32", value).send()
    };
    assert_eq!(put("y/Q5Jg==").await.expect(200).header("x-amz-checksum-crc32"), "y/Q5Jg==");
    assert_eq!(server.get("/bkt/k").await.text(), "123456789");
    put("AAAAAA==").await.refused(400, "BadDigest");
    put("").await.refused(400, "MalformedTrailerError");
    let other = server.ask("PUT", "/bkt/k").body("1");
    let other = other.unsigned_trailer(4, "x-other", "1").send().await;
    other.refused(400, "InvalidRequest");
}

#[tokio::test]
async fn a_chunk_may_be_as_long_as_its_body_and_no_longer() {
    let server = Server::bucket().await;
    let data = vec![7u8; 17 * 1024 * 1024];
    let put = server.ask("PUT", "/bkt/k").body(data.clone());
    put.signed_chunks(data.len(), false).send().await.expect(200);
    assert!(server.get("/bkt/k").await.expect(200).body == data);
    let put = server.ask("PUT", "/bkt/k").body("5\r\nabc\r\n0\r\n\r\n");
    let put = put
        .header("x-amz-decoded-content-length", "5")
        .header("x-amz-trailer", "x-amz-checksum-crc32")
        .payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    put.send().await.refused(400, "InvalidRequest");
}

#[tokio::test]
async fn a_decoded_length_must_be_true() {
    let server = Server::bucket().await;
    for length in ["2", "4"] {
        let put = server
            .ask("PUT", "/bkt/k")
            .body("3\r\nabc\r\n0\r\nx-amz-checksum-crc32:NSRBwg==\r\n\r\n");
        let put = put
            .header("x-amz-decoded-content-length", length)
            .header("x-amz-trailer", "x-amz-checksum-crc32")
            .payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER");
        put.send().await.refused(400, "IncompleteBody");
    }
}

#[tokio::test]
async fn what_larder_does_not_have_is_refused() {
    let server = Server::bucket().await;
    for (name, value) in
        [("x-amz-server-side-encryption", "AES256"), ("x-amz-object-lock-mode", "GOVERNANCE")]
    {
        let put = server.ask("PUT", "/bkt/k").header(name, value).body("x").send().await;
        put.refused(501, "NotImplemented");
    }
    for (name, value, code) in [
        ("x-amz-acl", "public-read", "AccessControlListNotSupported"),
        ("x-amz-grant-read", "id=1", "AccessControlListNotSupported"),
        ("x-amz-grant-read", "nonsense", "InvalidArgument"),
        ("x-amz-acl", "nonsense", "InvalidArgument"),
        ("x-amz-website-redirect-location", "nonsense", "InvalidRedirectLocation"),
        ("x-amz-tagging", "aws:a=b", "InvalidTag"),
        ("x-amz-tagging", "a=%zz", "InvalidArgument"),
    ] {
        let put = server.ask("PUT", "/bkt/k").header(name, value).body("x").send().await;
        put.refused(400, code);
    }
    let half = server.ask("PUT", "/bkt/k").body("x");
    let half = half.header("x-amz-server-side-encryption-customer-algorithm", "AES256");
    half.send().await.refused(400, "InvalidArgument");
    let put = server.ask("PUT", "/bkt/k").header("x-amz-storage-class", "GLACIER").body("x");
    put.send().await.refused(400, "InvalidStorageClass");
    let put = server.ask("PUT", "/bkt/k").header("x-amz-meta-long", "v".repeat(2048)).body("x");
    put.send().await.refused(400, "MetadataTooLarge");
    server.head("/bkt/k").await.expect(404);
}

#[tokio::test]
async fn an_object_is_not_read_with_a_key_it_was_not_written_with() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    let ask = |name: &'static str| server.ask("GET", "/bkt/k").header(name, "AES256").send();
    let customer = "x-amz-server-side-encryption-customer-algorithm";
    ask(customer).await.refused(400, "InvalidRequest");
    ask("x-amz-server-side-encryption").await.refused(400, "InvalidArgument");
}

#[tokio::test]
async fn a_read_starts_again_when_the_object_changes() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    server.store.change.store(5, Ordering::Relaxed);
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "x");
    server.store.change.store(1000, Ordering::Relaxed);
    server.get("/bkt/k").await.refused(409, "OperationAborted");
}

#[tokio::test]
async fn the_stores_troubles_are_told_apart() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    server.store.damaged.store(true, Ordering::Relaxed);
    let refused = server.get("/bkt/k").await.refused(500, "InternalError");
    assert_eq!(refused.tag("Message").as_deref(), Some("every copy of the data is damaged"));
    assert_eq!(refused.tag("Resource").as_deref(), Some("/bkt/k"));
    assert_eq!(refused.tag("RequestId").as_deref(), Some(refused.header("x-amz-request-id")));
    server.store.full.store(true, Ordering::Relaxed);
    server.put("/bkt/k", vec![0; 100_000]).await.refused(507, "InsufficientStorage");
}

#[tokio::test]
async fn a_batch_delete_answers_for_each_key() {
    let server = Server::bucket().await;
    server.put("/bkt/a", "x").await.expect(200);
    server.put("/bkt/c", "x").await.expect(200);
    let batch = |quiet: &str| {
        let xml = format!(
            "<Delete>{quiet}<Object><Key>a</Key></Object><Object><Key>b</Key></Object>\
             <Object><Key>c</Key><VersionId>x</VersionId></Object></Delete>"
        );
        let md5 = {
            use md5::Digest;
            base64_simd::STANDARD.encode_to_string(md5::Md5::digest(&xml))
        };
        server.ask("POST", "/bkt?delete").header("content-md5", md5).body(xml)
    };
    let answer = batch("").send().await.expect(200);
    assert_eq!(answer.tags("Deleted"), ["<Key>a</Key>", "<Key>b</Key>"]);
    assert_eq!(answer.tags("Code"), ["NoSuchVersion"]);
    assert!(batch("<Quiet>true</Quiet>").send().await.expect(200).tags("Deleted").is_empty());
    server.head("/bkt/a").await.expect(404);
    server.head("/bkt/c").await.expect(200);
    let wrong = batch("").header("x-amz-checksum-crc32", "AAAAAA==").send().await;
    wrong.refused(400, "BadDigest");
    let wrong = server.ask("POST", "/bkt?delete").header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==");
    wrong
        .body("<Delete><Object><Key>c</Key></Object></Delete>")
        .send()
        .await
        .refused(400, "BadDigest");
    let without =
        server.ask("POST", "/bkt?delete").body("<Delete><Object><Key>c</Key></Object></Delete>");
    without.send().await.refused(400, "InvalidRequest");
    server.head("/bkt/c").await.expect(200);
}

#[tokio::test]
async fn tags_are_put_got_and_removed() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    let xml = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>";
    server.put("/bkt/k?tagging", xml).await.expect(200);
    let got = server.get("/bkt/k?tagging").await.expect(200);
    assert_eq!((got.tags("Key"), got.tags("Value")), (vec!["a".into()], vec!["1".into()]));
    server.delete("/bkt/k?tagging").await.expect(204);
    assert!(server.get("/bkt/k?tagging").await.expect(200).tags("Key").is_empty());
    server.get("/bkt/none?tagging").await.refused(404, "NoSuchKey");
}

#[tokio::test]
async fn a_large_object_streams_both_ways() {
    let server = Server::bucket().await;
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 253) as u8).collect();
    server.put("/bkt/k", data.clone()).await.expect(200);
    let got = server.get("/bkt/k").await.expect(200);
    assert_eq!(got.header("content-length"), "3000000");
    assert!(got.body == data);
    let got = server.ask("GET", "/bkt/k").header("range", "bytes=1000000-1999999").send().await;
    assert!(got.expect(206).body == data[1_000_000..2_000_000]);
}

#[tokio::test]
async fn storage_classes_that_are_read_at_once_are_kept_and_shown() {
    let server = Server::bucket().await;
    for class in
        ["REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"]
    {
        let put = server.ask("PUT", "/bkt/k").header("x-amz-storage-class", class).body("x");
        put.send().await.expect(200);
        for method in ["GET", "HEAD"] {
            let shown = server.ask(method, "/bkt/k").send().await.expect(200);
            assert_eq!(shown.header("x-amz-storage-class"), class, "{method}");
        }
        for list in ["/bkt", "/bkt?list-type=2", "/bkt?versions"] {
            assert_eq!(
                server.get(list).await.tag("StorageClass").as_deref(),
                Some(class),
                "{list}"
            );
        }
        let reported = server.ask("GET", "/bkt/k?attributes");
        let reported = reported.header("x-amz-object-attributes", "StorageClass").send().await;
        assert_eq!(reported.tag("StorageClass").as_deref(), Some(class));
        let begun = server.ask("POST", "/bkt/up?uploads").header("x-amz-storage-class", class);
        let id = begun.send().await.expect(200).tag("UploadId").unwrap();
        for list in ["/bkt?uploads", &format!("/bkt/up?uploadId={id}")] {
            assert_eq!(
                server.get(list).await.tag("StorageClass").as_deref(),
                Some(class),
                "{list}"
            );
        }
        server.delete(&format!("/bkt/up?uploadId={id}")).await.expect(204);
    }
    let put = server.ask("PUT", "/bkt/k").header("x-amz-storage-class", "STANDARD").body("x");
    put.send().await.expect(200);
    assert_eq!(
        server.head("/bkt/k").await.header("x-amz-storage-class"),
        "",
        "S3 shows no default"
    );
    assert_eq!(server.get("/bkt").await.tag("StorageClass").as_deref(), Some("STANDARD"));
    for class in ["DEEP_ARCHIVE", "GLACIER", "standard", "COLD"] {
        let put = server.ask("PUT", "/bkt/k").header("x-amz-storage-class", class).body("x");
        put.send().await.refused(400, "InvalidStorageClass");
    }
}

#[tokio::test]
async fn metadata_that_is_no_word_ends_no_server() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    for value in ["=?=", "=?= =?="] {
        let begun = server.ask("POST", "/bkt/up?uploads").header("x-amz-meta-a", value);
        begun.send().await.refused(400, "InvalidArgument");
        let copied = server.ask("PUT", "/bkt/c").header("x-amz-copy-source", "/bkt/k");
        let copied = copied.header("x-amz-metadata-directive", "REPLACE");
        copied.header("x-amz-meta-a", value).send().await.refused(400, "InvalidArgument");
        let put = server.ask("PUT", "/bkt/k").header("x-amz-meta-a", value).body("y");
        put.send().await.refused(400, "InvalidArgument");
    }
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "x");
}
