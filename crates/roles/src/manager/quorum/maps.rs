//! The map as this manager has applied it, for tasks that wait for a newer one.
//!
//! # Invariants
//!
//! 1. The map shown never goes back to an older version.
//! 2. A task that waits when the manager stops gets an error: no newer map will come.
//! 3. Nobody is told of an older map than the one shown. A long map is cut into pages as it is at the time, and who fetches them
//!    asks then for what has changed since ([`MapGathering`](larder_protocol::manager::state::MapGathering)).
//! 4. A map that is told, as a whole or by what changed, is judged by itself for whether the asker may know its secrets.
//! 5. Pages on their way to servers, and changes that are kept for more who ask, are bounded.
//! 6. A page is cut once for all who ask for it while it is on its way, and on no thread that carries messages.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use larder_identity::{Role, Subject};
use larder_protocol::manager::state::{
    MapChanges, MapPlace, MapStep, MapVersion, RecentChanges, RootRecord, ServerState, Topology,
};
use larder_types::{BucketState, Epoch, Sharing};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::blocking;
use crate::limits::{
    MAP_CHANGES_BYTES_MAX, MAP_CHANGES_SHARED_MAX, MAP_CUTS_MAX, MAP_PAGE_BYTES, MAP_PAGES_MAX,
    MAP_PAGES_SENT_MAX, MAP_PAGES_SHARED_MAX, MAP_WAIT_MS, MAP_WHOLE_BYTES_MAX,
    PROTOCOL_CLUSTER_VERSION, PROTOCOL_CORS, PROTOCOL_GATEWAYS, PROTOCOL_HOMES, PROTOCOL_LOCAL,
    PROTOCOL_MAP_CHANGES, PROTOCOL_PAUSE, PROTOCOL_POSITIONS, PROTOCOL_ROOT_KEYS,
    PROTOCOL_TIMELINES,
};
use crate::managers::{NoMoreVersions, VersionWatch, Versions};

const _: () = assert!(
    PROTOCOL_TIMELINES <= PROTOCOL_MAP_CHANGES,
    "who asks for changes and pages knows all that can be in them: what grows later is left out there too, as in `encoded_for`"
);

/// One version of the map.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) map: Topology,
    encoded: OnceLock<Bytes>,
    /// The encoded map without secrets.
    bare: OnceLock<Bytes>,
    /// Sum of all records of the map.
    records_sum: u64,
    /// Changes since earlier versions, encoded, with secrets and without; `None` if they are too long.
    changes: Mutex<BTreeMap<(MapVersion, bool), Option<Bytes>>>,
    /// Pages that are on their way to servers, or are being cut.
    pages: Mutex<BTreeMap<PageKey, Weak<SharedPage>>>,
}

/// The place at which a page begins, the first record if none, and true for one with secrets.
type PageKey = (Option<MapPlace>, bool);

impl Published {
    fn new(map: Topology, records_sum: u64) -> Arc<Self> {
        Arc::new(Self { map, records_sum, ..Self::default() })
    }

    /// Encodes changes since a version, for all who ask for them; `None` if they are too long.
    fn share(&self, at: (MapVersion, bool), changes: &MapChanges) -> Option<Bytes> {
        let bytes = Some(Bytes::from(changes.encode()));
        let bytes = bytes.filter(|it| it.len() <= MAP_CHANGES_BYTES_MAX);
        let mut shared = self.changes.lock();
        if shared.len() < MAP_CHANGES_SHARED_MAX {
            shared.insert(at, bytes.clone());
        }
        bytes
    }

    /// The page that begins at a place, with or without secrets: the one that others have asked for, or a new one.
    fn shared_page(&self, at: &PageKey) -> Arc<SharedPage> {
        let mut pages = self.pages.lock();
        if let Some(page) = pages.get(at).and_then(Weak::upgrade) {
            return page;
        }
        if pages.len() >= MAP_PAGES_SHARED_MAX {
            pages.retain(|_, page| page.strong_count() > 0);
        }
        let page = Arc::<SharedPage>::default();
        if pages.len() < MAP_PAGES_SHARED_MAX {
            pages.insert(at.clone(), Arc::downgrade(&page));
        }
        page
    }

    /// Its bytes, encoded at the first call.
    pub(super) fn encoded(&self) -> Bytes {
        self.encoded.get_or_init(|| self.map.encode().into()).clone()
    }

