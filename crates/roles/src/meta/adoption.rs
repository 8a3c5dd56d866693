//! Queues of PGs that wait to be served, or for their rows to be read, and of closed sessions. `adopt.rs` has the threads that
//! take them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_env::threads::Condvar;
use larder_types::{PgId, SessionId};
use parking_lot::Mutex;

/// The queues of the adopt thread and the rows thread.
#[derive(Default)]
pub(super) struct Adoption {
    waiting: Mutex<Waiting>,
    ready: Condvar,
    pub(super) views_served: AtomicU64,
    pub(super) views_early: AtomicU64,
    pub(super) ledger_reads: AtomicU64,
}

/// Counts of adoptions since the server started.
#[derive(Debug, Clone, Copy, Default)]
pub struct AdoptionCounters {
    /// Views of PGs in which the server began to serve.
    pub views_served: u64,
    /// Views in which it served before all rows were read.
    pub views_early: u64,
    /// Walks over the index for ledgers and counts.
    pub ledger_reads: u64,
}

#[derive(Default)]
struct Waiting {
    /// PGs whose LVs are known.
    pgs: BTreeSet<PgId>,
    /// PGs whose rows are to be read.
    unread: BTreeSet<PgId>,
    /// Closed sessions.
    ended: BTreeSet<SessionId>,
    stopped: bool,
}

impl Adoption {
    pub(super) fn adopt(&self, pg: PgId) {
        self.waiting.lock().pgs.insert(pg);
        self.ready.notify_all();
    }

    /// Queues a PG for its rows to be read, and then for its adoption if it still waits for that.
    pub(super) fn read(&self, pg: PgId) {
        self.waiting.lock().unread.insert(pg);
        self.ready.notify_all();
    }

    pub(super) fn end_sessions(&self, sessions: BTreeSet<SessionId>) {
        self.waiting.lock().ended.extend(sessions);
        self.ready.notify_all();
    }

    pub(super) fn stop(&self) {
        self.waiting.lock().stopped = true;
        self.ready.notify_all();
    }

    pub(super) fn counters(&self) -> AdoptionCounters {
        AdoptionCounters {
            views_served: self.views_served.load(Ordering::Relaxed),
            views_early: self.views_early.load(Ordering::Relaxed),
            ledger_reads: self.ledger_reads.load(Ordering::Relaxed),
        }
    }

    /// Waits for PGs or sessions, and takes all of them; `None` when stopped.
    pub(super) fn take(&self) -> Option<(BTreeSet<PgId>, BTreeSet<SessionId>)> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.stopped {
                return None;
            }
            let Waiting { pgs, ended, .. } = &mut *waiting;
            if !pgs.is_empty() || !ended.is_empty() {
                return Some((std::mem::take(pgs), std::mem::take(ended)));
            }
            self.ready.wait(&mut waiting);
        }
    }

    /// Waits for PGs whose rows are to be read, and takes all of them; `None` when stopped.
    pub(super) fn take_unread(&self) -> Option<BTreeSet<PgId>> {
        let mut waiting = self.waiting.lock();
        while !waiting.stopped && waiting.unread.is_empty() {
            self.ready.wait(&mut waiting);
        }
        (!waiting.stopped).then(|| std::mem::take(&mut waiting.unread))
    }
}
