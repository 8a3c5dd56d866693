//! The home of a bucket: one region decides whether conditions of its changes hold, for all (ADR 48).
//!
//! The region that is to be the home asks the others. A home is *given* by the region that has it, or *claimed* where none has:
//!
//! ```text
//!  the region that is to be the home          the one that has it
//!                                   ──Give──▶ once the other has nearly all of its changes: writes down that the other has it
//!  writes down that it is coming    ◀─Yours──
//!  lacks nothing any more: it is here
//!
//!  the region that is to be the home          every other region
//!                                ──Prepare──▶ once the other has nearly all of its changes
//!  none of them has it              ◀─Knows──
//!  writes down that it is coming    ─Claim──▶ writes down that the other has it
//!                                   ◀─Yours──
//!  lacks nothing of any of them: it is here
//! ```
//!
//! Each region keeps what it knows in the bucket's record ([`Home`]), under whose epoch its primaries take changes. So no change
//! is decided by a record that was replaced.
//!
//! # Invariants
//!
//! 1. The region that has the home writes down that another has it before it says so, and gives it to one region. It says that the
//!    other lacks nothing only once every change that it decided is there.
//! 2. A claim counts once every other region has accepted it. A region that has the home accepts none. One that accepts a later claim
//!    than its own does not become the home by its own any more: so of two claims at most one counts.
//! 3. Only who has the home, or was given it, gives it up. A claim that fails is withdrawn if there was no home before: then nobody can
//!    have it. Else it is made again until all have accepted it.
//!
//! From 1 and 2 follows that no two regions have the home. The model `home` of `tools/model` explores it.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{Home, HomeScope, HomeState, HomeTerm, RegionId};
use serde::{Deserialize, Serialize};

/// Claims of one run after the first.
const CLAIMS_AGAIN_MAX: u8 = 2;

/// A request about the home of a bucket, of the region that is to be it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HomeRequest {
    /// Asks for the record of the answering region.
    Look,
    /// The same, once the asking region has most of its changes: a claim follows.
    Prepare,
    /// Give it, in a term above this count, with this scope. Asked again it says whether the asking region lacks changes.
    Give(u64, HomeScope),
    /// Accept that the asking region has it in this term. Asked again it says whether the asking region lacks changes.
    Claim(HomeTerm, HomeScope),
}

/// The answer to a [`HomeRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HomeAnswer {
    /// The record of the answering region. It has not done what was asked.
    Knows(Option<Home>),
    /// The asking region lacks many changes: the answer comes once it has most of them.
    Behind,
    /// The asking region has it, or is about to, and this one has written that down.
    Yours {
        /// The record here.
        home: Home,
        /// True if the asking region has all that was decided here.
        is_level: bool,
    },
    /// There is no such bucket, or it is being deleted.
    Absent,
    /// The answering region knows of regions that the asking one does not.
    OtherRegions,
}

/// The reason why a region does not become the home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HomeRefused {
    /// This region does not answer.
    NoAnswer(RegionId),
    /// This region has no such bucket now.
    Absent(RegionId),
    /// This region knows of regions that this one does not know yet.
    OtherRegions(RegionId),
    /// This region is about to become the home itself, or says that another has it.
    Refused(RegionId),
    /// The record here was replaced meanwhile, another region has joined, or the bucket is being deleted.
    Changed,
}

/// Input of [`Taking::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Answers [`Effect::Set`]: true if the record was set.
    Set(bool),
    /// A region answers [`Effect::Ask`]; `None` if it did not in time.
    Answered(RegionId, Option<HomeAnswer>),
    /// Answers [`Effect::Wait`].
    Waited,
}

/// Output of [`Taking::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Ask a region.
    Ask(RegionId, HomeRequest),
    /// Set the record here, if it is the expected one still, and no other region has joined since the beginning. Such a
    /// region may have read the record here before it showed a claim.
    Set {
        /// The record that is expected.
        expected: Option<Home>,
        /// The next.
        next: Home,
    },
    /// Some regions say that changes are on their way: wait a moment.
    Wait,
    /// The home is here, or it is not to be. This is the end.
    End(Result<(), HomeRefused>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum HomeStep {
    /// Ask the region that gave it.
    LevelWith(RegionId),
    /// Ask all others to accept the claim.
    Claim,
    /// It is over.
    End(Result<(), HomeRefused>),
}

/// The regions whose changes the one that becomes the home must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Levels {
    WithGiver,
    WithAll,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Looking,
    Giving(RegionId),
    Setting(Home, HomeStep),
    Levelling(Levels),
    Over,
}

