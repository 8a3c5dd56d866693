//! Calls the operations that need nothing of the protocol library but types and XML.

use futures::future::BoxFuture;
use http::Response;
use larder_objects::Objects;
use s3s::{Body, S3Result};

use super::face::{Face, Request};
use super::{delete, get, list, put};
use crate::request::routing::Direct;

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
