//! Observations of a manager of its cluster: since when each trouble lasts, and how fast disks fill.
//!
//! Each manager observes for itself, so what is known outlives any leader. It keeps this in memory, and one that starts takes over
//! what the others know. The time of a trouble is exact where its beginning was observed. A trouble that was there when a manager
//! started is older than that manager can know: it lasts at least since then.
//!
//! # Invariants
//!
//! 1. A trouble that ended and began again counts from its last beginning.
//! 2. What another manager says changes only troubles whose beginning was not observed here.
//! 3. While a manager hears of no leader its map may be old: it says that nobody leads, and nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use larder_types::codec::decode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::limits::{
    FILL_LOOKS_MAX, FILL_PAUSE_MS, FILL_TREND_S_MIN, FILLS_TOLD_MAX, OBSERVED_TOLD_BYTES_MAX,
    TROUBLES_TOLD_MAX,
};

/// A trouble of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Trouble {
    /// No manager leads, as far as the one that tells has heard.
    NoLeader,
    /// Placement groups are not served.
    PgsInactive,
    /// Placement groups lack members that have all.
    PgsIncomplete,
    /// Volumes have fewer copies than wanted.
    CopiesMissing,
    /// A server is down: its number, and the version of the map in which its run began. Its next outage is another trouble.
    ServerDown(u32, u64),
    /// Something is nearly full.
    NearlyFull(Place),
}

/// Something that fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// All disks.
    Cluster,
    /// The disks of a server.
    Server(u32),
    /// A disk.
    Disk(u32),
}

/// The time for which a trouble has lasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lasting {
    /// Milliseconds until now.
    pub for_ms: u64,
    /// True if its beginning was observed; else it may have begun before.
    pub is_exact: bool,
}

impl Lasting {
    /// The better knowledge of the same trouble: an observed beginning, or else the longer time.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let rank = |it: Self| (it.is_exact, it.for_ms);
        if rank(other) > rank(self) { other } else { self }
    }
}

/// Growth of the bytes taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// Bytes that are free no more.
    pub bytes: u64,
    /// Seconds in which they were taken.
    pub within_s: u64,
    /// Seconds until nothing is left at this rate.
    pub full_in_s: u64,
}

impl Growth {
    /// The growth by so many bytes, with so many still free. There is none of nothing, nor of less than an hour.
    #[must_use]
    pub fn of(bytes: u64, within_s: u64, free: u64) -> Option<Self> {
        if bytes == 0 || within_s < FILL_TREND_S_MIN {
            return None;
        }
        let full_in_s = u128::from(free) * u128::from(within_s) / u128::from(bytes);
        Some(Self { bytes, within_s, full_in_s: u64::try_from(full_in_s).unwrap_or(u64::MAX) })
    }
}

/// Observations, as a manager tells them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ObservedNow {
    /// The troubles that there are.
    pub troubles: Vec<(Trouble, Lasting)>,
    /// Bytes that were taken of each place, so many seconds ago: the oldest look of a week.
    pub fills: Vec<Fill>,
}

/// An earlier look at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// The place.
    pub place: Place,
    /// Bytes that were taken of it.
    pub taken: u64,
    /// Seconds since then.
    pub within_s: u64,
}

impl ObservedNow {
    /// Observations that a manager has told, if they are as one may tell them. They are measured before they are decoded.
    #[must_use]
    pub fn heard(told: &[u8]) -> Option<Self> {
        if told.len() > OBSERVED_TOLD_BYTES_MAX {
            return None;
        }
        let now = decode::<Self>("observations of a manager", told).ok()?;
        let fits = now.troubles.len() <= TROUBLES_TOLD_MAX && now.fills.len() <= FILLS_TOLD_MAX;
        fits.then_some(now)
    }

