//! Space is never reused too early ("Space" in `ARCHITECTURE.md`): grants, floors, `Open`, queued
//! and late writes.
//!
//! One extent of one LV on one or two replicas; puts that want it one after the other; a primary that is
//! replaced; data servers that restart. Every write, once granted, may arrive at any moment, any
//! number of times; a server may do what it has queued in any order. That the data of a put verifies
//! is the matter of [`put`](crate::put): here a put is acknowledged or revoked as a whole.
//!
//! | action | in the code |
//! |---|---|
//! | `Grant` | `protocol/pg/grant.rs`, `grant`; `protocol/space.rs`, `allocate` |
//! | `StaleGrant` | the same at a primary that has not heard of its successor |
//! | `Commit` | `protocol/pg/commit.rs`, `advance` |
//! | `Acknowledge` | `roles/proxy/put.rs` |
//! | `Revoke`, `Delete` | `protocol/pg/calls.rs`, `commit_put`, `mutate`; `pg/apply.rs`, `free` |
//! | `Repair`, `CloseRepair` | `protocol/pg/refill.rs`, `refill`, `refilled` and `pg/moves.rs`, `lower`, `moved`, with a grant further down (ADR 13) |
//! | `RaiseFloor`, `TakeFloor` | `protocol/pg/resolve.rs`, `raise_floors`, and `raise_over_voids` as `Variant::RaisesOverOpen`; `volume/pv.rs`, `raise_floor` |
//! | `Open` | `protocol/pg/resolve.rs`, `open_lv`; `volume/pv.rs`, `open` |
//! | `Answer` | `volume/execute.rs`, `commit`; `protocol/space.rs`, `floor_acknowledged` |
//! | `Arrive`, `Write` | `volume/pv.rs`, `admit`; `volume/execute.rs`, `write` |
//! | `Restart` | `volume/volume.rs`, every LV closed |
//! | `NewView` | `protocol/pg/replicate.rs`, `begin_view`; `pg/resolve.rs`, `adopt_space` |
//!
//! The code's data server does a group in order and answers at its end. The model's may reorder queued writes, as one with
//! several writes under way on the device would. Every `Open` that a primary may have sent, of this view or an older one, is
//! taken to have been sent, and may arrive at any time. A restart that loses writes without an answer is not modelled:
//! nobody relies on these. Executing, syncing and answering a write are one step.

mod variants;

pub use variants::{Bounds, Property, Variant};

use crate::explore::{Model, Sometimes};
use crate::ids::{Key, OpSeq, Servers, View};

const PUTS: usize = 4;
const REPLICAS: usize = 2;
const VIEWS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Phase {
    #[default]
    Unused,
    Pending,
    Acknowledged,
    Revoked,
    /// Its op is in no log that counts; its writes are still under way.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Put {
    phase: Phase,
    key: Key,
    acked: Servers,
    /// The op that frees it.
    freed_by: Option<Key>,
}

/// A copy of a put's bytes to one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Repair {
    of: usize,
    to: usize,
    key: Key,
    open: bool,
}

/// A write under way, by what it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// A put's.
    Put(usize),
    /// The repair's.
    Repair,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Server {
    is_open: bool,
    view: View,
    floor: Key,
    /// View and floor as the next run will find them.
    durable: (View, Key),
    /// Puts with a queued write, and after them the repair.
    queue: Servers,
    /// The put whose bytes the extent has.
    holds: Option<u8>,
    /// Floor that each view's primary had asked for when this run began: no `Open` that is meant for
    /// this run has a lower one.
    since: [OpSeq; VIEWS],
}

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    view: View,
    next: OpSeq,
    commit: OpSeq,
    puts: [Put; PUTS],
    repair: Option<Repair>,
    /// Floor that each replica answered in this view.
    floors: [Option<OpSeq>; REPLICAS],
    /// Floor asked for last, by view.
    asked: [OpSeq; VIEWS],
    /// Where the primary before goes on, and whether the extent looked free to it.
    stale: Option<OpSeq>,
    servers: [Server; REPLICAS],
    restarts: u8,
    repairs: u8,
}

