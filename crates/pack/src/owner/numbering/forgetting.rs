//! Old numbers and records of processes, of a worker and those that it has taken over from. It decides which of them
//! may be removed, so that there are never many. Work in the background removes them (`removal.rs`); where processes
//! end too soon for that, as they crash, a start does.
//!
//! # Invariants
//!
//! 1. They go in their order, and a number before its record: one without a record is taken for one that may get it.
//! 2. The last [`PROCESSES_KEPT`] of a worker stay, and of those before it the last; and of each the last that began. A process
//!    that runs still finds the next number or misses its own (`numbering.rs`), and no number is given again.
//! 3. Those stay that the backend got within [`PROCESS_AGE_MIN`] before it got the worker's last.
//!    So long may a request for one of them be under way, and so long does a process that is idle
//!    go by clocks. Of a process whose number and record were removed, both must not come back. If
//!    the record was a closed one, what is there then cannot be told from what is there of a
//!    process that began, and blobs that count would be void. The record may come back alone, as a
//!    process that was paused writes it whenever it goes on: without its number it counts for
//!    nothing. The number may come back alone, as its process asks for it again: that finds a later
//!    one, and writes no record. For both to come back, a request for the number would have to come
//!    that long after another had made the number, with which the process has gone on.
//! 4. A blob that is in the backend counts without them if it does with them, and only then.
//!
//! # Blobs that come later
//!
//! A blob s of a process n may come once the records are gone by which it is void. If the last
//! process that began did so at s or before, its record says so. If that process began behind s, it
//! has known s as uploaded, by a later process than n, as the record that is gone began at s or
//! before. Either that blob is there, and of the two the later process's counts, as the numbers
//! behind n are gone. Or it was retired, and nobody reads what has its number. Of an earlier worker
//! an heir's takeover fence says the same of what is beyond its last blob.

use std::collections::BTreeSet;

use super::{Numbering, NumberingEvidence};
use crate::backend::Backend;
use crate::bugs::{self, Bug};
use crate::error::PackError;
use crate::format::blob;
use crate::ids::{ProcessId, WorkerId};
use crate::limits::{
    PROCESS_AGE_MIN, PROCESSES_FORGOTTEN_AT_ONCE, PROCESSES_KEPT, PROCESSES_OF_EARLIER_KEPT,
};
use crate::owner::counting::{self, Counting, Listed, Numbers, Process};
use crate::owner::identity::check_owner;

/// True in simulations that remove all numbers but the last at once, as if each start came much later.
#[cfg(test)]
fn keeps_few() -> bool {
    crate::sim::keeps_few()
}

/// There are no simulations outside of tests.
#[cfg(not(test))]
const fn keeps_few() -> bool {
    false
}

/// Processes that are old, of a worker and those before it, in their order; some may have a record alone.
pub(crate) fn old(numbers: &Numbers, worker: WorkerId) -> Vec<Process> {
    let Some(last) = numbers.of_worker(worker).next_back() else { return Vec::new() };
    let Some(last_ms) = numbers.numbers.get(&(worker, last)).copied() else { return Vec::new() };
    let age_ms = |process: &Process| {
        let made_ms = numbers.numbers.get(process);
        made_ms.map(|made_ms| i128::from(last_ms) - i128::from(*made_ms))
    };
    let young_ms = 0..if keeps_few() { 0 } else { PROCESS_AGE_MIN.as_millis() as i128 };
    let is_young = |process: &Process| age_ms(process).is_some_and(|age| young_ms.contains(&age));
    // A clock was set back since: it is older than those behind it, however old that is.
    let is_undated = |process: &Process| age_ms(process).is_some_and(|age| age < 0);
    let named = numbers.numbers.keys().chain(&numbers.recorded);
    let workers: BTreeSet<_> = named.map(|(of, _)| *of).filter(|of| *of <= worker).collect();
    let mut all_old = Vec::new();
    for of in workers {
        let Some(last) = numbers.of_worker(of).next_back() else { continue };
        let kept = match of < worker || keeps_few() {
            true => PROCESSES_OF_EARLIER_KEPT,
            false => PROCESSES_KEPT,
        };
        let is_many = |(_, process): &Process| process.number() + kept <= last.number();
        let all = (of, ProcessId::UNNUMBERED)..(of, last);
        let named = numbers.numbers.range(all.clone()).map(|(process, _)| *process);
        let processes: BTreeSet<_> = named.chain(numbers.recorded.range(all).copied()).collect();
        let mut old: Vec<_> =
            processes.into_iter().take_while(is_many).take_while(|of| !is_young(of)).collect();
        while old.pop_if(|last| is_undated(last)).is_some() {}
        all_old.extend(old);
    }
    all_old
}

