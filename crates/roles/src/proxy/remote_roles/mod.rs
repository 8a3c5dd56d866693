//! The other roles in other processes, reached over the net.
//!
//! | file | what |
//! |---|---|
//! | `route.rs` | where a PG's calls go, and waiting for a newer map |
//! | `retry.rs` | why a try came to nothing, and when the next is due |
//! | `primaries.rs` | asking a PG's primary, the one of that moment |
//! | `calling.rs` | a call that becomes an op: always the same request |
//! | `put.rs`, `write.rs` | METAX and data in parallel |
//! | `copies.rs`, `reads.rs`, `detector.rs` | bytes from whichever replica has them right, soonest |
//! | `single_flight.rs` | reads of the same bytes at once are one |
//! | `scan.rs`, `merge.rs` | one scan of all meta servers |
//! | `regional.rs` | journals and kept keys, for other regions |
//! | `buckets.rs`, `session.rs`, `catch_up.rs` | what the managers are asked |
//! | `unavailable_pgs.rs` | deadlines of requests that cannot be served now |
//! | `sim/`, `planted.rs` | all of this under one seed, and faults for that to find |
//!
//! # Invariants
//!
//! 1. A request that may have been executed is repeated under its number until its fate is known or patience
//!    ends, then answered as unknown.
//! 2. Views in which a PG is asked never go down: an answer is always that of the latest view asked.
//! 3. Every wait ends at a deadline. A pause ends with a newer map, and there is one before each further try.

