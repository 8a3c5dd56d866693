//! The state of a single node in one line: what is wrong, and what to do.

use larder_roles::observed::Growth;

use crate::cluster::status::growth;
use crate::cluster::status::space::Space;
use crate::quantity::bytes;

/// From so many hundredths on it is nearly full.
const FULL_PERCENT: u64 = 90;
/// A put whose outcome is open for longer is not merely one that the start settles.
const DOUBT_MS_MAX: u64 = 60_000;

/// The facts that a verdict goes by.
#[derive(Debug, Clone, Default)]
pub(super) struct StatusFacts {
    /// The data disk takes nothing any more.
    pub(super) is_broken: bool,
    /// The index cannot be read in part, by this error.
    pub(super) index_damage: Option<String>,
    /// Placement groups that are not served.
    pub(super) pgs_halted: usize,
    /// Copies that are not what was written.
    pub(super) damaged: u64,
    /// The region was removed from the others.
    pub(super) is_removed: bool,
    pub(super) put_in_doubt_oldest_ms: u64,
    /// New data finds no room.
    pub(super) is_full: bool,
    pub(super) space: Space,
    pub(super) growth: Option<Growth>,
}

/// A line, and whether all is well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) line: String,
    pub(super) is_well: bool,
}

/// The worst that there is to say.
pub(super) fn of(seen: &StatusFacts) -> Verdict {
    let wrong = |line: String| Verdict { line, is_well: false };
    if seen.is_broken {
        return wrong("NOT WELL: the disk of the data failed, and takes nothing any more. Look at the disk (dmesg, SMART); then start again".to_owned());
    }
    if let Some(reason) = &seen.index_damage {
        return wrong(format!(
            "READ-ONLY: the index is damaged. What it has lost answers 500, all else can be read. Copy it to another store, or restore a backup, then look at the disk: {reason}"
        ));
    }
    if seen.pgs_halted > 0 {
        let halted = seen.pgs_halted;
        return wrong(format!(
            "NOT WELL: {halted} placement groups are not served, as their metadata contradicts itself. Stop the server, keep a copy of its directory, then `larder inspect` it"
        ));
    }
    if seen.is_removed {
        return wrong("NOT WELL: this region was removed from the others, and takes no changes. Its objects can still be read".to_owned());
    }
    if seen.is_full {
        let left = bytes(seen.space.free);
        return wrong(format!(
            "FULL: puts get 507, as {left} are left for data. Delete objects or other files, or make the file system larger"
        ));
    }
    if seen.damaged > 0 {
        return wrong(format!(
            "NOT WELL: {} damaged copies were found by the last scrub. The log names their objects: put these again, and look at the disk; the next round says whether more are left",
            seen.damaged
        ));
    }
    if seen.put_in_doubt_oldest_ms > DOUBT_MS_MAX {
        return wrong("NOT WELL: what became of some puts has not been found out for a minute, and their keys answer 503. See the log".to_owned());
    }
    if seen.space.bytes > 0 && seen.space.percent() >= FULL_PERCENT {
        let taken = percent(&seen.space);
        return wrong(format!(
            "NEARLY FULL: {taken}{}. Delete objects, or make the file system larger",
            growth::foretold(seen.growth.as_ref())
        ));
    }
    let line = format!("well: {}{}", percent(&seen.space), growth::foretold(seen.growth.as_ref()));
    Verdict { line, is_well: true }
}

fn percent(space: &Space) -> String {
    format!("{} % of {} taken", space.percent(), bytes(space.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIB: u64 = 1 << 40;

    fn half_full() -> StatusFacts {
        let space = Space { bytes: 2 * TIB, used: TIB, free: TIB, ..Space::default() };
        StatusFacts { space, ..StatusFacts::default() }
    }

    #[test]
    fn a_store_is_well_as_long_as_nothing_is_wrong() {
        let verdict = of(&half_full());
        assert_eq!(verdict.line, "well: 50 % of 2.0 TiB taken");
        assert!(verdict.is_well);
        let starting = StatusFacts { put_in_doubt_oldest_ms: DOUBT_MS_MAX, ..half_full() };
        assert!(of(&starting).is_well, "a start settles what was open");
    }

    #[test]
    fn what_fills_within_a_month_is_foretold_and_well_all_the_same() {
        let day = 24 * 3600;
        let growth = Growth { bytes: 1, within_s: 2 * day, full_in_s: 9 * day };
        let verdict = of(&StatusFacts { growth: Some(growth), ..half_full() });
        let expected = "well: 50 % of 2.0 TiB taken, full in 9 days at the rate of the last 2 days";
        assert_eq!(verdict.line, expected);
        assert!(verdict.is_well);
        let later = Growth { full_in_s: 31 * day, ..growth };
        assert!(!of(&StatusFacts { growth: Some(later), ..half_full() }).line.contains("full in"));
    }

    #[test]
    fn the_worst_is_said_and_each_fault_is_not_well() {
        let space = Space { bytes: 100, used: 85, waiting: 5, free: 10, ..Space::default() };
        let mut seen = StatusFacts { space, ..StatusFacts::default() };
        let mut said = vec![of(&seen).line];
        let worse: [fn(&mut StatusFacts); 7] = [
            |seen| seen.put_in_doubt_oldest_ms = DOUBT_MS_MAX + 1,
            |seen| seen.damaged = 3,
            |seen| seen.is_full = true,
            |seen| seen.is_removed = true,
            |seen| seen.pgs_halted = 2,
            |seen| seen.index_damage = Some("rot".to_owned()),
            |seen| seen.is_broken = true,
        ];
        for make in worse {
            make(&mut seen);
            let verdict = of(&seen);
            assert!(!verdict.is_well, "{}", verdict.line);
            assert!(!said.contains(&verdict.line), "{}", verdict.line);
            said.push(verdict.line);
        }
        assert!(said[0].starts_with("NEARLY FULL: 90 % of 100 B"), "{}", said[0]);
    }
}
