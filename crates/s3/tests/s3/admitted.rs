//! Requests that are spoiled first and signed then, so that they reach what lies behind the signature: names, queries,
//! conditions, ranges, checksums, copy sources, documents.

use base64_simd::STANDARD;
use sha2::Digest;

use crate::client::{Ask, Server, Sign};
use crate::mutated::{Rng, TOKENS, spoil_piece};

/// Names of the query, of lists, uploads and sub-resources.
const PARAMETERS: [&str; 24] = [
    "acl",
    "continuation-token",
    "cors",
    "delete",
    "delimiter",
    "encoding-type",
    "fetch-owner",
    "key-marker",
    "list-type",
    "location",
    "marker",
    "max-keys",
    "max-parts",
    "max-uploads",
    "part-number-marker",
    "partNumber",
    "prefix",
    "response-content-type",
    "start-after",
    "tagging",
    "uploadId",
    "upload-id-marker",
    "uploads",
    "versionId",
];

const HEADERS: [&str; 26] = [
    "content-encoding",
    "content-md5",
    "content-type",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "range",
    "x-amz-acl",
    "x-amz-checksum-algorithm",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-mode",
    "x-amz-checksum-type",
    "x-amz-copy-source",
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-range",
    "x-amz-decoded-content-length",
    "x-amz-meta-a",
    "x-amz-metadata-directive",
    "x-amz-storage-class",
    "x-amz-tagging",
    "x-amz-trailer",
    "x-amz-write-offset-bytes",
    "x-larder-append",
    "x-larder-list-regions",
];

/// Values of parameters and headers.
const VALUES: [&str; 30] = [
    "",
    "0",
    "-1",
    "1",
    "2",
    "10000",
    "10001",
    "18446744073709551616",
    "bytes=0-0",
    "bytes=-1",
    "bytes=9-3",
    "bytes=0-18446744073709551615",
    "bytes=0-1,5-6",
    "*",
    "\"",
    "\"a\",\"b\"",
    "W/\"a\"",
    "bkt/k",
    "/bkt/k?versionId=null",
    "bkt/%00",
    "%zz",
    "a=b&c=d",
    "Wed, 21 Oct 2015 07:28:00 GMT",
    "AAAAAA==",
    "true",
    "aws-chunked",
    "CRC32",
    "REPLACE",
    "url",
    "..%2F..",
];

/// Pieces of documents that parsers trip over.
const MARKUP: [&str; 14] = [
    "<",
    "</Part>",
    "<Part><PartNumber>1</PartNumber></Part>",
    "<PartNumber>99999999999999999999</PartNumber>",
    "<ETag></ETag>",
    "<Key></Key>",
    "<Object/>",
    "<Quiet>maybe</Quiet>",
    "<!ENTITY a \"&a;&a;\">",
    "&a;",
    "&#0;",
    "&#x110000;",
    "<!--",
    "<?xml version=\"9\" encoding=\"utf-16\"?>",
];

/// A request before it is signed; names are as they are meant, not as they are spelled.
struct Draft {
    method: &'static str,
    path: Vec<u8>,
    query: Vec<(Vec<u8>, Vec<u8>)>,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Draft {
    fn of(
        method: &'static str,
        path: &str,
        query: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Self {
        let query =
            query.iter().map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into()));
        let (query, headers) = (query.collect(), Vec::new());
        Self { method, path: path.into(), query, headers, body: body.into() }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.set(name, value.to_owned());
        self
    }

    fn set(&mut self, name: &str, value: String) {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value));
    }

    /// One change, of one part of the request.
    fn spoil(&mut self, rng: &mut Rng) {
        match rng.below(8) {
            0 => {
                let at = 1 + rng.below(self.path.len());
                let piece = rng.pick(&TOKENS).to_vec();
                self.path.splice(at.min(self.path.len())..at.min(self.path.len()), piece);
            }
            1 | 2 => {
                let name = rng.pick(&PARAMETERS).as_bytes().to_vec();
                let value = rng.pick(&VALUES).as_bytes().to_vec();
                self.query.retain(|(known, _)| *known != name);
                self.query.push((name, value));
            }
            3 if !self.query.is_empty() => {
                let at = rng.below(self.query.len());
                spoil_piece(rng, &mut self.query[at].1);
            }
            4 | 5 => {
                let (name, value) = (*rng.pick(&HEADERS), rng.pick(&VALUES).trim().to_owned());
                self.set(name, value);
            }
            6 if self.body.starts_with(b"<") => {
                let (at, piece) = (rng.below(self.body.len()), rng.pick(&MARKUP).as_bytes());
                self.body.splice(at..at, piece.iter().copied());
            }
            _ => spoil_piece(rng, &mut self.body),
        }
    }

    fn ask(&self, server: &Server, sign: Sign) -> Ask {
        let spelled = |bytes: &[u8]| urlencoding::encode_binary(bytes).into_owned();
        let path: Vec<String> = self.path.split(|byte| *byte == b'/').map(spelled).collect();
        let query: Vec<String> = (self.query.iter())
            .map(|(name, value)| format!("{}={}", spelled(name), spelled(value)))
            .collect();
        let ask = server.ask(self.method, &format!("{}?{}", path.join("/"), query.join("&")));
        let ask = self.headers.iter().fold(ask, |ask, (name, value)| ask.header(name, value));
        ask.body(self.body.clone()).sign(sign)
    }
}

