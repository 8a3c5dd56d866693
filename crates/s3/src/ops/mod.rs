//! The operations, one file for each or for a few that go together. Each takes the store from `face.rs`. [`Operations`] calls
//! those that need nothing of the protocol library but types and XML. `dispatch.rs` is the library's interface, and calls the
//! rest.
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
//! | `probes.rs` | settings that nothing here has |

mod append;
mod bucket;
mod bucket_cors;
mod copy;
mod delete;
mod describe;
mod dispatch;
#[cfg(test)]
mod drawn;
pub(crate) mod face;
mod get;
mod list;
pub(crate) mod probes;
mod put;
mod tagging;
mod upload;
mod upload_lists;

use futures::future::BoxFuture;
use http::Response;
use larder_objects::Objects;
use s3s::{Body, S3Result};

use crate::request::routing::Direct;
use face::{Face, Request};

/// Operations over a store, whatever store that is.
pub(crate) trait Operations: Send + Sync {
    /// Calls the operation, and answers complete.
    fn call(&self, operation: Direct, request: Request) -> BoxFuture<'_, S3Result<Response<Body>>>;
}

impl<O: Objects> Operations for Face<O> {
    fn call(&self, operation: Direct, request: Request) -> BoxFuture<'_, S3Result<Response<Body>>> {
        match operation {
            Direct::PutObject => Box::pin(put::object(self, request)),
            Direct::GetObject => Box::pin(get::object(self, request)),
            Direct::HeadObject => Box::pin(get::head(self, request)),
            Direct::DeleteObject => Box::pin(delete::object(self, request)),
            Direct::ListObjectsV2 => Box::pin(list::v2(self, request)),
        }
    }
}