    fn without_secrets(&self) -> Bytes {
        let bare = || {
            let root = self.map.root.as_ref().map(RootRecord::without_secrets);
            Topology { root, ..self.map.clone() }.encode().into()
        };
        self.bare.get_or_init(bare).clone()
    }

    /// Its bytes for a server that speaks this version of the protocol. A server that cannot decode the newest form gets an
    /// earlier one, without the fields that this lacks. Only servers that check clients' requests get secrets.
    pub(super) fn encoded_for(&self, protocol: u8, checks_requests: bool) -> Bytes {
        let lacks_gateway = protocol < PROTOCOL_GATEWAYS && self.map.gateway.is_some();
        let waits = || self.map.buckets.values().any(|bucket| bucket.regions != 1);
        let has_home = || self.map.buckets.values().any(|bucket| bucket.home.is_some());
        let is_local = || self.map.buckets.values().any(|bucket| bucket.sharing != Sharing::All);
        let has_cors = || self.map.buckets.values().any(|bucket| bucket.cors.is_some());
        if !lacks_gateway
            && (protocol >= PROTOCOL_POSITIONS || !waits())
            && (protocol >= PROTOCOL_HOMES || !has_home())
            && (protocol >= PROTOCOL_LOCAL || !is_local())
            && (protocol >= PROTOCOL_PAUSE || self.map.balance_paused_ms.is_none())
            && (protocol >= PROTOCOL_CORS || !has_cors())
            && (protocol >= PROTOCOL_CLUSTER_VERSION || self.map.cluster_version == 0)
            && (protocol >= PROTOCOL_ROOT_KEYS || self.map.root.is_none())
            && (protocol >= PROTOCOL_TIMELINES || self.map.timelines.is_empty())
        {
            let has_secrets = self.map.root.is_some();
            return if checks_requests || !has_secrets {
                self.encoded()
            } else {
                self.without_secrets()
            };
        }
        let mut map = self.map.clone();
        // A server may know root's keys and lack another part of the map.
        map.root = map.root.filter(|_| protocol >= PROTOCOL_ROOT_KEYS);
        if !checks_requests {
            map.root = map.root.as_ref().map(RootRecord::without_secrets);
        }
        if protocol < PROTOCOL_TIMELINES {
            map.timelines.clear();
        }
        if protocol < PROTOCOL_CLUSTER_VERSION {
            map.cluster_version = 0;
        }
        if protocol < PROTOCOL_PAUSE {
            map.balance_paused_ms = None;
        }
        if protocol < PROTOCOL_GATEWAYS {
            (map.gateway, map.regions) = (None, Vec::new());
        }
        for bucket in map.buckets.values_mut() {
            // A proxy that knows no homes would decide by itself, and a gateway that knows no local buckets would report them
            // to other regions. So they get the bucket as being deleted. Primaries that know the bucket's kind refuse the epoch
            // 0, and the others refuse all changes of a bucket that is being deleted.
            let is_unknown = protocol < PROTOCOL_LOCAL && bucket.sharing != Sharing::All;
            if is_unknown || protocol < PROTOCOL_HOMES && bucket.has_home() {
                (bucket.epoch, bucket.state) = (Epoch(0), BucketState::Deleting);
            }
            bucket.home = bucket.home.filter(|_| protocol >= PROTOCOL_HOMES);
            // A proxy without CORS refuses all other origins.
            bucket.cors = bucket.cors.take().filter(|_| protocol >= PROTOCOL_CORS);
            if is_unknown {
                bucket.sharing = Sharing::All;
            }
            if protocol < PROTOCOL_POSITIONS {
                bucket.regions = 1;
            }
        }
        map.encode().into()
    }
}

/// The maps that are shown.
#[derive(Debug, Default)]
struct PublishedMap {
    newest: Arc<Published>,
    recent: RecentChanges,
}

/// The sending end: shows maps. Dropping it ends the maps.
pub(super) struct Publisher {
    shown: Arc<RwLock<PublishedMap>>,
    versions: Versions,
}

/// The receiving end: the newest map that was shown, and a wait for the next.
#[derive(Debug, Clone)]
pub(crate) struct Maps {
    shown: Arc<RwLock<PublishedMap>>,
    versions: VersionWatch,
    /// Room for pages in memory.
    pages: Arc<Semaphore>,
    /// Room for pages on the network.
    sent: Arc<Semaphore>,
    /// Turns to cut one.
    cuts: Arc<Semaphore>,
    /// The fewest volumes of a map that was longer than is told at once. Later maps with as many are not encoded to find that out.
    long_from: Arc<AtomicUsize>,
}

