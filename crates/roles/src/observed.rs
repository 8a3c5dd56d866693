//! A manager's observations of its cluster: since when each issue lasts, and how fast disks fill.
//!
//! Each manager observes for itself, so the observations outlive any leader. It keeps them in memory; a manager that starts adopts
//! those of the others. The duration of an issue is exact if its beginning was observed. Of an issue that was there when a
//! manager started, that manager knows a least duration only.
//!
//! # Invariants
//!
//! 1. An issue that ended and began again counts from its last beginning.
//! 2. Another manager's observations change only issues whose beginning was not observed here.
//! 3. While a manager knows of no leader its map may be old: it reports that no manager leads, and nothing else.
//! 4. No observation outlives a gap in which a manager saw nothing: an issue may have ended and begun again in it. An issue that
//!    is there after the gap has lasted at least since then; other managers may know more.

use std::collections::{BTreeMap, VecDeque};

use larder_types::codec::decode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::limits::{
    FILL_PAUSE_MS, FILL_SAMPLES_MAX, FILL_TREND_S_MIN, FILLS_REPORTED_MAX, ISSUES_REPORTED_MAX,
    OBSERVED_REPORT_BYTES_MAX,
};

/// An issue of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HealthIssue {
    /// The reporting manager knows of no leader.
    NoLeader,
    /// Placement groups are not served.
    PgsInactive,
    /// Placement groups have fewer complete members than wanted.
    PgsIncomplete,
    /// Volumes have fewer copies than wanted.
    CopiesMissing,
    /// A server is down: its number, and the version of the map in which its run began. An outage of its next run is another
    /// issue. A server that was cut off and comes back continues its run.
    ServerDown(u32, u64),
    /// A place is nearly full.
    NearlyFull(Place),
}

/// A disk, or several together, whose space is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// All disks.
    Cluster,
    /// The disks of a server.
    Server(u32),
    /// A disk.
    Disk(u32),
}

/// The time for which an issue has lasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssueDuration {
    /// Milliseconds until now.
    pub for_ms: u64,
    /// True if its beginning was observed; else it may have begun before.
    pub is_exact: bool,
}

impl IssueDuration {
    /// The better of two durations of the same issue: one whose beginning was observed, or else the longer one. If both
    /// beginnings were observed, the later one is right: the other manager has missed an end.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let is_better = match (self.is_exact, other.is_exact) {
            (true, true) => other.for_ms < self.for_ms,
            (false, false) => other.for_ms > self.for_ms,
            (is_exact, _) => !is_exact,
        };
        if is_better { other } else { self }
    }
}

/// The rate at which a place fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// Bytes by which the bytes taken have grown.
    pub bytes: u64,
    /// Seconds in which they did.
    pub within_s: u64,
    /// Seconds until no byte is free at this rate.
    pub full_in_s: u64,
}

impl Growth {
    /// The growth by so many bytes, with `free` ones left. `None` if there was no growth, or it was observed for less than
    /// [`FILL_TREND_S_MIN`].
    #[must_use]
    pub fn of(bytes: u64, within_s: u64, free: u64) -> Option<Self> {
        if bytes == 0 || within_s < FILL_TREND_S_MIN {
            return None;
        }
        let full_in_s = u128::from(free) * u128::from(within_s) / u128::from(bytes);
        Some(Self { bytes, within_s, full_in_s: u64::try_from(full_in_s).unwrap_or(u64::MAX) })
    }
}

/// Observations, as a manager reports them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Observations {
    /// The present issues.
    pub issues: Vec<(HealthIssue, IssueDuration)>,
    /// The oldest look at each place, of those that are kept.
    pub fills: Vec<SpaceSample>,
}

/// An earlier look at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceSample {
    /// The place.
    pub place: Place,
    /// Bytes that were taken of it.
    pub taken: u64,
    /// Seconds since then.
    pub within_s: u64,
}

impl Observations {
    /// Decodes observations that a manager has reported; `None` if they break the limits. Their length is checked before they
    /// are decoded.
    #[must_use]
    pub fn decode(reported: &[u8]) -> Option<Self> {
        if reported.len() > OBSERVED_REPORT_BYTES_MAX {
            return None;
        }
        let now = decode::<Self>("observations of a manager", reported).ok()?;
        let fits = now.issues.len() <= ISSUES_REPORTED_MAX && now.fills.len() <= FILLS_REPORTED_MAX;
        fits.then_some(now)
    }

