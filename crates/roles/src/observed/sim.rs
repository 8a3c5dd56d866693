//! Three managers that observe a cluster for weeks, each with gaps, restarts and times without a leader, and take over what
//! the others know. What they tell is compared with what there was.

use std::collections::BTreeMap;

use larder_env::SeededRng;
use larder_types::codec::encode;

use super::{Growth, HealthIssue, Observations, Observed, Place, SpaceSample};
use crate::limits::FILL_TREND_S_MIN;

const SEEDS: u64 = 20;
/// Looks of a seed.
const STEPS: u64 = 400;
const MANAGERS: usize = 3;
/// Seconds by which a look that managers have handed on may be off: each tells it in whole ones.
const HANDED_ON_S_MAX: u64 = 60;
const ISSUES: [HealthIssue; 5] = [
    HealthIssue::PgsInactive,
    HealthIssue::PgsIncomplete,
    HealthIssue::CopiesMissing,
    HealthIssue::ServerDown(4, 17),
    HealthIssue::NearlyFull(Place::Disk(3)),
];
const PLACES: [Place; 3] = [Place::Cluster, Place::Server(4), Place::Disk(3)];

/// The cluster as it is.
#[derive(Default)]
struct Truth {
    /// Times at which the issues that there are began.
    since: BTreeMap<HealthIssue, u64>,
    /// Bytes taken of each place, at each look.
    taken: Vec<(u64, [u64; PLACES.len()])>,
}

/// The things that a manager sees at a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sees {
    All,
    /// It hears of no leader.
    NoLeader,
    /// Nothing: it was stopped for a while.
    Gap,
    /// It has just begun.
    Anew,
}

fn one_in(rng: &mut SeededRng, one_in: u64) -> bool {
    rng.below(one_in) == 0
}

impl Truth {
    fn go_on(&mut self, rng: &mut SeededRng, now_ms: u64) {
        for issue in ISSUES {
            if one_in(rng, 12) && self.since.remove(&issue).is_none() {
                self.since.insert(issue, now_ms);
            }
        }
        let before = self.taken.last().map_or([0; PLACES.len()], |(_, taken)| *taken);
        self.taken.push((now_ms, before.map(|bytes| bytes + rng.below(1000))));
    }

    /// Has a manager look.
    fn show(&self, observed: &mut Observed, sees: Sees, rng: &mut SeededRng, now_ms: u64) {
        match sees {
            Sees::Gap => return observed.observe_gap(),
            Sees::NoLeader => return observed.observe_no_leader(now_ms, one_in(rng, 2)),
            Sees::Anew => *observed = Observed::default(),
            Sees::All => {}
        }
        let begins = |since: u64| since == now_ms;
        let issues = self.since.iter().map(|(issue, since)| (*issue, begins(*since)));
        observed.observe(&issues.collect(), now_ms);
        let (_, taken) = self.taken.last().expect("somebody has looked");
        // Some are not told.
        let taken = taken.map(|bytes| (!one_in(rng, 8)).then_some(bytes));
        observed.look(&PLACES.into_iter().zip(taken).collect(), now_ms);
    }

    /// The statements that are not so.
    fn wrong(&self, reported: &Observations, sees: Sees, now_ms: u64) -> Vec<String> {
        let mut wrong = Vec::new();
        match sees {
            Sees::Gap if reported.issues.is_empty() => {}
            Sees::NoLeader => {
                let all: Vec<HealthIssue> =
                    reported.issues.iter().map(|(issue, _)| *issue).collect();
                if all != [HealthIssue::NoLeader] || !reported.fills.is_empty() {
                    wrong.push(format!("without a leader {reported:?} is told"));
                }
                return wrong;
            }
            _ if reported.issues.len() != self.since.len() => {
                wrong.push(format!("{:?} is told as {reported:?}", self.since));
            }
            _ => {}
        }
        for (issue, lasting) in &reported.issues {
            let lasts = self.since.get(issue).map(|since| now_ms - since);
            let is_right = lasts.is_some_and(|lasts| match lasting.is_exact {
                true => lasting.for_ms == lasts,
                false => lasting.for_ms <= lasts,
            });
            if !is_right {
                wrong.push(format!("{issue:?}, which lasts {lasts:?}, is told as {lasting:?}"));
            }
        }
        wrong.extend(reported.fills.iter().filter_map(|fill| self.wrong_fill(fill, now_ms)));
        wrong
    }

