//! A proxy's context: where its tasks send calls and hear answers. Tasks are futures that the simulator
//! polls when something arrives for them; there is no other executor, thread or clock.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use larder_env::SeededRng;
use larder_protocol::manager::state::{MapVersion, Topology};
use larder_protocol::placement::pg_of;
use larder_types::{
    Chunk, Extent, Grant, Holders, LvId, ObjectKey, PgId, Request, SessionId, StreamId, View,
};

use crate::agreed::Shared;
use crate::choices::Choices;
use crate::event::{Caller, DataCaller, NodeIn, PgRequest, ProxyEvent, ProxyIn, SimEvent, StoreIn};
use crate::faults::FaultKind;
use crate::index::BUCKET;
use crate::net::Net;
use crate::places::{place, primary_of};
use crate::servers::Server;
use crate::setup::Setup;
use crate::verdict::Finding;

/// A call of a client, under way in a proxy.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Copies that were damaged on purpose: (grant, replica).
pub(crate) type DamagedCopies = Rc<RefCell<BTreeSet<(Grant, usize)>>>;

enum Out {
    PgRequest { node: usize, input: NodeIn },
    Store { store: usize, input: StoreIn, slow_us: u64 },
    Wake { task: u64, at_us: u64 },
    Strikes(FaultKind),
    Counts(&'static str),
    Found(Finding),
}

struct State {
    proxy: usize,
    session: SessionId,
    now_us: u64,
    rng: SeededRng,
    next_token: u64,
    next_number: u64,
    next_stream: u64,
    open: BTreeSet<u64>,
    inbox: BTreeMap<u64, VecDeque<ProxyEvent>>,
    owner: BTreeMap<u64, u64>,
    polled: u64,
    out: Vec<Out>,
    /// Primary and view of each PG as last looked up.
    primaries: Vec<(usize, View)>,
    /// The latest map.
    map: Arc<Topology>,
    setup: Arc<Setup>,
    rotten: DamagedCopies,
    agreed: Shared,
    reads: Choices,
    /// No put is slow or dropped on purpose any more.
    is_good: bool,
    was_full: bool,
}

/// See the module's head. Cloned into each task.
#[derive(Clone)]
pub(crate) struct ProxyContext(Rc<RefCell<State>>);

impl ProxyContext {
    pub(crate) fn new(
        proxy: usize,
        seed: u64,
        setup: &Arc<Setup>,
        rotten: &DamagedCopies,
        agreed: &Shared,
    ) -> Self {
        let mut rng = SeededRng::new(seed);
        let session = SessionId(rng.next_u64());
        Self(Rc::new(RefCell::new(State {
            proxy,
            session,
            now_us: 0,
            rng,
            next_token: 1,
            next_number: 1,
            next_stream: 1,
            open: BTreeSet::new(),
            inbox: BTreeMap::new(),
            owner: BTreeMap::new(),
            polled: 0,
            out: Vec::new(),
            primaries: vec![(0, View(0)); setup.pgs as usize],
            map: Arc::default(),
            setup: setup.clone(),
            rotten: rotten.clone(),
            agreed: agreed.clone(),
            reads: Choices::new(seed, setup),
            is_good: false,
            was_full: false,
        })))
    }

    pub(crate) fn session(&self) -> SessionId {
        self.0.borrow().session
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.0.borrow().now_us
    }

    /// A number below `bound`.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.0.borrow_mut().rng.below(bound)
    }

    pub(crate) fn one_in(&self, one_in: u64) -> bool {
        self.0.borrow_mut().rng.one_in(one_in)
    }

    /// The bug that a proxy is to have, if any.
    pub(crate) fn bug(&self) -> crate::planted::Driver {
        self.0.borrow().setup.options.bugs.driver
    }

    /// From now on no put is slow or dropped on purpose.
    pub(crate) fn misbehave_no_more(&self) {
        self.0.borrow_mut().is_good = true;
    }

    /// A put was refused for want of space.
    pub(crate) fn note_full(&self) {
        self.0.borrow_mut().was_full = true;
    }

    /// True if one was since this was asked last.
    pub(crate) fn was_full(&self) -> bool {
        std::mem::take(&mut self.0.borrow_mut().was_full)
    }

    /// True if a put is to go wrong on purpose, once in so many times.
    pub(crate) fn misbehaves(&self, one_in: u64) -> bool {
        let mut state = self.0.borrow_mut();
        !state.is_good && state.rng.one_in(one_in)
    }

    /// True if a put is to outlive the age at which its grant is ended.
    pub(crate) fn is_stubborn(&self) -> bool {
        let one_in = self.0.borrow().setup.stubborn_one_in;
        self.misbehaves(one_in)
    }

    /// The calls that its tasks have left open, if any.
    pub(crate) fn under_way(&self) -> Option<String> {
        let state = self.0.borrow();
        let (requests, lines) = (state.open.len(), state.inbox.len());
        let is_idle = requests == 0 && lines == 0;
        (!is_idle).then(|| format!("{requests} requests and {lines} lines are open"))
    }

