//! Changes between two maps of one history: what a server that has the earlier one needs for the later one.
//!
//! A record that changed goes whole. So does the part of the map that does not grow with the cluster.
//!
//! # Invariants
//!
//! 1. Changes since a version are a superset of what changed since, and records have their latest content. So a map of that
//!    version, and of that history, becomes the very map that they were taken from. One that lies between two that were shown may
//!    lack a record that changed and changed back between them: by the sum its server knows.
//! 2. They are taken only by a map of that version. The result has the sum that the managers' map has, and contradicts itself
//!    nowhere that a change could make it.
//! 3. Servers, groups and volumes are never removed from a map.
//! 4. Records have no version here. A record that grows changes their bytes and sums: then a manager gives changes and pages to those
//!    servers alone that know its new form.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::codec::{self, CodecError};
use larder_types::{BucketName, BucketRecord, LvId, MapVersion, PgId, ServerId, SessionId};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::map::{LvRecord, PgRecord, ServerRecord, SessionRecord, TokenId, TokenRecord, Topology};
use super::root::RootRecord;
use crate::limits::RECENT_PLACES_MAX;

/// The place of a record in a map. Places have an order: by table, and in one by id or name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MapPlace {
    /// Of a server.
    Server(ServerId),
    /// Of a group.
    Pg(PgId),
    /// Of a volume.
    Lv(LvId),
    /// Of a session.
    Session(SessionId),
    /// Of a session closed in a version.
    Closed(MapVersion, SessionId),
    /// Of a bucket.
    Bucket(BucketName),
    /// Of a join token.
    Token(TokenId),
}

/// See the module's head. A record without content was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapChanges {
    /// Version of the map that takes them.
    pub(super) since: MapVersion,
    /// Sum of the records of the map that has them.
    pub(super) sum: u64,
    /// That map without its records, encoded.
    pub(super) rest: Vec<u8>,
    pub(super) servers: Vec<(ServerId, ServerRecord)>,
    pub(super) pgs: Vec<(PgId, PgRecord)>,
    pub(super) lvs: Vec<(LvId, LvRecord)>,
    pub(super) sessions: Vec<(SessionId, Option<SessionRecord>)>,
    pub(super) closed: Vec<(MapVersion, SessionId, bool)>,
    pub(super) buckets: Vec<(BucketName, Option<BucketRecord>)>,
    pub(super) tokens: Vec<(TokenId, Option<TokenRecord>)>,
}

/// The reason why changes are not taken: the whole map is to be fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadChanges {
    /// As it says.
    #[error(transparent)]
    Encoding(#[from] CodecError),
    /// They are for another map.
    #[error("they are for map {0}")]
    OtherMap(MapVersion),
    /// They leave out a record.
    #[error("they leave a gap in the map")]
    Gap,
    /// The map that they make is not the one that they were taken from.
    #[error("the map that they make has another sum")]
    Sum,
    /// The map that they make was not made by managers.
    #[error("the map that they make contradicts itself: {0}")]
    Contradiction(String),
}

const WHAT: &str = "changes of the topology map";

impl MapChanges {
    /// Changes without a record, of a map with this sum.
    pub(super) fn begin(since: MapVersion, map: &Topology, sum: u64, has_secrets: bool) -> Self {
        Self {
            since,
            sum,
            rest: map.without_records(has_secrets).encode(),
            servers: Vec::new(),
            pgs: Vec::new(),
            lvs: Vec::new(),
            sessions: Vec::new(),
            closed: Vec::new(),
            buckets: Vec::new(),
            tokens: Vec::new(),
        }
    }

