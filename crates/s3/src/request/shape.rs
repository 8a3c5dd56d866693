//! Tells of a request, before the protocol library has read it, the operation's name for counting, the memory its body
//! takes, and how the body is framed.
//!
//! Nothing here decides what is done: the library routes by itself, all but preflights, which it does not know.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request};

use crate::limits::BODY_SHARE_BYTES_MAX;
use crate::options::Domains;

/// A request from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// S3's name of the operation.
    pub(crate) op: &'static str,
    /// The depth of its address.
    pub(crate) level: Level,
    /// True if the host names a bucket.
    pub(crate) virtual_host: bool,
    /// Bytes that the client announces to send.
    pub(crate) body_bytes: u64,
    /// True for an HTML form, whose head is read before it is known who sends it.
    pub(crate) form: bool,
    /// True if the protocol library reads the body by itself, before the operation begins.
    pub(crate) xml: bool,
}

/// The depth of a request's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Service,
    Bucket,
    Object,
}

impl Shape {
    /// `has_minio`: true if there is a bucket `minio`, whose keys MinIO's paths are then.
    pub(crate) fn of<B>(
        request: &Request<B>,
        domains: &Domains,
        has_minio: impl FnOnce() -> bool,
    ) -> Self {
        let headers = request.headers();
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let virtual_host = host.is_some_and(|host| domains.bucket_of(host).is_some());
        let level = level(request.uri().path(), virtual_host);
        let query = request.uri().query().unwrap_or("");
        // Below a bucket's own domain the path is a key.
        let admin = admin_op(request.uri().path())
            .filter(|op| !virtual_host && (*op == ADMIN_STATUS || !has_minio()));
        let op = admin.unwrap_or_else(|| operation(request.method(), level, query, headers));
        let body_bytes = announced_bytes(headers);
        Self {
            op,
            level,
            virtual_host,
            body_bytes,
            form: is_form(request.method(), headers),
            xml: body_bytes > 0 && !matches!(op, "PutObject" | "UploadPart"),
        }
    }
}

/// The length that a request announces for its body; what comes without one counts as the largest
/// share.
fn announced_bytes(headers: &HeaderMap) -> u64 {
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    match length {
        Some(bytes) => bytes,
        None if headers.contains_key(TRANSFER_ENCODING) => BODY_SHARE_BYTES_MAX as u64,
        None => 0,
    }
}

/// True if the protocol library takes a request for a form. Types that only begin like a form's count, too: what it reads
/// early must be bounded.
fn is_form(method: &Method, headers: &HeaderMap) -> bool {
    const FORM: &[u8] = b"multipart/form-data";
    let of_form = |kind: &HeaderValue| {
        kind.as_bytes().get(..FORM.len()).is_some_and(|start| start.eq_ignore_ascii_case(FORM))
    };
    *method == Method::POST && headers.get_all(CONTENT_TYPE).iter().any(of_form)
}

fn level(path: &str, virtual_host: bool) -> Level {
    let path = path.strip_prefix('/').unwrap_or(path);
    if virtual_host {
        return if path.is_empty() { Level::Bucket } else { Level::Object };
    }
    match path.split_once('/') {
        Some((_, key)) if !key.is_empty() => Level::Object,
        _ if path.is_empty() => Level::Service,
        _ => Level::Bucket,
    }
}

