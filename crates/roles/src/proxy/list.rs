//! Lists: one scan of the index per page, after everything taken before the list shows in it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use larder_objects::{ListItem, ListPage, ListRequest, ListedObject, ObjectError};
use larder_protocol::Call;
use larder_types::codec::decode;
use larder_types::limits::LIST_PAGE_MAX;
use larder_types::{BucketId, BucketName, ObjectKey, UploadId, UploadRow, VersionRow, rows};

use super::{Proxy, refused, unavailable};
use crate::limits::LIST_WAIT_MS_MAX;
use crate::ticket::{Settled, Ticket};

/// What a scan does next.
enum Next {
    /// Stop: the page is full, and whether more follows.
    Full,
    /// Go on behind this group.
    Skip(String),
}

/// A page being filled.
struct Page<T> {
    items: Vec<ListItem<T>>,
    max: usize,
    truncated: bool,
}

impl Proxy {
    pub(super) async fn list_objects(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        let (id, _) = self.live(bucket)?;
        self.settle_all().await?;
        let from = first_row(b'V', id, &request, None);
        self.page(b'V', id, &request, from, |key, value| {
            let row = decode::<VersionRow>("version row", value).ok()?;
            Some(ListedObject { key, metax: row.metax })
        })
    }

    pub(super) async fn list_open_uploads(
        &self,
        bucket: &BucketName,
        request: ListRequest,
        after_upload: Option<UploadId>,
    ) -> Result<ListPage<UploadRow>, ObjectError> {
        let (id, _) = self.live(bucket)?;
        self.settle_all().await?;
        let from = first_row(b'U', id, &request, after_upload);
        self.page(b'U', id, &request, from, |_, value| {
            decode::<UploadRow>("upload row", value).ok()
        })
    }

    /// Waits until the index shows everything that any PG had taken when this was called.
    pub(super) async fn settle_all(&self) -> Result<(), ObjectError> {
        let mut tickets = Vec::new();
        for pg in self.meta.pg_ids() {
            if !self.meta.shows_all(pg) {
                let ticket = Arc::new(Ticket::default());
                self.meta.call(pg, Call::Barrier, &ticket);
                tickets.push(ticket);
            }
        }
        let all = async {
            for ticket in tickets {
                match ticket.settled().await {
                    Settled::Refused(refusal) => return Err(refused(refusal)),
                    _passed => {}
                }
            }
            Ok(())
        };
        tokio::time::timeout(Duration::from_millis(LIST_WAIT_MS_MAX), all)
            .await
            .unwrap_or_else(|_| Err(unavailable("puts under way were not settled in time")))
    }

    fn page<T>(
        &self,
        table: u8,
        bucket: BucketId,
        request: &ListRequest,
        mut from: Vec<u8>,
        decode: impl Fn(ObjectKey, &[u8]) -> Option<T>,
    ) -> Result<ListPage<T>, ObjectError> {
        let max = request.max.min(LIST_PAGE_MAX);
        let mut page = Page { items: Vec::new(), max, truncated: false };
        let end = rows::prefix_end(&rows::key_prefix(table, bucket, request.prefix.as_bytes()));
        if max == 0 {
            return Ok(ListPage { items: page.items, truncated: false });
        }
        loop {
            let mut next = None;
            let mut damaged = false;
            self.scan(&from, end.as_deref(), &mut |row, value| {
                let Some((_, key, _)) = rows::parse_keyed(row) else {
                    damaged = true;
                    return ControlFlow::Break(());
                };
                if let Some(group) = group_of(key.as_str(), request) {
                    next = Some(page.add_group(group, request));
                    return ControlFlow::Break(());
                }
                if page.items.len() == page.max {
                    page.truncated = true;
                    return ControlFlow::Break(());
                }
                match decode(key, value) {
                    Some(entry) => page.items.push(ListItem::Entry(entry)),
                    None => damaged = true,
                }
                if damaged { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            if damaged {
                return Err(unavailable("the index holds a row that cannot be used"));
            }
            match next {
                Some(Next::Skip(group)) => {
                    let rows = rows::key_prefix(table, bucket, group.as_bytes());
                    match rows::prefix_end(&rows) {
                        Some(behind) => from = behind,
                        None => break,
                    }
                }
                Some(Next::Full) | None => break,
            }
        }
        Ok(ListPage { items: page.items, truncated: page.truncated })
    }
}

impl<T> Page<T> {
    fn add_group(&mut self, group: String, request: &ListRequest) -> Next {
        if request.after.as_deref() == Some(&group) {
            return Next::Skip(group);
        }
        if self.items.len() == self.max {
            self.truncated = true;
            return Next::Full;
        }
        self.items.push(ListItem::Group(group.clone()));
        Next::Skip(group)
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
