//! Rows of many meta servers in one order.
//!
//! # Invariants
//!
//! 1. The rows of a source come in order, and none before the place that it was asked from.
//! 2. A row is given out only when every source that could have an earlier one has said what it has.
//! 3. A source that gave fewer rows than it was asked for may have a put under way at the next. It is asked
//!    to go on only when nothing else can be given out.

use std::collections::{BTreeMap, VecDeque};

use larder_types::{PgId, ServerId};

use super::planted::{self, Bug};
use crate::wire::Rows;

/// PGs that one server was asked for together.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) server: Option<ServerId>,
    pub(super) pgs: Vec<PgId>,
    rows: VecDeque<(Vec<u8>, Vec<u8>)>,
    /// Where to go on when the rows are used up; `None` if there is no more.
    at: Option<Vec<u8>>,
    /// It returned fewer rows than requested, and continues at this key.
    is_short: bool,
}

impl Source {
    /// The key from which it must be asked before a row can be returned.
    pub(super) fn next_row_needed(&self) -> Option<&[u8]> {
        if self.rows.is_empty() { self.at.as_deref() } else { None }
    }
}

/// A scan of all sources.
#[derive(Debug)]
pub(super) struct Merge {
    sources: Vec<Source>,
    /// The row behind the last.
    to: Option<Vec<u8>>,
}

/// A server's answer is no part of what it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unordered;

impl Merge {
    pub(super) fn new(pgs: Vec<PgId>, from: Vec<u8>, to: Option<&[u8]>) -> Self {
        let (rows, at) = (VecDeque::new(), Some(from));
        let first = Source { server: None, pgs, rows, at, is_short: false };
        Self { sources: vec![first], to: to.map(<[u8]>::to_vec) }
    }

    /// Those that have nothing left and could have more.
    fn hungry(&self) -> impl Iterator<Item = (usize, &Source)> {
        self.sources.iter().enumerate().filter(|(_, source)| source.next_row_needed().is_some())
    }

    /// Those that are to be asked now, by index.
    pub(super) fn sources_to_query(&self) -> impl Iterator<Item = (usize, &Source)> {
        let lowest = self.hungry().filter_map(|(_, source)| source.next_row_needed()).min();
        self.hungry()
            .filter(move |(_, source)| !source.is_short || source.next_row_needed() == lowest)
    }

    /// Returns true if some sources must be asked before a row can be returned.
    pub(super) fn needs_rows(&self) -> bool {
        let first = self.sources.iter().filter_map(|source| source.rows.front()).min();
        let mut hungry = self.hungry().filter_map(|(_, source)| source.next_row_needed());
        hungry.any(|at| first.is_none_or(|(row, _)| at <= row.as_slice()))
    }

    /// Sorts the PGs of those that must be asked by who leads them now.
    pub(super) fn regroup(&mut self, leader: impl Fn(PgId) -> Option<ServerId>) {
        let mut groups: BTreeMap<(Option<ServerId>, Vec<u8>, bool), Vec<PgId>> = BTreeMap::new();
        let (hungry, fed): (Vec<_>, Vec<_>) = std::mem::take(&mut self.sources)
            .into_iter()
            .partition(|source| source.next_row_needed().is_some());
        self.sources = fed;
        for Source { pgs, at, is_short, .. } in hungry {
            let at = at.expect("a hungry source knows where to go on");
            for pg in pgs {
                groups.entry((leader(pg), at.clone(), is_short)).or_default().push(pg);
            }
        }
        self.sources.extend(groups.into_iter().map(|((server, at, is_short), pgs)| Source {
            server,
            pgs,
            rows: VecDeque::new(),
            at: Some(at),
            is_short,
        }));
    }

    /// Takes a source's response to a request for so many rows: its rows, and the key at which it continues.
    pub(super) fn fill(
        &mut self,
        source: usize,
        asked: u32,
        rows: Rows,
        next: Option<Vec<u8>>,
    ) -> Result<(), Unordered> {
        let source = &mut self.sources[source];
        let at = source.at.as_ref().ok_or(Unordered)?;
        assert!(source.rows.is_empty(), "only a hungry source is asked");
        let first = rows.first().is_none_or(|(row, _)| row >= at);
        let ordered = rows.is_sorted_by(|(a, _), (b, _)| a < b);
        let last = rows.last().map(|(row, _)| row);
        let ends = last.is_none_or(|last| self.to.as_ref().is_none_or(|to| last < to));
        let goes_on = next.as_ref().is_none_or(|next| last.map_or(next > at, |last| next > last));
        if !(first && ordered && ends && goes_on) {
            return Err(Unordered);
        }
        source.is_short = next.is_some() && rows.len() < asked as usize;
        source.rows = rows.into();
        source.at = next;
        Ok(())
    }

