//! A bucket is deleted in all regions, or in none for long (ADR 47): closing, deleting, names on their way, a region that joins.
//!
//! Two or three regions that have one bucket. Any request and any answer may arrive at any later moment, or never. A region
//! that waits may give up at any time, and any closed bucket may be opened again. Clients put objects and delete the bucket;
//! nobody makes it by hand.
//!
//! | action | in the code |
//! |---|---|
//! | `Begin` | `roles/proxy/buckets.rs`, `drop_bucket`; `roles/regions/deletions.rs`, `begin`; `protocol/region/deletion.rs` |
//! | `HearClose` | `roles/regions/deletions.rs`, `close` |
//! | `HearClosed`, `HearDeleted`, `GiveUp` | `protocol/region/deletion.rs`, `step` |
//! | `HearDelete` | `roles/regions/deletions.rs`, `end` |
//! | `DeleteOwn` | the same, `delete_closed` |
//! | `Reopen` | the same, `open_again`; `protocol/manager/policy/marks.rs` |
//! | `AskNames`, `AnswerNames`, `HearNames` | `roles/regions/puller.rs`, `Effect::Ask`; `roles/regions/source.rs`, `all_names`; `roles/regions/names.rs`, `learn_names` |
//! | `Put`, `Purge`, `AskObject`, `TakeObject`, `TakeTombstone` | a client's put and delete; `roles/regions/taking.rs` |
//! | `Join`, `Learn` | `link/members.rs`, `admit`, `merge` |
//!
//! That a bucket is found empty, and takes nothing from its mark on, is one step here: `roles/proxy/buckets.rs` has the reasons.
//! There is one key, which is put and purged once each at most.

mod state;
mod variants;

pub use state::State;
use state::{Answer, Bucket, Channel, Deletion, Message, REGIONS, Region};
pub use variants::{Bounds, Property, Variant};

use crate::explore::{Model, Sometimes};
use crate::ids::Servers;

/// A step.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// A client deletes the bucket in a region.
    Begin(usize),
    /// A region is asked by the first to close the bucket.
    HearClose(usize, usize),
    /// The first hears the answer of the second.
    HearClosed(usize, usize),
    /// A region is asked by the first to delete what it closed.
    HearDelete(usize, usize),
    /// The first hears the answer of the second.
    HearDeleted(usize, usize),
    /// All others have deleted it.
    DeleteOwn(usize),
    /// A region gives a deletion up.
    GiveUp(usize),
    /// A closed bucket is opened again.
    Reopen(usize),
    /// The first asks the second for names.
    AskNames(usize, usize),
    /// It answers.
    AnswerNames(usize, usize),
    /// The answer arrives.
    HearNames(usize, usize),
    /// A client puts an object.
    Put(usize),
    /// A client purges it.
    Purge(usize),
    /// The first asks the second for the object.
    AskObject(usize, usize),
    /// It arrives.
    TakeObject(usize, usize),
    /// The first takes the tombstone of the second.
    TakeTombstone(usize, usize),
    /// The last region is let in by the first.
    Join,
    /// A region learns of the one that joined.
    Learn(usize),
}

/// See the module's head.
#[derive(Debug, Clone, Copy)]
pub struct Deletions {
    /// Its bounds.
    pub bounds: Bounds,
    /// The reading of the design.
    pub variant: Variant,
}

impl Deletions {
    fn is(&self, variant: Variant) -> bool {
        self.variant == variant
    }

    fn answer_to_close(&self, region: &mut Region, asked: Servers) -> Answer {
        if !region.knows.within(asked) && !self.is(Variant::UnknownRegionsPass) {
            return None;
        }
        match region.bucket {
            None => {
                region.voided += u8::from(self.is(Variant::AbsentIsAskedOnce));
                Some(None)
            }
            Some(bucket) if bucket.has_object => None,
            Some(bucket)
                if bucket.is_closed
                    && (bucket.is_for_another || self.is(Variant::ClientsMarkIsTaken)) =>
            {
                Some(Some(bucket.epoch))
            }
            Some(_) => Some(Some(region.close(true))),
        }
    }

