//! XML that clients send, and the numbers in their requests: what is taken is taken whole.

use md5::Digest;

use crate::client::{Answer, Server};

async fn post(server: &Server, path: &str, xml: &str) -> Answer {
    let md5 = base64_simd::STANDARD.encode_to_string(md5::Md5::digest(xml.as_bytes()));
    server.ask("POST", path).header("content-md5", md5).body(xml.to_owned()).send().await
}

/// A server with an object of this key, as an address has it.
async fn with_object(key: &str) -> Server {
    let server = Server::bucket().await;
    server.put(&format!("/bkt/{key}"), "x").await.expect(200);
    server
}

#[tokio::test]
async fn a_batch_deletes_the_keys_that_it_spells() {
    for (key, xml) in [
        ("%F0%9F%98%80", "<Delete><Object><Key>&#128512;</Key></Object></Delete>"),
        ("%F0%9F%98%80", "<Delete><Object><Key>&#x1f600;</Key></Object></Delete>"),
        ("a%26b", "<Delete><Object><Key>a<![CDATA[&b]]></Key></Object></Delete>"),
        ("k", "<d:Delete xmlns:d=\"urn:x\"><d:Object><d:Key>k</d:Key></d:Object></d:Delete>"),
        (
            "k",
            "<Delete><Object><Key>k</Key><Size>\n 1 </Size></Object><Quiet>\ntrue</Quiet></Delete>",
        ),
        (
            "k",
            "<Delete><Object><Key>k</Key><ETag> \"9dd4e461268c8034f5c8564e155c67a6\"\n</ETag></Object></Delete>",
        ),
    ] {
        let server = with_object(key).await;
        let done = post(&server, "/bkt?delete", xml).await.expect(200);
        assert!(!done.text().contains("<Error>"), "{xml}: {}", done.text());
        server.head(&format!("/bkt/{key}")).await.expect(404);
    }
}

#[tokio::test]
async fn a_batch_that_would_be_read_in_part_deletes_nothing() {
    let server = with_object("k").await;
    let key = "<Object><Key>k</Key></Object>";
    for xml in [
        format!("<Delete>{key}<object><Key>a</Key></object></Delete>"),
        format!("<Delete>{key}stray</Delete>"),
        format!("<Delete>{key}</Delete><Delete/>"),
        "<Delete><Object><Key>k</Key><Size>1abc</Size></Object></Delete>".to_owned(),
        "<Delete><Object><Key>k</Key><Versionid>x</Versionid></Object></Delete>".to_owned(),
    ] {
        post(&server, "/bkt?delete", &xml).await.refused(400, "MalformedXML");
        server.head("/bkt/k").await.expect(200);
    }
    let empty = post(&server, "/bkt?delete", "<Delete><Object><Key/></Object></Delete>").await;
    assert_eq!(empty.expect(200).tag("Code").as_deref(), Some("UserKeyMustBeSpecified"));
}

#[tokio::test]
async fn a_completion_that_would_drop_a_part_is_refused() {
    let server = Server::bucket().await;
    let begun = server.ask("POST", "/bkt/k?uploads").send().await.expect(200);
    let path = format!("/bkt/k?uploadId={}", begun.tag("UploadId").unwrap());
    let part = |number: u32| format!("{path}&partNumber={number}");
    let etag = server.put(&part(1), "a").await.expect(200).header("etag").to_owned();
    server.put(&part(2), "b").await.expect(200);
    let named =
        |number: &str| format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
    for parts in [
        named("1") + &named("2").replace("Part>", "part>"),
        named("1") + "2",
        named("1abc"),
        named("1").replace("</Part>", "<Size>1</Size></Part>"),
    ] {
        let xml = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        post(&server, &path, &xml).await.refused(400, "MalformedXML");
        server.head("/bkt/k").await.expect(404);
    }
    let odd = server.ask("POST", &path).header("x-amz-mp-object-size", "1abc");
    let whole = |xml: String| format!("<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>");
    odd.body(whole(named("1"))).send().await.refused(400, "InvalidArgument");
    let spaced = whole(named("\n  1\n").replace("<ETag>", "<ETag>\n "));
    post(&server, &path, &spaced).await.expect(200);
}

