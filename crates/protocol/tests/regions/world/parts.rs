//! Versions of many bytes, which come in parts: what a driver keeps of them, and what it asks for and is told.

use larder_protocol::region::pull::{Event, Fetched};
use larder_protocol::region::{Entry, EntryKind, Name};
use larder_types::Stamp;

use super::super::site::Site;

/// Milliseconds after which an older version is begun with in place of one of which nothing more has come.
const STALE_MS: u64 = 30_000;

/// Asks for the bytes of an entry from a place on, if its version is the one that is known.
#[derive(Debug, Clone)]
pub struct PartAsk {
    request: u64,
    name: Name,
    at: Option<Stamp>,
    from: u64,
    bytes_max: u64,
}

/// The answer to it.
#[derive(Debug, Clone)]
pub struct PartReply {
    ask: PartAsk,
    entry: Option<Entry>,
    bytes: u64,
}

/// Answers with what is durable.
pub fn tell(site: &Site, ask: PartAsk) -> PartReply {
    let entry = site.disk.entries.get(&ask.name).map(|kept| kept.entry.clone());
    let size = entry.as_ref().map_or(0, Entry::bytes);
    let is_it = entry.as_ref().is_some_and(|entry| ask.at.is_none_or(|at| at == entry.at));
    let bytes = if is_it { size.saturating_sub(ask.from).min(ask.bytes_max) } else { 0 };
    PartReply { ask, entry, bytes }
}

impl Site {
    pub fn request_part(&self, request: u64, name: Name, bytes_max: u64) -> PartAsk {
        let known = self.partials.get(&name).copied();
        let (at, from) = known.map_or((None, 0), |(at, got, _)| (Some(at), got));
        PartAsk { request, name, at, from, bytes_max }
    }

    /// The event for the machine, and true if a part has come that is not the last.
    pub fn take_part(&mut self, now_ms: u64, reported: PartReply) -> (Event, bool) {
        let PartReply { ask: PartAsk { request, name, from, .. }, entry, bytes } = reported;
        let mut fetched = Fetched { received_bytes: bytes, ..Fetched::default() };
        let Some(entry) = entry else {
            fetched.entries.push((name, None));
            return (Event::Fetched { request, fetched }, false);
        };
        let known = self.partials.get(&name).copied();
        let is_stale = |since_ms: u64| now_ms.saturating_sub(since_ms) > STALE_MS;
        let mut is_part = false;
        match known {
            _ if !matches!(entry.what, EntryKind::Object(_)) || entry.bytes() == 0 => {
                fetched.entries.push((name, Some(entry)));
            }
            Some((at, _, since_ms)) if entry.at < at && !is_stale(since_ms) => {
                fetched.withheld.push(name);
            }
            // The other one is begun with.
            Some((at, ..)) if entry.at != at => {
                self.partials.insert(name, (entry.at, 0, now_ms));
            }
            // One that came twice, or late.
            _ if known.map_or(0, |(_, got, _)| got) != from => {}
            _ if from + bytes < entry.bytes() => {
                is_part = true;
                self.partials.insert(name, (entry.at, from + bytes, now_ms));
            }
            _ => {
                self.partials.remove(&name);
                fetched.entries.push((name, Some(entry)));
            }
        }
        (Event::Fetched { request, fetched }, is_part)
    }
}
