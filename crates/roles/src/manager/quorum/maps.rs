//! The map as this manager has applied it, for tasks that wait for a newer one.
//!
//! # Invariants
//!
//! 1. The map shown never goes back to an older version.
//! 2. A task that waits when the manager stops gets an error: no newer map will come.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use larder_protocol::manager::state::{MapVersion, RootRecord, Topology};
use larder_types::{BucketState, Epoch, Sharing};
use parking_lot::RwLock;

use crate::limits::{
    PROTOCOL_CLUSTER_VERSION, PROTOCOL_CORS, PROTOCOL_GATEWAYS, PROTOCOL_HOMES, PROTOCOL_LOCAL,
    PROTOCOL_PAUSE, PROTOCOL_POSITIONS, PROTOCOL_ROOT_KEYS, PROTOCOL_TIMELINES,
};
use crate::managers::{NoMoreVersions, VersionWatch, Versions};

/// One version of the map.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) map: Topology,
    encoded: OnceLock<Bytes>,
    /// The encoded map without secrets.
    bare: OnceLock<Bytes>,
}

impl Published {
    fn new(map: Topology) -> Arc<Self> {
        Arc::new(Self { map, encoded: OnceLock::new(), bare: OnceLock::new() })
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

/// The sending end: shows maps. Dropping it ends the maps.
pub(super) struct Publisher {
    newest: Arc<RwLock<Arc<Published>>>,
    versions: Versions,
}

/// The receiving end: the newest map that was shown, and a wait for the next.
#[derive(Debug, Clone)]
pub(crate) struct Maps {
    newest: Arc<RwLock<Arc<Published>>>,
    versions: VersionWatch,
}

/// The two ends, with an empty map.
pub(super) fn maps() -> (Publisher, Maps) {
    let (newest, versions) = (Arc::default(), Versions::new(MapVersion(0)));
    let maps = Maps { newest: Arc::clone(&newest), versions: versions.subscribe() };
    (Publisher { newest, versions }, maps)
}

impl Publisher {
    /// The map that is shown.
    pub(super) fn newest(&self) -> Arc<Published> {
        self.newest.read().clone()
    }

    /// Shows a newer map.
    ///
    /// # Panics
    /// If it is not newer.
    pub(super) fn publish(&self, map: Topology) {
        let version = map.version;
        let mut newest = self.newest.write();
        assert!(version > newest.map.version, "the map never goes back");
        *newest = Published::new(map);
        drop(newest);
        self.versions.show(version);
    }
}

impl Maps {
    /// The map that is shown.
    pub(crate) fn newest(&self) -> Arc<Published> {
        self.newest.read().clone()
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

#[cfg(test)]
mod tests {
    use larder_protocol::manager::state::{GatewayRecord, KeyPair, RegionRecord, Timeline};
    use larder_types::{
        BootId, BucketId, BucketName, BucketRecord, CorsMethod, CorsRule, CorsRules, Home,
        HomeScope, HomeState, HomeTerm, RegionId, ServerId, WritePolicy,
    };

    use super::*;

    #[test]
    fn the_clusters_version_is_shown_to_whom_it_means_something() {
        let map = Topology { cluster_version: 17, ..Topology::default() };
        let shown = Published::new(map.clone());
        let read = |protocol| Topology::decode(&shown.encoded_for(protocol, true));
        assert_eq!(read(PROTOCOL_CLUSTER_VERSION), Ok(map));
        assert_eq!(read(PROTOCOL_CLUSTER_VERSION - 1), Ok(Topology::default()));
    }

    #[test]
    fn timelines_are_shown_to_whom_they_mean_something() {
        let timelines = vec![Timeline { id: 5, since: MapVersion(3) }];
        let map = Topology { cluster_version: 21, timelines, ..Topology::default() };
        let shown = Published::new(map.clone());
        let read = |protocol| Topology::decode(&shown.encoded_for(protocol, true));
        assert_eq!(read(PROTOCOL_TIMELINES), Ok(map.clone()));
        let older = Topology { timelines: Vec::new(), ..map };
        assert_eq!(read(PROTOCOL_TIMELINES - 1), Ok(older));
    }

    #[test]
    fn secret_keys_are_shown_to_proxies_that_know_them_and_to_nobody_else() {
        let pair = |name: &str| KeyPair {
            access_key: format!("{name}-access"),
            secret_key: format!("{name}-secret"),
        };
        let root = RootRecord { generation: 1, current: pair("b"), previous: Some(pair("a")) };
        let map = Topology { cluster_version: 20, root: Some(root.clone()), ..Topology::default() };
        let shown = Published::new(map.clone());
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
        let shown = Published::new(map.clone());
        assert_eq!(Topology::decode(&shown.encoded_for(PROTOCOL_GATEWAYS, true)), Ok(map.clone()));
        let older = Topology { gateway: None, regions: Vec::new(), ..map };
        let encoded = shown.encoded_for(PROTOCOL_GATEWAYS - 1, true);
        assert_eq!((encoded[0], Topology::decode(&encoded)), (2, Ok(older)));
    }

    #[test]
    fn a_server_of_an_earlier_release_reads_the_map_of_a_cluster_that_is_paused() {
        let map = Topology { balance_paused_ms: Some(5), ..Topology::default() };
        let shown = Published::new(map.clone());
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
            let encoded = Published::new(map).encoded_for(protocol, true);
            Topology::decode(&encoded).unwrap().buckets[&name].clone()
        };
        let told = |protocol| {
            let record = read(&record, protocol);
            (record.regions, record.home.is_some(), (record.epoch, record.state))
        };
        assert_eq!(told(PROTOCOL_HOMES), (2, true, (Epoch(1), BucketState::Live)));
        let refused = (Epoch(0), BucketState::Deleting);
        assert_eq!(told(PROTOCOL_HOMES - 1), (2, false, refused), "it would decide by itself");
        assert_eq!(told(PROTOCOL_POSITIONS - 1), (1, false, refused));
        for sharing in [Sharing::Local, Sharing::Opening, Sharing::Renewing] {
            let local = BucketRecord { home: None, sharing, ..record.clone() };
            assert_eq!(read(&local, PROTOCOL_LOCAL), local);
            let older = read(&local, PROTOCOL_LOCAL - 1);
            let told = (older.sharing, (older.epoch, older.state));
            assert_eq!(told, (Sharing::All, refused), "it would tell other regions of it");
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