/// A step.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// The primary grants the extent.
    Grant,
    /// The primary of the view before does.
    StaleGrant,
    /// The next op is durable on all members.
    Commit,
    /// A put's client is told that it is durable.
    Acknowledge(usize),
    /// A put is given up.
    Revoke(usize),
    /// A put is deleted.
    Delete(usize),
    /// A put's bytes are to be copied to a replica.
    Repair(usize, usize),
    /// The copy's grant ends.
    CloseRepair,
    /// The primary asks for a higher floor.
    RaiseFloor,
    /// That reaches a replica.
    TakeFloor(usize),
    /// An `Open` (view, floor) reaches a replica.
    Open(usize, Key),
    /// A replica answers with its floor.
    Answer(usize),
    /// A write reaches a replica and is queued.
    Arrive(Write, usize),
    /// A queued write is done, synced and answered.
    Write(Write, usize),
    /// A data server restarts.
    Restart(usize),
    /// A new view begins; the log ends at this position.
    NewView(OpSeq),
}

/// See the module's head.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    /// The size of the model.
    pub bounds: Bounds,
    /// The reading to check.
    pub variant: Variant,
}

const REPAIR: usize = PUTS;

impl Write {
    fn place(self) -> usize {
        match self {
            Self::Put(put) => put,
            Self::Repair => REPAIR,
        }
    }

    fn at(place: usize) -> Self {
        if place == REPAIR { Self::Repair } else { Self::Put(place) }
    }
}

impl State {
    fn write_key(&self, write: Write) -> Option<Key> {
        match write {
            Write::Put(put) => (self.puts[put].phase != Phase::Unused).then(|| self.puts[put].key),
            Write::Repair => self.repair.map(|repair| repair.key),
        }
    }

    fn next_key(&mut self) -> Key {
        let key = Key { view: self.view, seq: self.next };
        self.next = self.next.next();
        key
    }

    fn is_committed(&self, key: Key) -> bool {
        key.seq <= self.commit
    }

    /// True if an op below the commit point has freed it.
    fn is_freed(&self, put: &Put) -> bool {
        put.freed_by.is_some_and(|key| self.is_committed(key))
    }

    /// The oldest grant that is open, or the next.
    fn oldest_open(&self) -> OpSeq {
        let pending = self.puts.iter().filter(|put| put.phase == Phase::Pending);
        let pending = pending.map(|put| put.key.seq);
        let repair = self.repair.filter(|repair| repair.open).map(|repair| repair.key.seq);
        pending.chain(repair).min().unwrap_or(self.next)
    }
}

impl Space {
    fn replicas(&self) -> std::ops::Range<usize> {
        0..self.bounds.replicas
    }

    /// The floor that the primary asks for.
    fn floor_of(&self, state: &State) -> OpSeq {
        if self.variant == Variant::RaisesOverOpen { state.next } else { state.oldest_open() }
    }

    fn keeps_no_floor(&self) -> bool {
        matches!(self.variant, Variant::FloorInMemory | Variant::OpenAfterRestart)
    }

    /// True if the primary takes the extent for free.
    fn is_free(&self, state: &State) -> bool {
        let floors = &state.floors[..self.bounds.replicas];
        let opened = floors.iter().all(Option::is_some);
        if !opened && self.variant != Variant::GrantsBeforeOpened {
            return false;
        }
        let lowest = if self.variant == Variant::ReuseAfterOneFloor {
            floors.iter().flatten().max()
        } else {
            floors.iter().flatten().min()
        };
        let floor = Key { view: state.view, seq: lowest.copied().unwrap_or_default() };
        state.puts.iter().all(|put| match (put.phase, put.freed_by) {
            (Phase::Unused | Phase::Lost, _) => true,
            (Phase::Pending, None) => {
                self.variant == Variant::ForgetsPending && put.key.view < state.view
            }
            (_, None) => false,
            (_, Some(freed_by)) => {
                let counts = self.variant == Variant::UncommittedOutcomeFrees
                    || state.is_committed(freed_by);
                let passed = match self.variant {
                    Variant::ReuseAfterOutcome => true,
                    Variant::FloorAtTheFreeingOp => floor >= freed_by,
                    _ => floor > freed_by,
                };
                counts && passed
            }
        })
    }