/// A region that becomes the home of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Taking {
    own: RegionId,
    others: BTreeSet<RegionId>,
    scope: HomeScope,
    /// The record here.
    home: Option<Home>,
    phase: Phase,
    /// Records of regions that were looked at.
    looked: BTreeMap<RegionId, Option<Home>>,
    /// Later claims that were made as another region had made one, too.
    again: u8,
    /// Regions of which changes may be missing here.
    missing: BTreeSet<RegionId>,
    /// Regions of these that have answered since they were last asked.
    answered: BTreeSet<RegionId>,
}

/// The reply of a region that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// It says this.
    Say(HomeAnswer),
    /// It says what it knows, once the asking region has most of its changes.
    Prepare,
    /// It has given the home, or accepted a claim, in this record. What remains is to see whether the asking region lacks changes.
    Yours(Home),
    /// It gives the home by this record, once the asking region has most of its changes.
    Give(Home),
    /// It accepts the claim by this record.
    Accept(Home),
}

/// The reply of a region with this record.
#[must_use]
pub fn reply(home: Option<&Home>, (from, ask): (RegionId, HomeRequest)) -> Reply {
    let no = Reply::Say(HomeAnswer::Knows(home.copied()));
    match (ask, home) {
        (HomeRequest::Look, _) => no,
        (HomeRequest::Prepare, _) => Reply::Prepare,
        (HomeRequest::Give(above, scope), Some(home)) => match home.state {
            HomeState::Given if home.term.of == from => Reply::Yours(*home),
            HomeState::Here => {
                let count = home.term.count.max(above) + 1;
                let term = HomeTerm { count, of: from };
                Reply::Give(Home { term, scope, state: HomeState::Given })
            }
            _ => no,
        },
        (HomeRequest::Give(..), None) => no,
        (HomeRequest::Claim(term, _), _) if term.of != from => no,
        (HomeRequest::Claim(term, _), Some(home)) if home.term == term => match home.state {
            HomeState::Elsewhere | HomeState::Given => Reply::Yours(*home),
            _ => no,
        },
        (HomeRequest::Claim(term, scope), home) => {
            let is_before = |home: &Home| home.term < term && home.state != HomeState::Here;
            if home.is_none_or(is_before) {
                Reply::Accept(Home { term, scope, state: HomeState::Elsewhere })
            } else {
                no
            }
        }
    }
}

/// The record of a region that gives its home up, or ends a claim.
#[must_use]
pub fn ended(own: RegionId, home: &Home) -> Home {
    let term = HomeTerm { count: home.term.count + 1, of: own };
    Home { term, state: HomeState::Nowhere, ..*home }
}

/// The record that a region keeps once it hears that of another; `None` if it keeps its own.
#[must_use]
pub fn merge_home(own: RegionId, home: Option<&Home>, remote: Home) -> Option<Home> {
    let remote = remote.as_remote();
    let is_own = home.is_some_and(|it| it.state == HomeState::Here || it.is_awaited());
    let is_older = home.is_some_and(|it| it.term >= remote.term);
    // It accepts its own terms from no other region: the region that gave it the home confirms that in its response.
    (!is_own && !is_older && remote.is_sound() && remote.region() != Some(own)).then_some(remote)
}

/// True if another region has a record that this one was given the home, and this one lacks it. The answer was lost,
/// and no request here waits for the home any more. It has to take it, as no other region can get it.
#[must_use]
pub fn is_owed(own: RegionId, home: Option<&Home>, remote: Home) -> bool {
    let remote = remote.as_remote();
    remote.is_sound() && remote.region() == Some(own) && home.is_none_or(|it| it.term < remote.term)
}

impl Taking {
    /// Begins, or goes on after a restart, with the record here and the other regions.
    pub fn begin(
        own: RegionId,
        others: impl Iterator<Item = RegionId>,
        (home, scope): (Option<Home>, HomeScope),
        out: &mut Vec<Effect>,
    ) -> Self {
        let mut taking = Self {
            own,
            others: others.collect(),
            scope,
            home,
            phase: Phase::Looking,
            looked: BTreeMap::new(),
            again: 0,
            missing: BTreeSet::new(),
            answered: BTreeSet::new(),
        };
        taking.start(out);
        taking
    }

