//! Returns the space of unused physical volumes to the file system, after their volumes have moved to other disks.
//!
//! # Invariants
//!
//! 1. A PV is freed only under a map that is kept here and says that it is nobody's. The volume frees it only if that map is newer
//!    than the one under which it was given, and once its header says so durably. So an order to give it, which came by a newer map
//!    and went before, stands; and one that comes later finds it free.
//! 2. One command is under way at a time, of one step, and a pause follows: writes of clients pass between.
//! 3. A block device is left alone, and so is a file system that cannot, which is told once in a run.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use larder_protocol::manager::state::{DiskState, ServerState};
use larder_types::{Counter, MapVersion, PvId};
use larder_volume::{Action, Answer, Refusal};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::DataNode;
use crate::limits::{FREE_PAUSE_MS, FREE_SPACE_CHECK_MS, FREES_MAX};

/// The PVs that were freed in this run.
#[derive(Debug, Default)]
pub(super) struct Freed {
    state: Mutex<State>,
    /// Bytes that went back.
    bytes: Counter,
}

#[derive(Debug, Default)]
struct State {
    /// Those of which all has gone back, or that cannot be freed as long as the map says this of them.
    done: BTreeSet<PvId>,
    /// The one that is being freed.
    under_way: Option<PvId>,
}

impl Freed {
    /// A PV is given: what was known of it is over.
    pub(super) fn given(&self, pv: PvId) {
        let mut state = self.state.lock();
        state.done.remove(&pv);
        state.under_way.take_if(|it| *it == pv);
    }

    /// The next of those that nobody has.
    fn next(&self, free: &BTreeSet<PvId>) -> Option<PvId> {
        let mut state = self.state.lock();
        state.done.retain(|pv| free.contains(pv));
        let next = free.difference(&state.done).next().copied();
        state.under_way = next;
        next
    }

    fn is_done(&self, pv: PvId) {
        let mut state = self.state.lock();
        if state.under_way == Some(pv) {
            state.done.insert(pv);
        }
    }
}

impl DataNode {
    /// Bytes that went back to the file system, since the start.
    #[must_use]
    pub fn bytes_freed(&self) -> u64 {
        self.freed.bytes.get()
    }

    /// Frees what nobody has, as long as somebody polls this, or until it turns out to be of no use.
    pub(super) async fn give_space_back(&self) {
        if Path::new(&self.name).is_absolute() {
            return;
        }
        let mut pause_ms = 0;
        loop {
            sleep(Duration::from_millis(pause_ms)).await;
            pause_ms = FREE_PAUSE_MS;
            for _ in 0..FREES_MAX {
                let Some((pv, map)) = self.next_free() else {
                    pause_ms = FREE_SPACE_CHECK_MS;
                    break;
                };
                match self.free(pv, map).await {
                    Some(Ok(Answer::Freed { bytes, is_all })) => {
                        self.freed.bytes.add(bytes);
                        if is_all {
                            self.freed.is_done(pv);
                        }
                        if bytes > 0 {
                            tracing::debug!(%pv, %map, bytes, is_all, "space was returned to the file system");
                            break;
                        }
                    }
                    Some(Ok(_)) => unreachable!("a PV is freed or not"),
                    Some(Err(Refusal::KeepsSpace)) => {
                        tracing::info!(
                            disk = self.name,
                            "the file system cannot take space back: only other volumes on this disk can reuse what volumes free"
                        );
                        return;
                    }
                    // No room for the file system's own records of a hole: there may be later.
                    Some(Err(Refusal::Full)) => break,
                    Some(Err(Refusal::Broken)) | None => return,
                    Some(Err(refusal)) => {
                        tracing::debug!(%pv, %map, %refusal, "a physical volume is not freed");
                        self.freed.is_done(pv);
                    }
                }
            }
        }
    }

    /// The next PV that nobody has by the map that is kept here.
    fn next_free(&self) -> Option<(PvId, MapVersion)> {
        let map = self.managers.map();
        if self.managers.kept() < map.version {
            return None;
        }
        let server = map.servers.get(&self.me).filter(|it| it.state != ServerState::Removed)?;
        let disk = server.disks.get(&self.disk).filter(|it| it.state != DiskState::Removed)?;
        let pv = self.freed.next(&disk.freed)?;
        Some((pv, map.version))
    }

    /// `None` if the disk takes no more commands.
    async fn free(&self, pv: PvId, map: MapVersion) -> Option<Result<Answer, Refusal>> {
        let (done, ends) = oneshot::channel();
        let then = Box::new(move |result| {
            // Nobody waits for it any more.
            let _unheard = done.send(result);
        });
        self.server.perform(Action::FreePv { pv, map }, 0, then);
        ends.await.ok()
    }
}
