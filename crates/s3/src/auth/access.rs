//! Decides who may do what. Root may do everything, and nobody else anything.
//!
//! # Invariants
//!
//! 1. Every request comes through here, once, between the check of its signature and all else that is done for it. Only health
//!    probes, preflights and tokens that read metrics do not.

use s3s::{S3ErrorCode, S3Result};

use super::signature::Signed;
use crate::errors::error;

/// Lets a request go on, or refuses it.
///
/// # Errors
/// `AccessDenied`.
pub(crate) fn decide(signed: Option<Signed>) -> S3Result<Signed> {
    signed.ok_or_else(|| error(S3ErrorCode::AccessDenied, "Access Denied"))
}
