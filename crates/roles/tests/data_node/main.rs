//! A data server of a cluster, over loopback, with managers that are a map in the test.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod copies;
#[path = "../raw/mod.rs"]
mod raw;
mod room;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use larder_identity::{Authority, Credentials, Role, Roles};
use larder_net::{CallError, Endpoint, Listener, Peer, Services, Side};
use larder_protocol::limits::{READS_AT_DEVICE, SCRUB_READS_WAITING_MAX, SCRUBS_AT_DEVICE};
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    Applied, ClusterId, Command, MapVersion, NewServer, ServerRole, Settings, Topology,
};
use larder_protocol::placement::{FailureDomains, Weight};
use larder_protocol::scheduler::Load;
use larder_protocol::{DataAnswer, DataRequest};
use larder_roles::data::node::{DataHandler, DataNode, DataNodeConfig, DataNodeError};
use larder_roles::limits::PROTOCOL_REPORTS;
use larder_roles::managers::{Managers, NotProposed, VersionWatch, Versions};
use larder_roles::wire::{CopyState, DataCall, DataMessage, DataReply, DataService};
use larder_types::checksum::{seed_of, sum_blocks};
use larder_types::{
    BootId, Chunk, DiskId, Extent, Grant, GrantKey, Holders, LvId, OpId, OpSeq, PgId, PvId,
    Request, ServerId, SessionId, View,
};
use parking_lot::Mutex;
use raw::{InBytes, Raw, spoiled};
use tokio::sync::mpsc;
use tokio::time::Instant;

const CLUSTER: u64 = 7;
const ME: ServerId = ServerId(1);
const LV: LvId = LvId(0);
/// Messages that a test may be sent without listening.
const MESSAGES_MAX: usize = 16;
const VIEW: View = View(3);
const TOKEN: [u8; 32] = [7; 32];

/// Managers that agree at once.
struct Map {
    map: Mutex<Topology>,
    versions: Versions,
    said: mpsc::Sender<ServerMessage>,
}

impl Map {
    fn founded() -> (Arc<Self>, mpsc::Receiver<ServerMessage>) {
        let (said, hears) = mpsc::channel(MESSAGES_MAX);
        let map =
            Self { map: Mutex::default(), versions: Versions::new(MapVersion::default()), said };
        let settings = Settings {
            pg_count: 1,
            members: 1,
            min_members: 1,
            copies: 1,
            min_copies: 1,
            lv_blocks: 16_384,
        };
        map.done(Command::Found(ClusterId(CLUSTER), settings));
        map.add("manager", ServerRole::Manager, None);
        map.add("data", ServerRole::Data, Some(TOKEN));
        (Arc::new(map), hears)
    }

    fn add(&self, name: &str, role: ServerRole, token: Option<[u8; 32]>) {
        if let Some(token) = token {
            self.done(Command::AddToken(token, 1000));
        }
        let server = NewServer {
            name: name.to_owned(),
            roles: BTreeSet::from([role]),
            addresses: Vec::new(),
            domains: FailureDomains::default(),
            weight: Weight(1),
        };
        self.done(Command::AddServer(server, token.map(|token| (token, 10))));
    }

    fn done(&self, command: Command) {
        let mut map = self.map.lock();
        let index = LogIndex(map.applied.0 + 1);
        map.apply(index, command).expect("the test's commands are right");
        self.versions.show(map.version);
    }

    /// Has some later maps come.
    fn go_on(&self) {
        for weight in 2..5 {
            self.done(Command::SetWeight(ME, Weight(weight)));
        }
    }
}

impl Managers for Map {
    fn map(&self) -> Arc<Topology> {
        Arc::new(self.map.lock().clone())
    }

    fn versions(&self) -> VersionWatch {
        self.versions.subscribe()
    }

    fn note_newer_map(&self, _: MapVersion) {}

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
        let mut map = self.map.lock();
        let index = LogIndex(map.applied.0 + 1);
        let applied = map.apply(index, command);
        async move { Ok(applied) }.boxed()
    }

    fn send_message(&self, message: ServerMessage) {
        // A test that hears nothing misses nothing.
        drop(self.said.try_send(message));
    }
}

