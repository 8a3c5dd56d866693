//! A data server of a cluster: its disk, and the handler of other servers' requests.
//!
//! # Invariants
//!
//! 1. The data file is created only for a disk that the map names and that has had no PV yet. The data of any other
//!    disk that is missing was lost, and no new file takes its id.
//! 2. It is created only once this server has kept a map that names the disk; a PV only once it has kept the map of the order.
//! 3. Nothing is written to a data file whose cluster and disk are not those that the map names for this server.

mod copies;
mod freed;
mod handler;
mod open;
mod reads;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use larder_env::threads::JoinHandle;
use larder_protocol::limits::{DISK_FULL_MS, SERVER_BEAT_MS};
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::manager::state::{ReplicaRecord, Topology};
use larder_protocol::scheduler::DiskCounts;
use larder_types::{BootId, DiskId, LvId, ServerId};
use larder_volume::{Action, Answer, Refusal};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::data::disk::DataServer;
use crate::limits::{FREE_SPACE_CHECK_MS, TICK_MS};
use crate::managers::{DeferredOrders, Managers, Presence, Run};
use crate::progress::{DiskRoomStatus, FileStatus};
pub use copies::CopyCounters;
use freed::Freed;
pub use handler::DataHandler;
#[cfg(test)]
pub(crate) use open::OpenedDisk;
pub use open::{DataNodeConfig, DataNodeError};
use reads::Reads;

/// A data server of a cluster.
pub struct DataNode {
    me: ServerId,
    server: Arc<DataServer>,
    disk: DiskId,
    /// File or device of the disk.
    name: String,
    managers: Arc<dyn Managers>,
    /// Reports this run to the managers.
    presence: OnceLock<Presence>,
    running: Mutex<Option<Running>>,
    /// Reads for other servers, and for copies.
    reads: Arc<Reads>,
    copies: CopyCounters,
    freed: Freed,
    /// Replicas whose volume was to be made before the map was kept that has them.
    deferred_orders: Arc<DeferredOrders<(LvId, u8)>>,
}

/// The parts that end when the server is closed.
struct Running {
    thread: JoinHandle<()>,
    /// The lock of the directory; none in simulations.
    lock: Option<larder_env::FileLock>,
}

impl DataNode {
    /// The id of this run.
    #[must_use]
    pub fn boot(&self) -> BootId {
        self.server.boot()
    }

    /// Its disk and queue.
    #[must_use]
    pub fn server(&self) -> &Arc<DataServer> {
        &self.server
    }

    /// Counts of reads that the page cache could not answer, since the start, and the number of those that wait now.
    #[must_use]
    pub fn reads(&self) -> (DiskCounts, usize) {
        self.reads.counts()
    }

    /// Counts of copies made here, and of bytes read for copies elsewhere.
    #[must_use]
    pub fn copies(&self) -> &CopyCounters {
        &self.copies
    }

    /// Room on its disk.
    #[must_use]
    pub fn free_space(&self) -> DiskRoomStatus {
        let (held, spare) = (self.server.held_bytes(), self.server.spare_bytes());
        let file = (!Path::new(&self.name).is_absolute()).then_some(FileStatus { held, spare });
        DiskRoomStatus { disk: self.disk.0, lacks_room: self.server.lacks_room(), file }
    }

    /// The reason in a map against this server's going on with its disk, if there is one.
    #[must_use]
    pub fn objection(&self, map: &Topology) -> Option<DataNodeError> {
        open::removed(map, self.me, self.disk, &self.name)
    }

    /// Reports to the managers that this run has begun, at these addresses, and that it goes on.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or when it is done twice.
    pub fn introduce(&self, me: ServerId, addresses: Vec<String>) {
        let run = Run { server: me, boot: self.boot(), addresses, has: Vec::new() };
        let introduced = self.presence.set(Presence::start(self.managers.clone(), run));
        assert!(introduced.is_ok(), "a run is introduced once");
    }