    /// Adds the record at a place as it is in a map.
    pub(super) fn add(&mut self, place: &MapPlace, map: &Topology) {
        match place {
            MapPlace::Server(id) => {
                self.servers.extend(map.servers.get(id).map(|it| (*id, it.clone())));
            }
            MapPlace::Pg(id) => self.pgs.extend(map.pg(*id).map(|it| (*id, it.clone()))),
            MapPlace::Lv(id) => self.lvs.extend(map.lv(*id).map(|it| (*id, it.clone()))),
            MapPlace::Session(id) => self.sessions.push((*id, map.sessions.get(id).copied())),
            MapPlace::Closed(version, id) => {
                let is_there = map.closed.contains(&(*version, *id));
                self.closed.push((*version, *id, is_there));
            }
            MapPlace::Bucket(name) => {
                self.buckets.push((name.clone(), map.buckets.get(name).cloned()));
            }
            MapPlace::Token(id) => self.tokens.push((*id, map.tokens.get(id).copied())),
        }
    }

    /// Returns true if there is no record in them.
    pub(super) fn is_empty(&self) -> bool {
        self.servers.is_empty()
            && self.pgs.is_empty()
            && self.lvs.is_empty()
            && self.sessions.is_empty()
            && self.closed.is_empty()
            && self.buckets.is_empty()
            && self.tokens.is_empty()
    }

    /// The later map without its records.
    pub(super) fn rest(&self) -> Result<Topology, BadChanges> {
        let rest = Topology::decode(&self.rest)?;
        match rest.has_records() {
            true => Err(BadChanges::OtherMap(rest.version)),
            false => Ok(rest),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads what [`MapChanges::encode`] wrote.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode(WHAT, bytes)
    }
}

/// The bytes of one record that are summed up.
fn bytes<T: Serialize>(table: u8, record: &T) -> Vec<u8> {
    codec::encode(&(table, record))
}

/// Sum of one record. Those of all records add up, so that a change of one costs no look at the others.
fn sum<T: Serialize>(table: u8, record: &T) -> u64 {
    xxh3_64(&bytes(table, record))
}

impl Topology {
    /// Returns the sum of all records: of servers, groups, volumes, sessions, buckets and tokens.
    #[must_use]
    pub fn records_sum(&self) -> u64 {
        let pgs = (0..).map(PgId).zip(&self.pgs).map(|record| sum(1, &record));
        let lvs = (0..).map(LvId).zip(&self.lvs).map(|record| sum(2, &record));
        let servers = self.servers.iter().map(|record| sum(0, &record));
        let sessions = self.sessions.iter().map(|record| sum(3, &record));
        let closed = self.closed.iter().map(|record| sum(4, record));
        let buckets = self.buckets.iter().map(|record| sum(5, &record));
        let tokens = self.tokens.iter().map(|record| sum(6, &record));
        let all = servers.chain(pgs).chain(lvs).chain(sessions).chain(closed).chain(buckets);
        all.chain(tokens).fold(0, u64::wrapping_add)
    }

    /// The bytes of the record at a place that are summed up; `None` if there is no record.
    pub(super) fn record_bytes(&self, place: &MapPlace) -> Option<Vec<u8>> {
        match place {
            MapPlace::Server(id) => self.servers.get(id).map(|it| bytes(0, &(id, it))),
            MapPlace::Pg(id) => self.pg(*id).map(|it| bytes(1, &(id, it))),
            MapPlace::Lv(id) => self.lv(*id).map(|it| bytes(2, &(id, it))),
            MapPlace::Session(id) => self.sessions.get(id).map(|it| bytes(3, &(id, it))),
            MapPlace::Closed(version, id) => {
                self.closed.get(&(*version, *id)).map(|it| bytes(4, it))
            }
            MapPlace::Bucket(name) => self.buckets.get(name).map(|it| bytes(5, &(name, it))),
            MapPlace::Token(id) => self.tokens.get(id).map(|it| bytes(6, &(id, it))),
        }
    }

    /// Sum of the record at a place; 0 if there is none.
    fn record_sum(&self, place: &MapPlace) -> u64 {
        self.record_bytes(place).map_or(0, |bytes| xxh3_64(&bytes))
    }