async fn open(root: &Path, boot: u64, map: &Arc<Map>) -> Result<Arc<DataNode>, DataNodeError> {
    open_as(ME, root, boot, map).await
}

async fn open_as(
    me: ServerId,
    root: &Path,
    boot: u64,
    map: &Arc<Map>,
) -> Result<Arc<DataNode>, DataNodeError> {
    let config = DataNodeConfig { me, root: root.to_owned(), data: String::new() };
    DataNode::open(&config, BootId(boot), map.clone()).await
}

/// A data server with its port, and those who call it.
struct Served {
    node: Arc<DataNode>,
    disk: DiskId,
    _listener: Listener,
    meta: Peer<DataService>,
    manager: Peer<DataService>,
    /// A meta server of a release that knows no reports.
    older: Peer<DataService>,
    address: String,
    /// A meta server's, a manager's and a proxy's.
    endpoints: [Arc<Endpoint>; 3],
    /// Another data server's.
    data: Arc<Endpoint>,
}

impl Served {
    async fn start(node: Arc<DataNode>) -> Self {
        Self::start_as(&authority(), (ME, DiskId(0)), node).await
    }

    async fn start_as(
        authority: &Authority,
        (me, disk): (ServerId, DiskId),
        node: Arc<DataNode>,
    ) -> Self {
        let credentials = |server, role| {
            let identity =
                authority.identity(server, Roles::of(&[role])).expect("a loopback cluster");
            Credentials::new(&identity).expect("a loopback cluster")
        };
        let older = Endpoint::as_of(credentials(ServerId(4), Role::Meta), PROTOCOL_REPORTS - 1);
        let endpoint = |server, role| Endpoint::new(credentials(server, role));
        let own = endpoint(me, Role::Data);
        let socket =
            tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a loopback cluster");
        let services = Services::new().with(Roles::all(), DataHandler::new(node.clone(), &own));
        let listener = Listener::start(&own, socket, services).expect("a loopback cluster");
        let address = listener.address().to_string();
        let callers = [(2, Role::Meta), (0, Role::Manager), (3, Role::Proxy)];
        let endpoints = callers.map(|(id, role)| endpoint(ServerId(id), role));
        let data = endpoint(ServerId(9), Role::Data);
        let meta = Peer::new(&endpoints[0], me, address.clone());
        let manager = Peer::new(&endpoints[1], me, address.clone());
        let older = Peer::new(&older, me, address.clone());
        Self { node, disk, _listener: listener, meta, manager, older, address, endpoints, data }
    }

    async fn call(&self, call: DataCall, payload: &'static [u8]) -> (DataReply, Bytes) {
        let deadline = Instant::now() + Duration::from_secs(30);
        self.meta
            .call(&call, Bytes::from_static(payload), deadline)
            .await
            .expect("a loopback cluster")
    }

    /// Bytes as they lie there, if they can be read, with a report either way.
    async fn read(&self, from: u32, len: u32) -> Option<Bytes> {
        match self.call(read(from, len), b"").await {
            (DataReply::BytesAnd(_), bytes) => Some(bytes),
            (DataReply::UnreadableAnd(_), _) => None,
            other => panic!("{other:?}"),
        }
    }

