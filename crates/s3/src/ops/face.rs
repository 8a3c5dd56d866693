//! The store behind all operations, the request that is called without the protocol library, and the names in requests that
//! each looks at first.

use std::sync::Arc;

use http::request::Parts;
use larder_objects::{ObjectError, Objects};
use larder_types::{BucketName, ObjectKey, UploadId};
use s3s::S3Result;

use crate::auth::gate::Gate;
use crate::body::sent::Sent;
use crate::errors::from_store;
use crate::request::head::Parameters;
use crate::request::names::{bucket_name, check_owner, key};

/// A request that was let in.
pub(crate) struct Request {
    pub(crate) bucket: BucketName,
    /// Empty if it is about no object.
    pub(crate) key: String,
    pub(crate) parts: Parts,
    pub(crate) body: s3s::Body,
    pub(crate) sent: Sent,
    pub(crate) gate: Arc<Gate>,
}

impl Request {
    /// The object that it names.
    ///
    /// # Errors
    /// `KeyTooLongError`.
    pub(crate) fn take_key(&mut self) -> S3Result<ObjectKey> {
        key(std::mem::take(&mut self.key))
    }

    pub(crate) fn parameters(&self) -> Parameters<'_> {
        Parameters::of(self.parts.uri.query().unwrap_or(""))
    }
}

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
        bucket_name(name)
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