    fn start(&mut self, out: &mut Vec<Effect>) {
        let Some(home) = self.home else { return self.look(out) };
        let is_live = |region| self.others.contains(&region);
        match home.state {
            HomeState::Here if home.scope == self.scope => self.end(Ok(()), out),
            HomeState::Here => {
                let term = HomeTerm { count: home.term.count + 1, of: self.own };
                let next = Home { term, scope: self.scope, state: HomeState::Here };
                self.set(next, HomeStep::End(Ok(())), out);
            }
            HomeState::Coming(from) if is_live(from) => {
                self.level(Levels::WithGiver, [from].into(), out);
            }
            // A home that a removed region had is where others have it.
            HomeState::Coming(_) | HomeState::Claimed(_) => {
                self.level(Levels::WithAll, self.others.clone(), out);
            }
            HomeState::Elsewhere | HomeState::Given if is_live(home.term.of) => {
                self.request_flush_of(home.term.of, out)
            }
            HomeState::Elsewhere | HomeState::Given | HomeState::Nowhere => self.look(out),
        }
    }

    /// True once [`Effect::End`] is out. No event has an effect from then on.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Takes an answer.
    pub fn step(&mut self, event: Event, out: &mut Vec<Effect>) {
        match (event, &self.phase) {
            (Event::Set(is_set), Phase::Setting(next, then)) => {
                let (next, then) = (*next, *then);
                match is_set {
                    false => self.end(Err(HomeRefused::Changed), out),
                    true => self.has_set(next, then, out),
                }
            }
            (Event::Answered(from, answer), Phase::Looking) => self.looked(from, answer, out),
            (Event::Answered(from, answer), Phase::Giving(asked)) if from == *asked => {
                self.was_given(from, answer, out);
            }
            (Event::Answered(from, answer), Phase::Levelling(_)) => {
                self.levelled(from, answer, out)
            }
            (Event::Waited, Phase::Looking) => self.prepare_missing(out),
            (Event::Waited, Phase::Giving(asked)) => self.request_flush_of(*asked, out),
            (Event::Waited, Phase::Levelling(_)) => self.request_missing(out),
            _ => {}
        }
    }

    fn count(&self) -> u64 {
        let known = self.looked.values().chain([&self.home]).flatten();
        known.map(|home| home.term.count).max().unwrap_or(0)
    }

    fn look(&mut self, out: &mut Vec<Effect>) {
        (self.phase, self.missing) = (Phase::Looking, self.others.clone());
        self.prepare_missing(out);
    }

    fn prepare_missing(&mut self, out: &mut Vec<Effect>) {
        self.answered.clear();
        out.extend(self.missing.iter().map(|region| Effect::Ask(*region, HomeRequest::Prepare)));
        self.claim_if_free(out);
    }

    fn looked(&mut self, from: RegionId, answer: Option<HomeAnswer>, out: &mut Vec<Effect>) {
        if !self.missing.contains(&from) {
            return;
        }
        match answer {
            Some(HomeAnswer::Knows(home)) => {
                self.looked.insert(from, home);
                self.missing.remove(&from);
            }
            Some(HomeAnswer::Behind) => {
                self.answered.insert(from);
            }
            answer => return self.end(Err(reason(from, answer)), out),
        }
        if self.missing.is_empty() {
            self.claim_if_free(out);
        } else {
            self.wait_if_answered(out);
        }
    }

    fn wait_if_answered(&self, out: &mut Vec<Effect>) {
        if self.missing.iter().all(|region| self.answered.contains(region)) {
            out.push(Effect::Wait);
        }
    }

    /// Claims the home once all regions were looked at and none of them names a region that may have it.
    fn claim_if_free(&mut self, out: &mut Vec<Effect>) {
        if !self.missing.is_empty() {
            return;
        }
        let known = self.looked.values().chain([&self.home]).flatten();
        let is_free = known.clone().all(|home| home.region().is_none());
        let latest = known.max_by_key(|home| home.term);
        let named = latest.and_then(Home::region).filter(|region| *region != self.own);
        if let Some(region) = named.filter(|region| self.others.contains(region)) {
            return self.request_flush_of(region, out);
        }
        self.claim((self.count(), is_free), out);
    }

    fn claim(&mut self, (above, is_free): (u64, bool), out: &mut Vec<Effect>) {
        let term = HomeTerm { count: above + 1, of: self.own };
        let next = Home { term, scope: self.scope, state: HomeState::Claimed(is_free) };
        self.set(next, HomeStep::Claim, out);
    }

