//! Decides which blobs count, where several processes ran for one worker: on one directory, one after the other, or on
//! copies of it. All code that lists blobs uses this decision.
//!
//! A process numbers itself in the backend, and then writes a *record*: the number of the first
//! blob that it will upload itself (`numbering.rs`). A blob from that number on that a process
//! before it uploads has come too late: it is void.
//!
//! ```text
//! incarnations/WORKER-PROCESS          the process has this number
//! incarnations/WORKER-PROCESS-from     its record: where it begins, or that it never will
//! ```
//!
//! # Invariants
//!
//! 1. A blob (process n, number s) counts if no process N > n of its worker has a record that begins at s or before.
//! 2. A record is written once: by its process, or by a later one that found none, which *closes* it. So two who read all
//!    records of the same processes judge alike, for good.
//! 3. No two blobs of one number count.
//! 4. A reader lists blobs first, and reads records after that. While a process has a number and no
//!    record, one blob is undecided: the last one of the last process before it that began. Only a
//!    process that closes such numbers may count it. The blobs before that one are decided: a
//!    process uploads a blob only once the one before is acknowledged.
//! 5. Bundles count as their blobs do.
//! 6. Numbers and records that are old go in their order (`forgetting.rs`); nothing that is in the backend counts otherwise
//!    without them. A record without its number counts for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeBounds};

use futures::future::join_all;
use larder_types::codec::decode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Unread};
use crate::error::PackError;
use crate::format::blob::{self, BlobName, PROCESS_DIGITS};
use crate::format::rows::BlobRow;
use crate::ids::{ProcessId, WorkerId};
use crate::limits::{RECORD_BYTES_MAX, RECORDS_AT_ONCE};

/// Prefix of numbers and records.
pub(crate) const PREFIX: &str = "incarnations";
/// The end of a record's name, behind the name of its number.
pub(crate) const RECORD: &str = "-from";

/// The record of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// It was superseded before it had one, and uploads nothing.
    Closed,
    /// It uploads blobs from this number on.
    From(u64),
}

/// A process of a worker.
pub(crate) type Process = (WorkerId, ProcessId);

/// A blob as the backend lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: BlobName,
    pub(crate) bytes: u64,
}

impl Listed {
    pub(crate) fn row(&self) -> BlobRow {
        let BlobName { created_ms, footer_offset, process, .. } = self.name;
        BlobRow { created_ms, footer_offset, bytes: self.bytes, process }
    }

    /// Blobs of names without their prefix.
    ///
    /// # Errors
    /// [`PackError::Damaged`] if one is not named as a blob is.
    pub(crate) fn all(names: Vec<(String, u64)>) -> Result<Vec<Self>, PackError> {
        let parse = |(name, bytes): (String, u64)| match BlobName::parse(&name) {
            Some(name) => Ok(Self { name, bytes }),
            None => {
                let name = format!("{}/{name}", blob::PREFIX);
                Err(PackError::damaged(name, "it is not named as a blob is"))
            }
        };
        names.into_iter().map(parse).collect()
    }
}

/// The processes that have numbers and records, of all workers below one prefix, by their names
/// alone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers {
    /// The time at which the backend got each number, in milliseconds since 1970, by its own clock.
    pub(crate) numbers: BTreeMap<Process, i64>,
    pub(crate) recorded: BTreeSet<Process>,
}

impl Numbers {
    pub(crate) async fn list(backend: &Backend) -> Result<Self, PackError> {
        let mut all = Self::default();
        for (name, made_ms) in backend.names_made(PREFIX).await? {
            let unnamed = || PackError::unknown(format!("{PREFIX}/{name}"), "a process's number");
            let (process, is_record) = parse(&name).ok_or_else(unnamed)?;
            if is_record {
                all.recorded.insert(process);
            } else {
                all.numbers.insert(process, made_ms);
            }
        }
        Ok(all)
    }

    /// Processes that have a number and no record.
    pub(crate) fn open(&self) -> impl Iterator<Item = Process> {
        self.numbers.keys().copied().filter(|process| !self.recorded.contains(process))
    }