    fn unused(&self, state: &State) -> Option<usize> {
        let mut puts = state.puts[..self.bounds.puts].iter();
        puts.position(|put| put.phase == Phase::Unused)
    }

    fn admits(&self, server: &Server, write: Write, key: Key) -> bool {
        if write == Write::Repair && self.variant == Variant::RepairsHoldNoGrant {
            return server.is_open;
        }
        server.is_open && key.view == server.view && key >= server.floor
    }

    /// True if a server may answer with its floor: nothing below it is queued.
    fn has_drained(&self, state: &State, server: &Server) -> bool {
        server.queue.iter().all(|place| {
            let write = Write::at(place);
            let Some(key) = state.write_key(write) else { return true };
            let older_view = key.view < server.view;
            (write == Write::Repair && self.variant == Variant::RepairsHoldNoGrant)
                || key >= server.floor
                || older_view && self.variant == Variant::OpenAnsweredBeforeDrain
                || !older_view && self.variant == Variant::RaiseAnsweredBeforeDrain
        })
    }

    fn new_view(&self, state: &mut State, end: OpSeq) {
        let looked_free = self.is_free(state);
        state.stale = looked_free.then_some(state.next);
        let is_lost = |key: Key| key.seq > end;
        for put in &mut state.puts {
            if put.freed_by.is_some_and(is_lost) {
                put.freed_by = None;
                if put.phase == Phase::Revoked {
                    put.phase = Phase::Pending;
                }
            }
            if put.phase == Phase::Pending && is_lost(put.key) {
                put.phase = Phase::Lost;
            }
        }
        if let Some(repair) = &mut state.repair {
            repair.open = false;
        }
        state.view = state.view.next();
        state.next = end.next();
        state.commit = end;
        state.floors = [None; REPLICAS];
    }

    fn server_actions(&self, state: &State, at: usize, out: &mut Vec<Action>) {
        let server = &state.servers[at];
        for place in (0..self.bounds.puts).chain([REPAIR]) {
            let write = Write::at(place);
            let Some(key) = state.write_key(write) else { continue };
            let comes_here =
                write != Write::Repair || state.repair.is_some_and(|repair| repair.to == at);
            if server.queue.has(place) {
                out.push(Action::Write(write, at));
            } else if comes_here && self.admits(server, write, key) {
                out.push(Action::Arrive(write, at));
            }
        }
        let asked = state.asked[state.view.0 as usize];
        let floor = Key { view: state.view, seq: asked };
        if server.view == state.view && server.floor < floor {
            out.push(Action::TakeFloor(at));
        }
        for view in (1..=state.view.0).map(View) {
            let since = if self.variant == Variant::OpenOfAnyBoot {
                OpSeq(0)
            } else {
                server.since[view.0 as usize]
            };
            let latest = state.asked[view.0 as usize];
            let is_late = view < server.view && self.variant != Variant::OpenLowers;
            for seq in [since, latest].into_iter().take(1 + usize::from(since < latest)) {
                let floor = Key { view, seq };
                let changes = !server.is_open
                    || view > server.view
                    || floor > server.floor
                    || self.variant == Variant::OpenLowers && floor != server.floor;
                if !is_late && changes {
                    out.push(Action::Open(at, floor));
                }
            }
        }
        let answered = state.floors[at] == Some(server.floor.seq)
            && server.durable == (server.view, server.floor);
        if server.is_open
            && server.view == state.view
            && server.floor.view == state.view
            && !answered
            && self.has_drained(state, server)
        {
            out.push(Action::Answer(at));
        }
        if state.restarts < self.bounds.restarts {
            out.push(Action::Restart(at));
        }
    }

