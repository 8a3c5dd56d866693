//! The content of the topology map.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use larder_types::codec::{self, CodecError, V2, V3, V4, V5, V6, V7};
use larder_types::{
    BootId, BucketId, BucketName, BucketRecord, DiskId, MapVersion, PgId, PvId, RegionId, ServerId,
    SessionId, View,
};
use serde::{Deserialize, Serialize};

use super::root::RootRecord;
use crate::lv::ReplicaState;
use crate::manager::quorum::LogIndex;
use crate::placement::{FailureDomains, Weight};

/// The id of a cluster, drawn when it is founded. Every file of the cluster has it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct ClusterId(pub u64);

/// The id of a join token in its cluster's map.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct TokenId(pub u32);

/// The settings that a cluster is founded with, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// PGs, a power of two.
    pub pg_count: u32,
    /// Members that a PG should have.
    pub members: u8,
    /// Least members with which a PG acknowledges.
    pub min_members: u8,
    /// Replicas that an LV should have.
    pub copies: u8,
    /// Least replicas that a new LV has.
    pub min_copies: u8,
    /// Blocks of an LV.
    pub lv_blocks: u32,
}

/// A role of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ServerRole {
    /// Votes on the map.
    Manager,
    /// Keeps METAX.
    Meta,
    /// Keeps blocks.
    Data,
    /// Serves S3.
    Proxy,
}

/// The state of a server: by its operator's will, and as the managers find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ServerState {
    /// It has an id and has not started with it yet.
    Joining,
    /// It answers.
    Up,
    /// It does not answer.
    Down,
    /// It was removed with its data, and never comes back.
    Removed,
}

/// The state of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DiskState {
    /// It takes and keeps PVs.
    In,
    /// Its PVs are to move elsewhere.
    Draining,
    /// It was removed with its data.
    Removed,
}

/// A disk of a data server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    /// Its weight.
    pub weight: Weight,
    /// PVs that it has room for.
    pub pv_count: u32,
    /// The first PV that never had an LV.
    pub next_pv: PvId,
    /// PVs below it that have no LV any more.
    pub freed: BTreeSet<PvId>,
    /// Its state.
    pub state: DiskState,
}

impl DiskRecord {
    /// PVs without an LV.
    #[must_use]
    pub fn pv_free(&self) -> u32 {
        self.pv_count - self.next_pv.0 + self.freed.len() as u32
    }
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Its operator's name for it.
    pub name: String,
    /// The roles of the server.
    pub roles: BTreeSet<ServerRole>,
    /// The addresses at which it listens, `host:port`.
    pub addresses: Vec<String>,
    /// The domains that fail together with it.
    pub domains: FailureDomains,
    /// Its share of the PGs.
    pub weight: Weight,
    /// Its state.
    pub state: ServerState,
    /// True if its members and PVs are to move elsewhere.
    pub draining: bool,
    /// Its present run.
    pub boot: BootId,
    /// Former runs, the latest last: messages of these come late. A server that finds its own run among them was replaced
    /// by another process, and ends.
    pub ended: VecDeque<BootId>,
    /// The map that first had the present run.
    pub started: MapVersion,
    /// Its disks.
    pub disks: BTreeMap<DiskId, DiskRecord>,
}

/// A PG.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PgRecord {
    /// Its view; 0 before the first.
    pub view: View,
    /// The map in which the view began.
    pub begun: MapVersion,
    /// Acting members, primary first.
    pub members: Vec<ServerId>,
    /// Members that were levelled and synced in an activated view, and have been members and lost nothing since: only these
    /// may lead.
    pub qualified: BTreeSet<ServerId>,
    /// The latest view that was activated.
    pub activated: View,
    /// Members that have lost ops at the start of a run in this view, or whose rows differ from the others': they are levelled
    /// again only in the next view.
    pub lacking: BTreeSet<ServerId>,
    /// Servers that copy and follow the group without counting for commits.
    pub learners: BTreeSet<ServerId>,
    /// Target members.
    pub target: Vec<ServerId>,
    /// The map in which a data server of its LVs last began a run.
    pub data_started: MapVersion,
}

impl PgRecord {
    /// Returns true if its present view is activated.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.view > View(0) && self.activated == self.view
    }
}

/// The state of an LV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LvState {
    /// Its PVs are being made.
    Creating,
    /// It takes writes, if its PG says so.
    Open,
    /// It takes no writes.
    ReadOnly,
}

