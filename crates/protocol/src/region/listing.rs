//! Lists keys as they are once every region has all changes: merged from what each region has of them.
//!
//! ```text
//!  region 1 ──keys, tombstones──▶ ┐
//!  region 2 ──keys, tombstones──▶ ├─ of each key the greatest stamp ──▶ a page of keys and groups
//!  region 3 ──keys, tombstones──▶ ┘
//! ```
//!
//! A *group* is the common beginning of keys, up to a delimiter. It is listed once, and its further keys are not: a region leaves
//! them out after the first key that is there. If another region has deleted that key, the region is asked for the next one.
//!
//! # Invariants
//!
//! 1. A key is listed only when each region has told of it, or has none of it. So a deletion anywhere counts.
//! 2. Keys come in their order, and each answer brings a region further: a list ends.
//! 3. Answers and pages are bounded.

use std::collections::{BTreeMap, VecDeque};

use larder_types::limits::{KEY_BYTES_MAX, LIST_PAGE_MAX};
use larder_types::rows::prefix_end;
use larder_types::{Attributes, Metax, ObjectEntry, ObjectKey, PgId, RegionId, Stamp, Tombstone};
use serde::{Deserialize, Serialize};

use super::entry::What;
use super::key_rows::KeyRows;
use crate::limits::REGION_LISTED_KEYS_MIN;

/// The keys of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Only keys that begin so.
    pub prefix: String,
    /// Keys are grouped up to the first occurrence of this behind the prefix; never empty.
    pub delimiter: Option<String>,
}

impl Selection {
    /// The group of a key that is selected, if it has one.
    #[must_use]
    pub fn group_of<'a>(&self, key: &'a ObjectKey) -> Option<&'a str> {
        key.group(&self.prefix, self.delimiter.as_deref())
    }

    /// The place behind a key, or behind its whole group.
    fn behind(&self, key: &ObjectKey) -> Place {
        match self.group_of(key) {
            Some(group) => behind_group(group),
            None => Place::At(behind(key.as_bytes())),
        }
    }
}

/// Asks a region for keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysAsk {
    /// The keys of the list.
    pub selection: Selection,
    /// The first place of interest: bytes as of a key, at most [`KEY_BYTES_MAX`] and one.
    pub from: Vec<u8>,
    /// Most keys that are there, and most that were deleted.
    pub keys_max: u32,
}

impl KeysAsk {
    /// True if a region may ask it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Selection { prefix, delimiter } = &self.selection;
        let is_short = |text: &String| (1..=KEY_BYTES_MAX).contains(&text.len());
        prefix.len() <= KEY_BYTES_MAX
            && delimiter.as_ref().is_none_or(is_short)
            && self.from.len() <= KEY_BYTES_MAX + 1
            && (1..=LIST_PAGE_MAX + 1).contains(&(self.keys_max as usize))
    }
}

/// A key as one region has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionKey {
    /// The key.
    pub key: ObjectKey,
    /// The stamp of its put, or of its deletion.
    pub at: Stamp,
    /// The object, without what no list shows; `None` if it was deleted.
    pub object: Option<Box<Metax>>,
    /// Further keys of its group may follow, and are left out.
    pub leaves_out: bool,
}

/// A region's answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KeysAnswer {
    /// Its keys from the place on, in order.
    pub keys: Vec<RegionKey>,
    /// The place behind them, if there are more.
    pub rest: Option<Vec<u8>>,
}

impl KeysAnswer {
    /// True if it answers this.
    #[must_use]
    pub fn answers(&self, ask: &KeysAsk) -> bool {
        let mut next = Place::At(ask.from.clone());
        for told in &self.keys {
            let is_selected = told.key.as_str().starts_with(&ask.selection.prefix);
            if !is_selected || !next.is_reached_by(told.key.as_bytes()) {
                return false;
            }
            next = match told.leaves_out {
                true if ask.selection.group_of(&told.key).is_none() => return false,
                true => ask.selection.behind(&told.key),
                false => Place::At(behind(told.key.as_bytes())),
            };
        }
        let is_further = |rest: &Vec<u8>| *rest > ask.from && next.is_reached_by(rest);
        self.keys.len() <= 2 * ask.keys_max as usize && self.rest.as_ref().is_none_or(is_further)
    }
}

/// A place among keys.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    At(Vec<u8>),
    /// Behind all keys.
    End,
}

impl Place {
    fn is_reached_by(&self, key: &[u8]) -> bool {
        matches!(self, Self::At(place) if key >= &place[..])
    }
}

/// The place behind a key.
fn behind(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// The place behind all keys of a group.
fn behind_group(group: &str) -> Place {
    prefix_end(group.as_bytes()).map_or(Place::End, Place::At)
}

/// What a walk over rows does after one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Onward {
    /// Goes on to the next row.
    Next,
    /// Goes on to the first key from this place on.
    Past(Vec<u8>),
    /// Ends.
    Stop,
}

