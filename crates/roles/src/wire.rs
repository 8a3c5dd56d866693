//! The messages between the roles of a cluster: `docs/formats/roles.md`. Enums here grow at their end;
//! nothing of them is changed or removed while a release that speaks it is in use. Anything that may be
//! long, or is handed on as it is, goes into the payload.
//!
//! ```text
//!  proxy ──MetaCall──▶ meta ──MetaMessage::Peer──▶ meta
//!    │                   └────DataCall::Pg, Verify─▶ data
//!    └────DataCall::Write, Read──────────────────▶ data ──DataCall::ReadVerified──▶ data
//!  any ──ManagerCall, ManagerMessageIn──▶ manager ──Manager(ManagerMessage)──▶ any
//! ```

mod beat;
mod data;

pub use beat::Beat;
pub use data::{CopyEnd, CopyOrder, CopyState, DataCall, DataMessage, DataReply, DataService};
use larder_identity::Role;
use larder_net::Service;
use larder_protocol::limits::BUCKET_REGIONS_MAX;
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::manager::state::{Applied, Command, MapPlace, MapVersion, NewServer};
use larder_protocol::region::journal::Batch;
use larder_protocol::region::listing::PageRequest;
use larder_protocol::region::{Entry, Name, Token, Void};
use larder_protocol::{Answer, Call, Refusal};
use larder_types::{
    BucketId, BucketName, Epoch, ObjectKey, OpId, OpSeq, PgId, RegionId, ServerId, SessionId,
    Stamp, VersionRow, View,
};
use serde::{Deserialize, Serialize};

use crate::keys::KeysTaken;
use crate::limits::{PROTOCOL_FORGETS, REGION_REMOTE_BYTES_MAX};

/// The calls that meta servers answer.
#[derive(Debug)]
pub enum MetaService {}

impl Service for MetaService {
    const ROLE: Role = Role::Meta;
    type Request = MetaCall;
    type Answer = MetaReply;
    type Message = MetaMessage;
}

/// A question to the primary of PGs. Each names the view in which its asker takes the server for that; in another
/// view the answer is [`Refusal::NotPrimary`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "it is sent at once and never kept")]
pub enum MetaCall {
    /// A call. Of a put with data the answer is its grant, at once: what becomes of its METAX is asked with
    /// [`MetaCall::Await`].
    Call {
        /// PG.
        pg: PgId,
        /// View.
        view: View,
        /// Call.
        call: Call,
    },
    /// Answered when METAX of a granted put is persisted, or is known not to be.
    Await {
        /// PG.
        pg: PgId,
        /// View.
        view: View,
        /// The put.
        op: OpId,
    },
    /// The key's null version.
    Find {
        /// PG.
        pg: PgId,
        /// View.
        view: View,
        /// Bucket.
        bucket: BucketId,
        /// Key.
        key: ObjectKey,
    },
    /// One row of the index.
    GetRow {
        /// PG of the row.
        pg: PgId,
        /// View.
        view: View,
        /// Row.
        row: Vec<u8>,
    },
    /// Rows of the index that belong to these PGs, in order; at most [`ROWS_MAX`](crate::limits::ROWS_MAX) and
    /// [`ROWS_BYTES_MAX`](crate::limits::ROWS_BYTES_MAX).
    Scan {
        /// PGs with their views.
        pgs: Vec<(PgId, View)>,
        /// The asker's map: it is answered under this one or a newer, so that a bucket that is marked in it takes
        /// nothing more.
        map: MapVersion,
        /// True if everything that these PGs had taken must show.
        settled: bool,
        /// First row.
        from: Vec<u8>,
        /// The row behind the last, if any.
        to: Option<Vec<u8>>,
        /// Rows wanted.
        count_max: u32,
    },
    /// The progress of its background work. Of the server, not of a PG: any view.
    Progress,
    /// Puts in doubt in the PGs that it leads. Of the server: any view.
    Doubts,
    /// Journals of outcomes, at most [`JOURNALS_MAX`](crate::limits::JOURNALS_MAX).
    Journals {
        /// PGs with their views, and the tokens behind which outcomes are wanted.
        pgs: Vec<(PgId, View, Token)>,
        /// It is answered under this map or a newer: one that has the store's number among regions.
        map: MapVersion,
        /// Outcomes wanted of all PGs together; 0: whether there are any.
        ids_max: u32,
        /// True if everything that these PGs had taken must show first.
        settled: bool,
        /// Milliseconds for which the answer may wait for an outcome behind one of the tokens.
        wait_ms: u32,
    },
    /// Keys as the index keeps them, once all that was taken of each shows; at most
    /// [`KEPT_KEYS_MAX`](crate::limits::KEPT_KEYS_MAX).
    Kept {
        /// PGs of the keys with their views.
        pgs: Vec<(PgId, View)>,
        /// The keys.
        keys: Vec<(BucketId, ObjectKey)>,
    },
    /// By the gateway: how far other regions are in the journals of PGs, at most
    /// [`POSITIONS_MAX`](crate::limits::POSITIONS_MAX). Since [`PROTOCOL_POSITIONS`](crate::limits::PROTOCOL_POSITIONS), as
    /// the next.
    TellPositions(Vec<(PgId, Vec<Position>)>),
    /// Asks for the positions of other regions in a PG's journal.
    Positions {
        /// PG.
        pg: PgId,
        /// View.
        view: View,
        /// An op of its journal.
        op: OpSeq,
        /// The answer waits until so many other regions have it.
        count: u8,
        /// Milliseconds for which it waits, at most.
        wait_ms: u32,
    },
    /// Tell the space of the volumes whose groups it leads, and what buckets have there. Since
    /// [`PROTOCOL_REMOTE_READS`](crate::limits::PROTOCOL_REMOTE_READS).
    Space,
    /// Tell the counts of requests. Of the server: any view. Since [`PROTOCOL_COUNTS`](crate::limits::PROTOCOL_COUNTS).
    Counts,
}

