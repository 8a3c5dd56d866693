//! The manager: views, LVs and sessions. Durable and never down here; what it says is late, lost or
//! doubled like everything else.
//!
//! # Invariants
//!
//! 1. A view begins at each restart of a primary, at each restart of a data server of the PG, when a
//!    member goes or comes, and when the seed says so; with another primary only after the old one's
//!    lease has run out or its process is gone.
//! 2. Only a member of the latest activated view that has not lost anything since leads, and no view
//!    is without one.
//! 3. A member is let go only while enough others are there; one that returns learns first.
//! 4. An LV belongs to one PG for ever. A PG hears of it when all its PVs are there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use larder_protocol::{LvInfo, Replica};
use larder_types::{BootId, LvId, OpId, PgId, PvId, ServerId, SessionId, View};

use crate::happening::{ManagerIn, NodeIn, StoreIn};
use crate::net::{MS, Net};
use crate::setup::Setup;
use crate::store::LV_BLOCKS;

/// Microseconds for which a primary may tell what is there.
const LEASE_US: u64 = 600 * MS;
/// Between two rounds of the manager's own work.
const TICK_US: u64 = 200 * MS;
/// Microseconds without a word from a meta server after which it is taken for dead.
pub(crate) const SILENCE_US: u64 = 1_200 * MS;
/// Replicas of a narrow LV, which is made where there are not enough data servers for a wide one.
const REPLICAS_MIN: usize = 2;
/// Members without which a PG takes nothing.
const MEMBERS_MIN: usize = 2;

/// What proxies look up: the primary of each PG and the run of each meta server.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    pub(crate) primary: Vec<(usize, View)>,
    pub(crate) runs: Vec<BootId>,
    /// Data servers of each LV's replicas.
    pub(crate) places: BTreeMap<LvId, Vec<usize>>,
}

struct PgState {
    view: View,
    /// Primary first.
    members: Vec<usize>,
    /// Who should be members.
    target: Vec<usize>,
    /// The latest view that was activated, and those of its members that still have all of it.
    activated: View,
    qualified: BTreeSet<usize>,
    /// Members that lost everything in the present view.
    lost: BTreeSet<usize>,
    told: BTreeSet<(usize, BootId)>,
    lease_until_us: u64,
    /// The primary to be, once the lease has run out.
    wanted: Option<usize>,
    /// Who waits for an LV.
    wants_lv: Option<(usize, BootId)>,
}

struct Lv {
    pg: PgId,
    places: Vec<(usize, PvId)>,
    created: BTreeSet<usize>,
}

/// See the module's head.
pub(crate) struct Manager {
    setup: Arc<Setup>,
    pgs: Vec<PgState>,
    store_boots: Vec<BootId>,
    stores_up: BTreeSet<usize>,
    lvs: Vec<Lv>,
    next_pv: Vec<u32>,
    sessions: BTreeMap<usize, SessionId>,
    closed: Vec<SessionId>,
    heard_us: Vec<Option<u64>>,
    pub(crate) routes: Rc<RefCell<Routes>>,
}

impl Manager {
    pub(crate) fn new(setup: &Arc<Setup>, net: &mut Net) -> Self {
        let machines = setup.machines;
        let pgs = (0..setup.pgs as usize).map(|pg| {
            let members = 0..setup.options.members;
            let target: Vec<usize> = members.map(|member| (member + pg) % machines).collect();
            PgState {
                view: View(0),
                members: target.clone(),
                qualified: target.iter().copied().collect(),
                activated: View(0),
                lost: BTreeSet::new(),
                target,
                told: BTreeSet::new(),
                lease_until_us: 0,
                wanted: None,
                wants_lv: None,
            }
        });
        let pgs: Vec<PgState> = pgs.collect();
        net.after(TICK_US, ManagerIn::Tick);
        let routes = Routes {
            primary: pgs.iter().map(|pg| (pg.members[0], View(0))).collect(),
            runs: vec![BootId(0); machines],
            ..Routes::default()
        };
        Self {
            setup: setup.clone(),
            pgs,
            store_boots: vec![BootId(0); machines],
            stores_up: BTreeSet::new(),
            lvs: Vec::new(),
            next_pv: vec![0; machines],
            sessions: BTreeMap::new(),
            closed: Vec::new(),
            heard_us: vec![None; machines],
            routes: Rc::new(RefCell::new(routes)),
        }
    }

