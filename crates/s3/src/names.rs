//! Names and ids in requests, and who owns everything.

use bytes::Bytes;
use larder_objects::{ObjectError, Objects};
use larder_types::{BucketName, ObjectKey, UploadId};
use s3s::dto::{Initiator, Owner};
use s3s::{S3ErrorCode, S3Result};

use crate::errors::{error, from_store};
use crate::face::Face;

/// The canonical id of the one user, in the form that S3 gives them: 64 hexadecimal digits.
pub(crate) const OWNER_ID: &str =
    "6c61726465726c61726465726c61726465726c61726465726c6172646572726f";
/// The one user's name.
pub(crate) const OWNER_NAME: &str = "root";

/// The one user.
pub(crate) fn owner() -> Owner {
    Owner { display_name: Some(OWNER_NAME.to_owned()), id: Some(OWNER_ID.to_owned()) }
}

/// The one user, as who began an upload.
pub(crate) fn initiator() -> Initiator {
    Initiator { display_name: Some(OWNER_NAME.to_owned()), id: Some(OWNER_ID.to_owned()) }
}

/// A request may say whom it expects to own the bucket.
///
/// # Errors
/// `AccessDenied` if that is somebody else.
pub(crate) fn check_owner(expected: Option<&str>) -> S3Result<()> {
    match expected {
        Some(owner) if owner != OWNER_ID => Err(error(S3ErrorCode::AccessDenied, "Access Denied")),
        _ => Ok(()),
    }
}

/// A key.
///
/// # Errors
/// `KeyTooLongError`.
pub(crate) fn key(key: String) -> S3Result<ObjectKey> {
    ObjectKey::try_from(Bytes::from(key))
        .map_err(|_| error(S3ErrorCode::KeyTooLongError, "Your key is too long"))
}

/// Objects of a bucket without versioning have one version, and its id is `null`.
///
/// # Errors
/// `NoSuchVersion` for any other id.
pub(crate) fn null_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null") => Ok(()),
        Some(_) => Err(error(S3ErrorCode::NoSuchVersion, "The specified version does not exist.")),
    }
}

impl<O: Objects> Face<O> {
    /// An upload's id. What is none cannot be an upload's.
    ///
    /// # Errors
    /// `NoSuchUpload`; `NoSuchBucket`, which comes first (S3).
    pub(crate) fn upload_id(&self, bucket: &BucketName, id: &str) -> S3Result<UploadId> {
        if let Some(id) = UploadId::parse(id) {
            return Ok(id);
        }
        self.store.bucket(bucket).map_err(from_store)?;
        Err(from_store(ObjectError::NoSuchUpload))
    }
}
