//! Background work of the meta server: ticks, new LVs, flushes of the index, compaction.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_env::threads::Condvar;
use larder_kv::{Kv, KvError, LsmKv, Progress};
use larder_metalog::Lsn;
use larder_protocol::Event;
use larder_protocol::pg::Role;
use larder_types::{OpSeq, PgId};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::beat::Beat;
use super::tick::Reaps;
use super::{Here, Meta, OtherRoles};
use crate::limits::{LOG_BYTES_BEFORE_FLUSH, PROTOCOL_COALESCE, PROTOCOL_STEPS, TICK_MS};

/// Wakes the flush thread.
#[derive(Default)]
pub(super) struct FlushSignal {
    state: Mutex<FlushState>,
    ready: Condvar,
}

#[derive(Default)]
struct FlushState {
    asked: bool,
    /// The disk had no room for the last flush: the next attempt waits for a tick.
    held: bool,
    /// PGs that take a snapshot and wait for a flush, each with the flush's number.
    awaited: BTreeMap<PgId, u64>,
    stopped: bool,
}

impl FlushSignal {
    /// Asks for a flush if the index has [`FLUSH_BYTES`](larder_kv::limits::FLUSH_BYTES) in memory.
    pub(super) fn check(&self, kv: &LsmKv) {
        if kv.unflushed_bytes() >= larder_kv::limits::FLUSH_BYTES {
            self.ask();
        }
    }

    pub(super) fn ask(&self) {
        let mut state = self.state.lock();
        if !state.held && !std::mem::replace(&mut state.asked, true) {
            self.ready.notify_one();
        }
    }

    /// Asks for a flush that a PG waits for, in place of an earlier one.
    pub(super) fn request_flush_of(&self, pg: PgId, flush: u64) {
        self.state.lock().awaited.insert(pg, flush);
        self.ask();
    }

    fn take_awaited(&self) -> BTreeMap<PgId, u64> {
        std::mem::take(&mut self.state.lock().awaited)
    }

    /// Puts off a flush that the disk had no room for. PGs that wait for it go on waiting.
    fn hold(&self, awaited: BTreeMap<PgId, u64>) {
        let mut state = self.state.lock();
        state.held = true;
        for (pg, flush) in awaited {
            state.awaited.entry(pg).or_insert(flush);
        }
    }

    /// Lets a flush that was put off be tried again.
    fn let_go(&self) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.held, false) && !state.awaited.is_empty() {
            state.asked = true;
            self.ready.notify_one();
        }
    }

    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.ready.notify_one();
    }

    /// Waits until a flush is asked for; `false` once stopped.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while !state.asked && !state.stopped {
            self.ready.wait(&mut state);
        }
        state.asked = false;
        !state.stopped
    }
}

/// The time at which a tick that was due counts as made. After a stall there is one tick, not all that were
/// missed: a machine that counts ticks takes them for time in which other members' messages could arrive.
fn made_at(due: Instant, now: Instant) -> Instant {
    let is_late = now.saturating_duration_since(due) > Duration::from_millis(TICK_MS);
    if is_late { now } else { due }
}

impl Meta {
    /// Runs the tick thread.
    pub(super) fn tick_loop(&self) {
        let mut ticked = Instant::now();
        let mut flushed_at = Lsn(0);
        let mut wanting = Vec::new();
        let (mut beat, mut reaps) = (Beat::default(), Reaps::default());
        while !self.stopping.load(Ordering::Acquire) {
            let due = ticked + Duration::from_millis(TICK_MS);
            self.need_lv.wait_until(due);
            self.need_lv.take_now(&mut wanting);
            if let OtherRoles::Here(here) = &self.other_roles {
                self.draw_lvs(here, &mut wanting);
            }
            let now = Instant::now();
            if now < due {
                continue;
            }
            ticked = made_at(due, now);
            if let Err(error) = self.log.tick() {
                tracing::warn!(%error, "the log's last group was written without a mark");
            }
            self.flush.let_go();
            self.index.measure();
            let may_change = !self.is_read_only();
            reaps.is_held = !may_change;
            reaps.may_begin = may_change && self.all_support(PROTOCOL_STEPS);
            reaps.may_coalesce = may_change && self.all_support(PROTOCOL_COALESCE);
            match &self.other_roles {
                OtherRoles::Here(here) => {
                    self.note_damage(here);
                    here.data.measure_free_space();
                    self.note_proxy_activity();
                    let (time, is_little) = (self.clock.now(), here.data.has_little_room());
                    for pg in self.pg_ids() {
                        let mut member = self.lock(pg);
                        member.pg.note_free_space(is_little);
                        self.tick(time, &mut member, &mut reaps);
                    }
                }
                OtherRoles::Apart(cluster) => {
                    self.note_member_damage(cluster);
                    self.tick_apart(cluster, &mut beat, &mut reaps);
                }
            }
            reaps.end_tick();
            let end = self.log.end();
            if end.0 - flushed_at.0 > LOG_BYTES_BEFORE_FLUSH {
                flushed_at = end;
                self.flush.ask();
            }
        }
    }