    fn apply_to_server(&self, state: &mut State, at: usize, action: Action) {
        let asked = state.asked;
        let floor = Key { view: state.view, seq: asked[state.view.0 as usize] };
        let server = &mut state.servers[at];
        match action {
            Action::TakeFloor(_) => server.floor = floor,
            Action::Open(_, floor) => {
                server.is_open = true;
                if self.variant == Variant::OpenLowers {
                    (server.view, server.floor) = (floor.view, floor);
                } else {
                    server.view = server.view.max(floor.view);
                    server.floor = server.floor.max(floor);
                }
            }
            Action::Answer(_) => {
                server.durable = (server.view, server.floor);
                let known = &mut state.floors[at];
                *known = (*known).max(Some(server.floor.seq));
            }
            Action::Restart(_) => {
                server.since = asked;
                server.queue = Servers::NONE;
                server.is_open = self.variant == Variant::OpenAfterRestart;
                (server.view, server.floor) =
                    if self.keeps_no_floor() { Default::default() } else { server.durable };
                if self.variant == Variant::OpenAfterRestart {
                    server.view = server.durable.0;
                }
                state.restarts += 1;
            }
            Action::Arrive(write, _) => server.queue = server.queue.with(write.place()),
            Action::Write(write, _) => {
                server.queue = server.queue.without(write.place());
                match (write, state.repair) {
                    (Write::Put(put), _) => {
                        server.holds = Some(put as u8);
                        if matches!(state.puts[put].phase, Phase::Pending | Phase::Revoked) {
                            state.puts[put].acked = state.puts[put].acked.with(at);
                        }
                    }
                    (Write::Repair, Some(repair)) => server.holds = Some(repair.of as u8),
                    (Write::Repair, None) => unreachable!("a repair is queued after it began"),
                }
            }
            _ => unreachable!("not a step of a server"),
        }
    }
}

impl Model for Space {
    type State = State;
    type Action = Action;
    type Property = Property;

