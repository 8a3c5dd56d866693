//! Everything that can happen, and to whom.

use bytes::Bytes;
use larder_protocol::{Answer, Call, DataAnswer, DataRequest, LvInfo, PeerMessage};
use larder_types::{
    BootId, BucketId, Chunk, ETag, Extent, Grant, LvId, ObjectKey, OpId, PartRow, PgId, PvId,
    ServerId, SessionId, UploadId, View,
};

use crate::faults::FaultKind;

/// A thing that happens.
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    /// To a meta server.
    Node(usize, NodeIn),
    /// To a data server.
    Store(usize, StoreIn),
    /// To the manager.
    Manager(ManagerIn),
    /// To a proxy.
    Proxy(usize, ProxyIn),
    /// A client makes its next call.
    Client(usize),
    /// A machine, or some of its processes, starts again.
    Restart(Part),
    /// A fault ends.
    Over(FaultKind),
}

/// Which processes stop or start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of a machine's.
    Machine(usize),
    /// Its meta server.
    Node(usize),
    /// Its data server.
    Store(usize),
    /// A proxy.
    Proxy(usize),
}

/// Who is to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) proxy: usize,
    pub(crate) session: SessionId,
    pub(crate) token: u64,
}

/// The PG that asks a data server, and the request's own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requester {
    pub(crate) node: usize,
    pub(crate) run: BootId,
    pub(crate) pg: PgId,
    pub(crate) replica: usize,
    pub(crate) id: u64,
}

/// What a proxy asks of a PG's primary.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    /// A call of the protocol, answered as it is.
    Call(Call),
    /// The key's version with the places of its bytes.
    Locate(BucketId, ObjectKey),
    /// Every key of the PG.
    List(BucketId),
    /// The parts of an upload.
    Parts(BucketId, UploadId),
}

#[derive(Debug, Clone)]
pub(crate) enum NodeIn {
    Ask { run: BootId, pg: PgId, view: View, caller: Option<Caller>, ask: Ask },
    Peer { pg: PgId, from: ServerId, message: PeerMessage },
    Data { run: BootId, id: u64, pg: PgId, lv: LvId, replica: usize, answer: DataAnswer },
    NewView { pg: PgId, view: View, members: Vec<ServerId>, boot: BootId },
    Learn { pg: PgId, view: View, primary: ServerId, boot: BootId },
    Floor { session: SessionId, floor: u64 },
    FlushFor { run: BootId, pg: PgId, flush: u64 },
    Space { run: BootId, pg: PgId, view: View, lvs: Vec<LvInfo>, sessions: Vec<SessionId> },
    LvAdded { run: BootId, pg: PgId, info: LvInfo },
    PoolEmpty { run: BootId, pg: PgId },
    Lease { run: BootId, pg: PgId, view: View, until_us: u64 },
    Closed { run: BootId, session: SessionId },
    TakeBatch { run: BootId },
    CommitBatch { run: BootId },
    Apply { run: BootId, pg: PgId },
    Tick { run: BootId },
    Flush { run: BootId },
}