    fn hear_closed(&self, state: &mut State, from: usize, to: usize) {
        let Some(Message::Answered(answer)) = state.channels[from][to].close.take() else { return };
        let Some(deletion) = &mut state.regions[from].deletion else { return };
        let confirms = deletion.is_confirming;
        match answer {
            Some(closed) if confirms && deletion.closed[to] != Some(closed) => {
                return self.give_up(state, from);
            }
            Some(None) if self.is(Variant::AbsentIsAskedOnce) => {}
            Some(closed) => deletion.closed[to] = Some(closed),
            None => return self.give_up(state, from),
        }
        deletion.asked = deletion.asked.without(to);
        let are_closed = deletion.asked.is_empty();
        if self.is(Variant::DeletesOneByOne) {
            state.ask_to_delete(from, Some(to));
        } else if are_closed && (confirms || self.is(Variant::AskedOnce)) {
            state.ask_to_delete(from, None);
        } else if are_closed {
            self.confirm(state, from);
        }
    }

    /// Asks all once more: so there was a moment at which all had closed it.
    fn confirm(&self, state: &mut State, from: usize) {
        let region = &state.regions[from];
        let deletion = region.deletion.expect("it was begun");
        if !region.is_marked(deletion.mark) && !self.is(Variant::OwnIsNotConfirmed) {
            return self.give_up(state, from);
        }
        let all = region.knows;
        let others = all.without(from);
        let confirming = Deletion { asked: others, is_confirming: true, ..deletion };
        state.regions[from].deletion = Some(confirming);
        for to in others.iter() {
            state.channels[from][to].close = Some(Message::Asked(all));
        }
    }

    fn hear_deleted(&self, state: &mut State, from: usize, to: usize) {
        let Some(Message::Answered(is_gone)) = state.channels[from][to].delete.take() else {
            return;
        };
        let Some(deletion) = &mut state.regions[from].deletion else { return };
        deletion.closed[to] = None;
        if !is_gone {
            self.give_up(state, from);
        }
    }

    /// Answers that are under way are to a deletion that is over.
    fn give_up(&self, state: &mut State, from: usize) {
        let deletion = state.regions[from].deletion.take().expect("it was begun");
        for way in &mut state.channels[from] {
            let is_answer = matches!(way.close, Some(Message::Answered(_)));
            way.close = way.close.filter(|_| !is_answer);
            let is_answer = matches!(way.delete, Some(Message::Answered(_)));
            way.delete = way.delete.filter(|_| !is_answer);
        }
        if state.regions[from].is_marked(deletion.mark) {
            state.regions[from].reopen();
        }
    }

    /// True if a deletion may take the bucket of its own region.
    fn may_delete_own(&self, region: &Region) -> bool {
        let Some(deletion) = region.deletion else { return false };
        let are_gone = deletion.closed.iter().all(Option::is_none);
        let is_due = are_gone || self.is(Variant::OwnFirst) && !deletion.own_is_gone;
        deletion.asked.is_empty() && is_due
    }

    fn delete_own(&self, state: &mut State, from: usize) {
        let deletion = state.regions[from].deletion.expect("it was begun");
        if !deletion.own_is_gone {
            if !state.regions[from].is_marked(deletion.mark) {
                // Another deletion has ended it, or somebody opened it again.
                return self.give_up(state, from);
            }
            if let Some(deletion) = &mut state.regions[from].deletion {
                deletion.is_last = true;
            }
            state.delete(from);
        }
        if deletion.closed.iter().all(Option::is_none) {
            state.regions[from].deletion = None;
            state.is_answered = true;
        } else if let Some(deletion) = &mut state.regions[from].deletion {
            deletion.own_is_gone = true;
        }
    }

    fn hear_delete(&self, state: &mut State, from: usize, to: usize) {
        let Some(Message::Asked(closed)) = state.channels[from][to].delete.take() else { return };
        let region = &mut state.regions[to];
        let is_closed = region.bucket.is_some_and(|bucket| bucket.is_closed);
        let by_name = self.is(Variant::DeletesByName) && is_closed;
        let is_marked = closed.is_some_and(|mark| region.is_marked(mark));
        let is_gone = match region.bucket {
            None if closed.is_none() || self.is(Variant::GoneIsDeleted) => {
                region.voided += 1;
                true
            }
            // Another deletion has deleted it: it may have come back elsewhere since.
            None => false,
            Some(_) if by_name || is_marked => {
                state.delete(to);
                true
            }
            Some(_) => false,
        };
        // Nobody hears the answer to a deletion that is over.
        if state.regions[from].deletion.is_some_and(|it| it.closed[to] == Some(closed)) {
            state.channels[from][to].delete = Some(Message::Answered(is_gone));
        }
    }

    fn hear_close(&self, state: &mut State, from: usize, to: usize) {
        let Some(Message::Asked(asked)) = state.channels[from][to].close.take() else { return };
        let answer = self.answer_to_close(&mut state.regions[to], asked);
        if state.regions[from].deletion.is_some_and(|it| it.asked.has(to)) {
            state.channels[from][to].close = Some(Message::Answered(answer));
        }
    }

