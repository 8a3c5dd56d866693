//! Requests drawn at random: what is read of them here is what the protocol library reads, as long as it is there. Forms of
//! headers that it takes otherwise than S3 are left out before it.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Method};
use proptest::prelude::*;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::dto::{self, Range, Timestamp, TimestampFormat};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::{delete, get, list, put};
use crate::compat::headers::join_lines;
use crate::compat::unread;
use crate::options::Domains;
use crate::request::address;
use crate::request::conditions::ReadConditions;
use crate::request::head::Parameters;
use crate::request::routing::{Direct, Operation, Route};

/// The code of what was read without a fault.
const READ: &str = "Read";

/// The codes of headers and parameters that cannot be read.
const FAULTS: [&str; 2] = ["InvalidArgument", "InvalidRequest"];

/// Requests that are drawn, unless `PROPTEST_CASES` asks for more.
const CASES_MIN: u32 = 20_000;

/// Notes what the library makes of a request.
#[derive(Clone, Default)]
struct Notes {
    operation: Arc<Mutex<Option<String>>>,
    read: Arc<Mutex<Option<String>>>,
}

impl Notes {
    fn note<T>(&self, read: String) -> S3Result<S3Response<T>> {
        *self.read.lock().unwrap() = Some(read);
        Err(S3Error::new(S3ErrorCode::Custom(READ.into())))
    }
}

#[async_trait::async_trait]
impl S3Access for Notes {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        *self.operation.lock().unwrap() = Some(context.s3_op().name().to_owned());
        Ok(())
    }
}

#[async_trait::async_trait]
impl S3 for Notes {
    async fn put_object(
        &self,
        request: S3Request<dto::PutObjectInput>,
    ) -> S3Result<S3Response<dto::PutObjectOutput>> {
        let mut input = request.input;
        (input.body, input.content_length, input.expires) = (None, None, None);
        (input.bucket, input.key) = Default::default();
        self.note(text_of_put(input))
    }

    async fn get_object(
        &self,
        request: S3Request<dto::GetObjectInput>,
    ) -> S3Result<S3Response<dto::GetObjectOutput>> {
        let input = request.input;
        let conditions = ReadConditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let checksum = input.checksum_mode.is_some_and(|mode| mode.as_str() == "ENABLED");
        let shown = input.response_content_type;
        self.note(text_of(&(conditions, input.range, input.part_number, checksum, shown)))
    }

    async fn delete_object(
        &self,
        request: S3Request<dto::DeleteObjectInput>,
    ) -> S3Result<S3Response<dto::DeleteObjectOutput>> {
        let input = request.input;
        let modified = input.if_match_last_modified_time;
        self.note(text_of(&(input.if_match, input.if_match_size, modified)))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<dto::ListObjectsV2Input>,
    ) -> S3Result<S3Response<dto::ListObjectsV2Output>> {
        let mut input = request.input;
        input.bucket = String::new();
        self.note(text_of(&input))
    }
}

fn text_of(read: &impl Debug) -> String {
    format!("{read:?}")
}