    /// A look that is told was one, but for parts of a second.
    fn wrong_fill(&self, fill: &SpaceSample, now_ms: u64) -> Option<String> {
        let at = PLACES.iter().position(|place| *place == fill.place)?;
        let is_it = |(then, taken): &(u64, [u64; PLACES.len()])| {
            let within_s = (now_ms - then) / 1000;
            within_s.abs_diff(fill.within_s) <= HANDED_ON_S_MAX && taken[at] == fill.taken
        };
        (!self.taken.iter().any(is_it)).then(|| format!("nobody has looked so: {fill:?}"))
    }
}

/// Growth of a place is foretold from a look of an hour ago at least.
fn growth_is_right(fill: &SpaceSample, taken: u64) -> bool {
    let grown = taken.saturating_sub(fill.taken);
    match Growth::of(grown, fill.within_s, 1 << 40) {
        Some(growth) => grown > 0 && growth.full_in_s > 0 && fill.within_s >= FILL_TREND_S_MIN,
        None => grown == 0 || fill.within_s < FILL_TREND_S_MIN,
    }
}

/// Runs one seed; returns what was not so, and how often a manager knew better by another.
fn run(seed: u64) -> (Vec<String>, u64) {
    let mut rng = SeededRng::new(seed);
    let (mut truth, mut now_ms) = (Truth::default(), 1_000_000);
    let mut managers: [Observed; MANAGERS] = Default::default();
    let (mut wrong, mut adopted) = (Vec::new(), 0);
    for _ in 0..STEPS {
        let hours = if one_in(&mut rng, 20) { 20 } else { 1 };
        now_ms += 1 + rng.below(hours * 3_600_000);
        truth.go_on(&mut rng, now_ms);
        let sees: [Sees; MANAGERS] = std::array::from_fn(|_| match rng.below(24) {
            0 => Sees::NoLeader,
            1..3 => Sees::Gap,
            3 => Sees::Anew,
            _ => Sees::All,
        });
        for (observed, sees) in managers.iter_mut().zip(sees) {
            truth.show(observed, sees, &mut rng, now_ms);
        }
        let reported: Vec<Observations> = (managers.iter())
            .map(|observed| {
                Observations::decode(&encode(&observed.now(now_ms))).expect("it is told")
            })
            .collect();
        for at in 0..MANAGERS {
            let others = reported.iter().enumerate().filter(|(other, _)| *other != at);
            // Some do not answer.
            let received =
                others.filter(|_| !one_in(&mut rng, 6)).map(|(_, reported)| reported.clone());
            let together = Observations::together(received.collect::<Vec<_>>());
            if sees[at] != Sees::Gap {
                managers[at].adopt(&together, now_ms);
            }
            let now = managers[at].now(now_ms);
            adopted += u64::from(now.issues != reported[at].issues);
            wrong.extend(truth.wrong(&now, sees[at], now_ms));
            let (count, oldest_ms) = managers[at].issues(now_ms);
            let longest = now.issues.iter().map(|(_, lasting)| lasting.for_ms).max();
            if sees[at] == Sees::All
                && (count, oldest_ms) != (now.issues.len(), longest.unwrap_or(0))
            {
                wrong.push(format!("{count} issues of {oldest_ms} ms: {now:?}"));
            }
            let (_, taken) = truth.taken.last().expect("somebody has looked");
            let of = |fill: &SpaceSample| PLACES.iter().position(|place| *place == fill.place);
            let is_right =
                |fill: &SpaceSample| of(fill).is_some_and(|at| growth_is_right(fill, taken[at]));
            wrong.extend((!now.fills.iter().all(is_right)).then(|| format!("{now:?} grows so")));
        }
        if !wrong.is_empty() {
            break;
        }
    }
    (wrong, adopted)
}

#[test]
fn what_managers_tell_of_troubles_and_disks_is_what_there_was() {
    let mut adopted = 0;
    for seed in 0..SEEDS {
        let (wrong, knew_better) = run(seed);
        assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
        adopted += knew_better;
    }
    assert!(adopted > SEEDS, "managers that know all by themselves show nothing: {adopted}");
}