#[derive(Debug, Clone)]
pub(crate) enum StoreIn {
    Create {
        pv: PvId,
        lv: LvId,
        replica: usize,
    },
    Write {
        caller: Caller,
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
        caller: Caller,
        chunk: Box<Chunk>,
    },
    Group {
        boot: BootId,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum ManagerIn {
    /// With the last op of each PG, if the node has all that its log and index ever had.
    NodeUp {
        node: usize,
        boot: BootId,
        last: Vec<Option<OpId>>,
    },
    Beat {
        node: usize,
        boot: BootId,
    },
    CaughtUp {
        node: usize,
        boot: BootId,
        pg: PgId,
        view: View,
        learner: ServerId,
    },
    StoreUp {
        store: usize,
        boot: BootId,
    },
    /// It was not heard of for as long as the manager waits.
    StoreDown {
        store: usize,
        boot: BootId,
    },
    ProxyUp {
        proxy: usize,
        session: SessionId,
    },
    Told {
        pg: PgId,
        view: View,
        node: usize,
        boot: BootId,
    },
    Active {
        node: usize,
        boot: BootId,
        pg: PgId,
        view: View,
    },
    NeedLv {
        node: usize,
        boot: BootId,
        pg: PgId,
    },
    Created {
        lv: LvId,
        replica: usize,
    },
    Renew {
        node: usize,
        boot: BootId,
        pg: PgId,
        view: View,
        sent_us: u64,
    },
    Tick,
}

#[derive(Debug, Clone)]
pub(crate) enum ProxyIn {
    Heard { session: SessionId, token: u64, heard: Heard },
    Wake { session: SessionId, task: u64 },
    Beat { session: SessionId },
}

/// A key of a list, with its etag and tags.
pub(crate) type Listed = (ObjectKey, ETag, Vec<(String, String)>);

/// What a proxy hears.
#[derive(Debug, Clone)]
pub(crate) enum Heard {
    /// What a PG answers, in which view.
    Answer(Answer, View),
    Located(Option<Box<Located>>),
    Listed(Vec<Listed>),
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
}

#[derive(Debug, Clone)]
pub(crate) enum Piece {
    Inline(Bytes),
    Chunk(Chunk),
}

impl Happening {
    /// A number for the trace's hash: what happens, and to whom.
    pub(crate) fn mark(&self) -> u64 {
        let (kind, whom, more) = match self {
            Happening::Node(node, input) => (input.kind(), *node as u64, input.more()),
            Happening::Store(store, input) => match input {
                StoreIn::Create { lv, .. } => (40, *store as u64, u64::from(lv.0)),
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
            },
            Happening::Manager(_) => (50, 0, 0),
            Happening::Proxy(proxy, ProxyIn::Heard { token, .. }) => (60, *proxy as u64, *token),
            Happening::Proxy(proxy, ProxyIn::Wake { task, .. }) => (61, *proxy as u64, *task),
            Happening::Proxy(proxy, ProxyIn::Beat { .. }) => (62, *proxy as u64, 0),
            Happening::Client(client) => (70, *client as u64, 0),
            Happening::Restart(_) => (80, 0, 0),
            Happening::Over(_) => (81, 0, 0),
        };
        kind << 56 | whom << 48 | more & 0xFFFF_FFFF_FFFF
    }
}

impl NodeIn {
    fn kind(&self) -> u64 {
        match self {
            NodeIn::Ask { .. } => 1,
            NodeIn::Peer { message, .. } => match message {
                PeerMessage::Append { .. } => 2,
                PeerMessage::Acked { .. } => 3,
                PeerMessage::Snapshot { .. } => 4,
                PeerMessage::Report { .. } => 5,
                PeerMessage::SnapshotNext { .. } => 18,
                PeerMessage::SnapshotRows { .. } => 19,
            },
            NodeIn::Data { .. } => 6,
            NodeIn::NewView { .. } => 7,
            NodeIn::Space { .. } => 8,
            NodeIn::LvAdded { .. } => 9,
            NodeIn::PoolEmpty { .. } => 10,
            NodeIn::Lease { .. } => 11,
            NodeIn::Closed { .. } => 12,
            NodeIn::TakeBatch { .. } => 13,
            NodeIn::CommitBatch { .. } => 14,
            NodeIn::Apply { .. } => 15,
            NodeIn::Tick { .. } => 16,
            NodeIn::Flush { .. } => 17,
            NodeIn::Learn { .. } => 20,
            NodeIn::Floor { .. } => 21,
            NodeIn::FlushFor { .. } => 22,
        }
    }

    fn more(&self) -> u64 {
        match self {
            NodeIn::Ask { pg, .. }
            | NodeIn::Peer { pg, .. }
            | NodeIn::Data { pg, .. }
            | NodeIn::NewView { pg, .. }
            | NodeIn::Learn { pg, .. }
            | NodeIn::Apply { pg, .. } => u64::from(pg.0),
            _ => 0,
        }
    }
}

impl From<ManagerIn> for Happening {
    fn from(input: ManagerIn) -> Self {
        Happening::Manager(input)
    }
}

impl From<(usize, NodeIn)> for Happening {
    fn from((node, input): (usize, NodeIn)) -> Self {
        Happening::Node(node, input)
    }
}

impl From<(usize, StoreIn)> for Happening {
    fn from((store, input): (usize, StoreIn)) -> Self {
        Happening::Store(store, input)
    }
}

impl From<(usize, ProxyIn)> for Happening {
    fn from((proxy, input): (usize, ProxyIn)) -> Self {
        Happening::Proxy(proxy, input)
    }
}