    fn request_flush_of(&mut self, region: RegionId, out: &mut Vec<Effect>) {
        self.phase = Phase::Giving(region);
        out.push(Effect::Ask(region, HomeRequest::Give(self.count(), self.scope)));
    }

    fn was_given(&mut self, from: RegionId, answer: Option<HomeAnswer>, out: &mut Vec<Effect>) {
        match answer {
            Some(HomeAnswer::Yours { home, .. }) if home.term.of == self.own => {
                let next = Home { state: HomeState::Coming(from), ..home };
                self.set(next, HomeStep::LevelWith(from), out);
            }
            Some(HomeAnswer::Behind) => out.push(Effect::Wait),
            answer => self.end(Err(reason(from, answer)), out),
        }
    }

    fn set(&mut self, next: Home, then: HomeStep, out: &mut Vec<Effect>) {
        self.phase = Phase::Setting(next, then);
        out.push(Effect::Set { expected: self.home, next });
    }

    fn has_set(&mut self, next: Home, then: HomeStep, out: &mut Vec<Effect>) {
        self.home = Some(next);
        match then {
            HomeStep::LevelWith(region) => self.level(Levels::WithGiver, [region].into(), out),
            HomeStep::Claim => self.level(Levels::WithAll, self.others.clone(), out),
            HomeStep::End(ended) => self.end(ended, out),
        }
    }

    fn level(&mut self, levels: Levels, missing: BTreeSet<RegionId>, out: &mut Vec<Effect>) {
        (self.phase, self.missing) = (Phase::Levelling(levels), missing);
        self.request_missing(out);
    }

    fn request_missing(&mut self, out: &mut Vec<Effect>) {
        let home = self.home.expect("it is coming");
        self.answered.clear();
        if self.missing.is_empty() {
            let next = Home { state: HomeState::Here, ..home };
            return self.set(next, HomeStep::End(Ok(())), out);
        }
        let ask = match self.phase {
            Phase::Levelling(Levels::WithGiver) => HomeRequest::Give(home.term.count, home.scope),
            _ => HomeRequest::Claim(home.term, home.scope),
        };
        out.extend(self.missing.iter().map(|region| Effect::Ask(*region, ask)));
    }

    fn levelled(&mut self, from: RegionId, answer: Option<HomeAnswer>, out: &mut Vec<Effect>) {
        if !self.missing.contains(&from) {
            return;
        }
        let home = self.home.expect("it is coming");
        match answer {
            Some(HomeAnswer::Yours { home: there, is_level }) if there.term == home.term => {
                self.answered.insert(from);
                if is_level {
                    self.missing.remove(&from);
                }
            }
            answer => return self.is_refused(from, answer, out),
        }
        if self.missing.is_empty() {
            self.request_missing(out);
        } else {
            self.wait_if_answered(out);
        }
    }

    fn is_refused(&mut self, from: RegionId, answer: Option<HomeAnswer>, out: &mut Vec<Effect>) {
        let home = self.home.expect("it is coming");
        if let Some(HomeAnswer::Knows(Some(there))) = answer {
            if there.state == HomeState::Here {
                // It was given by a region that was removed, before this one claimed it.
                return self.request_flush_of(from, out);
            }
            if there.term > home.term && self.again < CLAIMS_AGAIN_MAX {
                self.again += 1;
                let is_free = home.state == HomeState::Claimed(true);
                return self.claim((there.term.count, is_free), out);
            }
        }
        let why = Err(reason(from, answer));
        if home.state == HomeState::Claimed(true) {
            self.set(ended(self.own, &home), HomeStep::End(why), out);
        } else {
            self.end(why, out);
        }
    }

    fn end(&mut self, ended: Result<(), HomeRefused>, out: &mut Vec<Effect>) {
        self.phase = Phase::Over;
        out.push(Effect::End(ended));
    }
}

fn reason(from: RegionId, answer: Option<HomeAnswer>) -> HomeRefused {
    match answer {
        None => HomeRefused::NoAnswer(from),
        Some(HomeAnswer::Absent) => HomeRefused::Absent(from),
        Some(HomeAnswer::OtherRegions) => HomeRefused::OtherRegions(from),
        Some(HomeAnswer::Knows(_) | HomeAnswer::Behind | HomeAnswer::Yours { .. }) => {
            HomeRefused::Refused(from)
        }
    }
}

#[cfg(test)]
mod tests;
