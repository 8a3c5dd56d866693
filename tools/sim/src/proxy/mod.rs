//! A proxy: runs its clients' calls as tasks, each of them the proxy's half of "A put" or "A get"
//! in `ARCHITECTURE.md`.

pub(crate) mod append;
mod coalesce;
pub(crate) mod get;
pub(crate) mod large;
pub(crate) mod put;

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::{Answer, AppendRefusal, Call, Refusal};
use larder_types::{BootId, Condition, EtagList, PgId, View};

use crate::agreed::Shared;
use crate::clock::MS;
use crate::content::etag_of;
use crate::event::{FromManagers, NodeIn, PgRequest, ProxyEvent, ProxyIn};
use crate::history::{CallCondition, CallResult};
use crate::managers::{Managers, PRESENCE_US};
use crate::net::Net;
use crate::proxy_context::{DamagedCopies, ProxyContext, Task};
use crate::servers::Server;
use crate::setup::Setup;

/// Microseconds after which a client gets no answer any more.
pub(crate) const TIMEOUT_US: u64 = 4_000 * MS;
/// Microseconds after which a request that was not answered is repeated.
pub(crate) const REPEAT_US: u64 = 500 * MS;
/// Microseconds between two times that a proxy says which of its requests are finished.
const FLOOR_US: u64 = 700 * MS;

/// The state of a proxy's session with the managers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Session {
    Begun,
    Open,
    Closed,
}

/// A proxy's run; another begins with another session.
pub(crate) struct Proxy {
    id: usize,
    /// Meta servers of the cluster.
    nodes: usize,
    boot: BootId,
    managers: Managers,
    session: Session,
    pub(crate) context: ProxyContext,
    tasks: BTreeMap<u64, (usize, Task)>,
    next_task: u64,
    is_up: bool,
}

impl Proxy {
    pub(crate) fn new(
        id: usize,
        setup: &Arc<Setup>,
        rotten: &DamagedCopies,
        agreed: &Shared,
        net: &mut Net,
    ) -> Self {
        let context = ProxyContext::new(id, net.rng.next_u64(), setup, rotten, agreed);
        let session = context.session();
        let boot = BootId(net.rng.next_u64());
        net.soon((id, ProxyIn::Beat { session }));
        net.after(FLOOR_US, (id, ProxyIn::Floor { session }));
        Self {
            id,
            nodes: setup.machines,
            boot,
            managers: Managers::new(Server::Proxy(id), boot, setup, net),
            session: Session::Begun,
            context,
            tasks: BTreeMap::new(),
            next_task: 1,
            is_up: true,
        }
    }

    /// True if it takes calls: the managers know its session.
    pub(crate) fn serves(&self) -> bool {
        self.is_up && self.session == Session::Open
    }

    /// True if the managers have closed its session, or never will open it: nothing that it asks for will be done.
    pub(crate) fn is_shut_out(&self) -> bool {
        self.is_up && self.session == Session::Closed
    }

