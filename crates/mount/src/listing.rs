//! Reading a directory, page by page. Pure.
//!
//! # Invariants
//!
//! 1. A name is given once for each reading from the start, a file before a directory of the same name: the file hides what
//!    is below it.
//! 2. No more than a page of names is held, besides those of files that are being written.
//! 3. A place in a directory is the number of names before it. One before the page at hand is found by reading again.

use std::collections::BTreeSet;

use larder_objects::{ListItem, ListPage, ListRequest, ListedObject};

use crate::limits::PAGE_ENTRIES;
use crate::path::{TreePath, is_name};
use crate::stamp::{Kind, Stat};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// The kind of the entry.
    pub kind: Kind,
}

/// A directory that is being read.
#[derive(Debug)]
pub struct Listing {
    below: String,
    /// Names of files that this mount is writing: given first, as a list may not have them yet.
    fresh: BTreeSet<String>,
    page: Vec<Entry>,
    /// Names before the page.
    before: u64,
    after: Option<String>,
    ended: bool,
    /// Names of files, each of which begins the next: only theirs can a directory still to come have.
    above: Vec<String>,
}

impl Listing {
    /// Of a directory; not begun.
    #[must_use]
    pub fn new(path: &TreePath) -> Self {
        Self {
            below: path.below(),
            fresh: BTreeSet::new(),
            page: Vec::new(),
            before: 0,
            after: None,
            ended: true,
            above: Vec::new(),
        }
    }

    /// True if a reading from `place` must begin anew.
    #[must_use]
    pub fn must_begin(&self, place: u64) -> bool {
        place == 0 || place < self.before
    }

    /// Begins, with the names of files that are being written.
    pub fn begin(&mut self, fresh: BTreeSet<String>) {
        let entry = |name: &str, kind| Entry { name: name.to_owned(), kind };
        self.page = vec![entry(".", Kind::Directory), entry("..", Kind::Directory)];
        self.page.extend(fresh.iter().map(|name| entry(name, Kind::File)));
        self.fresh = fresh;
        (self.before, self.after, self.ended) = (0, None, false);
        self.above.clear();
    }

    /// The names of the page at hand behind `place`, each with the place behind it.
    pub fn behind(&self, place: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let skip = place.saturating_sub(self.before);
        let numbered = (self.before + 1..).zip(&self.page);
        numbered.skip(usize::try_from(skip).unwrap_or(usize::MAX))
    }

    /// The request for the next page; none at the end.
    #[must_use]
    pub fn request(&self) -> Option<ListRequest> {
        (!self.ended).then(|| ListRequest {
            prefix: self.below.clone(),
            delimiter: Some("/".into()),
            after: self.after.clone(),
            max: PAGE_ENTRIES,
        })
    }

    /// Takes what was asked for, in place of the page at hand.
    pub fn take(&mut self, page: ListPage<ListedObject>) {
        self.before += self.page.len() as u64;
        self.page.clear();
        self.ended = !page.truncated || page.items.is_empty();
        for item in page.items {
            let (key, kind) = match &item {
                ListItem::Entry(object) => (object.key.as_str(), Stat::of_file(&object.metax).kind),
                ListItem::Group(group) => (group.as_str(), Kind::Directory),
            };
            self.after = Some(key.to_owned());
            let name = key.strip_prefix(&self.below).unwrap_or_default();
            let name = if kind == Kind::Directory { name.trim_end_matches('/') } else { name };
            if is_name(name) {
                self.add(name.to_owned(), kind);
            }
        }
    }