/// The first of `names` that is a parameter of the query.
fn has(query: &str, names: &[&'static str]) -> Option<&'static str> {
    if query.is_empty() {
        return None;
    }
    let mut found = None;
    for parameter in query.split('&') {
        let name = parameter.split_once('=').map_or(parameter, |(name, _)| name);
        let place = names.iter().position(|known| *known == name);
        found = match (found, place) {
            (Some(before), Some(now)) => Some(std::cmp::min::<usize>(before, now)),
            (before, now) => before.or(now),
        };
    }
    found.map(|place| names[place])
}

/// True for a header that is given as a parameter of a presigned URL, where case does not matter as in headers.
fn in_presigned(query: &str, header: &str) -> bool {
    let is = |parameter: &str| {
        let name = parameter.split_once('=').map_or(parameter, |(name, _)| name);
        name.eq_ignore_ascii_case(header)
    };
    has(query, &["X-Amz-Signature"]).is_some() && query.split('&').any(is)
}

/// Asks for the state of the store or its cluster, whatever the method. No bucket's name begins with `_`.
pub(crate) const ADMIN_STATUS: &str = "AdminStatus";
/// The same by MinIO's client.
pub(crate) const ADMIN_INFO: &str = "AdminInfo";
/// Asks for metrics as MinIO's client does, and as it has Prometheus do.
pub(crate) const ADMIN_METRICS: &str = "AdminMetrics";

fn admin_op(path: &str) -> Option<&'static str> {
    match path {
        "/_larder/v1/status" => Some(ADMIN_STATUS),
        "/minio/admin/v3/info" => Some(ADMIN_INFO),
        "/minio/v2/metrics/cluster" | "/minio/v2/metrics/node" => Some(ADMIN_METRICS),
        _ => None,
    }
}

/// The question of a browser whether a page of another origin may ask.
pub(crate) const PREFLIGHT: &str = "Preflight";

fn operation(method: &Method, level: Level, query: &str, headers: &HeaderMap) -> &'static str {
    match level {
        _ if *method == Method::OPTIONS => PREFLIGHT,
        Level::Service if *method == Method::GET => "ListBuckets",
        Level::Service => "Unknown",
        Level::Bucket => bucket_operation(method, query),
        Level::Object => object_operation(method, query, headers),
    }
}

/// Sub-resources of a bucket that are settings, which are counted together but for CORS: nobody has any other.
const SETTINGS: [&str; 22] = [
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "lifecycle",
    "logging",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "tagging",
    "versioning",
    "website",
];

fn bucket_operation(method: &Method, query: &str) -> &'static str {
    let setting = has(query, &SETTINGS);
    let (cors, setting) = (setting == Some("cors"), setting.is_some());
    match *method {
        Method::GET if cors => "GetBucketCors",
        Method::PUT if cors => "PutBucketCors",
        Method::DELETE if cors => "DeleteBucketCors",
        Method::GET if setting => "GetBucketSetting",
        Method::PUT if setting => "PutBucketSetting",
        Method::DELETE if setting => "DeleteBucketSetting",
        Method::GET => match has(query, &["location", "uploads", "versions", "list-type"]) {
            Some("location") => "GetBucketLocation",
            Some("uploads") => "ListMultipartUploads",
            Some("versions") => "ListObjectVersions",
            Some("list-type") => "ListObjectsV2",
            _ => "ListObjects",
        },
        Method::HEAD => "HeadBucket",
        Method::PUT => "CreateBucket",
        Method::DELETE => "DeleteBucket",
        Method::POST if has(query, &["delete"]).is_some() => "DeleteObjects",
        Method::POST => "PostObject",
        _ => "Unknown",
    }
}