    /// The knowledge of several managers, put together.
    #[must_use]
    pub fn together(all: impl IntoIterator<Item = Self>) -> Together {
        let mut together = Together::default();
        for now in all {
            for (trouble, lasting) in now.troubles {
                let known = together.troubles.entry(trouble).or_insert(lasting);
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

/// See [`ObservedNow::together`].
#[derive(Debug, Default)]
pub struct Together {
    /// The troubles.
    pub troubles: BTreeMap<Trouble, Lasting>,
    /// The oldest look at each place.
    pub fills: BTreeMap<Place, Fill>,
}

/// A trouble here.
#[derive(Debug, Clone, Copy)]
struct Since {
    /// By the clock of [`State::now`]; earlier than its beginning if another manager said so.
    at: i128,
    is_exact: bool,
}

/// See the module's head. Times are milliseconds of a clock that never goes back.
#[derive(Debug, Default)]
pub struct Observed(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    troubles: BTreeMap<Trouble, Since>,
    /// Looks at each place, oldest first: when, and the bytes that were taken.
    looks: BTreeMap<Place, VecDeque<(i128, u64)>>,
}

impl Observed {
    /// Takes the troubles of now. What is not among them has ended. The beginning of one that is new was observed if `is_settled`:
    /// if the map has come to this manager without a gap for some time.
    pub fn heed(&self, troubles: &BTreeSet<Trouble>, now_ms: u64, is_settled: bool) {
        let mut state = self.0.lock();
        state.troubles.retain(|trouble, _| troubles.contains(trouble));
        for trouble in troubles.iter().take(TROUBLES_TOLD_MAX) {
            let since = Since { at: now_ms.into(), is_exact: is_settled };
            state.troubles.entry(*trouble).or_insert(since);
        }
    }

    /// Notes that no manager is heard to lead. All else stays as it is, as nothing else is known.
    pub fn heed_no_leader(&self, now_ms: u64, is_settled: bool) {
        let mut state = self.0.lock();
        let since = Since { at: now_ms.into(), is_exact: is_settled };
        state.troubles.entry(Trouble::NoLeader).or_insert(since);
    }

    /// Keeps a look at the bytes taken, of each place whose last one is long enough ago, and forgets places that are gone. Nothing is
    /// kept of a place of which somebody does not say now how full it is.
    pub fn look(&self, taken: &BTreeMap<Place, Option<u64>>, now_ms: u64) {
        let mut state = self.0.lock();
        state.looks.retain(|place, _| taken.contains_key(place));
        let known = taken.iter().filter_map(|(place, bytes)| Some((place, (*bytes)?)));
        for (place, bytes) in known.take(FILLS_TOLD_MAX) {
            let looks = state.looks.entry(*place).or_default();
            let now = i128::from(now_ms);
            if looks.back().is_some_and(|(last, _)| now < last + i128::from(FILL_PAUSE_MS)) {
                continue;
            }
            if looks.len() == FILL_LOOKS_MAX {
                looks.pop_front();
            }
            looks.push_back((now, bytes));
        }
    }

    /// Takes over what another manager knows better: of troubles that were there when this one started, and of earlier looks.
    pub fn adopt(&self, told: &ObservedNow, now_ms: u64) {
        let mut state = self.0.lock();
        let now = i128::from(now_ms);
        for (trouble, lasting) in &told.troubles {
            let Some(known) = state.troubles.get_mut(trouble).filter(|it| !it.is_exact) else {
                continue;
            };
            let at = now - i128::from(lasting.for_ms);
            if lasting.is_exact || at < known.at {
                *known = Since { at, is_exact: lasting.is_exact };
            }
        }
        for fill in &told.fills {
            let at = now - i128::from(fill.within_s) * 1000;
            let Some(looks) = state.looks.get_mut(&fill.place) else { continue };
            // By less than that it is the same look, told again.
            let is_older =
                |first: &(i128, u64)| at + i128::from(FILL_TREND_S_MIN) * 1000 <= first.0;
            if looks.len() < FILL_LOOKS_MAX && looks.front().is_some_and(is_older) {
                looks.push_front((at, fill.taken));
            }
        }
    }

    /// The number of troubles, and milliseconds for which the oldest lasts, at least.
    #[must_use]
    pub fn troubles(&self, now_ms: u64) -> (usize, u64) {
        let state = self.0.lock();
        let oldest = state.troubles.values().map(|since| i128::from(now_ms) - since.at).max();
        (state.troubles.len(), u64::try_from(oldest.unwrap_or_default()).unwrap_or_default())
    }

    /// The answer to those who ask.
    #[must_use]
    pub fn now(&self, now_ms: u64) -> ObservedNow {
        let state = self.0.lock();
        let now = i128::from(now_ms);
        let age_ms = |at: i128| u64::try_from(now - at).unwrap_or_default();
        let told = |(trouble, since): (&Trouble, &Since)| {
            (*trouble, Lasting { for_ms: age_ms(since.at), is_exact: since.is_exact })
        };
        if let Some(unled) = state.troubles.get_key_value(&Trouble::NoLeader) {
            return ObservedNow { troubles: vec![told(unled)], fills: Vec::new() };
        }
        let fills = state.looks.iter().filter_map(|(place, looks)| {
            let &(at, taken) = looks.front()?;
            Some(Fill { place: *place, taken, within_s: age_ms(at) / 1000 })
        });
        let troubles = state.troubles.iter().map(told).collect();
        ObservedNow { troubles, fills: fills.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;
    const DOWN: Trouble = Trouble::ServerDown(4, 17);

    fn lasting(now: &ObservedNow, trouble: Trouble) -> Option<(u64, bool)> {
        let found = now.troubles.iter().find(|(known, _)| *known == trouble);
        found.map(|(_, it)| (it.for_ms, it.is_exact))
    }

    #[test]
    fn a_trouble_whose_beginning_was_observed_has_an_exact_time_and_others_a_least_one() {
        let observed = Observed::default();
        observed.heed(&[Trouble::CopiesMissing].into(), 1000, false);
        observed.heed(&[Trouble::CopiesMissing, DOWN].into(), 5000, true);
        let now = observed.now(9000);
        assert_eq!(lasting(&now, Trouble::CopiesMissing), Some((8000, false)), "it was there");
        assert_eq!(lasting(&now, DOWN), Some((4000, true)));
        assert_eq!(observed.troubles(9000), (2, 8000));
        observed.heed(&[DOWN].into(), 10_000, true);
        observed.heed(&[DOWN, Trouble::CopiesMissing].into(), 11_000, true);
        let now = observed.now(11_500);
        assert_eq!(lasting(&now, Trouble::CopiesMissing), Some((500, true)), "it began again");
        let next = Trouble::ServerDown(4, 18);
        observed.heed(&[next].into(), 12_000, true);
        assert_eq!(lasting(&observed.now(12_000), DOWN), None, "the server came back in between");
    }

    #[test]
    fn a_manager_that_starts_takes_over_what_the_others_know() {
        let (old, new) = (Observed::default(), Observed::default());
        old.heed(&BTreeSet::new(), 0, true);
        old.heed(&[DOWN].into(), HOUR_MS, true);
        old.look(&[(Place::Disk(3), Some(100))].into(), 0);
        let told = old.now(3 * HOUR_MS);
        // Its clock began later.
        new.heed(&[DOWN, Trouble::CopiesMissing].into(), 50, false);
        new.look(&[(Place::Disk(3), Some(400))].into(), 50);
        new.adopt(&told, 60);
        let now = new.now(60);
        assert_eq!(lasting(&now, DOWN), Some((2 * HOUR_MS, true)));
        assert_eq!(lasting(&now, Trouble::CopiesMissing), Some((10, false)), "nobody knows better");
        let look = Fill { place: Place::Disk(3), taken: 100, within_s: 3 * 3600 };
        assert_eq!(now.fills, [look]);
    }

    #[test]
    fn an_observed_beginning_is_not_taken_for_an_earlier_one() {
        let observed = Observed::default();
        observed.heed(&BTreeSet::new(), 0, true);
        observed.heed(&[Trouble::PgsInactive].into(), 1000, true);
        // As of a manager that has not heard of the pause between two of them yet.
        let late = Lasting { for_ms: HOUR_MS, is_exact: true };
        let told = ObservedNow { troubles: vec![(Trouble::PgsInactive, late)], fills: Vec::new() };
        observed.adopt(&told, 2000);
        assert_eq!(lasting(&observed.now(2000), Trouble::PgsInactive), Some((1000, true)));
    }

    #[test]
    fn a_manager_that_hears_of_no_leader_says_that_alone() {
        let observed = Observed::default();
        observed.heed(&[DOWN].into(), 0, false);
        observed.heed_no_leader(2000, true);
        observed.heed_no_leader(3000, true);
        let now = observed.now(4000);
        assert_eq!(now.troubles.len(), 1);
        assert_eq!(lasting(&now, Trouble::NoLeader), Some((2000, true)));
        observed.heed(&[DOWN].into(), 5000, true);
        assert_eq!(lasting(&observed.now(5000), DOWN), Some((5000, false)), "it went on");
    }

    #[test]
    fn looks_are_hours_apart_and_cover_a_week() {
        let observed = Observed::default();
        for hour in 0..400 {
            let looks = [(Place::Cluster, Some(hour)), (Place::Disk(1), Some(0))];
            observed.look(&looks.into(), hour * HOUR_MS);
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
        let told = |for_ms, is_exact, within_s| ObservedNow {
            troubles: vec![(DOWN, Lasting { for_ms, is_exact })],
            fills: vec![Fill { place: Place::Cluster, taken: within_s, within_s }],
        };
        let all = [told(9000, false, 5), told(7000, true, 7), told(6000, true, 6)];
        let together = ObservedNow::together(all);
        assert_eq!(together.troubles[&DOWN], Lasting { for_ms: 7000, is_exact: true });
        assert_eq!(together.fills[&Place::Cluster].taken, 7);
    }

    #[test]
    fn growth_is_told_of_an_hour_or_more() {
        assert_eq!(Growth::of(200, 3599, 1000), None);
        assert_eq!(Growth::of(0, 7200, 1000), None, "nothing was taken");
        let growth = Growth { bytes: 200, within_s: 7200, full_in_s: 36_000 };
        assert_eq!(Growth::of(200, 7200, 1000), Some(growth));
        assert_eq!(Growth::of(1, u64::MAX, u64::MAX).map(|it| it.full_in_s), Some(u64::MAX));
    }

    #[test]
    fn the_most_that_a_manager_tells_is_heard_and_more_is_not() {
        let trouble = Trouble::ServerDown(u32::MAX, u64::MAX);
        let lasting = Lasting { for_ms: u64::MAX, is_exact: true };
        let fill = Fill { place: Place::Disk(u32::MAX), taken: u64::MAX, within_s: u64::MAX };
        let most = ObservedNow {
            troubles: vec![(trouble, lasting); TROUBLES_TOLD_MAX],
            fills: vec![fill; FILLS_TOLD_MAX],
        };
        let told = larder_types::codec::encode(&most);
        assert_eq!(ObservedNow::heard(&told), Some(most.clone()));
        let more = ObservedNow { fills: vec![fill; FILLS_TOLD_MAX + 1], ..most };
        assert_eq!(ObservedNow::heard(&larder_types::codec::encode(&more)), None);
    }
}
