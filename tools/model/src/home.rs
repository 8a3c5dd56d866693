//! No two regions are the home of a bucket (ADR 48): giving, claiming, answers that are lost or late, restarts, removals, joins.
//!
//! Unlike the other models this one steps the machine that ships, `protocol/region/home.rs`. Here are what is around it: records
//! that are set by comparison, requests and answers that arrive late or never, and what regions tell each other.
//!
//! | action | in the code |
//! |---|---|
//! | `Begin`, `Resume`, `End` | `roles/regions/homes.rs`: orders of operators, records that say that a home is coming, and giving it up |
//! | `HearAsk`, `HearLate` | the same, `answer_home` |
//! | `HearAnswer`, `LoseAnswer`, `Wait`, `Set` | `roles/regions/homes/run.rs`, `Run` |
//! | `Tell`, `HearTold` | `roles/regions/homes.rs`, `tell`, `hear_home` |
//! | `Come`, `Decide` | a client's change with a condition: `roles/proxy/put.rs`; a primary refuses it under a record that was replaced |
//! | `Pull` | `protocol/region/pull.rs` |
//! | `Remove`, `Join`, `Learn` | `link/members.rs` |
//! | `AskBucket`, `MakeBucket` | `roles/regions/names.rs`, `make_bucket` |
//!
//! A region that was removed goes on as before. What it decides counts no more. Buckets are not deleted here: a bucket with a home
//! cannot be.

mod state;
mod variants;

use larder_protocol::region::home::{
    Effect, Event, HomeAnswer, HomeRequest, Reply, Taking, ended, merge_home, reply,
};
use larder_types::{Home, HomeScope, HomeState, HomeTerm};

pub use state::State;
use state::{Channel, REGIONS, Region, id, index};
pub use variants::{Bounds, Property, Variant};

use crate::explore::{Model, Sometimes};
use crate::ids::Servers;

/// A step.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// An operator wants a region to become the home.
    Begin(usize),
    /// A region goes on with what its record says.
    Resume(usize),
    /// An operator has a region give its home up.
    End(usize),
    /// The second is asked by the first.
    HearAsk(usize, usize),
    /// The second hears a request that the first has given up.
    HearLate(usize, usize),
    /// The first hears the answer of the second.
    HearAnswer(usize, usize),
    /// The first gives up waiting for the second.
    LoseAnswer(usize, usize),
    /// A region has waited.
    Wait(usize),
    /// A region sets its record.
    Set(usize),
    /// A region restarts.
    Restart(usize),
    /// The first tells the second its record.
    Tell(usize, usize),
    /// It arrives.
    HearTold(usize, usize),
    /// A change comes that this region decides.
    Come(usize),
    /// It is decided.
    Decide(usize),
    /// The first pulls what the second has.
    Pull(usize, usize),
    /// The first region is removed, by the second.
    Remove,
    /// The last region is let in by the first.
    Join,
    /// A region learns of regions that joined or were removed.
    Learn(usize),
    /// The first asks the second for the record of a bucket that it is to make.
    AskBucket(usize, usize),
    /// It makes it.
    MakeBucket(usize, usize),
}

/// See the module's head.
#[derive(Debug, Clone, Copy)]
pub struct Homes {
    /// Its bounds.
    pub bounds: Bounds,
    /// The reading of the design.
    pub variant: Variant,
}

impl Homes {
    fn is(&self, variant: Variant) -> bool {
        self.variant == variant
    }

    fn run(&self, state: &mut State, at: usize, out: Vec<Effect>) {
        for effect in out {
            let region = &mut state.regions[at];
            match effect {
                Effect::Ask(to, ask) => {
                    let way = &mut state.channels[at][index(to)];
                    if let Some(before) = way.asked.replace((ask, region.others(at).with(at))) {
                        way.late = Some(before);
                    }
                    way.answer = None;
                }
                Effect::Set { expected, next } => region.setting = Some((expected, next)),
                Effect::Wait => region.waits = true,
                Effect::End(_) => {
                    region.stop();
                    self.forget(state, at);
                }
            }
        }
    }

    /// Nobody waits for answers any more.
    fn forget(&self, state: &mut State, at: usize) {
        for way in &mut state.channels[at] {
            way.answer = None;
            if let Some(asked) = way.asked.take() {
                way.late = Some(asked);
            }
        }
    }

    fn step(&self, state: &mut State, at: usize, event: Event) {
        let mut out = Vec::new();
        if let Some(taking) = &mut state.regions[at].taking {
            taking.step(event, &mut out);
        }
        self.run(state, at, out);
    }