/// The library's map of metadata has no order.
fn text_of_put(mut input: dto::PutObjectInput) -> String {
    let metadata = input.metadata.take().map(|all| {
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_unstable();
        all
    });
    text_of(&(input, metadata))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// Takes out what S3 ignores. Of a number the library reads the beginning, where S3 refuses it.
fn leave_out_odd(headers: &mut HeaderMap) {
    let is_date = |text: &str| Timestamp::parse(TimestampFormat::HttpDate, text).is_ok();
    for name in ["range", "if-modified-since", "if-unmodified-since"] {
        let mut lines = headers.get_all(name).iter();
        let (Some(one), None) = (lines.next(), lines.next()) else { continue };
        let text = one.to_str().unwrap_or_default();
        let is_read = if name == "range" { Range::parse(text).is_ok() } else { is_date(text) };
        if !is_read && !one.is_empty() {
            headers.remove(name);
        }
    }
    for name in ["x-amz-if-match-size", "x-amz-write-offset-bytes"] {
        let odd = |line: &&mut HeaderValue| {
            !line.is_empty() && line.to_str().is_ok_and(|text| text.parse::<i64>().is_err())
        };
        if let http::header::Entry::Occupied(mut lines) = headers.entry(name) {
            lines.iter_mut().filter(odd).for_each(|line| *line = HeaderValue::from_static("odd"));
        }
    }
}

/// The library's operation, and what it reads or the code of the fault.
fn by_library(library: &S3Service, notes: &Notes, request: &Drawn) -> (Option<String>, String) {
    *notes.operation.lock().unwrap() = None;
    *notes.read.lock().unwrap() = None;
    let (mut parts, ()) = request.build().into_parts();
    leave_out_odd(&mut parts.headers);
    join_lines(&mut parts.headers);
    let answer = match unread::check_metadata(&parts.headers) {
        Err(refused) => return (None, refused.code().as_str().to_owned()),
        Ok(()) => {
            unread::mend(&mut parts.headers, &mut parts.extensions);
            let request = http::Request::from_parts(parts, s3s::Body::empty());
            runtime().block_on(library.call(request)).unwrap()
        }
    };
    let body = answer.into_body().bytes().unwrap_or_default();
    let body = String::from_utf8_lossy(&body).into_owned();
    let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once('<'));
    let code = code.map_or_else(|| body.clone(), |(code, _)| code.to_owned());
    let read = notes.read.lock().unwrap().take().filter(|_| code == READ);
    (notes.operation.lock().unwrap().take(), read.unwrap_or(code))
}

/// The same as it is read here.
fn read_here(operation: Direct, request: &Drawn) -> String {
    let (parts, ()) = request.build().into_parts();
    let (headers, query) = (&parts.headers, parts.uri.query().unwrap_or(""));
    let parameters = Parameters::of(query);
    let read = match operation {
        Direct::PutObject => put::read(headers).map(text_of_put),
        Direct::GetObject | Direct::HeadObject => {
            get::Wanted::of(headers, parameters).map(|wanted| wanted.text())
        }
        Direct::DeleteObject => delete::Conditions::of(headers).map(|read| read.text()),
        Direct::ListObjectsV2 => list::read_v2(headers, parameters).map(|read| text_of(&read)),
    };
    read.unwrap_or_else(|refused| refused.code().as_str().to_owned())
}

#[derive(Debug, Clone)]
struct Drawn {
    method: &'static str,
    path: &'static str,
    query: Vec<(&'static str, &'static str)>,
    headers: Vec<(&'static str, &'static [u8])>,
}

impl Drawn {
    fn build(&self) -> http::Request<()> {
        let parameters: Vec<String> =
            self.query.iter().map(|(name, value)| format!("{name}{value}")).collect();
        let mut uri = format!("{}?{}", self.path, parameters.join("&")).parse().unwrap();
        address::respell(&mut uri).unwrap();
        let mut request = http::Request::new(());
        *request.method_mut() = Method::from_bytes(self.method.as_bytes()).unwrap();
        *request.uri_mut() = uri;
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
        }
        *request.headers_mut() = headers;
        request
    }
}

