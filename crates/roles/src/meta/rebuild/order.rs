//! The order of copies in the cluster: this server reports its need to the managers, which answer if it has its turn.
//! The rules are those of the machine, [`CopyPacing`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_env::clock::uptime_ms;
use larder_protocol::copy_pacing::{CopyNeed, CopyPacing, CopyTurn};
use larder_protocol::limits::WALK_CHECK_MS;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::pg::CopyPriority;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::meta::cluster::Cluster;

/// The driver of [`CopyPacing`].
#[derive(Debug, Default)]
pub struct Order {
    pacing: Mutex<CopyPacing>,
    changed: Notify,
    waited_ms: AtomicU64,
}

impl Order {
    /// Milliseconds for which copies waited for more urgent ones of other servers.
    #[must_use]
    pub fn waited_ms(&self) -> u64 {
        self.waited_ms.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self, bound: CopyPriority) {
        self.pacing.lock().begin(uptime_ms(), bound);
    }

    pub(super) fn found(&self, priority: Option<CopyPriority>) {
        self.pacing.lock().found(priority);
    }

    pub(super) fn rest(&self) {
        self.pacing.lock().rest();
    }

    /// Returns true if the walk under way may go on now. In a cluster with servers of an earlier release there are no turns.
    pub(super) fn may_copy(&self, cluster: Option<&Cluster>) -> bool {
        let knows_turns = cluster.is_some_and(Cluster::data_servers_copy);
        !knows_turns || self.pacing.lock().may_copy(uptime_ms())
    }

    /// Waits for an answer of the managers, or until it is time to look again.
    pub(super) async fn wait(&self) {
        self.pacing.lock().wait();
        let began = Instant::now();
        // In both cases the caller looks again.
        let _heard = timeout(Duration::from_millis(WALK_CHECK_MS), self.changed.notified()).await;
        self.waited_ms.fetch_add(began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Reports to the managers what there is to copy. `made` has the bytes copied so far.
    pub(in crate::meta) fn send_message(&self, cluster: &Cluster, made: u64, bytes_per_s: u64) {
        let need = self.pacing.lock().need();
        if let Some((priority, waits)) = need.filter(|_| cluster.data_servers_copy()) {
            let (boot, sent_ms) = (cluster.boot, uptime_ms());
            let need = CopyNeed { priority, made, bytes_per_s, waits };
            cluster.managers.send_message(ServerMessage::Copies { boot, sent_ms, need });
        }
    }

    /// Takes the leading manager's answer.
    pub(in crate::meta) fn receive_turn(&self, sent_ms: u64, turn: CopyTurn) {
        self.pacing.lock().receive_turn(sent_ms, turn);
        self.changed.notify_one();
    }

    /// Bytes a second that copies may take, with this budget of the server's own.
    pub(in crate::meta) fn bytes_per_s(&self, own: u64) -> u64 {
        self.pacing.lock().bytes_per_s(uptime_ms(), own)
    }
}
