//! Records the calls of clients and their answers, and checks if any order of the calls explains
//! them.
//!
//! Per key a register of unique values, to which others may be appended: it then shows all of them in their order. A
//! call that was not answered may take effect at any later time, or never. Lists are reads of every key that there is.
//!
//! The check is Wing and Gong's search with a memo of (calls done, state), per key. So its cost follows the number of
//! calls under way at once and not the length of the history. A read of an object finds the values it is made of, so the
//! search need not guess in which order they were appended. Where few calls are open at once, a checker of others is
//! asked too (`history/outside.rs`).

use std::fmt;

use crate::content::{digest_of, etag_of, grown, len_of};
use known_objects::KnownObjects;
use search::{Limits, Search, Verdict};

mod known_objects;
mod outside;
mod search;

/// Calls shown of a key that is not explained.
const LINES_SHOWN: usize = 30;
/// The own search finds an order, and the other's checker finds none.
const OUTSIDE: &str = "an outside checker finds no order that explains";
/// A call that was never answered.
const NEVER: u64 = u64::MAX;

/// The object of a key: the value that was put, with those that were appended since, and its tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shown {
    /// Names the values, and their order.
    pub value: u128,
    /// Its tags, by number; 0 for none.
    pub tags: u64,
    /// Bytes of all values.
    pub size: u64,
}

impl Shown {
    /// The object that a put makes.
    #[must_use]
    pub fn put(value: u64) -> Self {
        Self { value: digest_of(&etag_of(value)), tags: 0, size: len_of(value) }
    }

    /// The object that an append makes of this.
    fn with(self, value: u64) -> Self {
        let size = self.size + len_of(value);
        Self { value: grown(self.value, value), size, ..self }
    }
}

/// A call's condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallCondition {
    /// None.
    Always,
    /// `If-None-Match: *`.
    Absent,
    /// `If-Match: *`.
    Present,
    /// `If-Match` with the etag of a value.
    Value(u64),
}

/// The kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invocation {
    /// A put, or the completion of an upload.
    Put(u64, CallCondition),
    /// A delete.
    Delete(CallCondition),
    /// An append, at an offset if one is given.
    Append(u64, Option<u64>, CallCondition),
    /// New tags.
    SetTags(u64),
    /// A get, or one key's part of a list.
    Get,
}

/// The kinds of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallResult {
    /// It is done.
    Done,
    /// It is appended, and begins here.
    Grown(u64),
    /// The object has this size, and the append was not to begin there.
    Ends(u64),
    /// This is there.
    Shows(Option<Shown>),
    /// The condition does not hold.
    Unmet,
    /// There is no such key.
    NoSuchKey,
    /// It was not done and never will be; says nothing about the key.
    Refused,
    /// Nothing: it may have been done, or be done later, or never.
    Unknown,
}

/// Names a call in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallId {
    key: usize,
    at: usize,
}

impl CallId {
    /// The key of the call.
    #[must_use]
    pub fn key(self) -> usize {
        self.key
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    asked: Invocation,
    begun: u64,
    ended: u64,
    answered: CallResult,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}..", self.begun)?;
        if self.ended != NEVER {
            write!(f, "{}", self.ended)?;
        }
        write!(f, "] {:?} -> {:?}", self.asked, self.answered)
    }
}

/// All calls of a run, by key.
#[derive(Debug, Default)]
pub struct History {
    keys: Vec<Vec<Entry>>,
    made: KnownObjects,
    moment: u64,
}

/// A moment in the order of all begins and ends.
#[derive(Debug, Clone, Copy)]
pub struct Moment(u64);

impl History {
    /// An empty history of so many keys.
    #[must_use]
    pub fn new(keys: usize) -> Self {
        Self { keys: vec![Vec::new(); keys], made: KnownObjects::default(), moment: 0 }
    }

    /// The present moment: what begins with it came after everything that ended before.
    pub fn now(&mut self) -> Moment {
        self.moment += 1;
        Moment(self.moment)
    }

    /// A call begins.
    pub fn begin(&mut self, key: usize, asked: Invocation) -> CallId {
        let begun = self.now().0;
        let entry = Entry { asked, begun, ended: NEVER, answered: CallResult::Unknown };
        self.keys[key].push(entry);
        CallId { key, at: self.keys[key].len() - 1 }
    }

