//! Background work of a meta server under one budget. It chooses the piece that begins next, and limits how much of
//! disks and network all of them may use while clients are served (ADR 14).
//!
//! ```text
//!  driver of a kind ── wants ─▶ may_begin ─▶ the piece is done ─▶ ended
//!  the data servers' queues ── heard ─▶ rate: halved while clients queue, an eighth of the budget more while they do not
//! ```
//!
//! # Invariants
//!
//! 1. Pieces begin no faster than the rate, which is never above the budget and never below its least part: work that
//!    yields goes on. Copies may be lent [`COPY_LENT_MAX`] times as much by servers with less urgent ones.
//! 2. No more than so many pieces are under way.
//! 3. The most urgent kind that waits begins first, but for every so often: none waits for ever.

use crate::limits::{
    BACKGROUND_LEAST_PART, BACKGROUND_PASSED_OVER_MAX, BACKGROUND_PIECES_MAX, CLIENTS_QUEUE,
    COPY_LENT_MAX,
};

/// A kind of work, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Copies of chunks of which a single one can be read.
    RebuildSingle,
    /// Other copies that are missing.
    Rebuild,
    /// Verifying copies.
    Scrub,
    /// Summing rows, to compare them with those of others.
    Digest,
    /// Moving chunks within fragmented volumes: nobody was promised when.
    Compact,
}

/// All kinds, the most urgent first.
pub const WORKS: [Work; 5] =
    [Work::RebuildSingle, Work::Rebuild, Work::Scrub, Work::Digest, Work::Compact];

/// The answer to a piece that waits to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It has begun.
    Begins,
    /// Not before this time, in microseconds of the driver's clock.
    NotBefore(u64),
    /// Not before another piece begins or ends.
    Later,
}

/// Bytes and pieces of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpentBudget {
    /// Pieces begun.
    pub pieces: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// See the module's head.
#[derive(Debug)]
pub struct Budget {
    /// Bytes a second when nobody else wants anything.
    bytes_per_s: u64,
    /// Bytes a second now.
    rate: u64,
    /// Bytes a second for copies, when nobody else wants anything: others that have less urgent ones lend theirs.
    lent: u64,
    /// The next piece begins no earlier.
    next_us: u64,
    under_way: usize,
    /// Those who wait, by kind.
    waiting: [u32; WORKS.len()],
    /// More urgent pieces that began while one of the kind waited, since its last.
    passed_over: [u32; WORKS.len()],
    taken: [SpentBudget; WORKS.len()],
    yields: u64,
}

impl Budget {
    /// A budget of so many bytes a second, one at least.
    #[must_use]
    pub fn new(bytes_per_s: u64) -> Self {
        let bytes_per_s = bytes_per_s.max(1);
        Self {
            bytes_per_s,
            rate: bytes_per_s,
            lent: bytes_per_s,
            next_us: 0,
            under_way: 0,
            waiting: [0; WORKS.len()],
            passed_over: [0; WORKS.len()],
            taken: [SpentBudget::default(); WORKS.len()],
            yields: 0,
        }
    }

    /// Lets copies take so many bytes a second, if that is more than the budget.
    pub fn lend(&mut self, bytes_per_s: u64) {
        let most = self.bytes_per_s.saturating_mul(COPY_LENT_MAX);
        self.lent = bytes_per_s.clamp(self.bytes_per_s, most);
    }

    /// Times the budget that copies may take, rounded up: as many times the pieces are then under way.
    fn times_lent(&self) -> u64 {
        self.lent.div_ceil(self.bytes_per_s)
    }

    /// Bytes a second that a kind of work may take now; one at least. What clients take from the budget they take from what is lent.
    #[must_use]
    pub fn rate_of(&self, work: Work) -> u64 {
        match work {
            Work::RebuildSingle | Work::Rebuild => {
                let rate = u128::from(self.rate) * u128::from(self.lent);
                u64::try_from(rate / u128::from(self.bytes_per_s)).unwrap_or(u64::MAX).max(1)
            }
            Work::Scrub | Work::Digest | Work::Compact => self.rate,
        }
    }

    /// Somebody waits to begin a piece: until it begins, or [`Budget::wants_no_more`].
    pub fn wants(&mut self, work: Work) {
        self.waiting[work as usize] += 1;
    }

    /// Ends the wait of somebody who waited.
    ///
    /// # Panics
    /// If nobody waited.
    pub fn wants_no_more(&mut self, work: Work) {
        let waiting = &mut self.waiting[work as usize];
        *waiting = waiting.checked_sub(1).expect("a piece that waits no more has waited");
    }

