//! The rules: which blobs count, which processes know it, and what must hold.

use super::{BLOBS, Blobs, Copies, NUMBERS, Phase, Property, Record, State, Variant};

impl State {
    /// The greatest number that was taken.
    pub(super) fn latest(&self) -> u8 {
        self.numbers[1..].iter().take_while(|holder| **holder != 0).count() as u8
    }

    pub(super) fn have_record(&self, number: u8) -> bool {
        self.records[number as usize] != Record::None
    }

    /// True if all through this one have a record.
    pub(super) fn have_records(&self, last: u8) -> bool {
        (1..=last).all(|number| self.have_record(number))
    }

    pub(super) fn begins_at(&self, number: u8, first: u8) -> bool {
        self.records[number as usize] == Record::From(first)
    }

    /// Makes a record, if there is none.
    pub(super) fn write_record(&mut self, number: u8, record: Record) {
        assert!(!self.have_record(number), "requests for a record that is there are gone");
        self.records[number as usize] = record;
        self.recording[number as usize] = 0;
        self.closing &= !(1 << number);
    }

    pub(super) fn counts_by_records(&self, process: u8, seq: u8) -> bool {
        self.records[process as usize + 1..]
            .iter()
            .all(|record| !matches!(record, Record::From(first) if *first <= seq))
    }

    fn counts(&self, process: u8, seq: u8) -> bool {
        self.counts_by_records(process, seq) && self.takeover_fence.is_none_or(|last| seq <= last)
    }

    fn content(&self, process: u8, seq: u8) -> u8 {
        self.contents[process as usize][seq as usize - 1]
    }

    pub(super) fn seal(&mut self, at: usize) {
        let directory = &mut self.directories[at];
        let content = at as u8 + 1 + 4 * directory.losses;
        let next = directory.log.iter_mut().find(|content| **content == 0);
        *next.expect("offered only then") = content;
    }

    /// Records as uploaded what is known to be there when a process begins.
    pub(super) fn take_up(&mut self, at: usize, own: u8, first: u8) {
        let before = self.there.filter(|process, seq| {
            process < own && seq < first && self.counts_by_records(process, seq)
        });
        let uploaded = self.directories[at].uploaded;
        for (process, seq) in before.iter().filter(|(_, seq)| *seq > uploaded) {
            if self.directories[at].is_blank {
                self.directories[at].log[seq as usize - 1] = self.content(process, seq);
            }
            self.acknowledged = self.acknowledged.with(Blobs::only(process, seq));
        }
        let directory = &mut self.directories[at];
        directory.uploaded = first - 1;
        (directory.is_blank, directory.intent) = (false, (0, 0));
    }

    fn owner(&self) -> Option<usize> {
        if self.is_claimed {
            return None;
        }
        let latest = self.latest();
        self.directories.iter().position(|directory| {
            matches!(directory.phase, Phase::Runs(own) | Phase::Looked(own) if own == latest)
        })
    }

    pub(super) fn broken(&self, model: &Copies) -> Option<Property> {
        let counted = self.there.filter(|process, seq| self.counts(process, seq));
        let has = |seq: u8, content: u8| {
            counted.iter().any(|(process, of)| of == seq && self.content(process, seq) == content)
        };
        let is_kept = self.directories.iter().all(|directory| {
            (1..=directory.uploaded).all(|seq| has(seq, directory.log[seq as usize - 1]))
        });
        if !is_kept || !self.acknowledged.within(counted) {
            return Some(Property::UploadedCounts);
        }
        if !self.accepted.within(counted) {
            return Some(Property::AcceptedCounts);
        }
        if (1..=BLOBS as u8).any(|seq| counted.iter().filter(|(_, of)| *of == seq).count() > 1) {
            return Some(Property::OneCounts);
        }
        let is_known = self.owner().is_none_or(|at| {
            let log = &self.directories[at].log;
            counted.iter().all(|(process, seq)| self.content(process, seq) == log[seq as usize - 1])
        });
        if !is_known {
            return Some(Property::OwnerKnows);
        }
        let mut there = (0..self.directories.len()).filter(|at| self.directories[*at].is_there);
        if !there.any(|at| model.judge(self, at, self.there, None).is_some()) {
            return Some(Property::SomeMayStart);
        }
        self.has_lacked.then_some(Property::ReadersHaveAll)
    }
}

impl Copies {
    /// Where a process would begin, or nothing if its directory does not know a blob that counts. `own` is its number, if
    /// it has one.
    pub(super) fn judge(
        &self,
        state: &State,
        at: usize,
        listed: Blobs,
        own: Option<u8>,
    ) -> Option<u8> {
        let directory = &state.directories[at];
        let own = own.unwrap_or(state.latest() + 1);
        let mut first = directory.uploaded + 1;
        for seq in directory.uploaded + 1..=self.bounds.blobs {
            let mut of_seq = listed.iter().filter(|(process, of)| {
                *of == seq
                    && (state.counts_by_records(*process, seq) || self.is(Variant::AdoptsVoid))
            });
            let Some((process, _)) = of_seq.next() else { break };
            let is_same = directory.log[seq as usize - 1] == state.content(process, seq);
            if directory.is_blank {
                first = seq + 1;
                continue;
            }
            if !is_same || process + 1 != own && self.is(Variant::KnowsFromTheLastOnly) {
                return None;
            }
            if process + 1 != own && self.is(Variant::AdoptsFromTheLastOnly) {
                break;
            }
            first = seq + 1;
        }
        Some(first)
    }

    /// The reads of a reader beside the list: the blobs that would count, and the newest process, if its last blob is
    /// undecided.
    pub(super) fn reader_knows(&self, state: &State) -> (Blobs, u8) {
        let all = Blobs(u16::MAX >> (16 - (NUMBERS - 1) * BLOBS));
        let claims = !self.is(Variant::ReaderIgnoresClaims);
        let counting = all.filter(|process, seq| {
            state.counts_by_records(process, seq)
                && state.takeover_fence.is_none_or(|last| seq <= last || !claims)
        });
        let newest = (1..=state.latest())
            .rfind(|number| matches!(state.records[*number as usize], Record::From(_)))
            .unwrap_or(0);
        let is_open = !self.is(Variant::ReaderIgnoresNumbers)
            && (newest + 1..=state.latest()).any(|number| !state.have_record(number));
        let is_left = is_open || claims && state.is_claimed;
        let is_decided = claims
            && state.takeover_fence.is_some()
            && !self.is(Variant::ReaderDoubtsTakeoverFence);
        (counting, if is_left && !is_decided { newest } else { 0 })
    }

    /// Of listed blobs that count those that no later process or heir can judge void.
    pub(super) fn decided(
        &self,
        state: &State,
        listed: Blobs,
        counted: Blobs,
        newest: u8,
    ) -> Blobs {
        let last =
            |of: u8| listed.iter().filter(|(process, _)| *process == of).map(|(_, seq)| seq).max();
        if self.is(Variant::ReaderDoubtsEachLast) {
            let is_open =
                |of: u8| (of + 1..=state.latest()).any(|number| !state.have_record(number));
            let doubted = counted
                .iter()
                .filter(|(process, seq)| is_open(*process) && last(*process) == Some(*seq));
            let cut = doubted.map(|(_, seq)| seq).min().unwrap_or(u8::MAX);
            return counted.filter(|_, seq| seq < cut);
        }
        match last(newest) {
            Some(seq) => counted.without(Blobs::only(newest, seq)),
            None => counted,
        }
    }
}
