//! The driver of the budget of background work: each piece of work waits here until it is admitted. The driver asks
//! data servers with work under way for their number of client requests, and lowers the budget while there are several.
//!
//! # Invariants
//!
//! 1. Work that gives up waiting takes no turn, and each piece ends, also one that fails.
//! 2. The budget's lock is not held while anything waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use larder_protocol::background::{Admission, Budget, WORKS, Work};
use larder_protocol::limits::CLIENTS_QUEUE;
use larder_types::ServerId;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::cluster::Cluster;
use super::rate::Rate;
use super::{Meta, OtherRoles};
use crate::limits::{LOAD_CHECK_INTERVAL, LOAD_TIMEOUT};
use crate::progress::BackgroundStatus;
use crate::wire::{DataCall, DataReply};

/// The settings of a server's background work.
#[derive(Debug, Clone, Copy)]
pub struct BackgroundConfig {
    /// Bytes a second that all background work may take while no clients queue.
    pub bytes_per_s: u64,
    /// The time within which every copy is verified, and the indexes of each group's members are compared; `None` for
    /// neither.
    pub scrub_period: Option<Duration>,
}

/// The budget of a server's background work.
pub(super) struct Background {
    budget: Mutex<Budget>,
    /// Notified when a piece has begun or ended, or the rate has changed.
    changed: Notify,
    began: Instant,
    /// Pieces under way at each data server; 0 for a server that has had some since it was asked last.
    worked: Mutex<BTreeMap<ServerId, u32>>,
    rate: Mutex<Rate>,
}

/// A piece under way; dropping this ends it.
pub(super) struct Piece(Arc<Background>);

impl Drop for Piece {
    fn drop(&mut self) {
        self.0.budget.lock().ended();
        self.0.changed.notify_waiters();
    }
}

/// Work under way at data servers.
pub(super) struct AtWork {
    background: Arc<Background>,
    servers: Vec<ServerId>,
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let mut worked = self.background.worked.lock();
        for server in &self.servers {
            // There is no entry if the server was asked meanwhile and has no other work.
            if let Some(pieces) = worked.get_mut(server) {
                *pieces = pieces.saturating_sub(1);
            }
        }
    }
}

/// A piece that waits for its turn.
struct Waiting<'a> {
    of: &'a Background,
    work: Work,
    is_over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.of.budget.lock().wants_no_more(self.work);
            self.of.changed.notify_waiters();
        }
    }
}

impl Background {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            // No work begins before the configured budget is set.
            budget: Mutex::new(Budget::new(1)),
            changed: Notify::new(),
            began: Instant::now(),
            worked: Mutex::default(),
            rate: Mutex::default(),
        })
    }

    pub(super) fn set_budget(&self, bytes_per_s: u64) {
        *self.budget.lock() = Budget::new(bytes_per_s);
    }

    fn at(&self, us: u64) -> Instant {
        self.began + Duration::from_micros(us)
    }

    /// Waits until a piece of so many bytes may begin.
    pub(super) async fn begin(self: &Arc<Self>, work: Work, bytes: u64) -> Piece {
        self.budget.lock().wants(work);
        let mut waiting = Waiting { of: self, work, is_over: false };
        loop {
            // Registered before the check, so that no change is missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let now_us = self.began.elapsed().as_micros() as u64;
            let turn = self.budget.lock().may_begin(now_us, work, bytes);
            match turn {
                Admission::Begins => {
                    waiting.is_over = true;
                    self.changed.notify_waiters();
                    return Piece(self.clone());
                }
                Admission::Later => changed.await,
                Admission::NotBefore(us) => tokio::select! {
                    biased;
                    () = sleep_until(self.at(us)) => {}
                    () = changed => {}
                },
            }
        }
    }

    /// Notes that these data servers have a piece of work, until this is dropped.
    pub(super) fn at_work(self: &Arc<Self>, servers: Vec<ServerId>) -> AtWork {
        let mut worked = self.worked.lock();
        servers.iter().for_each(|server| *worked.entry(*server).or_default() += 1);
        AtWork { background: self.clone(), servers }
    }

    /// The data servers that have had work since the last call.
    fn worked(&self) -> Vec<ServerId> {
        let mut worked = self.worked.lock();
        let servers = worked.keys().copied().collect();
        worked.retain(|_, pieces| *pieces > 0);
        servers
    }

    /// Bytes a second that copies may take now.
    pub(super) fn copy_rate(&self) -> u64 {
        self.budget.lock().rate_of(Work::Rebuild)
    }

    /// The budget of the configuration.
    pub(super) fn bytes_per_s(&self) -> u64 {
        self.budget.lock().bytes_per_s()
    }

    fn note_rate(&self, seconds: f64) {
        let budget = self.budget.lock();
        let bytes: u64 = WORKS.into_iter().map(|work| budget.taken(work).bytes).sum();
        drop(budget);
        self.rate.lock().note(bytes, seconds);
    }

    pub(super) fn now(&self) -> BackgroundStatus {
        let (budget, per_s) = (self.budget.lock(), self.rate.lock().per_s());
        let bytes = |work| budget.taken(work).bytes;
        BackgroundStatus {
            bytes_per_s_max: budget.bytes_per_s(),
            bytes_per_s_allowed: budget.rate(),
            bytes_per_s: per_s,
            under_way: budget.under_way() as u64,
            yields: budget.yields(),
            rebuild_bytes: bytes(Work::RebuildSingle) + bytes(Work::Rebuild),
            scrub_bytes: bytes(Work::Scrub),
            digest_bytes: bytes(Work::Digest),
        }
    }
}