    /// The next row; `None` if there is none, or a source must be asked first.
    pub(super) fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        if self.needs_rows() && !planted::has(Bug::MergesWithoutRows) {
            return None;
        }
        let first = |source: &&mut Source| source.rows.front().map(|(row, _)| row.clone());
        let fed = self.sources.iter_mut().filter(|source| !source.rows.is_empty());
        fed.min_by_key(first)?.rows.pop_front()
    }

    /// Goes on at the first row that is not before this one.
    pub(super) fn seek(&mut self, to: &[u8]) {
        for source in &mut self.sources {
            while source.rows.front().is_some_and(|(row, _)| row.as_slice() < to) {
                source.rows.pop_front();
            }
            if let Some(at) = &mut source.at
                && at.as_slice() < to
            {
                *at = to.to_vec();
                source.is_short = false;
            }
        }
        // Nothing is behind the end.
        let end = self.to.as_deref();
        for source in &mut self.sources {
            if source.at.as_deref().is_some_and(|at| end.is_some_and(|end| at >= end)) {
                source.at = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(names: &[&str]) -> Rows {
        names.iter().map(|name| (name.as_bytes().to_vec(), b"value".to_vec())).collect()
    }

    /// Two servers, of which the first leads even PGs.
    fn two() -> Merge {
        let mut merge = Merge::new((0..4).map(PgId).collect(), b"a".to_vec(), Some(b"z"));
        merge.regroup(|pg| Some(ServerId(pg.0 % 2)));
        assert_eq!(merge.sources_to_query().count(), 2);
        merge
    }

    fn names(merge: &mut Merge) -> Vec<String> {
        std::iter::from_fn(|| merge.next())
            .map(|(row, _)| String::from_utf8(row).unwrap())
            .collect()
    }

    #[test]
    fn rows_come_in_one_order_and_none_before_all_have_spoken() {
        let mut merge = two();
        merge.fill(0, 2, rows(&["b", "d"]), Some(b"e".to_vec())).unwrap();
        assert!(merge.next().is_none(), "the other may have an earlier one");
        merge.fill(1, 2, rows(&["a", "c", "x"]), None).unwrap();
        assert_eq!(names(&mut merge), ["a", "b", "c", "d"]);
        assert!(merge.needs_rows(), "x may not be the next");
        let (hungry, source) = merge.sources_to_query().next().unwrap();
        assert_eq!(source.next_row_needed(), Some(&b"e"[..]));
        merge.fill(hungry, 2, rows(&["e"]), None).unwrap();
        assert_eq!(names(&mut merge), ["e", "x"]);
        assert!(!merge.needs_rows());
    }

    #[test]
    fn only_what_is_missing_is_asked_of_new_primaries() {
        let mut merge = two();
        let first =
            merge.sources_to_query().find(|(_, it)| it.server == Some(ServerId(0))).unwrap().0;
        merge.fill(first, 2, rows(&["b"]), None).unwrap();
        merge.regroup(|pg| Some(ServerId(pg.0 + 10)));
        let asked: Vec<_> = merge
            .sources_to_query()
            .map(|(_, source)| (source.server, source.pgs.clone()))
            .collect();
        assert_eq!(
            asked,
            [(Some(ServerId(11)), vec![PgId(1)]), (Some(ServerId(13)), vec![PgId(3)])]
        );
        for index in merge.sources_to_query().map(|(index, _)| index).collect::<Vec<_>>() {
            merge.fill(index, 2, Vec::new(), None).unwrap();
        }
        assert_eq!(names(&mut merge), ["b"]);
    }

    #[test]
    fn a_seek_skips_what_is_there_and_what_is_not() {
        let mut merge = two();
        merge.fill(0, 2, rows(&["b", "g"]), Some(b"h".to_vec())).unwrap();
        merge.fill(1, 2, rows(&["c"]), Some(b"d".to_vec())).unwrap();
        assert_eq!(merge.next().unwrap().0, b"b");
        merge.seek(b"f");
        let asked: Vec<_> = merge
            .sources_to_query()
            .map(|(_, source)| source.next_row_needed().unwrap().to_vec())
            .collect();
        assert_eq!(asked, [b"f".to_vec()]);
        merge.seek(b"z");
        assert!(!merge.needs_rows() && merge.next().is_none(), "that is the end");
    }

    #[test]
    fn an_answer_to_another_question_is_refused() {
        let mut merge = two();
        assert_eq!(merge.fill(0, 2, rows(&["c", "b"]), None), Err(Unordered));
        assert_eq!(merge.fill(0, 2, rows(&["A"]), None), Err(Unordered), "before the first");
        assert_eq!(merge.fill(0, 2, rows(&["zz"]), None), Err(Unordered), "behind the last");
        assert_eq!(merge.fill(0, 2, rows(&["c"]), Some(b"b".to_vec())), Err(Unordered), "back");
        assert_eq!(merge.fill(0, 2, rows(&[]), Some(b"a".to_vec())), Err(Unordered), "in a circle");
        assert_eq!(merge.fill(0, 2, rows(&["c"]), None), Ok(()));
    }

    #[test]
    fn a_put_under_way_holds_up_only_a_page_that_reaches_it() {
        let mut merge = two();
        // The first may not say more than what is before its row m.
        merge.fill(0, 2, rows(&["b"]), Some(b"m".to_vec())).unwrap();
        merge.fill(1, 2, rows(&["c", "d"]), Some(b"e".to_vec())).unwrap();
        assert_eq!(names(&mut merge), ["b", "c", "d"]);
        let asked: Vec<_> = merge
            .sources_to_query()
            .map(|(_, source)| source.next_row_needed().unwrap().to_vec())
            .collect();
        assert_eq!(asked, [b"e".to_vec()], "what the first has is behind that");
        merge.regroup(|pg| Some(ServerId(pg.0 % 2)));
        let (other, _) = merge.sources_to_query().next().unwrap();
        merge.fill(other, 2, rows(&["f", "x"]), None).unwrap();
        assert_eq!(names(&mut merge), ["f"], "m may be there or not");
        assert!(merge.needs_rows());
        let (first, source) = merge.sources_to_query().next().unwrap();
        assert_eq!(source.next_row_needed(), Some(&b"m"[..]));
        merge.fill(first, 2, rows(&["m"]), None).unwrap();
        assert_eq!(names(&mut merge), ["m", "x"]);
    }
}
