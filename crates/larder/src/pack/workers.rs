//! The face of a worker among others: requests of uploads go to the worker that began them.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use larder_objects::ObjectError;
use larder_pack::{HandedBody, Packer};
use larder_s3::{Inbound, Server, UploadForwarder};
use larder_types::UploadId;

use crate::metrics::Metrics;

/// The other workers of a packed store's bucket; nobody, if it is not shared.
pub(super) struct OtherWorkers(pub(super) Arc<Packer>);

impl UploadForwarder for OtherWorkers {
    fn have(&self, upload: UploadId) -> bool {
        self.0.is_of_another(upload)
    }

    fn hand_on(
        &self,
        upload: UploadId,
        request: Request<Inbound>,
    ) -> BoxFuture<'_, Result<Response<Incoming>, ObjectError>> {
        self.0.hand_on(upload, request).boxed()
    }
}

/// Has the worker's server answer what the others hand on. The two hold each other from then on, until the process ends.
pub(super) fn answer_them(packer: &Packer, server: Server<Metrics>) {
    packer.answer_handed_on(Box::new(move |request| {
        let server = server.clone();
        async move { server.answer_forwarded(request).await.map(HandedBody::new) }.boxed()
    }));
}
