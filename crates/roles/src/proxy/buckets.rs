//! Deleting buckets: their records are the manager's, whether they are empty is the PGs'.

use std::time::Duration;

use larder_objects::ObjectError;
use larder_protocol::Call;
use larder_types::codec::decode;
use larder_types::{BucketId, BucketName, RegionId, UploadRow, rows};
use tokio::time::Instant;

use super::reach::{Onward, Reach, Scan};
use super::{Proxy, unavailable};
use crate::limits::{DELETION_MS_MAX, UPLOADS_PER_PAGE};

impl<R: Reach> Proxy<R> {
    /// Marks the bucket as deleting, so that racing puts are refused; finds it empty, or marks it live
    /// again (DESIGN §3.5). Open uploads go with it.
    pub(super) async fn drop_bucket(&self, name: &BucketName) -> Result<(), ObjectError> {
        if self.reach.region() != RegionId::OWN {
            // Other regions would tell of what they have in it, and make it again.
            let what = "the deletion of a bucket of a store that is a region (docs/regions.md)";
            return Err(ObjectError::Unsupported { what });
        }
        let known = self.known(name)?;
        // Looked at once before anything is marked, so that puts into a bucket that plainly has objects
        // are not disturbed.
        match self.has_objects(known.id).await {
            Ok(false) => {}
            Ok(true) => return Err(ObjectError::BucketNotEmpty),
            Err(ObjectError::NoSuchBucket) => {
                self.reach.bucket_news(name, known).await;
                return Err(self.bucket_gone_or_changed(name, ObjectError::NoSuchBucket));
            }
            Err(error) => return Err(error),
        }
        let record = self.reach.begin_deletion(name).await?;
        let deadline = Instant::now() + Duration::from_millis(DELETION_MS_MAX);
        let verdict = async {
            if self.has_objects(record.id).await? {
                return Err(ObjectError::BucketNotEmpty);
            }
            self.abort_uploads(record.id, deadline).await
        };
        let verdict = verdict.await;
        let ended = self.reach.end_deletion(record, verdict.is_ok()).await;
        // Whoever else deleted the bucket meanwhile ends it.
        verdict.and(ended)
    }

    async fn has_objects(&self, bucket: BucketId) -> Result<bool, ObjectError> {
        let from = rows::bucket(b'V', bucket);
        let end = rows::prefix_end(&from);
        let mut found = false;
        let scan = Scan { pg: None, settle: true, from, to: end.as_deref(), wanted: 1 };
        let scanned = self.reach.scan(scan, |_, _| {
            found = true;
            Onward::Stop
        });
        scanned.await?;
        Ok(found)
    }

    /// Aborts all open uploads of a bucket that takes no new ones, a page at a time. The index shows all of them
    /// since it was found to have no objects. None is begun behind the deadline: the bucket may take new ones by then.
    async fn abort_uploads(&self, bucket: BucketId, deadline: Instant) -> Result<(), ObjectError> {
        let mut from = rows::bucket(b'U', bucket);
        let end = rows::prefix_end(&from);
        loop {
            let (mut page, mut last) = (Vec::new(), Vec::new());
            let (to, wanted) = (end.as_deref(), UPLOADS_PER_PAGE);
            let scan = Scan { pg: None, settle: false, from, to, wanted };
            let scanned = self.reach.scan(scan, |row, value| {
                page.extend(decode::<UploadRow>("upload row", value));
                last = [row, &[0]].concat();
                if page.len() < UPLOADS_PER_PAGE { Onward::Next } else { Onward::Stop }
            });
            scanned.await?;
            if page.is_empty() {
                return Ok(());
            }
            from = last;
            for UploadRow { key, upload, .. } in page {
                if Instant::now() >= deadline {
                    return Err(unavailable(
                        "some open uploads are aborted, others are not: delete the bucket again",
                    ));
                }
                let request = self.requests.begin();
                let pg = self.reach.pg_of(bucket, &key);
                let call = Call::AbortUpload { request: request.id(), bucket, key, upload };
                match self.reach.ask(pg, call).await {
                    Ok(_) | Err(ObjectError::NoSuchUpload) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}