    fn begin(&self, state: &mut State, at: usize) {
        let mut out = Vec::new();
        let region = &mut state.regions[at];
        region.asks = region.others(at);
        let others: Vec<_> = region.asks.iter().map(id).collect();
        let known = (region.home, HomeScope::Conditions);
        region.taking = Some(Taking::begin(id(at), others.into_iter(), known, &mut out));
        self.run(state, at, out);
    }

    fn reply(&self, region: &Region, (from, ask): (usize, HomeRequest)) -> Reply {
        let reply = reply(region.home.as_ref(), (id(from), ask));
        let accepted =
            |term, scope| Reply::Accept(Home { term, scope, state: HomeState::Elsewhere });
        match (ask, region.home) {
            (HomeRequest::Claim(term, scope), Some(home))
                if home.term < term && self.is(Variant::HomeAcceptsClaims) =>
            {
                accepted(term, scope)
            }
            (HomeRequest::Give(..), Some(home)) => {
                let is_named = home.region() == Some(id(from));
                if self.is(Variant::AnyoneGives) && is_named { Reply::Yours(home) } else { reply }
            }
            _ => reply,
        }
    }

    /// The answer of a region that is asked by one with these changes, which knows these regions.
    fn answer(
        &self,
        region: &mut Region,
        own: usize,
        (from, ask): (usize, HomeRequest),
        (has, knows): (u8, Servers),
    ) -> HomeAnswer {
        if !region.has_bucket {
            return HomeAnswer::Absent;
        }
        let is_known = region.others(own).with(own).within(knows);
        if matches!(ask, HomeRequest::Claim(..))
            && !is_known
            && !self.is(Variant::UnknownRegionsPass)
        {
            return HomeAnswer::OtherRegions;
        }
        let home = match self.reply(region, (from, ask)) {
            Reply::Say(answer) => return answer,
            Reply::Prepare => return HomeAnswer::Knows(region.home),
            Reply::Yours(home) => home,
            Reply::Give(home) if self.is(Variant::GivesUnwritten) => home,
            Reply::Give(home) | Reply::Accept(home) => {
                self.replace(region, home);
                home
            }
        };
        let had = *region.had.get_or_insert(region.has);
        let is_level = had & !has == 0 || self.is(Variant::LevelsNever);
        HomeAnswer::Yours { home: home.as_remote(), is_level }
    }

    /// Sets a region's record: what was about to be decided is refused.
    fn replace(&self, region: &mut Region, home: Home) {
        (region.home, region.had) = (Some(home), None);
        region.deciding &= self.is(Variant::DecidesLate);
    }

    fn hear_ask(&self, state: &mut State, (from, to): (usize, usize), is_late: bool) {
        let way = &mut state.channels[from][to];
        let received = if is_late { way.late.take() } else { way.asked.take() };
        let Some((ask, knows)) = received else { return };
        let has = state.regions[from].has;
        let region = &mut state.regions[to];
        if region.removed.has(from) || !region.knows.has(from) {
            if !is_late {
                self.step(state, from, Event::Answered(id(to), None));
            }
            return;
        }
        let answer = self.answer(region, to, (from, ask), (has, knows));
        if !is_late {
            state.channels[from][to].answer = Some(answer);
        }
    }

    fn lose(&self, state: &mut State, from: usize, to: usize) {
        state.lost += 1;
        let way = &mut state.channels[from][to];
        if let Some(asked) = way.asked.take() {
            way.late = Some(asked);
        }
        way.answer = None;
        let home = state.regions[from].home;
        let is_claim = home.is_some_and(|home| matches!(home.state, HomeState::Claimed(_)));
        let answer = home.filter(|_| is_claim && self.is(Variant::SilenceAccepts));
        let answer =
            answer.map(|home| HomeAnswer::Yours { home: home.as_remote(), is_level: true });
        self.step(state, from, Event::Answered(id(to), answer));
    }

    fn set(&self, state: &mut State, at: usize) {
        let region = &mut state.regions[at];
        let Some((expected, next)) = region.setting.take() else { return };
        let has_joined = !region.others(at).within(region.asks);
        let is_set = (!has_joined || self.is(Variant::JoinedIsIgnored))
            && region.home == expected
            && next.may_follow(expected.as_ref());
        if is_set {
            self.replace(region, next);
        }
        self.step(state, at, Event::Set(is_set));
    }