    const SOMETIMES: &'static [Sometimes<State>] = &[
        ("an extent is used again and its put acknowledged", |state| {
            let mut before = state.puts[..PUTS - 1].iter().zip(&state.puts[1..]);
            before.any(|(old, new)| {
                old.phase == Phase::Acknowledged
                    && state.is_freed(old)
                    && new.phase == Phase::Acknowledged
            })
        }),
        ("an extent is used again after a revocation", |state| {
            let revoked = state.puts.iter().position(|put| put.phase == Phase::Revoked);
            revoked.is_some_and(|at| {
                state.puts[at + 1..].iter().any(|put| put.phase == Phase::Acknowledged)
            })
        }),
        ("a put of an older view is acknowledged", |state| {
            state
                .puts
                .iter()
                .any(|put| put.phase == Phase::Acknowledged && put.key.view < state.view)
        }),
        ("the extent of a lost put is used again", |state| {
            let lost = state.puts.iter().position(|put| put.phase == Phase::Lost);
            lost.is_some_and(|at| {
                state.puts[at + 1..].iter().any(|put| put.phase == Phase::Acknowledged)
            })
        }),
        ("a write of an older view is queued when a new view's floor comes", |state| {
            state.servers.iter().any(|server| {
                let mut queued = server.queue.iter();
                queued.any(|place| {
                    state.write_key(Write::at(place)).is_some_and(|key| key.view < server.view)
                })
            })
        }),
    ];

    fn initial(&self) -> State {
        State {
            view: View(1),
            next: OpSeq(1),
            commit: OpSeq(0),
            puts: [Put::default(); PUTS],
            repair: None,
            floors: [None; REPLICAS],
            asked: [OpSeq(0); VIEWS],
            stale: None,
            servers: [Server::default(); REPLICAS],
            restarts: 0,
            repairs: 0,
        }
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        if let Some(_unused) = self.unused(state) {
            if self.is_free(state) {
                out.push(Action::Grant);
            }
            if state.stale.is_some() {
                out.push(Action::StaleGrant);
            }
        }
        if state.commit.next() < state.next {
            out.push(Action::Commit);
        }
        let everywhere = Servers::first(self.bounds.replicas);
        for (at, put) in state.puts.iter().enumerate() {
            match put.phase {
                Phase::Pending => {
                    if state.is_committed(put.key) && everywhere.within(put.acked) {
                        out.push(Action::Acknowledge(at));
                    }
                    out.push(Action::Revoke(at));
                }
                Phase::Acknowledged if put.freed_by.is_none() => {
                    out.push(Action::Delete(at));
                    if state.repairs < self.bounds.repairs && state.repair.is_none() {
                        out.extend(self.replicas().map(|to| Action::Repair(at, to)));
                    }
                }
                _ => {}
            }
        }
        if state.repair.is_some_and(|repair| repair.open) {
            out.push(Action::CloseRepair);
        }
        if self.floor_of(state) > state.asked[state.view.0 as usize]
            && state.puts.iter().any(|put| state.is_freed(put))
        {
            out.push(Action::RaiseFloor);
        }
        for at in self.replicas() {
            self.server_actions(state, at, out);
        }
        if state.view.0 < self.bounds.views {
            out.extend((state.commit.0..state.next.0).map(|end| Action::NewView(OpSeq(end))));
        }
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Grant => {
                let at = self.unused(state).expect("offered only then");
                let key = state.next_key();
                state.puts[at] = Put { phase: Phase::Pending, key, ..Put::default() };
            }
            Action::StaleGrant => {
                let at = self.unused(state).expect("offered only then");
                let seq = state.stale.take().expect("offered only then");
                let key = Key { view: View(state.view.0 - 1), seq };
                state.puts[at] = Put { phase: Phase::Lost, key, ..Put::default() };
            }
            Action::Commit => state.commit = state.commit.next(),
            Action::Acknowledge(put) => {
                state.puts[put].phase = Phase::Acknowledged;
                state.puts[put].acked = Servers::NONE;
            }
            Action::Revoke(put) => {
                state.puts[put].phase = Phase::Revoked;
                state.puts[put].freed_by = Some(state.next_key());
            }
            Action::Delete(put) => state.puts[put].freed_by = Some(state.next_key()),
            Action::Repair(of, to) => {
                let key = state.next_key();
                state.repair = Some(Repair { of, to, key, open: true });
                state.repairs += 1;
            }
            Action::CloseRepair => {
                if let Some(repair) = &mut state.repair {
                    repair.open = false;
                }
            }
            Action::RaiseFloor => state.asked[state.view.0 as usize] = self.floor_of(state),
            Action::NewView(end) => self.new_view(state, end),
            Action::TakeFloor(at)
            | Action::Open(at, _)
            | Action::Answer(at)
            | Action::Arrive(_, at)
            | Action::Write(_, at)
            | Action::Restart(at) => self.apply_to_server(state, at, action),
        }
    }

    fn broken(&self, state: &State) -> Option<Property> {
        let live = |put: &Put| match put.phase {
            Phase::Pending => true,
            Phase::Acknowledged => !state.is_freed(put),
            _ => false,
        };
        if state.puts.iter().filter(|put| live(put)).count() > 1 {
            return Some(Property::OneOwner);
        }
        let kept = |at: usize| {
            let mut servers = state.servers[..self.bounds.replicas].iter();
            servers.all(|server| server.holds == Some(at as u8))
        };
        let lost = state
            .puts
            .iter()
            .enumerate()
            .any(|(at, put)| put.phase == Phase::Acknowledged && live(put) && !kept(at));
        lost.then_some(Property::AcknowledgedStays)
    }
}