/// Good requests, some of an upload that is under way.
fn drafts(upload: &str) -> Vec<Draft> {
    let part = [("partNumber", "1"), ("uploadId", upload)];
    let tagging = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    vec![
        Draft::of("GET", "/bkt", &[("list-type", "2"), ("prefix", "a/b"), ("delimiter", "/")], ""),
        Draft::of("GET", "/bkt", &[("uploads", ""), ("max-uploads", "3")], ""),
        Draft::of("GET", "/bkt/k", &[], "").with("range", "bytes=1-2"),
        Draft::of("HEAD", "/bkt/k", &[("partNumber", "1")], ""),
        Draft::of("GET", "/bkt/k", &[("uploadId", upload)], ""),
        Draft::of("PUT", "/bkt/k", &[], "some bytes").with("x-amz-tagging", "a=b"),
        Draft::of("PUT", "/bkt/k", &[], "some bytes").with("if-none-match", "*"),
        Draft::of("PUT", "/bkt/copy", &[], "").with("x-amz-copy-source", "/bkt/k"),
        Draft::of("PUT", "/bkt/k", &part, "").with("x-amz-copy-source", "/bkt/k"),
        Draft::of("PUT", "/bkt/k", &part, "a part"),
        Draft::of("PUT", "/bkt/k", &[("tagging", "")], tagging),
        Draft::of("DELETE", "/bkt/k", &[], ""),
        Draft::of("POST", "/bkt/k", &[("uploads", "")], ""),
        Draft::of(
            "POST",
            "/bkt/k",
            &[("uploadId", upload)],
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"a\"</ETag></Part>\
             </CompleteMultipartUpload>",
        ),
        Draft::of(
            "POST",
            "/bkt",
            &[("delete", "")],
            "<Delete><Quiet>true</Quiet><Object><Key>a</Key><VersionId>null</VersionId></Object></Delete>",
        ),
        Draft::of(
            "PUT",
            "/another",
            &[],
            "<CreateBucketConfiguration><LocationConstraint>us-east-1</LocationConstraint>\
             </CreateBucketConfiguration>",
        ),
        Draft::of("PUT", "/bkt/k", &[], "4\r\nsome\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n")
            .with("content-encoding", "aws-chunked")
            .with("x-amz-trailer", "x-amz-checksum-crc32")
            .with("x-amz-decoded-content-length", "4"),
    ]
}

/// A request that a client signed, with a few things in it that are wrong, and the digest of its body if it needs one.
pub fn spoiled(server: &Server, rng: &mut Rng, upload: &str) -> Ask {
    let drafts = drafts(upload);
    let at = rng.below(drafts.len());
    let mut draft = drafts.into_iter().nth(at).unwrap();
    for _ in 0..1 + rng.below(3) {
        draft.spoil(rng);
    }
    // A document with another digest than it says is refused before it is read.
    if draft.method == "POST" && rng.below(8) > 0 {
        draft.set("content-md5", STANDARD.encode_to_string(md5::Md5::digest(&draft.body)));
    }
    let is_chunked = draft.headers.iter().any(|(name, _)| name == "x-amz-trailer");
    let sign = if rng.below(6) == 0 { Sign::Query { expires_s: 600 } } else { Sign::Header };
    match (is_chunked, rng.below(3)) {
        (true, _) => draft.ask(server, Sign::Header).payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
        (false, 0) => draft.ask(server, sign).payload("UNSIGNED-PAYLOAD"),
        (false, _) => draft.ask(server, sign),
    }
}

/// True if an answer is that of a server that believed the signature.
pub fn is_admitted(answer: &[u8]) -> bool {
    let answer = String::from_utf8_lossy(answer);
    let refused = ["SignatureDoesNotMatch", "AccessDenied", "Authorization", "X-Amz-"];
    answer.starts_with("HTTP/1.1 ") && !refused.iter().any(|code| answer.contains(code))
}
