//! The deletion of a bucket that several regions have: each closes it, and only then is it deleted anywhere (ADR 47).
//!
//! ```text
//!  region that was asked                    every other region
//!  marked here, found empty  ──Close──────▶ marks it, finds it empty; or has none
//!                            ◀──its mark──
//!  once all have closed it   ──Close──────▶ it is so still
//!                            ◀──its mark──
//!  once all have said that   ──Delete─────▶ deletes what it closed under that mark; or has none still
//!                            ◀──it is gone──
//!  once all have deleted it: deletes its own, and answers the client
//! ```
//!
//! If one fails, or does not answer, the others open the bucket again. A region that has deleted it by then makes it again, empty as
//! it was, when it hears that another has it.
//!
//! # Invariants
//!
//! 1. No region is asked to delete before every region has closed the bucket, and has said once more, after that, that it is
//!    closed under the same mark. So there was a moment at which it was closed and empty in all. Tombstones of it are of no
//!    use any more, as what was asked for before is not taken into a bucket with another epoch.
//! 2. A region is asked to delete only what it closed, by its mark. One that has no such bucket is asked to stay without it.
//! 3. This region's own bucket is deleted last. So a client hears that the bucket is deleted only when no region has it.
//!
//! The model `deletion` of `tools/model` shows what else that needs of the driver.

use std::collections::BTreeMap;

use larder_types::{BucketId, Epoch, RegionId};
use serde::{Deserialize, Serialize};

/// A closed bucket of a region, and the epoch since which it takes no changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// Its id in that region.
    pub bucket: BucketId,
    /// Its epoch there.
    pub epoch: Epoch,
}

/// A region's answer to being asked to close a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CloseAnswer {
    /// It is closed and empty.
    Closed(Mark),
    /// The region has no such bucket.
    Absent,
    /// The bucket has objects there, and stays open.
    HasObjects,
    /// The region knows of regions that the asking one does not.
    OtherRegions,
    /// The bucket has a home there, and stays open.
    HasHome,
}

/// The reason why a bucket is not deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// This region has objects in it.
    HasObjects(RegionId),
    /// This region does not answer, or cannot close or delete the bucket now.
    NoAnswer(RegionId),
    /// This region knows of regions that this one does not know yet.
    OtherRegions(RegionId),
    /// This region knows of a home of the bucket.
    HasHome(RegionId),
    /// Somebody has opened the bucket here, or another deletion has begun.
    Lifted,
}

/// Input of [`Deletion::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A region answers [`Effect::Close`]; `None` if it did not in time.
    Close(RegionId, Option<CloseAnswer>),
    /// Answers [`Effect::CheckOwn`]: true if the bucket here is closed under the same mark still.
    Own(bool),
    /// A region answers [`Effect::Delete`]: true if it has done so.
    Delete(RegionId, bool),
}

/// Output of [`Deletion::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Ask a region to close the bucket, or whether it is closed.
    Close(RegionId),
    /// Look whether the bucket here is closed.
    CheckOwn,
    /// Ask a region to delete what it closed; `None` if that is nothing, so that it makes none from what it heard before.
    Delete(RegionId, Option<Mark>),
    /// Tell a region to open the bucket again. Nobody waits for an answer: a mark that nobody ends is lifted after a while.
    Reopen(RegionId, Mark),
    /// Delete the bucket here. This is the end.
    DeleteOwn,
    /// Open the bucket here again. This is the end.
    ReopenOwn(Failed),
}

/// State of another region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asked,
    /// `None` if it has no such bucket.
    Closed(Option<Mark>),
    /// It was closed, and is asked once more.
    Confirming(Option<Mark>),
    Confirmed(Option<Mark>),
    Deleted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Closing,
    CheckingOwn,
    Confirming,
    Deleting,
}

/// See the module's head.
#[derive(Debug)]
pub struct Deletion {
    others: BTreeMap<RegionId, State>,
    phase: Phase,
    is_over: bool,
}

impl Deletion {
    /// Begins to delete a bucket that is marked and empty here, and that these other regions may have.
    pub fn begin(others: impl Iterator<Item = RegionId>, out: &mut Vec<Effect>) -> Self {
        let others: BTreeMap<_, _> = others.map(|region| (region, State::Asked)).collect();
        out.extend(others.keys().map(|region| Effect::Close(*region)));
        let mut deletion = Self { others, phase: Phase::Closing, is_over: false };
        deletion.go_on(out);
        deletion
    }