/// Another region, and the op of a journal up to which it has all that the journal tells, durably.
pub type Position = (RegionId, OpSeq);

/// A meta server's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaReply {
    /// To a call.
    Answered(Answer),
    /// To [`MetaCall::Find`].
    Found(Option<Box<VersionRow>>),
    /// To [`MetaCall::GetRow`]: whether it is there; payload: its value.
    Row(bool),
    /// To [`MetaCall::Scan`]; payload: [`Rows`], encoded. Where to go on, if there is more.
    Rows(Option<Vec<u8>>),
    /// Not done.
    Refused(Refusal),
    /// To [`MetaCall::Progress`]; payload: a [`Progress`](crate::progress::Progress), encoded.
    Progress,
    /// To [`MetaCall::Doubts`]; payload: a [`DoubtsStatus`](crate::progress::DoubtsStatus), encoded.
    Doubts,
    /// To [`MetaCall::Journals`]; payload: a list of PGs, each with its [`JournalReply`], encoded.
    Journals,
    /// To [`MetaCall::Kept`]; payload: a list of [`KeyReply`] of the first keys, at least of one, encoded. What is missing is
    /// to be asked for again.
    Kept,
    /// To [`MetaCall::Positions`], as the gateway reported last. To [`MetaCall::TellPositions`], with none: they were
    /// received.
    Positions(Vec<Position>),
    /// To [`MetaCall::Space`]; payload: a [`SpaceStatus`](crate::progress::SpaceStatus), encoded.
    Space,
    /// To [`MetaCall::Counts`]; payload: a [`CountsStatus`](crate::breakdown::CountsStatus), encoded.
    Counts,
}

/// A primary's word on a PG's journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JournalReply {
    /// As its index shows it.
    Shows(JournalShown),
    /// Another server leads the PG, or the answer is not known now: retry.
    NotNow,
}

/// A PG's journal behind a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalShown {
    /// The last op that the index shows.
    pub applied: OpSeq,
    /// The last outcome that the journal has forgotten.
    pub forgotten: OpSeq,
    /// A version of the map that has every bucket of its outcomes, and of all rows that show.
    pub map: u64,
    /// Its outcomes.
    pub batch: Result<Batch, Void>,
}

/// A primary's word on a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyReply {
    /// The values of the rows of its null version and of its tombstone.
    Rows(Option<Vec<u8>>, Option<Vec<u8>>),
    /// Another leads the PG: ask there.
    NotNow,
    /// The outcome of a put of the key is not known yet, or the rows cannot be read.
    Unknown,
}

/// Rows with their values.
pub type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// The messages that meta servers are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "it is sent at once and never kept")]
pub enum MetaMessage {
    /// By another member, or one that wants to be; payload: a `PeerMessage`, encoded.
    Peer(PgId),
    /// By a proxy: a call that has no answer.
    Call {
        /// PG.
        pg: PgId,
        /// View.
        view: View,
        /// Call.
        call: Call,
    },
    /// By a proxy: its requests below this number are finished.
    Floor {
        /// Its session.
        session: SessionId,
        /// Number.
        floor: u64,
    },
    /// By the leading manager.
    Manager(ManagerMessage),
    /// By a proxy: its requests below a number are finished, but for some, and it has said all that it ever will of them.
    Finished {
        /// Its session.
        session: SessionId,
        /// Number.
        below: u64,
        /// Those that are not, in order.
        open: Vec<u64>,
    },
    /// By another member of several groups; payload: groups, each with a `PeerMessage` that is encoded, at most
    /// [`BATCH_MESSAGES_MAX`](crate::limits::BATCH_MESSAGES_MAX). Since [`PROTOCOL_BATCHES`](crate::limits::PROTOCOL_BATCHES).
    Peers,
}

