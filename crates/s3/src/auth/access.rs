//! Decides access. Root may do everything, and all other users nothing.
//!
//! # Invariants
//!
//! 1. Every request comes through here, once, between the check of its signature and all else that is done for it. Only health
//!    probes, preflights and tokens that read metrics do not.
//! 2. The operation that is called is the one that was decided about: [`Granted`] has it, and is made nowhere else. A form is
//!    decided about as the put that it makes.

use s3s::{S3ErrorCode, S3Result};

use super::signature::{Payload, Signed};
use crate::errors::error;
use crate::request::operation::Operation;

/// A request that may be carried out.
pub(crate) struct Granted {
    operation: Operation,
    signed: Signed,
}

impl Granted {
    /// The access key that it is signed with.
    pub(crate) fn user(&self) -> &str {
        &self.signed.user
    }

    /// The operation to call, and the word of the signature about the body.
    pub(crate) fn into_operation(self) -> (Operation, Payload) {
        (self.operation, self.signed.payload)
    }
}

/// Lets a request go on, or refuses it.
///
/// # Errors
/// `AccessDenied`.
pub(crate) fn decide(operation: Operation, signed: Option<Signed>) -> S3Result<Granted> {
    let denied = || error(S3ErrorCode::AccessDenied, "Access Denied");
    Ok(Granted { operation, signed: signed.ok_or_else(denied)? })
}
