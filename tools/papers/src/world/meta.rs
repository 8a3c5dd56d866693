//! A meta server that looks for copies to be made: the loop of `roles/meta/rebuild.rs`, over the same machines.
//!
//! ```text
//!  look, every second ─▶ walk: piece by piece ─▶ copies of the piece, as the budget lets them begin ─▶ next piece
//!                          └── looks for single copies come between, in groups whose replicas have changed
//! ```
//!
//! # Invariants
//!
//! 1. What the loop decides the machines decide: [`Walk`], [`WalkSchedule`], [`CopyPacing`], [`Budget`]. The loop is a model.
//! 2. A walk's copies are all over before it ends.

use std::collections::{BTreeMap, VecDeque};

use larder_protocol::background::{Admission, Budget, Work};
use larder_protocol::copy_pacing::{CopyPacing, CopyTurn};
use larder_protocol::limits::WALK_CHECK_MS;
use larder_protocol::pg::{CopyPriority, Refill, Walk, WalkSchedule};
use larder_roles::limits::{
    REBUILD_PIECE_COPIES_MAX, REBUILD_PIECE_SECONDS, REBUILD_ROWS_MAX, SINGLE_COPIES_PAUSE,
};
use larder_types::{PgId, ServerId, View};

use super::{Happening, US_PER_MS, World};

/// Changes of replicas of each group, in its view.
type Changes = BTreeMap<PgId, (View, u64)>;

/// A walk, and how far it is.
#[derive(Debug)]
struct Walking {
    walk: Walk,
    pgs: VecDeque<PgId>,
    /// The row of the first of these groups behind which it goes on.
    after: Vec<u8>,
    made_in_piece: u64,
}

impl Walking {
    fn new(walk: Walk) -> Self {
        let pgs = walk.pgs().collect();
        Self { walk, pgs, after: Vec::new(), made_in_piece: 0 }
    }

    fn is_over(&self) -> bool {
        self.pgs.is_empty()
    }
}

/// A look for chunks with a single copy, which comes between two pieces of a walk.
#[derive(Debug)]
struct Look {
    walking: Walking,
    news: Vec<PgId>,
    made: u64,
    began_us: u64,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Meta {
    bound: CopyPriority,
    walk_schedule: WalkSchedule,
    known: Changes,
    next_check_us: u64,
    main: Option<Walking>,
    look: Option<Look>,
    pub(super) turns: CopyPacing,
    budget: Budget,
    pending: VecDeque<(PgId, Refill)>,
    wants: Option<Work>,
    under_way: usize,
    /// Bytes of copies made.
    pub(super) made: u64,
    /// Something is planned under this number; what was planned under earlier ones is void.
    turn: u64,
    waits: bool,
}

impl Meta {
    pub(super) fn new(bytes_per_s: u64) -> Self {
        Self {
            bound: CopyPriority::FIRST,
            walk_schedule: WalkSchedule::default(),
            known: Changes::new(),
            next_check_us: 0,
            main: None,
            look: None,
            turns: CopyPacing::default(),
            budget: Budget::new(bytes_per_s),
            pending: VecDeque::new(),
            wants: None,
            under_way: 0,
            made: 0,
            turn: 0,
            waits: false,
        }
    }

    fn is_copying(&self) -> bool {
        self.under_way > 0 || !self.pending.is_empty()
    }

    fn walking(&mut self) -> Option<&mut Walking> {
        let look = self.look.as_mut().map(|look| &mut look.walking);
        look.or(self.main.as_mut())
    }
}

impl World {
    fn meta(&mut self, server: ServerId) -> &mut Meta {
        &mut self.metas[server.0 as usize]
    }

    /// Has a server go on after a while.
    pub(super) fn plan(&mut self, server: ServerId, delay_us: u64) {
        let meta = self.meta(server);
        meta.turn += 1;
        let turn = meta.turn;
        self.after(delay_us, Happening::GoOn(server, turn));
    }

    pub(super) fn resume_at(&mut self, server: ServerId, turn: u64) {
        if self.meta(server).turn == turn && !self.is_gone(server) {
            self.go_on(server);
        }
    }

    pub(super) fn copy_turn_received(&mut self, server: ServerId, sent_ms: u64, turn: CopyTurn) {
        self.meta(server).turns.receive_turn(sent_ms, turn);
        self.lend(server);
        if std::mem::take(&mut self.meta(server).waits) {
            self.go_on(server);
        }
    }

    /// Lets copies take what other servers lend.
    pub(super) fn lend(&mut self, server: ServerId) {
        let (now_ms, own) = (self.now_ms(), self.setup.background);
        let meta = self.meta(server);
        meta.budget.lend(meta.turns.bytes_per_s(now_ms, own));
    }