/// Of old processes those that may go: of each worker the last stays that began. Its record says for good what comes too late.
pub(crate) fn removable(counting: &Counting, mut old: Vec<Process>) -> Vec<Process> {
    if !bugs::planted(Bug::LastBegunForgotten) {
        old.retain(|(of, process)| counting.last_begun(*of).is_none_or(|last| *process < last));
    }
    old
}

/// Returns true if the same of these blobs, in the order of their names, count without the records
/// of some processes. Of two that have one number then the later process's does, and the other is
/// void as before.
pub(crate) fn count_alike(counting: &Counting, gone: &[Process], blobs: &[Listed]) -> bool {
    let without = counting.without(&gone.iter().copied().collect());
    match (counting.counted(blobs.to_vec()), without.counted(blobs.to_vec())) {
        (Ok(with), Ok(without)) => with == without,
        _ => false,
    }
}

/// Removes number and record of a process.
pub(crate) async fn remove(backend: &Backend, (worker, process): Process) -> Result<(), PackError> {
    backend.remove(&counting::path(worker, process)).await?;
    backend.remove(&counting::record_path(worker, process)).await
}

impl Numbering {
    /// Removes some of what is old, if it is more than work in the background leaves.
    pub(super) async fn forget_old(
        &self,
        own: ProcessId,
        numbers: &Numbers,
    ) -> Result<(), PackError> {
        let old = old(numbers, self.worker);
        if old.is_empty() || !keeps_few() && old.len() < PROCESSES_FORGOTTEN_AT_ONCE {
            return Ok(());
        }
        let mut blobs = Listed::all(self.backend.names(blob::PREFIX).await?)?;
        blobs.retain(|blob| blob.name.id.worker <= self.worker);
        let counting = Counting::read(&self.backend, &self.records).await?;
        let mut old = removable(&counting, old);
        old.truncate(PROCESSES_FORGOTTEN_AT_ONCE);
        if !count_alike(&counting, &old, &blobs) {
            tracing::warn!(
                "markers of earlier processes stay: they mark blobs in the backend as void"
            );
            return Ok(());
        }
        check_owner(&self.backend, self.worker).await?;
        self.check_latest(own, NumberingEvidence::Backend).await?;
        for process in &old {
            remove(&self.backend, *process).await?;
        }
        tracing::info!(processes = old.len(), "removed markers of earlier processes");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::format::blob::BlobName;
    use crate::ids::BlobId;
    use crate::owner::counting::Record;

    const W: WorkerId = WorkerId(3);
    const HOUR_MS: i64 = 3_600_000;

    fn process(number: u64) -> Process {
        (W, ProcessId::new(number).unwrap())
    }

    /// Processes up to a number, each with a record, made one a minute.
    fn numbers(last: u64) -> Numbers {
        let all = (1..=last).map(process);
        let numbers = all.clone().map(|of| (of, of.1.number() as i64 * 60_000)).collect();
        Numbers { numbers, recorded: all.collect() }
    }

    fn counting(numbers: Numbers, from: impl Fn(u64) -> u64) -> Counting {
        let record = |of: &Process| (*of, Record::From(from(of.1.number())));
        let records: BTreeMap<_, _> = numbers.recorded.iter().map(record).collect();
        Counting::of(numbers, records)
    }

    fn blob(number: u64, seq: u64) -> Listed {
        let (id, process) = (BlobId { worker: W, seq }, process(number).1);
        Listed { name: BlobName { id, created_ms: 1, footer_offset: 2, process }, bytes: 9 }
    }

    #[test]
    fn the_last_and_the_young_stay() {
        let mut all = numbers(600);
        let first = |upto: u64| (1..=upto).map(process).collect::<Vec<_>>();
        assert_eq!(old(&all, W), first(88));
        assert_eq!(old(&all, WorkerId(4)), []);
        assert_eq!(old(&numbers(512), W), []);
        // All after the 30th came at once.
        for (of, made_ms) in &mut all.numbers {
            *made_ms = if of.1.number() <= 30 { 0 } else { HOUR_MS };
        }
        assert_eq!(old(&all, W), first(30));
        // One of them was removed, and its record was not.
        all.numbers.remove(&process(7));
        assert_eq!(old(&all, W), first(30));
        all.recorded.remove(&process(7));
        assert_eq!(old(&all, W).len(), 29);
    }

    #[test]
    fn numbers_from_before_a_clock_was_set_back_go_with_the_old_ones_behind_them() {
        let mut all = numbers(600);
        let set = |all: &mut Numbers, of: u64| all.numbers.insert(process(of), 900 * HOUR_MS);
        for of in [5, 6, 40] {
            set(&mut all, of);
        }
        assert_eq!(old(&all, W).len(), 88);
        // The time of the last of these is unknown.
        for of in 60..=88 {
            set(&mut all, of);
        }
        assert_eq!(old(&all, W).len(), 59);
        set(&mut all, 600);
        assert_eq!(old(&all, W).len(), 4, "the fifth is young then");
    }

    #[test]
    fn of_workers_before_the_last_number_stays() {
        let (mut all, earlier) = (numbers(600), WorkerId(2));
        for number in [3, 4, 9] {
            let process = (earlier, process(number).1);
            all.numbers.insert(process, if number < 9 { 0 } else { 600 * 60_000 });
            all.recorded.insert(process);
        }
        let of_earlier = |all: &Numbers| {
            let old = old(all, W).into_iter();
            old.filter(|(of, _)| *of == earlier).map(|(_, of)| of.number()).collect::<Vec<_>>()
        };
        assert_eq!(of_earlier(&all), [3, 4]);
        assert_eq!(old(&all, W).len(), 2 + 88, "and its own");
        // The heir has come only now.
        all.numbers.insert((earlier, process(4).1), 600 * 60_000);
        assert_eq!(of_earlier(&all), [3]);
        assert_eq!(old(&all, earlier), [], "it goes by its own last number");
    }

    #[test]
    fn the_last_that_began_stays_though_many_ended_before_that() {
        let mut records: BTreeMap<_, _> =
            (1..=600).map(|of| (process(of), Record::Closed)).collect();
        let none = Counting::of(numbers(600), records.clone());
        let all: Vec<_> = (1..=88).map(process).collect();
        assert_eq!(removable(&none, all.clone()), all, "nothing is void by any of them");
        records.insert(process(2), Record::From(1));
        records.insert(process(7), Record::From(5));
        let counting = Counting::of(numbers(600), records);
        assert_eq!(removable(&counting, all.clone()), all[..6]);
        assert!(!counting.counts(W, process(6).1, 5));
    }

    #[test]
    fn what_alone_makes_a_blob_void_stays() {
        let (gone, late) = ([process(1), process(2)], [blob(1, 5), blob(3, 7)]);
        // Later processes began where the second did, or later.
        let same = counting(numbers(4), |process| if process == 1 { 1 } else { 5 });
        assert!(count_alike(&same, &gone, &late));
        let later = counting(numbers(4), |process| if process < 3 { 5 } else { 6 });
        assert!(!count_alike(&later, &gone, &late), "the first blob is void by the second process");
        assert!(count_alike(&later, &gone, &late[1..]));
    }

    #[test]
    fn a_void_blob_beside_the_one_that_counts_keeps_no_numbers() {
        let later = counting(numbers(4), |process| if process < 3 { 5 } else { 6 });
        let both = [blob(1, 5), blob(2, 5)];
        assert_eq!(later.counted(both.to_vec()).unwrap(), both[1..]);
        assert!(count_alike(&later, &[process(1), process(2)], &both));
        assert!(!count_alike(&later, &[process(2)], &both), "not out of their order");
    }
}
