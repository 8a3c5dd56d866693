//! The thread that steps the pulling state machine, and the tasks that carry out its effects.
//!
//! The driver makes a new machine when regions come, go or are paused, and when it first reaches one and learns its
//! number of PGs. The new machine begins with the noted tokens. Answers on their way to the former one have its number,
//! and are dropped. Its timers go by the steady clock, as those of the machine do: an operator may set the other one.

mod clocks;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use larder_link::{IdsQuery, Link, LinkError, List, Members, Walk};
use larder_protocol::Planted;
use larder_protocol::clock_offsets::ClockBound;
use larder_protocol::limits::{REGION_NOTES_MAX, REGION_PART_BYTES};
use larder_protocol::placement::pg_of;
use larder_protocol::region::journal::Batch;
use larder_protocol::region::pull::{Bounds, Config, Effect, Event, Source};
use larder_protocol::region::{Entry, Id, Name, Pull, Token};
use larder_types::{BucketId, OpSeq, Passed, PgId, RegionId};
use tokio::sync::watch;
use tokio::time::{Instant, interval};

use self::clocks::Clocks;
use super::Shared;
use super::TOKENS_PG;
use super::inbox::{Candidate, Inbox, Message, Messages};
use super::local_entries::LookupRows;
use super::names::Translated;
use super::parts;
use super::taking::{self, FetchResult};
use crate::clock::now;
use crate::limits::{
    REGION_BYTES_PER_S, REGION_CLIENTS_MS, REGION_COMING_MS, REGION_NOTE_MS,
    REGION_REQUESTS_PER_MACHINE, REGION_STATUS_MS, REGION_TICK_MS,
};
use crate::proxy::RegionAccess;

/// Tells the thread when it is to pull from other regions than before, or at other rates. The list is that of before the thread
/// began. Does not end while the site lives.
pub(super) async fn watch_members(mut members: watch::Receiver<Arc<Members>>, inbox: Inbox) {
    let mut before = members.borrow_and_update().clone();
    while members.changed().await.is_ok() {
        let now = members.borrow_and_update().clone();
        // A new machine asks for what is on its way once more.
        if !now.pulls_as(&before) {
            inbox.send(Message::Members);
        }
        before = now;
    }
}

/// See the module's head.
pub(super) struct Puller<R: RegionAccess> {
    shared: Arc<Shared<R>>,
    inbox: Inbox,
    pull: Option<Pull>,
    /// Number of the last machine made.
    number: u64,
    pg_counts: BTreeMap<RegionId, u32>,
    clocks: Clocks,
    /// Tokens that are to be noted.
    tokens: BTreeMap<Source, Token>,
    is_noting: bool,
    /// The source to be noted next.
    next_note: Source,
    noted_ms: u64,
    shown_ms: u64,
    clients_ms: u64,
    out: Vec<Effect>,
}

