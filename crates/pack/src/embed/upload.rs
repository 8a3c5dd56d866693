//! An object that a program uploads in parts.

use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;
use larder_objects::{CompleteOptions, NamedPart, Objects};
use larder_types::{ObjectKey, UploadId};
use object_store::{MultipartUpload, PutPayload, PutResult, UploadPart};
use parking_lot::Mutex;

use super::PackedBucket;
use super::answers::{explained, result};
use super::body::Given;

/// An open upload.
pub(super) struct PackedUpload {
    pub(super) bucket: PackedBucket,
    pub(super) key: ObjectKey,
    pub(super) upload: UploadId,
    /// The last number that was given.
    pub(super) number: u16,
    pub(super) parts: Arc<Mutex<Vec<NamedPart>>>,
}

impl std::fmt::Debug for PackedUpload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an upload of {}, with {} parts begun", self.key.as_str(), self.number)
    }
}

#[async_trait]
impl MultipartUpload for PackedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        // Beyond the last number that there is the store refuses it.
        self.number = self.number.saturating_add(1);
        let (number, parts, upload) = (self.number, self.parts.clone(), self.upload);
        let (bucket, key) = (self.bucket.clone(), self.key.clone());
        async move {
            let body = Given::whole(data.into_iter().collect());
            let put = bucket.packer.put_part(&bucket.name, &key, upload, number, body).await;
            let done = put.map_err(|error| explained(&key, error))?;
            parts.lock().push(NamedPart { number, etag: done.etag.text(), checksum: None });
            Ok(())
        }
        .boxed()
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        let mut parts = self.parts.lock().clone();
        parts.sort_unstable_by_key(|part| part.number);
        if parts.len() != usize::from(self.number) {
            let what = format!("{} of {} parts were put", parts.len(), self.number);
            return Err(object_store::Error::Generic { store: "larder-pack", source: what.into() });
        }
        let options = CompleteOptions { parts, ..CompleteOptions::default() };
        let PackedBucket { packer, name } = &self.bucket;
        let done = packer.complete_upload(name, &self.key, self.upload, options).await;
        done.map(|done| result(&done)).map_err(|error| explained(&self.key, error))
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        let PackedBucket { packer, name } = &self.bucket;
        let aborted = packer.abort_upload(name, &self.key, self.upload).await;
        aborted.map_err(|error| explained(&self.key, error))
    }
}
