//! Servers that are there for the managers: they say so, and are told when the managers do not know them.

use std::sync::Arc;

use bytes::Bytes;
use larder_identity::{Role, Roles};
use larder_net::simulated::Network;
use larder_net::{Endpoint, Handler, Listener, PeerIdentity, Responder, Services};
use larder_protocol::manager::policy::ManagerMessage;
use larder_types::ServerId;
use parking_lot::Mutex;

use super::super::managers::BOOT;
use super::super::{address, subject};
use crate::managers::{Managers, Presence, Run};
use crate::wire::{ProxyCall, ProxyMessage, ProxyReply, ProxyService};

/// See the module's head.
#[derive(Default)]
pub(super) struct StubServers(Mutex<Vec<Listener>>);

/// The face through which managers tell a proxy.
struct ProxyFrontend(Presence);

impl Handler<ProxyService> for ProxyFrontend {
    fn request(
        &self,
        _: &PeerIdentity,
        _: ProxyCall,
        _: Bytes,
        responder: Responder<ProxyService>,
    ) {
        responder.answer(&ProxyReply::NotGateway, Bytes::new());
    }

    fn message(&self, _: &PeerIdentity, message: ProxyMessage, _: Bytes) {
        let ProxyMessage::Manager(message) = message;
        if message == ManagerMessage::WhoAreYou {
            self.0.who_are_you();
        }
    }
}

impl StubServers {
    /// Has a proxy listen, and say that it is there.
    pub(super) fn settle(
        &self,
        id: ServerId,
        endpoint: &Arc<Endpoint>,
        network: &Arc<Network>,
        managers: Arc<dyn Managers>,
    ) {
        let addresses = vec![address(id.0).to_string()];
        let run = Run { server: id, boot: BOOT, addresses, has: Vec::new() };
        let face = ProxyFrontend(Presence::start(managers, run));
        let services = Services::new().with::<ProxyService>(Roles::of(&[Role::Manager]), face);
        let arrivals = network.host(subject(id.0, Role::Proxy)).listen(address(id.0));
        self.0.lock().push(Listener::start(endpoint, arrivals, services).expect("it listens"));
    }
}
