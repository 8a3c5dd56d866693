//! The home of one bucket: orders, requests and answers that are late or lost, and what regions tell each other (ADR 48).
//!
//! Clients make locks in that bucket, each only if its region has none. A region that has the home may make none that any region
//! has acknowledged before; while a region has the home no other makes any.

use std::collections::{BTreeMap, BTreeSet};

use larder_protocol::region::home::{
    Effect, Event, HomeAnswer, HomeRequest, Reply, Taking, ended, is_owed, merge_home, reply,
};
use larder_protocol::region::{Entry, Name, Slot};
use larder_types::home::decider;
use larder_types::{
    BucketId, Decider, Home, HomeScope, HomeState, HomeTerm, ObjectKey, OpSeq, RegionId,
};

use super::super::judge::{Acknowledged, object};
use super::super::site::pg_of;
use super::{Happening, Message, World};

const BUCKET: BucketId = BucketId(2);
const LATELY: usize = 5;
const TICK_MS: u64 = 500;
const WAIT_MS: u64 = 50;
const ANSWER_MS: u64 = 9_000;
const CALM_MS: u64 = 40_000;

/// A region's memory of homes.
#[derive(Default)]
pub struct Homes {
    /// An operator wants this region to be the home.
    is_ordered: bool,
    /// Another region says that this one was given the home.
    is_owed: bool,
    taking: Option<Taking>,
    /// Regions that the machine asks.
    others: BTreeSet<RegionId>,
    /// The request to each of them that is not answered.
    asked: BTreeMap<RegionId, u64>,
    /// The last outcomes of PGs when a region was asked about first, under this region's record of that time.
    heads: BTreeMap<(RegionId, Option<HomeTerm>, bool), Vec<OpSeq>>,
}

/// A question or an answer about the home.
#[derive(Debug, Clone)]
pub enum Word {
    Ask {
        number: u64,
        ask: HomeRequest,
        regions: BTreeSet<RegionId>,
    },
    Answer {
        number: u64,
        answer: HomeAnswer,
    },
    Told(Home),
    /// Asks for the record of a bucket that is to be made.
    AskBucket,
    Bucket(Option<Home>),
}

#[derive(Debug)]
pub enum Timer {
    Tick,
    Waited,
    /// A request was not answered in time.
    Late(RegionId, u64),
    Set(Option<Home>, Home),
}

impl World {
    pub(super) fn begin_homes(&mut self, at: usize) {
        let (id, life) = (self.sites[at].id, self.sites[at].life);
        let first = self.home_rng.below(TICK_MS);
        self.later(first, Happening::Home(id, life, Timer::Tick));
    }

    pub(super) fn home_timer(&mut self, at: usize, timer: Timer) -> Result<(), String> {
        match timer {
            Timer::Tick => {
                self.home_tick(at)?;
                let (id, life) = (self.sites[at].id, self.sites[at].life);
                self.later(TICK_MS, Happening::Home(id, life, Timer::Tick));
            }
            Timer::Waited => self.home_step(at, Event::Waited),
            Timer::Late(to, number) => {
                if self.sites[at].homes.asked.get(&to) == Some(&number) {
                    self.sites[at].homes.asked.remove(&to);
                    self.home_step(at, Event::Answered(to, None));
                }
            }
            Timer::Set(expected, next) => {
                let others = self.others(self.sites[at].id);
                let site = &mut self.sites[at];
                let is_set = others.is_subset(&site.homes.others)
                    && site.disk.home == expected
                    && next.may_follow(expected.as_ref());
                if is_set {
                    site.disk.home = Some(next);
                    self.counts.homes += u64::from(next.state == HomeState::Here);
                }
                self.home_step(at, Event::Set(is_set));
            }
        }
        Ok(())
    }

    /// Homes move for longer than there are other faults: these leave little time to become one.
    fn homes_until_ms(&self) -> u64 {
        self.faulty_until_ms + CALM_MS
    }

    /// True while only restarts, and lost messages about homes, disturb.
    fn is_calm(&self) -> bool {
        (self.faulty_until_ms..self.homes_until_ms()).contains(&self.now_ms)
    }