mod buckets;
mod calling;
mod catch_up;
mod copies;
mod counters;
mod detector;
mod gateway;
mod locations;
mod merge;
mod planted;
mod primaries;
mod put;
mod reads;
mod regional;
mod retry;
mod route;
mod scan;
mod session;
mod single_flight;
mod unavailable_pgs;
mod write;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_link::Change;
use larder_net::Endpoint;
use larder_objects::ObjectError;
use larder_protocol::manager::state::{GatewayRecord, Topology};
use larder_protocol::placement::pg_of;
use larder_protocol::region::listing::{ListedPage, PageRequest};
use larder_protocol::scheduler::{Policy, ReadCounts};
use larder_protocol::{Answer, Call};
use larder_types::{
    BootId, BucketId, BucketName, BucketRecord, Chunk, CorsRules, ObjectKey, OpSeq, PgId, RegionId,
    ServerId, VersionRow, View,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::home_change::HomeChange;
use super::other_regions::RegionLookup;
use super::removal::Removal;
use super::role_access::{BucketSnapshot, Data, Ended, FoundRow, Lost, RoleAccess, Scan, ScanStep};
use super::{max_wait, refused, unavailable};
use crate::clock::StoreClock;
use crate::data::ReadFailure;
use crate::limits::{
    MAP_LATE_MAX, ORPHANS_MAX, POSITIONS_ANSWER_MS, PROTOCOL_COALESCE, REGION_DELETION_MS,
    STRAGGLERS_KIB_MAX,
};
use crate::managers::Managers;
use crate::peers::Peers;
use crate::requests::Requests;
use crate::ticket::Settled;
use crate::wire::{DataService, MetaCall, MetaReply, Position, ProxyService, RemotePart};
use calling::Calling;
use catch_up::CatchUp;
use copies::Certainty;
pub use counters::ProxyCounters;
use counters::count;
use detector::Detectors;
use locations::Locations;
use planted::Bug;
use primaries::Primaries;
use reads::Reads;
use route::found;
use session::Keeper;
use single_flight::SingleFlight;
use unavailable_pgs::Wait;

/// The parts that a cluster's proxy is made with.
pub struct ClusterConfig {
    /// This process's end of its connections.
    pub endpoint: Arc<Endpoint>,
    /// The managers.
    pub managers: Arc<dyn Managers>,
    /// This server.
    pub me: ServerId,
    /// Its run, which the managers are told of by others.
    pub boot: BootId,
    /// The policy by which it chooses the replica that it reads.
    pub read_policy: Policy,
}

/// The data servers, and what is known of them.
struct Replicas {
    managers: Arc<dyn Managers>,
    data: Peers<DataService>,
    detectors: Mutex<Detectors>,
    reads: Reads,
    joined: SingleFlight,
}

/// The roles of other processes.
pub struct RemoteRoles {
    managers: Arc<dyn Managers>,
    primaries: Arc<Primaries>,
    replicas: Arc<Replicas>,
    locations: Locations,
    catch_up: Arc<CatchUp>,
    me: ServerId,
    /// This run, as the managers name it where it is the gateway to other regions.
    gateway: GatewayRecord,
    /// Other proxies, of which one may be the gateway.
    proxies: Peers<ProxyService>,
    /// Until when the gateway is not asked for keys, as it did not answer.
    gateway_quiet: Mutex<Option<Instant>>,
    removal: Removal,
    /// Room for data, in KiB, whose client was answered before every replica had it.
    stragglers: Arc<Semaphore>,
    /// True if the managers know the session.
    is_open: Arc<AtomicBool>,
    orphans: Arc<Semaphore>,
    /// Held back where this proxy is the gateway to other regions, which then tell it their clocks.
    clock: Arc<StoreClock>,
    runtime: Handle,
    _keeper: Keeper,
}

impl RemoteRoles {
    /// This run, as the managers name it where it is the gateway to other regions.
    pub(super) fn as_gateway(&self) -> GatewayRecord {
        self.gateway
    }

    /// Opens the session; returns once the managers know it.
    pub(super) async fn begin(config: ClusterConfig, requests: &Arc<Requests>) -> Self {
        let ClusterConfig { endpoint, managers, me, boot, read_policy } = config;
        if !session::opened(&*managers, boot, requests.session()).await {
            requests.begin_session(session::begun(&*managers, boot).await);
        }
        let peers = Peers::new(&endpoint);
        let primaries = Arc::new(Primaries::new(managers.clone(), peers, requests.clone()));
        let is_open = Arc::new(AtomicBool::new(true));
        let replicas = Replicas {
            managers: managers.clone(),
            data: Peers::new(&endpoint),
            detectors: Mutex::default(),
            reads: Reads::new(read_policy),
            joined: SingleFlight::default(),
        };
        Self {
            replicas: Arc::new(replicas),
            locations: Locations::default(),
            catch_up: CatchUp::new(managers.clone(), primaries.clone()),
            me,
            gateway: GatewayRecord { server: me, boot },
            proxies: Peers::new(&endpoint),
            gateway_quiet: Mutex::default(),
            removal: Removal::default(),
            stragglers: Arc::new(Semaphore::new(STRAGGLERS_KIB_MAX)),
            orphans: Arc::new(Semaphore::new(ORPHANS_MAX)),
            clock: Arc::default(),
            runtime: Handle::current(),
            _keeper: Keeper::start(primaries.clone(), boot, is_open.clone()),
            is_open,
            primaries,
            managers,
        }
    }

    pub(super) fn counters(&self) -> &ProxyCounters {
        self.primaries.counters()
    }

    /// The counts of its choices of replicas, and the replicas that owe an answer.
    pub(super) fn reads(&self) -> (ReadCounts, u64) {
        self.replicas.reads.counts()
    }

    /// Frees a stream's chunks, through the current primary of their PG: without that they stay until the session ends.
    fn drop_stream(&self, pg: PgId, call: Call) {
        let Ok(place) = self.orphans.clone().try_acquire_owned() else { return };
        let primaries = self.primaries.clone();
        self.runtime.spawn(async move {
            let dropped = Calling::of_nobody(&primaries, pg, call, max_wait()).settled().await;
            if let Err(error) = dropped {
                tracing::debug!(%pg, %error, "a stream without a parent stays until the session ends");
            }
            drop(place);
        });
    }

    /// Takes a put back whose caller went away before its grant came: finds out what it is.
    fn abandon_unknown(&self, pg: PgId, call: Call) {
        let Ok(place) = self.orphans.clone().try_acquire_owned() else { return };
        let primaries = self.primaries.clone();
        let Some(number) = call.request().map(|request| request.number) else { return };
        let kept = primaries.requests().keep(number);
        self.runtime.spawn(async move {
            let answer = Calling::of_orphan(&primaries, pg, call, max_wait()).answer().await;
            if let Ok((Answer::Granted { grant, .. }, _)) = answer {
                primaries.notify(pg, Call::Withdraw { op: grant.op, disk_full: false });
            }
            if planted::has(Bug::KeepsOrphans) {
                return std::mem::forget((kept, place));
            }
            drop((kept, place));
        });
    }
}

/// An answer to another question.
fn unfitting(what: &impl std::fmt::Debug) -> ObjectError {
    tracing::error!(?what, "a server sent a response of the wrong kind");
    unavailable("a server gave an answer that does not fit")
}

impl RoleAccess for RemoteRoles {
    fn clock(&self) -> &Arc<StoreClock> {
        &self.clock
    }

    fn bucket<T>(&self, name: &BucketName, look: impl FnOnce(&BucketRecord) -> T) -> Option<T> {
        self.managers.map().buckets.get(name).map(look)
    }

    async fn bucket_update(&self, name: &BucketName, known: BucketSnapshot) {
        count(&self.counters().bucket_waits);
        let look = |map: &Topology| known.is_passed(map.buckets.get(name)).then_some(());
        let _news = found(&*self.managers, Instant::now() + MAP_LATE_MAX, look).await;
    }

    async fn catch_up(&self) -> Result<(), ObjectError> {
        self.catch_up.caught_up().await
    }

    fn buckets(&self) -> Vec<BucketRecord> {
        self.managers.map().buckets.values().cloned().collect()
    }

    async fn create_bucket(
        &self,
        name: &BucketName,
        location: Option<String>,
    ) -> Result<BucketRecord, ObjectError> {
        buckets::create(&*self.managers, name, location).await
    }

    async fn set_cors(
        &self,
        name: &BucketName,
        rules: Option<CorsRules>,
    ) -> Result<(), ObjectError> {
        buckets::set_cors(&*self.managers, name, rules).await
    }

    async fn begin_deletion(&self, name: &BucketName) -> Result<BucketRecord, ObjectError> {
        buckets::begin_deletion(&*self.managers, name, self.region()).await
    }

    async fn end_deletion(&self, marked: BucketRecord, empty: bool) -> Result<(), ObjectError> {
        buckets::end_deletion(&*self.managers, marked, empty).await
    }

    async fn deleted_by_gateway(&self, marked: BucketRecord) -> Result<(), ObjectError> {
        let deadline = Instant::now() + Duration::from_millis(REGION_DELETION_MS);
        match self.request_deletion(&marked, deadline).await {
            Some(end) => end,
            None => buckets::deleted_by_gateway(&*self.managers, marked, deadline).await,
        }
    }

    fn is_gateway(&self) -> bool {
        self.managers.map().gateway == Some(self.gateway)
    }

    async fn read_gateway_state(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<RegionLookup, ObjectError> {
        Self::read_gateway_state(self, bucket, key).await
    }

    async fn part_at_gateway(&self, part: RemotePart) -> Result<Bytes, ObjectError> {
        Self::part_at_gateway(self, part).await
    }

    async fn change_at_gateway(
        &self,
        home: RegionId,
        change: Change,
    ) -> Result<HomeChange, ObjectError> {
        Self::change_at_gateway(self, home, change).await
    }

    async fn list_at_gateway(
        &self,
        bucket: &BucketName,
        ask: PageRequest,
    ) -> Result<ListedPage, ObjectError> {
        Self::list_at_gateway(self, bucket, ask).await
    }

    fn region(&self) -> RegionId {
        self.managers.map().number()
    }

    /// The proxy with the lowest server id that has a session.
    fn tidies(&self) -> bool {
        let map = self.managers.map();
        map.sessions.values().map(|session| session.server).min() == Some(self.me)
    }

    fn is_removed(&self) -> bool {
        self.removal.of(&self.managers.map())
    }

    fn may_coalesce(&self) -> bool {
        self.managers.map().cluster_version >= PROTOCOL_COALESCE
    }

    /// The managers opened a session: so the cluster is founded, and has PGs.
    fn copies(&self) -> u8 {
        self.managers.map().settings().copies
    }

    fn pg_of(&self, bucket: BucketId, key: &ObjectKey) -> PgId {
        pg_of(bucket, key, self.managers.map().pgs.len() as u32)
    }

    fn admit(&self) -> Result<(), ObjectError> {
        if self.is_open.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(unavailable("the managers have closed this proxy's session, and it opens another"))
    }

    /// Where there is no room the primary knows.
    fn admit_data(&self) -> Result<(), ObjectError> {
        self.admit()
    }

    async fn submit(&self, pg: PgId, call: Call) -> Result<Settled, ObjectError> {
        Calling::new(&self.primaries, pg, call, max_wait()).settled().await
    }

    fn notify(&self, pg: PgId, call: Call) {
        match call {
            call @ Call::DropStream { .. } => self.drop_stream(pg, call),
            call => self.primaries.notify(pg, call),
        }
    }

    async fn put(
        &self,
        pg: PgId,
        call: Call,
        data: Option<Data>,
        by: Instant,
    ) -> Result<Ended, ObjectError> {
        put::put(self, pg, call, data, by).await
    }

    async fn again(&self, tries: u32, lost: Lost, by: Instant) -> Result<(), ObjectError> {
        put::again(self, tries, lost, by).await
    }

    async fn find(
        &self,
        pg: PgId,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<Option<VersionRow>, ObjectError> {
        let mut call = MetaCall::Find { pg, view: View(0), bucket, key: key.clone() };
        match self.primaries.submit(pg, &mut call, &mut Wait::of_client(max_wait())).await?.reply {
            MetaReply::Found(row) => Ok(row.map(|row| *row)),
            MetaReply::Refused(refusal) | MetaReply::Answered(Answer::Refused(refusal)) => {
                Err(refused(refusal))
            }
            other => Err(unfitting(&other)),
        }
    }

    async fn find_and_read(
        &self,
        pg: PgId,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<(Option<VersionRow>, Option<Bytes>), ObjectError> {
        locations::find_and_read(self, (pg, bucket, key)).await
    }

    async fn row(&self, pg: PgId, row: &[u8]) -> Result<Option<Bytes>, ObjectError> {
        let mut call = MetaCall::GetRow { pg, view: View(0), row: row.to_vec() };
        let said = self.primaries.submit(pg, &mut call, &mut Wait::of_client(max_wait())).await?;
        match said.reply {
            MetaReply::Row(true) => Ok(Some(said.payload)),
            // A new primary's index may not show yet what the one before has shown.
            MetaReply::Row(false) => self.settled_row(pg, row).await,
            MetaReply::Refused(refusal) => Err(refused(refusal)),
            other => Err(unfitting(&other)),
        }
    }

    async fn positions(
        &self,
        pg: PgId,
        op: OpSeq,
        count: u8,
        wait: Duration,
    ) -> Result<Vec<Position>, ObjectError> {
        let wait_ms = wait.as_millis() as u32;
        let mut call = MetaCall::Positions { pg, view: View(0), op, count, wait_ms };
        // A server of an earlier release does not answer.
        let deadline = Instant::now() + wait + Duration::from_millis(POSITIONS_ANSWER_MS);
        match self.primaries.submit(pg, &mut call, &mut Wait::of_client(deadline)).await?.reply {
            MetaReply::Positions(positions) => Ok(positions),
            MetaReply::Refused(refusal) => Err(refused(refusal)),
            other => Err(unfitting(&other)),
        }
    }

    async fn rows_from(
        &self,
        pg: PgId,
        from: Vec<u8>,
        to: &[u8],
        count: usize,
    ) -> Result<Vec<FoundRow>, ObjectError> {
        scan::rows_from(&self.primaries, pg, (from, to), count).await
    }

    async fn settled_row(&self, pg: PgId, row: &[u8]) -> Result<Option<Bytes>, ObjectError> {
        let (from, behind) = (row.to_vec(), [row, &[0]].concat());
        let scan = Scan { pg: Some(pg), settle: true, from, to: Some(&behind), wanted: 1 };
        let mut found = None;
        let scanned = self.scan(scan, |_, value| {
            found = Some(Bytes::copy_from_slice(value));
            ScanStep::Stop
        });
        scanned.await?;
        Ok(found)
    }

    async fn read(&self, chunk: &Arc<Chunk>, range: Range<u32>) -> Result<Bytes, ReadFailure> {
        single_flight::read(self, chunk, range, Certainty::Named).await
    }

    async fn scan<V>(&self, scan: Scan<'_>, visit: V) -> Result<(), ObjectError>
    where
        V: FnMut(&[u8], &[u8]) -> ScanStep + Send,
    {
        scan::scan(&self.primaries, scan, visit).await
    }
}

#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
