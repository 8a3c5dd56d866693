//! Marks of maps: properties that every later map of the same history keeps.
//!
//! A server keeps the latest map that it has seen. Managers that were restored from an older copy would give volumes, ids and
//! views a second time, and so overwrite acknowledged data. Servers recognize such managers by their map, which lacks
//! something of the mark of the kept one.
//!
//! Timelines distinguish histories for certain. A cluster may have none yet, or may have forgotten that of the mark. Then
//! numbers that never fall distinguish them at first. For longer, runs of servers and times of buckets do, which belong to
//! one history alone. But a map forgets the oldest runs of a server that ended [`ENDED_RUNS_MAX`], so a missing run of
//! such a server proves nothing.

use larder_types::codec::{self, CodecError};
use larder_types::{BootId, BucketId, MapVersion, ServerId, View};
use serde::{Deserialize, Serialize};

use super::map::{ClusterId, NextIds, ServerState, Topology};
use crate::limits::{ENDED_RUNS_MAX, TIMELINES_MAX};

/// The mark of a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapMark {
    /// The cluster.
    pub cluster: ClusterId,
    /// Version of the map.
    pub version: MapVersion,
    /// The next ids to give out.
    pub next: NextIds,
    /// Volumes that were ever drawn.
    pub volumes: u32,
    /// The highest view of a placement group.
    pub view: View,
    /// Servers that have begun a run, with their latest runs.
    pub runs: Vec<(ServerId, BootId)>,
    /// The bucket with the highest id, and the time since 1970 in milliseconds at which it was made.
    pub last_bucket: Option<(BucketId, u64)>,
    /// Id of the timeline in force. Files of the release that kept marks instead of maps have none.
    #[serde(skip)]
    pub timeline: Option<u64>,
}

impl MapMark {
    /// True if a map of the same cluster lacks nothing that the map of this mark had.
    #[must_use]
    pub fn is_reached_by(&self, map: &Topology) -> bool {
        let Some(other) = map.map_mark() else { return false };
        let (own, others) = (self.next, other.next);
        let numbers = self.version <= other.version
            && own.server <= others.server
            && own.disk <= others.disk
            && own.bucket <= others.bucket
            && own.token <= others.token
            && self.volumes <= other.volumes
            && self.view <= other.view;
        self.cluster == other.cluster && numbers && self.is_of_history(map)
    }

    /// True if a map of this version or a later one belongs to the same history, as far as can be known.
    fn is_of_history(&self, map: &Topology) -> bool {
        match (self.timeline, map.timeline_at(self.version)) {
            (Some(own), Some(others)) if own != others.id => false,
            // The map had no timeline then: its managers were restored from a copy of before.
            (Some(_), None) if map.timelines.len() < TIMELINES_MAX => false,
            _ => self.seems_of_history(map),
        }
    }

    /// True if a map has the runs, and no other bucket with the id of the last one.
    fn seems_of_history(&self, map: &Topology) -> bool {
        let knows = |(server, run): &(ServerId, BootId)| {
            map.servers.get(server).is_some_and(|record| {
                // The map forgets the oldest of many runs.
                let is_forgotten = record.ended.len() >= ENDED_RUNS_MAX;
                record.boot == *run
                    || record.ended.contains(run)
                    || record.state == ServerState::Removed
                    || is_forgotten
            })
        };
        let is_same = |(id, created_ms): (BucketId, u64)| {
            let mut of_id = map.buckets.values().filter(|bucket| bucket.id == id);
            of_id.all(|bucket| bucket.created_ms == created_ms)
        };
        self.runs.iter().all(knows) && self.last_bucket.is_none_or(is_same)
    }

    /// Decodes the file of a release that kept marks instead of maps.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode("the mark of a map", bytes)
    }
}

impl Topology {
    /// Its mark; `None` before the cluster is founded.
    #[must_use]
    pub fn map_mark(&self) -> Option<MapMark> {
        let (cluster, _) = self.founded?;
        let began = self.servers.iter().filter(|(_, record)| {
            !matches!(record.state, ServerState::Joining | ServerState::Removed)
        });
        let last_bucket = self.buckets.values().max_by_key(|bucket| bucket.id);
        Some(MapMark {
            cluster,
            version: self.version,
            next: self.next,
            volumes: self.lvs.len() as u32,
            view: self.pgs.iter().map(|pg| pg.view).max().unwrap_or_default(),
            runs: began.map(|(server, record)| (*server, record.boot)).collect(),
            last_bucket: last_bucket.map(|bucket| (bucket.id, bucket.created_ms)),
            timeline: self.timelines.last().map(|timeline| timeline.id),
        })
    }
}
