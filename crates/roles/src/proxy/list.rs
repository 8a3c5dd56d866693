//! Lists: one scan for a page, of an index that shows everything taken before the list.

use larder_objects::{ListItem, ListPage, ListRequest, ListedObject, ObjectError};
use larder_types::codec::decode;
use larder_types::limits::LIST_PAGE_MAX;
use larder_types::{BucketId, BucketName, ObjectKey, UploadId, UploadRow, VersionRow, rows};

use super::reach::{Onward, Reach, Scan};
use super::{Proxy, unavailable};

/// A page being filled.
struct Page<T> {
    table: u8,
    bucket: BucketId,
    items: Vec<ListItem<T>>,
    max: usize,
    truncated: bool,
    /// A row cannot be used.
    damaged: bool,
}

impl<R: Reach> Proxy<R> {
    pub(super) async fn list_objects(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        let (id, _) = self.live(bucket)?;
        let from = first_row(b'V', id, &request, None);
        let page = self.page(b'V', id, &request, from, |key, value| {
            let row = decode::<VersionRow>("version row", value).ok()?;
            Some(ListedObject { key, metax: row.metax })
        });
        page.await
    }

    pub(super) async fn list_open_uploads(
        &self,
        bucket: &BucketName,
        request: ListRequest,
        after_upload: Option<UploadId>,
    ) -> Result<ListPage<UploadRow>, ObjectError> {
        let (id, _) = self.live(bucket)?;
        let from = first_row(b'U', id, &request, after_upload);
        let page = self.page(b'U', id, &request, from, |_, value| {
            decode::<UploadRow>("upload row", value).ok()
        });
        page.await
    }

    async fn page<T: Send>(
        &self,
        table: u8,
        bucket: BucketId,
        request: &ListRequest,
        from: Vec<u8>,
        decode: impl Fn(ObjectKey, &[u8]) -> Option<T> + Send + Sync,
    ) -> Result<ListPage<T>, ObjectError> {
        let max = request.max.min(LIST_PAGE_MAX);
        let items = Vec::new();
        let mut page = Page { table, bucket, items, max, truncated: false, damaged: false };
        let end = rows::prefix_end(&rows::key_prefix(table, bucket, request.prefix.as_bytes()));
        // One more tells whether the page is the last.
        let scan = Scan { pg: None, settle: true, from, to: end.as_deref(), wanted: max + 1 };
        if max > 0 {
            self.reach.scan(scan, |row, value| page.add(row, value, request, &decode)).await?;
        }
        if page.damaged {
            return Err(unavailable("the index holds a row that cannot be used"));
        }
        Ok(ListPage { items: page.items, truncated: page.truncated })
    }
}

impl<T> Page<T> {
    fn add(
        &mut self,
        row: &[u8],
        value: &[u8],
        request: &ListRequest,
        decode: impl Fn(ObjectKey, &[u8]) -> Option<T>,
    ) -> Onward {
        let Some((_, key, _)) = rows::parse_keyed(row) else {
            self.damaged = true;
            return Onward::Stop;
        };
        if let Some(group) = group_of(key.as_str(), request) {
            return self.add_group(group, request);
        }
        if self.items.len() == self.max {
            self.truncated = true;
            return Onward::Stop;
        }
        let Some(entry) = decode(key, value) else {
            self.damaged = true;
            return Onward::Stop;
        };
        self.items.push(ListItem::Entry(entry));
        Onward::Next
    }

    /// Goes on behind the group.
    fn add_group(&mut self, group: String, request: &ListRequest) -> Onward {
        let rows = rows::key_prefix(self.table, self.bucket, group.as_bytes());
        if request.after.as_deref() != Some(&group) {
            if self.items.len() == self.max {
                self.truncated = true;
                return Onward::Stop;
            }
            self.items.push(ListItem::Group(group));
        }
        rows::prefix_end(&rows).map_or(Onward::Stop, Onward::Seek)
    }
}

/// The group of a key: up to the first delimiter behind the prefix, if there is one.
fn group_of(key: &str, request: &ListRequest) -> Option<String> {
    let delimiter = request.delimiter.as_deref()?;
    let behind = key.get(request.prefix.len()..)?;
    let at = behind.find(delimiter)?;
    Some(key[..request.prefix.len() + at + delimiter.len()].to_owned())
}

/// Where a page begins.
fn first_row(
    table: u8,
    bucket: BucketId,
    request: &ListRequest,
    after_upload: Option<UploadId>,
) -> Vec<u8> {
    let start = rows::key_prefix(table, bucket, request.prefix.as_bytes());
    let Some(after) = &request.after else { return start };
    let behind = match (after_upload, ObjectKey::new(after)) {
        (Some(upload), Ok(key)) => {
            let mut row = rows::upload(bucket, &key, upload);
            row.push(0);
            row
        }
        _ => rows::after_key(table, bucket, after.as_bytes()),
    };
    start.max(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_ends_at_the_first_delimiter_behind_the_prefix() {
        let request = |prefix: &str, delimiter: &str| ListRequest {
            prefix: prefix.into(),
            delimiter: Some(delimiter.into()),
            ..ListRequest::default()
        };
        assert_eq!(group_of("a/b/c", &request("", "/")), Some("a/".into()));
        assert_eq!(group_of("a/b/c", &request("a/", "/")), Some("a/b/".into()));
        assert_eq!(group_of("a/b/c", &request("a/b/", "/")), None);
        assert_eq!(group_of("axxb", &request("a", "xx")), Some("axx".into()));
        assert_eq!(group_of("plain", &ListRequest::default()), None);
    }

    #[test]
    fn a_page_begins_behind_its_marker() {
        let request =
            ListRequest { prefix: "p".into(), after: Some("p5".into()), ..ListRequest::default() };
        let from = first_row(b'V', BucketId(1), &request, None);
        let row = |key: &str| {
            rows::version(BucketId(1), &ObjectKey::new(key).unwrap(), rows::NULL_VERSION)
        };
        assert!(row("p5") < from && from < row("p50") && from < row("p6"));
    }
}