/// The two ends, with an empty map.
pub(super) fn maps() -> (Publisher, Maps) {
    let shown = Arc::<RwLock<PublishedMap>>::default();
    let versions = Versions::new(MapVersion(0));
    let maps = Maps {
        shown: Arc::clone(&shown),
        versions: versions.subscribe(),
        pages: Arc::new(Semaphore::new(MAP_PAGES_MAX)),
        sent: Arc::new(Semaphore::new(MAP_PAGES_SENT_MAX)),
        cuts: Arc::new(Semaphore::new(MAP_CUTS_MAX)),
        long_from: Arc::new(AtomicUsize::new(usize::MAX)),
    };
    (Publisher { shown, versions }, maps)
}

impl Publisher {
    /// The map that is shown.
    pub(super) fn newest(&self) -> Arc<Published> {
        self.shown.read().newest.clone()
    }

    /// Shows a newer map.
    ///
    /// # Panics
    /// If it is not newer.
    pub(super) fn publish(&self, map: Topology) {
        let version = map.version;
        // Nobody else shows maps.
        let before = self.newest();
        assert!(version > before.map.version, "the map never goes back");
        let step = MapStep::between(&before.map, &map);
        let mut shown = self.shown.write();
        shown.recent.take(step);
        shown.newest = Published::new(map, shown.recent.records_sum());
        drop(shown);
        // Readers wait for that lock, and not for a map to be freed.
        drop(before);
        self.versions.show(version);
    }
}

/// The way to a later map, for one who asks for it.
#[derive(Debug)]
pub(super) enum Later {
    /// The changes.
    Changes(Bytes),
    /// All of it.
    Whole(Bytes),
    /// It is longer than [`MAP_WHOLE_BYTES_MAX`]: by [`Maps::page`].
    Pages,
}

/// No page was cut: the process ends.
struct NoPage;

/// A page with the room that it takes up until it has left.
struct MapInFlight {
    page: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

/// A page for all who ask for it, once it is cut. Its room is free when nobody sends it any more.
#[derive(Default)]
struct SharedPage(OnceCell<MapInFlight>);

/// One that is cut, on its way to one who asked, with the room that it takes on the network.
struct PageBytes {
    shared: Arc<SharedPage>,
    _way: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for PageBytes {
    fn as_ref(&self) -> &[u8] {
        self.shared.0.get().map_or(&[], |cut| &cut.page)
    }
}

impl Maps {
    /// The map that is shown.
    pub(crate) fn newest(&self) -> Arc<Published> {
        self.shown.read().newest.clone()
    }

    /// The way to the map that is shown from one of a version and its timeline, for an asker that speaks this version of the
    /// protocol.
    pub(super) fn since(
        &self,
        (known, timeline): (MapVersion, Option<u64>),
        requester: &Subject,
        protocol: u8,
    ) -> Later {
        let shown = self.shown.read();
        let newest = shown.newest.clone();
        let checks = checks_requests(requester, &newest.map);
        // Of another history the same version is another map.
        let is_ours = newest.map.timeline_at(known).map(|timeline| timeline.id) == timeline;
        let shared = newest.changes.lock().get(&(known, checks)).cloned();
        let changes = match &shared {
            None if is_ours => shown.recent.since(known, &newest.map, checks),
            _ => None,
        };
        drop(shown);
        let reported = match shared.filter(|_| is_ours) {
            Some(shared) => shared,
            None => changes.and_then(|changes| newest.share((known, checks), &changes)),
        };
        if let Some(changes) = reported {
            return Later::Changes(changes);
        }
        let lvs = newest.map.lvs.len();
        if lvs < self.long_from.load(Ordering::Relaxed) {
            let whole = newest.encoded_for(protocol, checks);
            if whole.len() <= MAP_WHOLE_BYTES_MAX {
                return Later::Whole(whole);
            }
            self.long_from.fetch_min(lvs, Ordering::Relaxed);
        }
        Later::Pages
    }

