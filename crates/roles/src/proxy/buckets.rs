//! Deleting buckets: their records are the manager's, whether they are empty is the PGs'. In a store that is a region all regions
//! delete it together (ADR 47).

use std::time::Duration;

use larder_objects::ObjectError;
use larder_protocol::Call;
use larder_types::codec::decode;
use larder_types::{BucketId, BucketName, BucketRecord, RegionId, UploadRow, rows};
use tokio::time::Instant;

use super::role_access::{RoleAccess, Scan, ScanStep};
use super::{Proxy, unavailable};
use crate::limits::{DELETION_MS_MAX, UPLOADS_PER_PAGE};

impl<R: RoleAccess> Proxy<R> {
    /// Marks the bucket as deleting, so that racing puts are refused; finds it empty, or marks it live
    /// again. Open uploads go with it.
    pub(super) async fn drop_bucket(&self, name: &BucketName) -> Result<(), ObjectError> {
        let known = self.known(name)?;
        // The managers refuse it, too: this is the plainer answer.
        if self.access.bucket(name, BucketRecord::has_home) == Some(true) {
            return Err(ObjectError::HasHome);
        }
        // Looked at once before anything is marked, so that puts into a bucket that plainly has objects
        // are not disturbed.
        match self.holds_objects(known.id).await {
            Ok(false) => {}
            Ok(true) => return Err(ObjectError::BucketNotEmpty),
            Err(ObjectError::NoSuchBucket) => {
                self.access.bucket_update(name, known).await;
                return self.bucket_deleted_or_changed(name, Err(ObjectError::NoSuchBucket)).await;
            }
            Err(error) => return Err(error),
        }
        let record = self.access.begin_deletion(name).await?;
        if self.access.region() != RegionId::OWN {
            // Other regions would tell of what they have in it, and make it again.
            return match self.elsewhere() {
                Some(elsewhere) => elsewhere.delete_bucket(record).await,
                None => self.access.deleted_by_gateway(record).await,
            };
        }
        let verdict = async {
            if self.holds_objects(record.id).await? {
                return Err(ObjectError::BucketNotEmpty);
            }
            self.end_uploads(record.id).await
        };
        let verdict = verdict.await;
        let ended = self.access.end_deletion(record, verdict.is_ok()).await;
        // Another call that deleted the bucket meanwhile ends it.
        verdict.and(ended)
    }

    /// Returns true if a bucket has an object. Of one that takes no changes this is so for as long as it
    /// takes none.
    pub(crate) async fn holds_objects(&self, bucket: BucketId) -> Result<bool, ObjectError> {
        let from = rows::bucket(b'V', bucket);
        let end = rows::prefix_end(&from);
        let mut found = false;
        let scan = Scan { pg: None, settle: true, from, to: end.as_deref(), wanted: 1 };
        let scanned = self.access.scan(scan, |_, _| {
            found = true;
            ScanStep::Stop
        });
        scanned.await?;
        Ok(found)
    }

    /// Aborts all open uploads of a bucket that takes no new ones or is gone, a page at a time. The index shows all of them
    /// since it was found to have no objects. None is begun after [`DELETION_MS_MAX`]: the bucket may take new ones by then.
    pub(crate) async fn end_uploads(&self, bucket: BucketId) -> Result<(), ObjectError> {
        let deadline = Instant::now() + Duration::from_millis(DELETION_MS_MAX);
        let mut from = rows::bucket(b'U', bucket);
        let end = rows::prefix_end(&from);
        loop {
            let (mut page, mut last) = (Vec::new(), Vec::new());
            let (to, wanted) = (end.as_deref(), UPLOADS_PER_PAGE);
            let scan = Scan { pg: None, settle: false, from, to, wanted };
            let scanned = self.access.scan(scan, |row, value| {
                page.extend(decode::<UploadRow>("upload row", value));
                last = [row, &[0]].concat();
                if page.len() < UPLOADS_PER_PAGE { ScanStep::Next } else { ScanStep::Stop }
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
                let pg = self.access.pg_of(bucket, &key);
                let call = Call::AbortUpload { request: request.id(), bucket, key, upload };
                match self.access.submit(pg, call).await {
                    Ok(_) | Err(ObjectError::NoSuchUpload) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}