/// A replica of an LV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaRecord {
    /// Data server.
    pub server: ServerId,
    /// Disk of it.
    pub disk: DiskId,
    /// PV on it.
    pub pv: PvId,
    /// The state of its content.
    pub state: ReplicaState,
}

/// An LV.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LvRecord {
    /// Its only PG, for ever.
    pub pg: PgId,
    /// Blocks.
    pub blocks: u32,
    /// The most replicas that it had current at once; fewer than the cluster's setting for a narrow one.
    pub width: u8,
    /// Replicas, by the index that METAX names.
    pub replicas: Vec<ReplicaRecord>,
    /// Its state.
    pub state: LvState,
}

impl LvRecord {
    /// Replicas that are not gone, with their indices.
    pub fn present(&self) -> impl Iterator<Item = (usize, &ReplicaRecord)> {
        self.replicas.iter().enumerate().filter(|(_, r)| r.state != ReplicaState::Gone)
    }
}

/// A proxy's session that is open. Closed ones are not in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Server of the proxy.
    pub server: ServerId,
    /// Its run: the session ends with it.
    pub boot: BootId,
}

/// A token that lets a server join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Random bytes by which [`Command::AddServer`](super::Command::AddServer) names it. They are no hash of its secret, which
    /// only the manager that issued it has.
    pub hash: [u8; 32],
    /// The time since 1970, in milliseconds, at which it expires.
    pub expires_ms: u64,
    /// True if it was revoked.
    pub revoked: bool,
}

/// The place of a cluster among several regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionRecord {
    /// Its number.
    pub number: RegionId,
    /// SHA-256 of the public key by which other regions know it.
    pub fingerprint: [u8; 32],
}

/// A run of the proxy that speaks with the other regions for its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayRecord {
    /// Its server.
    pub server: ServerId,
    /// The run.
    pub boot: BootId,
}

/// A part of the map's history, under one leader of the managers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Its id: 64 random bits, which the leader drew.
    pub id: u64,
    /// Its first map.
    pub since: MapVersion,
}

/// The topology map: the state that the managers agree on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Topology {
    /// The cluster; `None` before it is founded.
    pub founded: Option<(ClusterId, Settings)>,
    /// Its version, which grows with each change.
    pub version: MapVersion,
    /// The last entry of the quorum's log that was applied.
    pub applied: LogIndex,
    /// Servers, removed ones included.
    pub servers: BTreeMap<ServerId, ServerRecord>,
    /// Ids not given out yet.
    pub next: NextIds,
    /// PGs, by id.
    pub pgs: Vec<PgRecord>,
    /// LVs, by id.
    pub lvs: Vec<LvRecord>,
    /// Open sessions.
    pub sessions: BTreeMap<SessionId, SessionRecord>,
    /// The sessions closed last, so that a late command to open one is refused.
    pub closed: BTreeSet<(MapVersion, SessionId)>,
    /// Buckets.
    pub buckets: BTreeMap<BucketName, BucketRecord>,
    /// Join tokens.
    pub tokens: BTreeMap<TokenId, TokenRecord>,
    /// The region that the cluster is; `None` for a cluster that is alone. Not among the fields of version 1.
    #[serde(skip)]
    pub region: Option<RegionRecord>,
    /// The gateway to the other regions, or the last one. Not among the fields of versions 1 and 2.
    #[serde(skip)]
    pub gateway: Option<GatewayRecord>,
    /// The gateway's list of regions, encoded as regions send it to each other; empty before there is
    /// one. Not among the fields of versions 1 and 2.
    #[serde(skip)]
    pub regions: Vec<u8>,
    /// A measure of that list's content, which never shrinks. Not among the fields of versions 1 and 2.
    #[serde(skip)]
    pub regions_known: u32,
    /// The time since 1970, in milliseconds, at which moves for balance were paused; `None` while they may begin. Not among the
    /// fields of versions 1 to 3.
    #[serde(skip)]
    pub balance_paused_ms: Option<u64>,
    /// The protocol version that every server of the cluster supports. It never falls: a server that supports only
    /// older ones is refused. 0 before it was first raised. Not among the fields of versions 1 to 4.
    #[serde(skip)]
    pub cluster_version: u8,
    /// Root's keys; `None` until they are first rotated: till then proxies have them from their files. Not among the fields of
    /// versions 1 to 5.
    #[serde(skip)]
    pub root: Option<RootRecord>,
    /// The latest timelines, at most [`TIMELINES_MAX`](crate::limits::TIMELINES_MAX), in order. Not among the fields of versions 1
    /// to 6.
    #[serde(skip)]
    pub timelines: Vec<Timeline>,
}

