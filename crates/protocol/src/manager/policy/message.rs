//! Messages of servers to the leading manager, and its messages to them. Every message may be lost, doubled or late;
//! each side repeats until it sees the effect.

use larder_types::{BootId, DiskId, LvId, MapVersion, PgId, PvId, ServerId, SessionId, View};
use serde::{Deserialize, Serialize};

use crate::copy_pacing::{CopyNeed, CopyTurn};
use crate::limits::{LVS_MAX, START_AFTER_VERSION};
use crate::manager::state::{LvRecord, Topology};

/// Beside how many LVs a primary knows, in [`ServerMessage::NeedLv`].
pub const HAS_MOST: u32 = 1 << 31;

const _: () = assert!(LVS_MAX < HAS_MOST as usize, "a number of LVs leaves the bit free");

/// From a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerMessage {
    /// This run has begun, with these addresses; repeated until the map names it. With each of its PGs, the view of
    /// the last op that it has; `None` if its log or index is not whole.
    Started(BootId, Vec<String>, Vec<(PgId, Option<View>)>),
    /// This run goes on.
    Heartbeat(BootId),
    /// A meta server wants leases for the PGs that it leads in these views. A heartbeat as well.
    Renew {
        /// Its run.
        boot: BootId,
        /// Its clock when it sent this; echoed.
        sent_ms: u64,
        /// The groups that it leads, each with its view.
        led: Vec<(PgId, View)>,
    },
    /// The view has arrived.
    Told(BootId, PgId, View),
    /// A primary: an op of the view is durable on all its members.
    Active(BootId, PgId, View),
    /// A primary: this learner has everything below the commit point and follows.
    CaughtUp(PgId, View, ServerId),
    /// A primary: its LVs, of which it knows so many, are full. With [`HAS_MOST`] it has space on most replicas of one, so
    /// that another with as few is no use.
    NeedLv(PgId, View, u32),
    /// A data server: the PV of this replica is there, and this is where.
    Created(LvId, u8, DiskId, PvId),
    /// A primary: this replica, on this disk, has a copy of all that its LV holds.
    Rebuilt(LvId, u8, DiskId),
    /// A primary, in this view: no METAX names this replica any more, nor will any. To the order of this map.
    Vacated(LvId, u8, View, MapVersion),
    /// A proxy's session has begun.
    SessionBegun(BootId, SessionId),
    /// A primary: it does not hear these members, though it should.
    Unheard(BootId, PgId, View, Vec<ServerId>),
    /// A data server: this disk of it has no room for another LV. Repeated as long as that is so.
    NoRoom(BootId, DiskId),
    /// A member of the view: its rows are not those of the others. Repeated as long as the view lasts.
    Lacks(BootId, PgId, View),
    /// A meta server: what it has to copy. Repeated as long as that is so. Since
    /// [`COPY_TURNS_VERSION`](crate::limits::COPY_TURNS_VERSION) of the cluster.
    Copies {
        /// Its run.
        boot: BootId,
        /// Its clock when it sent this; echoed.
        sent_ms: u64,
        /// The copies that it has to make.
        need: CopyNeed,
    },
    /// As `Started`, of a run that follows another by the map of its server. It is heard only as long as the managers' map names
    /// that other one too: what an earlier run said, late, ends none that has followed. Since
    /// [`START_AFTER_VERSION`](crate::limits::START_AFTER_VERSION) of the cluster, from which on `Started` alone begins no run.
    StartedAfter {
        /// The run that the map names; 0 for none.
        before: BootId,
        /// This run.
        boot: BootId,
        /// Its addresses.
        addresses: Vec<String>,
        /// Its PGs, as in `Started`.
        has: Vec<(PgId, Option<View>)>,
    },
}

/// A run that begins: its id, its addresses, and its PGs as in [`ServerMessage::Started`].
pub type RunStart = (BootId, Vec<String>, Vec<(PgId, Option<View>)>);

impl ServerMessage {
    /// A server's run has begun. `map` is the map that the server knows.
    #[must_use]
    pub fn started(map: &Topology, server: ServerId, (boot, addresses, has): RunStart) -> Self {
        if map.cluster_version < START_AFTER_VERSION {
            return Self::Started(boot, addresses, has);
        }
        let before = map.servers.get(&server).map(|record| record.boot).unwrap_or_default();
        Self::StartedAfter { before, boot, addresses, has }
    }

