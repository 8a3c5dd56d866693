//! Servers that show the same objects, each with uploads of its own. A request of an upload that another has begun is
//! forwarded to it, and its answer is returned as it comes.
//!
//! # Invariants
//!
//! 1. A request is forwarded once: a forwarded one is answered where it arrives, whatever it names.
//! 2. It is forwarded only if its signature is good: others use no slot, here or there.
//! 3. Only its framing changes on the way: the server that answers verifies its signature, digests and conditions.

use std::net::SocketAddr;

use futures::future::BoxFuture;
use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::{Request, Response};
use hyper::body::Incoming;
use larder_objects::ObjectError;
use larder_types::UploadId;

use crate::body::inbound::Inbound;
use crate::request::operation::Operation;

/// The other servers that show the same objects.
pub trait UploadForwarder: Send + Sync + 'static {
    /// True if one of them, and not this server, has the parts of an upload.
    fn have(&self, upload: UploadId) -> bool;

    /// Hands a request to the one that has the upload, and returns its answer.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if it does not answer.
    fn hand_on(
        &self,
        upload: UploadId,
        request: Request<Inbound>,
    ) -> BoxFuture<'_, Result<Response<Incoming>, ObjectError>>;
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestSource {
    Client(SocketAddr),
    /// Another server has handed it on.
    Neighbour,
}

/// The upload that a request is about.
pub(crate) fn upload_of(operation: Operation, query: Option<&str>) -> Option<UploadId> {
    let is_of_upload = matches!(operation, Operation::S3(operation) if operation.is_of_upload());
    let query = query.filter(|_| is_of_upload)?;
    let id = query.split('&').find_map(|parameter| parameter.strip_prefix("uploadId="))?;
    UploadId::parse(id)
}

/// Another's answer as it goes on to the client. How it was framed on the way is not part of it.
pub(crate) fn passed_on(mut answer: Response<Incoming>) -> Response<s3s::Body> {
    for framing in [CONNECTION, TRANSFER_ENCODING] {
        answer.headers_mut().remove(framing);
    }
    answer.map(s3s::Body::from)
}

#[cfg(test)]
mod tests {
    use larder_types::{OpId, OpSeq, PgId, View};

    use super::*;
    use crate::request::operation::S3Operation;

    #[test]
    fn only_requests_of_an_upload_that_has_begun_name_one() {
        let id = UploadId { pg: PgId(0), op: OpId { view: View(7), seq: OpSeq(9) } };
        let query = format!("partNumber=1&uploadId={id}");
        let of = |operation, query| upload_of(Operation::S3(operation), query);
        assert_eq!(of(S3Operation::UploadPart, Some(&query)), Some(id));
        let list = format!("uploadId={id}&max-parts=1");
        assert_eq!(of(S3Operation::ListParts, Some(&list)), Some(id));
        assert_eq!(of(S3Operation::PutObject, Some(&query)), None);
        assert_eq!(of(S3Operation::UploadPart, Some("partNumber=1&uploadId=x")), None);
        assert_eq!(of(S3Operation::UploadPart, None), None);
    }
}