    /// The work it has under way for clients, if any.
    pub(crate) fn under_way(&self) -> Option<String> {
        let tasks = self.tasks.len();
        if tasks > 0 {
            return Some(format!("{tasks} tasks run"));
        }
        self.context.under_way()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    /// The process is gone: nothing that it had under way is ended in any order. Returns the clients
    /// that get no answer.
    pub(crate) fn die(&mut self) -> Vec<usize> {
        self.is_up = false;
        std::mem::take(&mut self.tasks).into_values().map(|(client, _)| client).collect()
    }

    /// Begins a client's call; returns the client if it is done already.
    pub(crate) fn begin(&mut self, client: usize, task: Task, net: &mut Net) -> Option<usize> {
        assert!(self.serves(), "clients call proxies that serve");
        let id = self.next_task;
        self.next_task += 1;
        self.tasks.insert(id, (client, task));
        self.poll(id, net)
    }

    /// Takes what arrives; returns a client whose call is done.
    pub(crate) fn handle(&mut self, input: ProxyIn, net: &mut Net) -> Option<usize> {
        let own = self.context.session();
        match input {
            ProxyIn::ProxyEvent { session, token, received } if session == own && self.is_up => {
                let orphan = match &received {
                    ProxyEvent::Answer(Answer::Granted { grant, .. }, _) => Some(*grant),
                    _ => None,
                };
                let Some(task) = self.context.deliver(token, received) else {
                    // Nobody waits for this grant any more.
                    if let Some(grant) = orphan {
                        self.context.abandon(grant.pg, grant.op);
                        self.context.flush(net);
                    }
                    return None;
                };
                self.poll(task, net)
            }
            ProxyIn::Wake { session, task } if session == own && self.is_up => self.poll(task, net),
            ProxyIn::Managers(what) if self.is_up => {
                self.hear_managers(what, net);
                None
            }
            ProxyIn::Beat { session } if session == own && self.is_up => {
                self.beat(net);
                None
            }
            ProxyIn::Floor { session } if session == own && self.is_up => {
                let floor = self.context.floor();
                for node in 0..self.nodes {
                    net.send(Server::Proxy(self.id), (node, NodeIn::Floor { session, floor }));
                }
                net.after(FLOOR_US, (self.id, ProxyIn::Floor { session }));
                None
            }
            _ => None,
        }
    }

    fn beat(&mut self, net: &mut Net) {
        let (boot, session) = (self.boot, self.context.session());
        net.after(PRESENCE_US, (self.id, ProxyIn::Beat { session }));
        if self.managers.observes_own_map() {
            self.managers.say(ServerMessage::Heartbeat(boot), net);
        } else {
            self.managers.say(ServerMessage::Started(boot, Vec::new(), Vec::new()), net);
        }
        self.begin_session(net);
        self.managers.beat(net);
    }

    fn begin_session(&self, net: &mut Net) {
        if self.session == Session::Begun && self.managers.observes_own_map() {
            let message = ServerMessage::SessionBegun(self.boot, self.context.session());
            self.managers.say(message, net);
        }
    }

    fn hear_managers(&mut self, what: FromManagers, net: &mut Net) {
        self.managers.received(net);
        let map = match what {
            FromManagers::Map(map) => map,
            FromManagers::Says(ManagerMessage::WhoAreYou) => {
                let message = ServerMessage::Started(self.boot, Vec::new(), Vec::new());
                self.managers.say(message, net);
                return;
            }
            FromManagers::Says(_) => return,
        };
        if !self.managers.take(&map, net) {
            return;
        }
        self.context.take_map(&map);
        let own = self.context.session();
        if self.managers.observes_other_map() {
            self.session = Session::Closed;
        } else if map.sessions.contains_key(&own) {
            self.session = Session::Open;
        } else if self.session == Session::Open || map.closed.iter().any(|(_, of)| *of == own) {
            self.session = Session::Closed;
        }
        self.begin_session(net);
    }

    fn poll(&mut self, id: u64, net: &mut Net) -> Option<usize> {
        let (client, task) = self.tasks.get_mut(&id)?;
        if self.context.poll(id, task, net).is_pending() {
            return None;
        }
        let client = *client;
        self.tasks.remove(&id);
        self.context.flush(net);
        Some(client)
    }
}

/// The protocol's form of a condition.
pub(crate) fn condition_of(on: CallCondition) -> Condition {
    let mut condition = Condition::default();
    match on {
        CallCondition::Always => {}
        CallCondition::Absent => condition.if_none_match = Some(EtagList::Any),
        CallCondition::Present => condition.if_match = Some(EtagList::Any),
        CallCondition::Value(value) => {
            condition.if_match = Some(EtagList::Of(vec![etag_of(value).text()]));
        }
    }
    condition
}

/// The answer that a refusal gives the client. Only a sure refusal counts as not done.
pub(crate) fn refused(refusal: Refusal) -> CallResult {
    match refusal {
        Refusal::PreconditionFailed => CallResult::Unmet,
        Refusal::NoSuchKey => CallResult::NoSuchKey,
        Refusal::StaleBucket
        | Refusal::NoSuchUpload
        | Refusal::InvalidPart(_)
        | Refusal::StreamIncomplete
        | Refusal::Revoked
        | Refusal::Full
        | Refusal::Beaten
        | Refusal::NoRegion
        | Refusal::InRegion => CallResult::Refused,
        Refusal::Busy
        | Refusal::NotPrimary
        | Refusal::Finished
        | Refusal::DiskFailed
        | Refusal::TooFewCopies
        | Refusal::InDoubt
        | Refusal::IndexDamaged
        | Refusal::Append(AppendRefusal::PlaceForgotten) => CallResult::Unknown,
        Refusal::Append(AppendRefusal::Offset { size }) => CallResult::Ends(size),
        Refusal::Append(_) => CallResult::Refused,
    }
}

impl ProxyContext {
    /// Makes a call that becomes an op at once, repeating it while that is safe. `Err` if it was
    /// refused or not answered.
    pub(crate) async fn op(&self, pg: PgId, call: Call) -> Result<Answer, CallResult> {
        match self.exchange(pg, PgRequest::Call(call)).await {
            Some(ProxyEvent::Answer(Answer::Refused(refusal), _)) => Err(refused(refusal)),
            Some(ProxyEvent::Answer(answer, _)) => Ok(answer),
            _ => Err(CallResult::Unknown),
        }
    }

    /// Asks until there is an answer other than that another server leads.
    pub(crate) async fn exchange(&self, pg: PgId, ask: PgRequest) -> Option<ProxyEvent> {
        let line = self.open_line();
        let end_us = self.now_us() + TIMEOUT_US;
        let (mut repeat_us, mut asked) = (0, View(0));
        loop {
            if self.now_us() >= repeat_us {
                if self.now_us() >= end_us {
                    return None;
                }
                asked = asked.max(self.view(pg));
                line.ask(pg, ask.clone());
                repeat_us = self.now_us() + REPEAT_US;
            }
            match line.hear(repeat_us.min(end_us)).await {
                // A view in which it was asked later may have done it after all.
                Some(ProxyEvent::Answer(Answer::Refused(_), view)) if view < asked => {}
                Some(ProxyEvent::Answer(Answer::Refused(Refusal::NotPrimary), _)) => {
                    // The next round goes to the primary of that time.
                    self.refresh(pg);
                }
                Some(received) => return Some(received),
                None => self.refresh(pg),
            }
        }
    }
}
