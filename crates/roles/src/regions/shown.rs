//! Entries as the index shows them.
//!
//! A PG of another region has the keys that *its* ids and its number of PGs say. So whoever compares looks at the rows of this
//! store as that region would: buckets in the order of its ids, keys of its PG.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use larder_kv::{KvError, KvReader};
use larder_protocol::placement::pg_of;
use larder_protocol::region::{Entry, Id, Kept, Name, Range, Slot, kept};
use larder_types::codec::{CodecError, decode};
use larder_types::{
    BucketId, BucketName, ObjectEntry, ObjectKey, OpSeq, Passed, PgId, RegionId, rows,
};
use parking_lot::Mutex;

use crate::manager::Manager;
use crate::meta::Meta;

/// The index cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(transparent)]
    Index(#[from] KvError),
    #[error(transparent)]
    Row(#[from] CodecError),
    #[error("row {0} has no such form")]
    Form(String),
}

/// As whose keys are looked at.
pub(super) struct As {
    pub(super) pg: PgId,
    pub(super) pg_count: u32,
    /// Buckets that are looked at: their ids there, in order, and here.
    pub(super) buckets: BTreeMap<BucketId, BucketId>,
}

/// Rows of a bucket, in a table of keys.
struct Span {
    from: Vec<u8>,
    to: Vec<u8>,
}

/// See the module's head.
pub(super) struct Shown {
    meta: Arc<Meta>,
    manager: Arc<Manager>,
    /// Names of buckets, as of a version of the map.
    names: Mutex<(u64, Arc<BTreeMap<BucketId, BucketName>>)>,
}

impl Shown {
    pub(super) fn new(meta: Arc<Meta>, manager: Arc<Manager>) -> Self {
        Self { meta, manager, names: Mutex::new((u64::MAX, Arc::default())) }
    }

    pub(super) fn own(&self) -> RegionId {
        self.meta.region()
    }

    pub(super) fn pg_count(&self) -> u32 {
        self.meta.pg_ids().count() as u32
    }

    /// The last op that the index shows of a PG.
    pub(super) fn applied(&self, pg: PgId) -> OpSeq {
        self.meta.applied(pg).seq
    }

    /// The PG of a key.
    pub(super) fn pg_of(&self, bucket: BucketId, key: &ObjectKey) -> PgId {
        self.meta.pg_of(bucket, key)
    }

    /// A bucket's id.
    pub(super) fn bucket(&self, name: &BucketName) -> Option<BucketId> {
        self.manager.map().bucket(name).map(|record| record.id)
    }

    /// All buckets.
    pub(super) fn buckets(&self) -> Arc<BTreeMap<BucketId, BucketName>> {
        let map = self.manager.map();
        let mut names = self.names.lock();
        if names.0 != map.map.version {
            let records = map.map.buckets.values();
            let by_id = records.map(|record| (record.id, record.name.clone())).collect();
            *names = (map.map.version, Arc::new(by_id));
        }
        names.1.clone()
    }

    /// A key's rows.
    pub(super) fn kept(&self, bucket: BucketId, key: &ObjectKey) -> Result<Kept, Unreadable> {
        let kv = self.meta.kv();
        let version = kv.get(&rows::version(bucket, key, rows::UNVERSIONED))?;
        let tombstone = kv.get(&kept::tombstone_row(bucket, key))?;
        Ok(Kept::of_values(version.as_deref(), tombstone.as_deref())?)
    }

    /// A key's entry.
    pub(super) fn entry(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<Option<Entry>, Unreadable> {
        Ok(self.kept(bucket, key)?.entry(self.own(), self.meta.pg_of(bucket, key)))
    }

    /// Visits rows from one on, until told to stop.
    pub(super) fn scan(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Unreadable>,
    ) -> Result<(), Unreadable> {
        let mut failed = None;
        self.meta.kv().scan(from, to, &mut |row, value| match visit(row, value) {
            Ok(flow) => flow,
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// A row's value.
    pub(super) fn row(&self, row: &[u8]) -> Result<Option<bytes::Bytes>, Unreadable> {
        Ok(self.meta.kv().get(row)?)
    }

    /// How far journals of other regions are here, as was noted.
    pub(super) fn passed(&self) -> Result<Vec<Passed>, Unreadable> {
        let mut found = Vec::new();
        self.scan(b"R", Some(b"S"), |_, value| {
            found.push(Passed::decode(value)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Ids of a range in the order of their rows, named as there: all of them, or at least so many.
    pub(super) fn ids(
        &self,
        seen: &As,
        range: &Range,
        count_min: usize,
    ) -> Result<Vec<Id>, Unreadable> {
        let mut ids = Vec::new();
        for (there, here) in &seen.buckets {
            let Some(span) = span(range, *there, *here) else { continue };
            self.ids_of_bucket(seen, (*there, *here), span, count_min, &mut ids)?;
            if ids.len() >= count_min {
                break;
            }
        }
        Ok(ids)
    }

    fn ids_of_bucket(
        &self,
        seen: &As,
        (there, here): (BucketId, BucketId),
        Span { from, mut to }: Span,
        count_min: usize,
        ids: &mut Vec<Id>,
    ) -> Result<(), Unreadable> {
        let mut found: BTreeMap<ObjectKey, Kept> = BTreeMap::new();
        let is_seen = |key: &ObjectKey| pg_of(there, key, seen.pg_count) == seen.pg;
        // Each table up to where the one before was left.
        for table in *b"VT" {
            let in_table = |row: &[u8]| [&[table], &row[1..]].concat();
            let (first, behind) = (in_table(&from), in_table(&to));
            let mut count = 0;
            self.scan(&first, Some(&behind), |row, value| {
                if count == count_min {
                    to = [b"V", &row[1..]].concat();
                    return Ok(ControlFlow::Break(()));
                }
                let form = || Unreadable::Form(row.escape_ascii().to_string());
                let (_, key, slot) = rows::parse_version(row).ok_or_else(form)?;
                if slot.is_unversioned() && is_seen(&key) {
                    count += 1;
                    let kept = found.entry(key).or_default();
                    match table {
                        b'V' => kept.version = Some(ObjectEntry::read(value)?),
                        _ => kept.tombstone = Some(decode("tombstone", value)?),
                    }
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        for (key, kept) in found {
            let row = rows::version(here, &key, rows::UNVERSIONED);
            let pg = self.meta.pg_of(here, &key);
            if let Some(entry) = kept.entry(self.own(), pg).filter(|_| row < to) {
                ids.push(entry.id(Name { bucket: there, key, slot: Slot::Null }));
            }
        }
        Ok(())
    }
}

/// The rows here of what lies in a bucket within a range there.
fn span(range: &Range, there: BucketId, here: BucketId) -> Option<Span> {
    let (first, own) = (rows::bucket(b'V', there), rows::bucket(b'V', here));
    let (behind, own_behind) = (rows::prefix_end(&first)?, rows::prefix_end(&own)?);
    let moved = |row: &[u8]| [&own[..], &row[first.len()..]].concat();
    let from = match &range.from {
        from if *from >= behind => return None,
        from if from.starts_with(&first) => moved(from),
        _ => own.clone(),
    };
    let to = match &range.to {
        Some(to) if *to <= first => return None,
        Some(to) if to.starts_with(&first) => moved(to),
        _ => own_behind,
    };
    Some(Span { from, to })
}
