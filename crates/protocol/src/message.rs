//! Events that go into a PG's machine, and effects that come out of it. They carry calls of proxies, messages of
//! members and changes of other regions. These are words alone: no machine is used here.

mod append;
mod coalesce;
mod data;
mod peer;
mod put;
mod refusal;
pub mod remote_change;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use larder_types::{
    Attributes, BootId, BucketId, ChecksumAlgorithm, ChecksumKind, Condition, DiskId, Epoch,
    Extent, Grant, Holders, HybridClock, LvId, MapVersion, ObjectKey, OpId, PartRef, Request,
    ServerId, SessionId, StreamId, UploadId, VersionRow, View,
};
use serde::{Deserialize, Serialize};

pub use self::append::{AppendCall, AppendDone, AppendRefusal};
pub use self::coalesce::{CoalesceCall, CoalescePlan, CoalesceRequest};
pub use self::data::{DataAnswer, DataRequest};
pub use self::peer::{LogEntry, OpenEntry, PeerMessage, Piece, Report, SnapshotHeader};
pub use self::put::{Content, Description, PutCall};
pub use self::refusal::Refusal;
pub use self::remote_change::{RemoteAppend, RemoteChange, RemotePutCall};
use crate::digest::{Compared, Summed};
use crate::index::RowSpan;
use crate::lv::LvInfo;

/// Names a call in flight to its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A proxy's call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Begin a put.
    Put(Box<PutCall>),
    /// End one: METAX is persisted and these replicas acknowledged the data of `attempt`.
    Commit {
        /// The put.
        op: OpId,
        /// The attempt that wrote the data.
        attempt: u32,
        /// Replicas.
        holders: Holders,
    },
    /// The proxy abandons a put: too few replicas acknowledged, or its client has gone.
    Abandon {
        /// The put.
        op: OpId,
        /// True if its only replica had no room for its data: what lies where it should have lain, and behind,
        /// is not given for a while.
        disk_full: bool,
    },
    /// End the key's null version.
    Delete {
        /// The request of the client that deletes it.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Epoch as known.
        epoch: Epoch,
        /// Key.
        key: ObjectKey,
        /// The condition on the key.
        condition: Condition,
    },
    /// Replace tags.
    SetTags {
        /// The request of the client that sets them.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
        /// All tags.
        tags: Vec<(String, String)>,
    },
    /// Begin an upload.
    CreateUpload {
        /// The request of the client that creates it.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Epoch as known.
        epoch: Epoch,
        /// Key.
        key: ObjectKey,
        /// Attributes of the object to be.
        attributes: Attributes,
        /// Checksum chosen.
        checksum: Option<(ChecksumAlgorithm, ChecksumKind)>,
    },
    /// Make an upload the key's null version. The proxy has checked the parts against their rows;
    /// the primary checks that those rows have not changed since.
    CompleteUpload {
        /// The request of the client that completes it.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Epoch as known.
        epoch: Epoch,
        /// Key.
        key: ObjectKey,
        /// Upload.
        upload: UploadId,
        /// The description of the object.
        description: Box<Description>,
        /// Its parts, each with the op that put it.
        parts: Vec<(PartRef, OpId)>,
        /// The condition on the key.
        condition: Condition,
    },
    /// End an upload.
    AbortUpload {
        /// The request of the client that aborts it.
        request: Request,
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
        /// Upload.
        upload: UploadId,
    },
    /// Free the chunks of a stream that will have no parent.
    DropStream {
        /// Bucket.
        bucket: BucketId,
        /// Stream.
        stream: StreamId,
    },
    /// Find the key's null version.
    Read {
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
    },
    /// Answer when the index shows everything that this PG has taken so far, but for versions of which its journal will tell.
    Barrier,
    /// A reader found that a data server's copy of a chunk is damaged. Has no answer.
    Suspect {
        /// The chunk's grant.
        grant: Grant,
        /// Where the copy lies.
        server: ServerId,
    },
    /// Replicas had no room for a put's data: what lies where it should have lain there, and behind, is not given for a
    /// while, or only on the others.
    NoRoom {
        /// The put.
        op: OpId,
        /// Replicas.
        replicas: Holders,
    },
    /// Append to the key's null version.
    Append(Box<AppendCall>),
    /// The proxy takes a put back: it has told no client that it is done, and never will. It is revoked whatever its
    /// replicas have, if its outcome is not decided yet. [`Call::Abandon`] promises nothing of that kind.
    Withdraw {
        /// The put.
        op: OpId,
        /// As in [`Call::Abandon`].
        disk_full: bool,
    },
    /// Answer when the index shows everything that this PG has taken so far of these rows, or of the first of them.
    Settle(RowSpan),
    /// Take what another region tells.
    RemoteChange(Box<RemoteChange>),
    /// Find pieces of an object that are worth to be coalesced.
    PlanCoalesce(Box<CoalesceRequest>),
    /// Make pieces of an object one.
    Coalesce(Box<CoalesceCall>),
}