    /// Merges the observations of several managers.
    #[must_use]
    pub fn together(all: impl IntoIterator<Item = Self>) -> MergedObservations {
        let mut together = MergedObservations::default();
        for now in all {
            for (issue, lasting) in now.issues {
                let known = together.issues.entry(issue).or_insert(lasting);
                *known = known.or(lasting);
            }
            for fill in now.fills {
                let known = together.fills.entry(fill.place).or_insert(fill);
                if fill.within_s > known.within_s {
                    *known = fill;
                }
            }
        }
        together
    }
}

/// The merged observations of several managers: see [`Observations::together`].
#[derive(Debug, Default)]
pub struct MergedObservations {
    /// The issues.
    pub issues: BTreeMap<HealthIssue, IssueDuration>,
    /// The oldest look at each place.
    pub fills: BTreeMap<Place, SpaceSample>,
}

/// Looks that are older are forgotten, and not adopted: else managers could hand them on to one another for ever.
const SAMPLE_AGE_MS_MAX: i128 = FILL_PAUSE_MS as i128 * FILL_SAMPLES_MAX as i128;

/// The beginning of an issue, as this manager knows it.
#[derive(Debug, Clone, Copy)]
struct IssueStart {
    /// By the clock of [`State::now`]; earlier than its beginning if another manager said so.
    at: i128,
    is_exact: bool,
}

/// A manager's observations. Times are milliseconds of a clock that never goes back.
#[derive(Debug, Default)]
pub struct Observed(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    issues: BTreeMap<HealthIssue, IssueStart>,
    /// True if there was no gap since issues were observed last.
    is_continuous: bool,
    /// Looks at each place, oldest first: when, and the bytes that were taken.
    samples: BTreeMap<Place, VecDeque<(i128, u64)>>,
}

impl Observed {
    /// Notes the present issues; those that are not among them have ended. The value of each is true if an issue that is
    /// new begins now. After a gap no issue counts as beginning now.
    pub fn observe(&self, issues: &BTreeMap<HealthIssue, bool>, now_ms: u64) {
        let mut state = self.0.lock();
        let is_continuous = std::mem::replace(&mut state.is_continuous, true);
        state.issues.retain(|issue, _| issues.contains_key(issue));
        for (issue, begins) in issues {
            if state.issues.len() < ISSUES_REPORTED_MAX || state.issues.contains_key(issue) {
                let since = IssueStart { at: now_ms.into(), is_exact: is_continuous && *begins };
                state.issues.entry(*issue).or_insert(since);
            }
        }
    }

    /// Notes that this manager knows of no leader, and so has no present map. `begins` is true if that begins now, should it
    /// be new.
    pub fn observe_no_leader(&self, now_ms: u64, begins: bool) {
        let mut state = self.0.lock();
        state.is_continuous = false;
        state.issues.retain(|issue, _| *issue == HealthIssue::NoLeader);
        let since = IssueStart { at: now_ms.into(), is_exact: begins };
        state.issues.entry(HealthIssue::NoLeader).or_insert(since);
    }

    /// Notes that this manager has seen nothing for a time.
    pub fn observe_gap(&self) {
        let mut state = self.0.lock();
        state.is_continuous = false;
        state.issues.clear();
    }

    /// Keeps a look at the bytes taken of each place whose last look is at least [`FILL_PAUSE_MS`] ago; `None` if a server did
    /// not report them. Forgets places that are not named, and looks that are too old.
    pub fn look(&self, taken: &BTreeMap<Place, Option<u64>>, now_ms: u64) {
        let mut state = self.0.lock();
        let now = i128::from(now_ms);
        state.samples.retain(|place, samples| {
            samples.retain(|(at, _)| now - at <= SAMPLE_AGE_MS_MAX);
            taken.contains_key(place)
        });
        for (place, bytes) in taken.iter().filter_map(|(place, bytes)| Some((place, (*bytes)?))) {
            if state.samples.len() >= FILLS_REPORTED_MAX && !state.samples.contains_key(place) {
                continue;
            }
            let samples = state.samples.entry(*place).or_default();
            if samples.back().is_some_and(|(last, _)| now < last + i128::from(FILL_PAUSE_MS)) {
                continue;
            }
            if samples.len() == FILL_SAMPLES_MAX {
                samples.pop_front();
            }
            samples.push_back((now, bytes));
        }
    }

