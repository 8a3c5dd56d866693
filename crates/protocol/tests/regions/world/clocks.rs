//! A clock that is ahead by up to a month for a while, and set right; regions ask each other what their clocks say.

use std::collections::BTreeSet;

use larder_protocol::clock_offsets::{ClockBound, ClockReading};
use larder_protocol::limits::{REGION_ANSWER_MS, REGION_CLOCK_AHEAD_MS_MAX};
use larder_types::{RegionId, Stamp};

use super::super::judge::Acknowledged;
use super::{BEGIN_MS, HEALED_MS, Happening, Message, World};

/// Most by which clocks that are right differ from the true time.
const RIGHT_MS: i64 = 5_000;

/// A question for a clock, or the answer.
#[derive(Debug, Clone)]
pub enum ClockWord {
    Ask { sent_ms: u64 },
    Tell { sent_ms: u64, clock_ms: u64 },
}

#[derive(Debug)]
pub enum ClockEvent {
    /// Somebody sets the clock of the machine at this place ahead by so many milliseconds, or back by as many.
    Ahead(usize, i64),
    Back(usize, i64),
    /// A region has not answered.
    Unanswered(RegionId, u64, RegionId),
}

impl World {
    /// Decides which clock will be wrong, and when. All others are right.
    pub(super) fn begin_clocks(&mut self) {
        if !self.has_clocks {
            return;
        }
        self.sites.iter_mut().for_each(|site| site.skew_ms %= RIGHT_MS);
        let half_ms = (self.faulty_until_ms - BEGIN_MS) / 2;
        let at = self.clock_dice.below(self.sites.len() as u64) as usize;
        // So far that no run would come to rest if changes had to wait until they are due.
        let hours = [1, 24, 30 * 24];
        let ahead_ms: i64 = 3_600_000 * self.clock_dice.pick(&hours).expect("there are some");
        assert!(ahead_ms.unsigned_abs() > HEALED_MS, "a run comes to rest meanwhile");
        let begins_ms = self.clock_dice.below(half_ms);
        let ends_ms = begins_ms + 1 + self.clock_dice.below(half_ms - 1);
        self.later(begins_ms, Happening::Clock(ClockEvent::Ahead(at, ahead_ms)));
        self.later(ends_ms, Happening::Clock(ClockEvent::Back(at, ahead_ms)));
    }

    pub(super) fn clock_event(&mut self, event: ClockEvent) {
        match event {
            ClockEvent::Ahead(at, ms) => self.sites[at].skew_ms += ms,
            ClockEvent::Back(at, ms) => self.sites[at].skew_ms -= ms,
            ClockEvent::Unanswered(region, life, other) => {
                if let Some(at) = self.alive(region, life) {
                    self.sites[at].clocks.answered(other, None);
                }
            }
        }
    }

    pub(super) fn ask_clocks(&mut self, at: usize, others: &BTreeSet<RegionId>) {
        if !self.has_clocks {
            return;
        }
        let (id, life) = (self.sites[at].id, self.sites[at].life);
        self.sites[at].clocks.set_others(others.iter().copied());
        for other in others {
            let (now, sent_ms) = (self.sites[at].machine_time(self.now_ms), self.now_ms);
            if self.sites[at].clocks.is_due(now, *other) {
                self.sites[at].clocks.asked(sent_ms, *other);
                self.send(id, *other, Message::Clock(ClockWord::Ask { sent_ms }));
                let unanswered = ClockEvent::Unanswered(id, life, *other);
                self.later(REGION_ANSWER_MS, Happening::Clock(unanswered));
            }
        }
    }

    pub(super) fn hear_clock(&mut self, from: RegionId, at: usize, word: ClockWord) {
        match word {
            ClockWord::Ask { sent_ms } => {
                let (id, clock_ms) = (self.sites[at].id, self.sites[at].now_ms(self.now_ms));
                self.send(id, from, Message::Clock(ClockWord::Tell { sent_ms, clock_ms }));
            }
            // Its question has ended.
            ClockWord::Tell { sent_ms, .. } if self.now_ms > sent_ms + REGION_ANSWER_MS => {}
            ClockWord::Tell { sent_ms, clock_ms } => {
                let received_ms = self.now_ms;
                let reading = ClockReading { sent_ms, received_ms, clock_ms };
                self.sites[at].clocks.answered(from, Some(reading));
            }
        }
    }

    /// True if a client's change may be dated here. A machine whose clock is wrong and that hears nobody dates by it: that does
    /// not happen here, as nothing makes up for it.
    pub(super) fn may_date(&mut self, at: usize) -> bool {
        let site = &self.sites[at];
        let hears = site.clocks.bound(self.now_ms) != ClockBound::default();
        let is_ahead = site.clocks.ahead_ms(site.machine_time(self.now_ms)) > 0;
        self.counts.held_back += u64::from(self.has_clocks && is_ahead);
        !self.has_clocks || hears || site.skew_ms.abs() <= RIGHT_MS
    }

    /// Checks that a change is dated about when it is made, whatever the clock of its machine says.
    pub(super) fn check_date(&self, at: usize, stamp: Stamp) -> Result<(), String> {
        let off_ms = stamp.clock.ms().cast_signed() - self.now_ms.cast_signed();
        let most_ms = REGION_CLOCK_AHEAD_MS_MAX.cast_signed() + RIGHT_MS;
        if self.has_clocks && !(-RIGHT_MS..=most_ms).contains(&off_ms) {
            let id = self.sites[at].id;
            return Err(format!("region {id} dates a change {off_ms} ms later than it is"));
        }
        Ok(())
    }

    /// Checks that of two changes of one entry the one that was made much later has the greater stamp.
    pub(super) fn check_order(&self) -> Result<(), String> {
        let all = &self.judge.acknowledged;
        for one in all.iter().filter(|_| self.has_clocks) {
            let most_ms = one.at_ms + REGION_CLOCK_AHEAD_MS_MAX + 2 * RIGHT_MS.cast_unsigned();
            let loses = |two: &&Acknowledged| {
                two.name == one.name && two.at_ms > most_ms && two.stamp <= one.stamp
            };
            if let Some(two) = all.iter().find(loses) {
                return Err(format!(
                    "a change of {} ms loses to one of {} ms: {:?}",
                    two.at_ms, one.at_ms, one.name
                ));
            }
        }
        Ok(())
    }
}