    fn has_records(&self) -> bool {
        !self.servers.is_empty()
            || !self.pgs.is_empty()
            || !self.lvs.is_empty()
            || !self.sessions.is_empty()
            || !self.closed.is_empty()
            || !self.buckets.is_empty()
            || !self.tokens.is_empty()
    }

    /// The map without its records.
    fn without_records(&self, has_secrets: bool) -> Self {
        let Self {
            founded,
            version,
            applied,
            next,
            region,
            gateway,
            ref regions,
            regions_known,
            balance_paused_ms,
            cluster_version,
            ref root,
            ref timelines,
            servers: _,
            pgs: _,
            lvs: _,
            sessions: _,
            closed: _,
            buckets: _,
            tokens: _,
        } = *self;
        let root = match has_secrets {
            true => root.clone(),
            false => root.as_ref().map(RootRecord::without_secrets),
        };
        Self {
            founded,
            version,
            applied,
            next,
            region,
            gateway,
            regions: regions.clone(),
            regions_known,
            balance_paused_ms,
            cluster_version,
            root,
            timelines: timelines.clone(),
            ..Self::default()
        }
    }

    /// The places of records that differ from those of an earlier map; `None` if there are more than [`RECENT_PLACES_MAX`].
    fn changed_since(&self, before: &Self) -> Option<Vec<MapPlace>> {
        let mut found = Places(Vec::new());
        found.vecs(&before.pgs, &self.pgs, |at| MapPlace::Pg(PgId(at)))?;
        found.vecs(&before.lvs, &self.lvs, |at| MapPlace::Lv(LvId(at)))?;
        found.maps(&before.servers, &self.servers, |id| MapPlace::Server(*id))?;
        found.maps(&before.sessions, &self.sessions, |id| MapPlace::Session(*id))?;
        found.maps(&before.buckets, &self.buckets, |name| MapPlace::Bucket(name.clone()))?;
        found.maps(&before.tokens, &self.tokens, |id| MapPlace::Token(*id))?;
        for (version, id) in before.closed.symmetric_difference(&self.closed) {
            found.push(MapPlace::Closed(*version, *id))?;
        }
        Some(found.0)
    }

    /// Makes the map that changes were taken from, if this is the one that takes them, and its sum of records is this. Returns
    /// the sum with it.
    ///
    /// # Errors
    /// [`BadChanges`].
    pub fn with_changes(
        &self,
        records_sum: u64,
        changes: MapChanges,
    ) -> Result<(Self, u64), BadChanges> {
        let (map, sum, touched) = self.clone().changed(records_sum, &changes)?;
        match map.contradiction_at(Some(&touched)) {
            Some(why) => Err(BadChanges::Contradiction(why)),
            None => Ok((map, sum)),
        }
    }

    /// The same of a map that may contradict itself, and without a look for contradictions.
    pub(super) fn changed(
        self,
        records_sum: u64,
        changes: &MapChanges,
    ) -> Result<(Self, u64, Touched), BadChanges> {
        if changes.since != self.version {
            return Err(BadChanges::OtherMap(changes.since));
        }
        let rest = changes.rest()?;
        if rest.version <= self.version {
            return Err(BadChanges::OtherMap(rest.version));
        }
        let mut taking = Taking { map: self, sum: records_sum, touched: Touched::default() };
        taking.all(changes)?;
        let Taking { map, sum, touched } = taking;
        if sum != changes.sum {
            return Err(BadChanges::Sum);
        }
        Ok((map.with_rest(rest), sum, touched))
    }

    /// Its records with the rest of another map.
    pub(super) fn with_rest(self, rest: Self) -> Self {
        let Self { servers, pgs, lvs, sessions, closed, buckets, tokens, .. } = self;
        Self { servers, pgs, lvs, sessions, closed, buckets, tokens, ..rest }
    }
}

/// Places that are being gathered.
struct Places(Vec<MapPlace>);

impl Places {
    fn push(&mut self, place: MapPlace) -> Option<()> {
        self.0.push(place);
        (self.0.len() <= RECENT_PLACES_MAX).then_some(())
    }

