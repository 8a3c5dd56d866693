//! Multipart uploads.

use std::sync::atomic::Ordering;

use larder_types::limits::PART_BYTES_MIN;

use s3s::crypto::{Checksum as _, Crc64Nvme, Sha256};

use crate::client::{Answer, Server};

fn large(seed: u8) -> Vec<u8> {
    (0..PART_BYTES_MIN).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// A time of XML as a header has it.
fn http_date(text: &str) -> String {
    use s3s::dto::{Timestamp, TimestampFormat};
    let mut date = Vec::new();
    let parsed = Timestamp::parse(TimestampFormat::DateTime, text).unwrap();
    parsed.format(TimestampFormat::HttpDate, &mut date).unwrap();
    String::from_utf8(date).unwrap()
}

async fn begin(server: &Server, path: &str) -> String {
    server.ask("POST", &format!("{path}?uploads")).send().await.expect(200).tag("UploadId").unwrap()
}

async fn part(server: &Server, path: &str, id: &str, number: u32, data: Vec<u8>) -> String {
    let path = format!("{path}?partNumber={number}&uploadId={id}");
    server.put(&path, data).await.expect(200).header("etag").to_owned()
}

fn list(parts: &[(u32, String)]) -> String {
    let part = |(number, etag): &(u32, String)| {
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
    };
    let parts: String = parts.iter().map(part).collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

async fn complete(server: &Server, path: &str, id: &str, parts: &[(u32, String)]) -> Answer {
    server.ask("POST", &format!("{path}?uploadId={id}")).body(list(parts)).send().await
}

#[tokio::test]
async fn parts_become_one_object() {
    let server = Server::bucket().await;
    let id = begin(&server, "/bkt/k").await;
    let (first, last) = (large(1), b"the end".to_vec());
    let one = part(&server, "/bkt/k", &id, 2, first.clone()).await;
    part(&server, "/bkt/k", &id, 5, b"replaced".to_vec()).await;
    let two = part(&server, "/bkt/k", &id, 5, last.clone()).await;
    server.head("/bkt/k").await.expect(404);
    let parts = [(2, one), (5, two)];
    let done = complete(&server, "/bkt/k", &id, &parts).await.expect(200);
    assert!(done.tag("ETag").unwrap().contains("-2"));
    assert_eq!(done.tag("Location").unwrap(), format!("http://{}/bkt/k", server.address));
    assert_eq!(done.tag("ChecksumType").as_deref(), Some("FULL_OBJECT"));
    let again = complete(&server, "/bkt/k", &id, &parts).await.expect(200);
    assert_eq!(again.tag("ETag"), done.tag("ETag"), "a repeated completion has the same answer");
    let whole = [first.clone(), last.clone()].concat();
    let got = server.get("/bkt/k").await.expect(200);
    assert!(got.body == whole);
    assert!(got.header("etag").ends_with("-2\""));
    let crc = base64_simd::STANDARD.encode_to_string(Crc64Nvme::checksum(&whole));
    let head = server.ask("HEAD", "/bkt/k").header("x-amz-checksum-mode", "ENABLED").send().await;
    assert_eq!(head.header("x-amz-checksum-crc64nvme"), crc);

    let piece = server.get("/bkt/k?partNumber=5").await.expect(206);
    assert_eq!(piece.body, last);
    assert_eq!(piece.header("x-amz-mp-parts-count"), "2");
    server.get("/bkt/k?partNumber=1").await.refused(416, "InvalidPartNumber");
    let asked = "ObjectParts,ObjectSize,ETag,Checksum";
    let reported = server.ask("GET", "/bkt/k?attributes").header("x-amz-object-attributes", asked);
    let reported = reported.header("x-amz-max-parts", "1").send().await.expect(200);
    assert_eq!(reported.tag("PartsCount").as_deref(), Some("2"));
    assert_eq!(reported.tags("PartNumber"), ["2"]);
    assert_eq!(reported.tag("IsTruncated").as_deref(), Some("true"));
    assert_eq!(reported.tag("ObjectSize"), Some(whole.len().to_string()));
    let list = server.get(&format!("/bkt/k?uploadId={id}")).await;
    list.refused(404, "NoSuchUpload");
}

#[tokio::test]
async fn a_completion_names_what_is_there() {
    let server = Server::bucket().await;
    let id = begin(&server, "/bkt/k").await;
    let one = part(&server, "/bkt/k", &id, 1, b"small".to_vec()).await;
    let two = part(&server, "/bkt/k", &id, 2, b"small".to_vec()).await;
    let end = |parts: Vec<(u32, String)>| {
        let (server, id) = (&server, &id);
        async move { complete(server, "/bkt/k", id, &parts).await }
    };
    let small = end(vec![(1, one.clone()), (2, two.clone())]).await.refused(400, "EntityTooSmall");
    assert_eq!(small.tag("ETag").as_deref(), Some(one.trim_matches('"')), "{}", small.text());
    end(vec![(2, two.clone()), (1, one.clone())]).await.refused(400, "InvalidPartOrder");
    end(vec![(1, one.clone()), (3, two.clone())]).await.refused(400, "InvalidPart");
    let other = end(vec![(1, "\"0\"".into())]).await.refused(400, "InvalidPart");
    let named = (other.tag("PartNumber"), other.tag("ETag"));
    assert_eq!(named, (Some("1".into()), Some("0".into())), "{}", other.text());
    end(vec![]).await.refused(400, "MalformedXML");
    end(vec![(0, one.clone())]).await.refused(400, "InvalidArgument");
    complete(&server, "/bkt/k", "abc", &[(1, one.clone())]).await.refused(404, "NoSuchUpload");
    complete(&server, "/bkt/other", &id, &[(1, one.clone())]).await.refused(404, "NoSuchUpload");
    let path = format!("/bkt/k?uploadId={id}");
    let ask = |name: &'static str, value: &'static str| {
        let body = list(&[(1, one.clone())]);
        server.ask("POST", &path).header(name, value).body(body).send()
    };
    ask("if-match", "\"x\"").await.refused(404, "NoSuchKey");
    ask("x-amz-mp-object-size", "6").await.refused(400, "InvalidRequest");
    ask("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=").await.refused(400, "BadDigest");
    ask("x-amz-checksum-type", "COMPOSITE").await.refused(400, "InvalidRequest");
    ask("x-amz-mp-object-size", "5").await.expect(200);
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "small");
}

#[tokio::test]
async fn the_checksum_chosen_at_the_beginning_holds_for_all_parts() {
    let server = Server::bucket().await;
    let ask = server.ask("POST", "/bkt/k?uploads").header("x-amz-checksum-algorithm", "SHA256");
    let begun = ask.send().await.expect(200);
    assert_eq!(begun.header("x-amz-checksum-algorithm"), "SHA256");
    assert_eq!(begun.header("x-amz-checksum-type"), "COMPOSITE");
    let id = begun.tag("UploadId").unwrap();
    let path = format!("/bkt/k?partNumber=1&uploadId={id}");
    let other = server.ask("PUT", &path).header("x-amz-checksum-crc32", "AAAAAA==").body("x");
    other.send().await.refused(400, "InvalidRequest");
    let sum = base64_simd::STANDARD.encode_to_string(Sha256::checksum(b"x"));
    let put = server.ask("PUT", &path).header("x-amz-checksum-sha256", &sum).body("x");
    let put = put.send().await.expect(200);
    assert_eq!(put.header("x-amz-checksum-sha256"), sum);
    let listed = server.get(&format!("/bkt/k?uploadId={id}")).await.expect(200);
    assert_eq!(listed.tag("ChecksumSHA256"), Some(sum.clone()));
    assert_eq!(listed.tag("ChecksumType").as_deref(), Some("COMPOSITE"));
    let parts = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag>\
         <ChecksumSHA256>{sum}</ChecksumSHA256></Part></CompleteMultipartUpload>",
        put.header("etag")
    );
    let done = server.ask("POST", &format!("/bkt/k?uploadId={id}")).body(parts).send().await;
    let composite = done.expect(200).tag("ChecksumSHA256").unwrap();
    assert!(composite.ends_with("-1"), "{composite}");
    let head = server.ask("HEAD", "/bkt/k").header("x-amz-checksum-mode", "ENABLED");
    assert_eq!(head.send().await.expect(200).header("x-amz-checksum-sha256"), composite);
    let wrong = server.ask("POST", "/bkt/k?uploads").header("x-amz-checksum-type", "COMPOSITE");
    wrong.send().await.refused(400, "InvalidRequest");
}

