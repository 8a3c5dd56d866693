//! Lists: one scan for a page, of an index that shows everything taken before the list.

use larder_objects::{ListPage, ListRequest, ListedObject, ObjectError, Page};
use larder_types::codec::decode;
use larder_types::{BucketName, ObjectKey, UploadId, UploadRow, VersionRow};
use tokio::time::Instant;

use super::reach::{Reach, Scan};
use super::{Proxy, unavailable};
use crate::limits::BUCKET_NEWS_MAX;

impl<R: Reach> Proxy<R> {
    pub(super) async fn list_objects(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        let deadline = Instant::now() + BUCKET_NEWS_MAX;
        loop {
            let known = self.known(bucket)?;
            let page = self.page(Page::new(b'V', known.id, &request), None, |key, value| {
                let row = VersionRow::read(value).ok()?;
                Some(ListedObject { key, metax: row.metax })
            });
            match page.await {
                Err(ObjectError::NoSuchBucket) => self.await_news(bucket, known, deadline).await?,
                listed => return listed,
            }
        }
    }

    pub(super) async fn list_open_uploads(
        &self,
        bucket: &BucketName,
        request: ListRequest,
        after_upload: Option<UploadId>,
    ) -> Result<ListPage<UploadRow>, ObjectError> {
        let (id, _) = self.live(bucket)?;
        let page = self.page(Page::new(b'U', id, &request), after_upload, |_, value| {
            decode::<UploadRow>("upload row", value).ok()
        });
        page.await.map_err(|error| self.bucket_gone_or_changed(bucket, error))
    }

    async fn page<T: Send>(
        &self,
        mut page: Page<'_, T>,
        after_upload: Option<UploadId>,
        decode: impl Fn(ObjectKey, &[u8]) -> Option<T> + Send + Sync,
    ) -> Result<ListPage<T>, ObjectError> {
        let (from, to, wanted) = (page.from(after_upload), page.to(), page.wanted());
        if wanted > 0 {
            let scan = Scan { pg: None, settle: true, from, to: to.as_deref(), wanted };
            self.reach.scan(scan, |row, value| page.add(row, value, &decode)).await?;
        }
        page.finish().ok_or_else(|| unavailable("the index holds a row that cannot be used"))
    }
}