impl<R: RegionAccess> Puller<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, inbox: Inbox) -> Self {
        Self {
            shared,
            inbox,
            pull: None,
            number: 0,
            pg_counts: BTreeMap::new(),
            clocks: Clocks::default(),
            tokens: BTreeMap::new(),
            is_noting: false,
            next_note: Source { region: RegionId::OWN, pg: PgId(0) },
            noted_ms: 0,
            shown_ms: 0,
            clients_ms: 0,
            out: Vec::new(),
        }
    }

    pub(super) fn run(mut self, messages: &Messages) {
        let mut tick_ms = 0;
        loop {
            let late = Instant::now() + Duration::from_millis(REGION_TICK_MS);
            match messages.take_until(late) {
                Some(Message::Stop) => {
                    // Chunks are freed by tasks.
                    let _within = self.shared.runtime.enter();
                    let none = ClockBound::default();
                    self.shared.clock().set_bounds(none, none);
                    return self.shared.partials.clear();
                }
                Some(message) => self.take(message),
                None => {}
            }
            let now_ms = now().steady_ms;
            if now_ms.saturating_sub(tick_ms) >= REGION_TICK_MS {
                tick_ms = now_ms;
                self.tick(tick_ms);
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Event(number, event) if number == self.number => {
                self.step(event, &BTreeSet::new());
            }
            Message::Fetched(number, FetchResult { event, beaten }) if number == self.number => {
                self.step(event, &beaten);
            }
            Message::Event(..) | Message::Fetched(..) => {}
            Message::Members => self.pull = None,
            Message::Hello(region, hello) => self.hear_hello(region, hello),
            Message::VoidAnswers(tells) => {
                self.step(Event::VoidAnswers, &BTreeSet::new());
                // The asker may be gone.
                let _gone = tells.send(());
            }
            Message::MayFree(mut candidates, asks) => {
                // Without a machine it is unknown what is wanted.
                let removable = |it: &Candidate| {
                    self.pull
                        .as_ref()
                        .is_some_and(|pull| pull.may_free(&it.name, it.origin, it.is_former))
                };
                candidates.retain(removable);
                // The asking task may be gone.
                let _gone = asks.send(candidates);
            }
            Message::Noted(tokens, is_done) => {
                self.is_noting = false;
                for (source, token) in tokens {
                    if is_done && self.tokens.get(&source) == Some(&token) {
                        self.tokens.remove(&source);
                    }
                }
            }
            Message::Stop => unreachable!("the thread has ended"),
        }
    }

    fn tick(&mut self, now_ms: u64) {
        self.greet();
        self.forget_former();
        for region in self.shared.names.take_missed() {
            let shared = self.shared.clone();
            self.shared.runtime.spawn(async move { shared.request_names(region).await });
        }
        if self.pull.is_none() {
            self.begin();
        }
        self.step(Event::Tick, &BTreeSet::new());
        self.yield_to_clients(now_ms);
        self.note_tokens(now_ms);
        if now_ms.saturating_sub(self.shown_ms) >= REGION_STATUS_MS {
            self.shown_ms = now_ms;
            let buckets = self.shared.shown.buckets();
            self.forget_wants_of(buckets.local());
            self.shared.names.forget_deleted(&buckets);
            if let Some(pull) = &self.pull {
                let _within = self.shared.runtime.enter();
                self.shared.partials.forget(|name| pull.is_aware_of(name));
            }
            self.report_lag();
        }
    }

    /// Ends the machine if it wants entries of a bucket that was deleted here and made again: another machine will want them for the
    /// new one. What it wants of a bucket that is gone in all regions it will find to be gone.
    fn forget_former(&mut self) {
        let former = self.shared.names.former();
        self.forget_wants_of(&former);
    }

    /// Ends the machine if it wants entries of these buckets. Of one that this region alone has by now no other machine wants any.
    fn forget_wants_of(&mut self, of: &BTreeSet<BucketId>) {
        let wants = |pull: &Pull| !of.is_empty() && pull.wants_of(of);
        self.pull = self.pull.take().filter(|pull| !wants(pull));
    }

    /// Makes a machine from the noted tokens.
    fn begin(&mut self) {
        let noted = match self.shared.unless_stopped(self.shared.shown.passed()) {
            Some(Ok(noted)) => noted,
            Some(Err(error)) => {
                let why = format!("it cannot be read how far it is here: {error}");
                let members = self.shared.region_endpoint.members().borrow().clone();
                return members
                    .live()
                    .for_each(|peer| self.shared.watch.discard_lag(peer.number, &why));
            }
            None => return,
        };
        let token =
            |it: Passed| (Source { region: it.region, pg: it.pg }, Token { through: it.through });
        let mut tokens: BTreeMap<_, _> = noted.into_iter().map(token).collect();
        // Changes up to tokens yet to be noted are durable here, so these tokens hold as well.
        for (source, token) in &self.tokens {
            let known = tokens.entry(*source).or_default();
            *known = (*known).max(*token);
        }
        let members = self.shared.region_endpoint.members().borrow().clone();
        let mut bytes_per_s = BTreeMap::new();
        for peer in members.live().filter(|peer| !peer.paused) {
            let Some(pg_count) = self.pg_counts.get(&peer.number) else { continue };
            let rate = members.rate(peer.number).map(|mib| u64::from(mib) << 20);
            bytes_per_s.insert(peer.number, rate.unwrap_or(REGION_BYTES_PER_S));
            for pg in (0..*pg_count).map(PgId) {
                tokens.entry(Source { region: peer.number, pg }).or_default();
            }
        }
        self.number += 1;
        let config = Config {
            own: self.shared.shown.own(),
            bytes_per_s,
            part_bytes: REGION_PART_BYTES,
            bounds: Bounds::default(),
            first_request: self.number * REGION_REQUESTS_PER_MACHINE,
            planted: Planted::default(),
        };
        self.pull = Some(Pull::new(self.shared.clock().judging_now(), config, tokens));
    }

    /// Steps the machine. Of entries to merge, the `beaten` ones are compared with what is here.
    fn step(&mut self, event: Event, beaten: &BTreeSet<Name>) {
        let (Some(pull), now) = (&mut self.pull, self.shared.clock().judging_now()) else {
            return;
        };
        let Some(here) = LookupRows::of(&self.shared, &pull.lookups(now, &event)) else { return };
        pull.step(now, event, &here, &mut self.out);
        // Entries merged at once may lead to more.
        while let Some(merged) = self.run_effects() {
            let Some(pull) = &mut self.pull else { return };
            let names: Vec<Name> = merged.iter().map(|(name, _)| name.clone()).collect();
            let mut event = Event::Merged { names };
            let mut lookups = pull.lookups(now, &event);
            let in_doubt = || merged.iter().filter(|(name, _)| beaten.contains(name));
            lookups.names.extend(in_doubt().map(|(name, _)| name.clone()));
            let Some(here) = LookupRows::of(&self.shared, &lookups) else { return };
            for (name, entry) in in_doubt() {
                let Some(why) = here.contradiction(name, entry) else { continue };
                if let Event::Merged { names } = &mut event {
                    names.retain(|it| it != name);
                }
                let contradicted = Event::Contradicted { name: name.clone(), why };
                pull.step(now, contradicted, &here, &mut self.out);
            }
            pull.step(now, event, &here, &mut self.out);
        }
    }

    /// Begins the machine's effects; returns the entries that it wants merged, if any.
    fn run_effects(&mut self) -> Option<Vec<(Name, Entry)>> {
        let mut merged = Vec::new();
        for effect in std::mem::take(&mut self.out) {
            match effect {
                Effect::Merge { name, entry } => merged.push((name, entry)),
                effect => self.begin_effect(effect),
            }
        }
        (!merged.is_empty()).then_some(merged)
    }

    fn begin_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Ask { region, request, pgs, ids_max } => {
                let ask = IdsQuery { pgs, ids_max: ids_max as u32 };
                self.ask(region, request, async move |shared, link| {
                    let requested_at = shared.names.now();
                    let reply = link.query_ids(ask).await?;
                    shared
                        .resolve_names(region, reply.buckets, (&BTreeSet::new(), requested_at))
                        .await;
                    let (mut pgs, mut unnamed) = (reply.pgs, BTreeMap::new());
                    for (pg, batch) in &mut pgs {
                        let Ok(batch) = batch else { continue };
                        let lacks = translate(&shared, region, batch);
                        // Of two answers about one group the first counts.
                        unnamed.entry(*pg).or_insert(lacks);
                    }
                    Ok(Event::Told { request, pgs, unnamed })
                });
            }
            Effect::Walk { region, request, range } => {
                self.ask(region, request, async move |shared, link| {
                    let requested_at = shared.names.now();
                    let walked = link.walk(Walk { range }).await?;
                    shared
                        .resolve_names(region, walked.buckets, (&BTreeSet::new(), requested_at))
                        .await;
                    Ok(Event::Walked { request, summed: walked.summed })
                });
            }
            Effect::List { region, request, range } => {
                let pg_count = self.pg_counts[&region];
                self.ask(region, request, async move |shared, link| {
                    let requested_at = shared.names.now();
                    let mut reply = link.list(List { range }).await?;
                    shared.echo_filter.note(region, reply.listed.ids.iter());
                    shared
                        .resolve_names(region, reply.buckets, (&BTreeSet::new(), requested_at))
                        .await;
                    // Its keys lie in groups by the ids that buckets have there.
                    let of_key = |id: Id| (pg_of(id.name.bucket, &id.name.key, pg_count), id);
                    let listed = reply.listed.ids.into_iter().map(of_key).collect();
                    let Translated { named, unnamed } = here(&shared, region, listed);
                    let groups;
                    (groups, reply.listed.ids) = named.into_iter().unzip();
                    Ok(Event::Listed { request, listed: reply.listed, groups, unnamed })
                });
            }
            Effect::FindBuckets { region, request, buckets } => {
                self.ask(region, request, async move |shared, link| {
                    let sought = buckets.into_iter().collect();
                    let found = shared.find_buckets(&link, region, &sought).await?;
                    Ok(Event::FoundBuckets { request, found })
                });
            }
            Effect::Fetch { region, request, names } => {
                self.fetch((region, request), async move |shared, link| {
                    taking::fetch(&shared, link, request, names).await
                });
            }
            Effect::FetchPart { region, request, name, bytes_max } => {
                self.fetch((region, request), async move |shared, link| {
                    parts::fetch(&shared, link, request, (name, bytes_max)).await
                });
            }
            Effect::Merge { .. } => unreachable!("it was taken out"),
            Effect::SaveToken { source, token } => {
                self.tokens.insert(source, token);
                self.shared.reports.add(source, token);
            }
            Effect::Alarm(alarm) => self.alarm(&alarm),
        }
    }

    /// Fetches from a region, and tells the machine that the answer is coming until it has come.
    fn fetch<F>(
        &self,
        (region, request): (RegionId, u64),
        fetching: impl FnOnce(Arc<Shared<R>>, Arc<Link>) -> F + Send + 'static,
    ) where
        F: Future<Output = FetchResult> + Send,
    {
        let (shared, inbox, number) = (self.shared.clone(), self.inbox.clone(), self.number);
        self.shared.runtime.spawn(async move {
            let Ok(link) = shared.link_to(region) else {
                return inbox.send(Message::Event(number, Event::Unanswered { request }));
            };
            let mut fetching = pin!(fetching(shared.clone(), link));
            let mut coming = interval(Duration::from_millis(REGION_COMING_MS));
            let fetched = loop {
                tokio::select! {
                    biased;
                    fetched = &mut fetching => break fetched,
                    _ = coming.tick() => {
                        inbox.send(Message::Event(number, Event::Coming { request }));
                    }
                }
            };
            inbox.send(Message::Fetched(number, fetched));
        });
    }

    /// Asks a region, and tells the machine its answer, or that there is none.
    fn ask<F>(
        &self,
        region: RegionId,
        request: u64,
        asking: impl FnOnce(Arc<Shared<R>>, Arc<Link>) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<Event, LinkError>> + Send,
    {
        let (shared, inbox, number) = (self.shared.clone(), self.inbox.clone(), self.number);
        self.shared.runtime.spawn(async move {
            let answered = match shared.link_to(region) {
                Ok(link) => asking(shared.clone(), link).await,
                Err(error) => Err(error),
            };
            let event = match answered {
                Ok(event) => {
                    shared.watch.answered(region);
                    event
                }
                Err(error) => {
                    shared.watch.unanswered(region, &error);
                    Event::Unanswered { request }
                }
            };
            inbox.send(Message::Event(number, event));
        });
    }

    /// Notes tokens that have moved, a few at a time.
    fn note_tokens(&mut self, now_ms: u64) {
        let is_due = now_ms.saturating_sub(self.noted_ms) >= REGION_NOTE_MS;
        if self.is_noting || self.tokens.is_empty() || !is_due {
            return;
        }
        (self.is_noting, self.noted_ms) = (true, now_ms);
        // By turns: a region whose tokens move all the time holds up no other's.
        let (behind, before) =
            (self.tokens.range(self.next_note..), self.tokens.range(..self.next_note));
        let turn = behind.chain(before).take(REGION_NOTES_MAX);
        let tokens: Vec<_> = turn.map(|(source, token)| (*source, *token)).collect();
        if let Some((Source { region, pg }, _)) = tokens.last() {
            self.next_note = Source { region: *region, pg: PgId(pg.0 + 1) };
        }
        let (shared, inbox) = (self.shared.clone(), self.inbox.clone());
        self.shared.runtime.spawn(async move {
            let passed = tokens.iter().map(|(source, token)| Passed {
                region: source.region,
                pg: source.pg,
                through: token.through,
            });
            let noted = shared.proxy.note(TOKENS_PG, passed.collect(), None).await;
            if let Err(error) = &noted {
                tracing::debug!(%error, "other regions' positions will be recorded later");
            }
            inbox.send(Message::Noted(tokens, noted.is_ok()));
        });
    }

    fn yield_to_clients(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.clients_ms) < REGION_CLIENTS_MS {
            return;
        }
        self.clients_ms = now_ms;
        self.step(Event::Clients(self.shared.clients_in_flight()), &BTreeSet::new());
        if let Some(pull) = &self.pull {
            self.shared.watch.counters().set_share(pull.share());
        }
    }
}

/// Notes a batch as told, and translates its buckets. Takes out, and returns, what is of buckets that are not known here.
fn translate<R: RegionAccess>(
    shared: &Shared<R>,
    region: RegionId,
    batch: &mut Batch,
) -> Vec<(OpSeq, Id)> {
    shared.echo_filter.note(region, batch.ids.iter().map(|(_, id)| id));
    let Translated { named, unnamed } = here(shared, region, std::mem::take(&mut batch.ids));
    batch.ids = named;
    unnamed
}

/// Translates what a region tells.
fn here<R: RegionAccess, T>(
    shared: &Shared<R>,
    region: RegionId,
    ids: Vec<(T, Id)>,
) -> Translated<T> {
    let count = ids.len();
    let translated = shared.names.translate(region, ids, &shared.shown.buckets());
    let Translated { named, unnamed } = &translated;
    shared.watch.counters().left_out(count - named.len() - unnamed.len());
    translated
}