#[tokio::test]
async fn parts_are_told_of_one_version_though_the_object_changes() {
    let server = Server::bucket().await;
    let id = begin(&server, "/bkt/k").await;
    let parts = [(1, part(&server, "/bkt/k", &id, 1, b"all".to_vec()).await)];
    complete(&server, "/bkt/k", &id, &parts).await.expect(200);
    let changes = |count| server.store.change.store(count, Ordering::Relaxed);
    let ask = |method, path| {
        let ask = server.ask(method, path).header("x-amz-checksum-mode", "ENABLED");
        ask.header("x-amz-object-attributes", "ObjectParts").send()
    };
    for (method, path, status) in [
        ("GET", "/bkt/k?attributes", 200),
        ("GET", "/bkt/k?partNumber=1", 206),
        ("HEAD", "/bkt/k?partNumber=1", 206),
    ] {
        changes(5);
        ask(method, path).await.expect(status);
        changes(1000);
        ask(method, path).await.expect(409);
    }
}

#[tokio::test]
async fn attributes_show_a_composite_checksum_without_its_number_of_parts() {
    let server = Server::bucket().await;
    let ask = server.ask("POST", "/bkt/k?uploads").header("x-amz-checksum-algorithm", "SHA256");
    let id = ask.send().await.expect(200).tag("UploadId").unwrap();
    let sum = base64_simd::STANDARD.encode_to_string(Sha256::checksum(b"x"));
    let put = server.ask("PUT", &format!("/bkt/k?partNumber=1&uploadId={id}")).body("x");
    let etag = put.header("x-amz-checksum-sha256", &sum).send().await.expect(200);
    let parts = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag>\
         <ChecksumSHA256>{sum}</ChecksumSHA256></Part></CompleteMultipartUpload>",
        etag.header("etag")
    );
    let done = server.ask("POST", &format!("/bkt/k?uploadId={id}")).body(parts).send().await;
    let composite = done.expect(200).tag("ChecksumSHA256").unwrap();
    let names = "Checksum,ObjectParts";
    let ask = server.ask("GET", "/bkt/k?attributes").header("x-amz-object-attributes", names);
    let shown = ask.send().await.expect(200);
    // That of the object, then that of its part.
    let value = composite.strip_suffix("-1").unwrap().to_owned();
    assert_eq!(shown.tags("ChecksumSHA256"), [value, sum], "{}", shown.text());
    assert_eq!(shown.tag("ChecksumType").as_deref(), Some("COMPOSITE"));
    assert_eq!(shown.tag("PartsCount").as_deref(), Some("1"));
}

