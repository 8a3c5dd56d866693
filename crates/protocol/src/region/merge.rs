//! Joins two entries of one name.
//!
//! # Invariants
//!
//! 1. The join of entries is the same in any order, any grouping and any number of repeats.
//! 2. A version that is purged stays purged.
//! 3. Nothing shortens compliance.
//!
//! | | which wins |
//! |---|---|
//! | null register | the greater stamp, whether put, marker or purge |
//! | version | purged; else both are the same version, and what was set and appended is joined |
//! | tags, legal hold, governance | each by the stamp at which it was set |
//! | compliance | the later time |
//! | pieces | all, in the order of their stamps |
//!
//! An append belongs to its version, and goes with it: if the last append decided the register, the order in which
//! changes arrive would decide which appends are kept.

use std::cmp::Ordering;

use larder_types::{Amendments, Metax, Stamp};

use super::entry::{Entry, EntryKind, Id, Object, Slot};
use crate::planted::Planted;

/// Two regions differ in a part that never changes. Nothing is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("two regions have different versions with stamp {at}: {what}")]
pub struct Contradiction {
    /// The stamp that both have.
    pub at: Stamp,
    /// The part that differs.
    pub what: &'static str,
}

/// Joins two entries of one name.
///
/// # Errors
/// [`Contradiction`].
pub fn join(
    planted: Planted,
    slot: Slot,
    here: &Entry,
    remote: &Entry,
) -> Result<Entry, Contradiction> {
    let order = match slot {
        Slot::Null if planted.ties_by_clock() && here.at != remote.at => {
            here.at.clock.cmp(&remote.at.clock).then(Ordering::Greater)
        }
        Slot::Null => here.at.cmp(&remote.at),
        Slot::Version(_) => match (here.is_purged(), remote.is_purged()) {
            (true, true) => here.at.cmp(&remote.at),
            (here, remote) => here.cmp(&remote),
        },
    };
    match order {
        Ordering::Greater => Ok(here.clone()),
        Ordering::Less => Ok(remote.clone()),
        Ordering::Equal => join_same(here, remote),
    }
}

/// Joins two entries of one put, marker or purge.
fn join_same(here: &Entry, remote: &Entry) -> Result<Entry, Contradiction> {
    let differ = |what| Contradiction { at: here.at, what };
    if here.origin != remote.origin || here.at != remote.at {
        return Err(differ("ops that made it"));
    }
    let what = match (&here.what, &remote.what) {
        (EntryKind::Object(here), EntryKind::Object(remote)) => {
            EntryKind::Object(Box::new(join_objects(here, remote).map_err(differ)?))
        }
        (EntryKind::Marker, EntryKind::Marker) => EntryKind::Marker,
        (EntryKind::Purged, EntryKind::Purged) => EntryKind::Purged,
        _ => return Err(differ("kinds")),
    };
    Ok(Entry { what, ..here.clone() })
}

fn join_objects(here: &Object, remote: &Object) -> Result<Object, &'static str> {
    if here.parts != remote.parts || as_put(&here.metax) != as_put(&remote.metax) {
        return Err("contents");
    }
    let mut joined = here.clone();
    if remote.amended.tags_at > here.amended.tags_at {
        joined.metax.attributes.tags.clone_from(&remote.metax.attributes.tags);
    }
    joined.amended = join_amendments(here.amended, remote.amended);
    for (at, piece) in &remote.pieces {
        if joined.pieces.entry(*at).or_insert_with(|| piece.clone()) != piece {
            return Err("pieces");
        }
    }
    Ok(joined)
}

/// METAX without the fields that may be set later.
fn as_put(metax: &Metax) -> Metax {
    let mut metax = metax.clone();
    metax.attributes.tags.clear();
    metax
}

/// Joins the fields that were set on a version in two regions.
pub(crate) fn join_amendments(here: Amendments, remote: Amendments) -> Amendments {
    Amendments {
        tags_at: here.tags_at.max(remote.tags_at),
        legal_hold: last_set(here.legal_hold, remote.legal_hold),
        governance: last_set(here.governance, remote.governance),
        compliance_until_ms: here.compliance_until_ms.max(remote.compliance_until_ms),
    }
}

fn last_set<T>(here: Option<(T, Stamp)>, remote: Option<(T, Stamp)>) -> Option<(T, Stamp)> {
    match (here, remote) {
        (Some(here), Some(remote)) => Some(if remote.1 > here.1 { remote } else { here }),
        (here, remote) => here.or(remote),
    }
}

/// The part of another region's entry that is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalPart {
    /// Nothing: it has to be fetched with its bytes.
    Nothing,
    /// Its bytes, if it needs any: it has to be fetched without them, and joined.
    Bytes,
    /// The whole entry, or one that wins over it.
    All,
}

/// Finds the part of an entry that is here. `was_here`: a token has passed its origin, so that it was here.
#[must_use]
pub fn holding(here: Option<&Entry>, remote: &Id, was_here: bool) -> LocalPart {
    let Some(here) = here else {
        return if was_here { LocalPart::All } else { LocalPart::Nothing };
    };
    if here.print() == remote.print {
        return LocalPart::All;
    }
    let is_beaten = match remote.name.slot {
        Slot::Null => here.at > remote.at,
        Slot::Version(_) => here.is_purged() && (!remote.is_purged || here.at > remote.at),
    };
    let has_bytes = here.at == remote.at || remote.bytes == 0;
    match (is_beaten, has_bytes) {
        (true, _) => LocalPart::All,
        (false, true) => LocalPart::Bytes,
        (false, false) => LocalPart::Nothing,
    }
}

#[cfg(test)]
#[path = "merge/tests.rs"]
mod tests;
