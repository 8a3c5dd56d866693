//! A single node's manager: owner of its map (buckets, LVs, views).
//!
//! # Invariants
//!
//! 1. A map is used only after it is durable: every change writes the whole file, then publishes the map.
//! 2. Versions, views, bucket ids, epochs and LV ids only grow; an LV belongs to one PG for ever.
//! 3. A PG's members learn of a view only after the map that names it is durable.
//!
//! With one server the quorum is one: the map is a file replaced as a whole (`docs/formats/map.md`).

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_env::disk::{read_file, replace_file};
use larder_env::threads::Condvar;
use larder_env::{Disk, DiskError};
use larder_protocol::manager::state::{MapVersion, ReplicaState};
use larder_protocol::{LvInfo, Replica};
use larder_types::bucket::{BucketRecord, BucketState, Sharing};
use larder_types::codec::{CodecError, decode, encode_into};
use larder_types::limits::{BUCKETS_MAX, CORS_ALL_BYTES_MAX};
use larder_types::{
    BootId, BucketId, BucketName, CorsRules, DiskId, Epoch, Home, HomeNotSet, LvId, NotShared,
    PgId, PvId, RegionId, ServerId, View, cors,
};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Directory of the manager's files.
pub const MANAGER_DIR: &str = "manager";
const MAP_FILE: &str = "map";
const MAP_MAGIC: &[u8; 8] = b"LARDRMAP";

/// The place of an LV's replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaPlace {
    /// Data server.
    pub server: ServerId,
    /// Disk of it.
    pub disk: DiskId,
    /// Physical volume on it.
    pub pv: PvId,
}

/// An LV and the PG that allocates from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LvRecord {
    /// The LV.
    pub lv: LvId,
    /// Its only PG.
    pub pg: PgId,
    /// Blocks.
    pub blocks: u32,
    /// Replicas, by index.
    pub replicas: Vec<ReplicaPlace>,
}

impl LvRecord {
    /// The LV as its PG gets it, for this run of the server. On a single node all replicas are current.
    #[must_use]
    pub fn info(&self, boot: BootId) -> LvInfo {
        let replica = |place: &ReplicaPlace| {
            let ReplicaPlace { server, disk, pv } = *place;
            Replica { server, boot, disk, pv, state: ReplicaState::Current }
        };
        let (copies, replicas) =
            (self.replicas.len() as u8, self.replicas.iter().map(replica).collect());
        LvInfo { lv: self.lv, blocks: self.blocks, copies, replicas, as_of: MapVersion(0) }
    }
}

/// A PG's acting members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PgRecord {
    /// Current view.
    pub view: View,
    /// Primary first.
    pub members: Vec<ServerId>,
}

/// The topology map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// Drawn at creation; every file of the cluster names it.
    pub cluster: u64,
    /// Grows with each change.
    pub version: u64,
    /// PGs, by id; a power of two, fixed at creation.
    pub pgs: Vec<PgRecord>,
    /// Blocks of every LV made so far and to come.
    pub lv_blocks: u32,
    /// PVs that the disk can take.
    pub pv_count_max: u32,
    /// LVs, by id.
    pub lvs: Vec<LvRecord>,
    /// Buckets.
    pub buckets: BTreeMap<BucketName, BucketRecord>,
    /// The next bucket's id.
    pub next_bucket: BucketId,
}

/// The map, with an index for look-ups of each request.
#[derive(Debug)]
pub struct Published {
    /// The map.
    pub map: Map,
    live: BTreeMap<BucketId, Epoch>,
}

impl Published {
    fn new(map: Map) -> Arc<Self> {
        let live = map.buckets.values().filter(|bucket| bucket.state == BucketState::Live);
        let live = live.map(|bucket| (bucket.id, bucket.epoch)).collect();
        Arc::new(Self { map, live })
    }

    /// The epoch of a bucket, if it is live and takes puts.
    #[must_use]
    pub fn live_epoch(&self, id: BucketId) -> Option<Epoch> {
        self.live.get(&id).copied()
    }

    /// A bucket's record.
    #[must_use]
    pub fn bucket(&self, name: &BucketName) -> Option<&BucketRecord> {
        self.map.buckets.get(name)
    }
}

