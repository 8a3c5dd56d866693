//! Targets: the members that groups ought to have, computed anew when servers change in a way that matters.
//!
//! # Invariants
//!
//! 1. One look draws no more than [`TARGET_DRAWS_MAX`] straws, or those of one group.
//! 2. A group is passed over only once its target is as it should be: what the managers did not take is proposed again.
//! 3. When servers change once more, all groups are looked at anew, from the first.

use larder_types::{PgId, ServerId};

use super::{StepContext, Subject};
use crate::limits::{RETARGET_MAX, TARGET_DRAWS_MAX};
use crate::manager::state::{Command, ServerRole};
use crate::placement::{MetaServer, PlacementState, target_members};

/// Progress of the targets of all groups.
#[derive(Debug, Default)]
pub(super) struct Targets {
    /// Servers for which they are computed.
    servers: Vec<MetaServer>,
    /// Groups whose targets are right: the first ones.
    right: usize,
}

impl Targets {
    /// Returns true if the targets of so many groups are as they should be.
    pub(super) fn are_right(&self, pgs: usize) -> bool {
        self.right >= pgs
    }
}

impl StepContext<'_> {
    pub(super) fn meta_servers(&self) -> Vec<MetaServer> {
        let meta = self.map.servers.iter().filter(|(_, s)| s.roles.contains(&ServerRole::Meta));
        meta.map(|(server, record)| MetaServer {
            server: *server,
            domains: record.domains,
            weight: record.weight,
            placement_state: self.placement_state(*server),
        })
        .collect()
    }

    /// Looks at the next groups whose targets may not be right any more.
    pub(super) fn set_targets(&mut self) {
        let mut servers = self.meta_servers();
        // One that is away keeps its targets.
        for server in &mut servers {
            if server.placement_state == PlacementState::Away {
                server.placement_state = PlacementState::In;
            }
        }
        if servers != self.leading.targets.servers {
            self.leading.targets = Targets { servers, right: 0 };
        }
        let (Targets { servers, right }, map) = (&self.leading.targets, self.map);
        if *right >= map.pgs.len() || self.is_under_way(Subject::Targets) {
            return;
        }
        let rules = self.rules();
        let count = (TARGET_DRAWS_MAX / servers.len().max(1)).clamp(1, RETARGET_MAX);
        let end = map.pgs.len().min(right + count);
        let mut changed = Vec::new();
        for (pg, record) in (*right as u32..).map(PgId).zip(&map.pgs[*right..end]) {
            let picks = target_members(pg, servers, rules).picks;
            let target: Vec<ServerId> = picks.into_iter().map(ServerId).collect();
            if target != record.target && target.len() >= rules.min_members {
                changed.push((pg, target));
            }
        }
        if changed.is_empty() {
            self.leading.targets.right = end;
        } else {
            self.propose(Subject::Targets, Command::Retarget(changed));
        }
    }
}