    /// Processes whose records count: those that have a number too. A record without one was left when that was removed, or
    /// came back: a request for it was late.
    fn counted(&self) -> impl Iterator<Item = Process> {
        self.recorded.iter().copied().filter(|process| self.numbers.contains_key(process))
    }

    /// The same without numbers that were removed since, of which these `missing` records tell. Old
    /// numbers are removed in their order, and a number before its record.
    ///
    /// # Errors
    /// [`PackError::Backend`] if one is listed again: then the backend only did not show it.
    async fn without_removed(
        mut self,
        backend: &Backend,
        missing: &[Process],
    ) -> Result<Self, PackError> {
        let now = Self::list(backend).await?;
        for (worker, process) in missing {
            if now.numbers.contains_key(&(*worker, *process)) {
                return Err(PackError::Backend {
                    operation: "read",
                    name: record_path(*worker, *process),
                    reason: "it is listed, and cannot be found".to_owned(),
                });
            }
            self.numbers.retain(|(of, number), _| of != worker || number > process);
            self.recorded.remove(&(*worker, *process));
        }
        Ok(self)
    }

    /// Numbers of a worker's processes, in their order.
    pub(crate) fn of_worker(&self, worker: WorkerId) -> impl DoubleEndedIterator<Item = ProcessId> {
        let all = (worker, ProcessId::UNNUMBERED)..=(worker, ProcessId::LAST);
        self.numbers.range(all).map(|((_, process), _)| *process)
    }
}

/// Records that were read before, of all workers below one prefix: they never change.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<BTreeMap<Process, Record>>);

/// The decision which blobs count, as numbers and records of all workers below one prefix say.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counting {
    pub(crate) numbers: Numbers,
    records: BTreeMap<Process, Record>,
    /// The least number at which this process or a later one of its worker begins.
    least: BTreeMap<Process, u64>,
    /// The only process of which, and of later ones of its worker, it can say whether their blobs count.
    only: Option<Process>,
}

impl Counting {
    /// Reads what is not known.
    pub(crate) async fn read(backend: &Backend, known: &Known) -> Result<Self, PackError> {
        Self::of_records(backend, known, None).await
    }

    /// As [`Counting::read`], to say whether blobs of this process and of later ones of its worker count.
    pub(crate) async fn read_from(
        backend: &Backend,
        known: &Known,
        process: Process,
    ) -> Result<Self, PackError> {
        Self::of_records(backend, known, Some(process)).await
    }

    async fn of_records(
        backend: &Backend,
        known: &Known,
        only: Option<Process>,
    ) -> Result<Self, PackError> {
        let mut numbers = Numbers::list(backend).await?;
        let is_wanted = |(worker, process): &Process| {
            only.is_none_or(|(of, first)| *worker == of && *process >= first)
        };
        let (mut records, mut wanted) = (BTreeMap::new(), Vec::new());
        {
            let mut known = known.0.lock();
            known.retain(|process, _| numbers.recorded.contains(process));
            for process in numbers.counted().filter(is_wanted) {
                match known.get(&process) {
                    Some(record) => {
                        records.insert(process, *record);
                    }
                    None => wanted.push(process),
                }
            }
        }
        let mut missing = Vec::new();
        for some in wanted.chunks(RECORDS_AT_ONCE) {
            let reading =
                some.iter().map(|(worker, process)| read_record(backend, *worker, *process));
            for (process, record) in some.iter().zip(join_all(reading).await) {
                match record? {
                    Some(record) => {
                        records.insert(*process, record);
                    }
                    None => missing.push(*process),
                }
            }
        }
        if !missing.is_empty() {
            numbers = numbers.without_removed(backend, &missing).await?;
        }
        known.0.lock().extend(records.iter().map(|(process, record)| (*process, *record)));
        Ok(Self { only, ..Self::of(numbers, records) })
    }

