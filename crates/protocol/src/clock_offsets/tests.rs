//! Clocks under drawn histories: set, standing still, asked over slow links.

use proptest::prelude::*;

use super::*;

const OTHERS: usize = 4;
const BEGIN_MS: i64 = 1_900_000_000_000;
const NOW_MS: u64 = BEGIN_MS as u64;
/// Most that a way takes.
const WAY_MS: i64 = 5_000;

/// Machines with true clocks that nobody sees.
struct World {
    true_ms: i64,
    /// Milliseconds for which this machine stood still without its steady clock noticing.
    stood_ms: i64,
    skew_ms: i64,
    others_skew_ms: [i64; OTHERS],
    offsets: ClockOffsets<usize>,
    /// Others that were asked since this machine last stood still.
    asked: [bool; OTHERS],
}

impl World {
    fn new(others_skew_ms: [i64; OTHERS]) -> Self {
        let mut offsets = ClockOffsets::default();
        offsets.set_others(0..OTHERS);
        let asked = [false; OTHERS];
        Self { true_ms: 0, stood_ms: 0, skew_ms: 0, others_skew_ms, offsets, asked }
    }

    fn steady_ms(&self) -> u64 {
        (self.true_ms - self.stood_ms) as u64
    }

    fn now(&self) -> EventTime {
        let wall_ms = (BEGIN_MS + self.true_ms + self.skew_ms) as u64;
        EventTime { steady_ms: self.steady_ms(), wall_ms }
    }

    fn ask(&mut self, other: usize, (there_ms, back_ms): (i64, i64)) {
        let sent_ms = self.steady_ms();
        self.true_ms += there_ms;
        let clock_ms = (BEGIN_MS + self.true_ms + self.others_skew_ms[other]) as u64;
        self.true_ms += back_ms;
        let received_ms = self.steady_ms();
        self.offsets.answered(other, Some(ClockReading { sent_ms, received_ms, clock_ms }));
        self.asked[other] = true;
    }

    fn time_ms(&self) -> u64 {
        self.offsets.bound(self.steady_ms()).hold_back(self.now()).wall_ms
    }

    /// The latest clock of the least majority of those that count, less the true time.
    fn majority_skew_ms(&self) -> Option<i64> {
        let fresh = self.offsets.fresh(self.steady_ms());
        let mut skews: Vec<i64> = fresh.map(|(other, _)| self.others_skew_ms[other]).collect();
        skews.sort_unstable();
        skews.get(skews.len() / 2).copied()
    }

    fn check(&self) {
        let (now, time_ms) = (self.now(), self.time_ms());
        assert!(time_ms <= now.wall_ms, "a time is never moved ahead");
        let Some(majority_ms) = self.majority_skew_ms() else {
            return assert_eq!(time_ms, now.wall_ms, "nobody was heard");
        };
        let is_heard = |(other, _): (usize, ClockReading)| self.asked[other];
        if !self.offsets.fresh(now.steady_ms).all(is_heard) {
            return;
        }
        let limit_ms = CLOCK_AHEAD_MS_MAX as i64;
        let latest_ms = BEGIN_MS + self.true_ms + majority_ms + limit_ms;
        assert!((time_ms as i64) <= latest_ms + 2 * WAY_MS, "a wrong clock is believed");
        if self.skew_ms <= majority_ms + limit_ms {
            assert_eq!(time_ms, now.wall_ms, "a right clock is held back");
        } else {
            assert!((time_ms as i64) >= latest_ms, "it is held back too far");
        }
    }
}

#[derive(Debug, Clone)]
enum Happening {
    Passes(i64),
    IsSet(i64),
    StandsStill(i64),
    Asks(usize, (i64, i64)),
}

fn happening() -> impl Strategy<Value = Happening> {
    let way = || 0..WAY_MS;
    prop_oneof![
        2 => (0_i64..40_000).prop_map(Happening::Passes),
        1 => skew().prop_map(Happening::IsSet),
        1 => (0_i64..10_000_000).prop_map(Happening::StandsStill),
        6 => (0..OTHERS, (way(), way())).prop_map(|(other, ways)| Happening::Asks(other, ways)),
    ]
}

fn skew() -> impl Strategy<Value = i64> {
    prop_oneof![-40_000_i64..40_000, -4_000_000_000_i64..4_000_000_000]
}

