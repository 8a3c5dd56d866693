//! Lists of what all workers have: their rows side by side, of each key the newest.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use larder_objects::{ListPage, ListRequest, ListedObject, ObjectError, Onward, Page};
use larder_types::codec::decode;
use larder_types::{BucketId, BucketName, rows as keys};

use super::peer::Known;
use super::view::Rank;
use super::{Others, hidden};
use crate::error::PackError;
use crate::index::Index;
use crate::limits::LIST_ROWS;
use crate::plan::{unavailable, unread};
use crate::rows::PackedVersion;

/// The bucket that rows of a merged list are of: its workers have different ids.
const LISTED: BucketId = BucketId(0);
/// Bytes before a row's key: table and bucket.
const HEAD: usize = 9;

/// Rows of a bucket in one worker's index.
struct Source<'a> {
    index: &'a Index,
    bucket: BucketId,
    is_grave: bool,
}

/// What a row says, by the bytes behind its head.
struct Row {
    rank: Rank,
    is_grave: bool,
    value: Bytes,
}

/// Rows by key, as they are behind their heads.
type Rows = BTreeMap<Vec<u8>, Row>;

/// Fills a page of a bucket's objects.
///
/// # Errors
/// [`ObjectError::Unavailable`] if an index cannot be read.
pub(super) fn fill(
    others: &Others,
    own: &Index,
    bucket: &BucketName,
    request: &ListRequest,
) -> Result<ListPage<ListedObject>, ObjectError> {
    let known = others.known();
    let indexes = known.iter().map(|known: &std::sync::Arc<Known>| known.index());
    let graves = hidden::graves(bucket);
    let sources: Vec<_> = std::iter::once(own)
        .chain(indexes)
        .flat_map(|index| [(index, bucket, false), (index, &graves, true)])
        .filter_map(|(index, name, is_grave)| {
            let bucket = index.bucket_id(name)?;
            Some(Source { index, bucket, is_grave })
        })
        .collect();
    let mut page = Page::new(b'V', LISTED, request);
    let to = page.to().and_then(|to| behind_head(&to));
    let mut from = behind_head(&page.from(None)).filter(|_| page.wanted() > 0);
    // As many as may do, if few of them are hidden.
    let rows = LIST_ROWS.min(2 * page.wanted() + 16);
    while let Some(begin) = from {
        let (found, end) = merged(&sources, &begin, to.as_deref(), rows).map_err(unread)?;
        from = end;
        for (tail, row) in found.into_iter().filter(|(_, row)| !row.is_grave) {
            let at = [keys::bucket(b'V', LISTED), tail].concat();
            let onward = page.add(&at, &row.value, |key, value| {
                let row = decode::<PackedVersion>("a version's row", value).ok()?;
                Some(ListedObject { key, metax: row.metax })
            });
            match onward {
                Onward::Next => {}
                Onward::Seek(to) => {
                    from = behind_head(&to);
                    break;
                }
                Onward::Stop => {
                    from = None;
                    break;
                }
            }
        }
    }
    page.finish().ok_or_else(|| unavailable("an index holds a row that cannot be used"))
}

/// A row without its head; `None` if it is of another bucket: behind the last of this one.
fn behind_head(row: &[u8]) -> Option<Vec<u8>> {
    row.strip_prefix(&keys::bucket(b'V', LISTED)[..]).map(<[u8]>::to_vec)
}

/// The newest of each key from `begin` on, as far as all sources were read; and where the rest begins.
fn merged(
    sources: &[Source<'_>],
    begin: &[u8],
    to: Option<&[u8]>,
    rows: usize,
) -> Result<(Rows, Option<Vec<u8>>), PackError> {
    let mut newest = Rows::new();
    // Where the first source that has more was left.
    let mut end: Option<Vec<u8>> = None;
    for source in sources {
        let mut left = rows;
        source.scan(begin, to, &mut |tail, row| {
            if left == 0 {
                if end.as_ref().is_none_or(|end| tail < &end[..]) {
                    end = Some(tail.to_vec());
                }
                return ControlFlow::Break(());
            }
            left -= 1;
            if newest.get(tail).is_none_or(|known| known.rank < row.rank) {
                newest.insert(tail.to_vec(), row);
            }
            ControlFlow::Continue(())
        })?;
    }
    if let Some(end) = &end {
        newest.split_off(end);
    }
    Ok((newest, end))
}

impl Source<'_> {
    fn scan(
        &self,
        begin: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], Row) -> ControlFlow<()>,
    ) -> Result<(), PackError> {
        let head = keys::bucket(b'V', self.bucket);
        let from = [&head[..], begin].concat();
        let to = match to {
            Some(to) => Some([&head[..], to].concat()),
            None => keys::prefix_end(&head),
        };
        let mut damaged = None;
        self.index.scan(&from, to.as_deref(), &mut |row, value| match decode::<PackedVersion>(
            "a version's row",
            value,
        ) {
            Ok(version) => {
                let rank = Rank::of(&version);
                let value = Bytes::copy_from_slice(value);
                visit(&row[HEAD..], Row { rank, is_grave: self.is_grave, value })
            }
            Err(error) => {
                damaged = Some(error);
                ControlFlow::Break(())
            }
        })?;
        damaged.map_or(Ok(()), |error| Err(error.into()))
    }
}
