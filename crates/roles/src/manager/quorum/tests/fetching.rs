//! Servers that fetch the map: whole, in pages if it is long, and then what changed alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use larder_env::RealDisk;
use larder_identity::{Authority, AuthorityCell, Credentials, Role, Roles, Subject};
use larder_net::limits::PAYLOAD_BYTES_MAX;
use larder_net::{Endpoint, Handler, Listener, PeerIdentity, Responder, Service, Services};
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    self, Command, DiskRecord, DiskState, LvRecord, LvState, MapVersion, ReplicaRecord,
    ReplicaState, ServerRole, Timeline, Topology,
};
use larder_protocol::placement::Weight;
use larder_types::{BucketName, ClusterId, DiskId, LvId, PgId, PvId, ServerId};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::support::{SETTINGS, new_server, until};
use crate::inbox::inbox;
use crate::limits::{MAP_PAGE_BYTES, PROTOCOL_MAP_CHANGES};
use crate::manager::quorum::counts::ManagerCounts;
use crate::manager::quorum::handler::ManagerHandler;
use crate::manager::quorum::maps::{Later, Maps, Publisher, maps};
use crate::manager::quorum::tokens::{Issuer, TokenBook};
use crate::managers::{Contacts, Managers, ManagersClient, MapStore};
use crate::wire::{ManagerCall, ManagerMessageIn, ManagerReply, ManagerService};

const CLUSTER: ClusterId = ClusterId(1);
const ME: ServerId = ServerId(0);

/// A map with so many volumes.
fn map(lvs: u32) -> Topology {
    let mut map = Topology::default();
    let commands = [
        Command::Found(state::ClusterId(CLUSTER.0), SETTINGS),
        Command::AddServer(new_server("m0", ServerRole::Manager), None),
        Command::BeginTimeline(7),
    ];
    for (at, command) in (1..).map(LogIndex).zip(commands) {
        map.apply(at, command).unwrap();
    }
    let disk = DiskRecord {
        weight: Weight(1),
        pv_count: 2 * lvs,
        next_pv: PvId(lvs),
        freed: Default::default(),
        state: DiskState::In,
    };
    map.servers.get_mut(&ME).unwrap().disks.insert(DiskId(0), disk);
    let (server, disk, state) = (ME, DiskId(0), ReplicaState::Current);
    let lv = |at| {
        let replicas = vec![ReplicaRecord { server, disk, pv: PvId(at), state }];
        LvRecord { pg: PgId(at % 8), blocks: 64, width: 1, replicas, state: LvState::Open }
    };
    map.lvs = (0..lvs).map(lv).collect();
    map
}

/// Pages of a [`long`] map.
const PAGES: u64 = 9;

/// A map with ten volumes that is longer than a frame, as each of its buckets fills more than a page.
fn long() -> Topology {
    let mut map = map(10);
    for bucket in 0..PAGES {
        let name = BucketName::new(&format!("bucket-{bucket}")).unwrap();
        let at = LogIndex(map.applied.0 + 1);
        map.apply(at, Command::CreateBucket(name.clone(), None, 1)).unwrap();
        map.buckets.get_mut(&name).unwrap().location = Some("x".repeat(2 * MAP_PAGE_BYTES));
    }
    assert!(map.encode().len() > PAYLOAD_BYTES_MAX);
    map
}

/// The maps that a manager shows.
struct Shows {
    publisher: Publisher,
    maps: Maps,
}

impl Shows {
    /// Changes a volume, and shows the map that has it.
    fn change(&self, lv: LvId) -> Topology {
        let mut map = self.maps.newest().map.clone();
        let at = LogIndex(map.applied.0 + 1);
        let is_open = map.lvs[lv.0 as usize].state == LvState::Open;
        map.apply(at, Command::SetLvReadOnly(lv, is_open)).unwrap();
        self.publisher.publish(map.clone());
        map
    }
}

/// Sees each request first; `true` to say that the manager is busy.
type Hook = Box<dyn Fn(&Shows, &ManagerCall) -> bool + Send + Sync>;

struct Hooked {
    manager_handler: ManagerHandler,
    shows: Arc<Shows>,
    hook: Hook,
}

