//! Lists of what all workers have: their rows side by side, of each key the newest; and of each upload, which one worker has.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use larder_objects::{ListPage, ListRequest, ListedObject, ObjectError, Page, ScanStep};
use larder_types::codec::{CodecError, decode};
use larder_types::{BucketId, BucketName, ObjectKey, UploadId, UploadRow, rows as keys};

use super::peer::FollowedIndex;
use super::view::Rank;
use super::{Others, hidden};
use crate::error::{PackError, unavailable, unread};
use crate::format::rows::PackedVersion;
use crate::index::Index;
use crate::limits::LIST_ROWS;

/// The bucket that rows of a merged list are of: its workers have different ids.
const LISTED: BucketId = BucketId(0);
/// Bytes before a row's key: table and bucket.
const HEAD: usize = 9;

/// A table that is listed.
struct Table {
    letter: u8,
    /// Reads a row's rank, which decides which row counts where several workers have one of a key.
    rank: fn(&[u8]) -> Result<Rank, CodecError>,
}

static VERSIONS: Table = Table {
    letter: b'V',
    rank: |value| decode("a version's row", value).map(|version| Rank::of(&version)),
};

static UPLOADS: Table = Table {
    letter: b'U',
    rank: |value| decode("an upload's row", value).map(|upload| Rank::of_upload(&upload)),
};

/// Rows of a bucket in one worker's index.
struct Source<'a> {
    index: &'a Index,
    bucket: BucketId,
    is_tombstone: bool,
}

/// The content of a row, by the bytes behind its head.
struct Row {
    rank: Rank,
    is_tombstone: bool,
    value: Bytes,
}

/// Rows by key, as they are behind their heads.
type Rows = BTreeMap<Vec<u8>, Row>;

/// Fills a page of a bucket's objects.
///
/// # Errors
/// [`ObjectError::Unavailable`] if an index cannot be read.
pub(crate) fn fill(
    others: &Others,
    own: &Index,
    bucket: &BucketName,
    request: &ListRequest,
) -> Result<ListPage<ListedObject>, ObjectError> {
    let (known, tombstones) = (others.known(), hidden::tombstones(bucket));
    let sources: Vec<_> = indexes(own, &known)
        .flat_map(|index| [(index, bucket, false), (index, &tombstones, true)])
        .filter_map(|(index, name, is_tombstone)| {
            let bucket = index.bucket_id(name)?;
            Some(Source { index, bucket, is_tombstone })
        })
        .collect();
    let page = Page::new(VERSIONS.letter, LISTED, request);
    let begin = page.from(None);
    fill_page(&VERSIONS, &sources, page, &begin, |key, value| {
        let version = decode::<PackedVersion>("a version's row", value).ok()?;
        Some(ListedObject { key, metax: version.metax })
    })
}

/// Fills a page of the uploads into a bucket that have begun at any worker.
///
/// # Errors
/// [`ObjectError::Unavailable`] if an index cannot be read.
pub(crate) fn fill_uploads(
    others: &Others,
    own: &Index,
    bucket: &BucketName,
    request: &ListRequest,
    after_upload: Option<UploadId>,
) -> Result<ListPage<UploadRow>, ObjectError> {
    let known = others.known();
    let sources: Vec<_> = indexes(own, &known)
        .filter_map(|index| {
            let bucket = index.bucket_id(bucket)?;
            Some(Source { index, bucket, is_tombstone: false })
        })
        .collect();
    let page = Page::new(UPLOADS.letter, LISTED, request);
    let begin = page.from(after_upload);
    fill_page(&UPLOADS, &sources, page, &begin, |_, value| decode("an upload's row", value).ok())
}

/// The indexes of all workers.
fn indexes<'a>(own: &'a Index, known: &'a [Arc<FollowedIndex>]) -> impl Iterator<Item = &'a Index> {
    std::iter::once(own).chain(known.iter().map(|known| known.index()))
}

fn fill_page<T>(
    table: &Table,
    sources: &[Source<'_>],
    mut page: Page<'_, T>,
    begin: &[u8],
    make: impl Fn(ObjectKey, &[u8]) -> Option<T>,
) -> Result<ListPage<T>, ObjectError> {
    let head = keys::bucket(table.letter, LISTED);
    // A row without its head; `None` if it is of another bucket: behind the last of this one.
    let behind_head = |row: &[u8]| row.strip_prefix(&head[..]).map(<[u8]>::to_vec);
    let to = page.to().and_then(|to| behind_head(&to));
    let mut from = behind_head(begin).filter(|_| page.wanted() > 0);
    // As many as may do, if few of them are hidden.
    let rows = LIST_ROWS.min(2 * page.wanted() + 16);
    while let Some(begin) = from {
        let (found, end) = merged(table, sources, &begin, to.as_deref(), rows).map_err(unread)?;
        from = end;
        for (tail, row) in found.into_iter().filter(|(_, row)| !row.is_tombstone) {
            let at = [&head[..], &tail].concat();
            match page.add(&at, &row.value, &make) {
                ScanStep::Next => {}
                ScanStep::Seek(to) => {
                    from = behind_head(&to);
                    break;
                }
                ScanStep::Stop => {
                    from = None;
                    break;
                }
            }
        }
    }
    page.finish().ok_or_else(|| unavailable("an index holds a row that cannot be used"))
}

/// The newest of each key from `begin` on, as far as all sources were read; and where the rest begins.
fn merged(
    table: &Table,
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
        source.scan(table, begin, to, &mut |tail, row| {
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
        table: &Table,
        begin: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], Row) -> ControlFlow<()>,
    ) -> Result<(), PackError> {
        let head = keys::bucket(table.letter, self.bucket);
        let from = [&head[..], begin].concat();
        let to = match to {
            Some(to) => Some([&head[..], to].concat()),
            None => keys::prefix_end(&head),
        };
        let mut damaged = None;
        self.index.scan(&from, to.as_deref(), &mut |row, value| match (table.rank)(value) {
            Ok(rank) => {
                let value = Bytes::copy_from_slice(value);
                visit(&row[HEAD..], Row { rank, is_tombstone: self.is_tombstone, value })
            }
            Err(error) => {
                damaged = Some(error);
                ControlFlow::Break(())
            }
        })?;
        damaged.map_or(Ok(()), |error| Err(error.into()))
    }
}
