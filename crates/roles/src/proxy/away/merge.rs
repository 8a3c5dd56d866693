//! Rows of many meta servers in one order.
//!
//! # Invariants
//!
//! 1. The rows of a source come in order, and none before the place that it was asked from.
//! 2. A row is given out only when every source that could have an earlier one has said what it has.

use std::collections::{BTreeMap, VecDeque};

use larder_types::{PgId, ServerId};

use crate::wire::Rows;

/// PGs that one server was asked for together.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) server: Option<ServerId>,
    pub(super) pgs: Vec<PgId>,
    rows: VecDeque<(Vec<u8>, Vec<u8>)>,
    /// Where to go on when the rows are used up; `None` if there is no more.
    at: Option<Vec<u8>>,
}

impl Source {
    /// Where it must be asked to go on before anything can be given out.
    pub(super) fn hungry_at(&self) -> Option<&[u8]> {
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

/// What a server said is no part of what it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unordered;

impl Merge {
    pub(super) fn new(pgs: Vec<PgId>, from: Vec<u8>, to: Option<&[u8]>) -> Self {
        let first = Source { server: None, pgs, rows: VecDeque::new(), at: Some(from) };
        Self { sources: vec![first], to: to.map(<[u8]>::to_vec) }
    }

    /// Those that must be asked, by index.
    pub(super) fn hungry(&self) -> impl Iterator<Item = (usize, &Source)> {
        self.sources.iter().enumerate().filter(|(_, source)| source.hungry_at().is_some())
    }

    pub(super) fn is_hungry(&self) -> bool {
        self.hungry().next().is_some()
    }

    /// Sorts the PGs of those that must be asked by who leads them now.
    pub(super) fn regroup(&mut self, leader: impl Fn(PgId) -> Option<ServerId>) {
        let mut groups: BTreeMap<(Option<ServerId>, Vec<u8>), Vec<PgId>> = BTreeMap::new();
        let (hungry, fed): (Vec<_>, Vec<_>) = std::mem::take(&mut self.sources)
            .into_iter()
            .partition(|source| source.hungry_at().is_some());
        self.sources = fed;
        for Source { pgs, at, .. } in hungry {
            let at = at.expect("a hungry source knows where to go on");
            for pg in pgs {
                groups.entry((leader(pg), at.clone())).or_default().push(pg);
            }
        }
        self.sources.extend(groups.into_iter().map(|((server, at), pgs)| Source {
            server,
            pgs,
            rows: VecDeque::new(),
            at: Some(at),
        }));
    }

    /// A source said what it has, and where it goes on.
    pub(super) fn fill(
        &mut self,
        source: usize,
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
        source.rows = rows.into();
        source.at = next;
        Ok(())
    }

    /// The next row; `None` if there is none, or a source must be asked first.
    pub(super) fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        if self.is_hungry() {
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
        assert_eq!(merge.hungry().count(), 2);
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
        merge.fill(0, rows(&["b", "d"]), Some(b"e".to_vec())).unwrap();
        assert!(merge.next().is_none(), "the other may have an earlier one");
        merge.fill(1, rows(&["a", "c", "x"]), None).unwrap();
        assert_eq!(names(&mut merge), ["a", "b", "c", "d"]);
        assert!(merge.is_hungry(), "x may not be the next");
        let (hungry, source) = merge.hungry().next().unwrap();
        assert_eq!(source.hungry_at(), Some(&b"e"[..]));
        merge.fill(hungry, rows(&["e"]), None).unwrap();
        assert_eq!(names(&mut merge), ["e", "x"]);
        assert!(!merge.is_hungry());
    }

    #[test]
    fn only_what_is_missing_is_asked_of_new_primaries() {
        let mut merge = two();
        let first = merge.hungry().find(|(_, it)| it.server == Some(ServerId(0))).unwrap().0;
        merge.fill(first, rows(&["b"]), None).unwrap();
        merge.regroup(|pg| Some(ServerId(pg.0 + 10)));
        let asked: Vec<_> =
            merge.hungry().map(|(_, source)| (source.server, source.pgs.clone())).collect();
        assert_eq!(
            asked,
            [(Some(ServerId(11)), vec![PgId(1)]), (Some(ServerId(13)), vec![PgId(3)])]
        );
        for index in merge.hungry().map(|(index, _)| index).collect::<Vec<_>>() {
            merge.fill(index, Vec::new(), None).unwrap();
        }
        assert_eq!(names(&mut merge), ["b"]);
    }

    #[test]
    fn a_seek_skips_what_is_there_and_what_is_not() {
        let mut merge = two();
        merge.fill(0, rows(&["b", "g"]), Some(b"h".to_vec())).unwrap();
        merge.fill(1, rows(&["c"]), Some(b"d".to_vec())).unwrap();
        assert_eq!(merge.next().unwrap().0, b"b");
        merge.seek(b"f");
        let asked: Vec<_> =
            merge.hungry().map(|(_, source)| source.hungry_at().unwrap().to_vec()).collect();
        assert_eq!(asked, [b"f".to_vec()]);
        merge.seek(b"z");
        assert!(!merge.is_hungry() && merge.next().is_none(), "that is the end");
    }

    #[test]
    fn an_answer_to_another_question_is_refused() {
        let mut merge = two();
        assert_eq!(merge.fill(0, rows(&["c", "b"]), None), Err(Unordered));
        assert_eq!(merge.fill(0, rows(&["A"]), None), Err(Unordered), "before the first");
        assert_eq!(merge.fill(0, rows(&["zz"]), None), Err(Unordered), "behind the last");
        assert_eq!(merge.fill(0, rows(&["c"]), Some(b"b".to_vec())), Err(Unordered), "back");
        assert_eq!(merge.fill(0, rows(&[]), Some(b"a".to_vec())), Err(Unordered), "in a circle");
        assert_eq!(merge.fill(0, rows(&["c"]), None), Ok(()));
    }
}
