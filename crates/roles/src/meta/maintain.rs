//! Background work of the meta server: ticks, new LVs, flushes of the index, compaction.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use larder_kv::{Kv, KvError, LsmKv, Progress};
use larder_metalog::Lsn;
use larder_protocol::{Event, LvInfo, Replica};
use larder_types::{OpSeq, PgId};
use parking_lot::{Condvar, Mutex};

use super::Meta;
use crate::limits::{LOG_BYTES_BEFORE_FLUSH, TICK_MS};
use crate::manager::LvRecord;

/// Wakes the flush thread.
#[derive(Default)]
pub(super) struct FlushSignal {
    state: Mutex<FlushState>,
    ready: Condvar,
}

#[derive(Default)]
struct FlushState {
    asked: bool,
    /// The disk had no room for the last flush: not again before the next tick.
    held: bool,
    stopped: bool,
}

impl FlushSignal {
    /// Called after each batch: asks for a flush when enough has piled up.
    pub(super) fn check(&self, kv: &LsmKv) {
        if kv.unflushed_bytes() >= larder_kv::limits::FLUSH_BYTES {
            self.ask();
        }
    }

    fn ask(&self) {
        let mut state = self.state.lock();
        if !state.held && !std::mem::replace(&mut state.asked, true) {
            self.ready.notify_one();
        }
    }

    fn hold(&self, held: bool) {
        self.state.lock().held = held;
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

impl Meta {
    /// The tick thread.
    pub(super) fn tick_loop(&self) {
        let mut due = Instant::now();
        let mut flushed_at = Lsn(0);
        let mut wanting = Vec::new();
        while !self.stopping.load(Ordering::Acquire) {
            due += Duration::from_millis(TICK_MS);
            self.need_lv.wait_until(due);
            self.need_lv.take_now(&mut wanting);
            for pg in wanting.drain(..) {
                self.draw_lv(pg);
            }
            if Instant::now() < due {
                due -= Duration::from_millis(TICK_MS);
                continue;
            }
            if let Err(error) = self.log.tick() {
                tracing::warn!(%error, "the log's last group goes without a mark");
            }
            self.data.measure_free_space();
            self.flush.hold(false);
            for pg in self.pg_ids() {
                let mut member = self.lock(pg);
                if member.pg.wants_tick() {
                    self.step(&mut member, Event::Tick);
                }
            }
            let end = self.log.end();
            if end.0 - flushed_at.0 > LOG_BYTES_BEFORE_FLUSH {
                flushed_at = end;
                self.flush.ask();
            }
        }
    }

    /// Gives a PG another LV: in the map first, then on the disk, then to the PG.
    fn draw_lv(&self, pg: PgId) {
        let event = match self.manager.draw_lv(pg) {
            Ok(Some(record)) => {
                self.data.create(&record);
                Event::LvAdded(self.lv_info(&record))
            }
            Ok(None) => Event::PoolEmpty,
            Err(error) => {
                tracing::error!(%pg, %error, "no LV can be drawn");
                Event::PoolEmpty
            }
        };
        self.step(&mut self.lock(pg), event);
    }

    pub(super) fn lv_info(&self, record: &LvRecord) -> LvInfo {
        let boot = self.data.boot();
        let replicas =
            record.replicas.iter().map(|place| Replica { server: place.server, boot }).collect();
        LvInfo { lv: record.lv, blocks: record.blocks, replicas }
    }

    /// The flush thread: makes the index durable, frees the log behind it, compacts.
    pub(super) fn flush_loop(&self) {
        while self.flush.wait() {
            if let Err(error) = self.flush_and_free() {
                match error {
                    KvError::Full { .. } => {
                        tracing::warn!(%error, "the flush of the index is put off");
                        self.flush.hold(true);
                    }
                    error => return self.fail(format!("the index cannot be flushed: {error}")),
                }
            }
        }
    }

    fn flush_and_free(&self) -> Result<(), KvError> {
        // Taken before the flush: what is applied by now is durable after it.
        let asked = self.requests.get().map(|requests| (requests.session(), requests.floor()));
        let retain_from = |pg| {
            let mut member = self.lock(pg);
            if let Some((session, floor)) = asked {
                self.step(&mut member, Event::Floor { session, floor });
            }
            member.pg.retain_from()
        };
        let retain: Vec<OpSeq> = self.pg_ids().map(retain_from).collect();
        self.index.kv.flush()?;
        self.log.free(&retain);
        while self.index.kv.maintain()? == Progress::Worked {
            if self.stopping.load(Ordering::Acquire) {
                break;
            }
        }
        Ok(())
    }
}
