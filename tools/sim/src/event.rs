//! Everything that can happen, and to whom.

use std::sync::Arc;

use bytes::Bytes;
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::manager::quorum::QuorumMessage;
use larder_protocol::manager::state::{Command, MapVersion, Topology};
use larder_protocol::{Answer, Call, DataAnswer, DataRequest, PeerMessage};
use larder_types::{
    BootId, BucketId, Chunk, ETag, Extent, Grant, LvId, ObjectKey, OpId, PartRow, PgId, PiecesId,
    ServerId, SessionId, UploadId, View,
};

use crate::faults::FaultKind;
use crate::servers::{Part, Server};

/// A thing that happens.
#[derive(Debug, Clone)]
pub(crate) enum SimEvent {
    /// To a meta server.
    Node(usize, NodeIn),
    /// To a data server.
    Store(usize, StoreIn),
    /// To a manager.
    Manager(usize, ManagerIn),
    /// To a proxy.
    Proxy(usize, ProxyIn),
    /// A client makes its next call.
    Client(usize),
    /// A machine, or some of its processes, starts again.
    Restart(Part),
    /// A fault that another brought about.
    Strikes(FaultKind),
    /// A fault ends.
    Over(FaultKind),
}

/// Messages from a manager.
#[derive(Debug, Clone)]
pub(crate) enum FromManagers {
    /// The leading one says something.
    Says(ManagerMessage),
    /// The map that was asked for.
    Map(Arc<Topology>),
}

/// The caller to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) proxy: usize,
    pub(crate) session: SessionId,
    pub(crate) token: u64,
}

/// The caller that asks a data server for bytes, or gives it some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataCaller {
    Proxy(Caller),
    /// A meta server, for a copy that it makes.
    Node {
        node: usize,
        run: BootId,
        copy: u64,
    },
}

/// The run of a meta server that asks a data server, and the request's own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requester {
    pub(crate) node: usize,
    pub(crate) run: BootId,
    pub(crate) id: u64,
}

/// Requests of a proxy to a PG's primary.
#[derive(Debug, Clone)]
pub(crate) enum PgRequest {
    /// A call of the protocol, answered as it is.
    Call(Call),
    /// The key's version with the places of its bytes.
    Locate(BucketId, ObjectKey),
    /// Every key of the PG, from a row on.
    List(BucketId, Vec<u8>),
    /// The parts of an upload.
    Parts(BucketId, UploadId),
}