    fn home_tick(&mut self, at: usize) -> Result<(), String> {
        let id = self.sites[at].id;
        let others: Vec<_> = self.others(id).into_iter().collect();
        let Some(other) = self.home_rng.pick(&others) else { return Ok(()) };
        if !self.sites[at].disk.has_bucket {
            self.send(id, other, Message::Home(Word::AskBucket));
            return Ok(());
        }
        if let Some(home) = self.sites[at].disk.home {
            self.send(id, other, Message::Home(Word::Told(home.as_remote())));
        }
        if self.now_ms < self.homes_until_ms() {
            if self.home_rng.one_in(15) {
                self.sites[at].homes.is_ordered = true;
            }
            if self.home_rng.one_in(60) {
                self.give_up(at);
            }
            self.lock(at)?;
        }
        if self.is_calm() && self.home_rng.one_in(40) {
            self.counts.crashes += 1;
            self.sites[at].crash();
            let away = self.home_rng.below(3_000);
            self.later(away, Happening::Start(at));
            return Ok(());
        }
        let site = &self.sites[at];
        let is_awaited = site.disk.home.is_some_and(|home| home.is_awaited());
        if site.homes.taking.is_none()
            && (site.homes.is_ordered || site.homes.is_owed || is_awaited)
        {
            self.take_home(at);
        }
        Ok(())
    }

    fn give_up(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let own = |home: &Home| {
            let states = [HomeState::Here, HomeState::Claimed(true)];
            states.contains(&home.state) || matches!(home.state, HomeState::Coming(_))
        };
        if let Some(home) = site.disk.home.filter(own) {
            site.disk.home = Some(ended(site.id, &home));
            site.homes.is_ordered = false;
        }
    }

    fn take_home(&mut self, at: usize) {
        let (id, others) = (self.sites[at].id, self.others(self.sites[at].id));
        let mut out = Vec::new();
        let known = (self.sites[at].disk.home, HomeScope::Conditions);
        let taking = Taking::begin(id, others.iter().copied(), known, &mut out);
        let homes = &mut self.sites[at].homes;
        (homes.taking, homes.others) = (Some(taking), others);
        homes.asked.clear();
        self.home_effects(at, out);
    }

    fn home_step(&mut self, at: usize, event: Event) {
        let mut out = Vec::new();
        if let Some(taking) = &mut self.sites[at].homes.taking {
            taking.step(event, &mut out);
        }
        self.home_effects(at, out);
    }

    fn home_effects(&mut self, at: usize, out: Vec<Effect>) {
        let (id, life) = (self.sites[at].id, self.sites[at].life);
        for effect in out {
            match effect {
                Effect::Ask(to, ask) => {
                    self.number += 1;
                    let number = self.number;
                    self.sites[at].homes.asked.insert(to, number);
                    let mut regions = self.others(id);
                    regions.insert(id);
                    self.send(id, to, Message::Home(Word::Ask { number, ask, regions }));
                    self.later(ANSWER_MS, Happening::Home(id, life, Timer::Late(to, number)));
                }
                Effect::Set { expected, next } => {
                    let ms = self.home_rng.below(60);
                    self.later(ms, Happening::Home(id, life, Timer::Set(expected, next)));
                }
                Effect::Wait => self.later(WAIT_MS, Happening::Home(id, life, Timer::Waited)),
                Effect::End(ended) => {
                    let homes = &mut self.sites[at].homes;
                    (homes.taking, homes.is_owed) = (None, false);
                    homes.is_ordered &= ended.is_err();
                }
            }
        }
    }

    pub(super) fn receive_word(&mut self, from: RegionId, at: usize, word: Word) {
        let id = self.sites[at].id;
        if self.is_calm() && self.home_rng.one_in(20) {
            return;
        }
        match word {
            Word::Ask { number, ask, regions } => {
                let answer = self.answer_home(from, at, ask, &regions);
                self.send(id, from, Message::Home(Word::Answer { number, answer }));
            }
            Word::Answer { number, answer } => {
                if self.sites[at].homes.asked.get(&from) == Some(&number) {
                    self.sites[at].homes.asked.remove(&from);
                    if let HomeAnswer::Knows(Some(home)) = answer {
                        self.hear_home(at, home);
                    }
                    self.home_step(at, Event::Answered(from, Some(answer)));
                }
            }
            Word::Told(home) => self.hear_home(at, home),
            Word::AskBucket if self.sites[at].disk.has_bucket => {
                let home = self.sites[at].disk.home.map(Home::as_remote);
                self.send(id, from, Message::Home(Word::Bucket(home)));
            }
            Word::AskBucket => {}
            Word::Bucket(home) => {
                let disk = &mut self.sites[at].disk;
                if !disk.has_bucket {
                    disk.has_bucket = true;
                    disk.home = home.and_then(|home| merge_home(id, None, home));
                }
            }
        }
    }

    fn hear_home(&mut self, at: usize, reported: Home) {
        let site = &mut self.sites[at];
        if site.disk.has_bucket && is_owed(site.id, site.disk.home.as_ref(), reported) {
            site.homes.is_owed = true;
        }
        if let Some(next) = merge_home(site.id, site.disk.home.as_ref(), reported)
            && site.disk.has_bucket
        {
            site.disk.home = Some(next);
        }
    }

