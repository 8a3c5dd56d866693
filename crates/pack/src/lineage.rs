//! The incarnations of a worker: which processes have acted for its directory, and from which entry on each gave numbers
//! of its own.
//!
//! An entry's number is given once by a directory, but again by an older copy of it. So a number means something only
//! together with the incarnation that gave it. A peer that followed one incarnation asks the lineage of another how much
//! of what it knows both have in common.
//!
//! # Invariants
//!
//! 1. Each process draws an incarnation, and has it durably in the directory's lineage before it gives a number. So no two
//!    processes have the same one, also if they run on copies of one directory.
//! 2. Each incarnation goes on where the one before it in the lineage ended: the directory's log is the same.
//! 3. The directory says which of its processes was the last that had a number in the backend and had looked for blobs since
//!    (`owner.rs`). What processes before that one in the lineage upload later counts for nobody.
//! 4. Incarnation 0 stands for all processes of releases that had none.

use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError};
use larder_types::OpSeq;
use larder_types::codec::{decode, encode};
use serde::{Deserialize, Serialize};

use crate::error::PackError;
use crate::limits::{LINEAGE_MAX, SUPERSEDED_KNOWN};

/// File of the directory.
const FILE: &str = "lineage";
/// File of the directory with the last incarnation that had a number.
const NUMBERED: &str = "numbered";
/// Bits of an incarnation that a blob's trailer has.
const MARK_BITS: u32 = 24;

/// One process of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub(crate) struct Incarnation(pub(crate) u64);

/// Incarnations with the last entry that was there when each began, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lineage(Vec<(Incarnation, OpSeq)>);

/// How another lineage stands to the one that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kin {
    /// Both end with the same process.
    Same,
    /// It ends with a process before the one that is followed.
    Older,
    /// It goes on from the process that is followed.
    Newer,
    /// Both went on from an earlier process: one from a copy of its directory.
    Sibling,
}

impl Incarnation {
    /// That of a process that starts.
    pub(crate) fn draw() -> Self {
        Self(larder_env::rng::unique_u64() | 1)
    }

    /// What stands for it in the trailers of blobs; 0 of none.
    pub(crate) fn mark(self) -> u32 {
        (self.0 % (1 << MARK_BITS)) as u32
    }

    /// Writes into the directory that this process has a number.
    pub(crate) fn is_numbered(self, disk: &dyn Disk) -> Result<(), PackError> {
        Ok(replace_file(disk, "", NUMBERED, &encode(&self))?)
    }
}