impl Call {
    /// The put that it begins, a client's or another region's.
    #[must_use]
    pub fn put(&self) -> Option<&PutCall> {
        match self {
            Self::Put(put) => Some(put),
            Self::RemoteChange(change) => change.put(),
            _ => None,
        }
    }

    /// The request that it is, of those that a session numbers.
    #[must_use]
    pub fn request(&self) -> Option<&Request> {
        match self {
            Self::Put(put) => Some(&put.request),
            Self::Append(append) => Some(&append.request),
            Self::Coalesce(coalesce) => Some(&coalesce.request),
            Self::RemoteChange(change) => Some(change.request()),
            Self::Delete { request, .. }
            | Self::SetTags { request, .. }
            | Self::CreateUpload { request, .. }
            | Self::CompleteUpload { request, .. }
            | Self::AbortUpload { request, .. } => Some(request),
            _ => None,
        }
    }

    /// Returns true for a proxy's report of what it did or found, which holds in every view and may arrive without a
    /// caller that waits.
    #[must_use]
    pub fn is_report(&self) -> bool {
        match self {
            Self::Commit { .. }
            | Self::Abandon { .. }
            | Self::Withdraw { .. }
            | Self::NoRoom { .. }
            | Self::DropStream { .. }
            | Self::Suspect { .. } => true,
            Self::Put(_)
            | Self::Delete { .. }
            | Self::SetTags { .. }
            | Self::CreateUpload { .. }
            | Self::CompleteUpload { .. }
            | Self::AbortUpload { .. }
            | Self::Append(_)
            | Self::RemoteChange(_)
            | Self::PlanCoalesce(_)
            | Self::Coalesce(_)
            | Self::Read { .. }
            | Self::Settle(_)
            | Self::Barrier => false,
        }
    }
}

/// An answer of a PG.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Write the data here. Leaves before METAX is durable.
    Granted {
        /// The grant.
        grant: Grant,
        /// Where.
        lv: LvId,
        /// Runs of blocks in the order of the data.
        extents: Vec<Extent>,
        /// Replicas that are to be given it.
        replicas: Holders,
        /// The version's clock.
        clock: HybridClock,
        /// The map that names the replicas: by an older one a number may mean another server's, which has been given up.
        as_of: MapVersion,
    },
    /// METAX of the put is below the commit point.
    Persisted {
        /// Grant whose METAX it is.
        grant: Grant,
    },
    /// The op is below the commit point and in effect.
    Done {
        /// The op.
        op: OpId,
        /// Its clock.
        clock: HybridClock,
    },
    /// The key's null version, if it is not in the index yet.
    Version(Option<Box<VersionRow>>),
    /// The index knows the answer.
    AskIndex,
    /// The index shows everything taken before the barrier.
    Passed,
    /// It will not be done.
    Refused(Refusal),
    /// The append is in effect, and the index shows it.
    Appended(Box<AppendDone>),
    /// To [`Call::Settle`]: everything taken before shows in rows before this one, or in all.
    Settled(Option<Vec<u8>>),
    /// To [`Call::PlanCoalesce`]; `None` if the object has no pieces, or none may be coalesced now.
    Plan(Option<Box<CoalescePlan>>),
}