    /// Takes an order of the leading manager. A PV is created only once the map of the order is kept.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn receive_order(self: &Arc<Self>, message: &ManagerMessage) {
        if let (ManagerMessage::WhoAreYou, Some(presence)) = (message, self.presence.get()) {
            return presence.who_are_you();
        }
        let ManagerMessage::CreatePv { lv, pg, replica, disk, pv, map, .. } = *message else {
            return;
        };
        let kept = self.managers.kept();
        if kept < map {
            let node = Arc::downgrade(self);
            let about = (kept, map, (lv, replica));
            return self.deferred_orders.hold(
                &Handle::current(),
                about,
                message.clone(),
                move |order| {
                    if let Some(node) = node.upgrade() {
                        node.receive_order(&order);
                    }
                },
            );
        }
        let known = self.managers.map();
        if let Some(record) = known.lv(lv) {
            let is_it = |of: &ReplicaRecord| (of.disk, of.pv) == (disk, pv);
            let is_there = record.replicas.get(usize::from(replica)).is_none_or(is_it);
            if record.pg != pg || !is_there {
                tracing::warn!(%lv, %pg, %pv, %map, "refused to create a volume that contradicts the map: the order is late, or from managers of an older copy");
                return;
            }
        }
        if disk != self.disk {
            tracing::warn!(%lv, ?disk, "refused a volume on a disk that this server does not have");
            return;
        }
        self.freed.given(pv);
        let managers = self.managers.clone();
        let created = Box::new(move |result| match result {
            Ok(Answer::Created) => {
                managers.send_message(ServerMessage::Created(lv, replica, disk, pv))
            }
            Ok(_) => unreachable!("a PV is created or not"),
            Err(Refusal::Outdated) => {
                tracing::debug!(%lv, %pv, %map, "a manager assigned a physical volume too late");
            }
            Err(refusal) => {
                tracing::error!(%lv, %pv, %refusal, "a physical volume could not be created");
            }
        });
        self.server.perform(Action::CreatePv { pv, lv, replica, map }, 0, created);
    }

    /// Looks after the disk as long as somebody polls this: its free space, reads that wait for it, and what nobody has any more.
    pub async fn watch_disk(&self) {
        tokio::join!(self.watch_free_space(), self.give_space_back());
    }

    /// The managers hear at once that there is no room for another volume, and then as long as it is so.
    async fn watch_free_space(&self) {
        let (mut is_told, mut silent_ms, mut room_ms) = (false, 0, 0);
        let mut pause_ms = 0;
        loop {
            sleep(Duration::from_millis(pause_ms)).await;
            let passed_ms = pause_ms;
            self.reads.shed();
            self.server.measure_free_space();
            let is_calm = !self.server.is_nearly_full() && self.reads.counts().1 == 0;
            pause_ms = if is_calm { FREE_SPACE_CHECK_MS } else { TICK_MS };
            if !self.server.lacks_room() {
                room_ms += passed_ms;
                // Near the bound each write or delete may change it: that is not logged each time.
                if is_told && room_ms >= DISK_FULL_MS {
                    is_told = false;
                    tracing::info!(disk = self.name, "the disk has free space again");
                }
                continue;
            }
            if !is_told {
                tracing::warn!(disk = self.name, "the disk is full: puts go to other disks");
            }
            if !is_told || silent_ms >= SERVER_BEAT_MS {
                silent_ms = 0;
                self.managers.send_message(ServerMessage::NoRoom(self.boot(), self.disk));
            }
            (is_told, room_ms) = (true, 0);
            silent_ms += pause_ms;
        }
    }

    /// Stops the disk's thread once all accepted commands are durable, and unlocks the directory.
    pub fn close(&self) {
        self.server.stop();
        let Some(Running { thread, lock }) = self.running.lock().take() else { return };
        if thread.join().is_err() {
            tracing::error!("the disk's thread panicked");
        }
        drop(lock);
    }
}