    /// The page of the map shown that begins at a place, or the first. It waits for room for it, and `None` is for one who is to
    /// ask again.
    pub(super) async fn page(&self, from: Option<MapPlace>, requester: &Subject) -> Option<Bytes> {
        let newest = self.newest();
        // A manager that has just started may not know yet what was agreed on. Who asks keeps the pages that it has.
        if newest.map.version == MapVersion(0) {
            return None;
        }
        let at = (from, checks_requests(requester, &newest.map));
        let shared = newest.shared_page(&at);
        // If the one who cuts it gives up, the next of those who wait does.
        let cut = shared.0.get_or_try_init(|| self.cut(newest, at));
        let sent = async {
            let way = self.sent.clone().acquire_owned().await.map_err(|_| NoPage)?;
            cut.await.map(|_cut| way)
        };
        let way = timeout(Duration::from_millis(MAP_WAIT_MS), sent).await.ok()?.ok()?;
        Some(Bytes::from_owner(PageBytes { shared, _way: way }))
    }

    async fn cut(
        &self,
        of: Arc<Published>,
        (from, checks): PageKey,
    ) -> Result<MapInFlight, NoPage> {
        let room = self.pages.clone().acquire_owned().await.map_err(|_| NoPage)?;
        let turn = self.cuts.clone().acquire_owned().await.map_err(|_| NoPage)?;
        let cut = blocking::run(move || {
            let _turn = turn;
            let page = of.map.page(from.as_ref(), of.records_sum, MAP_PAGE_BYTES, checks);
            MapInFlight { page: page.encode(), _permit: room }
        });
        cut.await.map_err(|_| NoPage)
    }