proptest! {
    #[test]
    fn a_clock_is_held_back_exactly_if_a_majority_is_behind_it(
        others in prop::array::uniform4(skew()),
        happenings in prop::collection::vec(happening(), 1..60),
    ) {
        let mut world = World::new(others);
        for happening in happenings {
            match happening {
                Happening::Passes(ms) => world.true_ms += ms,
                Happening::IsSet(skew_ms) => world.skew_ms = skew_ms,
                Happening::StandsStill(ms) => {
                    // Its wall's clock stands still as well.
                    world.true_ms += ms;
                    world.stood_ms += ms;
                    world.skew_ms -= ms;
                    world.asked = [false; OTHERS];
                }
                Happening::Asks(other, ways) => world.ask(other, ways),
            }
            world.check();
        }
    }

    #[test]
    fn no_answer_breaks_anything(
        clocks in prop::collection::vec(any::<u64>(), 1..6),
        wall_ms in any::<u64>(),
        steady_ms in any::<u64>(),
    ) {
        let mut offsets = ClockOffsets::default();
        offsets.set_others(0..clocks.len());
        for (other, clock_ms) in clocks.into_iter().enumerate() {
            let reading = ClockReading { sent_ms: steady_ms, received_ms: steady_ms, clock_ms };
            offsets.answered(other, Some(reading));
        }
        let now = EventTime { steady_ms, wall_ms };
        prop_assert!(offsets.bound(steady_ms).hold_back(now).wall_ms <= wall_ms);
        prop_assert!(offsets.differing(now).count() <= 6);
        prop_assert!(offsets.ahead_ms(now) == 0 || offsets.ahead_ms(now) > CLOCK_AHEAD_MS_MAX);
    }
}

/// This machine's clock is ahead by an hour of so many others, and agrees with so many.
fn held_back(behind: usize, agreeing: usize) -> bool {
    let (mut offsets, now) = (ClockOffsets::default(), EventTime { steady_ms: 7, wall_ms: NOW_MS });
    offsets.set_others(0..behind + agreeing);
    for other in 0..behind + agreeing {
        let clock_ms = now.wall_ms - if other < behind { 3_600_000 } else { 0 };
        let reading = ClockReading { sent_ms: 7, received_ms: 7, clock_ms };
        offsets.answered(other, Some(reading));
    }
    offsets.ahead_ms(now) > 0
}

#[test]
fn half_of_all_clocks_hold_one_back_that_is_ahead_of_them() {
    assert!(held_back(1, 0), "of two the earlier counts");
    assert!(!held_back(1, 1) && held_back(2, 0), "of three the one between");
    assert!(!held_back(1, 2) && held_back(2, 1) && held_back(3, 0));
    assert!(!held_back(2, 2) && held_back(3, 1));
    assert!(!held_back(0, 4));
}

#[test]
fn a_clock_that_cannot_be_right_holds_nobody_back_and_is_named() {
    let (mut offsets, now) = (ClockOffsets::default(), EventTime { steady_ms: 7, wall_ms: NOW_MS });
    let reading = |clock_ms| Some(ClockReading { sent_ms: 7, received_ms: 7, clock_ms });
    offsets.set_others(0..2);
    offsets.answered(0, reading(CLOCK_FLOOR_MS - 1));
    assert_eq!(offsets.bound(7), ClockBound::default());
    let behind = ClockDifference::Behind(NOW_MS - CLOCK_FLOOR_MS + 1);
    assert_eq!(offsets.differing(now).collect::<Vec<_>>(), [(0, behind)]);
    offsets.answered(0, reading(CLOCK_FLOOR_MS));
    assert!(offsets.ahead_ms(now) > 0);
    // Beside one that can be right it is no majority.
    offsets.answered(0, reading(0));
    offsets.answered(1, reading(NOW_MS));
    assert_eq!(offsets.ahead_ms(now), 0);
}

#[test]
fn a_clock_that_was_ahead_for_a_moment_leaves_nothing_behind() {
    let mut world = World::new([0; OTHERS]);
    (0..OTHERS).for_each(|other| world.ask(other, (10, 10)));
    world.skew_ms = 30 * 86_400_000;
    assert!(world.time_ms() as i64 <= BEGIN_MS + world.true_ms + CLOCK_AHEAD_MS_MAX as i64 + 20);
    world.skew_ms = 0;
    assert_eq!(world.time_ms(), world.now().wall_ms);
}

#[test]
fn a_right_step_counts_at_the_next_answer_and_a_question_is_due_at_once() {
    let mut world = World::new([0; OTHERS]);
    (0..OTHERS).for_each(|other| world.ask(other, (10, 10)));
    // A hypervisor stops the machine for ten minutes; then its clock is set right.
    world.true_ms += 600_000;
    world.stood_ms += 600_000;
    world.true_ms += CLOCK_ASK_AGAIN_MS as i64;
    assert!(world.time_ms() < world.now().wall_ms, "by the readings of before it is ahead");
    assert!((0..OTHERS).all(|other| world.offsets.is_due(world.now(), other)));
    (0..3).for_each(|other| world.ask(other, (10, 10)));
    assert_eq!(world.time_ms(), world.now().wall_ms);
    // The fourth has not answered again: it is ahead of none of the others.
    assert_eq!(world.offsets.ahead_ms(world.now()), 0);
}

