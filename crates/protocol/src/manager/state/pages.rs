//! A whole map in pages, for a server without a map: each response is shorter than the map.
//!
//! Each page is cut from the map as it is when that page is asked for, so managers keep no earlier map for servers that
//! are fetching. This is how a database is copied while it is written: a fuzzy copy, and then the log from the copy's
//! beginning on.
//!
//! # Invariants
//!
//! 1. Each page begins at the place that the one before named, and names a later one if records are left. So pages end.
//! 2. A gathered record that is not as in the latest map has changed since the first page, and so has a place that was passed over.
//!    Changes since the version of the first page have all of these as they are last.
//! 3. What was gathered is a map only if it has the sum of the latest map and contradicts itself nowhere.
//! 4. The map that is gathered is the one that its manager had at the last answer, and never an earlier one.

use larder_types::codec::{self, CodecError};
use larder_types::{LvId, MapVersion, PgId, ServerId};
use serde::{Deserialize, Serialize};

use super::changes::{BadChanges, MapChanges, MapPlace, Taking, Touched};
use super::map::Topology;

/// Records of a map from one place on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapPage {
    /// The place of the first record that is left; `None` on the last page.
    pub(super) next: Option<MapPlace>,
    /// Since version 0.
    pub(super) records: MapChanges,
}

const WHAT: &str = "a page of the topology map";

impl MapPage {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads what [`MapPage::encode`] wrote.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode(WHAT, bytes)
    }
}

impl Topology {
    /// The page that begins at a place, the first one without a place. It ends with the record that fills so many bytes. The sum is
    /// that of all records of this map.
    #[must_use]
    pub fn page(
        &self,
        from: Option<&MapPlace>,
        records_sum: u64,
        page_bytes: usize,
        has_secrets: bool,
    ) -> MapPage {
        let mut records = MapChanges::begin(MapVersion(0), self, records_sum, has_secrets);
        let (mut next, mut filled) = (None, 0);
        for place in self.places_from(from.unwrap_or(&MapPlace::Server(ServerId(0)))) {
            if filled >= page_bytes {
                next = Some(place);
                break;
            }
            filled += self.record_bytes(&place).map_or(0, |bytes| bytes.len());
            records.add(&place, self);
        }
        MapPage { next, records }
    }

    /// The places of all records from one on, in order.
    fn places_from<'a>(&'a self, from: &'a MapPlace) -> impl Iterator<Item = MapPlace> + 'a {
        // The large tables are entered at the place, the others are searched for it.
        let first_pg = match from {
            MapPlace::Server(_) => 0,
            MapPlace::Pg(id) => id.0,
            _ => self.pgs.len() as u32,
        };
        let first_lv = match from {
            MapPlace::Server(_) | MapPlace::Pg(_) => 0,
            MapPlace::Lv(id) => id.0,
            _ => self.lvs.len() as u32,
        };
        let pgs = (first_pg..self.pgs.len() as u32).map(|id| MapPlace::Pg(PgId(id)));
        let lvs = (first_lv..self.lvs.len() as u32).map(|id| MapPlace::Lv(LvId(id)));
        let servers = self.servers.keys().map(|id| MapPlace::Server(*id));
        let sessions = self.sessions.keys().map(|id| MapPlace::Session(*id));
        let closed = self.closed.iter().map(|(version, id)| MapPlace::Closed(*version, *id));
        let buckets = self.buckets.keys().map(|name| MapPlace::Bucket(name.clone()));
        let tokens = self.tokens.keys().map(|id| MapPlace::Token(*id));
        let behind = sessions.chain(closed).chain(buckets).chain(tokens);
        let small = move |place: &MapPlace| place >= from;
        servers.filter(small).chain(pgs).chain(lvs).chain(behind.filter(small))
    }
}

/// A map of which some pages are here.
#[derive(Debug)]
pub struct MapGathering {
    gathered: Taking,
    /// The map of the first page, without its records.
    first: Topology,
    /// That of the last page.
    last: Topology,
    /// Sum of the records of the map of the last page.
    sum: u64,
    next: Option<MapPlace>,
}

impl MapGathering {
    /// Begins with the first page.
    ///
    /// # Errors
    /// [`BadChanges`].
    pub fn begin(page: MapPage) -> Result<Self, BadChanges> {
        let first = page.records.rest()?;
        let gathered = Taking { map: Topology::default(), sum: 0, touched: Touched::default() };
        let (last, sum) = (first.clone(), page.records.sum);
        let mut gathering = Self { gathered, first, last, sum, next: None };
        gathering.take(page)?;
        Ok(gathering)
    }

    /// Version of the map that the last page was cut from.
    #[must_use]
    pub fn version(&self) -> MapVersion {
        self.last.version
    }

    /// The place of which the next page is asked for; `None` if all pages are here.
    #[must_use]
    pub fn next(&self) -> Option<&MapPlace> {
        self.next.as_ref()
    }

    /// Takes in the page that was asked for.
    ///
    /// # Errors
    /// [`BadChanges`]; the gathering is to be begun anew.
    pub fn take(&mut self, page: MapPage) -> Result<(), BadChanges> {
        let MapPage { next, records } = page;
        let rest = records.rest()?;
        if records.since != MapVersion(0) || rest.version < self.last.version {
            return Err(BadChanges::OtherMap(rest.version));
        }
        let goes_on = next.as_ref().is_none_or(|next| {
            !records.is_empty() && self.next.as_ref().is_none_or(|asked| asked < next)
        });
        if !goes_on {
            return Err(BadChanges::Gap);
        }
        self.gathered.all(&records)?;
        self.gathered.touched = Touched::default();
        (self.last, self.sum, self.next) = (rest, records.sum, next);
        Ok(())
    }

    /// The version and the timeline of the map whose changes are lacking; `None` if the map has not changed meanwhile.
    #[must_use]
    pub fn lacks(&self) -> Option<(MapVersion, Option<u64>)> {
        let known = self.first.version;
        let timeline = self.first.timeline_at(known).map(|timeline| timeline.id);
        (self.last.version > known).then_some((known, timeline))
    }

    /// The map of the last answer with the sum of its records, by the changes that were lacking.
    ///
    /// # Errors
    /// [`BadChanges`].
    ///
    /// # Panics
    /// If pages or changes are lacking.
    pub fn end(self, changes: Option<&MapChanges>) -> Result<(Topology, u64), BadChanges> {
        assert!(self.next.is_none(), "all pages are here");
        assert!(changes.is_some() || self.lacks().is_none(), "changes are lacking");
        let Self { gathered: Taking { map, sum, .. }, first, last, sum: expected_sum, .. } = self;
        let (map, sum) = match changes {
            None if sum != expected_sum => return Err(BadChanges::Sum),
            None => (map.with_rest(last), sum),
            Some(changes) => {
                let (map, sum, _) = map.with_rest(first).changed(sum, changes)?;
                (map, sum)
            }
        };
        match map.contradiction() {
            Some(why) => Err(BadChanges::Contradiction(why)),
            None => Ok((map, sum)),
        }
    }
}
