//! The findings of an inspection.

use std::fmt;

/// Faults that are shown one by one; more are counted.
const FAULTS_SHOWN_MAX: usize = 200;

#[derive(Debug)]
enum Entry {
    Section(&'static str),
    Line(String),
    Fault(String),
}

/// The findings of an inspection, in their order.
#[derive(Debug, Default)]
pub struct Report {
    entries: Vec<Entry>,
    faults: usize,
    /// Where objects were counted.
    objects: Option<u64>,
}

impl Report {
    pub(crate) fn section(&mut self, name: &'static str) {
        self.entries.push(Entry::Section(name));
    }

    pub(crate) fn line(&mut self, text: String) {
        self.entries.push(Entry::Line(text));
    }

    pub(crate) fn fault(&mut self, text: String) {
        self.faults += 1;
        if self.faults <= FAULTS_SHOWN_MAX {
            self.entries.push(Entry::Fault(text));
        }
    }

    pub(super) fn count_objects(&mut self, objects: u64) {
        self.objects = Some(objects);
    }

    /// Returns true if nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.faults == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.entries {
            match entry {
                Entry::Section(name) => writeln!(f, "{name}")?,
                Entry::Line(text) => writeln!(f, "  {text}")?,
                Entry::Fault(text) => writeln!(f, "  FAULT: {text}")?,
            }
        }
        if self.faults > FAULTS_SHOWN_MAX {
            writeln!(f, "  and {} more faults", self.faults - FAULTS_SHOWN_MAX)?;
        }
        match (self.faults, self.objects) {
            (0, Some(objects)) => write!(f, "sound: {objects} objects, no fault"),
            (0, None) => write!(f, "sound: no fault"),
            (n, _) => write!(f, "NOT SOUND: {n} faults"),
        }
    }
}