/// An answer that is made from a region's rows: first all versions are walked over, then all tombstones, both from the
/// place that is asked for.
pub struct Answering<'a> {
    ask: &'a KeysAsk,
    keys: BTreeMap<ObjectKey, KeyRows>,
    /// Keys behind which further ones of their group are left out.
    leave_out: BTreeMap<ObjectKey, Vec<u8>>,
    tombstones: u32,
    rest: Option<Vec<u8>>,
}

impl<'a> Answering<'a> {
    /// An empty answer.
    #[must_use]
    pub fn new(ask: &'a KeysAsk) -> Self {
        let (keys, leave_out) = (BTreeMap::new(), BTreeMap::new());
        Self { ask, keys, leave_out, tombstones: 0, rest: None }
    }

    /// Takes the next version.
    pub fn version(&mut self, key: ObjectKey, version: ObjectEntry) -> Onward {
        if self.keys.len() == self.ask.keys_max as usize {
            self.rest = Some(key.as_bytes().to_vec());
            return Onward::Stop;
        }
        let onward = match self.ask.selection.group_of(&key).map(behind_group) {
            None => Onward::Next,
            Some(Place::At(place)) => {
                self.leave_out.insert(key.clone(), place.clone());
                Onward::Past(place)
            }
            Some(Place::End) => Onward::Stop,
        };
        self.keys.insert(key, KeyRows { version: Some(version), tombstone: None });
        onward
    }

    /// Takes the next tombstone.
    pub fn tombstone(&mut self, key: ObjectKey, tombstone: Tombstone) -> Onward {
        if self.rest.as_ref().is_some_and(|rest| key.as_bytes() >= &rest[..]) {
            return Onward::Stop;
        }
        let before = self.leave_out.range(..&key).next_back();
        if let Some((_, place)) = before
            && key.as_bytes() < &place[..]
        {
            return Onward::Past(place.clone());
        }
        if self.tombstones == self.ask.keys_max {
            let rest = key.as_bytes().to_vec();
            self.keys.retain(|key, _| key.as_bytes() < &rest[..]);
            self.rest = Some(rest);
            return Onward::Stop;
        }
        self.tombstones += 1;
        self.keys.entry(key).or_default().tombstone = Some(tombstone);
        Onward::Next
    }

    /// The answer of the region with this number.
    #[must_use]
    pub fn finish(self, own: RegionId, pg_of: impl Fn(&ObjectKey) -> PgId) -> KeysAnswer {
        let Self { keys, leave_out, rest, .. } = self;
        let told = keys.into_iter().filter_map(|(key, rows)| {
            let entry = rows.entry(own, pg_of(&key))?;
            let object = match entry.what {
                What::Object(object) => Some(Box::new(without_unlisted(object.shown()))),
                What::Marker | What::Purged => None,
            };
            let leaves_out = leave_out.contains_key(&key);
            Some(RegionKey { key, at: entry.at, object, leaves_out })
        });
        KeysAnswer { keys: told.collect(), rest }
    }
}

/// METAX without what no list shows.
fn without_unlisted(metax: Metax) -> Metax {
    let storage_class = metax.attributes.storage_class;
    Metax { attributes: Attributes { storage_class, ..Default::default() }, ..metax }
}

/// An item of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// An object.
    Key(ObjectKey, Box<Metax>),
    /// A group.
    Group(String),
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedPage {
    /// Its keys and groups, in order.
    pub items: Vec<Item>,
    /// True if more follow.
    pub is_truncated: bool,
}

/// A page that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageAsk {
    /// The keys of the list.
    pub selection: Selection,
    /// Only keys greater than this, and no group equal to it.
    pub after: Option<String>,
    /// Most keys and groups together, from 1 to [`LIST_PAGE_MAX`].
    pub items_max: u32,
}

impl PageAsk {
    /// True if a proxy may ask it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        (1..=LIST_PAGE_MAX).contains(&(self.items_max as usize)) && self.first(1).is_sound()
    }

    /// The first question to each region.
    fn first(&self, keys_max: u32) -> KeysAsk {
        let selection = self.selection.clone();
        let prefix = selection.prefix.as_bytes().to_vec();
        let from = match &self.after {
            None => prefix,
            Some(after) => {
                // Beyond the longest key, the rest of it orders no key otherwise.
                let after = &after.as_bytes()[..after.len().min(KEY_BYTES_MAX)];
                prefix.max(behind(after))
            }
        };
        KeysAsk { selection, from, keys_max }
    }
}

