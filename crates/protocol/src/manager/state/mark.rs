//! Marks of maps: what a later map of the same history has, too.
//!
//! A server keeps the latest map that it has heard of. Managers that were put back from an older copy give volumes, ids and views
//! away a second time, and what was acknowledged since is overwritten. Such managers are known by their map, which lacks something
//! of the mark of the one that was kept.
//!
//! Timelines tell histories apart for certain. Before a cluster has some, or where the one of the mark is forgotten, numbers
//! that never fall tell at first. For longer, runs of servers and times of buckets tell, which are of one history alone. But
//! of a server that ended [`ENDED_RUNS_MAX`] runs the oldest are forgotten, and a run that is missing tells nothing.

use larder_types::codec::{self, CodecError};
use larder_types::{BootId, BucketId, MapVersion, ServerId, View};
use serde::{Deserialize, Serialize};

use super::map::{ClusterId, NextIds, ServerState, Topology};
use crate::limits::{ENDED_RUNS_MAX, TIMELINES_MAX};

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapMark {
    /// The cluster.
    pub cluster: ClusterId,
    /// Version of the map.
    pub version: MapVersion,
    /// Ids not given out yet.
    pub next: NextIds,
    /// Volumes that were ever drawn.
    pub volumes: u32,
    /// The highest view of a placement group.
    pub view: View,
    /// Servers that began, with their latest runs.
    pub runs: Vec<(ServerId, BootId)>,
    /// The last bucket that is there, and its time since 1970 in milliseconds.
    pub last_bucket: Option<(BucketId, u64)>,
    /// Id of the timeline in force. Files of the release that kept marks have none.
    #[serde(skip)]
    pub timeline: Option<u64>,
}

impl MapMark {
    /// True if a map lacks nothing that this one of the same cluster had.
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

    /// True if a map of this version or a later one is of the same history.
    fn is_of_history(&self, map: &Topology) -> bool {
        match (self.timeline, map.timeline_at(self.version)) {
            (Some(own), Some(others)) if own != others.id => false,
            // It had none yet: its managers are of a copy from before.
            (Some(_), None) if map.timelines.len() < TIMELINES_MAX => false,
            _ => self.seems_of_history(map),
        }
    }

    /// True if a map knows of the runs, and has no other bucket in place of the last one.
    fn seems_of_history(&self, map: &Topology) -> bool {
        let knows = |(server, run): &(ServerId, BootId)| {
            map.servers.get(server).is_some_and(|record| {
                // Of many runs the oldest are forgotten.
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

    /// Reads the file of a release that kept marks, and no maps.
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