    pub(crate) fn handle(&mut self, input: ManagerIn, net: &mut Net) {
        match input {
            ManagerIn::NodeUp { node, boot, last } => self.node_up(node, boot, &last, net),
            ManagerIn::Beat { node, boot } => {
                if self.routes.borrow().runs[node] == boot {
                    self.heard_us[node] = Some(net.now_us());
                }
            }
            ManagerIn::CaughtUp { node, boot, pg, view, learner } => {
                if self.leads(node, boot, pg) {
                    self.caught_up(pg, view, learner.0 as usize, net);
                }
            }
            ManagerIn::StoreUp { store, boot } => self.store_up(store, boot, net),
            ManagerIn::StoreDown { store, boot } => {
                if self.store_boots[store] == boot {
                    self.stores_up.remove(&store);
                }
            }
            ManagerIn::ProxyUp { proxy, session } => {
                if let Some(dead) = self.sessions.insert(proxy, session) {
                    self.closed.push(dead);
                    let runs = self.routes.borrow().runs.clone();
                    for (node, run) in runs.into_iter().enumerate() {
                        net.send((node, NodeIn::Closed { run, session: dead }));
                    }
                }
            }
            ManagerIn::Told { pg, view, node, boot } => {
                let state = &mut self.pgs[pg.0 as usize];
                if state.view == view {
                    state.told.insert((node, boot));
                }
            }
            ManagerIn::Active { node, boot, pg, view } => {
                if self.leads(node, boot, pg) && self.pgs[pg.0 as usize].view == view {
                    let state = &mut self.pgs[pg.0 as usize];
                    if state.activated < view {
                        state.activated = view;
                        let has_all = |member: &usize| !state.lost.contains(member);
                        state.qualified = state.members.iter().copied().filter(has_all).collect();
                    }
                    let lvs = self.lvs_of(pg);
                    let sessions = self.sessions.values().copied().collect();
                    net.send((node, NodeIn::Space { run: boot, pg, view, lvs, sessions }));
                }
            }
            ManagerIn::NeedLv { node, boot, pg } => {
                if self.leads(node, boot, pg) {
                    self.pgs[pg.0 as usize].wants_lv = Some((node, boot));
                    self.draw_lv(pg, net);
                }
            }
            ManagerIn::Created { lv, replica } => self.created(lv, replica, net),
            ManagerIn::Renew { node, boot, pg, view, sent_us } => {
                let leads = self.leads(node, boot, pg);
                let state = &mut self.pgs[pg.0 as usize];
                if leads && state.view == view && state.wanted.is_none() {
                    let until_us = sent_us + LEASE_US;
                    state.lease_until_us = state.lease_until_us.max(until_us);
                    net.send_lossy((node, NodeIn::Lease { run: boot, pg, view, until_us }));
                }
            }
            ManagerIn::Tick => {
                for pg in (0..self.setup.pgs).map(PgId) {
                    self.go_on(pg, net);
                }
                self.create_missing(net);
                net.after(TICK_US, ManagerIn::Tick);
            }
        }
    }

    fn leads(&self, node: usize, boot: BootId, pg: PgId) -> bool {
        self.pgs[pg.0 as usize].members[0] == node && self.routes.borrow().runs[node] == boot
    }

