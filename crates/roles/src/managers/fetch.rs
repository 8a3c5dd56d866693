//! Fetches a later map from a manager: what changed since the one that is here, or the whole, in pages if it is long.
//!
//! # Invariants
//!
//! 1. A map that was put together has the sum that its manager named, and contradicts itself nowhere.
//! 2. Changes that do not lead to such a map are given up, and the whole map is fetched in their place.
//! 3. A map is the latest that its manager had at its last answer, also one that came in pages while it changed.
//! 4. A page that was lost, or that the manager has no room for, is asked for again: nothing else is fetched twice for it. Nor is
//!    another manager asked beside one whose pages come.
//! 5. One fetch of a client gathers pages at a time, unless pages come to it no more, or its manager is behind.
//! 6. A manager of an earlier release is asked as before: it knows neither, and answers with the whole map at once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_net::{CallError, Rejected, Side, Unknown};
use larder_protocol::limits::MAP_BYTES_MAX;
use larder_protocol::manager::state::{
    BadChanges, MapChanges, MapGathering, MapPage, MapVersion, Topology,
};
use larder_types::ServerId;
use tokio::time::{Instant, sleep};

use super::fetch_state::Behind;
pub(super) use super::fetch_state::{FetchState, Progress};
use super::{Contacts, VersionWatch};
use crate::blocking;
use crate::limits::{
    MANAGERS_PAUSE_MS_MAX, MANAGERS_PAUSE_MS_MIN, MAP_ANSWER_MS, MAP_FETCHES_MAX, MAP_PAGE_TIMEOUT,
    MAP_WAIT_MS,
};
use crate::wire::{ManagerCall, ManagerReply};

/// A map with the sum of its records.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    pub(super) map: Arc<Topology>,
    pub(super) sum: u64,
}

impl Held {
    fn of((map, sum): (Topology, u64)) -> Self {
        Self { map: Arc::new(map), sum }
    }
}

/// An answer of a manager.
#[derive(Debug)]
pub(super) enum FetchReply {
    /// A later map.
    Later(Held),
    /// There is none.
    Nothing,
    /// A map of which pages were to come, as another is shown here meanwhile: from that one the changes are a shorter way.
    Overtaken,
}

/// A manager that is asked by one that has a map.
pub(super) struct Fetch<'a> {
    pub(super) contacts: &'a Contacts,
    pub(super) held: &'a Held,
    /// Version of the map that is shown, which may be later than the one held by now.
    pub(super) shown: VersionWatch,
    pub(super) manager: ServerId,
    pub(super) progress: &'a Arc<Progress>,
    pub(super) fetches: &'a FetchState,
}

