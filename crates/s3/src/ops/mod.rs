//! The operations, one file for each or for a few that go together. Each takes the store and the request from `gateway.rs`, reads
//! the headers and parameters that it knows, and answers complete. [`Operations`] calls them.
//!
//! # Invariants
//!
//! 1. A body that is put is verified before the store commits it, and a document before its operation begins. A body that an
//!    operation has no use for, as of a DELETE, is not verified.
//! 2. No request hears of a missing bucket before the store has caught up with what others were answered.
//!
//! | file | operations |
//! |---|---|
//! | `put.rs`, `append.rs` | PutObject; where it appends |
//! | `get.rs` | GetObject, HeadObject |
//! | `copy.rs` | CopyObject, UploadPartCopy |
//! | `delete.rs` | DeleteObject, DeleteObjects |
//! | `list.rs` | lists of objects |
//! | `upload.rs`, `upload_lists.rs` | multipart uploads, and their lists |
//! | `describe.rs` | GetObjectAttributes |
//! | `tagging.rs` | tags of objects |
//! | `bucket.rs` | buckets themselves |
//! | `bucket_cors.rs` | CORS rules of buckets |
//! | `settings.rs` | settings that nothing here has |

mod append;
mod bucket;
mod bucket_cors;
mod copy;
mod delete;
mod describe;
pub(crate) mod gateway;
mod get;
mod list;
mod put;
mod settings;
mod tagging;
mod upload;
mod upload_lists;

use std::future::ready;

use futures::future::BoxFuture;
use http::Response;
use http::request::Parts;
use larder_objects::Objects;
use s3s::{Body, S3Result};

use crate::request::operation::S3Operation as Op;
use gateway::{Gateway, Request};

/// Operations over a store, whatever store that is.
pub(crate) trait Operations: Send + Sync {
    /// Calls an operation, and answers complete.
    fn call(&self, operation: Op, request: Request) -> BoxFuture<'_, S3Result<Response<Body>>>;

    /// The one operation that names no bucket.
    fn list_buckets(&self, request: &Parts) -> S3Result<Response<Body>>;
}

impl<O: Objects> Gateway<O> {
    fn operate(&self, operation: Op, request: Request) -> BoxFuture<'_, S3Result<Response<Body>>> {
        match operation {
            Op::AbortMultipartUpload => Box::pin(upload::abort(self, request)),
            Op::CompleteMultipartUpload => Box::pin(upload::complete(self, request)),
            Op::CopyObject => Box::pin(copy::object(self, request)),
            Op::CreateBucket => Box::pin(bucket::create(self, request)),
            Op::CreateMultipartUpload => Box::pin(upload::create(self, request)),
            Op::DeleteBucket => Box::pin(bucket::delete(self, request)),
            Op::DeleteBucketCors => Box::pin(bucket_cors::delete(self, request)),
            Op::DeleteBucketSetting(name) => {
                Box::pin(ready(settings::delete_of_bucket(self, &request, name)))
            }
            Op::DeleteObject => Box::pin(delete::object(self, request)),
            Op::DeleteObjectTagging => Box::pin(tagging::delete(self, request)),
            Op::DeleteObjects => Box::pin(delete::objects(self, request)),
            Op::GetBucketCors => Box::pin(ready(bucket_cors::get(self, &request))),
            Op::GetBucketLocation => Box::pin(ready(bucket::location(self, &request))),
            Op::GetBucketSetting(name) => {
                Box::pin(ready(settings::get_of_bucket(self, &request, name)))
            }
            Op::GetObject => Box::pin(get::object(self, request)),
            Op::GetObjectAttributes => Box::pin(describe::object(self, request)),
            Op::GetObjectSetting(name) => Box::pin(settings::get_of_object(self, request, name)),
            Op::GetObjectTagging => Box::pin(tagging::get(self, request)),
            Op::HeadBucket => Box::pin(ready(bucket::head(self, &request))),
            Op::HeadObject => Box::pin(get::head(self, request)),
            Op::ListMultipartUploads => Box::pin(upload_lists::uploads(self, request)),
            Op::ListObjectVersions => Box::pin(list::versions(self, request)),
            Op::ListObjects => Box::pin(list::v1(self, request)),
            Op::ListObjectsV2 => Box::pin(list::v2(self, request)),
            Op::ListParts => Box::pin(upload_lists::parts(self, request)),
            Op::PutBucketCors => Box::pin(bucket_cors::put(self, request)),
            Op::PutBucketSetting(name) => Box::pin(settings::put_of_bucket(self, request, name)),
            Op::PutObject => Box::pin(put::object(self, request)),
            Op::PutObjectSetting(name) => Box::pin(settings::put_of_object(self, request, name)),
            Op::PutObjectTagging => Box::pin(tagging::put(self, request)),
            Op::UploadPart => Box::pin(upload::part(self, request)),
            Op::UploadPartCopy => Box::pin(copy::part(self, request)),
        }
    }
}

impl<O: Objects> Operations for Gateway<O> {
    fn call(&self, operation: Op, request: Request) -> BoxFuture<'_, S3Result<Response<Body>>> {
        if operation == Op::CreateBucket || self.store.has_bucket(&request.bucket) {
            return self.operate(operation, request);
        }
        Box::pin(async move {
            self.await_bucket(&request.bucket).await?;
            self.operate(operation, request).await
        })
    }

    fn list_buckets(&self, request: &Parts) -> S3Result<Response<Body>> {
        bucket::list(self, request)
    }
}