    fn node_up(&mut self, node: usize, boot: BootId, last: &[Option<OpId>], net: &mut Net) {
        {
            let mut routes = self.routes.borrow_mut();
            if routes.runs[node] == boot {
                return;
            }
            routes.runs[node] = boot;
        }
        self.heard_us[node] = Some(net.now_us());
        for &session in &self.closed {
            net.send((node, NodeIn::Floor { session, floor: u64::MAX }));
        }
        for pg in (0..self.setup.pgs).map(PgId) {
            let now_us = net.now_us();
            let state = &mut self.pgs[pg.0 as usize];
            // Every op of the activated view's start on is durable on all its members.
            let has_all = last[pg.0 as usize].is_some_and(|last| last.view >= state.activated);
            if !has_all && state.qualified.remove(&node) {
                state.lost.insert(node);
                net.faults.add("members that lost everything", 1);
            }
            if state.members[0] == node {
                // Whoever led here is dead, and its lease with it.
                state.lease_until_us = now_us;
                let wanted = state.wanted.take().filter(|to| state.qualified.contains(to));
                if let Some(primary) = wanted.or(state.qualified.contains(&node).then_some(node)) {
                    self.begin_view(pg, primary, net);
                }
            } else if state.members.contains(&node) {
                self.tell(pg, node, net);
            }
        }
    }

    fn is_alive(&self, node: usize, net: &Net) -> bool {
        self.heard_us[node].is_some_and(|heard_us| heard_us + SILENCE_US > net.now_us())
    }

    /// Lets go of members that are gone or have nothing, as far as enough others are there.
    fn let_go(&mut self, pg: PgId, net: &mut Net) -> bool {
        let state = &self.pgs[pg.0 as usize];
        let has_all = |node: &usize| {
            self.is_alive(*node, net)
                && (state.activated < state.view || state.qualified.contains(node))
        };
        let left: Vec<usize> = state.members.iter().copied().filter(has_all).collect();
        let leader = left.iter().find(|node| state.qualified.contains(*node)).copied();
        let Some(primary) = leader else { return false };
        let leads_on = primary == state.members[0];
        if left.len() == state.members.len() || left.len() < MEMBERS_MIN.min(state.target.len()) {
            return false;
        }
        if !leads_on && state.lease_until_us >= net.now_us() {
            return false;
        }
        net.faults.add("members let go", (state.members.len() - left.len()) as u64);
        self.pgs[pg.0 as usize].members = left;
        self.begin_view(pg, primary, net);
        true
    }

    /// A learner has what the members have: it becomes one.
    fn caught_up(&mut self, pg: PgId, view: View, learner: usize, net: &mut Net) {
        let alive = self.is_alive(learner, net);
        let state = &mut self.pgs[pg.0 as usize];
        let wanted = state.target.contains(&learner) && !state.members.contains(&learner);
        if state.view == view && state.activated == view && wanted && alive {
            state.members.push(learner);
            let primary = state.members[0];
            net.faults.add("members that returned", 1);
            self.begin_view(pg, primary, net);
        }
    }

    fn store_up(&mut self, store: usize, boot: BootId, net: &mut Net) {
        if self.store_boots[store] == boot {
            return;
        }
        self.store_boots[store] = boot;
        self.stores_up.insert(store);
        self.create_missing(net);
        let concerned: BTreeSet<PgId> = self
            .lvs
            .iter()
            .filter(|lv| lv.places.iter().any(|(at, _)| *at == store))
            .map(|lv| lv.pg)
            .collect();
        for pg in concerned {
            let state = &self.pgs[pg.0 as usize];
            let primary = state.members[0];
            // Else another leads soon, in a view of its own.
            if state.view > View(0) && state.qualified.contains(&primary) {
                self.begin_view(pg, primary, net);
            }
        }
    }

    /// Has another member lead, once the present primary's lease has run out.
    pub(crate) fn rotate(&mut self, pg: PgId, to: usize) {
        let state = &mut self.pgs[pg.0 as usize];
        state.wanted = Some(state.target[to % state.target.len()]);
    }