    pub(crate) fn of(numbers: Numbers, records: BTreeMap<Process, Record>) -> Self {
        let (mut least, mut last) = (BTreeMap::new(), None);
        for (process, record) in records.iter().rev() {
            let later = last.filter(|(worker, _)| *worker == process.0).map(|(_, from)| from);
            let from = match record {
                Record::From(from) => later.map_or(*from, |later: u64| later.min(*from)),
                Record::Closed => match later {
                    Some(later) => later,
                    None => continue,
                },
            };
            least.insert(*process, from);
            last = Some((process.0, from));
        }
        Self { numbers, records, least, only: None }
    }

    /// The last process of a worker that began, of those with a number.
    pub(crate) fn last_begun(&self, worker: WorkerId) -> Option<ProcessId> {
        let all = (worker, ProcessId::UNNUMBERED)..=(worker, ProcessId::LAST);
        let mut begun = self.records.range(all).rev();
        begun.find(|(_, record)| matches!(record, Record::From(_))).map(|((_, of), _)| *of)
    }

    /// Of each worker the last blob that the last process that began knew as uploaded. It was in the backend then, and goes
    /// only when a later blob retires it. Processes before that may have known more, which it has judged void.
    pub(crate) fn known(&self) -> BTreeMap<WorkerId, u64> {
        let from = |record: &Record| match record {
            Record::From(from) => Some(from.saturating_sub(1)),
            Record::Closed => None,
        };
        let begun = self.records.iter();
        begun.filter_map(|((worker, _), record)| Some((*worker, from(record)?))).collect()
    }

    /// The same without what is there of some processes.
    pub(crate) fn without(&self, gone: &BTreeSet<Process>) -> Self {
        let (mut numbers, mut records) = (self.numbers.clone(), self.records.clone());
        numbers.numbers.retain(|process, _| !gone.contains(process));
        numbers.recorded.retain(|process| !gone.contains(process));
        records.retain(|process, _| !gone.contains(process));
        Self { only: self.only, ..Self::of(numbers, records) }
    }

    /// Returns true if a blob that a process uploaded counts, and with it its bundles.
    pub(crate) fn counts(&self, worker: WorkerId, process: ProcessId, seq: u64) -> bool {
        let is_known = self.only.is_none_or(|(of, first)| worker == of && process >= first);
        assert!(is_known, "records that say whether {worker}'s blob {seq} counts were not read");
        let later = (Bound::Excluded((worker, process)), Bound::Unbounded);
        let least = self.least.range(later).next().filter(|((of, _), _)| *of == worker);
        least.is_none_or(|(_, from)| seq < *from)
    }

    /// Returns those of listed blobs that count, in their order. Numbers were closed before, or it
    /// does not matter that the last blob of a process may become void.
    ///
    /// # Errors
    /// [`PackError::Damaged`] if two of one number count.
    pub(crate) fn counted(&self, listed: Vec<Listed>) -> Result<Vec<Listed>, PackError> {
        let mut counted: Vec<Listed> = Vec::with_capacity(listed.len());
        for blob in listed {
            let BlobName { id, process, .. } = blob.name;
            if !self.counts(id.worker, process, id.seq) {
                continue;
            }
            if let Some(other) = counted.last().filter(|other| other.name.id == id) {
                let (lesser, greater) = match other.name.process < process {
                    true => (*other, blob),
                    false => (blob, *other),
                };
                if self.is_forgotten(id.worker, lesser.name.process, greater.name.process) {
                    counted.pop();
                    counted.push(greater);
                    continue;
                }
                let reason = format!("there is another blob of this number, {}", other.name.path());
                return Err(PackError::damaged(blob.name.path(), reason));
            }
            counted.push(blob);
        }
        Ok(counted)
    }

    /// Two processes uploaded a blob of one number, and no record makes either void. Returns true
    /// if that is because the later one's record was removed as too old. It began at that number or
    /// before, which made the other's blob void. Numbers are removed in their order, so the other's
    /// is gone too, unless a late request made it again. A number before the last process that
    /// began, without a record of a beginning, was made again, and may have been closed since.
    fn is_forgotten(&self, worker: WorkerId, lesser: ProcessId, greater: ProcessId) -> bool {
        let is_told = |process| {
            let all = (worker, process);
            let began = matches!(self.records.get(&all), Some(Record::From(_)));
            began && self.numbers.numbers.contains_key(&all)
        };
        let is_before = self.last_begun(worker).is_some_and(|begun| greater < begun);
        is_before && !is_told(lesser) && !is_told(greater)
    }

