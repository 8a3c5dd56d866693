//! The operation of a request, decided once: what counts the request, what decides access and what calls the operation all
//! take this decision. Beside it stands the memory that the body takes.
//!
//! # Invariants
//!
//! 1. At most one sub-resource makes the operation: two that would are refused (S3).
//! 2. A sub-resource of S3's that makes no operation here is refused. Passed over, a request to change an object's
//!    encryption would put the request's XML in the object's place. Parameters that are not S3's are passed over, as S3 does.

use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request};
use s3s::{S3Error, S3ErrorCode};

use super::head::{Parameters, is_presigned};
use super::operation::{Operation, Question, S3Operation};
use crate::errors::elements::{self, invalid_argument};
use crate::errors::{error, not_implemented, precondition_failed};
use crate::limits::{BATCH_DELETE_FACTOR, BODY_SHARE_BYTES_MAX};
use crate::options::Domains;

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
    /// It names this sub-resource, which no operation here has.
    SubResource(&'static str),
    /// It names a sub-resource, or an address alone, that has other methods.
    Method(Option<&'static str>),
    /// One parameter lacks another, or may not be there.
    Parameters(&'static str),
    /// It names two sub-resources that each make an operation.
    Conflict(&'static str, &'static str),
    /// It names a bucket's sub-resource below a key.
    BelowKey(&'static str),
    /// Its parameters are of a bucket, and its address names none.
    NoBucket,
    /// It is posted to a bucket, and is no form.
    NoForm,
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
                Ok(_) if form => (Operation::PostObject, None),
                Ok(Operation::PostObject) => (Operation::PostObject, Some(Unserved::NoForm)),
                Ok(operation) => (operation, None),
                Err(unserved) => (Operation::Unknown, Some(unserved)),
            },
        };
        let body_bytes = announced_bytes(headers);
        Self { operation, level, virtual_host, body_bytes, form, unserved }
    }

    /// Bytes of memory that its body takes, with what is kept of it until its answer is sent.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match self.operation {
            Operation::S3(S3Operation::DeleteObjects) => {
                self.body_bytes.saturating_mul(BATCH_DELETE_FACTOR)
            }
            _ => self.body_bytes,
        }
    }

    /// Refuses what no operation takes.
    ///
    /// # Errors
    /// `NotImplemented` that names the sub-resource; `MethodNotAllowed` with those that are; `InvalidArgument` where one
    /// lacks another, may not be there, or contradicts another. `InvalidRequest` where a key has none such; `NoSuchBucket`
    /// where no bucket is named; `PreconditionFailed` without a form.
    pub(crate) fn check(&self, method: &Method) -> Result<(), S3Error> {
        match self.unserved {
            None => Ok(()),
            Some(Unserved::Method(name)) => {
                Err(not_allowed((method, self.level), name, &allowed(self.level, name)))
            }
            Some(Unserved::NoForm) => {
                let form = "Bucket POST must be of the enclosure-type multipart/form-data";
                Err(precondition_failed(Some(form)))
            }
            Some(Unserved::SubResource(name)) => {
                let of = if self.level == Level::Object { "an object" } else { "a bucket" };
                Err(not_implemented(&format!("{method} of {name} of {of}")))
            }
            Some(Unserved::Parameters(message)) => {
                Err(error(S3ErrorCode::InvalidArgument, message))
            }
            Some(Unserved::Conflict(one, other)) => {
                let message = format!("Conflicting query string parameters: {one}, {other}");
                Err(invalid_argument(message, "ResourceType", one))
            }
            Some(Unserved::BelowKey(message)) => Err(error(S3ErrorCode::InvalidRequest, message)),
            Some(Unserved::NoBucket) => {
                let message = "The request's parameters are of a bucket, and its path names none";
                Err(error(S3ErrorCode::NoSuchBucket, message))
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

/// The methods that an address has, or a sub-resource of it.
fn allowed(level: Level, name: Option<&'static str>) -> Vec<&'static str> {
    let of_address: &[&str] = match level {
        Level::Service => &["GET", "HEAD"],
        Level::Bucket => &["DELETE", "GET", "HEAD", "POST", "PUT"],
        Level::Object => &["DELETE", "GET", "HEAD", "PUT"],
    };
    match name {
        None => of_address.to_vec(),
        Some(name) => {
            let makes =
                |method: &&str| matches!(meaning(method, level, name, false), Meaning::Makes(_));
            ["DELETE", "GET", "POST", "PUT"].into_iter().filter(makes).collect()
        }
    }
}

fn not_allowed(
    (method, level): (&Method, Level),
    name: Option<&'static str>,
    allowed: &[&str],
) -> S3Error {
    let message = "The specified method is not allowed against this resource.";
    let resource = match (name, level) {
        (Some(name), _) => name.to_ascii_uppercase(),
        (None, Level::Service) => "SERVICE".to_owned(),
        (None, Level::Bucket) => "BUCKET".to_owned(),
        (None, Level::Object) => "OBJECT".to_owned(),
    };
    let details = [("Method", method.to_string()), ("ResourceType", resource)];
    let mut refused = elements::with(error(S3ErrorCode::MethodNotAllowed, message), details);
    if let Ok(allowed) = HeaderValue::try_from(allowed.join(", ")) {
        refused.set_headers(HeaderMap::from_iter([(ALLOW, allowed)]));
    }
    refused
}

/// Sub-resources of S3's, and what chooses a version or a part.
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

/// The sub-resources that a query names, each once.
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
    Makes(S3Operation),
    /// It says more of the operation.
    Qualifies,
    /// No operation here has it.
    Nothing,
}

fn meaning(method: &str, level: Level, name: &'static str, copies: bool) -> Meaning {
    use Level::{Bucket, Object};
    use Meaning::{Makes, Nothing, Qualifies};
    use S3Operation as Op;
    match (method, level, name) {
        ("GET", Object, "attributes") => Makes(Op::GetObjectAttributes),
        ("GET", Object, "acl" | "legal-hold" | "retention") => Makes(Op::GetObjectSetting(name)),
        ("PUT", Object, "acl" | "legal-hold" | "retention") => Makes(Op::PutObjectSetting(name)),
        ("GET", Object, "tagging") => Makes(Op::GetObjectTagging),
        ("PUT", Object, "tagging") => Makes(Op::PutObjectTagging),
        ("DELETE", Object, "tagging") => Makes(Op::DeleteObjectTagging),
        ("POST", Object, "uploads") => Makes(Op::CreateMultipartUpload),
        ("GET", Object, "uploadId") => Makes(Op::ListParts),
        ("PUT", Object, "uploadId") if copies => Makes(Op::UploadPartCopy),
        ("PUT", Object, "uploadId") => Makes(Op::UploadPart),
        ("POST", Object, "uploadId") => Makes(Op::CompleteMultipartUpload),
        ("DELETE", Object, "uploadId") => Makes(Op::AbortMultipartUpload),
        ("GET" | "PUT", Object, "partNumber") => Qualifies,
        ("GET" | "PUT" | "POST" | "DELETE", Object, "versionId") => Qualifies,
        // Lists have neither, and change nothing.
        ("GET", Bucket, "partNumber" | "versionId") => Qualifies,
        ("GET", Bucket, "cors") => Makes(Op::GetBucketCors),
        ("PUT", Bucket, "cors") => Makes(Op::PutBucketCors),
        ("DELETE", Bucket, "cors") => Makes(Op::DeleteBucketCors),
        ("GET", Bucket, "location") => Makes(Op::GetBucketLocation),
        ("GET", Bucket, "uploads") => Makes(Op::ListMultipartUploads),
        ("GET", Bucket, "versions") => Makes(Op::ListObjectVersions),
        ("POST", Bucket, "delete") => Makes(Op::DeleteObjects),
        (
            "GET" | "PUT" | "DELETE",
            Bucket,
            "encryption" | "lifecycle" | "ownershipControls" | "policy" | "publicAccessBlock"
            | "replication" | "tagging" | "website",
        ) => Makes(setting(method, name)),
        (
            "GET" | "PUT",
            Bucket,
            "accelerate" | "acl" | "logging" | "notification" | "object-lock" | "requestPayment"
            | "versioning",
        ) => Makes(setting(method, name)),
        ("GET", Bucket, "policyStatus") => Makes(setting(method, name)),
        _ => Nothing,
    }
}

fn setting(method: &str, name: &'static str) -> S3Operation {
    match method {
        "GET" => S3Operation::GetBucketSetting(name),
        "PUT" => S3Operation::PutBucketSetting(name),
        _ => S3Operation::DeleteBucketSetting(name),
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
    if level == Service && method == "GET" && is_of_a_bucket(query) {
        return Err(Unserved::NoBucket);
    }
    if !query.is_empty()
        && level != Service
        && let "GET" | "PUT" | "POST" | "DELETE" = method
    {
        let mut made: Option<(&'static str, S3Operation)> = None;
        for name in named(query) {
            match (meaning(method, level, name, copies()), made) {
                (Meaning::Makes(_), Some((before, _))) => {
                    return Err(Unserved::Conflict(before.min(name), before.max(name)));
                }
                (Meaning::Makes(operation), None) => made = Some((name, operation)),
                (Meaning::Qualifies, _) => {}
                (Meaning::Nothing, _) if let Some(why) = below_key(method, level, name) => {
                    return Err(Unserved::BelowKey(why));
                }
                (Meaning::Nothing, _) if allowed(level, Some(name)).is_empty() => {
                    return Err(Unserved::SubResource(name));
                }
                (Meaning::Nothing, _) => return Err(Unserved::Method(Some(name))),
            }
        }
        if (method, level) == ("PUT", Object) {
            check_put(query)?;
        }
        if let Some((_, operation)) = made {
            return Ok(Operation::S3(operation));
        }
    }
    Ok(Operation::S3(match (method, level) {
        ("GET", Object) => S3Operation::GetObject,
        ("HEAD", Object) => S3Operation::HeadObject,
        ("PUT", Object) if copies() => S3Operation::CopyObject,
        ("PUT", Object) => S3Operation::PutObject,
        ("DELETE", Object) => S3Operation::DeleteObject,
        ("GET", Bucket) => match Parameters::of(query).one("list-type") {
            Ok(Some(version)) if version == "2" => S3Operation::ListObjectsV2,
            _ => S3Operation::ListObjects,
        },
        ("HEAD", Bucket) => S3Operation::HeadBucket,
        ("PUT", Bucket) => S3Operation::CreateBucket,
        ("DELETE", Bucket) => S3Operation::DeleteBucket,
        ("POST", Bucket) => return Ok(Operation::PostObject),
        ("GET" | "HEAD", Service) => return Ok(Operation::ListBuckets),
        _ => return Err(Unserved::Method(None)),
    }))
}

/// True for parameters of lists of objects, and for sub-resources that only buckets have. A client that names its bucket by a
/// host of which the server knows nothing would take the list of all buckets for an empty list of objects.
fn is_of_a_bucket(query: &str) -> bool {
    let of_lists = ["delimiter", "encoding-type", "list-type"];
    let makes = |name| matches!(meaning("GET", Level::Bucket, name, false), Meaning::Makes(_));
    Parameters::of(query).names().any(|name| of_lists.contains(&name)) || named(query).any(makes)
}

/// The answer of S3 to a read of a bucket's list below a key.
fn below_key(method: &str, level: Level, name: &str) -> Option<&'static str> {
    match (method, level, name) {
        ("GET", Level::Object, "uploads") => {
            Some("Key is not expected for the GET method ?uploads subresource")
        }
        ("GET", Level::Object, "versions") => {
            Some("There is no such thing as the ?versions sub-resource for a key")
        }
        _ => None,
    }
}

/// A part has a number and an upload, and what is put has no version yet.
fn check_put(query: &str) -> Result<(), Unserved> {
    let has = |wanted: &str| Parameters::of(query).names().any(|name| name == wanted);
    let refused = |message: &'static str| Err(Unserved::Parameters(message));
    match (has("uploadId"), has("partNumber")) {
        (true, false) => return refused("A part needs a partNumber beside its uploadId."),
        (false, true) => {
            return refused("This operation does not accept partNumber without uploadId");
        }
        _ => {}
    }
    let of_version = ["acl", "legal-hold", "retention", "tagging"];
    if has("versionId") && !of_version.into_iter().any(has) {
        return refused("This operation does not accept a version-id.");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
