//! Buckets: their records are the manager's, whether they are empty is the PGs'.

use std::ops::ControlFlow;

use larder_kv::KvReader;
use larder_objects::ObjectError;
use larder_protocol::Call;
use larder_types::codec::decode;
use larder_types::{BucketId, BucketName, BucketRecord, UploadRow, rows};

use super::{ObjectErrorOf, Proxy, unavailable};
use crate::clock::now_ms;
use crate::limits::UPLOADS_PER_PAGE;
use crate::manager::ManagerError;

impl Proxy {
    pub(super) async fn make_bucket(
        &self,
        name: &BucketName,
        location: Option<String>,
    ) -> Result<BucketRecord, ObjectError> {
        let (manager, name) = (self.manager.clone(), name.clone());
        blocking(move || manager.create_bucket(&name, location, now_ms())).await
    }

    /// Marks the bucket as deleting, so that racing puts are refused; finds it empty, or marks it live
    /// again (DESIGN §3.5). Open uploads go with it.
    pub(super) async fn drop_bucket(&self, name: &BucketName) -> Result<(), ObjectError> {
        let (id, _) = self.live(name)?;
        // Looked at once before anything is marked, so that puts into a bucket that plainly has objects
        // are not disturbed.
        self.settle_all().await?;
        if self.has_rows(&rows::bucket(b'V', id))? {
            return Err(ObjectError::BucketNotEmpty);
        }
        let record = {
            let (manager, name) = (self.manager.clone(), name.clone());
            blocking(move || manager.begin_deletion(&name)).await?
        };
        let verdict = async {
            self.settle_all().await?;
            if self.has_rows(&rows::bucket(b'V', record.id))? {
                return Err(ObjectError::BucketNotEmpty);
            }
            self.abort_uploads(record.id).await
        };
        let verdict = verdict.await;
        let (manager, empty) = (self.manager.clone(), verdict.is_ok());
        let ended = blocking(move || manager.end_deletion(&record, empty)).await;
        // Whoever else deleted the bucket meanwhile ends it.
        verdict.and(ended)
    }

    fn has_rows(&self, prefix: &[u8]) -> Result<bool, ObjectError> {
        let mut found = false;
        self.scan(prefix, rows::prefix_end(prefix).as_deref(), &mut |_, _| {
            found = true;
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Aborts all open uploads of a bucket that takes no new ones, a page at a time.
    async fn abort_uploads(&self, bucket: BucketId) -> Result<(), ObjectError> {
        let mut from = rows::bucket(b'U', bucket);
        let end = rows::prefix_end(&from);
        loop {
            let (mut page, mut last) = (Vec::new(), Vec::new());
            self.scan(&from, end.as_deref(), &mut |row, value| {
                page.extend(decode::<UploadRow>("upload row", value));
                last = [row, &[0]].concat();
                if page.len() < UPLOADS_PER_PAGE {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            if page.is_empty() {
                return Ok(());
            }
            from = last;
            for UploadRow { key, upload, .. } in page {
                let request = self.requests.begin();
                let pg = self.meta.pg_of(bucket, &key);
                let call = Call::AbortUpload { request: request.id(), bucket, key, upload };
                match self.ask(pg, call).await {
                    Ok(_) | Err(ObjectError::NoSuchUpload) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    pub(super) fn scan(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut larder_kv::Visit<'_>,
    ) -> Result<(), ObjectError> {
        self.meta.kv().scan(from, to, visit).map_err(|error| {
            tracing::error!(%error, "the index cannot be scanned");
            unavailable("the index cannot be scanned: see the log")
        })
    }
}

/// Has the manager change the map where it may wait for a disk.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ManagerError> + Send + 'static,
) -> Result<T, ObjectError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome.map_err(|error| ObjectErrorOf::from(error).0),
        Err(_panicked) => Err(unavailable("the manager stopped: see the log")),
    }
}