/// The reason why the map could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum LocalManagerError {
    /// The disk failed: give up.
    #[error("the topology map: {0}")]
    Disk(#[from] DiskError),
    /// The file is damaged or newer: restore it or use a newer release.
    #[error("the topology map manager/map is unusable: {0}; restore it from a backup")]
    Unusable(String),
    /// Fix the request.
    #[error("the bucket exists already")]
    BucketExists,
    /// Fix the request.
    #[error("the bucket does not exist")]
    NoSuchBucket,
    /// Fix the request.
    #[error("the cluster has {BUCKETS_MAX} buckets, as many as it may")]
    TooManyBuckets,
    /// Read the bucket's record again: its home has changed.
    #[error(transparent)]
    Home(#[from] HomeNotSet),
    /// Do what the error says first.
    #[error(transparent)]
    NotShared(#[from] NotShared),
    /// Give up the home first.
    #[error("the bucket has a home region")]
    HasHome,
    /// Fix the request, or shorten the rules of other buckets.
    #[error("the CORS rules of all buckets have at most {CORS_ALL_BYTES_MAX} bytes together")]
    TooMuchCors,
}

impl From<CodecError> for LocalManagerError {
    fn from(error: CodecError) -> Self {
        Self::Unusable(error.to_string())
    }
}

/// The parameters that a new cluster is made with.
#[derive(Debug, Clone, Copy)]
pub struct Genesis {
    /// PGs, a power of two.
    pub pg_count: u32,
    /// Blocks of an LV.
    pub lv_blocks: u32,
    /// PVs that the disk can take.
    pub pv_count_max: u32,
}

/// The owner of a single node's map, which is a file.
pub struct LocalManager {
    disk: Arc<dyn Disk>,
    published: RwLock<Arc<Published>>,
    /// True while a change is on its way to the disk. No lock is held meanwhile.
    is_changing: Mutex<bool>,
    changed: Condvar,
    /// The store's number among regions. It is no part of the map: what a region is lies beside the store.
    region: RegionId,
}

/// The turn of a change, however it ends.
struct TurnGuard<'a>(&'a LocalManager);

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        *self.0.is_changing.lock() = false;
        self.0.changed.notify_one();
    }
}

impl LocalManager {
    /// Reads the map of a store that has this number among regions, or creates it on a new disk. Calls `genesis` only to
    /// create it.
    ///
    /// # Errors
    /// [`LocalManagerError::Disk`] and [`LocalManagerError::Unusable`]; the error of `genesis`.
    pub fn open<E: From<LocalManagerError>>(
        disk: Arc<dyn Disk>,
        region: RegionId,
        genesis: impl FnOnce() -> Result<Genesis, E>,
    ) -> Result<Self, E> {
        let map = match load(&*disk)? {
            Some(map) => map,
            None => {
                let map = new_map(genesis()?);
                disk.create_dir(MANAGER_DIR).map_err(LocalManagerError::from)?;
                store(&*disk, &map)?;
                map
            }
        };
        let published = RwLock::new(Published::new(map));
        let (is_changing, changed) = (Mutex::new(false), Condvar::new());
        Ok(Self { disk, published, is_changing, changed, region })
    }

    /// The map as it is now.
    #[must_use]
    pub fn map(&self) -> Arc<Published> {
        self.published.read().clone()
    }

    /// The store's number among regions; [`RegionId::OWN`] if it is alone.
    #[must_use]
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// Begins a new view of every PG, as a restart of its primary must, and ends deletions that the last run of
    /// the server began.
    ///
    /// # Errors
    /// [`LocalManagerError::Disk`].
    pub fn begin_views(&self) -> Result<Arc<Published>, LocalManagerError> {
        self.change(|map| {
            for pg in &mut map.pgs {
                pg.view = View(pg.view.0 + 1);
            }
            // The proxy that ran a deletion is gone.
            for bucket in map.buckets.values_mut() {
                if bucket.state == BucketState::Deleting {
                    bucket.state = BucketState::Live;
                    bucket.epoch = Epoch(bucket.epoch.0 + 1);
                }
            }
            Ok(())
        })
    }

    /// Makes a bucket, with the home that other regions know for it.
    ///
    /// # Errors
    /// [`LocalManagerError`].
    pub fn create_bucket(
        &self,
        name: &BucketName,
        (location, home): (Option<String>, Option<Home>),
        now_ms: u64,
    ) -> Result<BucketRecord, LocalManagerError> {
        let map = self.change(|map| make_bucket(map, name, (location, home), now_ms))?;
        map.bucket(name).cloned().ok_or(LocalManagerError::NoSuchBucket)
    }

    /// Sets how many regions have a bucket's changes before they are answered.
    ///
    /// # Errors
    /// [`LocalManagerError`].
    pub fn set_regions(&self, name: &BucketName, regions: u8) -> Result<(), LocalManagerError> {
        self.change(|map| {
            let record = map.buckets.get_mut(name).ok_or(LocalManagerError::NoSuchBucket)?;
            record.regions = regions;
            Ok(())
        })?;
        Ok(())
    }

