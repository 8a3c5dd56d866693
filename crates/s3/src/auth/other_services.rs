//! Requests of clients that look for another service of AWS's here: users and roles of IAM, credentials of STS. They get an
//! answer in the form that these clients read, which is not S3's.
//!
//! # Invariants
//!
//! 1. The answer is the same for all: it says nothing of keys, users or buckets, so no signature is looked at.

use std::fmt;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, StatusCode};
use s3s::S3Error;

use crate::errors::custom;

/// A service that clients ask by the action that a form names. An error has it as its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherService {
    /// Users, groups, roles and policies.
    Iam,
    /// Temporary credentials.
    Sts,
}

impl fmt::Display for OtherService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iam => "IAM",
            Self::Sts => "STS",
        })
    }
}

impl std::error::Error for OtherService {}

impl OtherService {
    /// The service that the scope of a credential names: `KEY/YYYYMMDD/REGION/SERVICE/aws4_request`.
    pub(crate) fn of_credential(credential: &str) -> Option<Self> {
        match credential.split('/').nth(3)? {
            "iam" => Some(Self::Iam),
            "sts" => Some(Self::Sts),
            _ => None,
        }
    }

    /// The service of an error that refuses a request of it.
    pub(crate) fn of_error(refused: &S3Error) -> Option<Self> {
        refused.source().and_then(|source| source.downcast_ref::<Self>()).copied()
    }

    /// The namespace of its answers.
    pub(crate) fn namespace(self) -> &'static str {
        match self {
            Self::Iam => "https://iam.amazonaws.com/doc/2010-05-08/",
            Self::Sts => "https://sts.amazonaws.com/doc/2011-06-15/",
        }
    }

    /// The answer to all its requests.
    pub(crate) fn refusal(self) -> S3Error {
        let message = format!(
            "Larder has no users and no roles yet: it answers S3 alone, to its root keys, and no action of {self}."
        );
        let mut refused = custom("InvalidAction", StatusCode::BAD_REQUEST, message);
        refused.set_source(Box::new(self));
        refused
    }
}

/// Refuses the form of an action, which clients of STS post unsigned to get their first credentials. It comes to no bucket.
///
/// # Errors
/// [`OtherService::refusal`].
pub(crate) fn refuse_actions(method: &Method, headers: &HeaderMap) -> Result<(), S3Error> {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is_action = *method == Method::POST
        && kind.eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
        && !headers.contains_key(http::header::AUTHORIZATION);
    if is_action { Err(OtherService::Sts.refusal()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_names_its_service() {
        let of = OtherService::of_credential;
        assert_eq!(of("a/20260101/us-east-1/iam/aws4_request"), Some(OtherService::Iam));
        assert_eq!(of("a/20260101/us-east-1/sts/aws4_request"), Some(OtherService::Sts));
        for other in ["a/20260101/us-east-1/s3/aws4_request", "a/b/c", "", "iam/sts/a/ec2/x"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn an_unsigned_form_of_an_action_is_recognized() {
        let refused = |method, kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, kind.parse().unwrap());
            refuse_actions(&method, &headers).is_err()
        };
        let form = "application/x-www-form-urlencoded; charset=utf-8";
        assert!(refused(Method::POST, form));
        assert!(!refused(Method::PUT, form));
        assert!(!refused(Method::POST, "multipart/form-data; boundary=x"));
    }
}
