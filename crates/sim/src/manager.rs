//! The manager: views, LVs and sessions. Durable and never down here; what it says is late, lost or
//! doubled like everything else.
//!
//! # Invariants
//!
//! 1. A view begins at each restart of a primary, at each restart of a data server of the PG, and
//!    when the seed says so; with another primary only after the old one's lease has run out.
//! 2. An LV belongs to one PG for ever. A PG hears of it when all its PVs are there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use larder_protocol::{LvInfo, Replica};
use larder_types::{BootId, LvId, PgId, PvId, ServerId, SessionId, View};

use crate::happening::{ManagerIn, NodeIn, StoreIn};
use crate::net::{MS, Net};
use crate::setup::Setup;
use crate::store::LV_BLOCKS;

/// Microseconds for which a primary may tell what is there.
const LEASE_US: u64 = 600 * MS;
/// Between two rounds of the manager's own work.
const TICK_US: u64 = 200 * MS;

/// What proxies look up: the primary of each PG and the run of each meta server.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    pub(crate) primary: Vec<usize>,
    pub(crate) runs: Vec<BootId>,
    /// Starts of meta servers so far: a request is repeated only if there was none since it began,
    /// because what a PG knows of old requests does not outlive the trimming of its log.
    pub(crate) starts: u64,
    /// Data servers of each LV's replicas.
    pub(crate) places: BTreeMap<LvId, Vec<usize>>,
}

struct PgState {
    view: View,
    members: Vec<usize>,
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
    lvs: Vec<Lv>,
    next_pv: Vec<u32>,
    sessions: BTreeMap<usize, SessionId>,
    pub(crate) routes: Rc<RefCell<Routes>>,
}

impl Manager {
    pub(crate) fn new(setup: &Arc<Setup>, net: &mut Net) -> Self {
        let machines = setup.machines;
        let pgs = (0..setup.pgs as usize).map(|pg| PgState {
            view: View(0),
            members: (0..machines).map(|member| (member + pg) % machines).collect(),
            told: BTreeSet::new(),
            lease_until_us: 0,
            wanted: None,
            wants_lv: None,
        });
        let pgs: Vec<PgState> = pgs.collect();
        net.after(TICK_US, ManagerIn::Tick);
        let routes = Routes {
            primary: pgs.iter().map(|pg| pg.members[0]).collect(),
            runs: vec![BootId(0); machines],
            ..Routes::default()
        };
        Self {
            setup: setup.clone(),
            pgs,
            store_boots: vec![BootId(0); machines],
            lvs: Vec::new(),
            next_pv: vec![0; machines],
            sessions: BTreeMap::new(),
            routes: Rc::new(RefCell::new(routes)),
        }
    }

    pub(crate) fn handle(&mut self, input: ManagerIn, net: &mut Net) {
        match input {
            ManagerIn::NodeUp { node, boot } => self.node_up(node, boot, net),
            ManagerIn::StoreUp { store, boot } => self.store_up(store, boot, net),
            ManagerIn::ProxyUp { proxy, session } => {
                if let Some(dead) = self.sessions.insert(proxy, session) {
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

    fn node_up(&mut self, node: usize, boot: BootId, net: &mut Net) {
        {
            let mut routes = self.routes.borrow_mut();
            if routes.runs[node] == boot {
                return;
            }
            routes.runs[node] = boot;
            routes.starts += 1;
        }
        for pg in (0..self.setup.pgs).map(PgId) {
            let state = &mut self.pgs[pg.0 as usize];
            if state.members[0] == node {
                // Whoever led here is dead, and its lease with it.
                state.lease_until_us = 0;
                let primary = state.wanted.take().unwrap_or(node);
                self.begin_view(pg, primary, net);
            } else {
                self.tell(pg, node, net);
            }
        }
    }

    fn store_up(&mut self, store: usize, boot: BootId, net: &mut Net) {
        if self.store_boots[store] == boot {
            return;
        }
        self.store_boots[store] = boot;
        self.create_missing(net);
        let concerned: BTreeSet<PgId> = self
            .lvs
            .iter()
            .filter(|lv| lv.places.iter().any(|(at, _)| *at == store))
            .map(|lv| lv.pg)
            .collect();
        for pg in concerned {
            if self.pgs[pg.0 as usize].view > View(0) {
                let primary = self.pgs[pg.0 as usize].members[0];
                self.begin_view(pg, primary, net);
            }
        }
    }

    /// Has another member lead, once the present primary's lease has run out.
    pub(crate) fn rotate(&mut self, pg: PgId, to: usize) {
        let state = &mut self.pgs[pg.0 as usize];
        state.wanted = Some(to % state.members.len());
    }

    fn begin_view(&mut self, pg: PgId, primary: usize, net: &mut Net) {
        let state = &mut self.pgs[pg.0 as usize];
        state.view = View(state.view.0 + 1);
        let at = state.members.iter().position(|member| *member == primary).unwrap_or(0);
        state.members.swap(0, at);
        state.told.clear();
        state.wants_lv = None;
        self.routes.borrow_mut().primary[pg.0 as usize] = primary;
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
        if let Some(primary) = state.wanted
            && state.lease_until_us < net.now_us()
        {
            self.pgs[pg.0 as usize].wanted = None;
            self.begin_view(pg, primary, net);
            return;
        }
        for &node in &state.members {
            let boot = self.routes.borrow().runs[node];
            if !state.told.contains(&(node, boot)) {
                self.tell(pg, node, net);
            }
        }
    }

    fn draw_lv(&mut self, pg: PgId, net: &mut Net) {
        if self.lvs.iter().any(|lv| lv.pg == pg && lv.created.len() < lv.places.len()) {
            return;
        }
        let machines = self.setup.machines;
        let first = self.lvs.len() % machines;
        let places: Vec<(usize, PvId)> = (0..machines)
            .map(|offset| (first + offset) % machines)
            .filter(|store| self.next_pv[*store] < self.setup.pvs_per_disk)
            .map(|store| (store, PvId(self.next_pv[store])))
            .take(self.setup.replicas)
            .collect();
        let Some((node, run)) = self.pgs[pg.0 as usize].wants_lv else { return };
        if places.len() < self.setup.replicas {
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
