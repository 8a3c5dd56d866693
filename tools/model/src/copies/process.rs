//! A process: its start, its uploads, its end.

use super::{Action, Blobs, Copies, GONE, Phase, State, Variant};

impl Copies {
    pub(super) fn directory_actions(&self, state: &State, at: usize, out: &mut Vec<Action>) {
        let directory = &state.directories[at];
        if !directory.is_there {
            return;
        }
        let unused = (0..self.bounds.directories).find(|to| !state.directories[*to].is_there);
        out.extend(unused.map(|to| Action::Copy(at, to)));
        let phase = directory.phase;
        if phase == Phase::Off {
            out.push(Action::Start(at));
            if state.losses < self.bounds.losses && !directory.is_blank {
                out.push(Action::Lose(at));
            }
            return;
        }
        if state.kills < self.bounds.kills {
            out.push(Action::Kill(at));
        }
        let sealed = directory.log.iter().filter(|content| **content != 0).count() as u8;
        let may_seal = matches!(phase, Phase::Begun | Phase::Runs(_)) && !directory.is_blank;
        if may_seal && sealed < self.bounds.blobs {
            out.push(Action::Seal(at));
        }
        let latest = state.latest();
        let goes_on = match phase {
            Phase::Off => false,
            Phase::MayAsk(_) => latest < self.bounds.numbers,
            Phase::Asked(number, _) => number <= latest,
            Phase::Closing(own, _) => {
                self.is(Variant::NumbersNotClosed) || state.have_records(own - 1)
            }
            Phase::Recording(own, _) => state.have_record(own),
            Phase::Runs(_) => sealed > directory.uploaded,
            Phase::Uploading(own) => state.there.has(own, directory.uploaded + 1),
            Phase::Begun
            | Phase::Listed(_)
            | Phase::Owns(..)
            | Phase::ListedAgain(..)
            | Phase::Decided(..)
            | Phase::Looked(_) => true,
        };
        if goes_on {
            out.push(Action::Step(at, phase));
        }
    }

    /// The next phase, or the end.
    pub(super) fn step(&self, state: &mut State, at: usize, phase: Phase) {
        let next = match phase {
            Phase::Off => None,
            Phase::Begun => Some(Phase::Listed(state.there)),
            Phase::Listed(listed) => self.judge(state, at, listed, None).map(|first| {
                Phase::MayAsk(if self.is(Variant::DecidesBeforeNumbered) { first } else { 0 })
            }),
            Phase::MayAsk(first) => Some(self.ask(state, at, first)),
            Phase::Asked(number, first) => {
                let is_own = state.numbers[number as usize] == self.drawn(state, at);
                Some(if is_own { Phase::Owns(number, first) } else { Phase::MayAsk(first) })
            }
            Phase::Owns(own, first) => (state.latest() == own).then(|| {
                self.closes_before(state, own);
                Phase::Closing(own, first)
            }),
            Phase::Closing(own, 0) => Some(Phase::ListedAgain(own, state.there)),
            Phase::Closing(own, first) => Some(Phase::Decided(own, first)),
            Phase::ListedAgain(own, listed) => {
                self.judge(state, at, listed, Some(own)).map(|first| Phase::Decided(own, first))
            }
            Phase::Decided(own, first) => {
                let may_record = !state.is_claimed || self.is(Variant::RecordsUnasked);
                may_record.then(|| {
                    if !state.have_record(own) {
                        state.recording[own as usize] = first;
                    }
                    Phase::Recording(own, first)
                })
            }
            Phase::Recording(own, first) => state.begins_at(own, first).then(|| {
                state.take_up(at, own, first);
                Phase::Runs(own)
            }),
            Phase::Runs(own) => {
                let directory = &state.directories[at];
                let seq = directory.uploaded + 1;
                state.contents[own as usize][seq as usize - 1] = directory.log[seq as usize - 1];
                state.sent = state.sent.with(Blobs::only(own, seq));
                Some(Phase::Uploading(own))
            }
            Phase::Uploading(own) => {
                let is_last = state.latest() == own || self.is(Variant::NoLookAfterUpload);
                is_last.then_some(Phase::Looked(own))
            }
            Phase::Looked(own) => {
                (!state.is_claimed || self.is(Variant::NoOwnerAfterUpload)).then(|| {
                    let directory = &mut state.directories[at];
                    directory.uploaded += 1;
                    let blob = Blobs::only(own, directory.uploaded);
                    state.acknowledged = state.acknowledged.with(blob);
                    Phase::Runs(own)
                })
            }
        };
        match next {
            Some(next) => state.directories[at].phase = next,
            None => self.stop(state, at),
        }
    }

    fn ask(&self, state: &mut State, at: usize, first: u8) -> Phase {
        let (asked, by) = state.directories[at].intent;
        if asked != 0 && state.numbers[asked as usize] == by {
            return Phase::Owns(asked, first);
        }
        let next = state.latest() + 1;
        let own = at as u8 + 1;
        state.asking |= 1 << own;
        if self.is(Variant::DrawnByDirectory) {
            state.directories[at].intent = (next, own);
        }
        Phase::Asked(next, first)
    }

    /// The number that a process draws.
    fn drawn(&self, state: &State, at: usize) -> u8 {
        if self.is(Variant::DrawnByDirectory) {
            state.directories[at].intent.1
        } else {
            at as u8 + 1
        }
    }

    /// A process ends. What it asked for may come to be all the same.
    pub(super) fn stop(&self, state: &mut State, at: usize) {
        let own = at as u8 + 1;
        state.directories[at].phase = Phase::Off;
        if self.is(Variant::DrawnByDirectory) {
            return;
        }
        for holder in state.numbers.iter_mut().filter(|holder| **holder == own) {
            *holder = GONE;
        }
        if state.asking & 1 << own != 0 {
            state.asking = state.asking & !(1 << own) | 1 << GONE;
        }
    }
}