    /// Steps PGs with the floor of this process's proxy, which lives as long as they do.
    fn note_proxy_activity(&self) {
        let Some(requests) = self.requests.get() else { return };
        let (session, floor) = (requests.session(), requests.floor());
        for pg in self.pg_ids() {
            let mut member = self.lock(pg);
            // The requests that it remembers delay coalescing and the trimming of the log.
            if member.pg.wants_tick() || member.pg.remembers() {
                self.step(&mut member, Event::Floor { session, floor });
            }
        }
    }

    /// Returns true if all servers, those that join later too, speak this version of the protocol.
    fn all_support(&self, version: u8) -> bool {
        match &self.other_roles {
            OtherRoles::Here(_) => true,
            OtherRoles::Apart(cluster) => cluster.managers.map().cluster_version >= version,
        }
    }

    /// Gives each PG another LV: in the map first, then on the disk, then to the PG. All PGs of a new store need one at once:
    /// the map is written once for them.
    fn draw_lvs(&self, here: &Here, wanting: &mut Vec<PgId>) {
        if wanting.is_empty() {
            return;
        }
        let drawn = match here.data.lacks_room() {
            true => Ok(Vec::new()),
            false => here.manager.draw_lvs(wanting),
        };
        let drawn = drawn.unwrap_or_else(|error| {
            tracing::error!(%error, pgs = wanting.len(), "no LV can be allocated");
            Vec::new()
        });
        let mut drawn = drawn.into_iter();
        for pg in wanting.drain(..) {
            let event = match drawn.next() {
                Some(record) => {
                    here.data.create(&record);
                    Event::Lv(record.info(here.data.boot()))
                }
                None => Event::PoolEmpty,
            };
            self.step(&mut self.lock(pg), event);
        }
    }

    /// Gives a PG another LV as if it had asked for one, if the pool has one.
    pub(crate) fn draw_lv(&self, pg: PgId) {
        if let OtherRoles::Here(here) = &self.other_roles {
            self.draw_lvs(here, &mut vec![pg]);
        }
    }

    /// Runs the flush thread: it makes the index durable, frees the log behind it, and compacts the index.
    pub(super) fn flush_loop(&self) {
        while self.flush.wait() {
            let awaited = self.flush.take_awaited();
            match self.flush_and_free(&awaited) {
                Ok(()) => {}
                Err(error @ KvError::Full { .. }) => {
                    tracing::warn!(%error, "the flush of the index is postponed");
                    self.flush.hold(awaited);
                }
                // The log has all that was taken before, and is kept.
                Err(error) if self.is_read_only() => {
                    tracing::warn!(%error, "the index is not flushed, as it is damaged");
                }
                Err(error) => return self.fail(format!("the index cannot be flushed: {error}")),
            }
        }
    }

    fn flush_and_free(&self, awaited: &BTreeMap<PgId, u64>) -> Result<(), KvError> {
        // Read before the flush: ops that are applied by now are durable after it.
        let asked = self.requests.get().map(|requests| (requests.session(), requests.floor()));
        let mut is_halted = false;
        let retain_from = |pg| {
            let mut member = self.lock(pg);
            if let Some((session, floor)) = asked {
                self.step(&mut member, Event::Floor { session, floor });
            }
            is_halted |= member.pg.role() == Role::Halted;
            member.pg.retain_from()
        };
        let retain: Vec<OpSeq> = self.pg_ids().map(retain_from).collect();
        self.index.kv.flush()?;
        for (&pg, &flush) in awaited {
            self.step(&mut self.lock(pg), Event::IndexFlushed(flush));
        }
        // The next start decides from the log what a halted group has.
        if !is_halted {
            self.log.free(&retain);
        }
        // Tables that cannot be read whole are not compacted, and stay for what is whole in them.
        while !self.is_read_only() {
            match self.index.kv.maintain() {
                Ok(Progress::Worked) if !self.stopping.load(Ordering::Acquire) => {}
                Ok(_) => break,
                Err(error @ KvError::Full { .. }) => return Err(error),
                Err(_) if self.is_read_only() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_stall_there_is_one_tick_and_else_they_keep_time() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!(made_at(at(100), at(101)), at(100));
        assert_eq!(made_at(at(100), at(199)), at(100), "a little late: none is left out");
        assert_eq!(made_at(at(100), at(3000)), at(3000), "those that were missed are over");
    }
}
