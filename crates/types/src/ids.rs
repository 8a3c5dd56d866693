//! Typed ids. A bare `u64` never crosses a boundary.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// Placement group: `hash(bucket, key) mod pg_count`.
    PgId(u32)
}
id! {
    /// Number of a PG's membership; grows by one at each change of members or primary and at each
    /// restart of a primary.
    View(u64)
}
id! {
    /// Position in a PG's log. The first op is 1; 0 stands for "before every op".
    OpSeq(u64)
}
id! {
    /// Logical volume.
    LvId(u32)
}
id! {
    /// Physical volume: an index into one disk's ranges.
    PvId(u32)
}
id! {
    /// A disk, within its cluster.
    DiskId(u32)
}
id! {
    /// A cluster; drawn at its creation.
    ClusterId(u64)
}
id! {
    /// Version of the topology map: grows with each command that changes it. A founded
    /// cluster's is above 0.
    MapVersion(u64)
}
id! {
    /// A server process group, within its cluster.
    ServerId(u32)
}
id! {
    /// A region: from 1 on, given when regions are formed.
    RegionId(u16)
}
id! {
    /// One run of one data server process; drawn at random at each start.
    BootId(u64)
}
id! {
    /// A bucket; never used again after its deletion.
    BucketId(u64)
}
id! {
    /// Version of a bucket's record; a put that carries an older one is refused.
    Epoch(u64)
}
id! {
    /// One run of one proxy.
    SessionId(u64)
}

impl RegionId {
    /// In what a store keeps: the store's own region, whose number it did not have yet.
    pub const OWN: Self = Self(0);
}

impl OpSeq {
    /// The position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// An op by view and position: never issued twice in a PG, and ordered as the logs are.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct OpId {
    /// View in which the op was issued.
    pub view: View,
    /// Its position.
    pub seq: OpSeq,
}

/// The part of a grant by which writes of one LV are ordered: floors compare as this pair.
pub type GrantKey = OpId;

/// The right to write one put's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Grant {
    /// PG that issued it.
    pub pg: PgId,
    /// View and position of the put.
    pub op: OpId,
    /// 0 for the first; each RE-DATA takes the next.
    pub attempt: u32,
}

/// A client's request as the primary knows it: repeats carry the same session and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Request {
    /// The proxy's run.
    pub session: SessionId,
    /// Number within the session.
    pub number: u64,
    /// Every number below it is finished; repeats of those are refused.
    pub floor: u64,
}

/// A sequence of chunks written by one large put or one large part; unique as requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId {
    /// Session of the request that writes it.
    pub session: SessionId,
    /// Number of that request.
    pub number: u64,
}

/// A multipart upload: the op that created it, with its PG.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UploadId {
    /// PG of the object's key.
    pub pg: PgId,
    /// The creating op.
    pub op: OpId,
}

/// The pieces of a version that was appended to: the append that began them, with its PG.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PiecesId {
    /// PG of the object's key.
    pub pg: PgId,
    /// The first append.
    pub op: OpId,
}

impl fmt::Display for PiecesId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:016x}{:016x}", self.pg.0, self.op.view.0, self.op.seq.0)
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:016x}{:016x}", self.pg.0, self.op.view.0, self.op.seq.0)
    }
}

impl UploadId {
    /// Reads what [`UploadId`]'s `Display` wrote; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 40 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let number = |range: std::ops::Range<usize>| u64::from_str_radix(&text[range], 16).ok();
        Some(Self {
            pg: PgId(u32::try_from(number(0..8)?).ok()?),
            op: OpId { view: View(number(8..24)?), seq: OpSeq(number(24..40)?) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upload_ids_read_back_and_refuse_other_text() {
        let id = UploadId { pg: PgId(7), op: OpId { view: View(3), seq: OpSeq(99) } };
        assert_eq!(UploadId::parse(&id.to_string()), Some(id));
        assert_eq!(UploadId::parse("abc"), None);
        assert_eq!(UploadId::parse(&id.to_string().to_uppercase().replace('0', "G")), None);
    }

    #[test]
    fn ops_are_ordered_by_view_first() {
        let old = OpId { view: View(1), seq: OpSeq(9) };
        let new = OpId { view: View(2), seq: OpSeq(1) };
        assert!(old < new);
    }
}