    fn hear_told(&self, state: &mut State, from: usize, to: usize) {
        let Some(reported) = state.channels[from][to].reported.take() else { return };
        let region = &mut state.regions[to];
        if !region.has_bucket || region.removed.has(from) {
            return;
        }
        let is_newer = region.home.is_none_or(|home| home.term < reported.term);
        let is_mine = reported.as_remote().region() == Some(id(to));
        let is_here = region.is_here();
        let next = if self.is(Variant::OwnTermIsHeard) && is_mine && is_newer && !is_here {
            Some(Home { state: HomeState::Claimed(false), ..reported })
        } else if self.is(Variant::HomeHears) && is_here && is_newer && !is_mine {
            Some(reported.as_remote())
        } else {
            merge_home(id(to), region.home.as_ref(), reported)
        };
        if let Some(next) = next {
            self.replace(region, next);
        }
    }

    fn between(&self, state: &State, (from, to): (usize, usize), out: &mut Vec<Action>) {
        let (region, other, way) =
            (&state.regions[from], &state.regions[to], &state.channels[from][to]);
        if way.asked.is_some() {
            out.push(Action::HearAsk(from, to));
        }
        if way.late.is_some() {
            out.push(Action::HearLate(from, to));
        }
        if way.answer.is_some() {
            out.push(Action::HearAnswer(from, to));
        }
        if (way.asked.is_some() || way.answer.is_some()) && state.lost < self.bounds.lost {
            out.push(Action::LoseAnswer(from, to));
        }
        let knows = region.others(from).has(to) && other.knows.has(from);
        let is_refused = other.removed.has(from);
        if knows && !is_refused && other.has & !region.has != 0 && region.has_bucket {
            out.push(Action::Pull(from, to));
        }
        if way.reported.is_some() {
            out.push(Action::HearTold(from, to));
        } else if knows && state.reported < self.bounds.reported && region.home.is_some() {
            out.push(Action::Tell(from, to));
        }
        if way.made.is_some() {
            out.push(Action::MakeBucket(from, to));
        } else if knows && !region.has_bucket && other.has_bucket {
            out.push(Action::AskBucket(from, to));
        }
    }
}

impl Model for Homes {
    type State = State;
    type Action = Action;
    type Property = Property;

