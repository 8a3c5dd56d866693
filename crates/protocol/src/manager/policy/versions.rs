//! The cluster's version: once every server supports a version of the protocol, servers that do not are refused (ADR
//! 56).

use std::collections::BTreeMap;

use larder_types::{BootId, ServerId};

use super::{StepContext, Subject};
use crate::manager::state::{Command, ServerRecord, ServerState, Topology};

/// The version that each server spoke last, and in which run. Another run may be of another release.
#[derive(Debug, Default)]
pub(super) struct ReportedVersions(BTreeMap<ServerId, (BootId, u8)>);

impl ReportedVersions {
    /// The version that a server's run supports; `None` if it has not reported one, or is down: it may be about to
    /// start in another release.
    fn of(&self, server: ServerId, record: &ServerRecord) -> Option<u8> {
        let known = self.0.get(&server).filter(|(boot, _)| *boot == record.boot);
        known.filter(|_| record.state == ServerState::Up).map(|(_, version)| *version)
    }

    /// The highest version that all servers support, if all have reported theirs. A server that has a token and never
    /// started does not count: it has to support the version at its start.
    fn by_all(&self, map: &Topology) -> Option<u8> {
        started(map).map(|(server, record)| self.of(server, record)).min().flatten()
    }

    /// A server that is not known to speak a version.
    pub(super) fn below(&self, map: &Topology, version: u8) -> Option<ServerId> {
        let is_below = |(server, record): &(ServerId, &ServerRecord)| {
            self.of(*server, record).is_none_or(|spoken| spoken < version)
        };
        started(map).find(is_below).map(|(server, _)| server)
    }
}

fn started(map: &Topology) -> impl Iterator<Item = (ServerId, &ServerRecord)> {
    let has_started =
        |record: &ServerRecord| matches!(record.state, ServerState::Up | ServerState::Down);
    let servers = map.servers.iter().map(|(server, record)| (*server, record));
    servers.filter(move |(_, record)| has_started(record))
}

impl StepContext<'_> {
    /// Records the version that a server's run supports. A message of a run that has ended came late.
    pub(super) fn record_version(&mut self, server: ServerId, boot: BootId, version: u8) {
        let record = self.map.servers.get(&server);
        if record.is_some_and(|record| !record.ended.contains(&boot)) {
            self.leading.reported_versions.0.insert(server, (boot, version));
        }
    }

    /// Has the cluster's version raised to what all servers speak.
    pub(super) fn raise_cluster_version(&mut self) {
        let spoken = self.leading.reported_versions.by_all(self.map);
        if let Some(version) = spoken.filter(|version| *version > self.map.cluster_version) {
            self.propose(Subject::ClusterVersion, Command::RaiseClusterVersion(version));
        }
    }
}