    /// True once [`Effect::DeleteOwn`] or [`Effect::ReopenOwn`] is out. No event has an effect from then on.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes an answer.
    pub fn step(&mut self, event: Event, out: &mut Vec<Effect>) {
        if self.is_over {
            // A region that closes late waits for nobody.
            if let Event::Close(region, Some(CloseAnswer::Closed(mark))) = event {
                out.push(Effect::Reopen(region, mark));
            }
            return;
        }
        match event {
            Event::Close(region, answer) => {
                let answer = answer.ok_or(Failed::NoAnswer(region));
                let closed = answer.and_then(|answer| match answer {
                    CloseAnswer::Closed(mark) => Ok(Some(mark)),
                    CloseAnswer::Absent => Ok(None),
                    CloseAnswer::HasObjects => Err(Failed::HasObjects(region)),
                    CloseAnswer::OtherRegions => Err(Failed::OtherRegions(region)),
                    CloseAnswer::HasHome => Err(Failed::HasHome(region)),
                });
                let Some(state) = self.others.get_mut(&region) else { return };
                match (*state, closed) {
                    (State::Asked, Ok(closed)) => *state = State::Closed(closed),
                    (State::Confirming(before), Ok(now)) if now == before => {
                        *state = State::Confirmed(now);
                    }
                    // It was open meanwhile.
                    (State::Confirming(_), Ok(_)) => {
                        return self.fail(Failed::NoAnswer(region), out);
                    }
                    (State::Asked | State::Confirming(_), Err(failed)) => {
                        return self.fail(failed, out);
                    }
                    (State::Closed(_) | State::Confirmed(_) | State::Deleted, _) => return,
                }
            }
            Event::Own(is_closed) => {
                if self.phase != Phase::CheckingOwn {
                    return;
                }
                if !is_closed {
                    return self.fail(Failed::Lifted, out);
                }
                self.phase = Phase::Confirming;
                for (region, state) in &mut self.others {
                    if let State::Closed(closed) = *state {
                        *state = State::Confirming(closed);
                        out.push(Effect::Close(*region));
                    }
                }
            }
            Event::Delete(region, is_gone) => {
                let Some(state @ State::Confirmed(_)) = self.others.get_mut(&region) else {
                    return;
                };
                if self.phase != Phase::Deleting {
                    return;
                }
                if !is_gone {
                    return self.fail(Failed::NoAnswer(region), out);
                }
                *state = State::Deleted;
            }
        }
        self.go_on(out);
    }

    fn go_on(&mut self, out: &mut Vec<Effect>) {
        let are_all = |is: fn(&State) -> bool| self.others.values().all(is);
        match self.phase {
            Phase::Closing if are_all(|state| matches!(state, State::Closed(_))) => {
                self.phase = Phase::CheckingOwn;
                out.push(Effect::CheckOwn);
            }
            Phase::Confirming if are_all(|state| matches!(state, State::Confirmed(_))) => {
                self.phase = Phase::Deleting;
                for (region, state) in &self.others {
                    if let State::Confirmed(closed) = state {
                        out.push(Effect::Delete(*region, *closed));
                    }
                }
                self.end_if_deleted(out);
            }
            Phase::Deleting => self.end_if_deleted(out),
            Phase::Closing | Phase::CheckingOwn | Phase::Confirming => {}
        }
    }

    fn end_if_deleted(&mut self, out: &mut Vec<Effect>) {
        if self.others.values().all(|state| *state == State::Deleted) {
            self.is_over = true;
            out.push(Effect::DeleteOwn);
        }
    }

