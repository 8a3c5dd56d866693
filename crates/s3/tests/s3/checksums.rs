//! Digests that a client announces, beyond the five that are stored.

use base64_simd::STANDARD;
use sha2::{Digest, Sha512};

use crate::client::{Answer, Server};

const DATA: &str = "123456789";
/// Checksums that are verified and not stored.
const VERIFIED: [&str; 5] = [
    "x-amz-checksum-xxhash64",
    "x-amz-checksum-xxhash3",
    "x-amz-checksum-xxhash128",
    "x-amz-checksum-sha512",
    "x-amz-checksum-md5",
];

/// The right value of a digest for these bytes.
fn right(name: &str, data: &[u8]) -> String {
    use xxhash_rust::{xxh3, xxh64};
    match name {
        "x-amz-checksum-xxhash64" => STANDARD.encode_to_string(xxh64::xxh64(data, 0).to_be_bytes()),
        "x-amz-checksum-xxhash3" => STANDARD.encode_to_string(xxh3::xxh3_64(data).to_be_bytes()),
        "x-amz-checksum-xxhash128" => STANDARD.encode_to_string(xxh3::xxh3_128(data).to_be_bytes()),
        "x-amz-checksum-sha512" => STANDARD.encode_to_string(Sha512::digest(data)),
        "x-amz-checksum-md5" => STANDARD.encode_to_string(md5::Md5::digest(data)),
        other => panic!("{other}"),
    }
}

async fn begin(server: &Server, algorithm: Option<&str>, kind: Option<&str>) -> String {
    let mut ask = server.ask("POST", "/bkt/k?uploads");
    for (name, value) in [("x-amz-checksum-algorithm", algorithm), ("x-amz-checksum-type", kind)] {
        if let Some(value) = value {
            ask = ask.header(name, value);
        }
    }
    ask.send().await.expect(200).tag("UploadId").unwrap()
}

#[tokio::test]
async fn digests_that_are_not_stored_are_verified() {
    let server = Server::bucket().await;
    for name in VERIFIED {
        let put = |value: String| server.ask("PUT", "/bkt/k").header(name, value).body(DATA).send();
        put(right(name, b"other")).await.refused(400, "BadDigest");
        let refused = put("AAAA".into()).await.refused(400, "InvalidRequest");
        assert!(refused.tag("Message").unwrap().contains(name), "{}", refused.text());
        server.head("/bkt/k").await.expect(404);
        put(right(name, DATA.as_bytes())).await.expect(200);
        server.delete("/bkt/k").await.expect(204);
    }
}

#[tokio::test]
async fn digests_that_are_not_stored_are_verified_as_trailers() {
    let server = Server::bucket().await;
    for name in VERIFIED {
        let put = |value: String| {
            let put = server.ask("PUT", "/bkt/k").body(DATA);
            let algorithm = name.rsplit_once('-').unwrap().1.to_uppercase();
            let put = put.header("x-amz-sdk-checksum-algorithm", algorithm);
            put.unsigned_trailer(4, name, &value).send()
        };
        put(right(name, b"other")).await.refused(400, "BadDigest");
        put("AAAA".into()).await.refused(400, "InvalidRequest");
        put(String::new()).await.refused(400, "MalformedTrailerError");
        server.head("/bkt/k").await.expect(404);
        put(right(name, DATA.as_bytes())).await.expect(200);
        server.delete("/bkt/k").await.expect(204);
    }
}

#[tokio::test]
async fn digests_that_are_not_stored_are_verified_of_parts_and_of_xml() {
    let server = Server::bucket().await;
    let id = begin(&server, None, None).await;
    let path = format!("/bkt/k?partNumber=1&uploadId={id}");
    server.put("/bkt/tagged", "x").await.expect(200);
    let xml = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    for name in VERIFIED {
        let part = |value: String| server.ask("PUT", &path).header(name, value).body(DATA).send();
        part(right(name, b"other")).await.refused(400, "BadDigest");
        part(right(name, DATA.as_bytes())).await.expect(200);
        let tag = |value: String| {
            server.ask("PUT", "/bkt/tagged?tagging").header(name, value).body(xml).send()
        };
        tag(right(name, b"other")).await.refused(400, "BadDigest");
        tag(right(name, xml.as_bytes())).await.expect(200);
    }
}