    fn hear_names(&self, state: &mut State, from: usize, to: usize) {
        let Some((requested_at, Some(is_there))) = state.channels[from][to].names.take() else {
            return;
        };
        let region = &mut state.regions[from];
        let is_valid = requested_at == region.voided || self.is(Variant::OldAnswersMake);
        if is_there && region.bucket.is_none() && is_valid {
            region.make();
        }
    }

    fn between(&self, state: &State, from: usize, to: usize, out: &mut Vec<Action>) {
        let (region, other, way) =
            (&state.regions[from], &state.regions[to], &state.channels[from][to]);
        match way.close {
            Some(Message::Asked(_)) => out.push(Action::HearClose(from, to)),
            Some(Message::Answered(_)) => out.push(Action::HearClosed(from, to)),
            None => {}
        }
        match way.delete {
            Some(Message::Asked(_)) => out.push(Action::HearDelete(from, to)),
            Some(Message::Answered(_)) => out.push(Action::HearDeleted(from, to)),
            None => {}
        }
        match way.names {
            None if state.asks < self.bounds.asks && region.knows.has(to) => {
                out.push(Action::AskNames(from, to));
            }
            // A region answers only those that it knows.
            Some((_, None)) if other.knows.has(from) => out.push(Action::AnswerNames(from, to)),
            Some((_, Some(_))) => out.push(Action::HearNames(from, to)),
            None | Some((_, None)) => {}
        }
        self.objects(state, from, to, out);
    }

    fn objects(&self, state: &State, from: usize, to: usize, out: &mut Vec<Action>) {
        let (region, other) = (&state.regions[from], &state.regions[to]);
        if state.channels[from][to].object.is_some() {
            out.push(Action::TakeObject(from, to));
        }
        let Some(bucket) = region.bucket.filter(|_| region.knows.has(to)) else { return };
        let Some(theirs) = other.bucket else { return };
        if theirs.has_object && !bucket.has_object && !bucket.has_tombstone {
            out.push(Action::AskObject(from, to));
        }
        if theirs.has_tombstone && !bucket.has_tombstone && !bucket.is_closed {
            out.push(Action::TakeTombstone(from, to));
        }
    }

    fn take_object(&self, state: &mut State, from: usize, to: usize) {
        let Some(asked_in) = state.channels[from][to].object.take() else { return };
        let Some(bucket) = &mut state.regions[from].bucket else { return };
        let is_open = !bucket.is_closed || self.is(Variant::ClosedTakesObjects);
        let is_same = bucket.epoch == asked_in
            || self.is(Variant::AnyEpochTakes)
            || self.is(Variant::ClosedTakesObjects);
        bucket.has_object |= is_open && is_same && !bucket.has_tombstone;
    }
}

impl Model for Deletions {
    type State = State;
    type Action = Action;
    type Property = Property;

