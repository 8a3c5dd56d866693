//! The course of a run, as a hash that two runs of one seed must share, and as text for people.

use std::collections::VecDeque;
use std::fmt::Arguments;

/// Lines kept for the report of a failure.
const TAIL_LINES: usize = 400;

/// The amount of text that a run keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    /// None: the hash alone.
    None,
    /// The last lines.
    Tail,
    /// Everything, to standard error, as it happens.
    Live,
    /// Calls, answers, faults and views alone, to standard output, as they happen.
    Timeline,
}

/// The trace of one run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    text: Text,
    tail: VecDeque<String>,
}

impl Trace {
    pub(crate) fn new(text: Text) -> Self {
        Self { hash: 0xCBF2_9CE4_8422_2325, events: 0, text, tail: VecDeque::new() }
    }

    /// Adds numbers to the hash.
    pub(crate) fn note(&mut self, numbers: &[u64]) {
        self.events += 1;
        for &number in numbers {
            self.hash = (self.hash.rotate_left(5) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }

    /// Adds a line, if text is kept.
    pub(crate) fn say(&mut self, now_us: u64, line: Arguments<'_>) {
        match self.text {
            Text::None | Text::Timeline => {}
            Text::Live => eprintln!("{:>12.3} ms  {line}", now_us as f64 / 1000.0),
            Text::Tail => {
                if self.tail.len() == TAIL_LINES {
                    self.tail.pop_front();
                }
                self.tail.push_back(format!("{:>12.3} ms  {line}", now_us as f64 / 1000.0));
            }
        }
    }

    /// Adds a line that belongs to a timeline too.
    pub(crate) fn tell(&mut self, now_us: u64, line: Arguments<'_>) {
        if self.text == Text::Timeline {
            println!("{:>12.3} ms  {line}", now_us as f64 / 1000.0);
        } else {
            self.say(now_us, line);
        }
    }

    /// True if every event is to be a line.
    pub(crate) fn wants_events(&self) -> bool {
        matches!(self.text, Text::Tail | Text::Live)
    }

    /// True if a timeline is made.
    pub(crate) fn wants_timeline(&self) -> bool {
        self.text != Text::None
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn into_tail(self) -> Vec<String> {
        self.tail.into()
    }
}
