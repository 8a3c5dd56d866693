//! Requests of the gateway to the primaries: for journals, and for keys with their rows.
//!
//! # Invariants
//!
//! 1. The gateway asks a PG's primary by the map that it knows. A former primary says that it is none, and the gateway
//!    asks another, or leaves the PG out.
//! 2. At each server one ask per [`JOURNALS_MAX`] PGs waits for news, however many other regions wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use larder_link::{Setting, SharingSetting};
use larder_objects::ObjectError;
use larder_protocol::manager::state::{Command, Refusal, Topology};
use larder_protocol::region::{KeyRows, Token};
use larder_types::codec::decode;
use larder_types::{
    BucketId, BucketName, BucketRecord, Home, MapVersion, ObjectKey, PgId, ServerId, Sharing, View,
};
use tokio::time::{Instant, sleep, timeout};

use super::super::regional::{JournalRequest, RegionAccess, kept_of};
use super::super::{RoleAccess, unavailable};
use super::RemoteRoles;
use super::retry::pause;
use super::route::{newer, primary};
use crate::limits::{
    JOURNAL_ANSWER_MS, JOURNAL_PAUSE_MS, JOURNAL_RETRY_MS, JOURNALS_MAX, KEPT_KEYS_MAX,
    MAP_LAG_MAX, REGION_UPDATE_MS,
};
use crate::notifier::Notifier;
use crate::wire::{JournalReply, JournalShown, KeyReply, MetaCall, MetaReply, Position};

/// PGs that one server leads, each in its view, at most as many as one request may have.
type Led = (ServerId, Vec<(PgId, View)>);

/// Sorts PGs by their primaries, and leaves out those without one.
fn by_leader(map: &Topology, pgs: impl Iterator<Item = PgId>, count_max: usize) -> Vec<Led> {
    let mut led: BTreeMap<ServerId, Vec<(PgId, View)>> = BTreeMap::new();
    for pg in pgs {
        if let Some(at) = primary(map, pg) {
            led.entry(at.server).or_default().push((pg, at.view));
        }
    }
    let parts = |(server, pgs): (ServerId, Vec<(PgId, View)>)| {
        let parts: Vec<Led> = pgs.chunks(count_max).map(|part| (server, part.to_vec())).collect();
        parts
    };
    led.into_iter().flat_map(parts).collect()
}

impl RemoteRoles {
    /// Asks a server; `None` if it does not answer.
    async fn call_all(
        &self,
        map: &Topology,
        server: ServerId,
        call: &MetaCall,
        deadline: Instant,
    ) -> Option<(MetaReply, Bytes)> {
        let peer = self.primaries.peer(map, server)?;
        match peer.call(call, Bytes::new(), deadline).await {
            Ok(answered) => Some(answered),
            Err(error) => {
                tracing::debug!(%server, %error, "a primary did not respond");
                None
            }
        }
    }

    /// Asks one server for journals of PGs that it leads.
    async fn journals_of(
        &self,
        map: &Topology,
        (server, pgs): &Led,
        (tokens, ids_max, settled): (&BTreeMap<PgId, Token>, usize, bool),
        wait: Duration,
    ) -> Vec<(PgId, JournalReply)> {
        let token = |pg| tokens.get(&pg).copied().unwrap_or_default();
        let call = MetaCall::Journals {
            pgs: pgs.iter().map(|&(pg, view)| (pg, view, token(pg))).collect(),
            map: map.version,
            ids_max: u32::try_from(ids_max).unwrap_or(u32::MAX),
            settled,
            wait_ms: wait.as_millis() as u32,
        };
        let deadline = Instant::now() + wait + Duration::from_millis(JOURNAL_ANSWER_MS);
        let Some((MetaReply::Journals, payload)) =
            self.call_all(map, *server, &call, deadline).await
        else {
            return Vec::new();
        };
        match decode::<Vec<(PgId, JournalReply)>>("journals", &payload) {
            Ok(now) => now,
            Err(error) => {
                tracing::error!(%server, %error, "journals cannot be used");
                Vec::new()
            }
        }
    }