    fn led(&self, server: ServerId) -> Vec<PgId> {
        let led = |pg: &PgId| self.groups[pg.0 as usize].leader == Some(server);
        (0..self.groups.len() as u32).map(PgId).filter(led).collect()
    }

    fn changes(&self, server: ServerId) -> Changes {
        let of = |pg: PgId| {
            let group = &self.groups[pg.0 as usize].pg;
            (pg, (group.view(), group.replica_changes()))
        };
        self.led(server).into_iter().map(of).collect()
    }

    /// Nothing is read here: no volume is hot.
    fn first(bound: CopyPriority) -> CopyPriority {
        bound.max(CopyPriority::new(1, false))
    }

    fn go_on(&mut self, server: ServerId) {
        let now_ms = self.now_ms();
        loop {
            let meta = &mut self.metas[server.0 as usize];
            if meta.is_copying() {
                return self.begin_copies(server);
            }
            if let Some(look) = &meta.look {
                if !look.walking.is_over() {
                    return self.scan(server);
                }
                self.end_check(server);
                continue;
            }
            let Some(main) = &meta.main else {
                if self.begin_walk(server) {
                    continue;
                }
                return self.plan(server, WALK_CHECK_MS * US_PER_MS);
            };
            if main.is_over() {
                self.end_walk(server);
                return self.plan(server, WALK_CHECK_MS * US_PER_MS);
            }
            if !main.walk.bound().is_single() {
                if self.begin_check(server) {
                    continue;
                }
                let meta = self.meta(server);
                if !meta.turns.may_copy(now_ms) {
                    meta.turns.wait();
                    meta.waits = true;
                    return self.plan(server, WALK_CHECK_MS * US_PER_MS);
                }
            }
            return self.scan(server);
        }
    }

    /// Begins a walk, if one is wanted and due.
    fn begin_walk(&mut self, server: ServerId) -> bool {
        let (now_ms, led, changes) = (self.now_ms(), self.led(server), self.changes(server));
        let mut walk = Walk::new(Self::first(self.meta(server).bound));
        led.iter().for_each(|pg| walk.add(&self.groups[pg.0 as usize].pg));
        let meta = self.meta(server);
        if walk.pgs().next().is_none() {
            meta.bound = CopyPriority::FIRST;
            meta.turns.rest();
            meta.walk_schedule.cancel();
            return false;
        }
        if !meta.walk_schedule.is_due(now_ms, &walk) {
            meta.turns.rest();
            return false;
        }
        if walk.bound().is_single() {
            meta.known.extend(walk.pgs().filter_map(|pg| Some((pg, *changes.get(&pg)?))));
        }
        meta.turns.begin(now_ms, walk.bound());
        meta.main = Some(Walking::new(walk));
        true
    }

    fn end_walk(&mut self, server: ServerId) {
        let now_ms = self.now_ms();
        let meta = self.meta(server);
        let Some(Walking { walk, .. }) = meta.main.take() else { return };
        walk.still_single().for_each(|pg| {
            meta.known.remove(&pg);
        });
        meta.bound = walk.next_bound();
        meta.walk_schedule.ended(now_ms, &walk);
        for pg in walk.pgs() {
            if let Some(event) = walk.ended(&self.groups[pg.0 as usize].pg) {
                self.step(pg, event);
            }
        }
    }

    /// Begins to look for single copies in groups whose replicas have changed since they were looked over.
    fn begin_check(&mut self, server: ServerId) -> bool {
        if self.now_us < self.meta(server).next_check_us {
            return false;
        }
        let now = self.changes(server);
        let known = &self.meta(server).known;
        let news: Vec<PgId> =
            now.iter().filter(|(pg, it)| known.get(pg) != Some(it)).map(|(pg, _)| *pg).collect();
        let began_us = self.now_us;
        self.look_at(server, news, CopyPriority::FIRST, (0, began_us))
    }

    fn look_at(
        &mut self,
        server: ServerId,
        news: Vec<PgId>,
        bound: CopyPriority,
        (made, began_us): (u64, u64),
    ) -> bool {
        let (now_ms, changes) = (self.now_ms(), self.changes(server));
        let mut walk = Walk::new(Self::first(bound));
        news.iter().for_each(|pg| walk.look_at(&self.groups[pg.0 as usize].pg));
        if walk.pgs().next().is_none() {
            return false;
        }
        let meta = self.meta(server);
        meta.known.extend(walk.pgs().filter_map(|pg| Some((pg, *changes.get(&pg)?))));
        meta.turns.begin(now_ms, walk.bound());
        meta.look = Some(Look { walking: Walking::new(walk), news, made, began_us });
        true
    }