#[tokio::test]
async fn a_number_is_one_to_its_end_and_in_range() {
    let server = with_object("k").await;
    for path in [
        "/bkt?max-keys=1x",
        "/bkt?max-keys=-1",
        "/bkt?list-type=2&max-keys=2147483648",
        "/bkt?versions&max-keys=a",
        "/bkt?uploads&max-uploads=1x",
        "/bkt/k?partNumber=0",
        "/bkt/k?partNumber=10001",
        "/bkt/k?partNumber=1x",
        "/?max-buckets=0",
        "/?max-buckets=1x",
    ] {
        server.get(path).await.refused(400, "InvalidArgument");
    }
    let begun = server.ask("POST", "/bkt/k?uploads").send().await.expect(200);
    let upload = begun.tag("UploadId").unwrap();
    for odd in ["max-parts=1x", "max-parts=-1", "part-number-marker=-1"] {
        let path = format!("/bkt/k?uploadId={upload}&{odd}");
        server.get(&path).await.refused(400, "InvalidArgument");
    }
    let refused = server.get("/bkt?max-keys=a").await.refused(400, "InvalidArgument");
    let message = "Provided max-keys not an integer or within integer range";
    assert_eq!(refused.tag("Message").as_deref(), Some(message));
    for (method, path, name) in [
        ("PUT", "/bkt/k", "x-amz-write-offset-bytes"),
        ("DELETE", "/bkt/k", "x-amz-if-match-size"),
        ("GET", "/bkt/k?attributes", "x-amz-max-parts"),
        ("GET", "/bkt/k?attributes", "x-amz-part-number-marker"),
    ] {
        let ask = server.ask(method, path).header("x-amz-object-attributes", "ETag");
        ask.header(name, "1abc").send().await.refused(400, "InvalidArgument");
    }
    assert_eq!(server.get("/bkt/k").await.expect(200).text(), "x");
}

/// Requests that put or post something, and are carried out.
const WRITES: [(&str, &str, &str); 9] = [
    ("PUT", "/bkt/k", "x"),
    ("PUT", "/bkt/k?tagging", "<Tagging><TagSet/></Tagging>"),
    ("PUT", "/bkt/k?acl", ""),
    ("PUT", "/bkt?acl", ""),
    (
        "PUT",
        "/bkt?cors",
        "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule>\
         </CORSConfiguration>",
    ),
    ("PUT", "/other", ""),
    ("POST", "/bkt?delete", "<Delete><Object><Key>a</Key></Object></Delete>"),
    ("POST", "/bkt/k?uploads", ""),
    ("PUT", "/bkt/copy", ""),
];

#[tokio::test]
async fn every_body_is_the_one_that_was_signed() {
    let server = with_object("k").await;
    for (method, path, body) in WRITES {
        let ask = |payload: Option<&str>| {
            let md5 = base64_simd::STANDARD.encode_to_string(md5::Md5::digest(body.as_bytes()));
            let mut ask = server.ask(method, path).header("content-md5", md5).body(body);
            if path.ends_with("acl") {
                ask = ask.header("x-amz-acl", "private");
            }
            if path.ends_with("copy") {
                ask = ask.header("x-amz-copy-source", "/bkt/k");
            }
            match payload {
                Some(payload) => ask.payload(payload).send(),
                None => ask.send(),
            }
        };
        let other = "0".repeat(64);
        let refused = ask(Some(&other)).await.refused(400, "XAmzContentSHA256Mismatch");
        assert!(refused.tag("Message").is_some(), "{method} {path}");
        let status = ask(None).await.status;
        assert_eq!(status, 200, "{method} {path}");
    }
    assert_eq!(server.get("/bkt/copy").await.expect(200).text(), "x");
}

#[tokio::test]
async fn a_405_lists_the_methods_that_are_allowed() {
    let server = with_object("k").await;
    for (method, path, allowed) in [
        ("PATCH", "/bkt/k", "DELETE, GET, HEAD, PUT"),
        ("POST", "/bkt/k", "DELETE, GET, HEAD, PUT"),
        ("DELETE", "/", "GET, HEAD"),
        ("DELETE", "/bkt/k?acl", "GET, PUT"),
        ("DELETE", "/bkt?versioning", "GET, PUT"),
    ] {
        let answer = server.ask(method, path).send().await.refused(405, "MethodNotAllowed");
        assert_eq!(answer.header("allow"), allowed, "{method} {path}");
    }
    server.head("/bkt/k").await.expect(200);
}

#[tokio::test]
async fn a_setting_of_a_missing_bucket_is_refused() {
    let server = Server::start().await;
    for name in ["acl", "cors", "encryption", "lifecycle", "policy", "tagging", "versioning"] {
        let xml = "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod>\
                   </CORSRule></CORSConfiguration>";
        let ask = server.ask("PUT", &format!("/none?{name}")).header("x-amz-acl", "private");
        ask.body(xml).send().await.refused(404, "NoSuchBucket");
    }
    for name in ["cors", "policy", "tagging", "ownershipControls"] {
        server.delete(&format!("/none?{name}")).await.refused(404, "NoSuchBucket");
    }
}
