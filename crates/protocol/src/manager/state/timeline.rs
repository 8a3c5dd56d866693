//! Timelines: they identify the history of a map.
//!
//! Managers that were restored from an older copy go on from there, and give versions, ids and views a second time. Numbers
//! do not distinguish two such histories for long. So a manager that leads begins a timeline with an id that it draws, before
//! it proposes anything else. One history has that id from some version on, and no other history ever has it.
//!
//! The word is PostgreSQL's, whose servers begin a timeline when they are restored or promoted.
//!
//! # Invariants
//!
//! 1. Each timeline begins above the one before it.
//! 2. Take two maps with the same timeline in force at a version, which are of that version or later ones. Both have
//!    everything that the managers had agreed on up to that version.

use larder_types::MapVersion;

use super::command::{Applied, Outcome};
use super::map::{Timeline, Topology};
use crate::limits::TIMELINES_MAX;

impl Topology {
    /// The timeline in force when the map had this version. `None` if that is not remembered, or there was none.
    #[must_use]
    pub fn timeline_at(&self, version: MapVersion) -> Option<Timeline> {
        self.timelines.iter().rfind(|timeline| timeline.since <= version).copied()
    }

    pub(super) fn begin_timeline(&mut self, id: u64) -> Applied {
        if self.timelines.iter().any(|timeline| timeline.id == id) {
            return Ok(Outcome::Already);
        }
        let since = self.next_version();
        assert!(self.timelines.last().is_none_or(|last| last.since < since), "maps grow");
        self.timelines.push(Timeline { id, since });
        let too_many = self.timelines.len().saturating_sub(TIMELINES_MAX);
        self.timelines.drain(..too_many);
        Ok(Outcome::Done)
    }
}