/// The calls that managers answer.
#[derive(Debug)]
pub enum ManagerService {}

impl Service for ManagerService {
    const ROLE: Role = Role::Manager;
    type Request = ManagerCall;
    type Answer = ManagerReply;
    type Message = ManagerMessageIn;
}

/// A question to a manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerCall {
    /// The map, as soon as there is a newer one than this; for at most
    /// [`MAP_WAIT_MS`](crate::limits::MAP_WAIT_MS). Any manager answers.
    Map(MapVersion),
    /// Have the managers agree. Only the leading one does.
    Propose(Command),
    /// Give a server a place in the map, and a token that expires at this time since 1970, if ever. Only who has a
    /// manager's certificate may ask.
    IssueToken(Box<NewServer>, Option<u64>),
    /// The authority's key. Only managers of the map are told.
    Authority,
    /// Tell what it has observed of the cluster. Since [`PROTOCOL_OBSERVED`](crate::limits::PROTOCOL_OBSERVED).
    Observed,
    /// As [`ManagerCall::Map`], for an asker that takes changes of the map that it has, and pages of a long map. Since
    /// [`PROTOCOL_MAP_CHANGES`](crate::limits::PROTOCOL_MAP_CHANGES), as the next.
    MapSince {
        /// Version of the map that it has; 0 for the whole.
        known: MapVersion,
        /// Timeline of that.
        timeline: Option<u64>,
    },
    /// Give the page of the map that begins at this place.
    MapPage(MapPlace),
    /// Tell the version of the map that has every command that was answered before this. Only the leading manager does.
    /// Since [`PROTOCOL_COMMITTED`](crate::limits::PROTOCOL_COMMITTED).
    Committed,
}

/// A manager's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerReply {
    /// Payload: a `Topology`, encoded.
    Map,
    /// There is no newer map.
    Unchanged,
    /// The outcome of a command.
    Applied(Applied),
    /// Another leads, if that is known: ask there.
    NotLeader(Option<ServerId>),
    /// It may be applied or not.
    Unknown,
    /// Not begun: slow down.
    Busy,
    /// The server's id; payload: its token, as text.
    Issued(ServerId),
    /// No token; payload: why, for people.
    NotIssued,
    /// No token, or no key: this manager has not the authority's key itself, or not yet.
    NoAuthority,
    /// The asker's certificate does not allow it to ask for this, or it was removed from the cluster.
    NotAllowed,
    /// Payload: the authority's key and certificate, as in its file.
    Authority,
    /// Not begun: a voter, this one, may not know the command. Since
    /// [`PROTOCOL_FORGETS`](crate::limits::PROTOCOL_FORGETS).
    OlderManager(ServerId),
    /// Payload: an [`Observations`](crate::observed::Observations), encoded.
    Observed,
    /// Payload: [`MapChanges`](larder_protocol::manager::state::MapChanges), encoded.
    MapChanges,
    /// Payload: a [`MapPage`](larder_protocol::manager::state::MapPage), encoded. After a question for a later map, the first.
    MapPage,
    /// To [`ManagerCall::Committed`]. Since [`PROTOCOL_COMMITTED`](crate::limits::PROTOCOL_COMMITTED), as the next.
    Committed(MapVersion),
    /// This manager knows of no leader: it cannot tell what is committed. Ask another.
    NoQuorum,
}

impl ManagerReply {
    /// The reply in the form that a requester of this protocol version decodes.
    pub(crate) fn in_version(self, version: u8) -> Self {
        match self {
            Self::OlderManager(_) if version < PROTOCOL_FORGETS => Self::Busy,
            reply => reply,
        }
    }
}

/// The messages that managers are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerMessageIn {
    /// By another manager; payload: a `QuorumMessage`, encoded.
    Peer,
    /// By a server; managers that do not lead hand it on to the one that does.
    Server(ServerMessage),
    /// By a manager that does not lead: what this server said to it. It is not handed on again.
    HandedOn(ServerId, ServerMessage),
    /// From the leading manager, which cannot reach this server directly: deliver this to it. It is not forwarded
    /// again.
    HandedBack(ServerId, ManagerMessage),
    /// By a meta server, for all servers of its process; managers that do not lead hand it on, as a message of each, unless
    /// the one that leads hears it. Since [`PROTOCOL_BEATS`](crate::limits::PROTOCOL_BEATS) of the cluster.
    Beat(Beat),
}

/// Messages to proxies, and calls to the gateway to other regions.
#[derive(Debug)]
pub enum ProxyService {}

