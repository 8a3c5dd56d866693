//! The promises that clients were told, and the check that all regions show them in the end.

use std::collections::BTreeMap;

use larder_protocol::Planted;
use larder_protocol::limits::REGION_CLOCK_AHEAD_MS_MAX;
use larder_protocol::region::{Entry, EntryKind, Name, Object, Piece, Slot, join};
use larder_types::{Amendments, ETag, Metax, Origin, RegionId, Stamp};

use super::site::{Kept, Site, pg_of};
use super::world::SimRng;

/// A change that a client was told is done.
pub struct Acknowledged {
    pub region: RegionId,
    pub name: Name,
    pub entry: Entry,
    /// The stamp of the change itself: an amended entry keeps its own.
    pub stamp: Stamp,
    /// The time at which it was made.
    pub at_ms: u64,
    /// It may be gone with its region, which lost its data before any other had it.
    pub is_lost: bool,
}

/// See the module's head.
#[derive(Default)]
pub struct Judge {
    pub acknowledged: Vec<Acknowledged>,
}

impl Acknowledged {
    fn shows_in(&self, entry: Option<&Entry>) -> bool {
        let Some(entry) = entry else { return false };
        join(Planted::default(), self.name.slot, entry, &self.entry).as_ref() == Ok(entry)
    }
}

impl Judge {
    /// A region lost its data: what no other has may be gone. Returns how many changes that are.
    pub fn wiped(&mut self, sites: &[Site], at: usize) -> u64 {
        let others = || sites.iter().enumerate().filter(|(other, _)| *other != at);
        let mut lost = 0;
        for change in self.acknowledged.iter_mut().filter(|change| !change.is_lost) {
            let shows = |(_, site): (usize, &Site)| {
                change.shows_in(site.disk.entries.get(&change.name).map(|kept| &kept.entry))
            };
            let had = sites[at].disk.entries.contains_key(&change.name);
            if had && !others().any(shows) {
                change.is_lost = true;
                lost += 1;
            }
        }
        lost
    }

    /// Checks that an entry that a region has just taken is sound, and of no clock that is too far ahead there.
    pub fn seen(&self, now_ms: u64, site: &Site, name: &Name) -> Result<(), String> {
        let Some(kept) = site.disk.entries.get(name) else { return Ok(()) };
        let ahead_ms = kept.entry.clock().ms().saturating_sub(site.now_ms(now_ms));
        if kept.entry.is_sound(name.slot) && ahead_ms <= REGION_CLOCK_AHEAD_MS_MAX {
            return Ok(());
        }
        let (id, entry) = (site.id, &kept.entry);
        Err(format!(
            "region {id} keeps an unsound entry, or one that is {ahead_ms} ms ahead: {entry:?}"
        ))
    }

    pub fn check(&self, sites: &[&Site]) -> Result<(), String> {
        let shown = |site: &Site| -> BTreeMap<Name, Entry> {
            let entries = site.disk.entries.iter().filter(|(_, kept)| !kept.entry.is_purged());
            entries.map(|(name, kept)| (name.clone(), kept.entry.clone())).collect()
        };
        let first = shown(sites[0]);
        for site in &sites[1..] {
            let other = shown(site);
            let mut names = first.keys().chain(other.keys());
            if let Some(name) = names.find(|name| first.get(*name) != other.get(*name)) {
                return Err(format!(
                    "regions {} and {} differ in {name:?}:\n{:?}\n{:?}",
                    sites[0].id,
                    site.id,
                    first.get(name),
                    other.get(name)
                ));
            }
        }
        self.acknowledged.iter().filter(|change| !change.is_lost).try_for_each(|change| {
            let entry = first.get(&change.name);
            if change.shows_in(entry) || (entry.is_none() && self.is_purged(change)) {
                return Ok(());
            }
            let Acknowledged { region, name, entry: reported, .. } = change;
            Err(format!(
                "a change of region {region} is lost: {name:?} {reported:?}\nthere is {entry:?}"
            ))
        })
    }

    /// Returns true if a purge was acknowledged that took this change along.
    fn is_purged(&self, change: &Acknowledged) -> bool {
        self.acknowledged.iter().any(|purge| {
            let is_after = match change.name.slot {
                Slot::Version(_) => true,
                Slot::Null => purge.entry.at >= change.entry.at,
            };
            purge.name == change.name && purge.entry.is_purged() && is_after
        })
    }

    pub fn why_not_level<'a>(&self, sites: impl Iterator<Item = &'a Site>) -> String {
        let mut why = "regions do not come to rest:".to_owned();
        for site in sites {
            let is_purged = |(_, kept): &(&Name, &Kept)| kept.entry.is_purged();
            let stays = |(name, kept): (&Name, &Kept)| {
                let pg = pg_of(name, site.pgs());
                let pull = site.pull.as_ref();
                let origin = kept.entry.origin;
                let was_here = pull.is_some_and(|it| it.may_free(name, origin, false));
                let is_wanted = pull.is_some_and(|it| it.is_wanted(name));
                let op = kept.op.0;
                format!("{pg} {op} of {origin:?}, was here {was_here}, wanted {is_wanted}")
            };
            let tombstones: Vec<_> =
                site.disk.entries.iter().filter(is_purged).map(stays).collect();
            let last: Vec<_> = site.disk.logs.iter().map(|log| log.last.0).collect();
            let is_level = site.pull.as_ref().is_some_and(larder_protocol::region::Pull::is_level);
            why += &format!(
                "\nregion {}, level {is_level}: tombstones {tombstones:#?}, logs end at {last:?}",
                site.id
            );
            let lags = site.pull.iter().flat_map(|pull| pull.lags());
            for (other, lag) in lags.filter(|(_, lag)| lag.outcomes > 0 || lag.is_comparing) {
                why += &format!("; region {other} {lag:?}");
            }
        }
        why
    }
}

/// An object that a client puts.
pub fn object(at: Stamp, rng: &mut SimRng) -> EntryKind {
    let metax = Metax {
        region: at.region,
        ..Metax::new(rng.below(5_000), at.clock, ETag::Md5([rng.below(256) as u8; 16]))
    };
    let (parts, pieces) = (Vec::new(), BTreeMap::new());
    EntryKind::Object(Box::new(Object { metax, parts, pieces, amended: Amendments::default() }))
}

/// Returns the entry after a client has set something on it, or appended to it.
pub fn amended(entry: &Entry, at: Stamp, origin: Origin, rng: &mut SimRng) -> Option<Entry> {
    let EntryKind::Object(object) = &entry.what else { return None };
    let mut object = object.clone();
    match rng.below(5) {
        0 => {
            object.metax.attributes.tags = vec![("set".to_owned(), at.to_string())];
            object.amended.tags_at = Some(at);
        }
        1 => object.amended.legal_hold = Some((rng.one_in(2), at)),
        2 => object.amended.governance = Some((rng.below(100), at)),
        3 => object.amended.compliance_until_ms += rng.below(3),
        _ => {
            let etag = ETag::Md5([rng.below(256) as u8; 16]);
            let piece = Piece { len: rng.below(500), etag, checksum: None, origin };
            object.pieces.insert(at, piece);
        }
    }
    Some(Entry { what: EntryKind::Object(object), ..entry.clone() })
}