#[tokio::test]
async fn uploads_and_parts_are_listed_in_pages() {
    let server = Server::bucket().await;
    let a1 = begin(&server, "/bkt/a").await;
    let a2 = begin(&server, "/bkt/a").await;
    let b = begin(&server, "/bkt/dir/b").await;
    let page = server.get("/bkt?uploads&max-uploads=1").await.expect(200);
    assert_eq!(page.tags("UploadId"), [a1.as_str()]);
    assert_eq!(page.tag("NextUploadIdMarker"), Some(a1.clone()));
    let path = format!("/bkt?uploads&key-marker=a&upload-id-marker={a1}");
    assert_eq!(server.get(&path).await.expect(200).tags("UploadId"), [a2.clone(), b.clone()]);
    let after = server.get("/bkt?uploads&key-marker=a").await.expect(200);
    assert_eq!(after.tags("UploadId"), [b.as_str()]);
    let grouped = server.get("/bkt?uploads&delimiter=%2F").await.expect(200);
    assert_eq!(grouped.tags("CommonPrefixes"), ["<Prefix>dir/</Prefix>"]);
    let bad = server.get("/bkt?uploads&key-marker=a&upload-id-marker=x").await;
    bad.refused(400, "InvalidArgument");

    for number in 1..=3 {
        part(&server, "/bkt/a", &a1, number, vec![0; number as usize]).await;
    }
    let path = format!("/bkt/a?uploadId={a1}&max-parts=2");
    let page = server.get(&path).await.expect(200);
    assert_eq!(page.tags("PartNumber"), ["1", "2"]);
    assert_eq!(page.tag("NextPartNumberMarker").as_deref(), Some("2"));
    assert_eq!(page.tag("IsTruncated").as_deref(), Some("true"));
    let page = server.get(&format!("{path}&part-number-marker=2")).await.expect(200);
    assert_eq!((page.tags("PartNumber"), page.tags("Size")), (vec!["3".into()], vec!["3".into()]));

    server.delete(&format!("/bkt/a?uploadId={a1}")).await.expect(204);
    server.delete(&format!("/bkt/a?uploadId={a1}")).await.refused(404, "NoSuchUpload");
}

#[tokio::test]
async fn open_uploads_do_not_keep_a_bucket_but_objects_do() {
    let server = Server::bucket().await;
    let id = begin(&server, "/bkt/a").await;
    server.put("/bkt/k", "x").await.expect(200);
    server.delete("/bkt").await.refused(409, "BucketNotEmpty");
    server.get(&format!("/bkt/a?uploadId={id}")).await.expect(200);
    server.delete("/bkt/k").await.expect(204);
    server.delete("/bkt").await.expect(204);
    server.head("/bkt").await.expect(404);
}

