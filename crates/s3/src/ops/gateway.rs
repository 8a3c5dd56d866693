//! The store behind all operations, a request that was let in, and the names in it that each operation looks at first.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use larder_objects::{ObjectError, Objects};
use larder_types::{BucketName, ObjectKey, UploadId};
use s3s::S3Result;

use crate::auth::gate::Gate;
use crate::body::pulled::{RequestBody, Sent};
use crate::digest::announced::Announced;
use crate::errors::from_store;
use crate::request::digests::DigestHeaders;
use crate::request::head::{self, Parameters};
use crate::request::names::{EXPECTED_OWNER, check_owner, key, null_version};

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

    /// Reads its body, which is a document, and verifies what is announced of it.
    ///
    /// # Errors
    /// As [`RequestBody::into_document`]; `InvalidDigest` or `InvalidRequest` for what is announced.
    pub(crate) async fn take_document(&mut self) -> S3Result<Bytes> {
        let digests = DigestHeaders::of(&self.parts.headers)?;
        let announced = digests.announced(&self.parts.headers)?;
        self.take_announced(announced).await
    }

    /// The same where the checksums in its headers are those of an object.
    ///
    /// # Errors
    /// As [`Self::take_document`].
    pub(crate) async fn take_announced(&mut self, announced: Announced) -> S3Result<Bytes> {
        let body = RequestBody::new(std::mem::take(&mut self.body), announced);
        let md5 = head::text(&self.parts.headers, "content-md5")?;
        body.content_md5(md5)?.sent(&self.sent).into_document().await
    }

    /// Verifies a body that its operation does not need: it is signed, too.
    ///
    /// # Errors
    /// As [`Self::take_document`].
    pub(crate) async fn drop_body(&mut self) -> S3Result<()> {
        self.take_document().await.map(drop)
    }

    /// Refuses a request that expects somebody else to own its bucket.
    ///
    /// # Errors
    /// `AccessDenied`; as [`Line::text`](crate::request::head::Line::text).
    pub(crate) fn check_owner(&self) -> S3Result<()> {
        check_owner(head::text(&self.parts.headers, EXPECTED_OWNER)?)
    }

    /// The version that it names is the only one.
    ///
    /// # Errors
    /// As [`null_version`], and [`Parameters::one`].
    pub(crate) fn check_version(&self) -> S3Result<()> {
        null_version(self.parameters().one("versionId")?.as_deref(), "versionId")
    }

    pub(crate) fn parameters(&self) -> Parameters<'_> {
        Parameters::of(self.parts.uri.query().unwrap_or(""))
    }
}

/// The gateway over one store.
pub(crate) struct Gateway<O> {
    pub(super) store: Arc<O>,
    /// The region that the operator named.
    pub(super) region: Option<String>,
}

impl<O: Objects> Gateway<O> {
    pub(crate) fn new(store: Arc<O>, region: Option<String>) -> Self {
        Self { store, region }
    }

    /// Has the store catch up if it does not know a bucket: it may have been made through another machine a moment ago.
    ///
    /// # Errors
    /// As [`Objects::catch_up`]; not if there is no such bucket.
    pub(super) async fn await_bucket(&self, bucket: &BucketName) -> S3Result<()> {
        match self.store.has_bucket(bucket) {
            true => Ok(()),
            false => self.store.catch_up().await.map_err(from_store),
        }
    }

    /// The upload that a request names. What is no id cannot be an upload's.
    ///
    /// # Errors
    /// `NoSuchUpload`; `NoSuchBucket`, which comes first (S3).
    pub(crate) fn upload_of(&self, request: &Request) -> S3Result<UploadId> {
        let id = request.parameters().one("uploadId")?.unwrap_or_default();
        if let Some(id) = UploadId::parse(&id) {
            return Ok(id);
        }
        self.store.bucket(&request.bucket).map_err(from_store)?;
        Err(from_store(ObjectError::NoSuchUpload))
    }
}