/// Marks of the last processes of a directory before the one that had a number.
pub(crate) fn superseded(disk: &dyn Disk) -> Result<Vec<u32>, PackError> {
    let numbered = match read_file(disk, NUMBERED) {
        Ok(bytes) => decode::<Incarnation>("which process had a number", &bytes)?,
        Err(DiskError::NotFound { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let lineage = Lineage::of(disk)?;
    let before = lineage.0.iter().position(|(incarnation, _)| *incarnation == numbered);
    let before = lineage.0[..before.unwrap_or(0)].iter().rev().take(SUPERSEDED_KNOWN);
    Ok(before.map(|(incarnation, _)| incarnation.mark()).filter(|mark| *mark > 0).collect())
}

impl Default for Lineage {
    fn default() -> Self {
        Self(vec![(Incarnation(0), OpSeq(0))])
    }
}

impl Lineage {
    /// That of a directory.
    pub(crate) fn of(disk: &dyn Disk) -> Result<Self, PackError> {
        match read_file(disk, FILE) {
            Ok(bytes) => Self::read_bytes(FILE, &bytes),
            Err(DiskError::NotFound { .. }) => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins an incarnation in a directory of which `begun` is the last entry.
    pub(crate) fn begin(disk: &dyn Disk, begun: OpSeq) -> Result<Self, PackError> {
        let lineage = Self::of(disk)?.grown(Incarnation::draw(), begun);
        replace_file(disk, "", FILE, &encode(&lineage))?;
        Ok(lineage)
    }

    /// Reads what was encoded.
    pub(crate) fn read_bytes(name: &str, bytes: &[u8]) -> Result<Self, PackError> {
        let lineage = decode::<Self>("a lineage", bytes)?;
        match lineage.is_whole() {
            true => Ok(lineage),
            false => Err(PackError::damaged(name, "its incarnations are not in their order")),
        }
    }

    /// Whether there is one in it, all differ, and all are in their order.
    pub(crate) fn is_whole(&self) -> bool {
        let mut drawn: Vec<_> = self.0.iter().map(|(incarnation, _)| incarnation.0).collect();
        drawn.sort_unstable();
        drawn.dedup();
        (1..=LINEAGE_MAX).contains(&self.0.len())
            && drawn.len() == self.0.len()
            && self.0.is_sorted_by(|(_, from), (_, to)| from <= to)
    }

    /// The same with one incarnation more, which begins behind entry `begun`. Of several in a row that gave no number the
    /// first and the last stay: however often a worker is started, what it did stays in its lineage.
    pub(crate) fn grown(&self, next: Incarnation, begun: OpSeq) -> Self {
        let mut all = self.0.clone();
        if let [.., (_, before), (_, last)] = &all[..]
            && (*before, *last) == (begun, begun)
        {
            all.pop();
        }
        all.push((next, begun));
        all.drain(..all.len().saturating_sub(LINEAGE_MAX));
        Self(all)
    }

    /// The process that it ends with.
    pub(crate) fn last(&self) -> Incarnation {
        self.0.last().map_or(Incarnation(0), |(last, _)| *last)
    }

    /// The process that gave an entry's number.
    pub(crate) fn giver(&self, entry: OpSeq) -> Incarnation {
        let before = self.0.iter().rev().find(|(_, begun)| *begun < entry);
        before.map_or(Incarnation(0), |(incarnation, _)| *incarnation)
    }

    fn has(&self, incarnation: Incarnation) -> bool {
        self.0.iter().any(|(of, _)| *of == incarnation)
    }

    /// How another stands to this one, which is followed.
    pub(crate) fn kin(&self, other: &Self) -> Kin {
        if self.last() == other.last() {
            Kin::Same
        } else if self.has(other.last()) {
            Kin::Older
        } else if other.has(self.last()) {
            Kin::Newer
        } else {
            Kin::Sibling
        }
    }

    /// The last entry that both have in common, as far as the lineages say.
    pub(crate) fn common(&self, other: &Self) -> OpSeq {
        let end =
            |of: &Self, at: usize| of.0.get(at + 1).map_or(OpSeq(u64::MAX), |(_, from)| *from);
        let both = (0..self.0.len()).rev().find_map(|at| {
            let (shared, _) = self.0[at];
            let of_other = other.0.iter().position(|(of, _)| *of == shared)?;
            Some(end(self, at).min(end(other, of_other)))
        });
        both.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use larder_env::SimDisk;

    use super::*;

    fn lineage(all: &[(u64, u64)]) -> Lineage {
        let mut lineage = Lineage::default();
        for (incarnation, begun) in all {
            lineage = lineage.grown(Incarnation(*incarnation), OpSeq(*begun));
        }
        lineage
    }

    #[test]
    fn what_two_lineages_have_in_common_ends_where_the_first_of_them_parted() {
        // The original goes on to 150 and starts again; copies that were made at 120 start beside it.
        let first = lineage(&[(71, 0)]);
        let original = lineage(&[(71, 0), (12, 150)]);
        let copy = lineage(&[(71, 0), (33, 120), (44, 160)]);
        let any = OpSeq(u64::MAX);
        for (followed, other, kin, common) in [
            (&first, &original, Kin::Newer, OpSeq(150)),
            (&first, &copy, Kin::Newer, OpSeq(120)),
            (&original, &copy, Kin::Sibling, OpSeq(120)),
            (&copy, &original, Kin::Sibling, OpSeq(120)),
            (&copy, &first, Kin::Older, OpSeq(120)),
            (&copy, &copy, Kin::Same, any),
            (&Lineage::default(), &copy, Kin::Newer, OpSeq(0)),
        ] {
            assert_eq!(followed.kin(other), kin, "{followed:?} {other:?}");
            assert_eq!(followed.common(other), common, "{followed:?} {other:?}");
        }
        let upgraded = lineage(&[(9, 77)]);
        assert_eq!(Lineage::default().common(&upgraded), OpSeq(77), "all that older releases did");
    }

    #[test]
    fn a_lineage_is_bounded_and_starts_that_did_nothing_take_no_place() {
        let mut grown = Lineage::default();
        for number in 1..=2 * LINEAGE_MAX as u64 {
            grown = grown.grown(Incarnation(number << 40), OpSeq(number << 50));
        }
        assert!(grown.is_whole() && grown.0.len() == LINEAGE_MAX);
        assert_eq!(lineage(&[(1, 5)]).common(&grown), OpSeq(0), "it has forgotten that");
        let (busy, begun) = *grown.0.last().unwrap();
        for number in 1..1000 {
            grown = grown.grown(Incarnation(number), begun);
        }
        assert!(grown.is_whole() && grown.has(busy) && grown.last() == Incarnation(999));
        assert!(!grown.has(Incarnation(998)) && grown.0.len() == LINEAGE_MAX);
        let empty = lineage(&[(1, 0), (2, 0)]);
        assert_eq!(empty.0, [(Incarnation(0), OpSeq(0)), (Incarnation(2), OpSeq(0))]);
    }

    #[test]
    fn each_start_of_a_directory_and_of_its_copies_is_another() {
        let disk = SimDisk::new(1, 1 << 20);
        assert_eq!(Lineage::of(&*disk).unwrap(), Lineage::default());
        let first = Lineage::begin(&*disk, OpSeq(0)).unwrap();
        let second = Lineage::begin(&*disk, OpSeq(9)).unwrap();
        assert_eq!(first.kin(&second), Kin::Newer);
        disk.crash();
        assert_eq!(Lineage::of(&*disk.reopen()).unwrap(), second);
        assert_eq!(superseded(&*disk.reopen()).unwrap(), [0_u32; 0], "none had a number");
        assert!(!Lineage(Vec::new()).is_whole());
        assert!(!Lineage(vec![(Incarnation(1), OpSeq(2)), (Incarnation(2), OpSeq(1))]).is_whole());
        assert!(!Lineage(vec![(Incarnation(1), OpSeq(2)), (Incarnation(1), OpSeq(3))]).is_whole());
    }

    #[test]
    fn an_entry_is_of_the_process_that_gave_its_number_and_what_was_superseded_is_known() {
        let lineage = lineage(&[(71, 0), (12, 150), (5, 150), (33, 150)]);
        for (entry, giver) in [(1, 71), (150, 71), (151, 33), (9000, 33)] {
            assert_eq!(lineage.giver(OpSeq(entry)), Incarnation(giver), "{entry}");
        }
        assert_eq!(super::tests::lineage(&[(9, 77)]).giver(OpSeq(77)).mark(), 0, "no release");
        let disk = SimDisk::new(1, 1 << 20);
        replace_file(&*disk, "", FILE, &encode(&lineage)).unwrap();
        Incarnation(33).is_numbered(&*disk).unwrap();
        assert_eq!(superseded(&*disk).unwrap(), [12, 71]);
        Incarnation(71).is_numbered(&*disk).unwrap();
        assert_eq!(superseded(&*disk).unwrap(), [0_u32; 0]);
    }
}
