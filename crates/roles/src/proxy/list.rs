//! Lists: one scan for a page, of an index that shows everything taken before the list.

use larder_objects::{ListItem, ListPage, ListRequest, ListedObject, ObjectError, Page};
use larder_protocol::region::listing::{Item, PageRequest, Selection};
use larder_types::codec::decode;
use larder_types::limits::{KEY_BYTES_MAX, LIST_PAGE_MAX};
use larder_types::{
    BucketName, BucketRecord, ObjectKey, RegionId, UploadId, UploadRow, VersionRow,
};
use tokio::time::Instant;

use super::role_access::{RoleAccess, Scan};
use super::{Proxy, unavailable};
use crate::limits::BUCKET_UPDATE_MAX;

impl<R: RoleAccess> Proxy<R> {
    pub(super) async fn list_objects(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        let deadline = Instant::now() + BUCKET_UPDATE_MAX;
        loop {
            let known = self.known(bucket)?;
            let page = self.page(Page::new(b'V', known.id, &request), None, |key, value| {
                let row = VersionRow::read(value).ok()?;
                Some(ListedObject { key, metax: row.metax })
            });
            match page.await {
                Err(ObjectError::NoSuchBucket) => {
                    self.await_bucket_update(bucket, known, deadline).await?
                }
                listed => return listed,
            }
        }
    }

    /// Lists a page of the keys of all regions; of a bucket that this one alone has, its own.
    pub(super) async fn list_everywhere(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        let is_local = self.access.bucket(bucket, BucketRecord::is_local);
        let is_local = is_local.ok_or(ObjectError::NoSuchBucket)?;
        if self.access.region() == RegionId::OWN || is_local {
            let _request = self.clients.begin();
            return self.list_objects(bucket, request).await;
        }
        let ListRequest { prefix, delimiter, after, max } = request;
        // No key contains a delimiter that is longer than keys are.
        let delimiter = delimiter.filter(|delimiter| delimiter.len() <= KEY_BYTES_MAX);
        let items_max = max.min(LIST_PAGE_MAX) as u32;
        if items_max == 0 || prefix.len() > KEY_BYTES_MAX {
            return Ok(ListPage { items: Vec::new(), truncated: false });
        }
        let ask = PageRequest { selection: Selection { prefix, delimiter }, after, items_max };
        let deadline = Instant::now() + BUCKET_UPDATE_MAX;
        let page = loop {
            let known = self.known(bucket)?;
            let page = match self.elsewhere().filter(|_| self.access.is_gateway()) {
                Some(elsewhere) => elsewhere.list(bucket, ask.clone()).await,
                None => self.access.list_at_gateway(bucket, ask.clone()).await,
            };
            match page {
                Err(ObjectError::NoSuchBucket) => {
                    self.await_bucket_update(bucket, known, deadline).await?
                }
                page => break page?,
            }
        };
        let item = |item| match item {
            Item::Key(key, metax) => ListItem::Entry(ListedObject { key, metax: *metax }),
            Item::Group(group) => ListItem::Group(group),
        };
        let items = page.items.into_iter().map(item).collect();
        Ok(ListPage { items, truncated: page.is_truncated })
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
        self.bucket_deleted_or_changed(bucket, page.await).await
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
            self.access.scan(scan, |row, value| page.add(row, value, &decode)).await?;
        }
        page.finish().ok_or_else(|| unavailable("the index holds a row that cannot be used"))
    }
}
