//! Lists keys as they are once every region has all changes: merged from what each region has of them.
//!
//! ```text
//!  region 1 ──keys, tombstones──▶ ┐
//!  region 2 ──keys, tombstones──▶ ├─ of each key the greatest stamp ──▶ a page of keys and groups
//!  region 3 ──keys, tombstones──▶ ┘
//! ```
//!
//! A *group* is the common beginning of keys, up to a delimiter. It is listed once, and its further keys are not: a region leaves
//! them out after the first key that is there. If another region has deleted that key, the region is asked for more of the group.
//!
//! # Invariants
//!
//! 1. A key is listed only when each region has told of it, or has none of it. So a deletion anywhere counts.
//! 2. Keys come in their order, and each answer brings a region further: a list ends.
//! 3. Answers and pages are bounded. Each round of questions asks for more than the one before: many deleted keys take few rounds.

use std::collections::{BTreeMap, VecDeque};

use larder_types::limits::{KEY_BYTES_MAX, LIST_PAGE_MAX};
use larder_types::name::group_of;
use larder_types::rows::prefix_end;
use larder_types::{Attributes, Metax, ObjectEntry, ObjectKey, RegionId, Stamp, Tombstone};
use serde::{Deserialize, Serialize};

use crate::limits::{REGION_LISTED_KEYS_MAX, REGION_LISTED_KEYS_MIN};

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
        group_of(key.as_str(), &self.prefix, self.delimiter.as_deref())
    }

    /// True if this is a group, not only the beginning of one or a key.
    fn is_group(&self, text: &str) -> bool {
        let group = text
            .starts_with(&self.prefix)
            .then(|| group_of(text, &self.prefix, self.delimiter.as_deref()));
        group.flatten() == Some(text)
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
pub struct KeysRequest {
    /// The keys of the list.
    pub selection: Selection,
    /// The first place of interest: bytes as of a key, at most [`KEY_BYTES_MAX`] and one.
    pub from: Vec<u8>,
    /// Most keys that are there. Of those that were deleted there may be [`REGION_LISTED_KEYS_MAX`].
    pub keys_max: u32,
}

impl KeysRequest {
    /// True if a region may ask it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Selection { prefix, delimiter } = &self.selection;
        let is_short = |text: &String| (1..=KEY_BYTES_MAX).contains(&text.len());
        prefix.len() <= KEY_BYTES_MAX
            && delimiter.as_ref().is_none_or(is_short)
            && self.from.len() <= KEY_BYTES_MAX + 1
            && (1..=REGION_LISTED_KEYS_MAX).contains(&self.keys_max)
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
    pub fn answers(&self, ask: &KeysRequest) -> bool {
        let mut next = Place::At(ask.from.clone());
        for pending in &self.keys {
            let is_selected = pending.key.as_str().starts_with(&ask.selection.prefix);
            if !is_selected
                || !pending.at.is_qualified()
                || !next.is_reached_by(pending.key.as_bytes())
            {
                return false;
            }
            next = match pending.leaves_out {
                true if ask.selection.group_of(&pending.key).is_none() => return false,
                true => ask.selection.behind(&pending.key),
                false => Place::At(behind(pending.key.as_bytes())),
            };
        }
        let is_further = |rest: &Vec<u8>| {
            rest.len() <= KEY_BYTES_MAX + 1 && *rest > ask.from && next.is_reached_by(rest)
        };
        let there = self.keys.iter().filter(|pending| pending.object.is_some()).count();
        there <= ask.keys_max as usize
            && self.keys.len() <= (ask.keys_max + REGION_LISTED_KEYS_MAX) as usize
            && self.rest.as_ref().is_none_or(is_further)
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

/// The next step of a walk over rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanStep {
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
    ask: &'a KeysRequest,
    own: RegionId,
    /// Keys with their stamps, and with what lists show of those that are there.
    keys: BTreeMap<ObjectKey, (Stamp, Option<Box<Metax>>)>,
    /// Keys behind which further ones of their group are left out.
    leave_out: BTreeMap<ObjectKey, Vec<u8>>,
    tombstones: u32,
    rest: Option<Vec<u8>>,
}

impl<'a> Answering<'a> {
    /// An empty answer of the region with this number.
    #[must_use]
    pub fn new(ask: &'a KeysRequest, own: RegionId) -> Self {
        let (keys, leave_out) = (BTreeMap::new(), BTreeMap::new());
        Self { ask, own, keys, leave_out, tombstones: 0, rest: None }
    }

    /// Takes the next version.
    pub fn version(&mut self, key: ObjectKey, version: ObjectEntry) -> ScanStep {
        if self.keys.len() == self.ask.keys_max as usize {
            self.rest = Some(key.as_bytes().to_vec());
            return ScanStep::Stop;
        }
        let onward = match self.ask.selection.group_of(&key).map(behind_group) {
            None => ScanStep::Next,
            Some(Place::At(place)) => {
                self.leave_out.insert(key.clone(), place.clone());
                ScanStep::Past(place)
            }
            Some(Place::End) => ScanStep::Stop,
        };
        let at = version.put_at.qualified_by(self.own);
        let metax = Metax { region: at.region, ..without_unlisted(version.row.metax) };
        self.keys.insert(key, (at, Some(Box::new(metax))));
        onward
    }

    /// Takes the next tombstone.
    pub fn tombstone(&mut self, key: ObjectKey, tombstone: &Tombstone) -> ScanStep {
        if self.rest.as_ref().is_some_and(|rest| key.as_bytes() >= &rest[..]) {
            return ScanStep::Stop;
        }
        let before = self.leave_out.range(..&key).next_back();
        if let Some((_, place)) = before
            && key.as_bytes() < &place[..]
        {
            return ScanStep::Past(place.clone());
        }
        if self.tombstones == REGION_LISTED_KEYS_MAX {
            let rest = key.as_bytes().to_vec();
            self.keys.retain(|key, _| key.as_bytes() < &rest[..]);
            self.rest = Some(rest);
            return ScanStep::Stop;
        }
        self.tombstones += 1;
        let at = tombstone.at.qualified_by(self.own);
        // A put leaves the tombstone before it alone.
        if self.keys.get(&key).is_none_or(|(put_at, _)| *put_at < at) {
            self.keys.insert(key, (at, None));
        }
        ScanStep::Next
    }

    /// The answer.
    #[must_use]
    pub fn finish(self) -> KeysAnswer {
        let Self { keys, leave_out, rest, .. } = self;
        let pending = keys.into_iter().map(|(key, (at, object))| {
            let leaves_out = leave_out.contains_key(&key);
            RegionKey { key, at, object, leaves_out }
        });
        KeysAnswer { keys: pending.collect(), rest }
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

impl Item {
    /// The name by which a page goes on behind it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Key(key, _) => key.as_str(),
            Self::Group(group) => group,
        }
    }
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedPage {
    /// Its keys and groups, in order.
    pub items: Vec<Item>,
    /// True if more follow.
    pub is_truncated: bool,
}

impl ListedPage {
    /// True if it answers this.
    #[must_use]
    pub fn answers(&self, ask: &PageRequest) -> bool {
        let names: Vec<&str> = self.items.iter().map(Item::name).collect();
        names.len() <= ask.items_max as usize
            && names.is_sorted_by(|a, b| a < b)
            && names.iter().all(|name| name.starts_with(&ask.selection.prefix))
            && (!self.is_truncated || !names.is_empty())
    }
}

/// A page that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRequest {
    /// The keys of the list.
    pub selection: Selection,
    /// Only keys greater than this, and no group equal to it.
    pub after: Option<String>,
    /// Most keys and groups together, from 1 to [`LIST_PAGE_MAX`].
    pub items_max: u32,
}

impl PageRequest {
    /// True if a proxy may ask it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        (1..=LIST_PAGE_MAX).contains(&(self.items_max as usize)) && self.first(1).is_sound()
    }

    /// The first question to each region.
    fn first(&self, keys_max: u32) -> KeysRequest {
        let selection = self.selection.clone();
        let prefix = selection.prefix.as_bytes().to_vec();
        let from = match &self.after {
            None => prefix,
            Some(after) if selection.is_group(after) && after.len() <= KEY_BYTES_MAX => {
                let place = prefix_end(after.as_bytes());
                place.unwrap_or_else(|| behind(after.as_bytes()))
            }
            Some(after) => {
                // Beyond the longest key, the rest of it orders no key otherwise.
                let after = &after.as_bytes()[..after.len().min(KEY_BYTES_MAX)];
                prefix.max(behind(after))
            }
        };
        KeysRequest { selection, from, keys_max }
    }
}

/// The rest of a group, of which a region has told the first keys.
#[derive(Debug, Clone)]
struct LeftOut {
    group: String,
    /// The first place that it has not told of.
    from: Vec<u8>,
    /// The place behind the group.
    to: Vec<u8>,
}

/// The keys that one region has told and that are not listed yet.
struct PendingKeys {
    region: RegionId,
    keys: VecDeque<RegionKey>,
    /// The place behind these, if there is more.
    rest: Option<Vec<u8>>,
    /// Keys that it left out behind the last one that was passed.
    left_out: Option<LeftOut>,
    /// True once it was asked for more of a group: the first keys of many groups may be deleted elsewhere.
    left_out_before: bool,
}

impl PendingKeys {
    /// Skips keys before a place. Returns the request to send, if the region's next key is not known yet.
    fn pass(&mut self, selection: &Selection, at: &[u8], keys_max: u32) -> Option<KeysRequest> {
        while let Some(pending) = self.keys.pop_front_if(|pending| pending.key.as_bytes() < at) {
            self.left_out = match (selection.group_of(&pending.key), selection.behind(&pending.key))
            {
                (Some(group), Place::At(to)) if pending.leaves_out => {
                    Some(LeftOut { group: group.to_owned(), from: at.to_vec(), to })
                }
                _ => None,
            };
        }
        self.left_out.take_if(|left_out| at >= &left_out.to[..]);
        if let Some(LeftOut { group, from, .. }) = &self.left_out {
            // From the second time on nothing is left out: rounds double over groups, too.
            let prefix = if self.left_out_before { &selection.prefix } else { group };
            let selection = Selection { prefix: prefix.clone(), delimiter: None };
            return Some(KeysRequest { selection, from: at.max(from).to_vec(), keys_max });
        }
        let rest = self.rest.as_ref().filter(|_| self.keys.is_empty())?;
        Some(KeysRequest { selection: selection.clone(), from: at.max(rest).to_vec(), keys_max })
    }

    /// Takes more keys of a group, all of them before those that it has sent.
    fn take_left_out(&mut self, answer: KeysAnswer) {
        self.left_out_before = true;
        let KeysAnswer { mut keys, rest } = answer;
        match (rest, keys.last_mut(), &mut self.left_out) {
            (Some(_), Some(last), _) => last.leaves_out = true,
            (Some(rest), None, Some(left_out)) => {
                left_out.from = rest;
                return;
            }
            (_, _, _) => {}
        }
        self.left_out = None;
        keys.into_iter().rev().for_each(|pending| self.keys.push_front(pending));
    }
}

/// Merges a page of what all regions have.
pub struct Merging {
    ask: PageRequest,
    at: Place,
    pending: Vec<PendingKeys>,
    page: ListedPage,
    /// Rounds of questions so far.
    rounds: u32,
}

impl Merging {
    /// A page of these regions' keys.
    ///
    /// # Panics
    /// If the request is none that [is sound](PageRequest::is_sound).
    #[must_use]
    pub fn new(ask: PageRequest, regions: impl Iterator<Item = RegionId>) -> Self {
        assert!(ask.is_sound(), "a page is asked for that may be");
        let from = ask.first(1).from;
        let unrequested = |region| PendingKeys {
            region,
            keys: VecDeque::new(),
            rest: Some(from.clone()),
            left_out: None,
            left_out_before: false,
        };
        let pending = regions.map(unrequested).collect();
        let page = ListedPage { items: Vec::new(), is_truncated: false };
        Self { ask, at: Place::At(from), pending, page, rounds: 0 }
    }

    /// Lists what is known. Returns the next questions to regions; the page is complete if there is none.
    #[must_use]
    pub fn step(&mut self) -> Vec<(RegionId, KeysRequest)> {
        while let Place::At(at) = &self.at {
            let (selection, keys_max) = (&self.ask.selection, self.keys_max());
            let ask = |pending: &mut PendingKeys| {
                Some((pending.region, pending.pass(selection, at, keys_max)?))
            };
            let asks: Vec<_> = self.pending.iter_mut().filter_map(ask).collect();
            if !asks.is_empty() {
                self.rounds += 1;
                return asks;
            }
            let firsts = self.pending.iter().filter_map(|pending| pending.keys.front());
            let Some(key) = firsts.clone().map(|pending| &pending.key).min().cloned() else {
                break;
            };
            let newest =
                firsts.filter(|pending| pending.key == key).max_by_key(|pending| pending.at);
            let object = newest.and_then(|pending| pending.object.clone());
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

    /// As many keys as the page may still have, and one that tells whether it is the last; more in each round, as keys may be
    /// deleted elsewhere.
    fn keys_max(&self) -> u32 {
        let room = self.ask.items_max - self.page.items.len() as u32 + 1;
        let least = REGION_LISTED_KEYS_MIN.saturating_mul(1 << self.rounds.min(16));
        room.max(least).min(REGION_LISTED_KEYS_MAX)
    }

    /// Takes a region's answer to the question that [`Merging::step`] returned last.
    ///
    /// # Panics
    /// If the answer does not [answer](KeysAnswer::answers) it, or there is no such region.
    pub fn take(&mut self, region: RegionId, ask: &KeysRequest, answer: KeysAnswer) {
        assert!(answer.answers(ask), "the link refuses another answer");
        let pending = self.pending.iter_mut().find(|pending| pending.region == region);
        let pending = pending.expect("only regions of the list are asked");
        let is_of_group = |left_out: &LeftOut| left_out.group == ask.selection.prefix;
        if pending.left_out.as_ref().is_some_and(is_of_group) {
            return pending.take_left_out(answer);
        }
        (pending.keys, pending.rest, pending.left_out) = (answer.keys.into(), answer.rest, None);
    }

    /// The page, once there are no more questions.
    #[must_use]
    pub fn finish(self) -> ListedPage {
        self.page
    }

    /// The page with what is listed so far, as a short one; `None` if nothing is: no page can go on from there.
    #[must_use]
    pub fn cut(mut self) -> Option<ListedPage> {
        self.page.is_truncated = true;
        (!self.page.items.is_empty()).then_some(self.page)
    }
}

#[cfg(test)]
#[path = "listing/tests.rs"]
mod tests;