impl Fetch<'_> {
    /// Waits for a later map for as long as managers let questions wait.
    pub(super) async fn later(&self) -> Result<FetchReply, String> {
        let known = self.held.map.version;
        let timeline = self.held.map.timeline_at(known).map(|timeline| timeline.id);
        match self.call(&ManagerCall::MapSince { known, timeline }).await {
            Ok((ManagerReply::MapChanges, payload)) => match self.changed(&payload) {
                Ok(held) => Ok(FetchReply::Later(held)),
                Err(error) => {
                    let manager = self.manager;
                    tracing::warn!(%manager, %error, "changes of the map cannot be applied: fetching it whole");
                    self.whole().await
                }
            },
            Ok((ManagerReply::Map, payload)) => decoded(&payload),
            Ok((ManagerReply::MapPage, first)) => self.pages(first).await,
            Ok((ManagerReply::Unchanged, _)) => Ok(FetchReply::Nothing),
            Ok((ManagerReply::NoQuorum, _)) => {
                self.fetches.has_no_quorum();
                Err("it has no quorum".to_owned())
            }
            Ok((other, _)) => Err(no_answer(&other)),
            Err(CallError::Rejected(Rejected::NotUnderstood)) => self.at_once().await,
            Err(error) => {
                if matches!(error, CallError::Busy(Side::There)) {
                    self.fetches.is_busy();
                }
                Err(error.to_string())
            }
        }
    }

    async fn call(&self, call: &ManagerCall) -> Result<(ManagerReply, Bytes), CallError> {
        let deadline = Instant::now() + Duration::from_millis(MAP_WAIT_MS + MAP_ANSWER_MS);
        self.contacts.call(&self.held.map, self.manager, call, deadline).await
    }

    fn changed(&self, payload: &[u8]) -> Result<Held, BadChanges> {
        let changes = MapChanges::decode(payload)?;
        self.held.map.with_changes(self.held.sum, changes).map(Held::of)
    }

    async fn whole(&self) -> Result<FetchReply, String> {
        match self.call(&ManagerCall::MapSince { known: MapVersion(0), timeline: None }).await {
            Ok((ManagerReply::Map, payload)) => decoded(&payload),
            Ok((ManagerReply::MapPage, first)) => self.pages(first).await,
            Ok((other, _)) => Err(no_answer(&other)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The map that begins with this page, if the turn to gather one is this fetch's.
    async fn pages(&self, first: Bytes) -> Result<FetchReply, String> {
        let gathered = self.gather(first).await;
        self.fetches.leave(self.progress);
        gathered
    }

    /// The map that begins with this page, with what changes while the others come.
    async fn gather(&self, mut first: Bytes) -> Result<FetchReply, String> {
        for _ in 0..MAP_FETCHES_MAX {
            let Some(gathered) = self.gathered(&first).await? else {
                return Ok(FetchReply::Overtaken);
            };
            let changes = match gathered.lacks() {
                None => None,
                Some((known, timeline)) => {
                    match self.part(&ManagerCall::MapSince { known, timeline }).await? {
                        (ManagerReply::MapChanges, payload) => Some(payload),
                        (ManagerReply::Map, payload) => return decoded(&payload),
                        (ManagerReply::MapPage, anew) => {
                            tracing::debug!(manager = %self.manager, "restarting the fetch of a long map: too much has changed");
                            first = anew;
                            continue;
                        }
                        (other, _) => return Err(no_answer(&other)),
                    }
                }
            };
            // All records are looked through: not on a thread that carries messages.
            let ended = blocking::run(move || {
                let changes = changes.map(|payload| MapChanges::decode(&payload)).transpose()?;
                gathered.end(changes.as_ref())
            });
            let ended = ended.await.map_err(|ended| ended.to_string())?;
            return ended.map(Held::of).map(FetchReply::Later).map_err(|error| error.to_string());
        }
        Err("the map changes too much while it is fetched".to_owned())
    }

    /// All pages; `None` if another manager's map is shown meanwhile, or another fetch gathers one.
    async fn gathered(&self, first: &[u8]) -> Result<Option<MapGathering>, String> {
        let read = |page: &[u8]| MapPage::decode(page).map_err(|error| error.to_string());
        let mut gathering = MapGathering::begin(read(first)?).map_err(|error| error.to_string())?;
        let (mut bytes, mut behind) = (first.len() as u64, Behind::default());
        loop {
            if !self.fetches.page_received(self.progress)
                || self.shown.latest() > self.held.map.version
            {
                return Ok(None);
            }
            let Some(from) = gathering.next() else { return Ok(Some(gathering)) };
            let reported = *self.fetches.newest().borrow();
            let page = match self.part(&ManagerCall::MapPage(from.clone())).await? {
                (ManagerReply::MapPage, page) => page,
                (other, _) => return Err(no_answer(&other)),
            };
            bytes += page.len() as u64;
            if bytes > MAP_BYTES_MAX {
                return Err(format!("a map of more than {MAP_BYTES_MAX} bytes is too long"));
            }
            gathering.take(read(&page)?).map_err(|error| error.to_string())?;
            if behind.page(gathering.version() < reported, Instant::now()) {
                return Err(format!("its map is behind: others tell of {reported}"));
            }
        }
    }

    /// Asks for a part of a map of which others are here, until it comes.
    async fn part(&self, call: &ManagerCall) -> Result<(ManagerReply, Bytes), String> {
        let until = Instant::now() + MAP_PAGE_TIMEOUT;
        let mut pause = Duration::from_millis(MANAGERS_PAUSE_MS_MIN);
        loop {
            let error = match self.call(call).await {
                Ok(reported) => return Ok(reported),
                Err(error) => error,
            };
            let is_lost = match &error {
                CallError::Busy(side) => {
                    if *side == Side::There {
                        self.progress.is_busy();
                        self.fetches.is_busy();
                    }
                    true
                }
                CallError::Unknown(Unknown::Late | Unknown::Broken(_)) => true,
                _ => false,
            };
            if !is_lost || Instant::now() + pause > until {
                return Err(error.to_string());
            }
            tracing::debug!(manager = %self.manager, %error, "requesting a part of the map again");
            sleep(pause).await;
            pause = (2 * pause).min(Duration::from_millis(MANAGERS_PAUSE_MS_MAX));
        }
    }

    /// The whole map in one answer.
    async fn at_once(&self) -> Result<FetchReply, String> {
        match self.call(&ManagerCall::Map(self.held.map.version)).await {
            Ok((ManagerReply::Map, payload)) => decoded(&payload),
            Ok((ManagerReply::Unchanged, _)) => Ok(FetchReply::Nothing),
            Ok((other, _)) => Err(no_answer(&other)),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn no_answer(reply: &ManagerReply) -> String {
    format!("{reply:?} is no answer")
}

fn decoded(bytes: &[u8]) -> Result<FetchReply, String> {
    let map = Topology::decode(bytes).map_err(|error| error.to_string())?;
    match map.contradiction() {
        Some(why) => Err(format!("its map contradicts itself: {why}")),
        None => {
            let sum = map.records_sum();
            Ok(FetchReply::Later(Held::of((map, sum))))
        }
    }
}