    /// Begins a piece of so many bytes for one who waits, if it is its turn.
    ///
    /// # Panics
    /// If nobody waits for it.
    pub fn may_begin(&mut self, now_us: u64, work: Work, bytes: u64) -> Admission {
        assert!(self.waiting[work as usize] > 0, "{work:?} begins without having waited");
        let pieces_max = BACKGROUND_PIECES_MAX * self.times_lent() as usize;
        if self.under_way >= pieces_max || self.favoured() != Some(work) {
            return Admission::Later;
        }
        if now_us < self.next_us {
            return Admission::NotBefore(self.next_us);
        }
        self.wants_no_more(work);
        self.passed_over[work as usize] = 0;
        for (passed_over, waiting) in
            self.passed_over.iter_mut().zip(&self.waiting).skip(work as usize + 1)
        {
            *passed_over = if *waiting > 0 { *passed_over + 1 } else { 0 };
        }
        self.under_way += 1;
        let takes_us = bytes.saturating_mul(1_000_000) / self.rate_of(work);
        self.next_us = now_us.saturating_add(takes_us);
        let taken = &mut self.taken[work as usize];
        *taken = SpentBudget { pieces: taken.pieces + 1, bytes: taken.bytes + bytes };
        Admission::Begins
    }

    /// The kind whose turn it is.
    fn favoured(&self) -> Option<Work> {
        let waiting = || WORKS.into_iter().filter(|work| self.waiting[*work as usize] > 0);
        let passed_over = |work: &Work| self.passed_over[*work as usize];
        let longest = waiting().max_by_key(passed_over);
        longest.filter(|it| passed_over(it) >= BACKGROUND_PASSED_OVER_MAX).or(waiting().next())
    }

    /// A piece is over.
    ///
    /// # Panics
    /// If none was under way.
    pub fn ended(&mut self) {
        self.under_way = self.under_way.checked_sub(1).expect("what ends has begun");
    }

    /// Takes note that `clients` requests of clients are under way at the busiest data server; called at intervals while
    /// there is work.
    pub fn observe_clients(&mut self, clients: u32) {
        if clients >= CLIENTS_QUEUE {
            self.yields += 1;
            self.rate = (self.rate / 2).max(self.least());
        } else {
            let step = (self.bytes_per_s / BACKGROUND_LEAST_PART).max(1);
            self.rate = (self.rate + step).min(self.bytes_per_s);
        }
    }

    fn least(&self) -> u64 {
        (self.bytes_per_s / BACKGROUND_LEAST_PART).max(1)
    }

    /// Bytes a second at most.
    #[must_use]
    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// Bytes a second that are allowed now.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Pieces under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Returns the number of times that it has yielded.
    #[must_use]
    pub fn yields(&self) -> u64 {
        self.yields
    }

    /// Returns the pieces and bytes that a kind has taken.
    #[must_use]
    pub fn taken(&self, work: Work) -> SpentBudget {
        self.taken[work as usize]
    }