    async fn pg(&self, request: DataRequest) -> DataAnswer {
        match self.call(DataCall::Pg { lv: LV, request }, b"").await.0 {
            DataReply::Pg(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// Has the LV made and opened in this run.
    async fn opened(&self, hears: &mut mpsc::Receiver<ServerMessage>) {
        let (lv, pg, replica, disk, pv) = (LV, PgId(0), 0, self.disk, PvId(0));
        let (blocks, map) = (16_384, MapVersion(1));
        let create = ManagerMessage::CreatePv { lv, pg, replica, disk, pv, blocks, map };
        self.manager.send(&DataMessage::Manager(create), Bytes::new()).expect("a loopback cluster");
        assert_eq!(hears.recv().await, Some(ServerMessage::Created(LV, 0, disk, pv)));
        let floor = GrantKey { view: VIEW, seq: OpSeq(0) };
        let open = DataRequest::Open { view: VIEW, floor, boot: self.node.boot() };
        assert_eq!(self.pg(open).await, DataAnswer::Floor(floor));
    }
}

fn authority() -> Authority {
    Authority::create(larder_types::ClusterId(CLUSTER)).expect("a loopback cluster")
}

fn write(len: u32) -> DataCall {
    let grant = Grant { pg: PgId(0), op: OpId { view: VIEW, seq: OpSeq(1) }, attempt: 0 };
    DataCall::Write { lv: LV, grant, extents: vec![Extent { first: 4, blocks: 1 }], len }
}

/// The chunk that was written by [`write`], if it was `bytes`.
fn chunk() -> Chunk {
    let seed = seed_of(&Request { session: SessionId(1), number: 1, floor: 1 });
    Chunk {
        grant: Grant { pg: PgId(0), op: OpId { view: VIEW, seq: OpSeq(1) }, attempt: 0 },
        seed,
        lv: LV,
        extents: vec![Extent { first: 4, blocks: 1 }],
        len: 5,
        sums: sum_blocks(seed, std::iter::once(&b"bytes"[..])),
        holders: Holders::default(),
    }
}

fn read(from: u32, len: u32) -> DataCall {
    DataCall::Read { lv: LV, extents: vec![Extent { first: 4, blocks: 1 }], from, len }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_is_read_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let (map, mut hears) = Map::founded();
    let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
    assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::NotWritten, "not opened yet");
    served.opened(&mut hears).await;
    assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::Written);
    assert_eq!(served.read(1, 3).await, Some(Bytes::from_static(b"yte")));
    let chunk = chunk();
    let answer = served.pg(DataRequest::Verify { chunk: Box::new(chunk.clone()) }).await;
    assert_eq!(answer, DataAnswer::Verified(chunk.grant));
    let verify = |chunk: &Chunk| DataCall::Verify(Box::new(chunk.clone()));
    let state = |state| DataReply::Verified(state);
    assert_eq!(served.call(verify(&chunk), b"").await.0, state(CopyState::Right));
    let elsewhere = Chunk { lv: LvId(9), ..chunk.clone() };
    assert_eq!(served.call(verify(&elsewhere), b"").await.0, state(CopyState::Unreadable));
    assert_eq!(served.call(DataCall::Load, b"").await.0, DataReply::Load(0), "nobody waits");
    rot(&dir.path().join("data0"), b"bytes");
    assert_eq!(served.call(verify(&chunk), b"").await.0, state(CopyState::Damaged));
    served.node.close();
}

/// Changes bytes where they lie on disk, as a disk does that goes bad.
fn rot(file: &Path, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut at = 0;
    let mut window = vec![0; 1 << 20];
    loop {
        let read = file.read_at(&mut window, at).unwrap();
        assert!(read > 0, "the bytes are on the disk");
        if let Some(found) = window[..read].windows(bytes.len()).position(|it| it == bytes) {
            file.write_all_at(b"rot", at + found as u64).unwrap();
            return file.sync_all().unwrap();
        }
        at += read as u64;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_from_certified_servers_end_no_data_server() {
    let dir = tempfile::tempdir().unwrap();
    let (map, mut hears) = Map::founded();
    let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
    served.opened(&mut hears).await;
    // The messages to managers are of no matter here.
    let received = tokio::spawn(async move { while hears.recv().await.is_some() {} });
    let (corpus, before, address) = (raw::corpus(), raw::panics(), served.address.clone());
    let peers = served.endpoints.iter();
    let peers = peers.map(|it| Peer::<InBytes<DataService>>::new(it, ME, address.clone()));
    let peers: Vec<_> = peers.collect();
    for mut draw in raw::rounds() {
        let calls = (0..40).map(|_| {
            let peer = &peers[draw.below(peers.len() as u64) as usize];
            let (body, payload) =
                (Raw(spoiled(&mut draw, &corpus)), Bytes::from(spoiled(&mut draw, &corpus)));
            if draw.below(4) == 0 {
                drop(peer.send(&body, payload));
                return None;
            }
            let deadline = Instant::now() + Duration::from_millis(200);
            Some(async move { peer.call(&body, payload, deadline).await.map(|_| ()) })
        });
        let calls: Vec<_> = calls.collect();
        drop(futures::future::join_all(calls.into_iter().flatten()).await);
    }
    assert!(matches!(served.call(DataCall::Load, b"").await.0, DataReply::Load(_)));
    // Its disk answers, one way or the other.
    served.read(0, 5).await;
    assert_eq!(raw::panics(), before, "nothing panicked");
    served.node.close();
    received.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_lacks_sums_or_blocks_is_not_verified() {
    let dir = tempfile::tempdir().unwrap();
    let (map, mut hears) = Map::founded();
    let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
    served.opened(&mut hears).await;
    assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::Written);
    let before = raw::panics();
    let chunk = chunk();
    for spoiled in [
        Chunk { sums: Vec::new(), ..chunk.clone() },
        Chunk { extents: Vec::new(), ..chunk.clone() },
        Chunk { len: 5000, sums: vec![0], ..chunk.clone() },
        Chunk { extents: vec![Extent { first: u32::MAX, blocks: 9 }], ..chunk.clone() },
    ] {
        let verify = DataCall::Verify(Box::new(spoiled.clone()));
        let deadline = Instant::now() + Duration::from_secs(30);
        let answer = served.meta.call(&verify, Bytes::new(), deadline).await;
        assert!(answer.is_err(), "{spoiled:?} is judged: {answer:?}");
    }
    assert_eq!(raw::panics(), before, "nothing panicked");
    let verify = DataCall::Verify(Box::new(chunk));
    assert_eq!(served.call(verify, b"").await.0, DataReply::Verified(CopyState::Right));
    served.node.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_leaves_every_chunk_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (map, mut hears) = Map::founded();
    let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
    served.opened(&mut hears).await;
    for (from, len) in [(0, 0), (u32::MAX, 2), (0, u32::MAX), (0, 4096 + 1)] {
        assert_eq!(served.read(from, len).await, None, "{from}+{len}");
    }
    served.node.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requester_of_an_older_release_gets_no_report() {
    let dir = tempfile::tempdir().unwrap();
    let (map, mut hears) = Map::founded();
    let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
    served.opened(&mut hears).await;
    assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::Written);
    for (len, reply) in [(5, DataReply::Bytes), (8192, DataReply::Unreadable)] {
        let deadline = Instant::now() + Duration::from_secs(30);
        let answered = served.older.call(&read(0, len), Bytes::new(), deadline).await.unwrap();
        assert_eq!(answered.0, reply);
    }
    let (reply, _) = served.call(read(0, 5), b"").await;
    let DataReply::BytesAnd(report) = reply else { panic!("{reply:?}") };
    assert_eq!((report.lanes, report.waiting), (READS_AT_DEVICE, [Load::default(); 4]));
    served.node.close();
}

/// Waits until it is so, but not for ever.
async fn becomes<T: PartialEq + Debug>(now: impl Fn() -> T, wanted: T) {
    let comes = async {
        while now() != wanted {
            tokio::task::yield_now().await;
        }
    };
    let is_so = tokio::time::timeout(Duration::from_secs(60), comes).await.is_ok();
    assert!(is_so, "{:?} does not become {wanted:?} within a minute", now());
}

/// A runtime in which reads at the device wait for the only thread that may read.
fn with_one_reader() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_read_that_is_cancelled_before_its_turn_never_touches_the_disk() {
    with_one_reader().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (map, mut hears) = Map::founded();
        let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
        served.opened(&mut hears).await;
        let node = &served.node;
        assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::Written);
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = tokio::task::spawn_blocking(move || held.recv().is_err());
        let mut asked = tokio::task::JoinSet::new();
        // Reads past the page cache: the kernel may have read ahead as far as others.
        for _ in 0..SCRUBS_AT_DEVICE + 2 {
            let peer = served.meta.clone();
            asked.spawn(async move {
                let call = DataCall::Verify(Box::new(chunk()));
                let deadline = Instant::now() + Duration::from_secs(30);
                drop(peer.call_while_wanted(&call, Bytes::new(), deadline).await);
            });
        }
        // Served, cancelled, and those that wait.
        let now = || (node.reads().0.served, node.reads().0.cancelled, node.reads().1);
        becomes(now, (0, 0, 2)).await;
        asked.shutdown().await;
        becomes(now, (0, 2, 0)).await;
        drop(release);
        assert!(held.await.unwrap(), "it was released");
        becomes(now, (u64::from(SCRUBS_AT_DEVICE), 2, 0)).await;
        let right = DataReply::Verified(CopyState::Right);
        assert_eq!(verify(&served.meta).await.unwrap().0, right, "it reads on");
        node.close();
    });
}

