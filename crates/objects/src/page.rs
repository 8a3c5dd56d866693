//! A page of a list, filled row by row from an index whose rows are ordered as `larder_types::rows` orders them.
//!
//! Pure, and shared by every store that keeps such rows.

use larder_types::limits::{KEY_BYTES_MAX, LIST_PAGE_MAX};
use larder_types::name::group_of;
use larder_types::{BucketId, ObjectKey, UploadId, rows};

use crate::{ListItem, ListPage, ListRequest};

/// Where a scan goes after a row.
pub enum ScanStep {
    /// To the next one.
    Next,
    /// To the first that is not before this one.
    Seek(Vec<u8>),
    /// Nowhere.
    Stop,
}

/// A page being filled.
pub struct Page<'a, T> {
    table: u8,
    bucket: BucketId,
    request: &'a ListRequest,
    items: Vec<ListItem<T>>,
    max: usize,
    truncated: bool,
    damaged: bool,
}

impl<'a, T> Page<'a, T> {
    /// An empty page of a bucket's rows in `table`: `'U'` or `'V'`.
    #[must_use]
    pub fn new(table: u8, bucket: BucketId, request: &'a ListRequest) -> Self {
        let max = request.max.min(LIST_PAGE_MAX);
        Self { table, bucket, request, items: Vec::new(), max, truncated: false, damaged: false }
    }

    /// The number of rows that will do, if none are grouped: one more than fit tells whether the page is the
    /// last. 0 if nothing is asked for, or if no key is long enough for the prefix.
    #[must_use]
    pub fn wanted(&self) -> usize {
        if self.max == 0 || self.request.prefix.len() > KEY_BYTES_MAX { 0 } else { self.max + 1 }
    }

    /// The row at which the scan begins.
    #[must_use]
    pub fn from(&self, after_upload: Option<UploadId>) -> Vec<u8> {
        first_row(self.table, self.bucket, self.request, after_upload)
    }

    /// The row before which it ends.
    #[must_use]
    pub fn to(&self) -> Option<Vec<u8>> {
        let prefix = self.request.prefix.as_bytes();
        rows::prefix_end(&rows::key_prefix(self.table, self.bucket, prefix))
    }

    /// Takes a row; `decode` makes an entry of it, or nothing if it cannot be used.
    pub fn add(
        &mut self,
        row: &[u8],
        value: &[u8],
        decode: impl Fn(ObjectKey, &[u8]) -> Option<T>,
    ) -> ScanStep {
        let Some((_, key, _)) = rows::parse_keyed(row) else {
            self.damaged = true;
            return ScanStep::Stop;
        };
        let ListRequest { prefix, delimiter, .. } = self.request;
        if let Some(group) = group_of(key.as_str(), prefix, delimiter.as_deref()) {
            return self.add_group(group.to_owned());
        }
        if self.items.len() == self.max {
            self.truncated = true;
            return ScanStep::Stop;
        }
        let Some(entry) = decode(key, value) else {
            self.damaged = true;
            return ScanStep::Stop;
        };
        self.items.push(ListItem::Entry(entry));
        ScanStep::Next
    }

    /// Goes on behind the group.
    fn add_group(&mut self, group: String) -> ScanStep {
        let rows = rows::key_prefix(self.table, self.bucket, group.as_bytes());
        if self.request.after.as_deref() != Some(&group) {
            if self.items.len() == self.max {
                self.truncated = true;
                return ScanStep::Stop;
            }
            self.items.push(ListItem::Group(group));
        }
        rows::prefix_end(&rows).map_or(ScanStep::Stop, ScanStep::Seek)
    }

    /// The page; `None` if a row could not be used.
    #[must_use]
    pub fn finish(self) -> Option<ListPage<T>> {
        let Self { items, truncated, damaged, .. } = self;
        (!damaged).then_some(ListPage { items, truncated })
    }
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
        // Beyond the longest key, what is left of it orders no key otherwise.
        _ => {
            let after = after.as_bytes();
            rows::after_key(table, bucket, &after[..after.len().min(KEY_BYTES_MAX + 1)])
        }
    };
    start.max(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_longer_than_a_key_make_no_long_rows() {
        let long = "k".repeat(100_000);
        let prefixed = ListRequest { prefix: long.clone(), max: 10, ..ListRequest::default() };
        let page = Page::<()>::new(b'V', BucketId(1), &prefixed);
        assert_eq!(page.wanted(), 0, "no key is as long");
        let after = ListRequest { after: Some(long), max: 10, ..ListRequest::default() };
        let page = Page::<()>::new(b'V', BucketId(1), &after);
        let from = page.from(None);
        let row = |len: usize| rows::key_prefix(b'V', BucketId(1), &vec![b'k'; len]);
        assert!(from.len() < 2 * KEY_BYTES_MAX && from > row(KEY_BYTES_MAX));
        assert!(page.wanted() > 0 && from < rows::key_prefix(b'V', BucketId(1), b"l"));
    }

    #[test]
    fn a_page_begins_behind_its_marker() {
        let request =
            ListRequest { prefix: "p".into(), after: Some("p5".into()), ..ListRequest::default() };
        let from = first_row(b'V', BucketId(1), &request, None);
        let row = |key: &str| {
            rows::version(BucketId(1), &ObjectKey::new(key).unwrap(), rows::UNVERSIONED)
        };
        assert!(row("p5") < from && from < row("p50") && from < row("p6"));
    }
}