    fn add(&mut self, name: String, kind: Kind) {
        while self.above.last().is_some_and(|above| !name.starts_with(above.as_str())) {
            self.above.pop();
        }
        let hidden = kind == Kind::Directory && self.above.last() == Some(&name);
        if kind != Kind::Directory {
            self.above.push(name.clone());
        }
        if !hidden && !self.fresh.contains(&name) {
            self.page.push(Entry { name, kind });
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_objects::{ListItem, Page, ScanStep};
    use larder_types::{BucketId, ETag, HybridClock, Metax, ObjectKey, rows};

    use super::*;
    use crate::path::path;

    fn object(key: ObjectKey) -> ListedObject {
        let metax = Metax::new(1, HybridClock(1), ETag::Md5([0; 16]));
        ListedObject { key, metax }
    }

    /// A store's answer about these keys, in pages of `max`.
    fn list(keys: &[&str], request: &ListRequest, max: usize) -> ListPage<ListedObject> {
        let request = ListRequest { max, ..request.clone() };
        let mut page = Page::new(b'V', BucketId(1), &request);
        let (from, to) = (page.from(None), page.to());
        let row = |key: &str| {
            rows::version(BucketId(1), &ObjectKey::new(key).unwrap(), rows::UNVERSIONED)
        };
        let mut table: Vec<_> = keys.iter().map(|key| row(key)).collect();
        table.sort();
        let mut at = from;
        for row in table {
            if row < at || to.as_ref().is_some_and(|to| row >= *to) {
                continue;
            }
            match page.add(&row, &[], |key, _| Some(object(key))) {
                ScanStep::Next => {}
                ScanStep::Seek(to) => at = to,
                ScanStep::Stop => break,
            }
        }
        page.finish().unwrap()
    }

    /// Reads a whole directory, `step` names at a time.
    fn read(keys: &[&str], fresh: &[&str], max: usize, step: usize) -> Vec<String> {
        let mut listing = Listing::new(&path("d"));
        let (mut names, mut place) = (Vec::new(), 0);
        loop {
            if listing.must_begin(place) {
                listing.begin(fresh.iter().map(|name| (*name).to_owned()).collect());
            }
            let given: Vec<_> =
                listing.behind(place).take(step).map(|(next, it)| (next, it.clone())).collect();
            for (next, entry) in given {
                let end = if entry.kind == Kind::Directory { "/" } else { "" };
                (place, _) = (next, names.push(entry.name + end));
            }
            if listing.behind(place).next().is_some() {
                continue;
            }
            let Some(request) = listing.request() else { return names };
            listing.take(list(keys, &request, max));
        }
    }

    const KEYS: [&str; 10] =
        ["d/", "d/a", "d/a!", "d/a/x", "d/a/y", "d/b/c/d", "d/b/e", "d//no", "d/../no", "e"];

    #[test]
    fn every_name_once_whatever_the_pages() {
        for max in 1..8 {
            for step in 1..8 {
                let names = read(&KEYS, &[], max, step);
                assert_eq!(names, ["./", "../", "a", "a!", "b/"], "{max} {step}");
            }
        }
    }

    #[test]
    fn files_being_written_are_there_once() {
        let names = read(&KEYS, &["a!", "new"], 2, 1);
        assert_eq!(names, ["./", "../", "a!", "new", "a", "b/"]);
    }

    #[test]
    fn an_earlier_place_is_found_again() {
        let mut listing = Listing::new(&path("d"));
        assert!(listing.must_begin(0));
        listing.begin(BTreeSet::new());
        listing.take(list(&KEYS, &listing.request().unwrap(), 2));
        assert!(!listing.must_begin(3) && listing.must_begin(1));
    }

    #[test]
    fn the_root_lists_the_bucket() {
        let mut listing = Listing::new(&TreePath::root());
        listing.begin(BTreeSet::new());
        listing.take(list(&KEYS, &listing.request().unwrap(), 100));
        let names: Vec<_> = listing.behind(2).map(|(_, entry)| entry.name.as_str()).collect();
        assert_eq!(names, ["d", "e"]);
        let item = ListItem::<ListedObject>::Group("x".into());
        listing.take(ListPage { items: vec![item], truncated: false });
        assert!(listing.request().is_none(), "that was the last page");
    }
}