    const SOMETIMES: &'static [Sometimes<State>] = &[
        ("a bucket is deleted in all regions", |state| state.is_answered),
        ("two deletions are under way", |state| {
            state.regions.iter().filter(|region| region.deletion.is_some()).count() == 2
        }),
        ("a region has deleted the bucket and makes it again", |state| {
            state.regions.iter().any(|region| region.voided > 0 && region.is_live())
        }),
        ("a bucket with an object stays", |state| {
            state.begun > 0
                && state.regions.iter().any(|it| it.bucket.is_some_and(|it| it.has_object))
        }),
        ("the region that joined has the bucket", |state| {
            state.regions[0].voided == 0 && state.regions[2].epochs == 1
        }),
    ];

    fn initial(&self) -> State {
        let Bounds { regions, joins, .. } = self.bounds;
        let known = Servers::first(if joins { regions - 1 } else { regions });
        let mut all = [Region::default(); REGIONS];
        for (number, region) in all.iter_mut().enumerate().take(regions) {
            region.knows = if known.has(number) { known } else { Servers::only(number) };
            if known.has(number) {
                region.make();
            }
        }
        State {
            regions: all,
            channels: <[[Channel; REGIONS]; REGIONS]>::default(),
            begun: 0,
            asks: 0,
            puts: 0,
            reopenings: 0,
            is_answered: false,
            is_object_lost: false,
            is_purged: false,
        }
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        let count = self.bounds.regions;
        for from in 0..count {
            let region = &state.regions[from];
            let is_empty = region.bucket.is_some_and(|bucket| !bucket.has_object);
            if is_empty && region.deletion.is_none() && state.begun < self.bounds.deletions {
                out.push(Action::Begin(from));
            }
            if region.deletion.is_some() {
                out.push(Action::GiveUp(from));
            }
            if self.may_delete_own(region) {
                out.push(Action::DeleteOwn(from));
            }
            let is_closed = region.bucket.is_some_and(|bucket| bucket.is_closed);
            if is_closed && state.reopenings < self.bounds.reopenings {
                out.push(Action::Reopen(from));
            }
            if region.is_live() && is_empty && state.puts < self.bounds.puts {
                out.push(Action::Put(from));
            }
            if region.is_live() && !is_empty && self.bounds.purges {
                out.push(Action::Purge(from));
            }
            if self.bounds.joins
                && state.regions[0].knows.has(count - 1)
                && !region.knows.has(count - 1)
            {
                out.push(Action::Learn(from));
            }
            for to in (0..count).filter(|to| *to != from) {
                self.between(state, from, to, out);
            }
        }
        if self.bounds.joins && !state.regions[0].knows.has(count - 1) {
            out.push(Action::Join);
        }
    }

    fn apply(&self, state: &mut State, action: Action) {
        let last = self.bounds.regions - 1;
        match action {
            Action::Begin(from) => {
                state.begun += 1;
                let region = &mut state.regions[from];
                let (mark, others) = (region.close(false), region.knows.without(from));
                region.deletion = Some(Deletion {
                    mark,
                    asked: others,
                    closed: [None; REGIONS],
                    is_confirming: false,
                    is_deleting: false,
                    own_is_gone: false,
                    is_last: false,
                });
                let all = region.knows;
                for to in others.iter() {
                    state.channels[from][to] = Channel {
                        close: Some(Message::Asked(all)),
                        delete: None,
                        ..state.channels[from][to]
                    };
                }
            }
            Action::HearClose(from, to) => self.hear_close(state, from, to),
            Action::HearClosed(from, to) => self.hear_closed(state, from, to),
            Action::HearDelete(from, to) => self.hear_delete(state, from, to),
            Action::HearDeleted(from, to) => self.hear_deleted(state, from, to),
            Action::DeleteOwn(from) => self.delete_own(state, from),
            Action::GiveUp(from) => self.give_up(state, from),
            Action::Reopen(region) => {
                state.reopenings += 1;
                state.regions[region].reopen();
            }
            Action::AskNames(from, to) => {
                state.asks += 1;
                state.channels[from][to].names = Some((state.regions[from].voided, None));
            }
            Action::AnswerNames(from, to) => {
                let other = &state.regions[to];
                let tells_closed = self.is(Variant::ClosedNamesTold) && other.bucket.is_some();
                let is_there = other.is_live() || tells_closed;
                if let Some((_, answer)) = &mut state.channels[from][to].names {
                    *answer = Some(is_there);
                }
            }
            Action::HearNames(from, to) => self.hear_names(state, from, to),
            Action::Put(region) => {
                state.puts += 1;
                state.regions[region].bucket.as_mut().expect("it is there").has_object = true;
            }
            Action::Purge(region) => {
                state.is_purged = true;
                let bucket = state.regions[region].bucket.as_mut().expect("it is there");
                (bucket.has_object, bucket.has_tombstone) = (false, true);
            }
            Action::AskObject(from, to) => {
                let bucket = state.regions[from].bucket.expect("it is there");
                state.channels[from][to].object = Some(bucket.epoch);
            }
            Action::TakeObject(from, to) => self.take_object(state, from, to),
            Action::TakeTombstone(from, _) => {
                let bucket = state.regions[from].bucket.as_mut().expect("it is there");
                (bucket.has_object, bucket.has_tombstone) = (false, true);
            }
            Action::Join => {
                state.regions[0].knows = state.regions[0].knows.with(last);
                state.regions[last].knows = state.regions[0].knows;
            }
            Action::Learn(region) => {
                state.regions[region].knows = state.regions[region].knows.with(last);
            }
        }
    }

    fn broken(&self, state: &State) -> Option<Property> {
        if state.is_object_lost {
            return Some(Property::ObjectsStay);
        }
        let any = |has: fn(&Bucket) -> bool| {
            state.regions.iter().any(|region| region.bucket.as_ref().is_some_and(has))
        };
        if state.is_purged && any(|it| it.has_object) && !any(|it| it.has_tombstone) {
            return Some(Property::PurgedStays);
        }
        let has_it = state.regions.iter().any(|region| region.bucket.is_some());
        (state.is_answered && has_it).then_some(Property::DeletedStays)
    }
}
