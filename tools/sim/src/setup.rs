//! The circumstances of a run: the cluster, its weather, the faults to come.

use larder_protocol::scheduler::Policy;
use larder_protocol::space::Fragmentation;
use larder_types::ServerId;

use crate::clock::{Clock, MS};
use crate::faults::Fault;
use crate::links::OF_KIND_MAX;
use crate::mix::Mix;
use crate::planted::Bugs;
use crate::servers::Server;
use crate::trace::Text;

/// The options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Members of each placement group: 1 or 3.
    pub members: usize,
    /// Machines of a cluster, from `members` to [`MACHINES_MAX`]; drawn if not given.
    pub machines: Option<usize>,
    /// Calls of clients.
    pub ops: u32,
    /// Large ops, so that batches cross from one segment of the log into the next. One in
    /// [`HEAVY_ONE_IN`] seeds has them anyway.
    pub heavy_log: bool,
    /// Members that often go and come. One in [`RESTLESS_ONE_IN`] seeds of several members has them
    /// anyway.
    pub restless: bool,
    /// Primaries of every other view serve above their high-water marks before the rows are read, and some runs of servers
    /// are of a release that knows no marks.
    pub early: bool,
    /// Pieces of objects that were appended to are coalesced. One in [`COALESCING_ONE_IN`] seeds does so anyway.
    pub coalesces: bool,
    /// Bugs to be found.
    pub bugs: Bugs,
    /// Text to be kept.
    pub text: Text,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            members: 1,
            machines: None,
            ops: 500,
            heavy_log: false,
            restless: false,
            early: false,
            coalesces: false,
            bugs: Bugs::default(),
            text: Text::None,
        }
    }
}

/// One in so many messages is lost, doubled, late or very late; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageFaults {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) late: u64,
    pub(crate) very_late: u64,
}

/// A run's circumstances.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) options: Options,
    /// Machines, each with a meta server and a data server.
    pub(crate) machines: usize,
    pub(crate) replicas: usize,
    pub(crate) pgs: u32,
    /// Managers, each on one of the machines.
    pub(crate) managers: usize,
    /// Clocks of all servers.
    pub(crate) clocks: Vec<Clock>,
    /// Proxies; with `proxy_inside` the only one lives and dies with the only machine.
    pub(crate) proxies: usize,
    pub(crate) proxy_inside: bool,
    pub(crate) clients: usize,
    /// Longest pause of a client between two calls, in microseconds. Where it is long, what the managers do takes
    /// place among calls and not between them.
    pub(crate) pause_us: u64,
    pub(crate) keys: usize,
    pub(crate) pvs_per_disk: u32,
    /// Bytes of attributes that some puts carry, to fill the log.
    pub(crate) ballast: usize,
    /// One in so many puts outlives the age at which its grant is ended.
    pub(crate) stubborn_one_in: u64,
    pub(crate) message_faults: MessageFaults,
    /// The fragmentation at which LVs are compacted.
    pub(crate) fragmentation: Fragmentation,
    /// The policy by which proxies choose the replicas that they read.
    pub(crate) read_policy: Policy,
    /// Pieces of objects that were appended to are coalesced.
    pub(crate) coalesces: bool,
    pub(crate) mix: Mix,
    pub(crate) faults: Vec<Fault>,
    /// Milliseconds since 1970 at the start.
    pub(crate) epoch_ms: u64,
}

/// Most machines of a cluster.
pub const MACHINES_MAX: usize = 15;
const _: () = assert!(MACHINES_MAX <= OF_KIND_MAX, "every machine has its servers in a set");
/// One in so many seeds of several members has a wide cluster, of up to [`MACHINES_MAX`] machines.
pub const WIDE_ONE_IN: u64 = 16;
/// One in so many seeds has proxies that coalesce pieces.
pub const COALESCING_ONE_IN: u64 = 3;
/// One in so many seeds has large ops.
pub const HEAVY_ONE_IN: u64 = 40;
/// One in so many seeds of several members has members that often go and come.
pub const RESTLESS_ONE_IN: u64 = 8;

impl Setup {
    /// The number of servers of the map: first the meta servers, then the data servers, the proxies and the managers.
    /// Those of one machine share its failure domain.
    pub(crate) fn servers(&self) -> usize {
        2 * self.machines + self.proxies + self.managers
    }

    pub(crate) fn id_of(&self, server: Server) -> ServerId {
        let id = match server {
            Server::Node(at) => at,
            Server::Store(at) => self.machines + at,
            Server::Proxy(at) => 2 * self.machines + at,
            Server::Manager(at) => 2 * self.machines + self.proxies + at,
        };
        ServerId(id as u32)
    }

    /// # Panics
    /// If there is no such server.
    pub(crate) fn server(&self, id: ServerId) -> Server {
        let at = id.0 as usize;
        let (stores, proxies) = (self.machines, 2 * self.machines);
        let managers = proxies + self.proxies;
        match at {
            _ if at < stores => Server::Node(at),
            _ if at < proxies => Server::Store(at - stores),
            _ if at < managers => Server::Proxy(at - proxies),
            _ if at < self.servers() => Server::Manager(at - managers),
            _ => panic!("there is no server {id}"),
        }
    }

    pub(crate) fn all_servers(&self) -> impl Iterator<Item = Server> {
        (0..self.servers()).map(|id| self.server(ServerId(id as u32)))
    }

    /// The machine on which a server runs; proxies are on machines of their own.
    pub(crate) fn machine_of(&self, server: Server) -> usize {
        match server {
            Server::Node(at) | Server::Store(at) | Server::Manager(at) => at,
            Server::Proxy(at) => self.machines + at,
        }
    }

    /// The time by a server's clock that never jumps, in milliseconds.
    pub(crate) fn clock_ms(&self, server: ServerId, now_us: u64) -> u64 {
        let Clock { offset_ms, per_mille } = self.clocks[server.0 as usize];
        offset_ms + now_us * per_mille / 1000 / MS
    }
}
