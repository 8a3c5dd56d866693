//! The operation of a request, decided once: what counts the request, what decides access and what calls the operation all
//! take this decision. Beside it stands how the body is framed, and the memory that it takes.
//!
//! # Invariants
//!
//! 1. Of several sub-resources the first of [`SUB_RESOURCES`] decides. That is the protocol library's order, which routes
//!    [`Operation::Library`] once more.
//! 2. A sub-resource of S3's that makes no operation here is refused. Passed over, a request to change an object's
//!    encryption would put the request's XML in the object's place. Parameters that are not S3's are passed over, as S3 does.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request};
use s3s::{S3Error, S3ErrorCode};

use super::head::{Parameters, is_presigned};
use crate::errors::{error, not_implemented};
use crate::limits::BODY_SHARE_BYTES_MAX;
use crate::options::Domains;

/// The thing that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// It is called without the protocol library.
    Direct(Direct),
    /// The protocol library routes and calls it. The name is S3's, or that of a few together.
    Library(&'static str),
    /// The question of a browser whether a page of another origin may ask.
    Preflight,
    /// A question for more than objects, whatever its method.
    Admin(Question),
}

/// A question of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// The state of the store or its cluster.
    Status,
    /// The same for MinIO's client.
    Info,
    /// Metrics, as MinIO's client asks and as it has Prometheus ask.
    Metrics,
}

impl Question {
    /// No bucket's name begins with `_`, and a bucket `minio` has MinIO's paths for keys.
    fn of(path: &str, has_minio: impl FnOnce() -> bool) -> Option<Self> {
        let asked = match path {
            "/_larder/v1/status" => return Some(Self::Status),
            "/minio/admin/v3/info" => Self::Info,
            "/minio/v2/metrics/cluster" | "/minio/v2/metrics/node" => Self::Metrics,
            _ => return None,
        };
        (!has_minio()).then_some(asked)
    }
}

/// An operation that is called without the protocol library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direct {
    PutObject,
    GetObject,
    HeadObject,
    DeleteObject,
    ListObjectsV2,
}

impl Operation {
    /// S3's name of the operation, for counts and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct(Direct::PutObject) => "PutObject",
            Self::Direct(Direct::GetObject) => "GetObject",
            Self::Direct(Direct::HeadObject) => "HeadObject",
            Self::Direct(Direct::DeleteObject) => "DeleteObject",
            Self::Direct(Direct::ListObjectsV2) => "ListObjectsV2",
            Self::Library(name) => name,
            Self::Preflight => "Preflight",
            Self::Admin(Question::Status) => "AdminStatus",
            Self::Admin(Question::Info) => "AdminInfo",
            Self::Admin(Question::Metrics) => "AdminMetrics",
        }
    }
}

/// A request that no operation takes.
const UNKNOWN: Operation = Operation::Library("Unknown");
/// An upload by an HTML form.
const POST_OBJECT: Operation = Operation::Library("PostObject");

/// A request from outside, by its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) operation: Operation,
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
    unserved: Option<Unserved>,
}

/// The depth of a request's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Service,
    Bucket,
    Object,
}

