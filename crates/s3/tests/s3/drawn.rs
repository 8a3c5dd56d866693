//! Requests drawn at random, each at a server of its own that has a bucket, two objects and an upload: every one gets a whole
//! and well-formed answer.
//!
//! `LARDER_DRAWN` sets how many are drawn, `LARDER_DRAWN_SEED` where to begin. `LARDER_DRAWN_OUT` names a file to which requests and
//! answers are written, so that those of two releases can be compared.

use std::fmt::Write;

use md5::Digest;

use crate::client::{Answer, Ask, Server};
use crate::mutated::{Rng, setting};

/// Requests that are drawn unless it is told otherwise.
const DRAWN: u64 = 300;

const METHODS: [&str; 12] =
    ["GET", "GET", "GET", "PUT", "PUT", "PUT", "POST", "POST", "DELETE", "DELETE", "HEAD", "PATCH"];
const PATHS: [&str; 10] =
    ["/", "/bkt", "/bkt/", "/bkt", "/none", "/bkt/k", "/bkt/k", "/bkt/a/b", "/bkt/none", "/none/k"];
const PARAMETERS: [&str; 44] = [
    "acl",
    "accelerate",
    "attributes",
    "bucket-region",
    "continuation-token",
    "cors",
    "delete",
    "delete",
    "delimiter",
    "encoding-type",
    "encryption",
    "fetch-owner",
    "key-marker",
    "legal-hold",
    "lifecycle",
    "list-type",
    "location",
    "logging",
    "marker",
    "max-buckets",
    "max-keys",
    "max-parts",
    "max-uploads",
    "object-lock",
    "part-number-marker",
    "partNumber",
    "partNumber=1&uploadId",
    "partNumber=1&uploadId",
    "policy",
    "policyStatus",
    "prefix",
    "publicAccessBlock",
    "retention",
    "start-after",
    "tagging",
    "tagging",
    "upload-id-marker",
    "uploadId",
    "uploadId",
    "uploads",
    "versionId",
    "version-id-marker",
    "versioning",
    "versions",
];
const VALUES: [&str; 15] = [
    "",
    "=",
    "=0",
    "=1",
    "=2",
    "=-1",
    "=99999999999",
    "=1x",
    "=true",
    "=url",
    "=a",
    "=null",
    "=UPLOAD",
    "=UPLOAD",
    "=%2F",
];
const HEADERS: [&str; 47] = [
    "cache-control",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
    "if-match",
    "if-none-match",
    "x-amz-acl",
    "x-amz-checksum-algorithm",
    "x-amz-checksum-crc32",
    "x-amz-checksum-sha256",
    "x-amz-checksum-type",
    "x-amz-copy-source",
    "x-amz-copy-source",
    "x-amz-copy-source",
    "x-amz-copy-source",
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-unmodified-since",
    "x-amz-copy-source-range",
    "x-amz-copy-source-server-side-encryption-customer-algorithm",
    "x-amz-bucket-object-lock-enabled",
    "x-amz-expected-bucket-owner",
    "x-amz-grant-read",
    "x-amz-if-match-initiated-time",
    "x-amz-if-match-size",
    "x-amz-max-parts",
    "x-amz-meta-a",
    "x-amz-meta-a",
    "x-amz-metadata-directive",
    "x-amz-mfa",
    "x-amz-mp-object-size",
    "x-amz-object-attributes",
    "x-amz-object-attributes",
    "x-amz-object-lock-mode",
    "x-amz-object-ownership",
    "x-amz-optional-object-attributes",
    "x-amz-part-number-marker",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-source-expected-bucket-owner",
    "x-amz-storage-class",
    "x-amz-tagging",
    "x-amz-tagging-directive",
    "x-amz-website-redirect-location",
];
const TEXTS: [&str; 29] = [
    "/bkt/k",
    "bkt/k",
    "bkt/a%2Fb",
    "/bkt/k?versionId=null",
    "/bkt/none",
    "bkt",
    "0",
    "1",
    "-1",
    "1x",
    "true",
    "private",
    "public-read",
    "CRC32",
    "SHA256",
    "COMPOSITE",
    "FULL_OBJECT",
    "AAAAAA==",
    "ETag,ObjectSize,ObjectParts,Checksum,StorageClass",
    "\"9dd4e461268c8034f5c8564e155c67a6\"",
    "*",
    "bytes=0-0",
    "REPLACE",
    "COPY",
    "STANDARD_IA",
    "AES256",
    "a=b",
    "Wed, 21 Oct 2015 07:28:00 GMT",
    "=?UTF-8?B?w6Q=?=",
];
const BODIES: [&str; 26] = [
    "",
    "",
    "x",
    "<Delete><Object><Key>k</Key></Object></Delete>",
    "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Object><Key>a/b</Key><VersionId>null</VersionId></Object>\
     <Quiet>true</Quiet></Delete>",
    "<Delete><Object><Key>k</Key><ETag>\"0\"</ETag></Object><Object><Key>&#13;</Key></Object></Delete>",
    "<Delete><Object><Key>k</Key><Size>1</Size></Object></Delete>",
    "<Delete><Object><Key>k</Key><Size>2</Size></Object></Delete>",
    "<Delete><Object></Object></Delete>",
    "<Delete></Delete>",
    "<Delete><Object><Key>k</Key></Object>",
    "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>PART</ETag></Part></CompleteMultipartUpload>",
    "<CompleteMultipartUpload><Part><ETag>PART</ETag></Part></CompleteMultipartUpload>",
    "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>PART</ETag><ChecksumCRC32>AAAAAA==</ChecksumCRC32>\
     </Part></CompleteMultipartUpload>",
    "<CompleteMultipartUpload><Part><PartNumber>2</PartNumber><ETag>PART</ETag></Part></CompleteMultipartUpload>",
    "<CompleteMultipartUpload/>",
    "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>",
    "<Tagging><TagSet/></Tagging>",
    "<Tagging><TagSet><Tag><Key>a</Key></Tag><Tag><Key>a</Key></Tag></TagSet></Tagging>",
    "<Tagging/>",
    "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod><MaxAgeSeconds>5\
     </MaxAgeSeconds></CORSRule></CORSConfiguration>",
    "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod><MaxAgeSeconds>5</MaxAgeSeconds>\
     </CORSRule></CORSConfiguration>",
    "<CORSConfiguration><CORSRule></CORSRule></CORSConfiguration>",
    "<CreateBucketConfiguration><LocationConstraint>us-east-1</LocationConstraint></CreateBucketConfiguration>",
    "<CreateBucketConfiguration/>",
    "<Other/>",
];