    /// A call was answered.
    pub fn end(&mut self, call: CallId, answered: CallResult) {
        let ended = self.now().0;
        let entry = &mut self.keys[call.key][call.at];
        assert_eq!(entry.ended, NEVER, "a call is answered once");
        entry.answered = answered;
        if answered != CallResult::Unknown {
            entry.ended = ended;
        }
    }

    /// A key was seen by something that began at `begun` and ends now.
    pub fn saw(&mut self, key: usize, begun: Moment, shown: Option<Shown>) {
        let ended = self.now().0;
        let answered = CallResult::Shows(shown);
        self.keys[key].push(Entry { asked: Invocation::Get, begun: begun.0, ended, answered });
    }

    /// Somebody has read an object that is made of these values.
    pub fn read(&mut self, values: &[u64]) {
        self.made.learn(values);
    }

    /// Checks every key.
    ///
    /// # Errors
    /// The last calls before the first moment at which no order explains a key's calls, or was not found in the time that
    /// a search has.
    pub fn check(&self) -> Result<(), String> {
        self.check_within(Limits::PATIENT)
    }

    /// Of the keys, how many an outside checker judges too.
    #[must_use]
    pub fn judged_twice(&self) -> usize {
        self.keys.iter().filter(|entries| outside::judges(entries)).count()
    }

    fn check_within(&self, limits: Limits) -> Result<(), String> {
        for (key, entries) in self.keys.iter().enumerate() {
            let judge = Judge { made: self.made.with_listed(entries), limits };
            let found = match (judge.verdict(entries), outside::is_explained(entries)) {
                (Verdict::Explained, Some(true) | None) => continue,
                (Verdict::Explained, Some(false)) => OUTSIDE,
                (Verdict::Unexplained, Some(true)) => {
                    "an outside checker alone finds an order that explains"
                }
                (Verdict::Unexplained, _) => "no order explains",
                (Verdict::UnexplainedByFew, _) => {
                    "no order with few unanswered calls at a time explains (others were given up)"
                }
                (Verdict::GivenUp, _) => "the search was given up for an order that explains",
            };
            let end = match found {
                OUTSIDE => NEVER,
                _ => judge.first_bad(entries),
            };
            let mut lines: Vec<String> =
                until(entries, end).iter().map(|entry| format!("  {entry}")).collect();
            let shown = lines.split_off(lines.len().saturating_sub(LINES_SHOWN));
            let calls = shown.join("\n");
            return Err(format!("key {key}: {found} what was answered by {end}:\n{calls}"));
        }
        Ok(())
    }
}

/// Judges the calls of one key.
struct Judge {
    made: KnownObjects,
    limits: Limits,
}

impl Judge {
    fn verdict(&self, entries: &[Entry]) -> Verdict {
        let relevant = relevant(entries);
        let found = Search::new(&relevant, &self.made, self.limits).run();
        if found != Verdict::Unexplained {
            return found;
        }
        match Search::thorough(&relevant, &self.made, self.limits).run() {
            Verdict::GivenUp => Verdict::UnexplainedByFew,
            found => found,
        }
    }

    /// True if an order explains the calls that takes as few of them as will do.
    fn is_explained_by_few(&self, entries: &[Entry]) -> bool {
        let relevant = relevant(entries);
        Search::new(&relevant, &self.made, self.limits).run() == Verdict::Explained
    }

    /// The first moment at which calls are not explained. The quick search looks for it: a thorough one takes long where
    /// nothing explains them, and is asked only about what that one found.
    fn first_bad(&self, entries: &[Entry]) -> u64 {
        let mut ends: Vec<u64> = entries.iter().map(|entry| entry.ended).collect();
        ends.sort_unstable();
        let is_explained = |end: &u64| self.verdict(&until(entries, *end)) == Verdict::Explained;
        let by_few = ends.partition_point(|end| self.is_explained_by_few(&until(entries, *end)));
        let later = ends.get(by_few + 1..).unwrap_or_default();
        let first_bad = match ends.get(by_few).is_some_and(is_explained) {
            true => by_few + 1 + later.partition_point(is_explained),
            false => by_few,
        };
        ends.get(first_bad).copied().unwrap_or(NEVER)
    }
}