/// The reason that no operation takes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unserved {
    /// It names this sub-resource.
    SubResource(&'static str),
    /// One parameter lacks another, or may not be there.
    Parameters(&'static str),
}

impl Route {
    /// `has_minio`: true if there is a bucket `minio`.
    pub(crate) fn of<B>(
        request: &Request<B>,
        domains: &Domains,
        has_minio: impl FnOnce() -> bool,
    ) -> Self {
        let (method, headers) = (request.method(), request.headers());
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let virtual_host = host.is_some_and(|host| domains.bucket_of(host).is_some());
        let level = level(request.uri().path(), virtual_host);
        let form = is_form(method, headers);
        let query = request.uri().query().unwrap_or("");
        // Below a bucket's own domain the path is a key.
        let asked = match virtual_host {
            true => None,
            false => Question::of(request.uri().path(), has_minio),
        };
        let (operation, unserved) = match (asked, method) {
            (Some(asked), _) => (Operation::Admin(asked), None),
            (None, &Method::OPTIONS) => (Operation::Preflight, None),
            _ => match operation(method, level, query, headers) {
                Ok(_) if form => (POST_OBJECT, None),
                Ok(operation) => (operation, None),
                Err(unserved) => (UNKNOWN, Some(unserved)),
            },
        };
        let body_bytes = announced_bytes(headers);
        let is_stored = matches!(operation, Operation::Direct(_) | UPLOAD_PART);
        Self {
            operation,
            level,
            virtual_host,
            body_bytes,
            form,
            xml: body_bytes > 0 && !is_stored,
            unserved,
        }
    }

    /// Refuses what no operation takes.
    ///
    /// # Errors
    /// `NotImplemented` that names the sub-resource; `InvalidArgument` where one lacks another, or may not be there.
    pub(crate) fn check(&self, method: &Method) -> Result<(), S3Error> {
        match self.unserved {
            None => Ok(()),
            Some(Unserved::SubResource(name)) => {
                let of = if self.level == Level::Object { "an object" } else { "a bucket" };
                Err(not_implemented(&format!("{method} of {name} of {of}")))
            }
            Some(Unserved::Parameters(message)) => {
                Err(error(S3ErrorCode::InvalidArgument, message))
            }
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

/// True for a form. Types that only begin like a form's count, too: their parameters would be passed over.
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

const UPLOAD_PART: Operation = Operation::Library("UploadPart");

/// Sub-resources of S3's, and what chooses a version or a part. The first that is there decides.
const SUB_RESOURCES: [&str; 42] = [
    "attributes",
    "accelerate",
    "acl",
    "cors",
    "encryption",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "notification",
    "ownershipControls",
    "policy",
    "policyStatus",
    "replication",
    "requestPayment",
    "retention",
    "tagging",
    "versioning",
    "website",
    "object-lock",
    "publicAccessBlock",
    "uploads",
    "versions",
    "delete",
    "uploadId",
    "partNumber",
    "versionId",
    // No operation here has these.
    "abac",
    "analytics",
    "intelligent-tiering",
    "inventory",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "renameObject",
    "restore",
    "select",
    "select-type",
    "session",
    "torrent",
];
const _: () = assert!(SUB_RESOURCES.len() <= u64::BITS as usize, "each has its bit");

/// The sub-resources that a query names, in the order in which they decide.
fn named(query: &str) -> impl Iterator<Item = &'static str> {
    let mut found = 0_u64;
    for name in Parameters::of(query).names() {
        if let Some(at) = SUB_RESOURCES.iter().position(|known| *known == name) {
            found |= 1 << at;
        }
    }
    (0..SUB_RESOURCES.len()).filter(move |at| found >> at & 1 == 1).map(|at| SUB_RESOURCES[at])
}

/// The meaning of a sub-resource for a method at a depth.
enum Meaning {
    /// It makes this operation of the request.
    Makes(&'static str),
    /// It says more of the operation.
    Qualifies,
    /// No operation here has it.
    Nothing,
}

fn meaning(method: &str, level: Level, name: &str, copies: bool) -> Meaning {
    use Level::{Bucket, Object};
    use Meaning::{Makes, Nothing, Qualifies};
    match (method, level, name) {
        ("GET", Object, "attributes") => Makes("GetObjectAttributes"),
        ("GET", Object, "acl" | "legal-hold" | "retention") => Makes("GetObjectSetting"),
        ("PUT", Object, "acl" | "legal-hold" | "retention") => Makes("PutObjectSetting"),
        ("GET", Object, "tagging") => Makes("GetObjectTagging"),
        ("PUT", Object, "tagging") => Makes("PutObjectTagging"),
        ("DELETE", Object, "tagging") => Makes("DeleteObjectTagging"),
        ("POST", Object, "uploads") => Makes("CreateMultipartUpload"),
        ("GET", Object, "uploadId") => Makes("ListParts"),
        ("PUT", Object, "uploadId") if copies => Makes("UploadPartCopy"),
        ("PUT", Object, "uploadId") => Makes("UploadPart"),
        ("POST", Object, "uploadId") => Makes("CompleteMultipartUpload"),
        ("DELETE", Object, "uploadId") => Makes("AbortMultipartUpload"),
        ("GET" | "PUT", Object, "partNumber") => Qualifies,
        ("GET" | "PUT" | "POST" | "DELETE", Object, "versionId") => Qualifies,
        // Lists have neither, and change nothing.
        ("GET", Bucket, "partNumber" | "versionId") => Qualifies,
        ("GET", Bucket, "cors") => Makes("GetBucketCors"),
        ("PUT", Bucket, "cors") => Makes("PutBucketCors"),
        ("DELETE", Bucket, "cors") => Makes("DeleteBucketCors"),
        ("GET", Bucket, "location") => Makes("GetBucketLocation"),
        ("GET", Bucket, "uploads") => Makes("ListMultipartUploads"),
        ("GET", Bucket, "versions") => Makes("ListObjectVersions"),
        ("POST", Bucket, "delete") => Makes("DeleteObjects"),
        (
            "GET" | "PUT" | "DELETE",
            Bucket,
            "encryption" | "lifecycle" | "ownershipControls" | "policy" | "publicAccessBlock"
            | "replication" | "tagging" | "website",
        ) => Makes(setting(method)),
        (
            "GET" | "PUT",
            Bucket,
            "accelerate" | "acl" | "logging" | "notification" | "object-lock" | "requestPayment"
            | "versioning",
        ) => Makes(setting(method)),
        ("GET", Bucket, "policyStatus") => Makes(setting(method)),
        _ => Nothing,
    }
}

/// Settings of buckets are counted together but for CORS: nobody has any other.
fn setting(method: &str) -> &'static str {
    match method {
        "GET" => "GetBucketSetting",
        "PUT" => "PutBucketSetting",
        _ => "DeleteBucketSetting",
    }
}

fn operation(
    method: &Method,
    level: Level,
    query: &str,
    headers: &HeaderMap,
) -> Result<Operation, Unserved> {
    use Level::{Bucket, Object, Service};
    let method = method.as_str();
    let copies = || {
        let source = "x-amz-copy-source";
        let in_query = |name: &str| name.eq_ignore_ascii_case(source);
        headers.contains_key(source)
            || is_presigned(query) && Parameters::of(query).names().any(in_query)
    };
    if !query.is_empty()
        && level != Service
        && let "GET" | "PUT" | "POST" | "DELETE" = method
    {
        let mut made = None;
        for name in named(query) {
            match meaning(method, level, name, copies()) {
                Meaning::Makes(name) => made = made.or(Some(name)),
                Meaning::Qualifies => {}
                Meaning::Nothing => return Err(Unserved::SubResource(name)),
            }
        }
        if (method, level) == ("PUT", Object) {
            check_put(query)?;
        }
        if let Some(name) = made {
            return Ok(Operation::Library(name));
        }
    }
    Ok(match (method, level) {
        ("GET", Object) => Operation::Direct(Direct::GetObject),
        ("HEAD", Object) => Operation::Direct(Direct::HeadObject),
        ("PUT", Object) if copies() => Operation::Library("CopyObject"),
        ("PUT", Object) => Operation::Direct(Direct::PutObject),
        ("DELETE", Object) => Operation::Direct(Direct::DeleteObject),
        ("GET", Bucket) => match Parameters::of(query).one("list-type") {
            Ok(Some(version)) if version == "2" => Operation::Direct(Direct::ListObjectsV2),
            _ => Operation::Library("ListObjects"),
        },
        ("HEAD", Bucket) => Operation::Library("HeadBucket"),
        ("PUT", Bucket) => Operation::Library("CreateBucket"),
        ("DELETE", Bucket) => Operation::Library("DeleteBucket"),
        ("POST", Bucket) => POST_OBJECT,
        ("GET", Service) => Operation::Library("ListBuckets"),
        _ => UNKNOWN,
    })
}

/// A part has a number and an upload, and what is put has no version yet.
fn check_put(query: &str) -> Result<(), Unserved> {
    let has = |wanted: &str| Parameters::of(query).names().any(|name| name == wanted);
    let refused = |message: &'static str| Err(Unserved::Parameters(message));
    match (has("uploadId"), has("partNumber")) {
        (true, false) => return refused("A part needs a partNumber beside its uploadId."),
        (false, true) => return refused("A part needs an uploadId beside its partNumber."),
        _ => {}
    }
    let of_version = ["acl", "legal-hold", "retention", "tagging"];
    if has("versionId") && !of_version.into_iter().any(has) {
        return refused("This operation does not accept a version-id.");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(method: &str, uri: &str) -> Route {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        Route::of(&request, &Domains::none(), || false)
    }

    fn refused(method: &str, uri: &str) -> Option<S3ErrorCode> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let refused = route(method.as_str(), uri).check(&method);
        refused.err().map(|refused| refused.code().clone())
    }

    #[test]
    fn operations_are_told_by_method_and_address() {
        for (method, uri, expected) in [
            ("GET", "/", "ListBuckets"),
            ("GET", "/b", "ListObjects"),
            ("GET", "/b/?list-type=2&prefix=versions", "ListObjectsV2"),
            ("GET", "/b?list-type=%32", "ListObjectsV2"),
            ("GET", "/b?list-type=1", "ListObjects"),
            ("GET", "/b?list-type=2&list-type=2", "ListObjects"),
            ("GET", "/b?versions&prefix=x", "ListObjectVersions"),
            ("GET", "/b?versioning", "GetBucketSetting"),
            ("PUT", "/b/", "CreateBucket"),
            ("POST", "/b?delete", "DeleteObjects"),
            ("GET", "/b/k/", "GetObject"),
            ("GET", "/b/k?versionId=null&partNumber=1&x=y", "GetObject"),
            ("HEAD", "/b/k?acl", "HeadObject"),
            ("PUT", "/b/k?partNumber=1&uploadId=x", "UploadPart"),
            ("PUT", "/b/k?uploadId=x&partNumber=1&tagging", "PutObjectTagging"),
            ("POST", "/b/k?uploads=", "CreateMultipartUpload"),
            ("PUT", "/b/k?X-Amz-Copy-Source=%2Fs%2Fo&X-Amz-Signature=0", "CopyObject"),
            ("PUT", "/b/k?x-amz-copy-source=%2Fs%2Fo", "PutObject"),
            ("DELETE", "/b/k?versionId=null", "DeleteObject"),
            ("DELETE", "/b/k?tagging", "DeleteObjectTagging"),
            ("PATCH", "/b/k", "Unknown"),
            ("PUT", "/b?cors", "PutBucketCors"),
            ("GET", "/b?cors=", "GetBucketCors"),
            ("DELETE", "/b?cors", "DeleteBucketCors"),
            ("GET", "/b/k?cors", "Unknown"),
            ("OPTIONS", "/b/k?uploads", "Preflight"),
            ("OPTIONS", "/", "Preflight"),
            ("GET", "/_larder/v1/status?x", "AdminStatus"),
            ("PUT", "/_larder/v1/status", "AdminStatus"),
            ("GET", "/_larder/v1/status/", "GetObject"),
            ("GET", "/minio/admin/v3/info?metrics=false", "AdminInfo"),
            ("GET", "/minio/v2/metrics/node", "AdminMetrics"),
            ("GET", "/minio/v2/metrics/bucket", "GetObject"),
        ] {
            assert_eq!(route(method, uri).operation.name(), expected, "{method} {uri}");
        }
    }

    #[test]
    fn a_form_is_told_by_method_and_type() {
        let of = |method: &str, kind: &[u8]| {
            let request = Request::builder().method(method).uri("/b?delete");
            let request = request.header(CONTENT_TYPE, kind).body(()).unwrap();
            let route = Route::of(&request, &Domains::none(), || false);
            assert_eq!(route.form, route.operation == POST_OBJECT);
            route.form
        };
        assert!(of("POST", b"multipart/form-data; boundary=x"));
        assert!(of("POST", b"Multipart/Form-Data; boundary=\"\xc3\xa4\""));
        assert!(of("POST", b"multipart/form-data+xml"));
        assert!(!of("PUT", b"multipart/form-data; boundary=x"));
        assert!(!of("POST", b"application/xml"));
    }

    #[test]
    fn a_virtual_host_moves_the_path_one_level_down() {
        assert_eq!(level("/", true), Level::Bucket);
        assert_eq!(level("/k", true), Level::Object);
        assert_eq!(level("/k", false), Level::Bucket);
        assert_eq!(level("/b//", false), Level::Object);
    }

    #[test]
    fn what_would_be_passed_over_is_refused() {
        for (method, uri) in [
            ("PUT", "/b/k?encryption"),
            ("PUT", "/b/k?x-id=RenameObject&renameObject"),
            ("PUT", "/b/k?uploads="),
            ("PUT", "/b/k?tagging&restore"),
            ("PUT", "/b?metadataConfiguration"),
            ("PUT", "/b?abac"),
            ("DELETE", "/b/k?acl"),
            ("DELETE", "/b/k?retention&versionId=null"),
            ("DELETE", "/b?versioning"),
            ("DELETE", "/b?metadataConfiguration"),
            ("GET", "/b/k?restore"),
            ("GET", "/b/k?torrent"),
            ("GET", "/b?metadataConfiguration"),
            ("GET", "/b?analytics&id=1"),
            ("POST", "/b/k?encryption"),
        ] {
            assert_eq!(refused(method, uri), Some(S3ErrorCode::NotImplemented), "{method} {uri}");
            assert_eq!(route(method, uri).operation, UNKNOWN, "{method} {uri}");
        }
    }

    #[test]
    fn a_part_has_a_number_and_an_upload_and_a_put_chooses_no_version() {
        for query in ["uploadId=a", "partNumber=1", "versionId=null", "versionId=a&x-id=PutObject"]
        {
            let code = refused("PUT", &format!("/b/k?{query}"));
            assert_eq!(code, Some(S3ErrorCode::InvalidArgument), "{query}");
        }
    }

    #[test]
    fn what_is_routed_and_what_is_not_s3s_passes() {
        for (method, uri) in [
            ("PUT", "/b/k?partNumber=1&uploadId=a&x-id=UploadPart"),
            ("PUT", "/b/k?tagging&versionId=null"),
            ("PUT", "/b/k?x-trace=42&encryptions=1&X-Amz-Signature=0"),
            ("PUT", "/b?versioning"),
            ("GET", "/b?list-type=2&prefix=encryption&delimiter=acl"),
            ("GET", "/b/k?response-content-type=text/plain&versionId=null"),
            ("POST", "/b/k?uploads"),
            ("POST", "/b?delete="),
            ("DELETE", "/b/k?versionId=null"),
            ("HEAD", "/b/k?acl"),
            ("GET", "/?encryption"),
            ("PUT", "/b/k"),
        ] {
            assert_eq!(refused(method, uri), None, "{method} {uri}");
        }
    }
}