    /// Adopts what other managers know better: the beginnings of issues that this one did not observe, and earlier looks.
    pub fn adopt(&self, reported: &MergedObservations, now_ms: u64) {
        let mut state = self.0.lock();
        let now = i128::from(now_ms);
        for (issue, lasting) in &reported.issues {
            let Some(known) = state.issues.get_mut(issue).filter(|it| !it.is_exact) else {
                continue;
            };
            let at = now - i128::from(lasting.for_ms);
            if lasting.is_exact || at < known.at {
                *known = IssueStart { at, is_exact: lasting.is_exact };
            }
        }
        for fill in reported.fills.values() {
            let at = now - i128::from(fill.within_s) * 1000;
            let Some(samples) = state.samples.get_mut(&fill.place) else { continue };
            // A look that is older by less than that may be the same one, reported back.
            let is_older =
                |first: &(i128, u64)| at + i128::from(FILL_TREND_S_MIN) * 1000 <= first.0;
            let has_room = samples.len() < FILL_SAMPLES_MAX && now - at <= SAMPLE_AGE_MS_MAX;
            if has_room && samples.front().is_some_and(is_older) {
                samples.push_front((at, fill.taken));
            }
        }
    }

    /// The number of issues, and the milliseconds for which the oldest has lasted at least.
    #[must_use]
    pub fn issues(&self, now_ms: u64) -> (usize, u64) {
        let state = self.0.lock();
        let oldest = state.issues.values().map(|since| i128::from(now_ms) - since.at).max();
        (state.issues.len(), u64::try_from(oldest.unwrap_or_default()).unwrap_or_default())
    }

    /// The observations now, as this manager reports them.
    #[must_use]
    pub fn now(&self, now_ms: u64) -> Observations {
        let state = self.0.lock();
        let now = i128::from(now_ms);
        let age_ms = |at: i128| u64::try_from(now - at).unwrap_or_default();
        let reported = |(issue, since): (&HealthIssue, &IssueStart)| {
            (*issue, IssueDuration { for_ms: age_ms(since.at), is_exact: since.is_exact })
        };
        if let Some(unled) = state.issues.get_key_value(&HealthIssue::NoLeader) {
            return Observations { issues: vec![reported(unled)], fills: Vec::new() };
        }
        let fills = state.samples.iter().filter_map(|(place, samples)| {
            let &(at, taken) = samples.front()?;
            Some(SpaceSample { place: *place, taken, within_s: age_ms(at) / 1000 })
        });
        let issues = state.issues.iter().map(reported).collect();
        Observations { issues, fills: fills.collect() }
    }
}