fn object_operation(method: &Method, query: &str, headers: &HeaderMap) -> &'static str {
    let source = "x-amz-copy-source";
    let copies = headers.contains_key(source) || in_presigned(query, source);
    let names = ["tagging", "acl", "attributes", "retention", "legal-hold", "uploadId", "uploads"];
    match (method.as_str(), has(query, &names)) {
        ("GET", Some("tagging")) => "GetObjectTagging",
        ("PUT", Some("tagging")) => "PutObjectTagging",
        ("DELETE", Some("tagging")) => "DeleteObjectTagging",
        ("GET", Some("attributes")) => "GetObjectAttributes",
        ("GET", Some("acl" | "retention" | "legal-hold")) => "GetObjectSetting",
        ("PUT", Some("acl" | "retention" | "legal-hold")) => "PutObjectSetting",
        ("GET", Some("uploadId")) => "ListParts",
        ("PUT", Some("uploadId")) if copies => "UploadPartCopy",
        ("PUT", Some("uploadId")) => "UploadPart",
        ("POST", Some("uploadId")) => "CompleteMultipartUpload",
        ("DELETE", Some("uploadId")) => "AbortMultipartUpload",
        ("POST", Some("uploads")) => "CreateMultipartUpload",
        ("GET", _) => "GetObject",
        ("HEAD", _) => "HeadObject",
        ("PUT", _) if copies => "CopyObject",
        ("PUT", _) => "PutObject",
        ("DELETE", _) => "DeleteObject",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(method: &str, uri: &str) -> &'static str {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        Shape::of(&request, &Domains::none(), || false).op
    }

    #[test]
    fn operations_are_told_by_method_and_address() {
        for (method, uri, expected) in [
            ("GET", "/", "ListBuckets"),
            ("GET", "/b", "ListObjects"),
            ("GET", "/b/?list-type=2&prefix=versions", "ListObjectsV2"),
            ("GET", "/b?versions&prefix=x", "ListObjectVersions"),
            ("GET", "/b?versioning", "GetBucketSetting"),
            ("PUT", "/b/", "CreateBucket"),
            ("POST", "/b?delete", "DeleteObjects"),
            ("GET", "/b/k/", "GetObject"),
            ("PUT", "/b/k?partNumber=1&uploadId=x", "UploadPart"),
            ("POST", "/b/k?uploads=", "CreateMultipartUpload"),
            ("PUT", "/b/k?X-Amz-Copy-Source=%2Fs%2Fo&X-Amz-Signature=0", "CopyObject"),
            ("PUT", "/b/k?x-amz-copy-source=%2Fs%2Fo", "PutObject"),
            ("DELETE", "/b/k?tagging", "DeleteObjectTagging"),
            ("PATCH", "/b/k", "Unknown"),
            ("PUT", "/b?cors", "PutBucketCors"),
            ("GET", "/b?cors=", "GetBucketCors"),
            ("DELETE", "/b?cors", "DeleteBucketCors"),
            ("GET", "/b/k?cors", "GetObject"),
            ("OPTIONS", "/b/k?uploads", "Preflight"),
            ("OPTIONS", "/", "Preflight"),
            ("GET", "/_larder/v1/status?x", "AdminStatus"),
            ("PUT", "/_larder/v1/status", "AdminStatus"),
            ("GET", "/_larder/v1/status/", "GetObject"),
            ("GET", "/minio/admin/v3/info?metrics=false", "AdminInfo"),
            ("GET", "/minio/v2/metrics/node", "AdminMetrics"),
            ("GET", "/minio/v2/metrics/bucket", "GetObject"),
        ] {
            assert_eq!(op(method, uri), expected, "{method} {uri}");
        }
    }

    #[test]
    fn a_form_is_told_by_method_and_type() {
        let is = |method: &str, kind: &[u8]| {
            let request = Request::builder().method(method).uri("/b").header(CONTENT_TYPE, kind);
            Shape::of(&request.body(()).unwrap(), &Domains::none(), || false).form
        };
        assert!(is("POST", b"multipart/form-data; boundary=x"));
        assert!(is("POST", b"Multipart/Form-Data; boundary=\"\xc3\xa4\""));
        assert!(is("POST", b"multipart/form-data+xml"));
        assert!(!is("PUT", b"multipart/form-data; boundary=x"));
        assert!(!is("POST", b"application/xml"));
    }

    #[test]
    fn a_virtual_host_moves_the_path_one_level_down() {
        assert_eq!(level("/", true), Level::Bucket);
        assert_eq!(level("/k", true), Level::Object);
        assert_eq!(level("/k", false), Level::Bucket);
        assert_eq!(level("/b//", false), Level::Object);
    }
}