    /// A primary that knows so many LVs needs another, though it may have space on most replicas of one.
    #[must_use]
    pub fn need_lv(pg: PgId, view: View, has: usize, has_most: bool) -> Self {
        let has = u32::try_from(has).unwrap_or(u32::MAX) & !HAS_MOST;
        Self::NeedLv(pg, view, if has_most { has | HAS_MOST } else { has })
    }

    /// The run that says it, where it matters.
    #[must_use]
    pub fn boot(&self) -> Option<BootId> {
        match self {
            Self::Started(boot, ..)
            | Self::Heartbeat(boot)
            | Self::Renew { boot, .. }
            | Self::Told(boot, ..)
            | Self::Active(boot, ..)
            | Self::SessionBegun(boot, _)
            | Self::Unheard(boot, ..)
            | Self::NoRoom(boot, _)
            | Self::Lacks(boot, ..)
            | Self::Copies { boot, .. }
            | Self::StartedAfter { boot, .. } => Some(*boot),
            Self::CaughtUp(..)
            | Self::NeedLv(..)
            | Self::Created(..)
            | Self::Rebuilt(..)
            | Self::Vacated(..) => None,
        }
    }
}

/// From the leading manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerMessage {
    /// The map does not name this run: say `Started`.
    WhoAreYou,
    /// The PG's view; to members and learners.
    NewView {
        /// The PG.
        pg: PgId,
        /// Its view.
        view: View,
        /// Members, primary first.
        members: Vec<ServerId>,
        /// They follow without counting.
        learners: Vec<ServerId>,
        /// The run that is meant.
        boot: BootId,
    },
    /// Leases of `LEASE_MS`.
    Leases {
        /// The run that is meant.
        boot: BootId,
        /// From when they count, on the server's clock: some time before it sent its renewal.
        sent_ms: u64,
        /// PGs whose primary may answer reads alone, each in this view.
        granted: Vec<(PgId, View)>,
    },
    /// All LVs of a PG whose PVs are there, with the runs of their data servers, and the open sessions. To its
    /// primary.
    Volumes {
        /// The PG.
        pg: PgId,
        /// The view for which it is said.
        view: View,
        /// The run that is meant.
        boot: BootId,
        /// The map that says so.
        version: MapVersion,
        /// LVs.
        lvs: Vec<(LvId, LvRecord)>,
        /// Runs of the data servers.
        boots: Vec<(ServerId, BootId)>,
        /// Sessions; all others are over.
        sessions: Vec<SessionId>,
    },
    /// There is no room for another LV.
    PoolEmpty(BootId, PgId),
    /// Give an LV a PV. It may come late: the map version tells whether it still holds.
    CreatePv {
        /// Its LV.
        lv: LvId,
        /// The LV's PG.
        pg: PgId,
        /// Its index in the LV.
        replica: u8,
        /// Where.
        disk: DiskId,
        /// Where on it.
        pv: PvId,
        /// Blocks.
        blocks: u32,
        /// A map in which the PV is this replica's.
        map: MapVersion,
    },
    /// Have no METAX name this replica any more; its disk drains, or is gone. To the PG's primary; repeated as long as
    /// it is wanted. The map's version names the order.
    Vacate(LvId, u8, MapVersion),
    /// A session is over.
    SessionClosed(SessionId),
    /// Too few data servers are within reach for another LV, though their disks may have room. Since
    /// [`TOO_FEW_SERVERS_VERSION`](crate::limits::TOO_FEW_SERVERS_VERSION) of the cluster.
    TooFewServers(BootId, PgId),
    /// The copies that a meta server may make now, in answer to what it said last. Since
    /// [`COPY_TURNS_VERSION`](crate::limits::COPY_TURNS_VERSION) of the cluster.
    CopyTurn {
        /// The run that is meant.
        boot: BootId,
        /// The server's clock when it said what it has to copy.
        sent_ms: u64,
        /// The server's turn.
        turn: CopyTurn,
    },
}