    pub(crate) fn pg_of(&self, key: &ObjectKey) -> PgId {
        pg_of(BUCKET, key, self.0.borrow().setup.pgs)
    }

    pub(crate) fn pgs(&self) -> impl Iterator<Item = PgId> + use<> {
        (0..self.0.borrow().setup.pgs).map(PgId)
    }

    pub(crate) fn find(&self, finding: Finding) {
        self.0.borrow_mut().out.push(Out::Found(finding));
    }

    /// True if a read of this copy may give wrong bytes. It was damaged, or it lies elsewhere than this proxy knows, to
    /// which managers may not have spoken for long.
    pub(crate) fn may_be_bad(&self, chunk: &Chunk, replica: usize) -> bool {
        let state = self.0.borrow();
        let asked = place(&state.setup, &state.map, chunk.lv, replica);
        let lies = state.agreed.borrow().place(&state.setup, chunk.lv, replica);
        asked != lies || state.rotten.borrow().contains(&(chunk.grant, replica))
    }

    /// Looks at what the proxy's reads know.
    pub(crate) fn with_choices<T>(
        &self,
        look: impl FnOnce(&mut Choices, &Topology, u64) -> T,
    ) -> T {
        let mut guard = self.0.borrow_mut();
        let State { reads, map, now_us, .. } = &mut *guard;
        look(reads, map, *now_us)
    }

    pub(crate) fn count(&self, what: &'static str) {
        self.0.borrow_mut().out.push(Out::Counts(what));
    }

    /// A new request; it is finished when the guard goes.
    pub(crate) fn begin_request(&self) -> OpenRequest {
        let mut state = self.0.borrow_mut();
        let number = state.next_number;
        state.next_number += 1;
        state.open.insert(number);
        let floor = state.open.first().copied().unwrap_or(number);
        let request = Request { session: state.session, number, floor };
        OpenRequest { context: self.clone(), request }
    }

    pub(crate) fn new_stream(&self) -> StreamId {
        let mut state = self.0.borrow_mut();
        state.next_stream += 1;
        StreamId { session: state.session, number: state.next_stream }
    }

    /// The oldest request that is open.
    pub(crate) fn floor(&self) -> u64 {
        let state = self.0.borrow();
        state.open.first().copied().unwrap_or(state.next_number)
    }

    /// The view in which the next call to a PG is made.
    pub(crate) fn view(&self, pg: PgId) -> View {
        self.0.borrow().primaries[pg.0 as usize].1
    }

    /// Where answers of one exchange arrive.
    pub(crate) fn open_line(&self) -> Line {
        let mut state = self.0.borrow_mut();
        let token = state.next_token;
        state.next_token += 1;
        let task = state.polled;
        state.owner.insert(token, task);
        state.inbox.insert(token, VecDeque::new());
        Line { context: self.clone(), token }
    }

    /// Looks up who leads a PG now.
    pub(crate) fn refresh(&self, pg: PgId) {
        let mut state = self.0.borrow_mut();
        state.primaries[pg.0 as usize] = primary_of(&state.map, pg);
    }

    /// Takes a newer map; calls go by it once they look.
    pub(crate) fn take_map(&self, map: &Arc<Topology>) {
        self.0.borrow_mut().map = map.clone();
    }

    /// Tells a primary something that has no answer.
    pub(crate) fn tell(&self, pg: PgId, call: larder_protocol::Call) {
        self.0.borrow_mut().ask(pg, None, PgRequest::Call(call));
    }

    /// Tells a primary that a copy is damaged.
    pub(crate) fn suspect(&self, chunk: &Chunk, replica: usize) {
        let place = {
            let state = self.0.borrow();
            let place = place(&state.setup, &state.map, chunk.lv, replica);
            place.map(|(store, _)| state.setup.id_of(Server::Store(store)))
        };
        if let Some(server) = place {
            let grant = chunk.grant;
            self.tell(grant.pg, larder_protocol::Call::Suspect { grant, server });
        }
    }

    /// Takes a task's step and sends what it wants sent.
    pub(crate) fn poll(&self, id: u64, task: &mut Task, net: &mut Net) -> Poll<()> {
        {
            let mut state = self.0.borrow_mut();
            state.now_us = net.now_us();
            state.polled = id;
        }
        let polled = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.flush(net);
        polled
    }

    /// Sends what was written down.
    pub(crate) fn flush(&self, net: &mut Net) {
        let (proxy, session, out) = {
            let mut state = self.0.borrow_mut();
            (state.proxy, state.session, std::mem::take(&mut state.out))
        };
        for out in out {
            match out {
                Out::PgRequest { node, input } => net.send(Server::Proxy(proxy), (node, input)),
                Out::Store { store, input, slow_us: 0 } => {
                    net.send(Server::Proxy(proxy), (store, input));
                }
                Out::Store { store, input, slow_us } => net.after(slow_us, (store, input)),
                Out::Wake { task, at_us } => {
                    let delay = at_us.saturating_sub(net.now_us());
                    net.after(delay, (proxy, ProxyIn::Wake { session, task }));
                }
                Out::Strikes(fault) => net.soon(SimEvent::Strikes(fault)),
                Out::Counts(what) => net.answers.add(what, 1),
                Out::Found(finding) => net.find(finding),
            }
        }
    }

