//! The digest of a PG's rows: all that a member's index shows of it, in a few bytes that others can compare.
//!
//! Only rows that every member must have alike are summed, which are those that a snapshot sends
//! ([`owner`]). Tables are summed apart, so that a difference has a place.
//!
//! # Invariants
//!
//! 1. Equal sums mean equal rows: each row goes in with its length and its value's, in order.
//! 2. How the rows were cut into pieces does not show.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;

use larder_types::{PgId, ServerId, rows};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::index::{IndexError, ScanFrom};
use crate::row::owner;

/// The sum of the rows of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSum {
    /// The table's letter.
    pub table: u8,
    /// Number of rows.
    pub rows: u64,
    /// XXH3-128, big-endian, of all rows: for each its length (u32, little-endian), the row, its value's length, the
    /// value.
    pub hash: [u8; 16],
}

/// The sums of a PG's tables, in their order; of those alone that have rows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IndexSum {
    /// See the type.
    pub tables: Vec<TableSum>,
}

/// A member's answer about its index at an op.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Summed {
    /// Its sums.
    Sum(IndexSum),
    /// It has none of this op: it was busy, or has begun anew since.
    Nothing,
    /// Its index cannot be read.
    Unreadable,
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    /// All members have the same rows.
    Equal,
    /// This member has other rows than more than half of all.
    Odd(ServerId),
    /// They differ, and no more than half have the same.
    Unclear,
    /// Not all had a sum.
    Void,
}

impl IndexSum {
    /// Rows in all.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|it| it.rows).sum()
    }
}

impl fmt::Display for IndexSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, TableSum { table, rows, hash }) in self.tables.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{}:{rows}:", table.escape_ascii())?;
            hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

impl fmt::Display for Summed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sum(sum) if sum.tables.is_empty() => f.write_str("no rows"),
            Self::Sum(sum) => sum.fmt(f),
            Self::Nothing => f.write_str("none"),
            Self::Unreadable => f.write_str("unreadable"),
        }
    }
}

/// Compares what all members of a view told. Odd is one at a time, the first by id.
#[must_use]
pub fn compare(sums: &BTreeMap<ServerId, Summed>) -> Compared {
    let mut alike: Vec<(&IndexSum, usize)> = Vec::new();
    for summed in sums.values() {
        let Summed::Sum(sum) = summed else { return Compared::Void };
        match alike.iter_mut().find(|(known, _)| *known == sum) {
            Some((_, count)) => *count += 1,
            None => alike.push((sum, 1)),
        }
    }
    if alike.len() <= 1 {
        return Compared::Equal;
    }
    match alike.into_iter().find(|(_, count)| 2 * count > sums.len()) {
        Some((most, _)) => odd_to(most, sums),
        None => Compared::Unclear,
    }
}

/// The first member by id whose sum is not this one.
pub(crate) fn odd_to(right: &IndexSum, sums: &BTreeMap<ServerId, Summed>) -> Compared {
    let is_other = |it: &&Summed| !matches!(it, Summed::Sum(sum) if sum == right);
    let odd = sums.iter().find(|(_, sum)| is_other(sum));
    odd.map_or(Compared::Equal, |(server, _)| Compared::Odd(*server))
}

/// Sums a PG's rows, piece by piece.
pub struct Summer {
    pg: PgId,
    pg_count: u32,
    /// First row that was not looked at.
    from: Vec<u8>,
    /// The table under way, its rows so far, and their hash.
    table: Option<(u8, u64, Xxh3)>,
    sum: IndexSum,
}

impl Summer {
    /// One that has seen nothing.
    #[must_use]
    pub fn new(pg: PgId, pg_count: u32) -> Self {
        // Tables before the first of these are each member's own.
        let from = vec![rows::SPACE_TABLES[0]];
        Self { pg, pg_count, from, table: None, sum: IndexSum::default() }
    }