#[test]
fn a_clock_set_right_after_a_wrong_step_back_counts_at_once() {
    let mut world = World::new([0; OTHERS]);
    (0..OTHERS).for_each(|other| world.ask(other, (10, 10)));
    world.skew_ms = -600_000;
    assert_eq!(world.time_ms(), world.now().wall_ms, "what is behind is not moved");
    world.skew_ms = 0;
    assert_eq!(world.time_ms(), world.now().wall_ms);
}

#[test]
fn one_other_clock_that_is_slow_dates_changes_early_and_refuses_none() {
    let now = EventTime { steady_ms: 100, wall_ms: NOW_MS };
    let slow_ms = NOW_MS - 3_600_000;
    let mut offsets = ClockOffsets::default();
    offsets.set_others(0..3);
    let mut hear = |other, clock_ms| {
        let reading = ClockReading { sent_ms: 100, received_ms: 100, clock_ms };
        offsets.answered(other, Some(reading));
        let judged = offsets.judging_bound(100).hold_back(now).wall_ms;
        (offsets.bound(100).hold_back(now).wall_ms, judged)
    };
    let early_ms = slow_ms + CLOCK_AHEAD_MS_MAX;
    assert_eq!(hear(0, slow_ms), (early_ms, NOW_MS), "nobody knows which of two is wrong");
    assert_eq!(hear(1, CLOCK_FLOOR_MS - 1), (early_ms, NOW_MS), "that one counts for nothing");
    assert_eq!(hear(2, slow_ms), (early_ms, early_ms), "two say the same");
    assert_eq!(hear(1, NOW_MS), (early_ms, early_ms));
    assert_eq!(hear(2, NOW_MS), (NOW_MS, NOW_MS), "most are right");
}

#[test]
fn machines_are_asked_one_question_at_a_time_at_their_pace() {
    let mut offsets = ClockOffsets::default();
    let at = |steady_ms: u64| EventTime { steady_ms, wall_ms: NOW_MS };
    assert!(offsets.has_asked_all(), "there is nobody to ask");
    offsets.set_others([3, 5].into_iter());
    assert!(!offsets.is_due(at(0), 4), "it is none of them");
    assert!(offsets.is_due(at(0), 3));
    offsets.asked(0, 3);
    assert!(!offsets.is_due(at(50_000), 3), "the question is under way");
    offsets.answered(3, None);
    assert!(offsets.is_due(at(50_000), 3) && !offsets.has_asked_all());
    offsets.asked(50_000, 3);
    let reading = |sent_ms| ClockReading { sent_ms, received_ms: sent_ms, clock_ms: NOW_MS };
    offsets.answered(3, Some(reading(50_000)));
    assert!(!offsets.is_due(at(50_000 + CLOCK_ASK_MS - 1), 3));
    assert!(offsets.is_due(at(50_000 + CLOCK_ASK_MS), 3));
    // One without an answer costs no reading, nor does one that comes late.
    offsets.answered(3, None);
    offsets.answered(3, Some(reading(40_000)));
    assert_eq!(offsets.fresh(60_000).count(), 1);
    assert_eq!(offsets.fresh(50_000 + CLOCK_FRESH_MS + 1).count(), 0);
    offsets.answered(5, None);
    assert!(offsets.has_asked_all());
    offsets.set_others([5].into_iter());
    assert_eq!(offsets.fresh(60_000).count(), 0, "who is none of them any more is forgotten");
}

#[test]
fn clocks_that_differ_are_named_with_how_much() {
    let (mut offsets, now) =
        (ClockOffsets::default(), EventTime { steady_ms: 100, wall_ms: NOW_MS });
    offsets.set_others(0..4);
    for (other, skew_ms) in [0_i64, 40_000, -40_000, 30_050].into_iter().enumerate() {
        let clock_ms = now.wall_ms.saturating_add_signed(skew_ms);
        let reading = ClockReading { sent_ms: 0, received_ms: 100, clock_ms };
        offsets.answered(other, Some(reading));
    }
    let differing: Vec<_> = offsets.differing(now).collect();
    let (ahead, behind) = (ClockDifference::Ahead(40_000), ClockDifference::Behind(39_900));
    let at_limit = ClockDifference::Ahead(30_050);
    assert_eq!(differing, [(1, ahead), (2, behind), (3, at_limit)]);
}
