//! Refuses sub-resources that the protocol library would pass over.
//!
//! The protocol library passes over parameters of a query that it does not know, and would carry out the plain operation.
//! A request to change an object's encryption would put the request's XML in the object's place. So sub-resources that it
//! does not route, for this method and address, are refused before it sees them. Parameters that are not S3's are passed
//! over, as S3 does.

use http::Method;
use s3s::{S3Error, S3ErrorCode};

use crate::errors;
use crate::request::shape::Level;

/// Sub-resources of S3's, and what chooses a version or a part.
const KNOWN: [&str; 42] = [
    "abac",
    "accelerate",
    "acl",
    "analytics",
    "attributes",
    "cors",
    "delete",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "partNumber",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "renameObject",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "select-type",
    "session",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
];

/// Of them, those that the library routes by: the others would be passed over.
fn routed(method: &Method, level: Level) -> Option<&'static [&'static str]> {
    Some(match (method.as_str(), level) {
        ("GET", Level::Bucket) => &[
            "accelerate",
            "acl",
            "analytics",
            "cors",
            "encryption",
            "intelligent-tiering",
            "inventory",
            "lifecycle",
            "location",
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
            "session",
            "tagging",
            "uploads",
            "versioning",
            "versions",
            "website",
            // Lists have neither, and change nothing.
            "partNumber",
            "versionId",
        ],
        ("GET", Level::Object) => &[
            "acl",
            "attributes",
            "legal-hold",
            "partNumber",
            "retention",
            "tagging",
            "torrent",
            "uploadId",
            "versionId",
        ],
        ("PUT", Level::Bucket) => &[
            "accelerate",
            "acl",
            "analytics",
            "cors",
            "encryption",
            "intelligent-tiering",
            "inventory",
            "lifecycle",
            "logging",
            "metrics",
            "notification",
            "object-lock",
            "ownershipControls",
            "policy",
            "publicAccessBlock",
            "replication",
            "requestPayment",
            "tagging",
            "versioning",
            "website",
        ],
        ("PUT", Level::Object) => {
            &["acl", "legal-hold", "partNumber", "retention", "tagging", "uploadId", "versionId"]
        }
        ("POST", Level::Bucket) => &["delete", "metadataTable"],
        ("POST", Level::Object) => {
            &["restore", "select", "select-type", "uploadId", "uploads", "versionId"]
        }
        ("DELETE", Level::Bucket) => &[
            "analytics",
            "cors",
            "encryption",
            "intelligent-tiering",
            "inventory",
            "lifecycle",
            "metadataTable",
            "metrics",
            "ownershipControls",
            "policy",
            "publicAccessBlock",
            "replication",
            "tagging",
            "website",
        ],
        ("DELETE", Level::Object) => &["tagging", "uploadId", "versionId"],
        _ => return None,
    })
}

/// Refuses what would be passed over, or taken for another operation.
///
/// # Errors
/// `NotImplemented` that names the sub-resource; `InvalidArgument` where one lacks another, or may not be there.
pub(crate) fn check(method: &Method, level: Level, query: Option<&str>) -> Result<(), S3Error> {
    let (Some(query), Some(routed)) = (query, routed(method, level)) else { return Ok(()) };
    let names = || query.split('&').map(|it| it.split_once('=').map_or(it, |(name, _)| name));
    if let Some(lacking) = names().find(|name| KNOWN.contains(name) && !routed.contains(name)) {
        let of = if level == Level::Object { "an object" } else { "a bucket" };
        return Err(errors::not_implemented(&format!("{method} of {lacking} of {of}")));
    }
    if (method, level) != (&Method::PUT, Level::Object) {
        return Ok(());
    }
    let has = |wanted: &str| names().any(|name| name == wanted);
    let refused = |message: &'static str| Err(errors::error(S3ErrorCode::InvalidArgument, message));
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

    fn refused(method: &str, level: Level, query: &str) -> Option<S3ErrorCode> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        check(&method, level, Some(query)).err().map(|error| error.code().clone())
    }

    #[test]
    fn what_the_library_would_pass_over_is_refused() {
        for (method, level, query) in [
            ("PUT", Level::Object, "encryption"),
            ("PUT", Level::Object, "x-id=RenameObject&renameObject"),
            ("PUT", Level::Object, "uploads="),
            ("PUT", Level::Bucket, "metadataConfiguration"),
            ("PUT", Level::Bucket, "abac"),
            ("DELETE", Level::Object, "acl"),
            ("DELETE", Level::Object, "retention&versionId=null"),
            ("DELETE", Level::Bucket, "versioning"),
            ("DELETE", Level::Bucket, "metadataConfiguration"),
            ("GET", Level::Object, "restore"),
            ("GET", Level::Bucket, "metadataConfiguration"),
            ("POST", Level::Object, "encryption"),
        ] {
            let code = refused(method, level, query);
            assert_eq!(code, Some(S3ErrorCode::NotImplemented), "{method} {query}");
        }
    }

    #[test]
    fn a_part_has_a_number_and_an_upload_and_a_put_chooses_no_version() {
        for query in ["uploadId=a", "partNumber=1", "versionId=null", "versionId=a&x-id=PutObject"]
        {
            let code = refused("PUT", Level::Object, query);
            assert_eq!(code, Some(S3ErrorCode::InvalidArgument), "{query}");
        }
    }

    #[test]
    fn what_is_routed_and_what_is_not_s3s_passes() {
        for (method, level, query) in [
            ("PUT", Level::Object, "partNumber=1&uploadId=a&x-id=UploadPart"),
            ("PUT", Level::Object, "tagging&versionId=null"),
            ("PUT", Level::Object, "x-trace=42&encryptions=1&X-Amz-Signature=0"),
            ("PUT", Level::Bucket, "versioning"),
            ("GET", Level::Bucket, "list-type=2&prefix=encryption&delimiter=acl"),
            ("GET", Level::Object, "response-content-type=text/plain&versionId=null"),
            ("POST", Level::Object, "uploads"),
            ("POST", Level::Bucket, "delete="),
            ("DELETE", Level::Object, "versionId=null"),
            ("HEAD", Level::Object, "acl"),
        ] {
            assert_eq!(refused(method, level, query), None, "{method} {query}");
        }
        assert!(check(&Method::PUT, Level::Object, None).is_ok());
    }
}