#[tokio::test]
async fn digests_nobody_can_verify_are_refused() {
    let server = Server::bucket().await;
    server.put("/bkt/tagged", "x").await.expect(200);
    for (method, path) in
        [("PUT", "/bkt/k"), ("PUT", "/bkt/tagged?tagging"), ("POST", "/bkt?delete")]
    {
        let ask = server.ask(method, path).header("x-amz-checksum-foo", "AAAA").body(DATA);
        let refused = ask.send().await.refused(400, "InvalidRequest");
        assert!(refused.tag("Message").unwrap().contains("x-amz-checksum-foo"));
    }
    let trailer = server.ask("PUT", "/bkt/k").body(DATA);
    let trailer = trailer.unsigned_trailer(4, "x-amz-checksum-foo", "AAAA").send().await;
    trailer.refused(400, "InvalidRequest");
    let two = server.ask("PUT", "/bkt/k").body(DATA).header("x-amz-checksum-crc32", "y/Q5Jg==");
    let two = two.header("x-amz-checksum-md5", right("x-amz-checksum-md5", DATA.as_bytes()));
    two.send().await.refused(400, "InvalidRequest");
    let named = server.ask("PUT", "/bkt/k").body(DATA).header("x-amz-checksum-algorithm", "FOO");
    named.send().await.refused(400, "InvalidRequest");
    let named = server.ask("PUT", "/bkt/tagged?tagging").body(DATA);
    let named = named.header("x-amz-sdk-checksum-algorithm", "FOO").send().await;
    named.refused(400, "InvalidRequest");
    server.head("/bkt/k").await.expect(404);
}

#[tokio::test]
async fn an_upload_has_no_digest_that_is_not_stored() {
    let server = Server::bucket().await;
    let begin = server.ask("POST", "/bkt/k?uploads");
    let begin = begin.header("x-amz-checksum-algorithm", "XXHASH64").send().await;
    begin.refused(400, "InvalidRequest");
    let id = self::begin(&server, None, None).await;
    let path = format!("/bkt/k?uploadId={id}");
    let etag = server.put(&format!("{path}&partNumber=1"), DATA).await.header("etag").to_owned();
    let complete = |name: &'static str, inside: &str| {
        let xml = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag>{inside}\
             </Part></CompleteMultipartUpload>"
        );
        server.ask("POST", &path).header(name, "AAAA").body(xml).send()
    };
    complete("x-amz-checksum-md5", "").await.refused(400, "InvalidRequest");
    let inside = "<ChecksumXXHASH64>AAAA</ChecksumXXHASH64>";
    complete("x-amz-meta-none", inside).await.refused(400, "InvalidRequest");
    complete("x-amz-meta-none", "").await.expect(200);
}

#[tokio::test]
async fn parts_of_a_composite_checksum_have_their_own() {
    let server = Server::bucket().await;
    for (algorithm, kind) in [("SHA256", None), ("CRC32", None), ("CRC32C", Some("COMPOSITE"))] {
        let id = begin(&server, Some(algorithm), kind).await;
        let put = server.put(&format!("/bkt/k?partNumber=1&uploadId={id}"), DATA).await;
        let refused = put.refused(400, "InvalidRequest");
        let expected = format!("{}, actual checksum Type: null", algorithm.to_lowercase());
        assert!(refused.tag("Message").unwrap().ends_with(&expected), "{}", refused.text());
        let named = server.ask("PUT", &format!("/bkt/k?partNumber=1&uploadId={id}")).body(DATA);
        named.header("x-amz-checksum-algorithm", algorithm).send().await.expect(200);
    }
    for (algorithm, kind) in [("CRC32", Some("FULL_OBJECT")), ("CRC64NVME", None)] {
        let id = begin(&server, Some(algorithm), kind).await;
        server.put(&format!("/bkt/k?partNumber=1&uploadId={id}"), DATA).await.expect(200);
    }
}

#[tokio::test]
async fn an_object_without_a_checksum_gets_one() {
    let server = Server::bucket().await;
    server.put("/bkt/k", DATA).await.expect(200);
    for method in ["HEAD", "GET"] {
        let got = server.ask(method, "/bkt/k").header("x-amz-checksum-mode", "ENABLED");
        let got = got.send().await.expect(200);
        assert_eq!(got.header("x-amz-checksum-crc64nvme"), "rosUhgp5mIg=", "{method}");
        assert_eq!(got.header("x-amz-checksum-type"), "FULL_OBJECT");
    }
}