    fn begin_view(&mut self, pg: PgId, primary: usize, net: &mut Net) {
        let state = &mut self.pgs[pg.0 as usize];
        assert!(state.qualified.contains(&primary), "who leads has all of the latest active view");
        state.view = View(state.view.0 + 1);
        let at = state.members.iter().position(|member| *member == primary).unwrap_or(0);
        state.members.swap(0, at);
        state.told.clear();
        state.lost.clear();
        state.wants_lv = None;
        self.routes.borrow_mut().primary[pg.0 as usize] = (primary, state.view);
        net.faults.add("views begun", 1);
        let members = self.pgs[pg.0 as usize].members.clone();
        net.say(format_args!("manager: pg {pg}: view {:?}, members {members:?}", self.view(pg)));
        for node in members {
            self.tell(pg, node, net);
        }
    }

    pub(crate) fn view(&self, pg: PgId) -> View {
        self.pgs[pg.0 as usize].view
    }

    /// Members of a PG, primary first, once all are back.
    pub(crate) fn whole(&self, pg: PgId) -> Option<&[usize]> {
        let state = &self.pgs[pg.0 as usize];
        (state.members.len() == state.target.len() && state.activated == state.view)
            .then_some(&state.members[..])
    }

    /// Whether a meta server may lose everything though `lost` have too, of which the manager knows
    /// nothing yet: each of its PGs has two other members with all of it.
    pub(crate) fn can_spare(&self, node: usize, lost: &BTreeSet<usize>) -> bool {
        let has_all = |pg: &PgState, member: usize| {
            member != node && pg.qualified.contains(&member) && !lost.contains(&member)
        };
        self.pgs.iter().filter(|pg| pg.target.contains(&node)).all(|pg| {
            let others = pg.members.iter().filter(|member| has_all(pg, **member));
            pg.activated == pg.view && others.count() >= MEMBERS_MIN
        })
    }

    fn tell(&self, pg: PgId, node: usize, net: &mut Net) {
        let state = &self.pgs[pg.0 as usize];
        let boot = self.routes.borrow().runs[node];
        if state.view > View(0) {
            let members = state.members.iter().map(|member| ServerId(*member as u32)).collect();
            net.send_lossy((node, NodeIn::NewView { pg, view: state.view, members, boot }));
        }
    }

    /// What the manager does for a PG from time to time.
    fn go_on(&mut self, pg: PgId, net: &mut Net) {
        let state = &self.pgs[pg.0 as usize];
        if state.view == View(0) {
            return;
        }
        if let Some(primary) = state.wanted
            && state.lease_until_us < net.now_us()
        {
            let can_lead = state.qualified.contains(&primary) && state.members.contains(&primary);
            self.pgs[pg.0 as usize].wanted = None;
            if can_lead {
                self.begin_view(pg, primary, net);
                return;
            }
        }
        if self.let_go(pg, net) || self.lead_anew(pg, net) {
            return;
        }
        let state = &self.pgs[pg.0 as usize];
        if !state.qualified.contains(&state.members[0]) {
            // It came back with nothing: it must not hear that it leads.
            return;
        }
        for &node in &state.members {
            let boot = self.routes.borrow().runs[node];
            if !state.told.contains(&(node, boot)) {
                self.tell(pg, node, net);
            }
        }
        let primary = ServerId(state.members[0] as u32);
        for &node in state.target.iter().filter(|node| !state.members.contains(node)) {
            let (boot, view) = (self.routes.borrow().runs[node], state.view);
            net.send_lossy((node, NodeIn::Learn { pg, view, primary, boot }));
        }
    }

    /// A primary that lost everything does not lead again, though too few others are there to let it go.
    fn lead_anew(&mut self, pg: PgId, net: &mut Net) -> bool {
        let state = &self.pgs[pg.0 as usize];
        if state.qualified.contains(&state.members[0]) || state.lease_until_us > net.now_us() {
            return false;
        }
        let can_lead =
            |node: &&usize| state.qualified.contains(*node) && self.is_alive(**node, net);
        let Some(&primary) = state.members.iter().find(can_lead) else { return false };
        self.begin_view(pg, primary, net);
        true
    }