    /// Sets a bucket's CORS rules, or removes them.
    ///
    /// # Errors
    /// [`LocalManagerError`].
    pub fn set_cors(
        &self,
        name: &BucketName,
        rules: Option<CorsRules>,
    ) -> Result<(), LocalManagerError> {
        self.change(|map| {
            if !map.buckets.contains_key(name) {
                return Err(LocalManagerError::NoSuchBucket);
            }
            let others = map.buckets.values().filter(|record| record.name != *name);
            let others = others.filter_map(|record| record.cors.as_ref());
            if rules.as_ref().is_some_and(|rules| !cors::fit(rules, others)) {
                return Err(LocalManagerError::TooMuchCors);
            }
            let record = map.buckets.get_mut(name).ok_or(LocalManagerError::NoSuchBucket)?;
            record.cors = rules;
            Ok(())
        })?;
        Ok(())
    }

    /// Makes a bucket local to this region, and creates it if there is none; or begins to share it.
    ///
    /// # Errors
    /// [`LocalManagerError`].
    pub fn set_local(
        &self,
        name: &BucketName,
        is_local: bool,
        now_ms: u64,
    ) -> Result<(), LocalManagerError> {
        self.change(|map| {
            if is_local && !map.buckets.contains_key(name) {
                make_bucket(map, name, (None, None), now_ms)?;
            }
            let record = map.buckets.get_mut(name).ok_or(LocalManagerError::NoSuchBucket)?;
            record.set_local(is_local)?;
            Ok(())
        })?;
        Ok(())
    }

    /// Takes the next step of sharing a bucket, if its record is still this one.
    ///
    /// # Errors
    /// [`LocalManagerError`].
    pub fn share(&self, was: &BucketRecord, next: Sharing) -> Result<(), LocalManagerError> {
        self.change(|map| {
            let record = map.buckets.get_mut(&was.name).ok_or(LocalManagerError::NoSuchBucket)?;
            let is_it = record.share(was.id, was.epoch, next);
            tracing::debug!(bucket = %was.name, ?next, is_it, "a bucket is being shared");
            Ok(())
        })?;
        Ok(())
    }

    /// Sets a bucket's home, if it is still the expected one.
    ///
    /// # Errors
    /// [`LocalManagerError`].
    pub fn set_home(
        &self,
        name: &BucketName,
        expected: Option<Home>,
        next: Home,
    ) -> Result<(), LocalManagerError> {
        self.change(|map| {
            let record = map.buckets.get_mut(name).ok_or(LocalManagerError::NoSuchBucket)?;
            Ok(record.set_home(expected, next)?)
        })?;
        Ok(())
    }

    /// Marks a bucket as deleting, under a new epoch, and returns the record for
    /// [`LocalManager::end_deletion`]. A deletion that was under way can end no more.
    ///
    /// # Errors
    /// [`LocalManagerError`].
    pub fn begin_deletion(&self, name: &BucketName) -> Result<BucketRecord, LocalManagerError> {
        let map = self.change(|map| {
            let record = map.buckets.get_mut(name).ok_or(LocalManagerError::NoSuchBucket)?;
            if record.has_home() {
                return Err(LocalManagerError::HasHome);
            }
            record.state = BucketState::Deleting;
            record.epoch = Epoch(record.epoch.0 + 1);
            Ok(())
        })?;
        map.bucket(name).cloned().ok_or(LocalManagerError::NoSuchBucket)
    }