    /// Puts what arrived where its task finds it; returns the task.
    pub(crate) fn deliver(&self, token: u64, received: ProxyEvent) -> Option<u64> {
        let mut state = self.0.borrow_mut();
        state.inbox.get_mut(&token)?.push_back(received);
        state.owner.get(&token).copied()
    }
}

impl State {
    fn ask(&mut self, pg: PgId, token: Option<u64>, ask: PgRequest) {
        let (node, view) = self.primaries[pg.0 as usize];
        let (proxy, session) = (self.proxy, self.session);
        let caller = token.map(|token| Caller { proxy, session, token });
        self.out.push(Out::PgRequest { node, input: NodeIn::PgRequest { pg, view, caller, ask } });
    }

    fn wake_at(&mut self, at_us: u64) {
        let task = self.polled;
        self.out.push(Out::Wake { task, at_us });
    }
}

/// A request that is under way.
pub(crate) struct OpenRequest {
    context: ProxyContext,
    pub(crate) request: Request,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.context.0.borrow_mut().open.remove(&self.request.number);
    }
}

/// One exchange with the servers.
pub(crate) struct Line {
    context: ProxyContext,
    token: u64,
}

impl Line {
    pub(crate) fn ask(&self, pg: PgId, ask: PgRequest) {
        self.context.0.borrow_mut().ask(pg, Some(self.token), ask);
    }

    /// Writes a put's data to every replica; returns whether they are known: a map older than `as_of` may name those
    /// that were given up.
    pub(crate) fn write(
        &self,
        (grant, lv, extents): (Grant, LvId, &[Extent]),
        (replicas, as_of): (Holders, MapVersion),
        data: &Bytes,
        slow_us: u64,
    ) -> bool {
        let mut state = self.context.0.borrow_mut();
        let caller = DataCaller::Proxy(self.caller(&state));
        let place = |replica| Some((replica, place(&state.setup, &state.map, lv, replica)?.0));
        let Some(places) = replicas.iter().map(place).collect::<Option<Vec<_>>>() else {
            return false;
        };
        if state.map.version < as_of {
            return false;
        }
        for (replica, store) in places {
            let (extents, data) = (extents.to_vec(), data.clone());
            let input = StoreIn::Write { caller, lv, grant, extents, data, replica };
            let slow_us = if slow_us > 0 { slow_us + state.rng.below(slow_us) } else { 0 };
            state.out.push(Out::Store { store, input, slow_us });
        }
        true
    }

    /// The server of a replica goes away for a while, at once.
    pub(crate) fn lose(&self, lv: LvId, replica: usize) {
        let mut state = self.context.0.borrow_mut();
        if let Some((store, _)) = place(&state.setup, &state.map, lv, replica) {
            state.out.push(Out::Strikes(FaultKind::StoreAway(store)));
        }
    }

    pub(crate) fn read(&self, chunk: &Chunk, replica: usize) {
        let mut state = self.context.0.borrow_mut();
        let store = place(&state.setup, &state.map, chunk.lv, replica);
        let caller = DataCaller::Proxy(self.caller(&state));
        let input = StoreIn::Read { caller, chunk: Box::new(chunk.clone()) };
        if let Some((store, _)) = store {
            state.out.push(Out::Store { store, input, slow_us: 0 });
        }
    }

    fn caller(&self, state: &State) -> Caller {
        Caller { proxy: state.proxy, session: state.session, token: self.token }
    }

    /// Waits for the next arrival; `None` if there is none before `until_us`.
    pub(crate) async fn hear(&self, until_us: u64) -> Option<ProxyEvent> {
        self.context.receive_on(&[self.token], until_us).await.map(|(_, received)| received)
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }
}

impl ProxyContext {
    /// Waits for the next arrival on any of these lines, and tells on which; `None` if there is
    /// none before `until_us`.
    pub(crate) async fn receive_on(
        &self,
        lines: &[u64],
        until_us: u64,
    ) -> Option<(usize, ProxyEvent)> {
        let mut asked = false;
        poll_fn(|_| {
            let mut state = self.0.borrow_mut();
            for (at, line) in lines.iter().enumerate() {
                if let Some(received) = state.inbox.get_mut(line).and_then(VecDeque::pop_front) {
                    return Poll::Ready(Some((at, received)));
                }
            }
            if state.now_us >= until_us {
                return Poll::Ready(None);
            }
            if !asked {
                asked = true;
                state.wake_at(until_us);
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut state = self.context.0.borrow_mut();
        state.inbox.remove(&self.token);
        state.owner.remove(&self.token);
    }
}