impl Handler<ManagerService> for Hooked {
    fn request(
        &self,
        from: &PeerIdentity,
        request: ManagerCall,
        payload: Bytes,
        responder: Responder<ManagerService>,
    ) {
        match (self.hook)(&self.shows, &request) {
            true => responder.busy(),
            false => self.manager_handler.request(from, request, payload, responder),
        }
    }

    fn message(&self, from: &PeerIdentity, message: ManagerMessageIn, payload: Bytes) {
        self.manager_handler.message(from, message, payload);
    }
}

/// A manager that shows maps and does nothing else.
struct Showing {
    shows: Arc<Shows>,
    counts: Arc<ManagerCounts>,
    authority: Arc<Authority>,
    listener: Listener,
    _dir: TempDir,
}

fn endpoint(authority: &Authority, id: u32) -> Arc<Endpoint> {
    let identity = authority.identity(ServerId(id), Roles::of(&[Role::Manager])).unwrap();
    Endpoint::new(Credentials::new(&identity).unwrap())
}

impl Showing {
    async fn start() -> Self {
        Self::hooked(|_, _| false).await
    }

    async fn hooked(hook: impl Fn(&Shows, &ManagerCall) -> bool + Send + Sync + 'static) -> Self {
        let authority = Arc::new(Authority::create(CLUSTER).unwrap());
        Self::of(authority, ME, Box::new(hook)).await
    }

    /// Another manager of the cluster.
    async fn other(&self) -> Self {
        Self::of(self.authority.clone(), ServerId(1), Box::new(|_, _| false)).await
    }

    async fn of(authority: Arc<Authority>, id: ServerId, hook: Hook) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
        let own = endpoint(&authority, id.0);
        let (publisher, maps) = maps();
        let issuer = Issuer {
            authority: AuthorityCell::default(),
            book: Arc::new(TokenBook::begin(disk)),
            managers: Arc::new(ManagersClient::start(Arc::new(Contacts::new(&own, Vec::new())))),
            maps: maps.clone(),
        };
        let (inbox, _taker) = inbox(1);
        let counts = Arc::<ManagerCounts>::default();
        let manager_handler = ManagerHandler {
            inbox,
            maps: maps.clone(),
            led: Arc::default(),
            issuer: Arc::new(issuer),
            counts: counts.clone(),
            observed: Arc::default(),
        };
        let shows = Arc::new(Shows { publisher, maps });
        let hooked = Hooked { manager_handler, shows: shows.clone(), hook };
        let services = Services::new().with::<ManagerService>(Roles::all(), hooked);
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = Listener::start(&own, socket, services).unwrap();
        Self { shows, counts, authority, listener, _dir: dir }
    }

    fn client(&self) -> ManagersClient {
        self.client_of(Vec::new())
    }

    fn contact(&self, id: ServerId) -> (ServerId, String) {
        (id, self.listener.address().to_string())
    }

    fn contacts(&self, others: Vec<(ServerId, String)>) -> Arc<Contacts> {
        let managers = std::iter::once(self.contact(ME)).chain(others).collect();
        Arc::new(Contacts::new(&endpoint(&self.authority, 9), managers))
    }

    /// A client that knows other managers, too.
    fn client_of(&self, others: Vec<(ServerId, String)>) -> ManagersClient {
        ManagersClient::start(self.contacts(others))
    }

    /// That of a server with a directory, which has a map from an earlier run perhaps.
    fn client_in(&self, dir: &Path) -> (ManagersClient, Arc<MapStore>) {
        let keeper = MapStore::open(dir, ServerId(9)).unwrap();
        (ManagersClient::start_keeping(self.contacts(Vec::new()), keeper.clone()), keeper)
    }

    fn show(&self, map: &Topology) {
        self.shows.publisher.publish(map.clone());
    }

    fn asked(&self, kind: &str) -> u64 {
        let mut sums = self.counts.requests.sums();
        sums.find(|(name, _)| *name == kind).map(|(_, count)| count).unwrap()
    }
}