    const SOMETIMES: &'static [Sometimes<State>] = &[
        ("a region becomes the home", |state| state.regions[1].is_here()),
        ("another one becomes it afterwards", |state| state.regions[2].is_here()),
        ("two regions are about to become it", |state| {
            state.regions.iter().filter(|region| region.taking.is_some()).count() == 2
        }),
        ("a home is given up", |state| {
            state.regions.iter().any(|it| it.home.is_some_and(|it| it.state == HomeState::Nowhere))
        }),
        ("a region becomes the home after the one before was removed", |state| {
            state.is_removed && (state.regions[1].is_here() || state.regions[2].is_here())
        }),
        ("a region that was removed has the home, too", |state| {
            state.is_removed && state.regions[0].is_here() && state.regions[1].is_here()
        }),
        ("the region that joined knows the home", |state| {
            state.changes == 0 && state.regions[2].has_bucket && state.regions[2].home.is_some()
        }),
        ("a home lacks changes of one that was removed", |state| {
            state.is_removed
                && state.live().any(|it| {
                    state.regions[it].is_here()
                        && state.regions[0].has & !state.regions[it].has != 0
                })
        }),
    ];

    fn initial(&self) -> State {
        let Bounds { regions, joins, given, .. } = self.bounds;
        let known = Servers::first(if joins { regions - 1 } else { regions });
        let mut all = <[Region; REGIONS]>::default();
        let term = HomeTerm { count: 1, of: id(0) };
        let home = Home { term, scope: HomeScope::Conditions, state: HomeState::Here };
        for (number, region) in all.iter_mut().enumerate().take(regions) {
            let is_in = known.has(number);
            region.knows = if is_in { known } else { Servers::only(number) };
            region.has_bucket = is_in;
            let own = if number == 0 { home } else { home.as_remote() };
            region.home = Some(own).filter(|_| given && is_in);
        }
        State {
            regions: all,
            channels: <[[Channel; REGIONS]; REGIONS]>::default(),
            begun: 0,
            resumed: 0,
            ended: 0,
            lost: 0,
            reported: 0,
            changes: 0,
            is_removed: false,
        }
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        let (count, bounds) = (self.bounds.regions, &self.bounds);
        for at in 0..count {
            let region = &state.regions[at];
            let coming = region.home.is_some_and(|home| home.is_awaited());
            if region.has_bucket && region.taking.is_none() {
                if state.begun < bounds.begun && !region.is_here() {
                    out.push(Action::Begin(at));
                }
                if coming && state.resumed < bounds.resumed {
                    out.push(Action::Resume(at));
                }
            }
            let is_own =
                |home: Home| matches!(home.state, HomeState::Coming(_) | HomeState::Claimed(true));
            let is_given = region.home.is_some_and(is_own);
            if (is_given || region.is_here()) && state.ended < bounds.ended {
                out.push(Action::End(at));
            }
            if region.waits {
                out.push(Action::Wait(at));
            }
            if region.setting.is_some() {
                out.push(Action::Set(at));
            }
            if region.taking.is_some() && state.lost < bounds.lost {
                out.push(Action::Restart(at));
            }
            if region.decides() && !region.deciding && state.changes < bounds.changes {
                out.push(Action::Come(at));
            }
            if region.deciding {
                out.push(Action::Decide(at));
            }
            let last = count - 1;
            let has_joined = bounds.joins && state.regions[0].knows.has(last);
            let lacks = has_joined && !region.knows.has(last);
            if lacks || state.is_removed && at > 0 && !region.removed.has(0) {
                out.push(Action::Learn(at));
            }
            for to in (0..count).filter(|to| *to != at) {
                self.between(state, (at, to), out);
            }
        }
        if bounds.joins && !state.regions[0].knows.has(count - 1) {
            out.push(Action::Join);
        }
        if bounds.removes && !state.is_removed {
            out.push(Action::Remove);
        }
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Begin(at) => {
                state.begun += 1;
                self.begin(state, at);
            }
            Action::Resume(at) => {
                state.resumed += 1;
                self.begin(state, at);
            }
            Action::End(at) => {
                state.ended += 1;
                let region = &mut state.regions[at];
                if let Some(home) = region.home {
                    self.replace(region, ended(id(at), &home));
                }
            }
            Action::HearAsk(from, to) => self.hear_ask(state, (from, to), false),
            Action::HearLate(from, to) => self.hear_ask(state, (from, to), true),
            Action::HearAnswer(from, to) => {
                let answer = state.channels[from][to].answer.take();
                self.step(state, from, Event::Answered(id(to), answer));
            }
            Action::LoseAnswer(from, to) => self.lose(state, from, to),
            Action::Wait(at) => {
                state.regions[at].waits = false;
                self.step(state, at, Event::Waited);
            }
            Action::Set(at) => self.set(state, at),
            Action::Restart(at) => {
                state.lost += 1;
                state.regions[at].stop();
                self.forget(state, at);
            }
            Action::Tell(from, to) => {
                state.reported += 1;
                state.channels[from][to].reported = state.regions[from].home.map(Home::as_remote);
            }
            Action::HearTold(from, to) => self.hear_told(state, from, to),
            Action::Come(at) => {
                state.changes += 1;
                state.regions[at].deciding = true;
            }
            Action::Decide(at) => {
                // Each change is a number of its own; which, does not matter.
                let all = state.regions.iter().fold(0, |all, region| all | region.has);
                let region = &mut state.regions[at];
                (region.deciding, region.has) = (false, region.has | (all + 1));
            }
            Action::Pull(from, to) => state.regions[from].has |= state.regions[to].has,
            Action::Remove => {
                state.is_removed = true;
                state.regions[1].removed = Servers::only(0);
            }
            Action::Join => {
                let last = self.bounds.regions - 1;
                state.regions[0].knows = state.regions[0].knows.with(last);
                state.regions[last].knows = state.regions[0].knows;
            }
            Action::Learn(at) => {
                let region = &mut state.regions[at];
                region.knows = Servers::first(self.bounds.regions);
                if state.is_removed && at > 0 {
                    region.removed = Servers::only(0);
                }
            }
            Action::AskBucket(from, to) => {
                let home = state.regions[to].home.map(Home::as_remote);
                let reported = home.filter(|_| !self.is(Variant::MadeWithoutHome));
                state.channels[from][to].made = Some(reported);
            }
            Action::MakeBucket(from, to) => {
                let Some(reported) = state.channels[from][to].made.take() else { return };
                let region = &mut state.regions[from];
                if !region.has_bucket {
                    region.has_bucket = true;
                    region.home =
                        reported.and_then(|reported| merge_home(id(from), None, reported));
                }
            }
        }
    }

    fn broken(&self, state: &State) -> Option<Property> {
        let here: Vec<usize> = state.live().filter(|it| state.regions[*it].is_here()).collect();
        if here.len() > 1 {
            return Some(Property::OneHome);
        }
        let home = *here.first()?;
        let mut others = state.live().filter(|it| *it != home);
        if others.any(|it| state.regions[it].decides()) {
            return Some(Property::OthersAsk);
        }
        let all = state.live().fold(0, |all, it| all | state.regions[it].has);
        (all & !state.regions[home].has != 0).then_some(Property::NothingMissed)
    }
}