    /// Waits for the first map that meets a condition.
    ///
    /// # Errors
    /// If the manager stops before.
    pub(crate) async fn wait_for(
        &mut self,
        is: impl Fn(&Topology) -> bool,
    ) -> Result<Arc<Published>, NoMoreVersions> {
        loop {
            let newest = self.newest();
            if is(&newest.map) {
                return Ok(newest);
            }
            self.versions.changed().await?;
        }
    }
}

/// Returns true for a proxy that was not removed. It checks signatures of clients' requests, so its map has root's secret keys.
pub(super) fn checks_requests(requester: &Subject, map: &Topology) -> bool {
    let record = map.servers.get(&requester.server);
    let is_there = record.is_some_and(|record| record.state != ServerState::Removed);
    requester.roles.has(Role::Proxy) && is_there
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use larder_identity::Roles;
    use larder_protocol::manager::state::{GatewayRecord, KeyPair, RegionRecord, Timeline};
    use larder_types::{
        BootId, BucketId, BucketName, BucketRecord, ClusterId, CorsMethod, CorsRule, CorsRules,
        Home, HomeScope, HomeState, HomeTerm, RegionId, ServerId, WritePolicy,
    };

    use super::*;

    #[test]
    fn the_clusters_version_is_shown_to_whom_it_means_something() {
        let map = Topology { cluster_version: 17, ..Topology::default() };
        let shown = Published::new(map.clone(), 0);
        let read = |protocol| Topology::decode(&shown.encoded_for(protocol, true));
        assert_eq!(read(PROTOCOL_CLUSTER_VERSION), Ok(map));
        assert_eq!(read(PROTOCOL_CLUSTER_VERSION - 1), Ok(Topology::default()));
    }

    #[test]
    fn timelines_are_shown_to_whom_they_mean_something() {
        let timelines = vec![Timeline { id: 5, since: MapVersion(3) }];
        let map = Topology { cluster_version: 21, timelines, ..Topology::default() };
        let shown = Published::new(map.clone(), 0);
        let read = |protocol| Topology::decode(&shown.encoded_for(protocol, true));
        assert_eq!(read(PROTOCOL_TIMELINES), Ok(map.clone()));
        let older = Topology { timelines: Vec::new(), ..map };
        assert_eq!(read(PROTOCOL_TIMELINES - 1), Ok(older));
    }

    fn asker(role: Role) -> Subject {
        Subject { cluster: ClusterId(1), server: ServerId(9), roles: Roles::of(&[role]) }
    }

    #[tokio::test(start_paused = true)]
    async fn pages_in_memory_are_bounded() {
        let (publisher, maps) = maps();
        let page = async || maps.page(None, &asker(Role::Data)).await;
        let show = |version| {
            publisher.publish(Topology { version: MapVersion(version), ..Topology::default() });
        };
        assert_eq!(page().await, None, "no map is shown yet");
        let mut pages = Vec::new();
        for version in 1..=MAP_PAGES_MAX as u64 {
            show(version);
            pages.push(page().await.unwrap());
        }
        show(MAP_PAGES_MAX as u64 + 1);
        assert_eq!(page().await, None, "those of other maps are on their way");
        drop(pages.pop());
        let other = page().await.unwrap();
        assert!(!pages.contains(&other), "of the next map");
    }

    #[tokio::test]
    async fn those_who_ask_at_once_for_a_page_have_it_cut_once_and_sent_to_so_many() {
        let (publisher, maps) = maps();
        publisher.publish(Topology { version: MapVersion(1), ..Topology::default() });
        let page = async || maps.page(None, &asker(Role::Data)).await.unwrap();
        let mut all = futures::future::join_all((0..MAP_PAGES_SENT_MAX).map(|_| page())).await;
        assert!(all.iter().all(|it| it.as_ptr() == all[0].as_ptr()));
        assert_eq!(maps.pages.available_permits(), MAP_PAGES_MAX - 1);
        let mut one_more = Box::pin(page());
        assert!((&mut one_more).now_or_never().is_none(), "the network has enough to do");
        all.pop();
        assert_eq!(one_more.await, all[0]);
        drop(all);
        assert_eq!(maps.pages.available_permits(), MAP_PAGES_MAX);
        assert_eq!(maps.sent.available_permits(), MAP_PAGES_SENT_MAX);
    }

    #[test]
    fn places_that_nobody_has_are_shared_by_few() {
        let shown = Published::default();
        let at = |lv: u32| (Some(MapPlace::Lv(larder_types::LvId(lv))), false);
        let all: Vec<_> =
            (0..2 * MAP_PAGES_SHARED_MAX as u32).map(|lv| shown.shared_page(&at(lv))).collect();
        assert_eq!(shown.pages.lock().len(), MAP_PAGES_SHARED_MAX);
        drop(all);
        let _page = shown.shared_page(&at(7));
        drop(shown.shared_page(&at(u32::MAX)));
        assert_eq!(shown.pages.lock().len(), 2, "those of whom nobody asks any more are forgotten");
    }

    #[test]
    fn changes_are_encoded_once_for_all_who_have_the_same_map() {
        let (publisher, maps) = maps();
        let map = |version, len| Topology {
            version: MapVersion(version),
            regions: vec![7; len],
            region: Some(RegionRecord { number: RegionId(2), fingerprint: [1; 32] }),
            gateway: Some(GatewayRecord { server: ServerId(4), boot: BootId(1) }),
            ..Topology::default()
        };
        (1..=3).for_each(|version| publisher.publish(map(version, 10)));
        let reported = |known| {
            let requester = asker(Role::Data);
            match maps.since((MapVersion(known), None), &requester, PROTOCOL_MAP_CHANGES) {
                Later::Changes(changes) => changes,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(reported(2).as_ptr(), reported(2).as_ptr());
        assert_ne!(reported(1), reported(2));
        // Changes that are too long, and so is the map.
        let since =
            |known| maps.since((MapVersion(known), None), &asker(Role::Data), PROTOCOL_MAP_CHANGES);
        assert!(matches!((since(0), since(0)), (Later::Whole(_), Later::Whole(_))));
        publisher.publish(map(4, MAP_WHOLE_BYTES_MAX.max(MAP_CHANGES_BYTES_MAX)));
        assert!(matches!((since(3), since(0)), (Later::Pages, Later::Pages)));
    }

    #[test]
    fn secret_keys_are_shown_to_proxies_that_know_them_and_to_nobody_else() {
        let pair = |name: &str| KeyPair {
            access_key: format!("{name}-access"),
            secret_key: format!("{name}-secret"),
        };
        let root = RootRecord { generation: 1, current: pair("b"), previous: Some(pair("a")) };
        let map = Topology { cluster_version: 20, root: Some(root.clone()), ..Topology::default() };
        let shown = Published::new(map.clone(), 0);
        let encoded = |protocol, checks| shown.encoded_for(protocol, checks);
        let read = |protocol, checks| Topology::decode(&encoded(protocol, checks)).unwrap();
        assert_eq!(read(PROTOCOL_ROOT_KEYS, true), map);
        assert_eq!(read(PROTOCOL_ROOT_KEYS, false).root, Some(root.without_secrets()));
        for checks in [true, false] {
            let before = PROTOCOL_ROOT_KEYS - 1;
            assert_eq!(read(before, checks), Topology { root: None, ..map.clone() });
        }
        for protocol in [PROTOCOL_ROOT_KEYS, PROTOCOL_ROOT_KEYS - 1, PROTOCOL_HOMES] {
            let bytes = encoded(protocol, false);
            let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
            assert!(!has(b"-secret"), "{protocol}");
        }
    }

    #[test]
    fn a_server_of_an_earlier_release_is_given_a_map_that_it_reads() {
        let region = Some(RegionRecord { number: RegionId(2), fingerprint: [1; 32] });
        let gateway = Some(GatewayRecord { server: ServerId(4), boot: BootId(1) });
        let map = Topology { region, gateway, regions: vec![7], ..Topology::default() };
        let shown = Published::new(map.clone(), 0);
        assert_eq!(Topology::decode(&shown.encoded_for(PROTOCOL_GATEWAYS, true)), Ok(map.clone()));
        let older = Topology { gateway: None, regions: Vec::new(), ..map };
        let encoded = shown.encoded_for(PROTOCOL_GATEWAYS - 1, true);
        assert_eq!((encoded[0], Topology::decode(&encoded)), (2, Ok(older)));
    }

    #[test]
    fn a_server_of_an_earlier_release_reads_the_map_of_a_cluster_that_is_paused() {
        let map = Topology { balance_paused_ms: Some(5), ..Topology::default() };
        let shown = Published::new(map.clone(), 0);
        assert_eq!(Topology::decode(&shown.encoded_for(PROTOCOL_PAUSE, true)), Ok(map));
        let older = shown.encoded_for(PROTOCOL_PAUSE - 1, true);
        assert_eq!((older[0], Topology::decode(&older)), (1, Ok(Topology::default())));
    }

    #[test]
    fn a_server_of_an_earlier_release_is_not_told_what_it_does_not_know_of_buckets() {
        let name = BucketName::new("photos").unwrap();
        let record = BucketRecord {
            id: BucketId(1),
            name: name.clone(),
            epoch: Epoch(1),
            state: BucketState::Live,
            created_ms: 5,
            location: None,
            write_policy: WritePolicy::All,
            regions: 2,
            home: Some(Home {
                term: HomeTerm { count: 1, of: RegionId(2) },
                scope: HomeScope::Conditions,
                state: HomeState::Here,
            }),
            sharing: Sharing::All,
            cors: None,
        };
        let read = |record: &BucketRecord, protocol| {
            let buckets = [(name.clone(), record.clone())].into();
            let map = Topology { buckets, ..Topology::default() };
            let encoded = Published::new(map, 0).encoded_for(protocol, true);
            Topology::decode(&encoded).unwrap().buckets[&name].clone()
        };
        let reported = |protocol| {
            let record = read(&record, protocol);
            (record.regions, record.home.is_some(), (record.epoch, record.state))
        };
        assert_eq!(reported(PROTOCOL_HOMES), (2, true, (Epoch(1), BucketState::Live)));
        let refused = (Epoch(0), BucketState::Deleting);
        assert_eq!(reported(PROTOCOL_HOMES - 1), (2, false, refused), "it would decide by itself");
        assert_eq!(reported(PROTOCOL_POSITIONS - 1), (1, false, refused));
        for sharing in [Sharing::Local, Sharing::Opening, Sharing::Renewing] {
            let local = BucketRecord { home: None, sharing, ..record.clone() };
            assert_eq!(read(&local, PROTOCOL_LOCAL), local);
            let older = read(&local, PROTOCOL_LOCAL - 1);
            let reported = (older.sharing, (older.epoch, older.state));
            assert_eq!(reported, (Sharing::All, refused), "it would tell other regions of it");
        }
        let rule = CorsRule {
            id: None,
            methods: vec![CorsMethod::Get],
            origins: vec!["*".to_owned()],
            headers: Vec::new(),
            exposed: Vec::new(),
            max_age_s: None,
        };
        let plain = BucketRecord { regions: 1, home: None, ..record };
        let open = BucketRecord { cors: CorsRules::new(vec![rule]).ok(), ..plain.clone() };
        assert_eq!(read(&open, PROTOCOL_CORS), open);
        assert_eq!(read(&open, PROTOCOL_CORS - 1), plain);
    }
}
