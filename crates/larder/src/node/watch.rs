//! Looks at the map for what concerns the machine as a whole. That is where managers are, for the next start, and how
//! the list of peers and the machines of the cluster differ.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_protocol::manager::state::{ServerRole, ServerState, Topology};
use larder_roles::managers::{Managers, ManagersClient};
use larder_roles::node::node_of;
use larder_types::ServerId;

use crate::cluster::record::{Record, describe_managers};

/// See the module's head.
pub(super) struct Watch {
    dir: PathBuf,
    peers: Vec<String>,
    record: Record,
}

impl Watch {
    pub(super) fn new(dir: &Path, peers: &[String], record: &Record) -> Self {
        Self { dir: dir.to_owned(), peers: peers.to_vec(), record: record.clone() }
    }

    /// Until the process ends.
    pub(super) async fn run(mut self, managers: Arc<ManagersClient>) {
        let (mut versions, mut last_logged) = (managers.versions(), None);
        loop {
            let map = managers.map();
            if map.founded.is_some() {
                let differences = differences(&map, &self.peers);
                if last_logged.as_ref() != Some(&differences) {
                    differences.log();
                    last_logged = Some(differences);
                }
                self.keep_managers(&map).await;
            }
            if versions.changed().await.is_err() {
                return;
            }
        }
    }

    async fn keep_managers(&mut self, map: &Topology) {
        let managers = describe_managers(&managers_in(map));
        if managers.is_empty() || managers == self.record.managers {
            return;
        }
        self.record.managers = managers;
        let (record, dir) = (self.record.clone(), self.dir.clone());
        let saved = tokio::task::spawn_blocking(move || record.save(&dir)).await;
        match saved {
            Ok(Ok(())) => {}
            // The next start may contact managers that are gone; the next change is saved again.
            Ok(Err(error)) => tracing::warn!(%error, "the managers' addresses could not be saved"),
            Err(error) => tracing::warn!(%error, "the managers' addresses could not be saved"),
        }
    }
}

fn managers_in(map: &Topology) -> Vec<(ServerId, String)> {
    let managers = map.servers.iter().filter(|(_, record)| {
        record.roles.contains(&ServerRole::Manager) && record.state != ServerState::Removed
    });
    managers.filter_map(|(id, record)| Some((*id, record.addresses.first()?.clone()))).collect()
}

/// The differences between the list of peers and the machines of the cluster.
#[derive(Debug, PartialEq, Eq)]
struct Differences {
    /// In the cluster alone.
    unlisted: Vec<String>,
    /// In the list alone.
    absent: Vec<String>,
}

fn differences(map: &Topology, peers: &[String]) -> Differences {
    let live = map.servers.values().filter(|record| record.state != ServerState::Removed);
    let machines: BTreeSet<&str> = live.filter_map(|record| node_of(&record.name)).collect();
    let listed: BTreeSet<&str> = peers.iter().map(String::as_str).collect();
    let names = |names: BTreeSet<&str>| names.into_iter().map(str::to_owned).collect();
    Differences { unlisted: names(&machines - &listed), absent: names(&listed - &machines) }
}

impl Differences {
    fn log(&self) {
        for machine in &self.unlisted {
            tracing::warn!(
                %machine,
                "a machine of the cluster is not in the list of peers: put it in, or take it out of the cluster with \
                 `larder drain` and `larder remove`"
            );
        }
        if !self.absent.is_empty() {
            let machines = self.absent.join(", ");
            tracing::info!(%machines, "peers that have not joined the cluster yet");
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_protocol::manager::quorum::LogIndex;
    use larder_protocol::manager::state::{ClusterId, Command, NewServer};
    use larder_protocol::placement::{FailureDomains, Weight};

    use super::*;
    use crate::cluster::config::Found;

    #[test]
    fn unlisted_machines_and_missing_peers_are_reported() {
        let found = Found { name: String::new(), pg_count: 8, copies: 1, volume_mib: 64 };
        let mut map = Topology::default();
        let settings = crate::cluster::settings(&found);
        map.apply(LogIndex(1), Command::Found(ClusterId(1), settings)).unwrap();
        let server = NewServer {
            name: "a:1/manager".to_owned(),
            roles: [ServerRole::Manager].into(),
            addresses: vec!["a:1".to_owned()],
            domains: FailureDomains::default(),
            weight: Weight(1),
        };
        map.apply(LogIndex(2), Command::AddServer(server, None)).unwrap();
        let list = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let of = |peers: &[&str]| differences(&map, &list(peers));
        assert_eq!(of(&["a:1"]), Differences { unlisted: vec![], absent: vec![] });
        let both = Differences { unlisted: list(&["a:1"]), absent: list(&["b:1"]) };
        assert_eq!(of(&["b:1"]), both);
        assert_eq!(managers_in(&map), [(ServerId(0), "a:1".to_owned())]);
    }
}