#[test]
fn a_read_too_many_is_turned_away_and_another_done_once_those_that_wait_are() {
    with_one_reader().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (map, mut hears) = Map::founded();
        let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
        served.opened(&mut hears).await;
        assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::Written);
        let now = || served.node.reads();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = tokio::task::spawn_blocking(move || held.recv().is_err());
        // Past the page cache, and more than one connection may have under way.
        let peers = [served.meta.clone(), served.older.clone()];
        let count = usize::from(SCRUBS_AT_DEVICE) + SCRUB_READS_WAITING_MAX;
        let mut asked = tokio::task::JoinSet::new();
        for peer in peers.iter().cycle().take(count) {
            let peer = peer.clone();
            asked.spawn(async move { verify(&peer).await.map(|(reply, _)| reply) });
        }
        becomes(|| (now().0.turned_away, now().1), (0, SCRUB_READS_WAITING_MAX)).await;
        let one_more = verify(&served.meta).await;
        assert!(matches!(one_more, Err(CallError::Busy(Side::There))), "{one_more:?}");
        assert_eq!(now().0.turned_away, 1);
        drop(release);
        assert!(held.await.unwrap(), "it was released");
        let right = DataReply::Verified(CopyState::Right);
        for answer in asked.join_all().await {
            assert_eq!(answer.unwrap(), right, "those that waited are done");
        }
        assert_eq!(verify(&served.meta).await.unwrap().0, right);
        assert_eq!((now().0.turned_away, now().1), (1, 0));
        served.node.close();
    });
}