    /// Ends a deletion: removes the bucket if it was found empty, else makes it live again.
    ///
    /// # Errors
    /// [`LocalManagerError::NoSuchBucket`] if the bucket has gone, or its record changed since.
    pub fn end_deletion(
        &self,
        marked: &BucketRecord,
        empty: bool,
    ) -> Result<(), LocalManagerError> {
        self.change(|map| {
            let record =
                map.buckets.get_mut(&marked.name).ok_or(LocalManagerError::NoSuchBucket)?;
            // Other fields, its settings, may have changed meanwhile.
            let is_marked = record.state == BucketState::Deleting
                && (record.id, record.epoch) == (marked.id, marked.epoch);
            if !is_marked {
                return Err(LocalManagerError::NoSuchBucket);
            }
            if empty {
                map.buckets.remove(&marked.name);
            } else {
                record.state = BucketState::Live;
                record.epoch = Epoch(record.epoch.0 + 1);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Draws another LV from the pool for each of these PGs, in their order, by one change of the map. Returns the LVs: fewer
    /// than PGs if the disk has no PV left.
    ///
    /// # Errors
    /// [`LocalManagerError::Disk`].
    pub fn draw_lvs(&self, pgs: &[PgId]) -> Result<Vec<LvRecord>, LocalManagerError> {
        let mut drawn = Vec::new();
        self.change(|map| {
            let next = map.lvs.len() as u32;
            for (&pg, number) in pgs.iter().zip(next..map.pv_count_max) {
                let server = map.pgs[pg.0 as usize].members[0];
                let place = ReplicaPlace { server, disk: DiskId(0), pv: PvId(number) };
                let (lv, blocks) = (LvId(number), map.lv_blocks);
                drawn.push(LvRecord { lv, pg, blocks, replicas: vec![place] });
            }
            map.lvs.extend_from_slice(&drawn);
            Ok(())
        })?;
        Ok(drawn)
    }

    /// Waits until no other change is on its way.
    fn lock_turn(&self) -> TurnGuard<'_> {
        let mut is_changing = self.is_changing.lock();
        while *is_changing {
            self.changed.wait(&mut is_changing);
        }
        *is_changing = true;
        TurnGuard(self)
    }

    fn change(
        &self,
        edit: impl FnOnce(&mut Map) -> Result<(), LocalManagerError>,
    ) -> Result<Arc<Published>, LocalManagerError> {
        let _turn = self.lock_turn();
        let before = self.map();
        let mut map = before.map.clone();
        edit(&mut map)?;
        if map == before.map {
            return Ok(before);
        }
        map.version += 1;
        store(&*self.disk, &map)?;
        let map = Published::new(map);
        *self.published.write() = map.clone();
        Ok(map)
    }
}

/// Puts a new bucket into the map.
fn make_bucket(
    map: &mut Map,
    name: &BucketName,
    (location, home): (Option<String>, Option<Home>),
    now_ms: u64,
) -> Result<(), LocalManagerError> {
    if map.buckets.contains_key(name) {
        return Err(LocalManagerError::BucketExists);
    }
    if map.buckets.len() >= BUCKETS_MAX {
        return Err(LocalManagerError::TooManyBuckets);
    }
    let id = map.next_bucket;
    map.next_bucket = BucketId(id.0 + 1);
    let record = BucketRecord { location, home, ..BucketRecord::new(id, name.clone(), now_ms) };
    map.buckets.insert(name.clone(), record);
    Ok(())
}

fn new_map(genesis: Genesis) -> Map {
    let pg = PgRecord { view: View(0), members: vec![ServerId(0)] };
    Map {
        cluster: larder_env::rng::unique_u64(),
        version: 1,
        pgs: vec![pg; genesis.pg_count as usize],
        lv_blocks: genesis.lv_blocks,
        pv_count_max: genesis.pv_count_max,
        lvs: Vec::new(),
        buckets: BTreeMap::new(),
        next_bucket: BucketId(1),
    }
}

/// Reads the map of a store; `None` if it has none yet.
///
/// # Errors
/// [`LocalManagerError::Disk`] and [`LocalManagerError::Unusable`].
pub fn load(disk: &dyn Disk) -> Result<Option<Map>, LocalManagerError> {
    let bytes = match read_file(disk, &format!("{MANAGER_DIR}/{MAP_FILE}")) {
        Ok(bytes) => bytes,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let damaged = |reason: &str| LocalManagerError::Unusable(reason.to_owned());
    let (magic, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| damaged("it is too short"))?;
    let (sum, body) = rest.split_first_chunk::<8>().ok_or_else(|| damaged("it is too short"))?;
    if magic != MAP_MAGIC {
        return Err(damaged("it does not begin as a map does"));
    }
    if u64::from_le_bytes(*sum) != xxh3_64(body) {
        return Err(damaged("its checksum is wrong"));
    }
    Ok(Some(decode("topology map", body)?))
}

/// The bytes of a map file.
#[must_use]
pub fn map_bytes(map: &Map) -> Vec<u8> {
    let mut body = Vec::new();
    encode_into(map, &mut body);
    let mut bytes = MAP_MAGIC.to_vec();
    bytes.extend(xxh3_64(&body).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn store(disk: &dyn Disk, map: &Map) -> Result<(), LocalManagerError> {
    Ok(replace_file(disk, MANAGER_DIR, MAP_FILE, &map_bytes(map))?)
}

#[cfg(test)]
mod tests;