/// Parameters, and the values that each may have.
const PARAMETERS: [&str; 27] = [
    "acl",
    "attributes",
    "continuation-token",
    "cors",
    "delete",
    "delimiter",
    "encoding-type",
    "fetch-owner",
    "legal-hold",
    "list-type",
    "list-type",
    "location",
    "max-keys",
    "partNumber",
    "policy",
    "prefix",
    "response-content-type",
    "retention",
    "start-after",
    "tagging",
    "uploadId",
    "uploads",
    "versioning",
    "versions",
    "x-id",
    "list%2Dtype",
    "taggin%67",
];
const VALUES: [&str; 14] = [
    "",
    "=",
    "=2",
    "=2",
    "=1",
    "=%32",
    "=+2",
    "=true",
    "=True",
    "=url",
    "=a+b%2Bc",
    "=%C3%A4",
    "=-1",
    "=99999999999",
];
const HEADERS: [&str; 34] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-md5",
    "content-type",
    "expires",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-unmodified-since",
    "range",
    "x-amz-acl",
    "x-amz-checksum-algorithm",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-mode",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
    "x-amz-grant-read",
    "x-amz-if-match-last-modified-time",
    "x-amz-if-match-size",
    "x-amz-meta-",
    "x-amz-meta-a",
    "x-amz-meta-a",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-optional-object-attributes",
    "x-amz-copy-source",
    "x-amz-storage-class",
    "x-amz-tagging",
    "x-amz-website-redirect-location",
    "x-amz-write-offset-bytes",
];
const TEXTS: [&[u8]; 20] = [
    b"",
    b"0",
    b"-1",
    b"18446744073709551616",
    b"ENABLED",
    b"*",
    b"\"a\"",
    b"W/\"a\", \"b\"",
    b"a_b",
    b"\"",
    b"bytes=0-1",
    b"bytes=-5",
    b"bytes=1-0",
    b"Wed, 21 Oct 2015 07:28:00 GMT",
    b"2015-10-21T07:28:00Z",
    b"soon",
    b"a b\tc",
    b"\xc3\xa4",
    b"\xff",
    b"=?UTF-8?B?w6Q=?= =?utf-8?q?a=20b?=",
];

fn drawn() -> impl Strategy<Value = Drawn> {
    let method = prop::sample::select(vec!["GET", "GET", "HEAD", "PUT", "PUT", "DELETE", "POST"]);
    let path = prop::sample::select(vec!["/bkt", "/bkt/", "/bkt/k", "/bkt/a/b"]);
    let parameter = (prop::sample::select(&PARAMETERS[..]), prop::sample::select(&VALUES[..]));
    let header = (prop::sample::select(&HEADERS[..]), prop::sample::select(&TEXTS[..]));
    let query = prop::collection::vec(parameter, 0..4);
    let headers = prop::collection::vec(header, 0..6);
    (method, path, query, headers).prop_map(|(method, path, query, headers)| Drawn {
        method,
        path,
        query,
        headers,
    })
}

/// The library's names of what is called directly.
fn direct(name: &str) -> bool {
    ["PutObject", "GetObject", "HeadObject", "DeleteObject", "ListObjectsV2"].contains(&name)
}

#[test]
fn requests_are_read_as_the_library_reads_them() {
    let notes = Notes::default();
    let mut builder = S3ServiceBuilder::new(notes.clone());
    builder.set_auth(SimpleAuth::from_single("access", "secret"));
    builder.set_access(notes.clone());
    let library = builder.build();
    let compared = std::cell::Cell::new(0_u32);
    let default = ProptestConfig::default();
    let cases = default.cases.max(CASES_MIN);
    let config = ProptestConfig { cases, failure_persistence: None, ..default };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&drawn(), |request| {
            // Names of files beyond ASCII are read, and the library refuses them.
            let names_a_file =
                |(name, value): &(_, &[u8])| *name == "content-disposition" && !value.is_ascii();
            if request.headers.iter().any(names_a_file) {
                return Ok(());
            }
            let head = request.build();
            let route = Route::of(&head, &Domains::none(), || false);
            if route.check(head.method()).is_err() {
                return Ok(());
            }
            let (operation, by_library) = by_library(&library, &notes, &request);
            let Operation::Direct(direct_here) = route.operation else {
                prop_assert!(!operation.as_deref().is_some_and(direct), "{:?}", operation);
                return Ok(());
            };
            // The library did not get to routing if metadata was refused before.
            let expected = Some(route.operation.name());
            prop_assert!(
                operation.is_none() || operation.as_deref() == expected,
                "{:?}",
                operation
            );
            // A Head is read as a Get.
            if direct_here == Direct::HeadObject {
                return Ok(());
            }
            let here = read_here(direct_here, &request);
            let are_faults = [&here, &by_library].into_iter().all(|read| FAULTS.contains(&&**read));
            // Of several faults any may be told.
            let are_several = are_faults && request.headers.len() + request.query.len() > 2;
            prop_assert!(are_several || here == by_library, "{here}, by the library {by_library}");
            compared.set(compared.get() + 1);
            Ok(())
        })
        .unwrap();
    assert!(compared.get() > 2_000, "many are compared: {}", compared.get());
}
