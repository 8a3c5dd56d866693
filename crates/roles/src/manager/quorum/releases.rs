//! The commands that the other managers know. A manager refuses a message with a command that it does not know, and so
//! all later entries of the log too. So a command goes into the log only when every voter is known to know it.

use std::collections::BTreeMap;

use larder_net::limits::PROTOCOL_MIN;
use larder_protocol::manager::quorum::{Item, Members, QuorumMessage};
use larder_protocol::manager::state::Command;
use larder_protocol::validation::{Validated, check};
use larder_types::ServerId;
use larder_types::codec::decode;

use crate::limits::{
    BALANCE_HELD_UP_MS, PROTOCOL_BALANCE, PROTOCOL_CLUSTER_VERSION, PROTOCOL_CORS,
    PROTOCOL_DELETIONS, PROTOCOL_FORGETS, PROTOCOL_GATEWAYS, PROTOCOL_HOMES, PROTOCOL_LOCAL,
    PROTOCOL_NAMES_ENDED, PROTOCOL_PAUSE, PROTOCOL_POSITIONS, PROTOCOL_REGIONS, PROTOCOL_ROOT_KEYS,
    PROTOCOL_TIMELINES, VERSION_HELD_BACK_MS,
};

/// The version of the protocol that each manager spoke last, since this run began.
#[derive(Debug, Default)]
pub(super) struct Releases {
    versions: BTreeMap<ServerId, u8>,
    /// The voter that was logged last as holding up commands.
    last_logged: Option<ServerId>,
    /// The voter that keeps volumes from moving, since when, and true if that was logged.
    pub(super) keeps_balance: Option<(ServerId, u64, bool)>,
    /// The same for the server that keeps the cluster's version low.
    pub(super) keeps_version: Option<(ServerId, u64, bool)>,
}

impl Releases {
    pub(super) fn note_version(&mut self, manager: ServerId, version: u8) {
        self.versions.insert(manager, version);
    }

    /// Returns true if volumes may move for balance: all voters know such moves. If a voter prevents it for
    /// long, the leading manager logs that once.
    pub(super) fn may_balance(
        &mut self,
        me: ServerId,
        members: &Members,
        (now_ms, leads): (u64, bool),
    ) -> bool {
        let Some(older) = self.older(me, members, PROTOCOL_BALANCE) else {
            self.keeps_balance = None;
            return true;
        };
        match &mut self.keeps_balance {
            Some((of, since_ms, is_told)) if *of == older && leads => {
                if !*is_told && now_ms.saturating_sub(*since_ms) >= BALANCE_HELD_UP_MS {
                    *is_told = true;
                    let is_heard = self.versions.contains_key(&older);
                    tracing::warn!(manager = %older, is_heard, "volumes are not rebalanced: this manager may not support it; upgrade, start or remove it");
                }
            }
            keeps => *keeps = leads.then_some((older, now_ms, false)),
        }
        false
    }

    /// Notes the server that keeps the cluster's version below this release's, if one does. It is logged once if that lasts.
    pub(super) fn holds_back(&mut self, server: Option<ServerId>, now_ms: u64) {
        match (&mut self.keeps_version, server) {
            (Some((of, since_ms, is_told)), Some(server)) if *of == server => {
                if !*is_told && now_ms.saturating_sub(*since_ms) >= VERSION_HELD_BACK_MS {
                    *is_told = true;
                    tracing::info!(%server, "the cluster's version is not raised: this server is down, of an earlier release, or does not reach this manager; start, upgrade or remove it");
                }
            }
            (keeps, server) => *keeps = server.map(|server| (server, now_ms, false)),
        }
    }

    fn older(&self, me: ServerId, members: &Members, version: u8) -> Option<ServerId> {
        let speaks = |voter: &ServerId| self.versions.get(voter).copied().unwrap_or(PROTOCOL_MIN);
        let mut others = members.voters.union(&members.next_voters).filter(|voter| **voter != me);
        others.find(|voter| speaks(voter) < version).copied()
    }

    /// A voter that may not support a command: its version is older, or not known yet.
    pub(super) fn held_up_by(
        &mut self,
        me: ServerId,
        members: &Members,
        command: &Command,
    ) -> Option<ServerId> {
        let older = self.older(me, members, since(command))?;
        if self.last_logged.replace(older) != Some(older) {
            let is_heard = self.versions.contains_key(&older);
            tracing::warn!(manager = %older, is_heard, "some commands wait: this manager may not support them; upgrade or start it");
        }
        Some(older)
    }
}

/// The oldest version of the protocol whose managers know a command.
fn since(command: &Command) -> u8 {
    match command {
        Command::Found(..)
        | Command::AddServer(..)
        | Command::ServerStarted(..)
        | Command::ServerDown(..)
        | Command::SetWeight(..)
        | Command::SetDraining(..)
        | Command::RemoveServer(..)
        | Command::AddDisk(..)
        | Command::SetDiskDraining(..)
        | Command::RemoveDisk(..)
        | Command::Retarget(..)
        | Command::AddLearner(..)
        | Command::DropLearner(..)
        | Command::BeginView(..)
        | Command::ViewActivated(..)
        | Command::CreateLv(..)
        | Command::LvCreated(..)
        | Command::SetLvReadOnly(..)
        | Command::AddReplica(..)
        | Command::ReplicaCurrent(..)
        | Command::DropReplica(..)
        | Command::OpenSession(..)
        | Command::CloseSession(..)
        | Command::CreateBucket(..)
        | Command::BeginDeletion(..)
        | Command::EndDeletion(..)
        | Command::AddToken(..)
        | Command::RevokeToken(..)
        | Command::DropVacated(..)
        | Command::SetWritePolicy(..)
        | Command::MemberLacks(..) => PROTOCOL_MIN,
        Command::ForgetTokens(..) => PROTOCOL_FORGETS,
        Command::EndDeletionOf(..) => PROTOCOL_NAMES_ENDED,
        Command::SetRegion(..) => PROTOCOL_REGIONS,
        Command::ClaimGateway(..) | Command::KeepRegions(..) => PROTOCOL_GATEWAYS,
        Command::SetRegions(..) => PROTOCOL_POSITIONS,
        Command::CloseBucket(..) | Command::DeleteClosed(..) => PROTOCOL_DELETIONS,
        Command::SetHome(..) | Command::AdoptBucket(..) => PROTOCOL_HOMES,
        Command::SetLocal(..) | Command::ShareBucket(..) => PROTOCOL_LOCAL,
        Command::PauseBalance(..) => PROTOCOL_PAUSE,
        Command::SetCors(..) => PROTOCOL_CORS,
        Command::RaiseClusterVersion(_) => PROTOCOL_CLUSTER_VERSION,
        Command::RotateRoot(..) | Command::RetireRoot(_) => PROTOCOL_ROOT_KEYS,
        Command::BeginTimeline(_) => PROTOCOL_TIMELINES,
    }
}

/// Checks that this release can decode the commands of a message: one that it cannot would end every manager once agreed on.
pub(super) fn check_commands(said: &QuorumMessage) -> Validated {
    let QuorumMessage::Append { entries, .. } = said else { return Ok(()) };
    let is_command = |item: &Item| match item {
        Item::Command(command) => decode::<Command>("a command", command).is_ok(),
        Item::Term | Item::Members(_) => true,
    };
    let all = entries.items.iter().all(|(_, item)| is_command(item));
    check(all, "a command that this release does not know")
}