    fn fail(&mut self, failed: Failed, out: &mut Vec<Effect>) {
        for (region, state) in &self.others {
            let (State::Closed(closed) | State::Confirming(closed) | State::Confirmed(closed)) =
                state
            else {
                continue;
            };
            out.extend(closed.map(|mark| Effect::Reopen(*region, mark)));
        }
        self.is_over = true;
        out.push(Effect::ReopenOwn(failed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: RegionId = RegionId(2);
    const JP: RegionId = RegionId(3);

    fn mark(epoch: u64) -> Mark {
        Mark { bucket: BucketId(7), epoch: Epoch(epoch) }
    }

    fn closed(region: RegionId, epoch: u64) -> Event {
        Event::Close(region, Some(CloseAnswer::Closed(mark(epoch))))
    }

    fn begun() -> (Deletion, Vec<Effect>) {
        let mut out = Vec::new();
        let deletion = Deletion::begin([US, JP].into_iter(), &mut out);
        assert_eq!(std::mem::take(&mut out), [Effect::Close(US), Effect::Close(JP)]);
        (deletion, out)
    }

    /// Both have said twice that they have closed it.
    fn confirmed() -> (Deletion, Vec<Effect>) {
        let (mut it, _) = begun();
        stepped(&mut it, closed(JP, 3));
        stepped(&mut it, closed(US, 9));
        stepped(&mut it, Event::Own(true));
        stepped(&mut it, closed(JP, 3));
        let asked = stepped(&mut it, closed(US, 9));
        (it, asked)
    }

    fn stepped(deletion: &mut Deletion, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        deletion.step(event, &mut out);
        out
    }

    #[test]
    fn nothing_is_deleted_before_all_have_closed_and_the_own_one_comes_last() {
        let (mut it, _) = begun();
        assert_eq!(stepped(&mut it, closed(JP, 3)), []);
        assert_eq!(stepped(&mut it, Event::Delete(JP, true)), [], "it was not asked to");
        assert_eq!(stepped(&mut it, Event::Own(true)), [], "nobody asked");
        assert_eq!(stepped(&mut it, closed(US, 9)), [Effect::CheckOwn]);
        let again = stepped(&mut it, Event::Own(true));
        assert_eq!(again, [Effect::Close(US), Effect::Close(JP)]);
        assert_eq!(stepped(&mut it, closed(US, 9)), []);
        let all = stepped(&mut it, closed(JP, 3));
        assert_eq!(all, [Effect::Delete(US, Some(mark(9))), Effect::Delete(JP, Some(mark(3)))]);
        assert_eq!(stepped(&mut it, Event::Delete(US, true)), []);
        assert_eq!(stepped(&mut it, Event::Delete(US, true)), [], "told twice");
        assert!(!it.is_over());
        assert_eq!(stepped(&mut it, Event::Delete(JP, true)), [Effect::DeleteOwn]);
        assert!(it.is_over());
    }

    #[test]
    fn a_bucket_that_was_open_meanwhile_is_not_deleted() {
        let reopened = [Effect::Reopen(US, mark(9)), Effect::Reopen(JP, mark(3))];
        let (mut it, _) = begun();
        stepped(&mut it, closed(JP, 3));
        stepped(&mut it, closed(US, 9));
        let ended = stepped(&mut it, Event::Own(false));
        assert_eq!(ended, [&reopened[..], &[Effect::ReopenOwn(Failed::Lifted)]].concat());
        for answer in [CloseAnswer::Closed(mark(10)), CloseAnswer::Absent] {
            let (mut it, _) = begun();
            stepped(&mut it, closed(JP, 3));
            stepped(&mut it, closed(US, 9));
            stepped(&mut it, Event::Own(true));
            let ended = stepped(&mut it, Event::Close(US, Some(answer)));
            let failed = Effect::ReopenOwn(Failed::NoAnswer(US));
            assert_eq!(ended, [&reopened[..], &[failed]].concat());
        }
    }

    #[test]
    fn a_region_that_cannot_delete_has_all_others_open_the_bucket_again() {
        for (answer, failed) in [
            (Some(CloseAnswer::HasObjects), Failed::HasObjects(US)),
            (Some(CloseAnswer::OtherRegions), Failed::OtherRegions(US)),
            (Some(CloseAnswer::HasHome), Failed::HasHome(US)),
            (None, Failed::NoAnswer(US)),
        ] {
            let (mut it, _) = begun();
            assert_eq!(stepped(&mut it, closed(JP, 3)), []);
            let ended = stepped(&mut it, Event::Close(US, answer));
            assert_eq!(ended, [Effect::Reopen(JP, mark(3)), Effect::ReopenOwn(failed)]);
        }
        let (mut it, _) = begun();
        let ended = stepped(&mut it, Event::Close(US, None));
        assert_eq!(ended, [Effect::ReopenOwn(Failed::NoAnswer(US))]);
        assert_eq!(stepped(&mut it, closed(JP, 4)), [Effect::Reopen(JP, mark(4))], "it was late");
        assert_eq!(stepped(&mut it, Event::Close(JP, Some(CloseAnswer::HasObjects))), []);
    }

    #[test]
    fn a_region_that_deleted_a_bucket_gets_no_order_to_open_it() {
        let (mut it, _) = confirmed();
        assert_eq!(stepped(&mut it, Event::Delete(JP, true)), []);
        let ended = stepped(&mut it, Event::Delete(US, false));
        let failed = Effect::ReopenOwn(Failed::NoAnswer(US));
        assert_eq!(ended, [Effect::Reopen(US, mark(9)), failed]);
        assert_eq!(stepped(&mut it, Event::Delete(US, true)), [], "it is over");
    }

    #[test]
    fn a_region_without_it_is_asked_to_stay_without_it() {
        let mut out = Vec::new();
        let mut alone = Deletion::begin(std::iter::empty(), &mut out);
        assert_eq!(std::mem::take(&mut out), [Effect::CheckOwn]);
        assert_eq!(stepped(&mut alone, Event::Own(true)), [Effect::DeleteOwn]);
        let (mut it, _) = begun();
        let absent = |region| Event::Close(region, Some(CloseAnswer::Absent));
        stepped(&mut it, absent(US));
        assert_eq!(stepped(&mut it, absent(JP)), [Effect::CheckOwn]);
        stepped(&mut it, Event::Own(true));
        stepped(&mut it, absent(US));
        let all = stepped(&mut it, absent(JP));
        assert_eq!(all, [Effect::Delete(US, None), Effect::Delete(JP, None)]);
        assert_eq!(stepped(&mut it, Event::Delete(JP, true)), []);
        let ended = stepped(&mut it, Event::Delete(US, false));
        assert_eq!(ended, [Effect::ReopenOwn(Failed::NoAnswer(US))], "it has made one since");
    }
}
