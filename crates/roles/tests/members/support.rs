//! Three meta servers over loopback connections, and a proxy's side of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_env::{Disk, RealDisk};
use larder_identity::{Authority, Credentials, Role, Roles};
use larder_kv::KvReader;
use larder_metalog::LogConfig;
use larder_net::{CallError, Endpoint, Listener, Peer, Services, Unknown};
use larder_protocol::manager::state::MapVersion;
use larder_protocol::{Answer, Call, Content, Description, PutCall, Refusal};
use larder_roles::meta::{ServerConfig, set_index_aside};
use larder_roles::progress::Progress;
use larder_roles::wire::{MetaCall, MetaMessage, MetaReply, MetaService, Rows};
use larder_roles::{BackgroundConfig, Meta, MetaConfig, MetaServer};
use larder_types::codec::decode;
use larder_types::{
    Attributes, BootId, BucketId, ClusterId, Condition, ETag, Epoch, Grant, Holders, ObjectKey,
    OpId, PgId, Request, ServerId, SessionId, Target, VersionRow, View, rows,
};
use tokio::net::TcpListener;

use super::stalls::{Gate, GatedDisk};
use super::stand_in::{PROXY, StandIn, StandInClient};

pub const BUCKET: BucketId = BucketId(1);
/// The proxy's session, and another of its.
pub const SESSION: SessionId = SessionId(5);
pub const OTHER_SESSION: SessionId = SessionId(1 << 40);
pub const PG: PgId = PgId(0);
/// Bytes of a segment of each server's log.
pub const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;
/// The time that one call waits for its answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The time that something may take to become so: as long as several calls wait.
const TIMEOUT: Duration = Duration::from_secs(60);

pub fn endpoint(authority: &Authority, server: ServerId, role: Role) -> Arc<Endpoint> {
    let identity = authority.identity(server, Roles::of(&[role])).unwrap();
    Endpoint::new(Credentials::new(&identity).unwrap())
}

pub async fn socket() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Looks until it is so.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let (mut waited, mut begun) = (Duration::ZERO, Instant::now());
    while !is_so().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
        // One that took longer than a call waits stood still with the machine: that may be minutes, and says nothing of what
        // is looked for.
        waited += begun.elapsed().min(ANSWER_MAX);
        assert!(waited < TIMEOUT, "never came: {what}");
        begun = Instant::now();
    }
}

/// A meta server that runs.
struct Running {
    server: MetaServer,
    endpoint: Arc<Endpoint>,
    _listener: Listener,
    peer: Peer<MetaService>,
    address: String,
}

impl Running {
    /// Asks it, as the proxy.
    async fn ask(&self, call: &MetaCall) -> Result<(MetaReply, Bytes), CallError> {
        let deadline = tokio::time::Instant::now() + ANSWER_MAX;
        self.peer.call(call, Bytes::new(), deadline).await
    }
}

/// See the module's head.
pub struct Cluster {
    authority: Authority,
    pub stand_in: Arc<StandIn>,
    dirs: Vec<tempfile::TempDir>,
    gates: Vec<Arc<Gate>>,
    running: BTreeMap<ServerId, Running>,
    proxy: Arc<Endpoint>,
    runs: u64,
    scrub_period: Option<Duration>,
    segment_bytes: u64,
    lost: AtomicU64,
}

impl Cluster {
    pub async fn start(pg_count: u32) -> Self {
        Self::start_with(pg_count, None).await
    }

    /// As [`Cluster::start`]; its servers verify every copy within this time.
    pub async fn start_with(pg_count: u32, scrub_period: Option<Duration>) -> Self {
        Self::start_as(pg_count, scrub_period, SEGMENT_BYTES).await
    }

    /// As [`Cluster::start_with`], with segments of a log of this many bytes.
    pub async fn start_as(
        pg_count: u32,
        scrub_period: Option<Duration>,
        segment_bytes: u64,
    ) -> Self {
        let authority = Authority::create(ClusterId(7)).unwrap();
        let mut cluster = Self {
            stand_in: StandIn::open(&authority, pg_count).await,
            dirs: (0..3).map(|_| tempfile::tempdir().unwrap()).collect(),
            gates: (0..3).map(|_| Arc::default()).collect(),
            running: BTreeMap::new(),
            proxy: endpoint(&authority, PROXY, Role::Proxy),
            authority,
            runs: 0,
            scrub_period,
            segment_bytes,
            lost: AtomicU64::new(0),
        };
        for id in 0..3 {
            cluster.begin(ServerId(id)).await;
        }
        for pg in (0..pg_count).map(PgId) {
            // A first view may begin before the last server has started.
            until("all are members", async || cluster.members(pg).1.len() == 3).await;
            cluster.serving(pg, View(1)).await;
        }
        cluster
    }

