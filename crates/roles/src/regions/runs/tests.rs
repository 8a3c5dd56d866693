use futures::FutureExt;
use larder_kv::{Batch, Kv, KvReader, SimKv};
use larder_protocol::region::{Name, Slot};
use larder_types::{
    Body, ETag, HybridClock, Metax, OpId, OpSeq, PgId, RegionId, Stamp, Tombstone, VersionRow, View,
};

use super::*;

const HERE: BucketId = BucketId(5);
const THERE: BucketId = BucketId(9);
/// More than any store here has.
const ROWS_MAX: usize = 10_000;

fn key(number: u64) -> ObjectKey {
    ObjectKey::new(&format!("k{number:03}")).unwrap()
}

fn version(clock: u64) -> ObjectEntry {
    let metax =
        Metax { region: RegionId(1), ..Metax::new(3, HybridClock(clock), ETag::Md5([7; 16])) };
    let body = Body::Inline(bytes::Bytes::from_static(b"abc"));
    ObjectEntry::of_row(VersionRow { op: op(clock), metax, body })
}

fn op(seq: u64) -> OpId {
    OpId { view: View(1), seq: OpSeq(seq) }
}

fn tombstone(clock: u64) -> Tombstone {
    let at = Stamp { clock: HybridClock(clock), region: RegionId(1) };
    Tombstone { op: op(clock), at, origin: None }
}

/// Keys with a version, a tombstone, or both, in stretches of each; buckets around them.
fn store(count: u64) -> SimKv {
    let kv = SimKv::new();
    let mut batch = Batch::new();
    for bucket in [BucketId(4), HERE, BucketId(6)] {
        for number in 1..=count {
            let key = key(number);
            if !(number / 7).is_multiple_of(3) {
                let row = rows::version(bucket, &key, rows::UNVERSIONED);
                batch.put(&row, &version(number).write());
            }
            if !(number / 5).is_multiple_of(2) {
                let row = rows::tombstone(bucket, &key, rows::UNVERSIONED);
                batch.put(&row, &larder_types::codec::encode(&tombstone(number)));
            }
        }
    }
    kv.apply(&batch).unwrap();
    kv
}

impl Rows for SimKv {
    async fn visit<V>(
        &self,
        from: &[u8],
        to: &[u8],
        _: usize,
        mut visit: V,
    ) -> Result<(), Unreadable>
    where
        V: FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Unreadable> + Send,
    {
        self.scan(from, Some(to), &mut |row, value| visit(row, value).expect("rows as they are"))
            .expect("a sound index");
        Ok(())
    }
}

/// Reads all slices of a range, one behind the other.
fn sliced(kv: &SimKv, range: &Range, rows_max: usize) -> Vec<(ObjectKey, KeyRows)> {
    let (mut all, mut rest) = (Vec::new(), Span::of(range, THERE, HERE));
    while let Some(span) = rest.take() {
        let read = Slice::read(kv, HERE, span, rows_max).now_or_never();
        let slice = read.expect("nothing waits").unwrap();
        assert!(slice.keys.len() <= 2 * rows_max, "{} keys", slice.keys.len());
        all.extend(slice.keys);
        rest = slice.rest;
    }
    all
}

#[test]
fn a_range_that_is_cut_shows_each_key_once_with_version_and_tombstone() {
    let kv = store(100);
    let all = sliced(&kv, &Range::default(), ROWS_MAX);
    let both = all.iter().filter(|(_, kept)| kept.version.is_some() && kept.tombstone.is_some());
    assert!(both.count() > 10 && all.iter().any(|(_, kept)| kept.version.is_none()));
    assert!(all.is_sorted_by(|one, other| one.0 < other.0));
    for rows_max in 1..=all.len() + 1 {
        assert_eq!(sliced(&kv, &Range::default(), rows_max), all, "{rows_max} rows at a time");
    }
}

#[test]
fn a_range_there_has_the_same_keys_here() {
    let kv = store(20);
    let place = |number| Some(rows::version(THERE, &key(number), rows::UNVERSIONED));
    let range = Range { from: place(8).unwrap(), to: place(16) };
    let numbers: Vec<_> = sliced(&kv, &range, 2).into_iter().map(|(key, _)| key).collect();
    assert_eq!(numbers, (8..16).map(key).collect::<Vec<_>>());
    let before = rows::version(BucketId(8), &key(1), rows::UNVERSIONED);
    assert_eq!(Span::of(&Range { from: vec![], to: Some(before.clone()) }, THERE, HERE), None);
    let whole = sliced(&kv, &Range { from: before, to: None }, 2);
    assert_eq!(whole, sliced(&kv, &Range::default(), ROWS_MAX));
    let behind = rows::version(BucketId(10), &key(1), rows::UNVERSIONED);
    assert_eq!(Span::of(&Range { from: behind, to: None }, THERE, HERE), None);
}

/// A walk whose answers are cut off anywhere has every key once, and each answer fits its request.
#[test]
fn a_walk_that_is_cut_off_goes_on_where_it_was_left() {
    let kv = store(60);
    let all = sliced(&kv, &Range::default(), ROWS_MAX).len() as u64;
    for rows_max in [1, 7, 50] {
        let (mut rest, mut count, mut answers) = (Some(Range::default()), 0, 0);
        while let Some(range) = rest.take() {
            let (mut ids, mut left_at) = (Vec::new(), None);
            if let Some(span) = Span::of(&range, THERE, HERE) {
                let read = Slice::read(&kv, HERE, span, rows_max).now_or_never();
                let slice = read.expect("nothing waits").unwrap();
                for (key, kept) in slice.keys {
                    let name = Name { bucket: THERE, key, slot: Slot::Null };
                    ids.extend(kept.entry(RegionId(1), PgId(0)).map(|entry| entry.id(name)));
                }
                left_at = slice.rest.map(|rest| rest.place(THERE, HERE));
            }
            let summed = summed(&range, ids, left_at);
            assert!(summed.covers(&range), "{range:?}: {summed:?}");
            count += summed.runs.iter().map(|(_, sum)| sum.count).sum::<u64>();
            answers += 1;
            rest = summed.rest;
        }
        assert_eq!(count, all, "{rows_max} rows at a time");
        assert!(answers >= all / (2 * rows_max as u64), "{answers} answers");
    }
}