const WHAT: &str = "the topology map";

impl Topology {
    /// Its number among regions; [`RegionId::OWN`] for a cluster that is alone.
    #[must_use]
    pub fn number(&self) -> RegionId {
        self.region.map_or(RegionId::OWN, |region| region.number)
    }

    /// Encodes it in the first version that has all fields which are set. Every release decodes version 1, which has none of
    /// the others. Version 2 adds a region, 3 a gateway, 4 a pause of moves for balance. Version 5 adds
    /// [`Self::cluster_version`], 6 [`Self::root`], 7 [`Self::timelines`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        if self.cluster_version > 0 || self.root.is_some() || !self.timelines.is_empty() {
            let of_region = (self.region, self.gateway, &self.regions, self.regions_known);
            let known_since = (self.cluster_version, self.balance_paused_ms, of_region);
            return match &self.root {
                root if !self.timelines.is_empty() => {
                    codec::encode_as(V7, &(&self.timelines, root, known_since, self))
                }
                Some(root) => codec::encode_as(V6, &(root, known_since, self)),
                None => codec::encode_as(V5, &(known_since, self)),
            };
        }
        if self.balance_paused_ms.is_some() {
            let of_region = (self.region, self.gateway, &self.regions, self.regions_known);
            return codec::encode_as(V4, &(self.balance_paused_ms, of_region, self));
        }
        match (self.region, self.gateway) {
            (None, _) => codec::encode(self),
            (Some(region), None) => codec::encode_as(V2, &(region, self)),
            (Some(region), Some(gateway)) => {
                codec::encode_as(V3, &(region, gateway, &self.regions, self.regions_known, self))
            }
        }
    }

    /// Decodes a map that [`Topology::encode`] encoded, of any version.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        match bytes.first() {
            Some(&version @ (V5 | V6 | V7)) => {
                let (timelines, root, known_since, map): (_, _, _, Self) = match version {
                    V7 => codec::decode_as(WHAT, V7, bytes)?,
                    V6 => {
                        let (root, known_since, map) = codec::decode_as(WHAT, V6, bytes)?;
                        (Vec::new(), Some(root), known_since, map)
                    }
                    _ => {
                        let (known_since, map) = codec::decode_as(WHAT, V5, bytes)?;
                        (Vec::new(), None, known_since, map)
                    }
                };
                let (cluster_version, balance_paused_ms, of_region) = known_since;
                let (region, gateway, regions, regions_known) = of_region;
                let map = Self { region, gateway, regions, regions_known, ..map };
                Ok(Self { timelines, root, cluster_version, balance_paused_ms, ..map })
            }
            Some(&V4) => {
                let (balance_paused_ms, of_region, map): (_, _, Self) =
                    codec::decode_as(WHAT, V4, bytes)?;
                let (region, gateway, regions, regions_known) = of_region;
                Ok(Self { region, gateway, regions, regions_known, balance_paused_ms, ..map })
            }
            Some(&V3) => {
                let (region, gateway, regions, regions_known, map): (_, _, _, _, Self) =
                    codec::decode_as(WHAT, V3, bytes)?;
                let (region, gateway) = (Some(region), Some(gateway));
                Ok(Self { region, gateway, regions, regions_known, ..map })
            }
            Some(&V2) => {
                let (region, map): (_, Self) = codec::decode_as(WHAT, V2, bytes)?;
                Ok(Self { region: Some(region), ..map })
            }
            _ => codec::decode(WHAT, bytes),
        }
    }

    /// True if a session of a gateway's run is open: its requests may still arrive.
    #[must_use]
    pub fn has_session_of(&self, gateway: GatewayRecord) -> bool {
        let is_of = |it: &SessionRecord| it.server == gateway.server && it.boot == gateway.boot;
        self.sessions.values().any(is_of)
    }
}

/// The next ids to give out; none is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NextIds {
    /// Server.
    pub server: ServerId,
    /// Disk.
    pub disk: DiskId,
    /// Bucket.
    pub bucket: BucketId,
    /// Token.
    pub token: TokenId,
}