    /// As [`Counting::counted`], without what is undecided; true if anything is. Nothing is
    /// undecided of workers that are `settled`: their heir has closed numbers and written down what
    /// it inherits.
    ///
    /// # Errors
    /// As for [`Counting::counted`].
    pub(crate) fn decided(
        &self,
        listed: Vec<Listed>,
        settled: impl Fn(WorkerId) -> bool,
    ) -> Result<(Vec<Listed>, bool), PackError> {
        let mut last: BTreeMap<Process, u64> = BTreeMap::new();
        for Listed { name, .. } in &listed {
            let seq = last.entry((name.id.worker, name.process)).or_default();
            *seq = name.id.seq.max(*seq);
        }
        last.retain(|(worker, process), _| {
            !settled(*worker) && self.may_be_judged(*worker, *process)
        });
        let mut decided = self.counted(listed)?;
        let counted = decided.len();
        decided.retain(|Listed { name, .. }| {
            last.get(&(name.id.worker, name.process)) != Some(&name.id.seq)
        });
        let is_undecided = decided.len() < counted;
        Ok((decided, is_undecided))
    }

    /// Returns true if a later process may yet judge the last blob of this one. A later one has a
    /// number and no record then, and none has a record that says where it begins. A process with
    /// such a record had in its list what still counts of this one, and so has each later one.
    fn may_be_judged(&self, worker: WorkerId, process: ProcessId) -> bool {
        let later =
            (Bound::Excluded((worker, process)), Bound::Included((worker, ProcessId::LAST)));
        self.least.range(later).next().is_none()
            && self.numbers.open().any(|number| later.contains(&number))
    }
}

/// The record of a process, if it has one.
pub(crate) async fn read_record(
    backend: &Backend,
    worker: WorkerId,
    process: ProcessId,
) -> Result<Option<Record>, PackError> {
    match backend.whole(&record_path(worker, process), RECORD_BYTES_MAX).await {
        Ok(bytes) => Ok(Some(decode("a process's record", &bytes)?)),
        Err(Unread::Missing) => Ok(None),
        Err(Unread::Failed(error)) => Err(error),
    }
}

/// The name of a process's number.
pub(crate) fn path(worker: WorkerId, process: ProcessId) -> String {
    format!("{PREFIX}/{:016x}-{:0width$x}", worker.0, process.number(), width = PROCESS_DIGITS)
}

/// The name of a process's record.
pub(crate) fn record_path(worker: WorkerId, process: ProcessId) -> String {
    path(worker, process) + RECORD
}