/// The next step of a walk over the index.
#[derive(Debug, Clone)]
pub(crate) enum ReadStep {
    Begin,
    /// A stretch is read.
    Read,
    /// Members hear of a stretch that was read; `until` is the first row that was not.
    End {
        until: Option<Vec<u8>>,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum NodeIn {
    PgRequest { pg: PgId, view: View, caller: Option<Caller>, ask: PgRequest },
    Peer { pg: PgId, from: ServerId, message: PeerMessage },
    Data { run: BootId, id: u64, answer: DataAnswer },
    Copy { run: BootId, copy: u64, received: ProxyEvent },
    Managers(FromManagers),
    Floor { session: SessionId, floor: u64 },
    FlushFor { run: BootId, pg: PgId, flush: u64 },
    ReadIndex { run: BootId, step: ReadStep },
    TakeBatch { run: BootId },
    CommitBatch { run: BootId },
    Apply { run: BootId, pg: PgId },
    Tick { run: BootId },
    Flush { run: BootId },
    Beat { run: BootId },
    Sum { run: BootId, pg: PgId, at: OpId },
}

#[derive(Debug, Clone)]
pub(crate) enum StoreIn {
    Managers(FromManagers),
    Write {
        caller: DataCaller,
        lv: LvId,
        grant: Grant,
        extents: Vec<Extent>,
        data: Bytes,
        replica: usize,
    },
    Request {
        from: Requester,
        lv: LvId,
        request: DataRequest,
    },
    Read {
        caller: DataCaller,
        chunk: Box<Chunk>,
    },
    Group {
        boot: BootId,
    },
    Beat {
        boot: BootId,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum ManagerIn {
    Quorum { from: ServerId, message: QuorumMessage },
    Server { from: ServerId, message: ServerMessage, handed_on: bool },
    AskMap { from: ServerId, known: MapVersion },
    Operator(Command),
    Written { run: u64, write: u64 },
    Tick { run: u64 },
}

#[derive(Debug, Clone)]
pub(crate) enum ProxyIn {
    Managers(FromManagers),
    ProxyEvent { session: SessionId, token: u64, received: ProxyEvent },
    Wake { session: SessionId, task: u64 },
    Beat { session: SessionId },
    Floor { session: SessionId },
}

/// A key of a list, with its etag and tags.
pub(crate) type Listed = (ObjectKey, ETag, Vec<(String, String)>, u64);

/// Messages to a proxy.
#[derive(Debug, Clone)]
pub(crate) enum ProxyEvent {
    /// The answer of a PG, and its view.
    Answer(Answer, View),
    Located(Option<Box<Located>>),
    /// Keys, and where to go on.
    Listed(Vec<Listed>, Option<Vec<u8>>),
    Parts(Vec<(u16, PartRow)>),
    Written {
        replica: usize,
        grant: Grant,
        good: bool,
    },
    Bytes(Option<Bytes>),
}

/// A version, with the places of its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) op: OpId,
    pub(crate) etag: ETag,
    pub(crate) tags: Vec<(String, String)>,
    pub(crate) size: u64,
    pub(crate) pieces: Vec<Piece>,
    /// The name of the rows of its pieces, if it was appended to.
    pub(crate) appended: Option<PiecesId>,
}

#[derive(Debug, Clone)]
pub(crate) enum Piece {
    Inline(Bytes),
    Chunk(Chunk),
}

impl SimEvent {
    /// The server that it happens to.
    pub(crate) fn receiver(&self) -> Option<Server> {
        match self {
            SimEvent::Node(at, _) => Some(Server::Node(*at)),
            SimEvent::Store(at, _) => Some(Server::Store(*at)),
            SimEvent::Manager(at, _) => Some(Server::Manager(*at)),
            SimEvent::Proxy(at, _) => Some(Server::Proxy(*at)),
            _ => None,
        }
    }

    /// A number for the trace's hash: what happens, and to whom.
    pub(crate) fn mark(&self) -> u64 {
        let (kind, whom, more) = match self {
            SimEvent::Node(node, input) => (input.kind(), *node as u64, input.more()),
            SimEvent::Store(store, input) => match input {
                StoreIn::Managers(what) => (40, *store as u64, what.kind()),
                StoreIn::Write { grant, .. } => (41, *store as u64, grant.op.seq.0),
                StoreIn::Request { request, lv, .. } => {
                    let kind = match request {
                        DataRequest::Open { .. } => 42,
                        DataRequest::RaiseFloor { .. } => 43,
                        DataRequest::Void { .. } => 44,
                        DataRequest::Verify { .. } => 45,
                    };
                    (kind, *store as u64, u64::from(lv.0))
                }
                StoreIn::Read { chunk, .. } => (46, *store as u64, chunk.grant.op.seq.0),
                StoreIn::Group { .. } => (47, *store as u64, 0),
                StoreIn::Beat { .. } => (48, *store as u64, 0),
            },
            SimEvent::Manager(manager, input) => (input.kind(), *manager as u64, input.more()),
            SimEvent::Proxy(proxy, ProxyIn::ProxyEvent { token, .. }) => {
                (60, *proxy as u64, *token)
            }
            SimEvent::Proxy(proxy, ProxyIn::Wake { task, .. }) => (61, *proxy as u64, *task),
            SimEvent::Proxy(proxy, ProxyIn::Beat { .. }) => (62, *proxy as u64, 0),
            SimEvent::Proxy(proxy, ProxyIn::Managers(what)) => (63, *proxy as u64, what.kind()),
            SimEvent::Proxy(proxy, ProxyIn::Floor { .. }) => (64, *proxy as u64, 0),
            SimEvent::Client(client) => (70, *client as u64, 0),
            SimEvent::Restart(_) => (80, 0, 0),
            SimEvent::Over(_) => (81, 0, 0),
            SimEvent::Strikes(_) => (82, 0, 0),
        };
        kind << 56 | whom << 48 | more & 0xFFFF_FFFF_FFFF
    }
}

impl NodeIn {
    fn kind(&self) -> u64 {
        match self {
            NodeIn::PgRequest { .. } => 1,
            NodeIn::Peer { message, .. } => match message {
                PeerMessage::Append { .. } => 2,
                PeerMessage::Acked { .. } => 3,
                PeerMessage::Snapshot { .. } => 4,
                PeerMessage::Report { .. } => 5,
                PeerMessage::SnapshotNext { .. } => 18,
                PeerMessage::SnapshotRows { .. } => 19,
                PeerMessage::AskDigest { .. } => 25,
                PeerMessage::Digest { .. } => 26,
                PeerMessage::IsOdd { .. } => 27,
            },
            NodeIn::Data { .. } => 6,
            NodeIn::Managers(_) => 7,
            NodeIn::Beat { .. } => 8,
            NodeIn::TakeBatch { .. } => 13,
            NodeIn::CommitBatch { .. } => 14,
            NodeIn::Apply { .. } => 15,
            NodeIn::Tick { .. } => 16,
            NodeIn::Flush { .. } => 17,
            NodeIn::Floor { .. } => 21,
            NodeIn::FlushFor { .. } => 22,
            NodeIn::Copy { .. } => 23,
            NodeIn::ReadIndex { .. } => 25,
            NodeIn::Sum { .. } => 24,
        }
    }

    fn more(&self) -> u64 {
        match self {
            NodeIn::PgRequest { pg, .. }
            | NodeIn::Peer { pg, .. }
            | NodeIn::Sum { pg, .. }
            | NodeIn::Apply { pg, .. } => u64::from(pg.0),
            NodeIn::Managers(what) => what.kind(),
            NodeIn::Copy { copy, .. } => *copy,
            NodeIn::Data { id, .. } => *id,
            _ => 0,
        }
    }
}

impl FromManagers {
    fn kind(&self) -> u64 {
        match self {
            FromManagers::Map(map) => 1 << 32 | map.version.0,
            FromManagers::Says(message) => match message {
                ManagerMessage::WhoAreYou => 1,
                ManagerMessage::NewView { view, .. } => 2 << 24 | view.0,
                ManagerMessage::Leases { .. } => 3,
                ManagerMessage::Volumes { view, .. } => 4 << 24 | view.0,
                ManagerMessage::PoolEmpty(..) => 5,
                ManagerMessage::CreatePv { lv, .. } => 6 << 24 | u64::from(lv.0),
                ManagerMessage::Vacate(..) => 7,
                ManagerMessage::SessionClosed(_) => 8,
                ManagerMessage::TooFewServers(..) => 9,
                ManagerMessage::CopyTurn { .. } => 10,
            },
        }
    }
}

impl ManagerIn {
    fn kind(&self) -> u64 {
        match self {
            ManagerIn::Quorum { .. } => 50,
            ManagerIn::Server { .. } => 51,
            ManagerIn::AskMap { .. } => 52,
            ManagerIn::Operator(_) => 53,
            ManagerIn::Written { .. } => 54,
            ManagerIn::Tick { .. } => 55,
        }
    }

    fn more(&self) -> u64 {
        match self {
            ManagerIn::Quorum { from, .. }
            | ManagerIn::Server { from, .. }
            | ManagerIn::AskMap { from, .. } => u64::from(from.0),
            ManagerIn::Written { write, .. } => *write,
            ManagerIn::Operator(_) | ManagerIn::Tick { .. } => 0,
        }
    }
}

impl From<(usize, ManagerIn)> for SimEvent {
    fn from((manager, input): (usize, ManagerIn)) -> Self {
        SimEvent::Manager(manager, input)
    }
}

impl From<(usize, NodeIn)> for SimEvent {
    fn from((node, input): (usize, NodeIn)) -> Self {
        SimEvent::Node(node, input)
    }
}

impl From<(usize, StoreIn)> for SimEvent {
    fn from((store, input): (usize, StoreIn)) -> Self {
        SimEvent::Store(store, input)
    }
}

impl From<(usize, ProxyIn)> for SimEvent {
    fn from((proxy, input): (usize, ProxyIn)) -> Self {
        SimEvent::Proxy(proxy, input)
    }
}
