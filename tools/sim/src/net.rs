//! The one scheduler: everything that happens is taken from its queue, in an order that the seed
//! decides. Also what all parts share: time, chance, the trace and what was found.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use larder_env::SeededRng;

use crate::clock::MS;
use crate::event::SimEvent;
use crate::links::{Links, Servers};
use crate::servers::Server;
use crate::setup::MessageFaults;
use crate::trace::Trace;
use crate::verdict::{Covered, Finding};

/// Least delay of what a laggard hears.
const LAG_US_MIN: u64 = 500 * MS;
/// Its delay beyond the least.
const LAG_US_MORE: u64 = 2_500 * MS;

#[derive(Debug)]
struct Entry {
    at_us: u64,
    serial: u64,
    /// Apart: the queue moves its entries about.
    what: Box<SimEvent>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_us, other.serial).cmp(&(self.at_us, self.serial))
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Net {
    now_us: u64,
    pub(crate) rng: SeededRng,
    queue: BinaryHeap<Entry>,
    serial: u64,
    pub(crate) trace: Trace,
    pub(crate) message_faults: MessageFaults,
    /// The links that are cut.
    pub(crate) links: Links,
    /// Servers that hear the managers late, though these hear them at once.
    pub(crate) laggards: Servers,
    pub(crate) faults: Covered,
    pub(crate) answers: Covered,
    finding: Option<Finding>,
}

impl Net {
    pub(crate) fn new(rng: SeededRng, message_faults: MessageFaults, trace: Trace) -> Self {
        Self {
            now_us: 0,
            rng,
            queue: BinaryHeap::new(),
            serial: 0,
            trace,
            message_faults,
            links: Links::default(),
            laggards: Servers::default(),
            faults: Covered::default(),
            answers: Covered::default(),
            finding: None,
        }
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Records the first thing that must never be; the run ends with it.
    pub(crate) fn find(&mut self, finding: Finding) {
        self.tell(format_args!("FOUND: {finding}"));
        self.finding.get_or_insert(finding);
    }

    pub(crate) fn finding(&self) -> Option<&Finding> {
        self.finding.as_ref()
    }

    pub(crate) fn say(&mut self, line: std::fmt::Arguments<'_>) {
        self.trace.say(self.now_us, line);
    }

    /// Says something that a timeline shows too.
    pub(crate) fn tell(&mut self, line: std::fmt::Arguments<'_>) {
        self.trace.tell(self.now_us, line);
    }

    /// Something happens after so many microseconds.
    pub(crate) fn after(&mut self, delay_us: u64, what: impl Into<SimEvent>) {
        self.serial += 1;
        let what = Box::new(what.into());
        self.queue.push(Entry { at_us: self.now_us + delay_us, serial: self.serial, what });
    }

    /// Something local happens soon.
    pub(crate) fn soon(&mut self, what: impl Into<SimEvent>) {
        let delay = 10 + self.rng.below(300);
        self.after(delay, what);
    }

    /// A message from a server, which may be lost, late or doubled; it is lost if the way is cut.
    pub(crate) fn send(&mut self, from: Server, what: impl Into<SimEvent>) {
        let what = what.into();
        let to = what.receiver();
        if to.is_some_and(|to| self.links.are_cut(from, to)) {
            self.faults.add("messages cut off", 1);
        } else if matches!(from, Server::Manager(_))
            && to.is_some_and(|to| self.laggards.has(to) && !matches!(to, Server::Manager(_)))
        {
            let late = LAG_US_MIN + self.rng.below(LAG_US_MORE);
            self.after(late, what);
        } else if chance(&mut self.rng, self.message_faults.lost) {
            self.faults.add("messages lost", 1);
        } else {
            self.deliver(what);
        }
    }

    /// A message arrives, sooner or later, perhaps twice.
    fn deliver(&mut self, what: SimEvent) {
        if chance(&mut self.rng, self.message_faults.doubled) {
            let late = self.rng.one_in(3);
            let delay = self.delay() + self.rng.below(if late { 1_500 * MS } else { 5 * MS });
            self.faults.add("messages doubled", 1);
            self.after(delay, what.clone());
        }
        let delay = self.delay();
        self.after(delay, what);
    }

    fn delay(&mut self) -> u64 {
        if chance(&mut self.rng, self.message_faults.very_late) {
            self.faults.add("messages very late", 1);
            return 100 * MS + self.rng.below(3_000 * MS);
        }
        if chance(&mut self.rng, self.message_faults.late) {
            return 2 * MS + self.rng.below(40 * MS);
        }
        20 + self.rng.below(400)
    }

    /// Takes what happens next; if that is later than `until_us`, only time passes until then.
    pub(crate) fn next(&mut self, until_us: u64) -> Option<SimEvent> {
        if self.queue.peek().is_none_or(|entry| entry.at_us > until_us) {
            self.now_us = self.now_us.max(until_us);
            return None;
        }
        let entry = self.queue.pop()?;
        self.now_us = entry.at_us;
        self.trace.note(&[entry.at_us, entry.serial, entry.what.mark()]);
        Some(*entry.what)
    }
}

/// True once in `one_in` times; never if that is 0.
pub(crate) fn chance(rng: &mut SeededRng, one_in: u64) -> bool {
    one_in > 0 && rng.one_in(one_in)
}