    fn end_check(&mut self, server: ServerId) {
        let (now_us, now_ms) = (self.now_us, self.now_ms());
        let meta = self.meta(server);
        let Some(Look { walking, news, made, began_us }) = meta.look.take() else { return };
        let walk = walking.walk;
        walk.still_single().for_each(|pg| {
            meta.known.remove(&pg);
        });
        let (left, bound) = (walk.left().filter(|left| left.is_single()), walk.bound());
        let again = left.filter(|left| made > 0 || *left > bound);
        if again.is_some_and(|left| self.look_at(server, news, left, (0, began_us))) {
            return;
        }
        let pause_us = (now_us - began_us).max(SINGLE_COPIES_PAUSE.as_micros() as u64);
        let meta = self.meta(server);
        meta.next_check_us = now_us + pause_us;
        if let Some(main) = &meta.main {
            meta.turns.begin(now_ms, main.walk.bound());
        }
    }

    /// Looks at rows until there is enough to do.
    fn scan(&mut self, server: ServerId) {
        let (row_ns, index_rows) = (self.setup.hardware.row_ns, self.setup.index_rows());
        let Self { metas, groups, .. } = self;
        let meta = &mut metas[server.0 as usize];
        let bytes_max = meta.budget.rate_of(Work::Rebuild).saturating_mul(REBUILD_PIECE_SECONDS);
        let mut pending = VecDeque::new();
        let Some(walking) = meta.walking() else { return };
        let (mut rows, mut bytes, mut groups_ended) = (0, 0, 0);
        let all = walking.walk.pgs().count() as u64;
        while let Some(&pg) = walking.pgs.front() {
            let before = rows;
            let mut is_enough = |looked: u64, refill: Option<Refill>| {
                let found = refill.is_some();
                if let Some(refill) = refill {
                    bytes += u64::from(refill.chunk.len);
                    pending.push_back((pg, refill));
                }
                let is_full = pending.len() >= REBUILD_PIECE_COPIES_MAX || bytes >= bytes_max;
                before + looked >= u64::from(REBUILD_ROWS_MAX) || found && is_full
            };
            let group = &mut groups[pg.0 as usize];
            let (last, looked) = group.consider(&mut walking.walk, &walking.after, &mut is_enough);
            rows += looked;
            match last {
                Some(row) => {
                    walking.after = row;
                    break;
                }
                None => {
                    walking.after.clear();
                    walking.pgs.pop_front();
                    groups_ended += 1;
                }
            }
        }
        // The rows that are left out are between these: a walk over all groups looks at each of the server's.
        let takes_us = (rows + index_rows * groups_ended / all.max(1)) * row_ns / 1000;
        walking.made_in_piece = 0;
        let first = pending.iter().map(|(_, refill): &(PgId, Refill)| refill.priority).min();
        meta.turns.found(first);
        meta.pending = pending;
        self.plan(server, takes_us.max(1));
    }

    /// Begins the copies of a piece, as many as may begin now.
    pub(super) fn begin_copies(&mut self, server: ServerId) {
        let now_us = self.now_us;
        while let Some((_, refill)) = self.meta(server).pending.front() {
            let (is_single, bytes) = (refill.priority.is_single(), u64::from(refill.chunk.len));
            let work = if is_single { Work::RebuildSingle } else { Work::Rebuild };
            let meta = self.meta(server);
            if meta.wants != Some(work) {
                if let Some(before) = meta.wants.replace(work) {
                    meta.budget.wants_no_more(before);
                }
                meta.budget.wants(work);
            }
            match meta.budget.may_begin(now_us, work, bytes) {
                Admission::Begins => {
                    meta.wants = None;
                    meta.under_way += 1;
                    let next = meta.pending.pop_front();
                    next.into_iter().for_each(|(pg, refill)| self.begin_copy(server, pg, refill));
                }
                Admission::NotBefore(us) => return self.plan(server, us - now_us),
                Admission::Later => return,
            }
        }
        if self.meta(server).under_way == 0 {
            let meta = self.meta(server);
            meta.turns.found(None);
            if let Some(walking) = meta.walking().filter(|walking| walking.made_in_piece > 0) {
                walking.walk.copied();
            }
            self.plan(server, 1);
        }
    }

    /// A copy that a server asked for is over.
    pub(super) fn copy_ended(
        &mut self,
        server: ServerId,
        (pg, refill): (PgId, Refill),
        is_copied: bool,
    ) {
        let meta = self.meta(server);
        meta.under_way -= 1;
        meta.budget.ended();
        if is_copied {
            meta.made += u64::from(refill.chunk.len);
            if let Some(look) = &mut meta.look {
                look.made += 1;
            }
            if let Some(walking) = meta.walking() {
                walking.made_in_piece += 1;
            }
        } else if refill.priority.is_single()
            && let Some(walking) = meta.walking()
        {
            walking.walk.missed_single(pg);
        }
        let Refill { row, grant, .. } = refill;
        self.step(pg, larder_protocol::Event::Refilled { row, grant, is_copied });
        self.begin_copies(server);
    }
}