/// Adapts the budget to clients' requests, until the server is gone.
pub(super) async fn watch(meta: Weak<Meta>, background: Arc<Background>) {
    let mut looked = Instant::now();
    loop {
        sleep_until(looked + LOAD_CHECK_INTERVAL).await;
        let seconds = looked.elapsed().as_secs_f64();
        looked = Instant::now();
        background.note_rate(seconds);
        let Some(meta) = meta.upgrade() else { return };
        if meta.is_stopping() {
            return;
        }
        meta.log.note_rates(seconds);
        let lent = meta.rebuild.order.bytes_per_s(background.bytes_per_s());
        background.budget.lock().lend(lent);
        let is_at_rest = {
            let budget = background.budget.lock();
            !budget.is_busy() && budget.rate() == budget.bytes_per_s()
        };
        if is_at_rest {
            continue;
        }
        let clients = meta.clients(&background).await;
        background.budget.lock().observe_clients(clients);
        background.changed.notify_waiters();
    }
}

impl Meta {
    /// The most clients' requests that are under way at one of the servers that have background work.
    async fn clients(&self, background: &Background) -> u32 {
        if self.log_is_busy() {
            return u32::MAX;
        }
        match &self.other_roles {
            OtherRoles::Here(here) => here.data.clients(),
            OtherRoles::Apart(cluster) => {
                let loads = background.worked().into_iter().map(|server| cluster.load(server));
                join_all(loads).await.into_iter().max().unwrap_or(0)
            }
        }
    }
}

impl Cluster {
    /// Clients' requests under way at a data server. A server that does not answer counts as having many.
    async fn load(&self, server: ServerId) -> u32 {
        let Some(peer) = self.data.of(&self.managers.map(), server) else { return 0 };
        let asked = peer.call(&DataCall::Load, Bytes::new(), Instant::now() + LOAD_TIMEOUT);
        match timeout(LOAD_TIMEOUT, asked).await {
            Ok(Ok((DataReply::Load(clients), _))) => clients,
            answer => {
                tracing::debug!(%server, ?answer, "a data server did not report its background work");
                CLIENTS_QUEUE
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece for which the budget of the tests takes 50 ms.
    const PIECE: u64 = 1024 * 1024;
    const PIECE_TAKES: Duration = Duration::from_millis(50);

    fn background() -> Arc<Background> {
        let background = Background::new();
        background.set_budget(20 * PIECE);
        background
    }

    #[tokio::test]
    async fn turns_come_at_the_rate_and_the_more_urgent_first() {
        let background = background();
        let begun = Instant::now();
        drop(background.begin(Work::Scrub, PIECE).await);
        let order = Mutex::new(Vec::new());
        let one = |work| {
            let (background, order) = (background.clone(), &order);
            async move {
                let _piece = background.begin(work, PIECE).await;
                order.lock().push(work);
            }
        };
        tokio::join!(one(Work::Scrub), one(Work::Rebuild), one(Work::RebuildSingle));
        assert_eq!(*order.lock(), [Work::RebuildSingle, Work::Rebuild, Work::Scrub]);
        assert!(begun.elapsed() >= 3 * PIECE_TAKES, "{:?}", begun.elapsed());
        assert_eq!((background.now().under_way, background.now().scrub_bytes), (0, 2 * PIECE));
    }

    #[tokio::test]
    async fn who_goes_away_while_it_waits_does_not_keep_others_waiting() {
        let background = background();
        drop(background.begin(Work::Rebuild, 100 * PIECE).await);
        let given_up = timeout(PIECE_TAKES, background.begin(Work::Rebuild, PIECE));
        assert!(given_up.await.is_err(), "its turn would come after five seconds");
        background.budget.lock().wants(Work::Scrub);
        let favoured = background.budget.lock().may_begin(1 << 40, Work::Scrub, PIECE);
        assert_eq!(favoured, Admission::Begins);
    }
}