    /// Asks one server for news of its PGs behind these tokens; returns the tokens moved to what it showed.
    async fn follow<'a>(
        &self,
        led: &'a Led,
        mut tokens: BTreeMap<PgId, Token>,
        notifier: &Notifier,
    ) -> (&'a Led, BTreeMap<PgId, Token>) {
        let map = self.managers.map();
        let (wait, begun) = (Duration::from_millis(REGION_UPDATE_MS), Instant::now());
        let now = self.journals_of(&map, led, (&tokens, 0, false), wait).await;
        let (mut answered, mut is_news) = (0, false);
        for (pg, now) in now {
            let JournalReply::Shows(JournalShown { applied, batch, .. }) = now else { continue };
            let Some(token) = tokens.get_mut(&pg) else { continue };
            answered += 1;
            is_news |= batch.map_or(true, |batch| batch.left.0 > 0);
            token.through = applied;
        }
        if is_news {
            notifier.notify();
        }
        // A server that responds without changes and without waiting is not asked again at once.
        let has_waited = begun.elapsed() >= wait / 2;
        let is_right = answered == led.1.len() && (is_news || has_waited);
        let pause_ms = if is_right { JOURNAL_PAUSE_MS } else { JOURNAL_RETRY_MS };
        sleep(Duration::from_millis(pause_ms)).await;
        (led, tokens)
    }

    /// Reads the rows of keys whose primaries answer now; other keys stay in `left`.
    async fn kept_now(
        &self,
        map: &Topology,
        keys: &[(BucketId, ObjectKey)],
        left: &mut BTreeSet<usize>,
        (kept, deadline): (&mut [Option<KeyRows>], Instant),
    ) {
        let mut of_server: BTreeMap<ServerId, Vec<(usize, PgId, View)>> = BTreeMap::new();
        for &index in left.iter() {
            let (bucket, key) = &keys[index];
            let pg = self.pg_of(*bucket, key);
            if let Some(at) = primary(map, pg) {
                of_server.entry(at.server).or_default().push((index, pg, at.view));
            }
        }
        let parts = of_server
            .iter()
            .flat_map(|(server, asked)| asked.chunks(KEPT_KEYS_MAX).map(|part| (*server, part)));
        let asking = parts.map(async |(server, part)| {
            let pgs: BTreeSet<(PgId, View)> =
                part.iter().map(|&(_, pg, view)| (pg, view)).collect();
            let asked = part.iter().map(|(index, ..)| keys[*index].clone());
            let call = MetaCall::Kept { pgs: pgs.into_iter().collect(), keys: asked.collect() };
            let answered = self.call_all(map, server, &call, deadline).await;
            (part, answered)
        });
        for (part, answered) in join_all(asking).await {
            let Some((MetaReply::Kept, payload)) = answered else { continue };
            let now = decode::<Vec<KeyReply>>("kept keys", &payload).unwrap_or_else(|error| {
                tracing::error!(%error, "a response about keys cannot be used");
                Vec::new()
            });
            for ((index, ..), now) in part.iter().zip(now) {
                kept[*index] = match now {
                    KeyReply::NotNow => continue,
                    KeyReply::Unknown => None,
                    KeyReply::Rows(version, tombstone) => {
                        kept_of(&keys[*index].1, version.as_deref(), tombstone.as_deref())
                    }
                };
                left.remove(index);
            }
        }
    }
}

impl RegionAccess for RemoteRoles {
    fn map_version(&self) -> u64 {
        self.managers.map().version.0
    }

    fn pg_count(&self) -> u32 {
        self.managers.map().pgs.len() as u32
    }

    async fn kept(
        &self,
        keys: &[(BucketId, ObjectKey)],
        deadline: Instant,
    ) -> Vec<Option<KeyRows>> {
        let mut kept = vec![None; keys.len()];
        let mut left: BTreeSet<usize> = (0..keys.len()).collect();
        let mut tries = 0;
        while !left.is_empty() {
            let (map, before) = (self.managers.map(), left.len());
            self.kept_now(&map, keys, &mut left, (&mut kept, deadline)).await;
            if left.is_empty() || Instant::now() >= deadline {
                break;
            }
            if left.len() == before {
                tries += 1;
                let until = deadline.saturating_duration_since(Instant::now());
                newer(&*self.managers, map.version, pause(tries).min(until)).await;
            }
        }
        kept
    }

    /// Does nothing: a primary that is asked for a key lets it show first.
    async fn shows(&self, _: BucketId, _: &ObjectKey) -> Result<(), ObjectError> {
        Ok(())
    }

    async fn journals(
        &self,
        ask: &JournalRequest,
    ) -> Result<Vec<(PgId, JournalShown)>, ObjectError> {
        let map = self.managers.map();
        let tokens: BTreeMap<PgId, Token> = ask.pgs.iter().copied().collect();
        let led = by_leader(&map, tokens.keys().copied(), JOURNALS_MAX);
        let of = (&tokens, ask.ids_max, ask.settled);
        let asking = led.iter().map(|led| self.journals_of(&map, led, of, Duration::ZERO));
        let now = join_all(asking).await.into_iter().flatten();
        let mut shown: BTreeMap<PgId, JournalShown> = now
            .filter_map(|(pg, now)| match now {
                JournalReply::Shows(shown) => Some((pg, shown)),
                JournalReply::NotNow => None,
            })
            .collect();
        // An outcome in a bucket that the gateway does not know yet could not be told by the bucket's name.
        let needed = shown.values().map(|shown| shown.map).max().unwrap_or_default();
        let mut versions = self.managers.versions();
        let known = timeout(MAP_LAG_MAX, versions.reaches(MapVersion(needed))).await;
        if !matches!(known, Ok(Ok(()))) {
            shown.clear();
        }
        // In the order in which they were asked for: those that lag come first.
        Ok(ask.pgs.iter().filter_map(|(pg, _)| Some((*pg, shown.remove(pg)?))).collect())
    }