    fn draw_lv(&mut self, pg: PgId, net: &mut Net) {
        let comes = |lv: &Lv| {
            lv.pg == pg
                && lv.created.len() < lv.places.len()
                && lv.places.iter().all(|(store, _)| self.stores_up.contains(store))
        };
        if self.lvs.iter().any(comes) {
            return;
        }
        let machines = self.setup.machines;
        let first = self.lvs.len() % machines;
        let places: Vec<(usize, PvId)> = (0..machines)
            .map(|offset| (first + offset) % machines)
            .filter(|store| self.next_pv[*store] < self.setup.pvs_per_disk)
            .filter(|store| self.stores_up.contains(store))
            .map(|store| (store, PvId(self.next_pv[store])))
            .take(self.setup.replicas)
            .collect();
        let Some((node, run)) = self.pgs[pg.0 as usize].wants_lv else { return };
        let lacks_servers = self.stores_up.len() < self.setup.replicas;
        let wanted = if lacks_servers { REPLICAS_MIN } else { self.setup.replicas };
        if places.len() < self.setup.replicas && places.len() >= wanted {
            net.faults.add("narrow volumes", 1);
        }
        if places.len() < wanted.min(self.setup.replicas) {
            net.faults.add("pool empty", 1);
            net.send((node, NodeIn::PoolEmpty { run, pg }));
            return;
        }
        for (store, _) in &places {
            self.next_pv[*store] += 1;
        }
        let lv = LvId(self.lvs.len() as u32);
        let stores = places.iter().map(|(store, _)| *store).collect();
        self.routes.borrow_mut().places.insert(lv, stores);
        self.lvs.push(Lv { pg, places, created: BTreeSet::new() });
        self.create_missing(net);
    }

    /// Asks for the PVs that are not known to be there.
    fn create_missing(&self, net: &mut Net) {
        for (index, lv) in self.lvs.iter().enumerate() {
            for (replica, (store, pv)) in lv.places.iter().enumerate() {
                if !lv.created.contains(&replica) {
                    let lv = LvId(index as u32);
                    net.send_lossy((*store, StoreIn::Create { pv: *pv, lv, replica }));
                }
            }
        }
    }

    fn created(&mut self, id: LvId, replica: usize, net: &mut Net) {
        let lv = &mut self.lvs[id.0 as usize];
        if !lv.created.insert(replica) || lv.created.len() < lv.places.len() {
            return;
        }
        let pg = lv.pg;
        if let Some((node, run)) = self.pgs[pg.0 as usize].wants_lv.take() {
            let info = self.info(id);
            net.send((node, NodeIn::LvAdded { run, pg, info }));
        }
    }

    fn info(&self, lv: LvId) -> LvInfo {
        let replica = |(store, _): &(usize, PvId)| Replica {
            server: ServerId(*store as u32),
            boot: self.store_boots[*store],
        };
        let replicas = self.lvs[lv.0 as usize].places.iter().map(replica).collect();
        LvInfo { lv, blocks: LV_BLOCKS, replicas }
    }

    /// LVs of a PG that are there.
    fn lvs_of(&self, pg: PgId) -> Vec<LvInfo> {
        self.infos().filter(|(of, _)| *of == pg).map(|(_, info)| info).collect()
    }

    /// All LVs that are there, with their PGs.
    pub(crate) fn infos(&self) -> impl Iterator<Item = (PgId, LvInfo)> {
        let ready = |(_, lv): &(usize, &Lv)| lv.created.len() == lv.places.len();
        let lvs = self.lvs.iter().enumerate().filter(ready);
        lvs.map(|(index, lv)| (lv.pg, self.info(LvId(index as u32))))
    }

    /// Where a replica of an LV lies: data server and PV.
    pub(crate) fn place(&self, lv: LvId, replica: usize) -> Option<(usize, PvId)> {
        self.lvs.get(lv.0 as usize)?.places.get(replica).copied()
    }
}
