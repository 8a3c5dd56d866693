//! The parts left out of a seed's run: by hand, or by the minimiser until nothing more can be.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::setup::{MessageFaults, Setup};

/// The parts left out. Everything else is drawn as ever. But all events share one source of chance, so the rest of a run
/// may take another course.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reduction {
    /// Clients end after so many calls.
    pub calls: Option<u32>,
    /// Calls that are not made, by number.
    pub skipped: BTreeSet<u32>,
    /// Faults that do not come, by number.
    pub averted: BTreeSet<usize>,
    /// No more clients than these.
    pub clients: Option<usize>,
    /// No more PGs than these.
    pub pgs: Option<u32>,
    /// No message is lost, doubled or late on purpose.
    pub is_fair: bool,
}

impl Reduction {
    /// Leaves it out of a setup.
    pub(crate) fn of(&self, setup: &mut Setup) {
        if let Some(calls) = self.calls {
            setup.options.ops = setup.options.ops.min(calls);
        }
        if let Some(clients) = self.clients {
            setup.clients = setup.clients.min(clients.max(1));
        }
        if let Some(pgs) = self.pgs {
            setup.pgs = setup.pgs.min(pgs.max(1));
        }
        if self.is_fair {
            setup.message_faults = MessageFaults { lost: 0, doubled: 0, late: 0, very_late: 0 };
        }
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.calls.map(|calls| format!("calls={calls}")));
        parts.extend(self.clients.map(|clients| format!("clients={clients}")));
        parts.extend(self.pgs.map(|pgs| format!("pgs={pgs}")));
        if !self.skipped.is_empty() {
            parts.push(format!("skipped={}", ranges(self.skipped.iter().copied())));
        }
        if !self.averted.is_empty() {
            parts.push(format!("averted={}", ranges(self.averted.iter().map(|at| *at as u32))));
        }
        parts.extend(self.is_fair.then(|| "fair".to_owned()));
        write!(f, "{}", parts.join("/"))
    }
}

/// Numbers in order, as ranges.
fn ranges(numbers: impl Iterator<Item = u32>) -> String {
    let mut found: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match found.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => found.push((number, number)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    found.iter().map(text).collect::<Vec<_>>().join(",")
}

impl FromStr for Reduction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut less = Self::default();
        for part in text.split('/').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match name {
                "calls" => less.calls = Some(number(value)?),
                "clients" => less.clients = Some(number(value)? as usize),
                "pgs" => less.pgs = Some(number(value)?),
                "skipped" => less.skipped = numbers(value)?.collect(),
                "averted" => less.averted = numbers(value)?.map(|at| at as usize).collect(),
                "fair" => less.is_fair = true,
                _ => return Err(format!("nothing called {name:?} can be left out")),
            }
        }
        Ok(less)
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|error| format!("{text:?}: {error}"))
}

fn numbers(text: &str) -> Result<impl Iterator<Item = u32> + use<>, String> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Ok(number(first)?..=number(last)?)
    };
    let ranges: Result<Vec<_>, String> = text.split(',').map(range).collect();
    Ok(ranges?.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_read_as_it_is_written() {
        let less = Reduction {
            calls: Some(37),
            skipped: BTreeSet::from([0, 1, 2, 9]),
            averted: BTreeSet::from([4]),
            clients: None,
            pgs: Some(1),
            is_fair: true,
        };
        assert_eq!(less.to_string(), "calls=37/pgs=1/skipped=0-2,9/averted=4/fair");
        assert_eq!(less.to_string().parse(), Ok(less));
        assert_eq!(Reduction::default().to_string().parse(), Ok(Reduction::default()));
        assert!("calls=many".parse::<Reduction>().is_err() && "luck".parse::<Reduction>().is_err());
    }
}
