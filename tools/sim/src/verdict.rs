//! The result of a run.

use std::collections::BTreeMap;
use std::fmt;

/// Something that must never be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The answers to a key's clients fit no order of their calls.
    History(String),
    /// Bytes were given out that nobody put there.
    WrongBytes(String),
    /// An object that the index names cannot be read although nothing damaged its copies.
    LostData(String),
    /// A data server does not keep what it answered.
    BrokenPromise(String),
    /// A server answered reads alone though another led already.
    TwoLead(String),
    /// A part of the store contradicts itself: space, rows, replicas, log.
    Contradiction(String),
    /// A server did not start although nothing was damaged.
    NoStart(String),
    /// A server started although its log was damaged.
    DamageMissed(String),
    /// The store did not come to rest after all faults had ended.
    NotQuiescent(String),
    /// A call was refused or not answered although nothing was wrong any more.
    NoService(String),
    /// An assertion of the store failed.
    Panic(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, text) = match self {
            Finding::History(text) => ("the history is not linearizable", text),
            Finding::WrongBytes(text) => ("wrong bytes were given out", text),
            Finding::LostData(text) => ("data was lost", text),
            Finding::BrokenPromise(text) => ("a data server broke its promise", text),
            Finding::TwoLead(text) => ("two servers answer reads alone", text),
            Finding::Contradiction(text) => ("the store contradicts itself", text),
            Finding::NoStart(text) => ("a server does not start", text),
            Finding::DamageMissed(text) => ("damage was not noticed", text),
            Finding::NotQuiescent(text) => ("the store does not come to rest", text),
            Finding::NoService(text) => ("a call is not served at rest", text),
            Finding::Panic(text) => ("an assertion failed", text),
        };
        write!(f, "{what}: {text}")
    }
}

impl Finding {
    /// The kind of a finding: two runs that differ fail in the same way if it is the same.
    #[must_use]
    pub fn kind(text: &str) -> &str {
        text.split_once(": ").map_or(text, |(what, _)| what)
    }
}

/// Counts of what happened, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Covered(BTreeMap<&'static str, u64>);

impl Covered {
    pub(crate) fn add(&mut self, what: &'static str, times: u64) {
        if times > 0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    /// Adds another run's counts.
    pub fn merge(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            self.add(what, *times);
        }
    }

    /// The counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(what, times)| (*what, *times))
    }
}

/// The report of one run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash over everything that happened.
    pub trace_hash: u64,
    /// Events.
    pub events: u64,
    /// Calls of clients.
    pub ops: u64,
    /// Faults injected.
    pub faults: u64,
    /// Faults by kind, and what clients were answered.
    pub faults_by_kind: Covered,
    /// Answers by kind.
    pub answers: Covered,
    /// The broken invariant, if any.
    pub finding: Option<Finding>,
    /// The last events, if text was asked for.
    pub tail: Vec<String>,
}
