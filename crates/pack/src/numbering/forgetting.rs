//! Old numbers and records of a worker's processes: which of them may go, so that there are never many. Work in the background
//! removes them (`removal.rs`); where processes end too soon for that, as they crash, a start does.
//!
//! # Invariants
//!
//! 1. They go in their order, and a number before its record: one without a record is taken for one that may get it.
//! 2. The last [`PROCESSES_KEPT`] stay, and those that the backend got within [`PROCESS_AGE_MIN`] before it got the last: a
//!    process that runs still finds the next number or misses its own (`numbering.rs`).
//! 3. Whatever blob is in the backend counts without them if it does with them, and only then.

use std::collections::BTreeSet;

use super::{By, Numbering};
use crate::backend::Backend;
use crate::blob;
use crate::counting::{self, Counting, Listed, Numbers, Process};
use crate::entry::{ProcessId, WorkerId};
use crate::error::PackError;
use crate::identity::check_owner;
use crate::limits::{PROCESS_AGE_MIN, PROCESSES_FORGOTTEN_AT_ONCE, PROCESSES_KEPT};

/// Processes of a worker that are old, in their order; some may have a record alone.
pub(crate) fn old(numbers: &Numbers, worker: WorkerId) -> Vec<Process> {
    let Some(last) = numbers.of_worker(worker).next_back() else { return Vec::new() };
    let made_ms = |process: &Process| numbers.numbers.get(process).copied();
    let Some(last_ms) = made_ms(&(worker, last)) else { return Vec::new() };
    let is_old = |process: &Process| {
        let age = made_ms(process).map(|made_ms| i128::from(last_ms) - i128::from(made_ms));
        age.is_none_or(|age_ms| age_ms >= PROCESS_AGE_MIN.as_millis() as i128)
    };
    let all = (worker, ProcessId::UNNUMBERED)..(worker, last);
    let named = numbers.numbers.range(all.clone()).map(|(process, _)| *process);
    let processes: BTreeSet<_> = named.chain(numbers.recorded.range(all).copied()).collect();
    let is_many = |(_, process): &Process| process.number() + PROCESSES_KEPT <= last.number();
    processes.into_iter().take_while(is_many).take_while(is_old).collect()
}

/// Whether the same of these blobs count without what there is of some processes.
pub(crate) fn count_alike(counting: &Counting, gone: &[Process], blobs: &[Listed]) -> bool {
    let without = counting.without(&gone.iter().copied().collect());
    blobs.iter().all(|Listed { name, .. }| {
        let counts = |by: &Counting| by.counts(name.id.worker, name.process, name.id.seq);
        counts(counting) == counts(&without)
    })
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
        let mut old = old(numbers, self.worker);
        if old.len() < PROCESSES_FORGOTTEN_AT_ONCE {
            return Ok(());
        }
        old.truncate(PROCESSES_FORGOTTEN_AT_ONCE);
        let mut blobs = Listed::all(self.backend.names(blob::PREFIX).await?)?;
        blobs.retain(|blob| blob.name.id.worker == self.worker);
        let counting = Counting::read(&self.backend, &self.records).await?;
        if !count_alike(&counting, &old, &blobs) {
            tracing::warn!(
                "numbers of old processes stay: they say that blobs in the backend do not count"
            );
            return Ok(());
        }
        check_owner(&self.backend, self.worker).await?;
        self.check_latest(own, By::Backend).await?;
        for process in &old {
            remove(&self.backend, *process).await?;
        }
        tracing::info!(processes = old.len(), "numbers of old processes were removed");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::blob::BlobName;
    use crate::counting::Record;
    use crate::entry::BlobId;

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
    fn what_alone_makes_a_blob_void_stays() {
        let (gone, late) = ([process(1), process(2)], [blob(1, 5), blob(2, 5), blob(3, 7)]);
        // Later processes began where the second did, or later.
        let same = counting(numbers(4), |process| if process == 1 { 1 } else { 5 });
        assert!(count_alike(&same, &gone, &late));
        let later = counting(numbers(4), |process| if process < 3 { 5 } else { 6 });
        assert!(!count_alike(&later, &gone, &late), "the first blob is void by the second process");
        assert!(count_alike(&later, &gone, &late[1..]));
    }
}