#[tokio::test]
async fn part_numbers_and_uploads_are_checked() {
    let server = Server::bucket().await;
    let id = begin(&server, "/bkt/k").await;
    for number in ["0", "10001", "-1"] {
        let path = format!("/bkt/k?partNumber={number}&uploadId={id}");
        server.put(&path, "x").await.refused(400, "InvalidArgument");
    }
    let other = id.replace('0', "1");
    for wrong in ["x", other.as_str()] {
        let path = format!("/bkt/k?partNumber=1&uploadId={wrong}");
        server.put(&path, "x").await.refused(404, "NoSuchUpload");
    }
    let wrong = server.ask("PUT", &format!("/bkt/k?partNumber=1&uploadId={id}")).body("x");
    let wrong = wrong.header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==").send().await;
    wrong.refused(400, "BadDigest");
    let listed = server.get(&format!("/bkt/k?uploadId={id}")).await.expect(200);
    assert!(listed.tags("PartNumber").is_empty());
}

#[tokio::test]
async fn a_part_may_be_copied_from_an_object() {
    let server = Server::bucket().await;
    server.put("/bkt/src", "0123456789").await.expect(200);
    let id = begin(&server, "/bkt/k").await;
    let path = format!("/bkt/k?partNumber=1&uploadId={id}");
    let copy = |range: &'static str| {
        let ask = server.ask("PUT", &path).header("x-amz-copy-source", "/bkt/src");
        ask.header("x-amz-copy-source-range", range).send()
    };
    copy("bytes=2-10").await.refused(416, "InvalidRange");
    copy("bytes=2").await.refused(400, "InvalidArgument");
    let done = copy("bytes=2-4").await.expect(200);
    let etag = done.tag("ETag").unwrap().replace("&quot;", "\"");
    complete(&server, "/bkt/k", &id, &[(1, etag)]).await.expect(200);
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "234");
}

#[tokio::test]
async fn an_upload_is_aborted_if_it_began_at_the_time_that_is_named() {
    let server = Server::bucket().await;
    let id = begin(&server, "/bkt/k").await;
    let path = format!("/bkt/k?uploadId={id}");
    let begun = server.get("/bkt?uploads").await.expect(200).tag("Initiated").unwrap();
    let abort = |date: &'static str| {
        server.ask("DELETE", &path).header("x-amz-if-match-initiated-time", date).send()
    };
    abort("Wed, 21 Oct 2015 07:28:00 GMT").await.refused(412, "PreconditionFailed");
    abort("soon").await.refused(400, "InvalidArgument");
    server.get(&path).await.expect(200);
    let date = http_date(&begun);
    let ask = server.ask("DELETE", &path).header("x-amz-if-match-initiated-time", date);
    ask.send().await.expect(204);
}

#[tokio::test]
async fn a_bucket_that_is_not_there_is_named_before_the_upload() {
    let server = Server::bucket().await;
    let id = begin(&server, "/bkt/k").await;
    for id in [id.as_str(), "x"] {
        let path = format!("/none/k?uploadId={id}");
        server.put(&format!("{path}&partNumber=1"), "x").await.refused(404, "NoSuchBucket");
        server.delete(&path).await.refused(404, "NoSuchBucket");
        server.get(&path).await.refused(404, "NoSuchBucket");
        let parts = [(1, "\"0\"".to_owned())];
        complete(&server, "/none/k", id, &parts).await.refused(404, "NoSuchBucket");
        let copy = server.ask("PUT", &format!("{path}&partNumber=1"));
        let copy = copy.header("x-amz-copy-source", "/bkt/k").send().await;
        copy.refused(404, "NoSuchBucket");
    }
}

#[tokio::test]
async fn an_upload_keeps_the_redirect_of_its_object() {
    let server = Server::bucket().await;
    let begun = server.ask("POST", "/bkt/k?uploads");
    let begun = begun.header("x-amz-website-redirect-location", "/elsewhere").send().await;
    let id = begun.expect(200).tag("UploadId").unwrap();
    let one = part(&server, "/bkt/k", &id, 1, b"x".to_vec()).await;
    complete(&server, "/bkt/k", &id, &[(1, one)]).await.expect(200);
    let head = server.head("/bkt/k").await.expect(200);
    assert_eq!(head.header("x-amz-website-redirect-location"), "/elsewhere");
}