/// A name is no digest: who takes it for one has verified nothing.
#[tokio::test]
async fn an_algorithm_without_a_value_is_no_digest() {
    let server = Server::bucket().await;
    let put = server.ask("PUT", "/bkt/k").header("x-amz-sdk-checksum-algorithm", "CRC32");
    let refused = put.body(DATA).send().await.refused(400, "InvalidRequest");
    let message = "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer \
                   headers were found.";
    assert_eq!(refused.tag("Message").as_deref(), Some(message));
    server.head("/bkt/k").await.expect(404);
    server.put("/bkt/k", "x").await.expect(200);
    for (name, value) in [
        ("x-amz-checksum-algorithm", "CRC32"),
        ("x-amz-sdk-checksum-algorithm", "CRC32"),
        ("x-amz-checksum-type", "COMPOSITE"),
    ] {
        let batch = "<Delete><Object><Key>k</Key></Object></Delete>";
        let ask = server.ask("POST", "/bkt?delete").header(name, value).body(batch);
        ask.send().await.refused(400, "InvalidRequest");
    }
    server.head("/bkt/k").await.expect(200);
}

#[tokio::test]
async fn the_trailer_of_a_completion_is_compared_with_its_document() {
    let server = Server::bucket().await;
    let id = begin(&server, None, None).await;
    let path = format!("/bkt/k?uploadId={id}");
    let etag = server.put(&format!("{path}&partNumber=1"), DATA).await.header("etag").to_owned();
    let xml = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>\
         </CompleteMultipartUpload>"
    );
    let complete = |value: &str| {
        let ask = server.ask("POST", &path).body(xml.clone());
        ask.unsigned_trailer(20, "x-amz-checksum-md5", value).send()
    };
    complete(&right("x-amz-checksum-md5", b"other")).await.refused(400, "BadDigest");
    complete("").await.refused(400, "MalformedTrailerError");
    server.head("/bkt/k").await.expect(404);
    complete(&right("x-amz-checksum-md5", xml.as_bytes())).await.expect(200);
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), DATA);
}

#[tokio::test]
async fn xml_that_is_not_what_was_signed_is_refused() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    let ask = |method: &str, path: &str, body: &str| {
        let wrong = "0".repeat(64);
        server.ask(method, path).payload(&wrong).body(body.to_owned()).send()
    };
    let mismatch = |answer: Answer| {
        let refused = answer.refused(400, "XAmzContentSHA256Mismatch");
        assert_eq!(refused.tag("ClientComputedContentSHA256"), Some("0".repeat(64)));
        assert_eq!(refused.tag("S3ComputedContentSHA256").map(|hash| hash.len()), Some(64));
    };
    let tags = "<Tagging><TagSet></TagSet></Tagging>";
    mismatch(ask("PUT", "/bkt/k?tagging", tags).await);
    mismatch(ask("POST", "/bkt?delete", "<Delete><Object><Key>k</Key></Object></Delete>").await);
    mismatch(ask("PUT", "/new", "<CreateBucketConfiguration/>").await);
    mismatch(ask("PUT", "/bkt?versioning", "<VersioningConfiguration/>").await);
    mismatch(ask("PUT", "/new", "").await);
    mismatch(ask("POST", "/bkt/k?uploads", "").await);
    mismatch(ask("POST", "/bkt/k?uploads", "what is never read").await);
    let id = begin(&server, None, None).await;
    mismatch(ask("POST", &format!("/bkt/k?uploadId={id}"), "<CompleteMultipartUpload/>").await);
    assert!(
        server.get("/bkt?uploads").await.tags("UploadId").len() == 1,
        "only the one begun rightly"
    );
    server.head("/new").await.expect(404);
    server.head("/bkt/k").await.expect(200);
    let forged = server.ask("PUT", "/bkt/k?tagging").payload(&"0".repeat(64)).body(tags);
    forged.keys("NOBODY", "x").send().await.refused(403, "InvalidAccessKeyId");
}

#[tokio::test]
async fn an_upload_may_begin_with_a_body_that_is_what_was_signed() {
    let server = Server::bucket().await;
    server.ask("POST", "/bkt/k?uploads").body("never read").send().await.expect(200);
}

#[tokio::test]
async fn xml_in_aws_chunks_is_read_and_its_trailer_verified() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    let xml = "<Delete><Object><Key>k</Key></Object></Delete>";
    let delete = |crc: &str| {
        let ask = server.ask("POST", "/bkt?delete").body(xml);
        ask.unsigned_trailer(7, "x-amz-checksum-crc32", crc).send()
    };
    delete("AAAAAA==").await.refused(400, "BadDigest");
    server.head("/bkt/k").await.expect(200);
    delete("A8uZRQ==").await.expect(200);
    server.head("/bkt/k").await.expect(404);
    server.put("/bkt/k", "x").await.expect(200);
    let signed =
        |tamper| server.ask("POST", "/bkt?delete").body(xml).signed_chunks(7, tamper).send();
    signed(true).await.refused(403, "SignatureDoesNotMatch");
    server.head("/bkt/k").await.expect(200);
}
