//! The store behind all operations, and the names in requests that each of them looks at first.

use std::sync::Arc;

use larder_objects::{ObjectError, Objects};
use larder_types::{BucketName, UploadId};
use s3s::{S3ErrorCode, S3Result};

use crate::errors::{error, from_store};
use crate::request::names::check_owner;

/// The face over one store.
pub(crate) struct Face<O> {
    pub(crate) store: Arc<O>,
    pub(crate) region: String,
}

impl<O> Clone for Face<O> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), region: self.region.clone() }
    }
}

impl<O: Objects> Face<O> {
    pub(crate) fn new(store: Arc<O>, region: String) -> Self {
        Self { store, region }
    }

    /// The bucket that a request names.
    ///
    /// # Errors
    /// `InvalidBucketName`; `AccessDenied` if the request expects somebody else to own it.
    pub(crate) fn bucket(&self, name: &str, expected_owner: Option<&str>) -> S3Result<BucketName> {
        check_owner(expected_owner)?;
        BucketName::new(name)
            .map_err(|rule| error(S3ErrorCode::InvalidBucketName, rule.to_string()))
    }

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