    /// Objects of the bucket as all servers count them together; `None` while some group is not counted.
    pub fn counted(&self) -> Option<u64> {
        let used: Vec<_> = self.running.values().map(|it| it.server.meta().bucket_use()).collect();
        let is_whole = used.iter().all(|used| used.uncounted == 0);
        is_whole.then(|| {
            used.iter().map(|used| used.counts.get(&BUCKET).map_or(0, |it| it.objects)).sum()
        })
    }

    /// Has a server begin a run.
    pub async fn begin(&mut self, id: ServerId) {
        self.runs += 1;
        let endpoint = endpoint(&self.authority, id, Role::Meta);
        let socket = socket().await;
        let address = socket.local_addr().unwrap().to_string();
        let root = self.dirs[id.0 as usize].path();
        let (disk, gate) = (RealDisk::open(root).unwrap(), self.gates[id.0 as usize].clone());
        let disk: Arc<dyn Disk> = Arc::new(GatedDisk { disk, gate });
        let log = LogConfig { segment_bytes: self.segment_bytes, ..LogConfig::new(self.runs) };
        let config = ServerConfig {
            meta: MetaConfig { me: id, log },
            boot: BootId(self.runs),
            addresses: vec![address.clone()],
            background: BackgroundConfig { bytes_per_s: 1 << 30, scrub_period: self.scrub_period },
        };
        let managers = Arc::new(StandInClient { me: id, stand_in: self.stand_in.clone() });
        let open = || MetaServer::open(disk.clone(), root, &endpoint, managers.clone(), &config);
        let server = match open() {
            Err(damage) if damage.is_index_damage() => {
                let stamp = self.runs.to_string();
                let aside = set_index_aside((&*disk, root), &*managers, (id, &stamp), &damage);
                println!("server {id}: {:?}", aside.await.unwrap());
                open().unwrap()
            }
            opened => opened.unwrap(),
        };
        let callers = Roles::of(&[Role::Proxy, Role::Meta, Role::Manager]);
        let services = Services::new().with::<MetaService>(callers, server.handler());
        let listener = Listener::start(&endpoint, socket, services).unwrap();
        let peer = Peer::new(&self.proxy, id, address.clone());
        self.running.insert(id, Running { server, endpoint, _listener: listener, peer, address });
    }

    /// Ends a server's run; when this returns nothing of it is left.
    pub async fn end(&mut self, id: ServerId) {
        let Running { server, endpoint: _, _listener, peer, address: _ } =
            self.running.remove(&id).unwrap();
        drop((_listener, peer));
        let meta = Arc::downgrade(server.meta());
        tokio::task::spawn_blocking(|| server.close()).await.unwrap();
        until("nobody holds the server", async || meta.strong_count() == 0).await;
    }

    /// Takes from a server that does not run all that it has.
    pub fn wipe(&mut self, id: ServerId) {
        assert!(!self.running.contains_key(&id), "a server that runs has its disk");
        self.dirs[id.0 as usize] = tempfile::tempdir().unwrap();
    }

    /// The directory of a server.
    pub fn dir(&self, id: ServerId) -> &Path {
        self.dirs[id.0 as usize].path()
    }

    /// Bytes that a server has received of others.
    pub fn received(&self, id: ServerId) -> u64 {
        self.running[&id].endpoint.metrics().bytes().0
    }

    /// The gate that stops a server's disk.
    pub fn gate(&self, id: ServerId) -> &Gate {
        &self.gates[id.0 as usize]
    }

    /// Where a server listens.
    pub fn address(&self, id: ServerId) -> String {
        self.running[&id].address.clone()
    }

    /// Another server of the cluster, with a certificate of its own.
    pub fn another(&self, id: ServerId, role: Role) -> Arc<Endpoint> {
        endpoint(&self.authority, id, role)
    }

    pub fn meta(&self, id: ServerId) -> &Arc<Meta> {
        self.running[&id].server.meta()
    }

    pub fn members(&self, pg: PgId) -> (View, Vec<ServerId>) {
        let map = self.stand_in.map();
        let record = map.pg(pg).unwrap();
        (record.view, record.members.clone())
    }