/// The entries as they were known at a moment.
fn until(entries: &[Entry], end: u64) -> Vec<Entry> {
    let known = entries.iter().filter(|entry| entry.begun <= end).map(|entry| match entry.ended {
        ended if ended <= end => *entry,
        _ => Entry { ended: NEVER, answered: CallResult::Unknown, ..*entry },
    });
    known.collect()
}

/// Entries that say or may change something, in the order in which they began.
fn relevant(entries: &[Entry]) -> Vec<Entry> {
    let shown = |wanted: &dyn Fn(Shown) -> bool| {
        entries
            .iter()
            .any(|entry| matches!(entry.answered, CallResult::Shows(Some(shown)) if wanted(shown)))
    };
    // A value that nobody has read may explain an answer that only says that something was there, or how long it was. And
    // a look at an object that was appended to does not tell its values.
    let presence_counts = entries.iter().any(|entry| match entry.answered {
        CallResult::Unmet | CallResult::Grown(_) | CallResult::Ends(_) => true,
        _ if is_append(entry) => true,
        CallResult::Done => match entry.asked {
            Invocation::SetTags(_) => true,
            Invocation::Put(_, on) | Invocation::Delete(on) => {
                on != CallCondition::Always && on != CallCondition::Absent
            }
            Invocation::Get | Invocation::Append(..) => false,
        },
        _ => false,
    });
    let counts = |entry: &&Entry| match (entry.answered, entry.asked) {
        (CallResult::Refused, _) | (CallResult::Unknown, Invocation::Get) => false,
        (CallResult::Unknown, Invocation::Put(value, _)) => {
            presence_counts || shown(&|shown| shown.value == Shown::put(value).value)
        }
        (CallResult::Unknown, Invocation::SetTags(tags)) => shown(&|shown| shown.tags == tags),
        _ => true,
    };
    let mut relevant: Vec<Entry> = entries.iter().filter(counts).copied().collect();
    relevant.sort_by_key(|entry| entry.begun);
    relevant
}

fn is_append(entry: &Entry) -> bool {
    matches!(entry.asked, Invocation::Append(..))
}

/// The value that a call would put or append.
fn value_of(entry: &Entry) -> Option<u64> {
    match entry.asked {
        Invocation::Put(value, _) | Invocation::Append(value, ..) => Some(value),
        _ => None,
    }
}

/// The object that an answer shows.
fn shown_in(entry: &Entry) -> Option<Shown> {
    match entry.answered {
        CallResult::Shows(shown) => shown,
        _ => None,
    }
}

/// The state after a call, if it can be answered so in this state.
fn after(entry: &Entry, state: Option<Shown>) -> Option<Option<Shown>> {
    let verdict = |on: CallCondition| match (on, state) {
        (CallCondition::Always, _)
        | (CallCondition::Absent, None)
        | (CallCondition::Present, Some(_)) => CallResult::Done,
        (CallCondition::Value(value), Some(shown)) if shown.value == Shown::put(value).value => {
            CallResult::Done
        }
        (CallCondition::Absent | CallCondition::Value(_), Some(_)) => CallResult::Unmet,
        (CallCondition::Present | CallCondition::Value(_), None) => CallResult::NoSuchKey,
    };
    let (verdict, next) = match entry.asked {
        Invocation::Put(value, on) => (verdict(on), Some(Shown::put(value))),
        Invocation::Append(value, at, on) => {
            let size = state.map_or(0, |shown| shown.size);
            let verdict = match verdict(on) {
                CallResult::Done if at.is_some_and(|at| at != size) => CallResult::Ends(size),
                CallResult::Done => CallResult::Grown(size),
                unmet => unmet,
            };
            (verdict, Some(state.map_or(Shown::put(value), |shown| shown.with(value))))
        }
        Invocation::Delete(on) => (verdict(on), None),
        Invocation::SetTags(tags) => match state {
            Some(shown) => (CallResult::Done, Some(Shown { tags, ..shown })),
            None => (CallResult::NoSuchKey, None),
        },
        Invocation::Get => (CallResult::Shows(state), state),
    };
    match entry.answered {
        // One that changes nothing need not be placed at all.
        CallResult::Unknown => {
            matches!(verdict, CallResult::Done | CallResult::Grown(_)).then_some(next)
        }
        answered if answered != verdict => None,
        CallResult::Done | CallResult::Grown(_) => Some(next),
        _ => Some(state),
    }
}

#[cfg(test)]
mod tests;