/// An event for a PG's machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "an event is stepped at once and never kept")]
pub enum Event {
    /// A proxy calls.
    Call {
        /// Names the call.
        token: Token,
        /// The call.
        call: Call,
    },
    /// This member's log is synced through this op.
    Durable(OpId),
    /// A member says something.
    Peer {
        /// The member.
        from: ServerId,
        /// The message.
        message: PeerMessage,
    },
    /// A data server answers a request of the present view. The driver drops answers to earlier ones: that
    /// a server could not be reached then would close an LV that is open now.
    Data {
        /// LV of the request.
        lv: LvId,
        /// Replica that answers.
        replica: usize,
        /// The answer.
        answer: DataAnswer,
    },
    /// The manager begins a view.
    NewView {
        /// Its number.
        view: View,
        /// Members, primary first.
        members: Vec<ServerId>,
        /// This member's run.
        boot: BootId,
    },
    /// The manager has this server follow a view without being a member of it.
    Learn {
        /// The view.
        view: View,
        /// Its primary.
        primary: ServerId,
    },
    /// The flush of the index that was asked for under this number is done.
    IndexFlushed(u64),
    /// A proxy says that all its requests below `floor` are finished; `u64::MAX` when its session is
    /// over.
    Floor {
        /// The proxy's session.
        session: SessionId,
        /// Floor.
        floor: u64,
    },
    /// A proxy says that all its requests below a number are finished, but for some: it has said all that it ever will of
    /// their puts.
    Finished {
        /// The proxy's session.
        session: SessionId,
        /// The number.
        below: u64,
        /// Requests below that number that are not finished, in order.
        open: Arc<[u64]>,
    },
    /// The manager gave the group another LV, or one of its LVs other replicas.
    Lv(LvInfo),
    /// The manager wants no copies on a replica any more.
    Vacate {
        /// LV.
        lv: LvId,
        /// Index of the replica.
        replica: usize,
        /// Its order, named in the answer.
        order: MapVersion,
        /// True if the disk is gone for good, with all its copies.
        is_lost: bool,
        /// Replicas of the LV whose servers do not answer now: others keep their copies for these.
        away: Holders,
    },
    /// Servers of these replicas of an LV do not answer now, and those of all others do.
    Away {
        /// LV, of which copies come or go; nothing happens to another.
        lv: LvId,
        /// Replicas.
        away: Holders,
    },
    /// A copy that [`crate::Pg::consider`] asked for was made and is durable, or was not.
    Refilled {
        /// The chunk's row.
        row: Bytes,
        /// Grant of the copy.
        grant: Grant,
        /// True if it is durable there.
        is_copied: bool,
    },
    /// The copies that [`crate::Pg::consider_move`] asked for are durable on all replicas, or are not.
    Moved {
        /// The chunk's row.
        row: Bytes,
        /// Grant of the copies.
        grant: Grant,
        /// True if all are durable.
        is_copied: bool,
    },
    /// Every chunk that the index showed of the PG was considered since [`crate::Pg::wants_walk`] gave this number.
    Walked {
        /// The number.
        walk: u64,
        /// Replicas for which some copy is still to be made or given up.
        unmet: BTreeSet<(LvId, usize)>,
    },
    /// It is time to compare the members' indexes: [`crate::Pg::may_compare`].
    Compare,
    /// The index as it was at this op was summed, or was not.
    Digested {
        /// [`Effect::Digest`]'s op.
        at: OpId,
        /// The result.
        sum: Summed,
    },
    /// The pool has no LV left.
    PoolEmpty,
    /// Too few data servers are within reach for another LV.
    TooFewServers,
    /// Some garbage may go, if there is any: [`crate::Pg::wants_to_reap`]. A group that has no steps yet gets them only if all
    /// servers of the cluster know [`larder_types::Op::Reap`], and always will.
    Reap {
        /// It may get them.
        may_begin: bool,
    },
    /// Time passed.
    Tick,
}

/// An action for the driver of a PG's machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Append to this member's log, in order.
    Append(LogEntry),
    /// The buffered ops should be synced soon although nobody waits for a put: a reader waits.
    SyncSoon,
    /// Send to a member.
    Send {
        /// Whom.
        to: ServerId,
        /// The message.
        message: PeerMessage,
    },
    /// Answer a call.
    Reply {
        /// The call.
        token: Token,
        /// The answer.
        answer: Answer,
    },
    /// Ask a data server.
    Data {
        /// LV.
        lv: LvId,
        /// Replica.
        replica: usize,
        /// The request.
        request: DataRequest,
    },
    /// The commit point rose past an op that changes the index: [`crate::Pg::apply`] has work.
    Committed,
    /// Ask the manager for another LV.
    NeedLv,
    /// Tell the manager that this replica, on this disk, has a copy of all that its LV holds.
    Rebuilt {
        /// LV.
        lv: LvId,
        /// Index of the replica.
        replica: usize,
        /// Its disk.
        disk: DiskId,
    },
    /// Tell the manager that nothing names this replica any more.
    Vacated {
        /// LV.
        lv: LvId,
        /// Index of the replica.
        replica: usize,
        /// The manager's order.
        order: MapVersion,
    },
    /// The view is active: tell the manager.
    ViewActive(View),
    /// Tell the manager that this learner has everything that the view's members have.
    CaughtUp {
        /// View.
        view: View,
        /// The learner.
        learner: ServerId,
    },
    /// Keep a reader of the index as it is now, for this follower, in place of an earlier one.
    Snapshot {
        /// For whom.
        to: ServerId,
        /// The op that it shows last.
        at: OpId,
    },
    /// Send the follower the next piece of its snapshot: [`PeerMessage::SnapshotRows`].
    SnapshotRows {
        /// Whom.
        to: ServerId,
        /// The op of the snapshot.
        at: OpId,
        /// After which row.
        after: Option<Vec<u8>>,
    },
    /// The follower's snapshot is not needed any more.
    SnapshotOver {
        /// The follower.
        to: ServerId,
    },
    /// Make durable what the index shows now, and answer [`Event::IndexFlushed`] with this number.
    FlushIndex(u64),
    /// Keep a reader of the index as it is now, the last op applied being this one, and sum the PG's rows:
    /// [`Event::Digested`].
    Digest {
        /// The op.
        at: OpId,
    },
    /// The members' indexes were compared: for the log, metrics and operators.
    Compared {
        /// At which op.
        at: OpId,
        /// The result.
        outcome: Compared,
        /// The sum of each member.
        sums: BTreeMap<ServerId, Summed>,
    },
    /// This member can't go on: its index or log contradicts itself.
    Halt(String),
}

/// Effects in the order in which they are to be carried out.
pub type Outbox = Vec<Effect>;