    /// Waits until a PG is served in this view or a later one; its view and its primary.
    pub async fn serving(&self, pg: PgId, least: View) -> (View, ServerId) {
        until("serving a pg", async || {
            let (view, to) = self.leads(pg);
            view >= least && self.page(&[pg], to, b"V".to_vec(), 1).await.is_ok()
        })
        .await;
        self.leads(pg)
    }

    /// A PG's view and its primary; before the first view any server.
    pub fn leads(&self, pg: PgId) -> (View, ServerId) {
        let (view, members) = self.members(pg);
        (view, members.first().copied().unwrap_or_default())
    }

    pub async fn ask(&self, to: ServerId, call: MetaCall) -> Option<(MetaReply, Bytes)> {
        self.running.get(&to)?.ask(&call).await.ok()
    }

    /// Calls the primary, and the one after it if the view is over. A call that is lost is made again, as a proxy does: it is
    /// lost with its connection, which breaks where the machine lets nobody speak for seconds. Its request is done once,
    /// however often it is made. A server that never answers is found to be one, and [`Cluster::lost`] tells one that seldom
    /// does.
    pub async fn call(&self, pg: PgId, call: Call) -> Answer {
        let mut answer = Answer::Refused(Refusal::NotPrimary);
        until("the pg has a primary that answers", async || {
            let (view, to) = self.leads(pg);
            match self.try_in(pg, view, to, call.clone()).await {
                Ok(answered) => answer = answered,
                Err(
                    error @ (CallError::NotSent(_)
                    | CallError::Unknown(Unknown::Late | Unknown::Broken(_))),
                ) => {
                    println!("pg {pg}, view {view}: server {to} does not answer: {error}");
                    self.lost.fetch_add(1, Ordering::Relaxed);
                    return false;
                }
                Err(error) => panic!("pg {pg}, view {view}: server {to} does not answer: {error}"),
            }
            answer != Answer::Refused(Refusal::NotPrimary)
        })
        .await;
        answer
    }