#[cfg(test)]
mod sim;

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;
    const DOWN: HealthIssue = HealthIssue::ServerDown(4, 17);

    /// Troubles of now, of which those that are new begin, or not.
    fn seen(issues: &[HealthIssue], begin: bool) -> BTreeMap<HealthIssue, bool> {
        issues.iter().map(|issue| (*issue, begin)).collect()
    }

    fn lasting(now: &Observations, issue: HealthIssue) -> Option<(u64, bool)> {
        let found = now.issues.iter().find(|(known, _)| *known == issue);
        found.map(|(_, it)| (it.for_ms, it.is_exact))
    }

    #[test]
    fn a_trouble_whose_beginning_was_observed_has_an_exact_time_and_others_a_least_one() {
        let observed = Observed::default();
        observed.observe(&seen(&[HealthIssue::CopiesMissing], false), 1000);
        observed.observe(&seen(&[HealthIssue::CopiesMissing, DOWN], true), 5000);
        let now = observed.now(9000);
        assert_eq!(lasting(&now, HealthIssue::CopiesMissing), Some((8000, false)), "it was there");
        assert_eq!(lasting(&now, DOWN), Some((4000, true)));
        assert_eq!(observed.issues(9000), (2, 8000));
        observed.observe(&seen(&[DOWN], true), 10_000);
        observed.observe(&seen(&[DOWN, HealthIssue::CopiesMissing], true), 11_000);
        let now = observed.now(11_500);
        assert_eq!(lasting(&now, HealthIssue::CopiesMissing), Some((500, true)), "it began again");
        let next = HealthIssue::ServerDown(4, 18);
        observed.observe(&seen(&[next], true), 12_000);
        assert_eq!(lasting(&observed.now(12_000), DOWN), None, "the server came back in between");
    }

    #[test]
    fn a_starting_manager_catches_up_from_the_others() {
        let (old, new) = (Observed::default(), Observed::default());
        old.observe(&BTreeMap::new(), 0);
        old.observe(&seen(&[DOWN], true), HOUR_MS);
        old.look(&[(Place::Disk(3), Some(100))].into(), 0);
        let reported = Observations::together([old.now(3 * HOUR_MS)]);
        // Its clock began later.
        new.observe(&seen(&[DOWN, HealthIssue::CopiesMissing], false), 50);
        new.look(&[(Place::Disk(3), Some(400))].into(), 50);
        new.adopt(&reported, 60);
        let now = new.now(60);
        assert_eq!(lasting(&now, DOWN), Some((2 * HOUR_MS, true)));
        assert_eq!(
            lasting(&now, HealthIssue::CopiesMissing),
            Some((10, false)),
            "nobody knows better"
        );
        let look = SpaceSample { place: Place::Disk(3), taken: 100, within_s: 3 * 3600 };
        assert_eq!(now.fills, [look]);
    }

    #[test]
    fn an_observed_beginning_is_not_taken_for_an_earlier_one() {
        let observed = Observed::default();
        observed.observe(&BTreeMap::new(), 0);
        observed.observe(&seen(&[HealthIssue::PgsInactive], true), 1000);
        // As of a manager that has not heard of the pause between two of them yet.
        let late = IssueDuration { for_ms: HOUR_MS, is_exact: true };
        let reported =
            Observations { issues: vec![(HealthIssue::PgsInactive, late)], fills: Vec::new() };
        observed.adopt(&Observations::together([reported]), 2000);
        assert_eq!(lasting(&observed.now(2000), HealthIssue::PgsInactive), Some((1000, true)));
    }

    #[test]
    fn a_manager_without_a_leader_reports_only_that() {
        let observed = Observed::default();
        observed.observe(&seen(&[DOWN], false), 0);
        observed.observe_no_leader(2000, true);
        observed.observe_no_leader(3000, true);
        let now = observed.now(4000);
        assert_eq!(now.issues.len(), 1);
        assert_eq!(lasting(&now, HealthIssue::NoLeader), Some((2000, true)));
        observed.observe(&seen(&[DOWN], true), 5000);
        assert_eq!(lasting(&observed.now(5000), DOWN), Some((0, false)), "it may have ended");
    }

    #[test]
    fn what_was_seen_before_a_gap_is_not_known_behind_it() {
        const MINUTE_MS: u64 = 60_000;
        let (cut_off, other) = (Observed::default(), Observed::default());
        let missing = seen(&[HealthIssue::CopiesMissing], true);
        for observed in [&cut_off, &other] {
            observed.observe(&BTreeMap::new(), 0);
            observed.observe(&missing, MINUTE_MS);
        }
        cut_off.observe_no_leader(2 * MINUTE_MS, true);
        other.observe(&BTreeMap::new(), 10 * MINUTE_MS);
        other.observe(&missing, 50 * MINUTE_MS);
        let now_ms = 60 * MINUTE_MS;
        cut_off.observe(&missing, now_ms);
        let behind = |it: &Observed| lasting(&it.now(now_ms), HealthIssue::CopiesMissing);
        assert_eq!(behind(&cut_off), Some((0, false)), "copies were all there meanwhile");
        let together = Observations::together([cut_off.now(now_ms), other.now(now_ms)]);
        let exact = IssueDuration { for_ms: 10 * MINUTE_MS, is_exact: true };
        assert_eq!(together.issues[&HealthIssue::CopiesMissing], exact);
        cut_off.adopt(&together, now_ms);
        assert_eq!(behind(&cut_off), Some((10 * MINUTE_MS, true)));
        cut_off.observe_gap();
        assert_eq!(behind(&cut_off), None);
        cut_off.observe(&missing, now_ms);
        assert_eq!(behind(&cut_off), Some((0, false)), "nobody saw it begin");
    }

    #[test]
    fn looks_of_more_than_a_week_ago_are_neither_kept_nor_taken_over() {
        let (observed, week_ms) = (Observed::default(), 7 * 24 * HOUR_MS);
        let taken = [(Place::Cluster, Some(7))].into();
        observed.look(&taken, 0);
        observed.look(&taken, week_ms);
        let oldest = |now_ms| observed.now(now_ms).fills[0].within_s;
        assert_eq!(oldest(week_ms), week_ms / 1000);
        observed.look(&taken, week_ms + HOUR_MS);
        assert_eq!(oldest(week_ms + HOUR_MS), 3600, "only the second is left");
        let fill = SpaceSample { place: Place::Cluster, taken: 1, within_s: week_ms / 1000 + 1 };
        let reported = Observations { issues: Vec::new(), fills: vec![fill] };
        observed.adopt(&Observations::together([reported]), week_ms + HOUR_MS);
        assert_eq!(oldest(week_ms + HOUR_MS), 3600);
    }

    #[test]
    fn no_more_is_kept_than_may_be_reported() {
        let observed = Observed::default();
        let down = |from: u32| -> BTreeMap<HealthIssue, bool> {
            let servers = from..from + ISSUES_REPORTED_MAX as u32;
            servers.map(|server| (HealthIssue::ServerDown(server, 1), true)).collect()
        };
        observed.observe(&down(1), 0);
        let mut more = down(1);
        more.extend(down(0));
        observed.observe(&more, 1000);
        assert_eq!(observed.now(1000).issues.len(), ISSUES_REPORTED_MAX);
        let places = |from: u32| -> BTreeMap<Place, Option<u64>> {
            (from..from + FILLS_REPORTED_MAX as u32)
                .map(|disk| (Place::Disk(disk), Some(1)))
                .collect()
        };
        observed.look(&places(1), 0);
        let mut more = places(1);
        more.extend(places(0));
        observed.look(&more, 1000);
        assert_eq!(observed.now(1000).fills.len(), FILLS_REPORTED_MAX);
    }

    #[test]
    fn looks_are_hours_apart_and_cover_a_week() {
        let observed = Observed::default();
        for hour in 0..400 {
            let samples = [(Place::Cluster, Some(hour)), (Place::Disk(1), Some(0))];
            observed.look(&samples.into(), hour * HOUR_MS);
        }
        let within_s = observed.now(400 * HOUR_MS).fills[0].within_s;
        assert!((7 * 24 - 6..=7 * 24 + 6).contains(&(within_s / 3600)), "{within_s}");
        observed.look(&[(Place::Cluster, None)].into(), 400 * HOUR_MS);
        let fills = observed.now(400 * HOUR_MS).fills;
        assert_eq!(fills.len(), 1, "a disk that is gone is forgotten");
        assert_eq!(fills[0].within_s, within_s, "what is not known just now is not");
    }

    #[test]
    fn of_several_managers_the_best_knowledge_counts() {
        let reported = |for_ms, is_exact, within_s| Observations {
            issues: vec![(DOWN, IssueDuration { for_ms, is_exact })],
            fills: vec![SpaceSample { place: Place::Cluster, taken: within_s, within_s }],
        };
        let all = [reported(9000, false, 5), reported(7000, true, 7), reported(6000, true, 6)];
        let together = Observations::together(all);
        assert_eq!(together.issues[&DOWN], IssueDuration { for_ms: 6000, is_exact: true });
        assert_eq!(together.fills[&Place::Cluster].taken, 7);
    }

    #[test]
    fn growth_is_reported_from_an_hour_on() {
        assert_eq!(Growth::of(200, 3599, 1000), None);
        assert_eq!(Growth::of(0, 7200, 1000), None, "nothing was taken");
        let growth = Growth { bytes: 200, within_s: 7200, full_in_s: 36_000 };
        assert_eq!(Growth::of(200, 7200, 1000), Some(growth));
        assert_eq!(Growth::of(1, u64::MAX, u64::MAX).map(|it| it.full_in_s), Some(u64::MAX));
    }

    #[test]
    fn the_most_that_a_manager_tells_is_heard_and_more_is_not() {
        let issue = HealthIssue::ServerDown(u32::MAX, u64::MAX);
        let lasting = IssueDuration { for_ms: u64::MAX, is_exact: true };
        let fill =
            SpaceSample { place: Place::Disk(u32::MAX), taken: u64::MAX, within_s: u64::MAX };
        let most = Observations {
            issues: vec![(issue, lasting); ISSUES_REPORTED_MAX],
            fills: vec![fill; FILLS_REPORTED_MAX],
        };
        let reported = larder_types::codec::encode(&most);
        assert_eq!(Observations::decode(&reported), Some(most.clone()));
        let more = Observations { fills: vec![fill; FILLS_REPORTED_MAX + 1], ..most };
        assert_eq!(Observations::decode(&larder_types::codec::encode(&more)), None);
    }
}