/// What one region has told and was not listed yet.
struct Told {
    region: RegionId,
    keys: VecDeque<RegionKey>,
    /// The place behind these, if there is more.
    rest: Option<Vec<u8>>,
    /// Place up to which keys were left out behind the last one that was passed.
    left_out: Option<Vec<u8>>,
}

impl Told {
    /// Passes keys before a place. Returns the place to ask from, if the region has not told of its next key yet.
    fn pass(&mut self, selection: &Selection, at: &[u8]) -> Option<Vec<u8>> {
        while let Some(told) = self.keys.pop_front_if(|told| told.key.as_bytes() < at) {
            self.left_out = match selection.behind(&told.key) {
                Place::At(place) if told.leaves_out => Some(place),
                _ => None,
            };
        }
        if self.left_out.as_ref().is_some_and(|place| at < &place[..]) {
            return Some(at.to_vec());
        }
        match &self.rest {
            Some(rest) if self.keys.is_empty() => Some(at.max(rest).to_vec()),
            _ => None,
        }
    }
}

/// Merges a page of what all regions have.
pub struct Merging {
    ask: PageAsk,
    at: Place,
    told: Vec<Told>,
    page: ListedPage,
}

impl Merging {
    /// A page of these regions' keys.
    ///
    /// # Panics
    /// If the request is none that [is sound](PageAsk::is_sound).
    #[must_use]
    pub fn new(ask: PageAsk, regions: impl Iterator<Item = RegionId>) -> Self {
        assert!(ask.is_sound(), "a page is asked for that may be");
        let from = ask.first(1).from;
        let unasked = |region| Told {
            region,
            keys: VecDeque::new(),
            rest: Some(from.clone()),
            left_out: None,
        };
        let told = regions.map(unasked).collect();
        let page = ListedPage { items: Vec::new(), is_truncated: false };
        Self { ask, at: Place::At(from), told, page }
    }

    /// Lists what is known. Returns the next questions to regions; the page is complete if there is none.
    #[must_use]
    pub fn step(&mut self) -> Vec<(RegionId, KeysAsk)> {
        while let Place::At(at) = &self.at {
            let selection = &self.ask.selection;
            let ask_from = |told: &mut Told| Some((told.region, told.pass(selection, at)?));
            let asks: Vec<_> = self.told.iter_mut().filter_map(ask_from).collect();
            if !asks.is_empty() {
                return asks.into_iter().map(|(of, from)| (of, self.keys_from(from))).collect();
            }
            let firsts = self.told.iter().filter_map(|told| told.keys.front());
            let Some(key) = firsts.clone().map(|told| &told.key).min().cloned() else { break };
            let newest = firsts.filter(|told| told.key == key).max_by_key(|told| told.at);
            let object = newest.and_then(|told| told.object.clone());
            self.at = match object {
                None => Place::At(behind(key.as_bytes())),
                Some(object) => {
                    let behind = selection.behind(&key);
                    if !self.list(key, object) {
                        return Vec::new();
                    }
                    behind
                }
            };
        }
        Vec::new()
    }

    /// Lists a key, or its group; false if there is no room.
    fn list(&mut self, key: ObjectKey, object: Box<Metax>) -> bool {
        let item = match self.ask.selection.group_of(&key) {
            Some(group) if self.ask.after.as_deref() == Some(group) => return true,
            Some(group) => Item::Group(group.to_owned()),
            None => Item::Key(key, object),
        };
        self.page.is_truncated = self.page.items.len() == self.ask.items_max as usize;
        if !self.page.is_truncated {
            self.page.items.push(item);
        }
        !self.page.is_truncated
    }

    /// As many keys as the page may still have, and one that tells whether it is the last.
    fn keys_from(&self, from: Vec<u8>) -> KeysAsk {
        let room = self.ask.items_max - self.page.items.len() as u32 + 1;
        let keys_max = room.max(REGION_LISTED_KEYS_MIN);
        KeysAsk { selection: self.ask.selection.clone(), from, keys_max }
    }

    /// Takes a region's answer to the question that [`Merging::step`] returned last.
    ///
    /// # Panics
    /// If the answer does not [answer](KeysAnswer::answers) it, or there is no such region.
    pub fn take(&mut self, region: RegionId, ask: &KeysAsk, answer: KeysAnswer) {
        assert!(answer.answers(ask), "the link refuses another answer");
        let told = self.told.iter_mut().find(|told| told.region == region);
        let told = told.expect("only regions of the list are asked");
        (told.keys, told.rest, told.left_out) = (answer.keys.into(), answer.rest, None);
    }

    /// The page, once there are no more questions.
    #[must_use]
    pub fn finish(self) -> ListedPage {
        self.page
    }
}

#[cfg(test)]
#[path = "listing/tests.rs"]
mod tests;