    /// Looks at the next rows, of all PGs, until they have this many bytes; the sum when there are no more.
    ///
    /// # Errors
    /// [`IndexError`], with the row if it is its form.
    pub fn go_on(
        &mut self,
        scan: &ScanFrom<'_>,
        bytes_max: usize,
    ) -> Result<Option<IndexSum>, IndexError> {
        let (mut bytes, mut failed, mut next) = (0, None, None);
        scan(&std::mem::take(&mut self.from), &mut |row, value| {
            if bytes >= bytes_max {
                next = Some(row.to_vec());
                return ControlFlow::Break(());
            }
            bytes += row.len() + value.len();
            match owner(row, value, self.pg_count) {
                Ok(Some(of)) if of == self.pg => self.add(row, value),
                Ok(_) => {}
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(next) = next {
            self.from = next;
            return Ok(None);
        }
        self.end_table();
        Ok(Some(std::mem::take(&mut self.sum)))
    }

    fn add(&mut self, row: &[u8], value: &[u8]) {
        let letter = row.first().copied().unwrap_or_default();
        if self.table.as_ref().is_none_or(|(table, ..)| *table != letter) {
            self.end_table();
            self.table = Some((letter, 0, Xxh3::new()));
        }
        let Some((_, rows, hash)) = &mut self.table else { return };
        *rows += 1;
        for part in [row, value] {
            hash.update(&(part.len() as u32).to_le_bytes());
            hash.update(part);
        }
    }

    fn end_table(&mut self) {
        let Some((table, rows, hash)) = self.table.take() else { return };
        let hash = hash.digest128().to_be_bytes();
        self.sum.tables.push(TableSum { table, rows, hash });
    }
}

#[cfg(test)]
mod tests {
    use larder_types::codec::encode;
    use larder_types::{BucketId, SessionId, StreamId};

    use super::*;

    type Rows = Vec<(Vec<u8>, Vec<u8>)>;

    /// An open stream of a PG, and a snapshot's row of the member's own.
    fn some() -> Rows {
        let row = |number| {
            let stream = StreamId { session: SessionId(1), number };
            rows::open_stream(BucketId(1), stream)
        };
        vec![
            (rows::applied(PgId(0)), encode(&1u8)),
            (row(1), encode(&PgId(0))),
            (row(2), encode(&PgId(1))),
            (row(3), encode(&PgId(0))),
            (rows::snapshot(PgId(0)), encode(&1u8)),
        ]
    }

    fn sum_of(rows: &Rows, bytes_max: usize) -> IndexSum {
        let mut summer = Summer::new(PgId(0), 2);
        for _ in 0..=rows.len() {
            let scan = |from: &[u8], visit: &mut crate::index::Visit<'_>| {
                for (row, value) in rows.iter().filter(|(row, _)| &row[..] >= from) {
                    if visit(row, value) == ControlFlow::Break(()) {
                        break;
                    }
                }
                Ok(())
            };
            if let Some(sum) = summer.go_on(&scan, bytes_max).expect("readable rows") {
                return sum;
            }
        }
        panic!("it comes to no end");
    }

    #[test]
    fn the_pgs_own_rows_are_summed_and_no_others_whatever_the_pieces() {
        let all = some();
        let sum = sum_of(&all, usize::MAX);
        assert_eq!((sum.rows(), sum.tables[0].table, sum.tables.len()), (2, b'O', 1));
        for bytes_max in 1..200 {
            assert_eq!(sum_of(&all, bytes_max), sum, "in pieces of {bytes_max}");
        }
        let mut others = all.clone();
        others[0].1.push(7);
        others[4].1.push(7);
        others.remove(2);
        assert_eq!(sum_of(&others, usize::MAX), sum);
    }

    #[test]
    fn the_sum_keeps_its_golden_value() {
        let text = Summed::Sum(sum_of(&some(), usize::MAX)).to_string();
        assert_eq!(text, "O:2:a60e575bc68a8f41a225e35bee5c9b1c");
    }

    #[test]
    fn any_other_row_or_value_is_another_sum() {
        let sum = sum_of(&some(), usize::MAX);
        for at in [1, 3] {
            let mut less = some();
            less.remove(at);
            assert_ne!(sum_of(&less, usize::MAX), sum);
            let mut other = some();
            let last = other[at].0.len() - 1;
            other[at].0[last] ^= 0x10;
            assert_ne!(sum_of(&other, usize::MAX), sum);
        }
    }

    #[test]
    fn an_unreadable_row_is_no_sum() {
        let all: Rows = vec![(b"Ux".to_vec(), Vec::new())];
        let scan = |_: &[u8], visit: &mut crate::index::Visit<'_>| {
            assert!(all.iter().all(|(row, value)| visit(row, value) == ControlFlow::Break(())));
            Ok(())
        };
        assert!(Summer::new(PgId(0), 2).go_on(&scan, 100).is_err());
    }

    fn reported(sums: &[u8]) -> BTreeMap<ServerId, Summed> {
        let sum = |hash: &u8| match hash {
            0 => Summed::Nothing,
            hash => {
                let tables = vec![TableSum { table: b'V', rows: 1, hash: [*hash; 16] }];
                Summed::Sum(IndexSum { tables })
            }
        };
        (1..).map(ServerId).zip(sums.iter().map(sum)).collect()
    }

    #[test]
    fn odd_is_who_differs_from_more_than_half_one_at_a_time() {
        for (sums, outcome) in [
            (&[7, 7, 7][..], Compared::Equal),
            (&[7, 7], Compared::Equal),
            (&[8, 7, 7], Compared::Odd(ServerId(1))),
            (&[7, 7, 8], Compared::Odd(ServerId(3))),
            (&[7, 7, 8, 7, 9], Compared::Odd(ServerId(3))),
            (&[7, 8], Compared::Unclear),
            (&[7, 8, 9], Compared::Unclear),
            (&[7, 7, 8, 8], Compared::Unclear),
            (&[7, 7, 8, 9], Compared::Unclear),
            (&[7, 0, 7], Compared::Void),
            (&[8, 7, 7, 0], Compared::Void),
        ] {
            assert_eq!(compare(&reported(sums)), outcome, "{sums:?}");
        }
    }
}