fn pick(rng: &mut Rng, from: &[&'static str]) -> &'static str {
    from[rng.below(from.len())]
}

/// A request, and its text.
fn drawn(server: &Server, rng: &mut Rng, upload: &str, part: &str) -> (Ask, String) {
    let method = pick(rng, &METHODS);
    let mut path = pick(rng, &PATHS).to_owned();
    for n in 0..rng.below(4) {
        path.push(if n == 0 { '?' } else { '&' });
        path.push_str(pick(rng, &PARAMETERS));
        path.push_str(pick(rng, &VALUES));
    }
    let mut text = format!("{method} {path}");
    let mut ask = server.ask(method, &path.replace("UPLOAD", upload));
    let mut names: Vec<&str> = Vec::new();
    for _ in 0..rng.below(4) {
        let (name, value) = (pick(rng, &HEADERS), pick(rng, &TEXTS));
        // The client signs each header as one line.
        if names.contains(&name) {
            continue;
        }
        names.push(name);
        let _ = write!(text, " | {name}: {value}");
        ask = ask.header(name, value);
    }
    if matches!(method, "PUT" | "POST") || rng.below(8) == 0 {
        let body = pick(rng, &BODIES);
        let _ = write!(text, " | {body}");
        let body = body.replace("PART", part);
        if rng.below(4) > 0 {
            let md5 = base64_simd::STANDARD.encode_to_string(md5::Md5::digest(body.as_bytes()));
            text.push_str(" | content-md5");
            ask = ask.header("content-md5", md5);
        }
        ask = ask.body(body);
    }
    (ask, text)
}

/// An answer without what differs from one run to the next.
fn text_of(answer: &Answer, upload: &str, address: &str) -> String {
    let mut text = format!("{}", answer.status.as_u16());
    let mut names: Vec<&str> = answer.headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    for name in names {
        if !["date", "last-modified", "x-amz-id-2", "x-amz-request-id"].contains(&name) {
            let _ = write!(text, " | {name}: {}", answer.header(name));
        }
    }
    let mut body = answer.text().replace(upload, "UPLOAD").replace(address, "ADDRESS");
    for tag in ["LastModified", "Initiated", "CreationDate", "RequestId"] {
        for value in answer.tags(tag) {
            body = body.replace(&value, tag);
        }
    }
    text + " | " + &body
}

/// True if each element that begins ends.
fn is_balanced(xml: &str) -> bool {
    let mut open = Vec::new();
    for tag in xml.split('<').skip(1) {
        let Some((tag, _text)) = tag.split_once('>') else { return false };
        if tag.starts_with('?') || tag.ends_with('/') {
            continue;
        }
        match tag.strip_prefix('/') {
            Some(name) if open.pop() != Some(name) => return false,
            Some(_) => {}
            None => open.push(tag.split(' ').next().unwrap_or(tag)),
        }
    }
    open.is_empty()
}

/// Checks that an answer is whole.
fn check(answer: &Answer, request: &str) {
    let (status, body) = (answer.status.as_u16(), answer.text());
    assert!(status < 500 || status == 501, "{request}: {status} {body}");
    if answer.header("content-type") == "application/xml" {
        assert!(is_balanced(&body), "{request}: {body}");
        let is_whole = body.starts_with("<?xml") || request.starts_with("HEAD");
        assert!(is_whole, "{request}: {body}");
    }
    if status >= 400 && !request.starts_with("HEAD") {
        for tag in ["Code", "Message", "Resource", "RequestId"] {
            assert!(answer.tag(tag).is_some(), "{request}: {tag} {body}");
        }
    }
}

#[tokio::test]
async fn drawn_requests_get_whole_answers() {
    let first = setting("LARDER_DRAWN_SEED").unwrap_or(1);
    // An earlier release need not pass.
    let (mut out, file) = (String::new(), std::env::var("LARDER_DRAWN_OUT").ok());
    let (mut done, all) = (0_u32, setting("LARDER_DRAWN").unwrap_or(DRAWN));
    for seed in first..first + all {
        let server = Server::bucket().await;
        server.put("/bkt/k", "x").await.expect(200);
        let put = server.ask("PUT", "/bkt/a/b").header("x-amz-tagging", "a=b").body("y");
        put.header("x-amz-meta-m", "1").send().await.expect(200);
        let begun = server.ask("POST", "/bkt/k?uploads").send().await.expect(200);
        let upload = begun.tag("UploadId").unwrap();
        let path = format!("/bkt/k?partNumber=1&uploadId={upload}");
        let part = server.put(&path, "z").await.expect(200).header("etag").to_owned();
        let (ask, request) = drawn(&server, &mut Rng::new(seed), &upload, &part);
        let answer = ask.send().await;
        if file.is_none() {
            check(&answer, &request);
        }
        done += u32::from(answer.status.is_success());
        let text = text_of(&answer, &upload, &server.address.to_string());
        let _ = writeln!(out, "{seed} {request}\n  {text}");
    }
    if let Some(file) = file {
        std::fs::write(file, &out).unwrap();
    }
    assert!(u64::from(done) > all / 10, "some are carried out: {done} of {all}");
}