impl Service for ProxyService {
    const ROLE: Role = Role::Proxy;
    type Request = ProxyCall;
    type Answer = ProxyReply;
    type Message = ProxyMessage;
}

/// Calls between a cluster's other proxies and the gateway. Since [`PROTOCOL_HOMES`](crate::limits::PROTOCOL_HOMES).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProxyCall {
    /// Ask other regions for a key that is not here.
    Look(BucketName, ObjectKey),
    /// Have this region, the home of a bucket, make a client's change. Payload: a [`larder_link::Change`], encoded.
    Change(RegionId),
    /// Tell how the deletion of a bucket ends that is marked under this epoch, as the map of this version says. Since
    /// [`PROTOCOL_LOCAL`](crate::limits::PROTOCOL_LOCAL).
    Deletion(BucketId, BucketName, Epoch, u64),
    /// List a page of a bucket's keys in all regions, with the map of this version. Since [`PROTOCOL_LISTS`](crate::limits::PROTOCOL_LISTS).
    List(BucketName, u64, PageRequest),
    /// By the gateway: tell how many requests of clients are under way. Since [`PROTOCOL_LISTS`](crate::limits::PROTOCOL_LISTS).
    Clients,
    /// Read a part of a large object where it is. Since [`PROTOCOL_REMOTE_READS`](crate::limits::PROTOCOL_REMOTE_READS).
    Part(RemotePart),
    /// By a manager or a proxy: tell which of root's keys are taken. Since
    /// [`PROTOCOL_ROOT_KEYS`](crate::limits::PROTOCOL_ROOT_KEYS).
    Keys,
    /// By a manager or a proxy: tell the counts of clients' operations. Since
    /// [`PROTOCOL_COUNTS`](crate::limits::PROTOCOL_COUNTS).
    Counts,
}

/// A version that other regions have, and whose bytes do not come with a read: it is large, and comes by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteVersion {
    /// Its name.
    pub name: Name,
    /// Regions that have it.
    pub regions: Vec<RegionId>,
    /// Its description.
    pub entry: Entry,
}

/// Bytes of such a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemotePart {
    /// The version's name.
    pub name: Name,
    /// Its stamp.
    pub at: Stamp,
    /// Regions to read it from: the first that gives it.
    pub regions: Vec<RegionId>,
    /// First byte.
    pub from: u64,
    /// Number of bytes, 1 to [`REGION_REMOTE_BYTES_MAX`].
    pub len: u64,
}

impl RemotePart {
    /// Returns true if a proxy asks for such a part.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_few = self.regions.len() <= usize::from(BUCKET_REGIONS_MAX);
        is_few && (1..=REGION_REMOTE_BYTES_MAX).contains(&self.len)
    }
}

/// The gateway's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProxyReply {
    /// True if the key is here now.
    Looked(bool),
    /// Payload: a [`larder_link::ChangeAnswer`], encoded.
    Changed,
    /// This proxy does not speak with other regions.
    NotGateway,
    /// The key cannot be had now, for this reason. Since [`PROTOCOL_LOCAL`](crate::limits::PROTOCOL_LOCAL).
    NotNow(String),
    /// The end of a deletion.
    Deletion(DeletionEnd),
    /// Payload: a [`ListedPage`](larder_protocol::region::listing::ListedPage), encoded.
    Listed,
    /// There is no such page, for this reason.
    NotListed(ListRefusal),
    /// So many requests of clients are under way.
    Clients(u32),
    /// Other regions have the key as a large object. Payload: a [`RemoteVersion`], encoded.
    There,
    /// Payload: the bytes of the part.
    Part,
    /// There is no such part, for this reason.
    NoPart(PartRefusal),
    /// These are taken.
    Keys(KeysTaken),
    /// Payload: a [`CountsStatus`](crate::breakdown::CountsStatus), encoded.
    Counts,
}

/// Reason for not giving a part of a large object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartRefusal {
    /// The key has another version by now.
    Changed,
    /// Too many are read.
    SlowDown,
    /// No region gives it.
    Unavailable(String),
}

/// Reason for not listing a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListRefusal {
    /// There is no such bucket.
    NoSuchBucket,
    /// Too many lists are under way.
    SlowDown,
    /// A region does not tell its keys.
    Unavailable(String),
}

/// The end of a bucket's deletion in all regions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeletionEnd {
    /// No region has it.
    Deleted,
    /// A region has objects in it.
    NotEmpty,
    /// It failed for this reason.
    Failed(String),
    /// It is not known: there was none under that mark lately.
    Unknown,
}

/// The messages that proxies are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProxyMessage {
    /// By the leading manager.
    Manager(ManagerMessage),
}