/// Has what was written compared with its sums.
async fn verify(peer: &Peer<DataService>) -> Result<(DataReply, Bytes), CallError> {
    let deadline = Instant::now() + Duration::from_secs(60);
    peer.call(&DataCall::Verify(Box::new(chunk())), Bytes::new(), deadline).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_has_its_data_and_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (map, mut hears) = Map::founded();
    let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
    served.opened(&mut hears).await;
    assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::Written);
    served.node.close();
    drop(served);
    let served = Served::start(open(dir.path(), 12, &map).await.unwrap()).await;
    assert_eq!(served.call(read(0, 5), b"").await.1, Bytes::from_static(b"bytes"));
    assert_eq!(served.call(write(5), b"other").await.0, DataReply::NotWritten, "a view opens it");
    let floor = GrantKey { view: VIEW, seq: OpSeq(0) };
    let stale = DataRequest::Open { view: VIEW, floor, boot: BootId(11) };
    assert_eq!(served.pg(stale).await, DataAnswer::Failed, "that run is over");
    served.node.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_was_lost_is_not_replaced_by_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let (map, _hears) = Map::founded();
    drop(open(dir.path(), 11, &map).await.map(|node| node.close()));
    // Its disk is known and nothing was put there: it may be made anew.
    std::fs::remove_file(dir.path().join("data0")).unwrap();
    open(dir.path(), 12, &map).await.unwrap().close();
    let disks: Vec<DiskId> = map.map().servers[&ME].disks.keys().copied().collect();
    assert_eq!(disks, [DiskId(0)], "under its number");
    std::fs::remove_file(dir.path().join("data0")).unwrap();
    let boot = BootId(12);
    map.done(Command::ServerStarted(ME, boot, vec!["127.0.0.1:1".to_owned()], Vec::new()));
    map.done(Command::CreateLv(PgId(0), vec![(ME, DiskId(0))]));
    let lost = open(dir.path(), 13, &map).await.map(|_| ());
    assert!(matches!(lost, Err(DataNodeError::Lost { disk: DiskId(0), .. })), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_servers_data_is_not_served() {
    let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (map, _hears) = Map::founded();
    open(own.path(), 11, &map).await.unwrap().close();
    let (strangers, _hears) = Map::founded();
    strangers.map.lock().founded.as_mut().unwrap().0 = ClusterId(8);
    open(other.path(), 11, &strangers).await.unwrap().close();
    std::fs::copy(other.path().join("data0"), own.path().join("data0")).unwrap();
    let foreign = open(own.path(), 12, &map).await.map(|_| ());
    assert!(matches!(foreign, Err(DataNodeError::Foreign { cluster: 8, .. })), "{foreign:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_order_for_a_former_owner_takes_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    let (map, mut hears) = Map::founded();
    let (disk, pv, next) = (DiskId(0), PvId(0), LvId(1));
    let give = |lv, map| {
        let map = MapVersion(map);
        let create =
            ManagerMessage::CreatePv { lv, pg: PgId(0), replica: 0, disk, pv, blocks: 16_384, map };
        DataMessage::Manager(create)
    };
    map.go_on();
    let mut served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
    served.opened(&mut hears).await;
    assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::Written);
    served.manager.send(&give(next, 5), Bytes::new()).unwrap();
    assert_eq!(hears.recv().await, Some(ServerMessage::Created(next, 0, disk, pv)));
    for boot in [12, 13] {
        assert_eq!(served.call(write(5), b"other").await.0, DataReply::NotWritten);
        assert_eq!(served.read(0, 5).await, None);
        served.manager.send(&give(LV, 4), Bytes::new()).unwrap();
        served.manager.send(&give(next, 6), Bytes::new()).unwrap();
        // The message that is heard answers the second: the first is not answered.
        assert_eq!(hears.recv().await, Some(ServerMessage::Created(next, 0, disk, pv)));
        served.node.close();
        drop(served);
        served = Served::start(open(dir.path(), boot, &map).await.unwrap()).await;
    }
    served.node.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_made_when_the_map_has_come_by_which_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let (map, mut hears) = Map::founded();
    let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
    let give = |lv: u32, pv: u32, map: u64| {
        let (lv, pv, map) = (LvId(lv), PvId(pv), MapVersion(map));
        let (pg, disk) = (PgId(0), DiskId(0));
        let create = ManagerMessage::CreatePv { lv, pg, replica: 0, disk, pv, blocks: 16_384, map };
        served.manager.send(&DataMessage::Manager(create), Bytes::new()).unwrap();
    };
    let known = map.map().version.0;
    // Said by one connection, and heard in this order.
    give(1, 0, known + 1);
    give(2, 1, known);
    let created = |lv, pv| Some(ServerMessage::Created(LvId(lv), 0, DiskId(0), PvId(pv)));
    assert_eq!(hears.recv().await, created(2, 1), "the other waits");
    map.go_on();
    assert_eq!(hears.recv().await, created(1, 0));
    served.node.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_was_removed_is_put_away_before_another_takes_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (map, _hears) = Map::founded();
    let node = open(dir.path(), 11, &map).await.unwrap();
    assert!(node.objection(&map.map()).is_none());
    map.done(Command::RemoveDisk(ME, DiskId(0)));
    let objection = node.objection(&map.map());
    assert!(matches!(objection, Some(DataNodeError::Removed { .. })), "{objection:?}");
    node.close();
    let removed = open(dir.path(), 12, &map).await.map(|_| ());
    assert!(matches!(removed, Err(DataNodeError::Removed { disk: DiskId(0), .. })), "{removed:?}");
    std::fs::rename(dir.path().join("data0"), dir.path().join("away")).unwrap();
    open(dir.path(), 13, &map).await.unwrap().close();
    let disks: Vec<DiskId> = map.map().servers[&ME].disks.keys().copied().collect();
    assert_eq!(disks, [DiskId(0), DiskId(1)], "under another number");
}
