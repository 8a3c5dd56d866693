//! The managers as a server sees them: the map as it last came, and one of them to talk to. A manager that does not
//! lead hands on what it is told; from one that is silent a server turns to another.

use std::sync::Arc;

use larder_protocol::limits::{PRESENCE_BEAT_MS, SERVER_BEAT_MS};
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::Topology;
use larder_types::{BootId, ServerId};

use crate::clock::MS;
use crate::event::ManagerIn;
use crate::net::Net;
use crate::places::names;
use crate::servers::Server;
use crate::setup::Setup;

/// Between two times that a meta server tells the managers that it goes on.
pub(crate) const BEAT_US: u64 = SERVER_BEAT_MS * MS;
/// Between two times that another server does.
pub(crate) const PRESENCE_US: u64 = PRESENCE_BEAT_MS * MS;
/// Microseconds for which a server hears nothing from the managers before it talks to another.
const SILENT_US: u64 = 3 * BEAT_US;

pub(crate) struct Managers {
    me: Server,
    id: ServerId,
    boot: BootId,
    count: usize,
    at: usize,
    heard_us: u64,
    pub(crate) map: Arc<Topology>,
}

impl Managers {
    /// Of a run that begins.
    pub(crate) fn new(me: Server, boot: BootId, setup: &Setup, net: &mut Net) -> Self {
        let count = setup.managers;
        Self {
            me,
            id: setup.id_of(me),
            boot,
            count,
            at: net.rng.below(count as u64) as usize,
            heard_us: net.now_us(),
            map: Arc::default(),
        }
    }

    /// Tells the leader something; it may be lost.
    pub(crate) fn say(&self, message: ServerMessage, net: &mut Net) {
        let input = ManagerIn::Server { from: self.id, message, handed_on: false };
        net.send(self.me, (self.at, input));
    }

    /// True if the map names this run.
    pub(crate) fn observes_own_map(&self) -> bool {
        names(&self.map, self.id, self.boot)
    }

    /// True if the map says that another run is in this one's place: a late message made the managers think so, and
    /// they do not hear this one any more.
    pub(crate) fn observes_other_map(&self) -> bool {
        self.map.servers.get(&self.id).is_some_and(|record| record.ended.contains(&self.boot))
    }

    /// Does the work of each beat besides the server's own messages: asks for a newer map, and another manager if
    /// this one is silent.
    pub(crate) fn beat(&mut self, net: &mut Net) {
        if net.now_us() >= self.heard_us + SILENT_US {
            self.at = net.rng.below(self.count as u64) as usize;
            self.heard_us = net.now_us();
        }
        self.fetch_map(net);
    }

    fn fetch_map(&self, net: &mut Net) {
        let input = ManagerIn::AskMap { from: self.id, known: self.map.version };
        net.send(self.me, (self.at, input));
    }

    /// Something came from a manager.
    pub(crate) fn received(&mut self, net: &Net) {
        self.heard_us = net.now_us();
    }

    /// A map came; whether it is newer.
    pub(crate) fn take(&mut self, map: &Arc<Topology>, net: &mut Net) -> bool {
        let is_newer = map.version > self.map.version;
        if is_newer {
            self.map = map.clone();
            self.fetch_map(net);
        }
        is_newer
    }
}