/// Reads what [`path`] or [`record_path`] wrote, without the prefix: the process, and whether it is a record's name.
fn parse(file: &str) -> Option<(Process, bool)> {
    let (number, is_record) = match file.strip_suffix(RECORD) {
        Some(number) => (number, true),
        None => (file, false),
    };
    let (worker, process) = number.split_once('-')?;
    let worker = WorkerId(u64::from_str_radix(worker, 16).ok()?);
    let process = ProcessId::new(u64::from_str_radix(process, 16).ok()?)?;
    (path(worker, process)[PREFIX.len() + 1..] == *number).then_some(((worker, process), is_record))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_types::codec::encode;
    use object_store::memory::InMemory;

    use super::*;
    use crate::ids::BlobId;

    const W: WorkerId = WorkerId(3);

    fn process(number: u64) -> ProcessId {
        ProcessId::new(number).unwrap()
    }

    /// Numbers with their records.
    fn counting(all: &[(u64, Option<Record>)]) -> Counting {
        let records = all.iter();
        let records: BTreeMap<_, _> = records
            .filter_map(|(number, record)| Some(((W, process(*number)), (*record)?)))
            .collect();
        let numbers = all.iter().map(|(number, _)| ((W, process(*number)), 0)).collect();
        let numbers = Numbers { numbers, recorded: records.keys().copied().collect() };
        Counting::of(numbers, records)
    }

    fn blob(number: u64, seq: u64) -> Listed {
        let id = BlobId { worker: W, seq };
        let name = BlobName { id, created_ms: 1, footer_offset: 2, process: process(number) };
        Listed { name, bytes: 9 }
    }

    #[tokio::test]
    async fn a_record_that_comes_back_without_its_number_judges_nothing() {
        let backend = Backend::over(Arc::new(InMemory::new()));
        let put = async |name: String, bytes: Vec<u8>| {
            assert!(backend.put_new(&name, bytes.into()).await.unwrap());
        };
        // The request of the third was late, and nothing of it was there any more.
        put(record_path(W, process(3)), encode(&Record::From(2))).await;
        put(path(W, process(9)), vec![1, 7]).await;
        put(record_path(W, process(9)), encode(&Record::From(6))).await;
        let counting = Counting::read(&backend, &Known::default()).await.unwrap();
        assert!(counting.counts(W, process(1), 5) && !counting.counts(W, process(1), 6));
    }

    #[test]
    fn what_comes_after_a_later_process_began_is_void() {
        let records =
            [(1, Some(Record::From(1))), (2, Some(Record::Closed)), (4, Some(Record::From(5)))];
        let counting = counting(&records);
        for (number, seq, counts) in [
            (0, 1, false),
            (1, 4, true),
            (1, 5, false),
            (1, 900, false),
            (2, 4, true),
            (3, 5, false),
            (4, 5, true),
            (4, 900, true),
        ] {
            assert_eq!(counting.counts(W, process(number), seq), counts, "{number} {seq}");
        }
        assert!(counting.counts(WorkerId(2), process(1), 7), "of another worker");
        assert!(counting.counts(WorkerId(4), process(1), 7), "of another worker");
    }

    #[test]
    fn a_later_process_that_begins_earlier_is_what_counts() {
        let counting = counting(&[(2, Some(Record::From(9))), (3, Some(Record::From(6)))]);
        assert!(!counting.counts(W, process(1), 6) && counting.counts(W, process(1), 5));
        assert!(!counting.counts(W, process(2), 6) && counting.counts(W, process(3), 6));
    }

    #[test]
    fn two_blobs_of_one_number_that_count_are_damage_and_void_ones_are_left_out() {
        let counting = counting(&[(1, Some(Record::From(1))), (2, Some(Record::From(2)))]);
        let blobs = vec![blob(1, 1), blob(1, 2), blob(2, 2), blob(2, 3)];
        let counted = counting.counted(blobs).unwrap();
        assert_eq!(counted, [blob(1, 1), blob(2, 2), blob(2, 3)]);
        let damaged = counting.counted(vec![blob(1, 1), blob(2, 1)]).unwrap_err().to_string();
        for name in [blob(1, 1), blob(2, 1)] {
            assert!(damaged.contains(&name.name.path()), "{damaged}");
        }
    }

    #[test]
    fn a_number_that_comes_back_without_a_record_keeps_no_blob_of_its_process() {
        let began = (9, Some(Record::From(6)));
        for record in [None, Some(Record::Closed)] {
            let counting = counting(&[(3, record), began]);
            assert_eq!(counting.counted(vec![blob(3, 5), blob(4, 5)]).unwrap(), [blob(4, 5)]);
            assert_eq!(counting.counted(vec![blob(3, 4)]).unwrap(), [blob(3, 4)], "it is alone");
        }
        let whole = counting(&[(3, Some(Record::From(1))), began]);
        assert!(whole.counted(vec![blob(3, 5), blob(4, 5)]).is_err(), "both count");
        let all_there = counting(&[(1, Some(Record::Closed)), (2, Some(Record::From(6)))]);
        assert!(all_there.counted(vec![blob(0, 5), blob(2, 5)]).is_err(), "nothing was removed");
    }

    #[tokio::test]
    async fn a_number_that_came_back_and_was_closed_keeps_no_blob_of_its_process_either_for_who_reads_few_records()
     {
        let backend = Backend::over(Arc::new(InMemory::new()));
        for (number, record) in [(3, Record::Closed), (9, Record::From(6))] {
            let of = process(number);
            for (name, bytes) in [(path(W, of), vec![1, 7]), (record_path(W, of), encode(&record))]
            {
                assert!(backend.put_new(&name, bytes.into()).await.unwrap());
            }
        }
        let all = Counting::read(&backend, &Known::default()).await.unwrap();
        let few = Counting::read_from(&backend, &Known::default(), (W, process(3))).await.unwrap();
        for counting in [all, few] {
            assert_eq!(counting.counted(vec![blob(3, 5), blob(4, 5)]).unwrap(), [blob(4, 5)]);
        }
    }

    #[test]
    fn a_blob_from_before_its_process_began_counts_as_damage_beside_another() {
        let counting = counting(&[(9, Some(Record::From(6)))]);
        for blobs in [vec![blob(8, 5), blob(9, 5)], vec![blob(9, 5), blob(8, 5)]] {
            counting.counted(blobs).unwrap_err();
        }
        assert_eq!(counting.counted(vec![blob(7, 5), blob(8, 5)]).unwrap(), [blob(8, 5)]);
    }

    #[test]
    fn all_numbers_that_were_removed_may_come_back_without_their_records() {
        for record in [None, Some(Record::Closed)] {
            let one = counting(&[(1, record), (2, Some(Record::From(6)))]);
            assert_eq!(one.counted(vec![blob(0, 5), blob(1, 5)]).unwrap(), [blob(1, 5)]);
            let two = counting(&[(1, record), (2, record), (3, Some(Record::From(6)))]);
            let blobs = vec![blob(2, 5), blob(0, 5), blob(1, 5)];
            assert_eq!(two.counted(blobs).unwrap(), [blob(2, 5)]);
        }
    }

    #[test]
    fn of_two_blobs_of_which_one_comes_after_its_records_were_removed_the_later_counts() {
        let counting = counting(&[(600, Some(Record::From(90))), (601, Some(Record::From(91)))]);
        for blobs in [vec![blob(7, 5), blob(8, 5)], vec![blob(8, 5), blob(7, 5)]] {
            assert_eq!(counting.counted(blobs).unwrap(), [blob(8, 5)]);
        }
        counting.counted(vec![blob(600, 5), blob(601, 5)]).unwrap_err();
    }

    #[test]
    fn the_last_blob_before_a_number_without_a_record_is_undecided() {
        let blobs = vec![blob(1, 1), blob(1, 2), blob(2, 3)];
        let open = counting(&[(1, Some(Record::From(1))), (2, Some(Record::From(3))), (3, None)]);
        let nobody = |_| false;
        let before = vec![blob(1, 1), blob(1, 2)];
        assert_eq!(open.decided(blobs.clone(), nobody).unwrap(), (before, true));
        assert_eq!(open.decided(blobs.clone(), |_| true).unwrap(), (blobs.clone(), false));
        assert_eq!(open.counted(blobs.clone()).unwrap(), blobs);
        assert_eq!(open.numbers.open().collect::<Vec<_>>(), [(W, process(3))]);
        let closed =
            [(1, Some(Record::From(1))), (2, Some(Record::From(3))), (3, Some(Record::Closed))];
        assert_eq!(counting(&closed).decided(blobs.clone(), nobody).unwrap(), (blobs, false));
        let unnumbered = counting(&[(1, None)]);
        let blobs = vec![blob(0, 1), blob(0, 2)];
        assert_eq!(unnumbered.decided(blobs, nobody).unwrap(), (vec![blob(0, 1)], true));
    }

    #[test]
    fn names_read_back() {
        let all = (W, process(0x1F));
        for (path, is_record) in [(path(W, all.1), false), (record_path(W, all.1), true)] {
            assert_eq!(parse(path.split_once('/').unwrap().1), Some((all, is_record)));
        }
        for other in ["", "x", "-from", "0-0", "0000000000000003-1f", "0000000000000003-01000000"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
