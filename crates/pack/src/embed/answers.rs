//! Answers of a packed store, in the words of [`object_store`].

use std::borrow::Cow;

use larder_objects::{ObjectError, PutDone};
use larder_types::ObjectKey;
use object_store::{Error, Extensions, PutResult};

/// The name of this store in errors.
const STORE: &str = "larder-pack";
/// The reason for which a put or copy of something new is refused.
const IS_THERE: &str = "it is there already";

pub(super) fn generic(reason: impl Into<Cow<'static, str>>) -> Error {
    Error::Generic { store: STORE, source: reason.into().into_owned().into() }
}

pub(super) fn exists(key: &ObjectKey) -> Error {
    Error::AlreadyExists { path: key.as_str().to_owned(), source: IS_THERE.into() }
}

pub(super) fn precondition(key: &ObjectKey, error: ObjectError) -> Error {
    Error::Precondition { path: key.as_str().to_owned(), source: Box::new(error) }
}

/// An error in the words of this interface.
pub(super) fn explained(key: &ObjectKey, error: ObjectError) -> Error {
    match error {
        ObjectError::NoSuchKey | ObjectError::NoSuchBucket | ObjectError::NoSuchUpload => {
            Error::NotFound { path: key.as_str().to_owned(), source: Box::new(error) }
        }
        ObjectError::PreconditionFailed => precondition(key, error),
        error => Error::Generic { store: STORE, source: Box::new(error) },
    }
}

pub(super) fn result(done: &PutDone) -> PutResult {
    let e_tag = Some(done.etag.text());
    PutResult { e_tag, version: None, extensions: Extensions::default() }
}