    fn vecs<T: PartialEq>(
        &mut self,
        before: &[T],
        after: &[T],
        place: impl Fn(u32) -> MapPlace,
    ) -> Option<()> {
        for (at, record) in (0u32..).zip(after) {
            if before.get(at as usize) != Some(record) {
                self.push(place(at))?;
            }
        }
        Some(())
    }

    fn maps<K: Ord, T: PartialEq>(
        &mut self,
        before: &BTreeMap<K, T>,
        after: &BTreeMap<K, T>,
        place: impl Fn(&K) -> MapPlace,
    ) -> Option<()> {
        for (key, record) in after {
            if before.get(key) != Some(record) {
                self.push(place(key))?;
            }
        }
        for key in before.keys().filter(|key| !after.contains_key(key)) {
            self.push(place(key))?;
        }
        Some(())
    }
}

/// The records that changes touch, of which others may have to agree with them.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) servers: BTreeSet<ServerId>,
    pub(super) pgs: BTreeSet<PgId>,
    pub(super) lvs: BTreeSet<LvId>,
}

/// A map that takes changes.
#[derive(Debug)]
pub(super) struct Taking {
    pub(super) map: Topology,
    /// Sum of its records.
    pub(super) sum: u64,
    pub(super) touched: Touched,
}

impl Taking {
    /// Changes one record, and the sum with it.
    fn change(
        &mut self,
        place: &MapPlace,
        change: impl FnOnce(&mut Topology) -> Result<(), BadChanges>,
    ) -> Result<(), BadChanges> {
        let before = self.map.record_sum(place);
        change(&mut self.map)?;
        let after = self.map.record_sum(place);
        self.sum = self.sum.wrapping_sub(before).wrapping_add(after);
        Ok(())
    }