/// The first map that a client shows.
async fn first(client: &ManagersClient) -> Arc<Topology> {
    until(client, "a map", |map| map.version > MapVersion(0)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_of_very_many_volumes_comes_in_pages_and_after_that_what_changes() {
    let manager = Showing::start().await;
    let whole = map(900_000);
    assert!(whole.encode().len() > PAYLOAD_BYTES_MAX);
    manager.show(&whole);
    let client = manager.client();
    assert_eq!(*first(&client).await, whole);
    let pages = manager.asked("map_page");
    assert!(pages > (PAYLOAD_BYTES_MAX / MAP_PAGE_BYTES) as u64, "{pages}");
    let changed = manager.shows.change(LvId(400_000));
    let shown = until(&client, "its change", |map| map.version > whole.version).await;
    assert_eq!(*shown, changed);
    assert_eq!(manager.asked("map_page"), pages, "only the change came");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_map_comes_at_once_and_a_longer_one_in_pages_though_it_fits_a_frame() {
    for (volumes, in_pages) in [(10_000, false), (100_000, true)] {
        let manager = Showing::start().await;
        let whole = map(volumes);
        assert!(whole.encode().len() <= PAYLOAD_BYTES_MAX);
        manager.show(&whole);
        assert_eq!(*first(&manager.client()).await, whole);
        assert_eq!(manager.asked("map_page") > 0, in_pages);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_map_that_is_shown_is_the_latest_also_if_it_changes_with_each_page() {
    let manager = Showing::hooked(|shows, request| {
        if matches!(request, ManagerCall::MapPage(_)) {
            shows.change(LvId((shows.maps.newest().map.version.0 % 10) as u32));
        }
        false
    })
    .await;
    manager.show(&long());
    for clients in 1..=2 {
        // Nothing changes once the last page was asked for.
        let shown = first(&manager.client()).await;
        assert_eq!(*shown, manager.shows.maps.newest().map);
        assert_eq!(shown.version, MapVersion(long().version.0 + clients * (PAGES - 1)));
        assert_eq!(manager.asked("map_page"), clients * (PAGES - 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_kept_the_latest_map_starts_while_others_fetch_earlier_ones() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Showing::start().await;
    manager.show(&long());
    let other = manager.client();
    first(&other).await;
    let latest = manager.shows.change(LvId(3));
    let (client, keeper) = manager.client_in(dir.path());
    keeper.versions().reaches(latest.version).await.unwrap();
    drop((client, keeper));
    let (again, _keeper) = manager.client_in(dir.path());
    assert_eq!(*first(&again).await, latest);
    assert_eq!(*again.older().borrow(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_refused_by_a_busy_manager_is_requested_again_alone() {
    let (refused, wholes) = (parking_lot::Mutex::new(BTreeSet::new()), Arc::new(AtomicU64::new(0)));
    let counted = wholes.clone();
    let manager = Showing::hooked(move |_, request| match request {
        ManagerCall::MapPage(from) => refused.lock().insert(from.clone()),
        ManagerCall::MapSince { known: MapVersion(0), .. } => {
            counted.fetch_add(1, Ordering::Relaxed);
            false
        }
        _ => false,
    })
    .await;
    manager.show(&long());
    assert_eq!(*first(&manager.client()).await, long());
    assert_eq!(wholes.load(Ordering::Relaxed), 1);
    assert_eq!(manager.asked("map_page"), PAGES - 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_manager_is_queried_while_pages_arrive() {
    // So often that the pauses between are longer than a map may take that was told of.
    let (asked, refused) = (watch::Sender::new(0), 3);
    let mut begun = asked.subscribe();
    let manager = Showing::hooked(move |_, request| {
        let is_page = matches!(request, ManagerCall::MapPage(_));
        if is_page {
            asked.send_modify(|asked| *asked += 1);
        }
        is_page && *asked.borrow() <= refused
    })
    .await;
    let other = manager.other().await;
    manager.show(&long());
    other.show(&long());
    let client = manager.client_of(vec![other.contact(ServerId(1))]);
    begun.wait_for(|asked| *asked > 0).await.unwrap();
    client.note_newer_map(long().version);
    assert_eq!(*first(&client).await, long());
    assert_eq!((other.asked("map"), manager.asked("map_page")), (0, PAGES - 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_changes_while_pages_come_have_the_map_fetched_anew() {
    let manager = Showing::hooked(|shows, request| {
        let newest = shows.maps.newest();
        if matches!(request, ManagerCall::MapPage(_)) && newest.map.version == long().version {
            // A bucket whose record is longer than the changes that are told.
            let mut map = newest.map.clone();
            map.version = MapVersion(map.version.0 + 1);
            let bucket = map.buckets.last_entry().unwrap().into_mut();
            bucket.location = Some("y".repeat(3 * MAP_PAGE_BYTES));
            shows.publisher.publish(map);
        }
        false
    })
    .await;
    manager.show(&long());
    let shown = first(&manager.client()).await;
    assert_eq!(*shown, manager.shows.maps.newest().map);
    assert_eq!(manager.asked("map_page"), 2 * (PAGES - 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_of_another_history_comes_whole() {
    let manager = Showing::start().await;
    let other = manager.other().await;
    let begun = map(10);
    manager.show(&begun);
    let client = manager.client_of(vec![other.contact(ServerId(1))]);
    assert_eq!(*first(&client).await, begun);
    // The other goes on from the same version.
    let mut theirs = begun.clone();
    theirs.timelines[0].id = 8;
    other.show(&theirs);
    let changed = other.shows.change(LvId(3));
    let shown = until(&client, "the other's", |map| map.version > begun.version).await;
    assert_eq!(*shown, changed);
    manager.shows.change(LvId(3));
    let subject = Subject { cluster: CLUSTER, server: ME, roles: Roles::of(&[Role::Manager]) };
    let since = |manager: &Showing, timeline| {
        let maps = &manager.shows.maps;
        maps.since((begun.version, timeline), &subject, PROTOCOL_MAP_CHANGES)
    };
    assert!(matches!(since(&other, Some(7)), Later::Whole(_)));
    assert!(matches!(since(&manager, None), Later::Whole(_)));
    assert!(matches!(since(&manager, Some(7)), Later::Changes(_)));
    // Before there are timelines there is one history.
    let early = manager.other().await;
    early.show(&Topology { timelines: Vec::new(), ..begun.clone() });
    let mut map = early.shows.change(LvId(3));
    assert!(matches!(since(&early, None), Later::Changes(_)));
    map.version = MapVersion(map.version.0 + 1);
    map.timelines = vec![Timeline { id: 9, since: map.version }];
    early.show(&map);
    assert!(matches!(since(&early, None), Later::Changes(_)));
    assert!(matches!(since(&early, Some(7)), Later::Whole(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_do_not_make_their_managers_map_are_given_up_for_the_whole() {
    let manager = Showing::start().await;
    let other = manager.other().await;
    let begun = map(10);
    manager.show(&begun);
    // Its version and its timeline are those of the first, and yet it is another map.
    let mut theirs = begun.clone();
    theirs.servers.get_mut(&ME).unwrap().name = "other".to_owned();
    other.show(&theirs);
    let client = manager.client_of(vec![other.contact(ServerId(1))]);
    assert_eq!(*first(&client).await, begun);
    let changed = other.shows.change(LvId(3));
    let shown = until(&client, "the other's map", |map| map.version > begun.version).await;
    assert_eq!(*shown, changed);
}

/// The calls of the release before, as far as a server asks for maps.
#[derive(Debug, Serialize, Deserialize)]
enum EarlierCall {
    Map(MapVersion),
}

struct Earlier;

impl Service for Earlier {
    const ROLE: Role = Role::Manager;
    type Request = EarlierCall;
    type Answer = ManagerReply;
    type Message = ManagerMessageIn;
}

struct EarlierManagers(Topology);

impl Handler<Earlier> for EarlierManagers {
    fn request(
        &self,
        _: &PeerIdentity,
        EarlierCall::Map(known): EarlierCall,
        _: Bytes,
        responder: Responder<Earlier>,
    ) {
        if known < self.0.version {
            responder.answer(&ManagerReply::Map, self.0.encode().into());
        }
    }

    fn message(&self, _: &PeerIdentity, _: ManagerMessageIn, _: Bytes) {}
}

#[tokio::test]
async fn an_older_manager_is_asked_for_the_whole_map() {
    let authority = Authority::create(CLUSTER).unwrap();
    let own = endpoint(&authority, ME.0);
    let whole = map(10);
    let services = Services::new().with::<Earlier>(Roles::all(), EarlierManagers(whole.clone()));
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = Listener::start(&own, socket, services).unwrap();
    let managers = vec![(ME, listener.address().to_string())];
    let contacts = Contacts::new(&endpoint(&authority, 9), managers);
    let client = ManagersClient::start(Arc::new(contacts));
    let shown = first(&client).await;
    assert_eq!(*shown, whole);
}
