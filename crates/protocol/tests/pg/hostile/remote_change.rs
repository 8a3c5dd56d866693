//! Draws words about other regions.

use larder_protocol::region::{RemoteAppend, RemoteChange, RemotePutCall};
use larder_protocol::{Description, Pg, PutCall};
use larder_types::{
    Amend, Amendments, Append, Appended, Condition, Freed, FreedTombstone, Grow, Noted, Op, OpId,
    OpSeq, Origin, Passed, Purge, RegionId, RemotePut, Renew, Stamp,
};

use super::draw::Draw;
use crate::support::{BUCKET, EPOCH, PG};

impl Draw {
    fn stamp(&mut self) -> Stamp {
        let region = RegionId(if self.odd() { 0 } else { 1 + self.below(2) as u16 });
        Stamp { clock: self.clock(), region }
    }

    fn amendments(&mut self) -> Amendments {
        let tags_at = self.one_in(2).then(|| self.stamp());
        Amendments { tags_at, ..Amendments::default() }
    }

    /// The op of a store among regions.
    pub(super) fn draw_remote_op(&mut self, pg: &Pg, id: OpId) -> Op {
        let (request, bucket, key) = (self.request(), BUCKET, self.key());
        let at = self.stamp();
        let region = if self.odd() { RegionId(9) } else { at.region };
        let origin = Origin { region, pg: PG, op: self.near(pg) };
        match self.below(7) {
            6 => {
                let Op::Append(append) = self.append(pg, id) else { unreachable!("an append") };
                let clock = if self.odd() { at.clock } else { append.clock };
                let append = Append { clock, ..*append };
                let (etag, checksum) = (self.etag(), None);
                let origin = self.one_in(2).then_some(origin);
                Op::Grow(Box::new(Grow { append, at, origin, etag, checksum }))
            }
            0 => {
                let mut put = self.put(pg, id);
                (put.metax.clock, put.metax.region) = (at.clock, at.region);
                let (parts, amended) = (self.parts().0, self.amendments());
                let required_copies = self.num(0) as u8;
                Op::RemoteChange(Box::new(RemotePut {
                    put,
                    required_copies,
                    origin,
                    parts,
                    amended,
                }))
            }
            1 => {
                let origin = self.one_in(2).then_some(origin);
                Op::Purge(Box::new(Purge { request, bucket, key, at, origin }))
            }
            2 => {
                let (tags, amended) = (self.checksumless().tags, self.amendments());
                Op::Amend(Box::new(Amend { request, bucket, key, put_at: at, tags, amended }))
            }
            3 => Op::Freed(Box::new(Freed { request, tombstones: self.freed() })),
            4 => Op::Renew(Box::new(Renew { request, bucket, key, was: self.near(pg), at })),
            _ => {
                let passed = self.passed();
                let forgotten = self.one_in(2).then(|| (OpSeq(self.num(1)), OpSeq(self.num(3))));
                Op::Noted(Box::new(Noted { request, passed, forgotten }))
            }
        }
    }

    fn freed(&mut self) -> Vec<FreedTombstone> {
        let tombstone = FreedTombstone { bucket: BUCKET, key: self.key(), at: self.stamp() };
        vec![tombstone; self.num(1).min(100) as usize]
    }

    fn passed(&mut self) -> Vec<Passed> {
        let passed = Passed { region: self.stamp().region, pg: PG, through: OpSeq(self.num(1)) };
        vec![passed; self.num(1).min(1000) as usize]
    }

    /// Draws a word of another region.
    pub(super) fn remote_change(&mut self, pg: &Pg) -> RemoteChange {
        let (request, bucket, epoch, key) = (self.request(), BUCKET, EPOCH, self.key());
        let at = self.stamp();
        let region = if self.odd() { RegionId(9) } else { at.region };
        let origin = Origin { region, pg: PG, op: self.near(pg) };
        let amended = self.amendments();
        match self.below(7) {
            6 => {
                let (content, size) = self.content();
                let offset = self.num(5);
                let (size, etag) = (self.num(offset.wrapping_add(size)), self.etag());
                let made = Appended { offset, size, etag: etag.clone(), checksum: None };
                let (onto, attributes) = (self.stamp(), self.checksumless());
                RemoteChange::Append(Box::new(RemoteAppend {
                    request,
                    bucket,
                    epoch,
                    key,
                    onto,
                    made,
                    attributes,
                    etag,
                    content,
                    at,
                    origin,
                }))
            }
            0 => {
                let (content, size) = self.content();
                let description = Description {
                    size: self.num(size),
                    etag: self.etag(),
                    checksum: None,
                    attributes: self.checksumless(),
                };
                let (target, condition) = (self.target(pg), Condition::default());
                let required_copies = self.num(0) as u8;
                let put = PutCall {
                    request,
                    bucket,
                    epoch,
                    key,
                    target,
                    description,
                    content,
                    condition,
                    required_copies,
                };
                let parts = if self.odd() { self.parts().0 } else { Vec::new() };
                RemoteChange::Put(Box::new(RemotePutCall { put, at, origin, parts, amended }))
            }
            1 => RemoteChange::Purge { request, bucket, epoch, key, at, origin },
            2 => {
                let tags = self.checksumless().tags;
                RemoteChange::Amend { request, bucket, epoch, key, at, tags, amended }
            }
            3 => RemoteChange::Free { request, tombstones: self.freed() },
            4 => RemoteChange::Renew { request, bucket, epoch, key, was: self.near(pg) },
            _ => {
                let passed = self.passed();
                let forgotten = self.one_in(2).then(|| (OpSeq(self.num(1)), OpSeq(self.num(3))));
                RemoteChange::Note { request, passed, forgotten }
            }
        }
    }
}