    /// Takes all records of changes.
    pub(super) fn all(&mut self, changes: &MapChanges) -> Result<(), BadChanges> {
        for (id, record) in &changes.servers {
            self.touched.servers.insert(*id);
            self.change(&MapPlace::Server(*id), |map| {
                map.servers.insert(*id, record.clone());
                Ok(())
            })?;
        }
        for (id, record) in &changes.pgs {
            self.touched.pgs.insert(*id);
            self.change(&MapPlace::Pg(*id), |map| put(&mut map.pgs, id.0, record))?;
        }
        for (id, record) in &changes.lvs {
            self.touched.lvs.insert(*id);
            self.change(&MapPlace::Lv(*id), |map| put(&mut map.lvs, id.0, record))?;
        }
        for (id, record) in &changes.sessions {
            self.change(&MapPlace::Session(*id), |map| {
                set(&mut map.sessions, id, *record);
                Ok(())
            })?;
        }
        for (version, id, is_there) in &changes.closed {
            self.change(&MapPlace::Closed(*version, *id), |map| {
                match is_there {
                    true => map.closed.insert((*version, *id)),
                    false => map.closed.remove(&(*version, *id)),
                };
                Ok(())
            })?;
        }
        for (name, record) in &changes.buckets {
            self.change(&MapPlace::Bucket(name.clone()), |map| {
                set(&mut map.buckets, name, record.clone());
                Ok(())
            })?;
        }
        for (id, record) in &changes.tokens {
            self.change(&MapPlace::Token(*id), |map| {
                set(&mut map.tokens, id, *record);
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Puts a record in its place, which is there, or is the next.
fn put<T: Clone>(records: &mut Vec<T>, at: u32, record: &T) -> Result<(), BadChanges> {
    let (at, count) = (at as usize, records.len());
    match records.get_mut(at) {
        Some(place) => *place = record.clone(),
        None if at == count => records.push(record.clone()),
        None => return Err(BadChanges::Gap),
    }
    Ok(())
}

fn set<K: Ord + Clone, T>(records: &mut BTreeMap<K, T>, key: &K, record: Option<T>) {
    match record {
        Some(record) => records.insert(key.clone(), record),
        None => records.remove(key),
    };
}

/// The records that differ in two maps that a manager shows one after the other.
#[derive(Debug)]
pub struct MapStep {
    since: MapVersion,
    until: MapVersion,
    /// Too many are none.
    places: Option<Vec<MapPlace>>,
    /// Sum of the records that changed as they are now, without that of what they were; of all records if too many did.
    sum: u64,
}

impl MapStep {
    /// The step from one map to the next. It looks at all records.
    #[must_use]
    pub fn between(before: &Topology, after: &Topology) -> Self {
        // Nobody has the map of version 0: it was shown before the manager had read its own.
        let is_first = before.version == MapVersion(0);
        let places = if is_first { None } else { after.changed_since(before) };
        let sum = match &places {
            None => after.records_sum(),
            Some(places) => places.iter().fold(0, |sum: u64, place| {
                let (old, new) = (before.record_sum(place), after.record_sum(place));
                sum.wrapping_sub(old).wrapping_add(new)
            }),
        };
        Self { since: before.version, until: after.version, places, sum }
    }
}

/// The records that changed lately in the maps that a manager has shown, for servers that have one of those.
///
/// Each has one place here, however often it changed: what is told is its latest content. So a few records that change again and
/// again, as many servers that start do, drive no others out.
#[derive(Debug, Default)]
pub struct RecentChanges {
    /// Records that changed since `since`, with the version of the last map in which they did.
    changed: BTreeMap<MapPlace, MapVersion>,
    /// The same by these versions.
    by_version: BTreeSet<(MapVersion, MapPlace)>,
    /// The earliest map from which the changes are known.
    since: MapVersion,
    /// The last map.
    until: MapVersion,
    /// Sum of its records.
    sum: u64,
}

impl RecentChanges {
    /// Takes in the step to the map that is shown next.
    ///
    /// # Panics
    /// If it does not go on from the last one.
    pub fn take(&mut self, step: MapStep) {
        assert_eq!(step.since, self.until, "steps go on from one another");
        self.until = step.until;
        let Some(places) = step.places else {
            *self = Self { since: step.until, until: step.until, sum: step.sum, ..Self::default() };
            return;
        };
        self.sum = self.sum.wrapping_add(step.sum);
        for place in places {
            if let Some(before) = self.changed.insert(place.clone(), step.until) {
                self.by_version.remove(&(before, place.clone()));
            }
            self.by_version.insert((step.until, place));
        }
        while self.changed.len() > RECENT_PLACES_MAX {
            self.forget_oldest();
        }
        assert_eq!(self.changed.len(), self.by_version.len(), "each record has one place");
    }

    /// Forgets the records of the oldest version, and so the way from maps before that.
    fn forget_oldest(&mut self) {
        let Some((oldest, _)) = self.by_version.first() else { return };
        self.since = *oldest;
        while let Some((version, _)) = self.by_version.first()
            && *version <= self.since
        {
            if let Some((_, place)) = self.by_version.pop_first() {
                self.changed.remove(&place);
            }
        }
    }

    /// Sum of all records of the last map.
    #[must_use]
    pub fn records_sum(&self) -> u64 {
        self.sum
    }

    /// The changes that make this map, the last, of that of a version. `None` if they are not known any more.
    #[must_use]
    pub fn since(
        &self,
        version: MapVersion,
        map: &Topology,
        has_secrets: bool,
    ) -> Option<MapChanges> {
        if map.version != self.until || version < self.since || version >= map.version {
            return None;
        }
        let first = (MapVersion(version.0 + 1), MapPlace::Server(ServerId(0)));
        let places: BTreeSet<&MapPlace> =
            self.by_version.range(first..).map(|(_, place)| place).collect();
        let mut changes = MapChanges::begin(version, map, self.sum, has_secrets);
        for place in places {
            changes.add(place, map);
        }
        Some(changes)
    }
}
