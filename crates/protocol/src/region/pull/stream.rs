//! The progress in one journal of another region: the position received, what of it is settled, and what was skipped.

use std::collections::BTreeMap;

use larder_types::OpSeq;

use super::super::journal::Token;
use super::lack::{Lack, Lacks};
use super::{Effect, Source};

/// See the module's head.
#[derive(Debug)]
pub(super) struct Stream {
    /// All up to here is settled.
    pub(super) settled: Token,
    /// The region has told ids up to here.
    pub(super) position: Token,
    /// Outcomes and bytes behind that, as the region said.
    pub(super) left: (u64, u64),
    /// Positions of this era whose claims are not settled, each with the print that was told there.
    pub(super) open: BTreeMap<OpSeq, u128>,
    /// Counts how often its token was void. What was told before is found by the comparison, and a journal that has lost
    /// outcomes gives their positions to others: those of an earlier era mean nothing.
    pub(super) era: u32,
    /// Outcomes that are to be told again.
    pub(super) skipped: Option<Skipped>,
    /// Claims of comparisons that are not settled.
    pub(super) listed: usize,
    /// Reasons for which comparisons passed over some of its entries: the token waits for another one.
    pub(super) incomplete: Lacks,
    pub(super) course: JournalState,
    pub(super) requested_ms: u64,
    /// Its region has answered since the start.
    pub(super) is_heard: bool,
    /// Time of its last answer, or of the machine's start.
    pub(super) heard_ms: u64,
}

/// The course of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JournalState {
    /// It is followed from the last id that it told.
    Followed,
    /// Its token is void: it is followed from this one, once all keys are compared.
    Void(Token),
    /// It is followed, but its token waits for what the comparison found.
    Compared,
}

/// Outcomes of a journal that were passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Skipped {
    /// The first of them. The token stays before it.
    pub(super) first: OpSeq,
    /// Their number.
    pub(super) count: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    pub(super) lacks: Lacks,
}

impl Stream {
    pub(super) fn new(now_ms: u64, settled: Token) -> Self {
        Self {
            settled,
            position: settled,
            left: (0, 0),
            open: BTreeMap::new(),
            era: 0,
            skipped: None,
            listed: 0,
            incomplete: Lacks::default(),
            course: JournalState::Followed,
            requested_ms: 0,
            is_heard: false,
            heard_ms: now_ms,
        }
    }

    pub(super) fn is_void(&self) -> bool {
        matches!(self.course, JournalState::Void(_))
    }

    /// Marks the token as void. The comparison finds what was passed over, and what was told and is not here.
    pub(super) fn become_void(&mut self, resume: Token) {
        assert!(!self.is_void(), "a journal that is void is not asked for ids");
        (self.course, self.left) = (JournalState::Void(resume), (0, 0));
        (self.skipped, self.era) = (None, self.era + 1);
        self.open.clear();
    }

    /// The op up to which all that the journal told is settled.
    fn through(&self) -> OpSeq {
        let first =
            self.open.keys().next().copied().into_iter().chain(self.skipped.map(|it| it.first));
        first.map(|first| OpSeq(first.0 - 1)).fold(self.position.through, OpSeq::min)
    }

    /// Moves the token as far as claims are settled.
    pub(super) fn move_token(&mut self, source: Source, out: &mut Vec<Effect>) {
        let through = self.through();
        if self.course == JournalState::Followed && through > self.settled.through {
            self.save(source, through, out);
        }
    }

    /// Follows a journal again that was compared, once all that was listed of it is settled.
    pub(super) fn move_compared_token(&mut self, source: Source, out: &mut Vec<Effect>) {
        if self.course == JournalState::Compared && self.listed == 0 && !self.incomplete.any() {
            self.course = JournalState::Followed;
            // Where a journal has lost what it told, the token goes back.
            self.save(source, self.through(), out);
        }
    }

    fn save(&mut self, source: Source, through: OpSeq, out: &mut Vec<Effect>) {
        self.settled = Token { through };
        out.push(Effect::SaveToken { source, token: self.settled });
    }

    /// Passes over an outcome of this era that was claimed. The token stays before it, and it is told again later.
    pub(super) fn skip(&mut self, op: OpSeq, bytes: u64, lack: Lack) {
        assert!(!self.is_void(), "a journal that is void has no positions");
        let was_open = self.open.remove(&op).is_some();
        assert!(was_open, "only the id of an open entry is passed over");
        let none = Skipped { first: op, count: 0, bytes: 0, lacks: Lacks::default() };
        let skipped = self.skipped.get_or_insert(none);
        skipped.first = skipped.first.min(op);
        skipped.count = skipped.count.saturating_add(1);
        skipped.bytes = skipped.bytes.saturating_add(bytes);
        skipped.lacks.add(lack);
    }

    /// Goes back to what was passed over.
    pub(super) fn go_back(&mut self) {
        let Some(Skipped { first, count, bytes, .. }) = self.skipped.take() else { return };
        self.position = Token { through: OpSeq(first.0 - 1) };
        self.left = (self.left.0.saturating_add(count), self.left.1.saturating_add(bytes));
    }
}