    async fn keep_regions(&self, known: u32, list: Vec<u8>) -> Result<(), ObjectError> {
        match self.managers.propose(Command::KeepRegions(self.gateway, known, list)).await {
            // A list that knows more has all that this one does: a gateway's list only grows.
            Ok(Ok(_) | Err(Refusal::OlderList)) => Ok(()),
            Ok(Err(refusal)) => Err(unavailable(&refusal.to_string())),
            Err(error) => Err(unavailable(&error.to_string())),
        }
    }

    /// The first id is 1, and the map has the last one.
    fn was_given(&self, id: BucketId) -> bool {
        id <= self.managers.map().next.bucket
    }

    async fn delete_closed(&self, marked: BucketRecord) -> Result<(), ObjectError> {
        super::buckets::delete_closed(&*self.managers, self.gateway, marked).await
    }

    async fn set_home(
        &self,
        bucket: &BucketName,
        expected: Option<Home>,
        next: Home,
    ) -> Result<bool, ObjectError> {
        super::buckets::set_home(&*self.managers, self.gateway, bucket, (expected, next)).await
    }

    async fn adopt_bucket(&self, bucket: &BucketName, home: Home) -> Result<(), ObjectError> {
        super::buckets::adopt(&*self.managers, self.gateway, bucket, home).await
    }

    async fn take_settings(&self, settings: Vec<Setting>) -> Vec<Setting> {
        settings
    }

    async fn take_sharing(&self, settings: Vec<SharingSetting>) -> Vec<SharingSetting> {
        settings
    }

    async fn share_bucket(&self, was: &BucketRecord, next: Sharing) -> Result<(), ObjectError> {
        super::buckets::share(&*self.managers, self.gateway, was, next).await
    }

    fn led_by(&self, pg: PgId) -> Option<(ServerId, View)> {
        primary(&self.managers.map(), pg).map(|at| (at.server, at.view))
    }

    async fn clients_elsewhere(&self) -> u32 {
        self.clients_of_others().await
    }

    fn waits_for_regions(&self) -> bool {
        self.managers.map().buckets.values().any(|bucket| bucket.regions > 1)
    }

    async fn map_passes(&self, version: u64) {
        // No later map comes once the managers are gone.
        if self.managers.versions().reaches(MapVersion(version + 1)).await.is_err() {
            std::future::pending().await
        }
    }

    async fn tell_positions(&self, server: ServerId, positions: &[(PgId, Vec<Position>)]) -> bool {
        let deadline = Instant::now() + Duration::from_millis(JOURNAL_ANSWER_MS);
        let call = MetaCall::TellPositions(positions.to_vec());
        let answer = self.call_all(&self.managers.map(), server, &call, deadline).await;
        matches!(answer, Some((MetaReply::Positions(_), _)))
    }

    async fn watch_journals(&self, notifier: &Notifier) {
        // The token up to which each journal was seen, across primaries.
        let mut seen: BTreeMap<PgId, Token> = BTreeMap::new();
        loop {
            let map = self.managers.map();
            let pgs = || (0..map.pgs.len() as u32).map(PgId);
            let all_led = by_leader(&map, pgs(), JOURNALS_MAX);
            let follow = |led| {
                let (_, pgs): &Led = led;
                let of_led =
                    pgs.iter().map(|(pg, _)| (*pg, seen.get(pg).copied().unwrap_or_default()));
                self.follow(led, of_led.collect(), notifier)
            };
            let mut following: FuturesUnordered<_> = all_led.iter().map(follow).collect();
            let mut versions = self.managers.versions();
            while by_leader(&self.managers.map(), pgs(), JOURNALS_MAX) == all_led {
                tokio::select! {
                    biased;
                    Some((led, tokens)) = following.next() => {
                        seen.extend(tokens.iter().map(|(pg, token)| (*pg, *token)));
                        following.push(self.follow(led, tokens, notifier));
                    }
                    changed = versions.changed() => if changed.is_err() {
                        // No map comes any more.
                        return std::future::pending().await;
                    }
                }
            }
        }
    }
}