    /// Calls that were lost, and made again.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub async fn call_in(&self, pg: PgId, view: View, to: ServerId, call: Call) -> Answer {
        let answered = self.try_in(pg, view, to, call).await;
        answered.unwrap_or_else(|error| panic!("server {to} does not answer: {error}"))
    }

    async fn try_in(
        &self,
        pg: PgId,
        view: View,
        to: ServerId,
        call: Call,
    ) -> Result<Answer, CallError> {
        match self.running[&to].ask(&MetaCall::Call { pg, view, call }).await?.0 {
            MetaReply::Answered(answer) => Ok(answer),
            MetaReply::Refused(refusal) => Ok(Answer::Refused(refusal)),
            other => panic!("a call is answered by {other:?}"),
        }
    }

    pub async fn find(
        &self,
        pg: PgId,
        view: View,
        to: ServerId,
        key: &str,
    ) -> Result<Option<VersionRow>, Refusal> {
        let key = ObjectKey::new(key).unwrap();
        match self.ask(to, MetaCall::Find { pg, view, bucket: BUCKET, key }).await {
            Some((MetaReply::Found(found), _)) => Ok(found.map(|row| *row)),
            Some((MetaReply::Refused(refusal), _)) => Err(refusal),
            None => Err(Refusal::Busy),
            other => panic!("a question is answered by {other:?}"),
        }
    }

    pub async fn persisted(&self, pg: PgId, op: OpId) -> Result<Grant, Refusal> {
        let (view, to) = self.leads(pg);
        match self.ask(to, MetaCall::Await { pg, view, op }).await {
            Some((MetaReply::Answered(Answer::Persisted { grant }), _)) => Ok(grant),
            Some((MetaReply::Refused(refusal), _)) => Err(refusal),
            other => panic!("one that awaits is answered by {other:?}"),
        }
    }

    /// The progress of a server's background work.
    pub async fn progress(&self, of: ServerId) -> Progress {
        match self.ask(of, MetaCall::Progress).await {
            Some((MetaReply::Progress, payload)) => decode("progress", &payload).unwrap(),
            other => panic!("a server tells how far it is, not {other:?}"),
        }
    }

    /// Says what has no answer, as a proxy.
    pub fn send_message(&self, to: ServerId, message: MetaMessage) {
        self.running[&to].peer.send(&message, Bytes::new()).unwrap();
    }

    /// Makes a call that has no answer to the primary.
    pub fn notify(&self, pg: PgId, call: Call) {
        let (view, to) = self.leads(pg);
        self.send_message(to, MetaMessage::Call { pg, view, call });
    }

    /// Puts data; its writing is left out.
    pub async fn put_data(&self, pg: PgId, call: Call) -> OpId {
        let mut persisted = None;
        until("the put is persisted", async || {
            let granted = self.call(pg, call.clone()).await;
            let Answer::Granted { grant, .. } = granted else { panic!("no grant: {granted:?}") };
            persisted = self.persisted(pg, grant.op).await.ok();
            persisted.is_none_or(|it| it == grant) && persisted.is_some()
        })
        .await;
        let grant = persisted.unwrap();
        let holders = Holders::default().with(0);
        self.notify(pg, Call::Commit { op: grant.op, attempt: grant.attempt, holders });
        grant.op
    }

    /// A page of what PGs have in the table of versions.
    async fn page(
        &self,
        pgs: &[PgId],
        to: ServerId,
        from: Vec<u8>,
        count_max: u32,
    ) -> Result<(Rows, Option<Vec<u8>>), Refusal> {
        self.page_under(self.stand_in.map().version, pgs, to, from, count_max).await
    }

    /// The same, for an asker with this map.
    pub async fn page_under(
        &self,
        map: MapVersion,
        pgs: &[PgId],
        to: ServerId,
        from: Vec<u8>,
        count_max: u32,
    ) -> Result<(Rows, Option<Vec<u8>>), Refusal> {
        let pgs = pgs.iter().map(|pg| (*pg, self.leads(*pg).0)).collect();
        let end = rows::prefix_end(b"V");
        let call = MetaCall::Scan { pgs, map, settled: true, from, to: end, count_max };
        match self.ask(to, call).await {
            Some((MetaReply::Rows(next), payload)) => Ok((decode("rows", &payload).unwrap(), next)),
            Some((MetaReply::Refused(refusal), _)) => Err(refusal),
            None => Err(Refusal::Busy),
            other => panic!("a scan is answered by {other:?}"),
        }
    }

    /// Keys that a primary lists, in pages of so many; an error if the view ends meanwhile.
    pub async fn list(
        &self,
        pgs: &[PgId],
        to: ServerId,
        count_max: u32,
    ) -> Result<Vec<String>, Refusal> {
        let (mut from, mut keys) = (b"V".to_vec(), Vec::new());
        loop {
            let (page, next) = self.page(pgs, to, from, count_max).await?;
            assert!(page.len() <= count_max as usize);
            let name = |row: &[u8]| rows::parse_keyed(row).unwrap().1.as_str().to_owned();
            keys.extend(page.iter().map(|(row, _)| name(row)));
            match next {
                Some(next) => from = next,
                None => return Ok(keys),
            }
        }
    }

    /// Waits until the index of a server shows these keys.
    pub async fn shows(&self, id: ServerId, keys: &[String]) {
        let meta = self.meta(id);
        until("the index shows the keys", async || {
            let row = |key: &String| {
                rows::version(BUCKET, &ObjectKey::new(key).unwrap(), rows::UNVERSIONED)
            };
            keys.iter().all(|key| meta.kv().get(&row(key)).unwrap().is_some())
        })
        .await;
    }
}

pub fn request(number: u64) -> Request {
    Request { session: SESSION, number, floor: 1 }
}

pub fn put(request: Request, key: &str, content: Content) -> Call {
    put_to(request, key, Target::Version, content)
}

pub fn put_to(request: Request, key: &str, target: Target, content: Content) -> Call {
    Call::Put(Box::new(PutCall {
        request,
        bucket: BUCKET,
        epoch: Epoch(1),
        key: ObjectKey::new(key).unwrap(),
        target,
        description: Description {
            size: size_of(&content),
            etag: ETag::Md5([1; 16]),
            checksum: None,
            attributes: Attributes::default(),
        },
        content,
        condition: Condition::default(),
        required_copies: 0,
    }))
}

fn size_of(content: &Content) -> u64 {
    match content {
        Content::Data { len, .. } => u64::from(*len),
        _ => 1,
    }
}

pub fn inline() -> Content {
    Content::Inline(Bytes::from_static(b"x"))
}

pub fn data() -> Content {
    Content::Data { len: 4096, seed: 1, sums: vec![0] }
}