    fn answer_home(
        &mut self,
        from: RegionId,
        at: usize,
        ask: HomeRequest,
        regions: &BTreeSet<RegionId>,
    ) -> HomeAnswer {
        let others = self.others(self.sites[at].id);
        let site = &mut self.sites[at];
        if !site.disk.has_bucket {
            return HomeAnswer::Absent;
        }
        if matches!(ask, HomeRequest::Claim(..)) && !others.is_subset(regions) {
            return HomeAnswer::OtherRegions;
        }
        let home = match reply(site.disk.home.as_ref(), (from, ask)) {
            Reply::Say(answer) => return answer,
            Reply::Prepare if site.has_passed(from, false) => {
                return HomeAnswer::Knows(site.disk.home);
            }
            Reply::Prepare => return HomeAnswer::Behind,
            Reply::Yours(home) => home,
            Reply::Give(_) if !site.has_passed(from, false) => return HomeAnswer::Behind,
            Reply::Give(home) | Reply::Accept(home) => {
                if !site.bug.home_unwritten {
                    site.disk.home = Some(home);
                }
                home
            }
        };
        let is_level = site.has_passed(from, true) || site.bug.home_lacks_changes;
        HomeAnswer::Yours { home: home.as_remote(), is_level }
    }

    /// A client makes a lock, if its region decides and has none.
    fn lock(&mut self, at: usize) -> Result<(), String> {
        let site = &self.sites[at];
        if decider(site.disk.home.as_ref(), true) != Decider::Here {
            return Ok(());
        }
        let is_here = |home: Option<Home>| home.is_some_and(|it| it.state == HomeState::Here);
        let has_home = is_here(site.disk.home);
        let id = site.id;
        let another = self.sites.iter().find(|it| it.id != id && is_here(it.disk.home));
        if let Some(another) = another {
            return Err(format!("region {id} decides while region {} has the home", another.id));
        }
        let name = self.lock_name();
        if self.sites[at].disk.entries.contains_key(&name) {
            return Ok(());
        }
        let made = |it: &&Acknowledged| it.name == name && !it.is_lost;
        if has_home && let Some(before) = self.judge.acknowledged.iter().find(made) {
            let (by, reported) = (before.region, before.entry.at);
            return Err(format!(
                "region {id}, the home, makes {name:?}, as region {by} did at {reported}"
            ));
        }
        let pg = pg_of(&name, self.sites[at].pgs());
        let (stamp, origin) = self.sites[at].next(self.now_ms, pg, &mut self.home_rng);
        let what = object(stamp, &mut self.home_rng);
        let reported = Entry { at: stamp, origin, what };
        self.sites[at].keep(&name, &reported, Some(origin.op.seq))?;
        self.counts.locks += u64::from(has_home);
        self.judge.acknowledged.push(Acknowledged {
            region: id,
            name,
            entry: reported,
            stamp,
            at_ms: self.now_ms,
            is_lost: false,
        });
        Ok(())
    }

    /// A lock that somebody has made, lately most often, or a new one.
    fn lock_name(&mut self) -> Name {
        let is_lock = |it: &&Acknowledged| it.name.bucket == BUCKET;
        let made = self.judge.acknowledged.iter().rev().filter(is_lock);
        let made: Vec<_> = made.take(LATELY).map(|it| it.name.clone()).collect();
        if let Some(name) = self.home_rng.pick(&made).filter(|_| self.home_rng.one_in(2)) {
            return name;
        }
        let key = ObjectKey::new(&format!("lock {}", self.number)).expect("a key");
        Name { bucket: BUCKET, key, slot: Slot::Null }
    }

    /// No order is left, and at most one region has the home. The bucket may have gone with the last region that had it.
    pub(super) fn homes_rest(&self) -> bool {
        let is_gone = self.sites.iter().all(|site| !site.disk.has_bucket);
        let rests = |site: &super::Site| {
            let is_awaited = site.disk.home.is_some_and(|home| home.is_awaited());
            (site.disk.has_bucket || is_gone) && !site.homes.is_ordered && !is_awaited
        };
        let is_over = self.now_ms >= self.homes_until_ms();
        !self.has_homes || is_over && self.sites.iter().all(rests)
    }
}

impl super::Site {
    /// True if a region has everything from when it was asked about first, under the record of that time.
    fn has_passed(&mut self, region: RegionId, is_last: bool) -> bool {
        let key = (region, self.disk.home.map(|home| home.term), is_last);
        let last = || self.disk.logs.iter().map(|log| log.journal.last()).collect();
        let heads = self.homes.heads.entry(key).or_insert_with(last);
        let journals = self.disk.logs.iter().map(|log| &log.journal);
        let passed = heads.iter().zip(journals).all(|(head, it)| it.passed_of(region) >= *head);
        if passed {
            self.homes.heads.remove(&key);
        }
        passed
    }
}