    /// Returns true if anything is under way or waits.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.under_way > 0 || self.waiting.iter().any(|waiting| *waiting > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn begin(budget: &mut Budget, now_us: u64, work: Work, bytes: u64) -> Admission {
        budget.wants(work);
        budget.may_begin(now_us, work, bytes)
    }

    #[test]
    fn pieces_begin_no_faster_than_the_rate() {
        let mut budget = Budget::new(MIB);
        assert_eq!(begin(&mut budget, 0, Work::Scrub, MIB / 2), Admission::Begins);
        assert_eq!(begin(&mut budget, 100, Work::Scrub, MIB), Admission::NotBefore(500_000));
        assert_eq!(budget.may_begin(500_000, Work::Scrub, MIB), Admission::Begins);
        assert_eq!(budget.taken(Work::Scrub), SpentBudget { pieces: 2, bytes: MIB + MIB / 2 });
    }

    #[test]
    fn no_more_than_so_many_are_under_way() {
        let mut budget = Budget::new(u64::MAX);
        for _ in 0..BACKGROUND_PIECES_MAX {
            assert_eq!(begin(&mut budget, 0, Work::Rebuild, 1), Admission::Begins);
        }
        assert_eq!(begin(&mut budget, 0, Work::Rebuild, 1), Admission::Later);
        budget.ended();
        assert_eq!(budget.may_begin(0, Work::Rebuild, 1), Admission::Begins);
        assert_eq!(budget.under_way(), BACKGROUND_PIECES_MAX);
    }

    #[test]
    fn the_most_urgent_begins_first() {
        let mut budget = Budget::new(u64::MAX);
        budget.wants(Work::Scrub);
        budget.wants(Work::RebuildSingle);
        assert_eq!(budget.may_begin(0, Work::Scrub, 1), Admission::Later);
        assert_eq!(budget.may_begin(0, Work::RebuildSingle, 1), Admission::Begins);
        assert_eq!(budget.may_begin(0, Work::Scrub, 1), Admission::Begins);
        budget.wants(Work::Rebuild);
        budget.wants(Work::Scrub);
        budget.wants_no_more(Work::Rebuild);
        assert_eq!(
            budget.may_begin(0, Work::Scrub, 1),
            Admission::Begins,
            "who went away waits no more"
        );
    }

    #[test]
    fn nothing_that_waits_is_passed_over_for_ever() {
        let mut budget = Budget::new(u64::MAX);
        budget.wants(Work::Scrub);
        let mut copies = 0;
        while begin(&mut budget, 0, Work::Rebuild, 1) == Admission::Begins {
            budget.ended();
            copies += 1;
            assert!(copies <= BACKGROUND_PASSED_OVER_MAX, "the scrub starves");
        }
        assert_eq!(copies, BACKGROUND_PASSED_OVER_MAX, "the more urgent comes first by far");
        assert_eq!(budget.may_begin(0, Work::Scrub, 1), Admission::Begins);
        assert_eq!(budget.may_begin(0, Work::Rebuild, 1), Admission::Begins, "and then it goes on");
    }

    #[test]
    fn of_all_that_is_passed_over_each_has_its_turn() {
        let mut budget = Budget::new(u64::MAX);
        budget.wants(Work::Scrub);
        budget.wants(Work::Digest);
        let mut begun = Vec::new();
        budget.wants(Work::Rebuild);
        while begun.len() < 4 * BACKGROUND_PASSED_OVER_MAX as usize {
            let turn = |work: &Work| budget.may_begin(0, *work, 1) == Admission::Begins;
            let work = WORKS.into_iter().skip(1).find(turn).expect("one of them begins");
            budget.ended();
            budget.wants(work);
            begun.push(work);
        }
        let share = |work| begun.iter().filter(|it| **it == work).count();
        assert!(share(Work::Scrub) >= 3 && share(Work::Digest) >= 3, "{begun:?}");
        assert!(share(Work::Rebuild) > 3 * begun.len() / 4, "the more urgent comes first by far");
    }

    #[test]
    fn copies_take_what_is_lent_and_other_work_does_not() {
        let mut budget = Budget::new(MIB);
        budget.lend(MIB / 2);
        assert_eq!(
            begin(&mut budget, 0, Work::Rebuild, MIB),
            Admission::Begins,
            "nothing is taken away"
        );
        assert_eq!(begin(&mut budget, 1, Work::Rebuild, MIB), Admission::NotBefore(1_000_000));
        budget.lend(2 * MIB);
        assert_eq!(budget.may_begin(1_000_000, Work::Rebuild, MIB), Admission::Begins);
        assert_eq!(
            begin(&mut budget, 1_000_001, Work::Scrub, MIB),
            Admission::NotBefore(1_500_000)
        );
        assert_eq!(budget.may_begin(1_500_000, Work::Scrub, MIB), Admission::Begins);
        assert_eq!(
            begin(&mut budget, 1_500_001, Work::Scrub, MIB),
            Admission::NotBefore(2_500_000)
        );
        budget.wants_no_more(Work::Scrub);
        budget.lend(u64::MAX);
        for _ in 3..COPY_LENT_MAX as usize * BACKGROUND_PIECES_MAX {
            assert_eq!(begin(&mut budget, 1 << 40, Work::Rebuild, 0), Admission::Begins);
        }
        assert_eq!(
            begin(&mut budget, 1 << 41, Work::Rebuild, 0),
            Admission::Later,
            "that is the most"
        );
        budget.lend(0);
        budget.ended();
        assert_eq!(budget.may_begin(1 << 41, Work::Rebuild, 0), Admission::Later, "too many go on");
    }

    #[test]
    fn it_yields_while_clients_queue_but_never_stops() {
        let mut budget = Budget::new(64 * MIB);
        budget.observe_clients(CLIENTS_QUEUE - 1);
        assert_eq!((budget.rate(), budget.yields()), (64 * MIB, 0));
        budget.observe_clients(CLIENTS_QUEUE);
        assert_eq!((budget.rate(), budget.yields()), (32 * MIB, 1));
        for _ in 0..100 {
            budget.observe_clients(1000);
        }
        let least = 64 * MIB / BACKGROUND_LEAST_PART;
        assert_eq!(budget.rate(), least);
        assert_eq!(begin(&mut budget, 0, Work::Scrub, least), Admission::Begins);
        assert_eq!(begin(&mut budget, 0, Work::Scrub, least), Admission::NotBefore(1_000_000));
        for _ in 0..BACKGROUND_LEAST_PART {
            budget.observe_clients(0);
        }
        assert_eq!(budget.rate(), 64 * MIB, "all of it again when the clients are gone");
    }
}
