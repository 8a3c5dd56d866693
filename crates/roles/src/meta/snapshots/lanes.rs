//! A shared walk over the index, which reads the rows of several groups, each for a follower that takes a snapshot.
//!
//! ```text
//!  walk's thread: row ─▶ lane of its group: building ─full─▶ ready ─asked─▶ sent
//!  asked before it is ready:                           └──────────────────▶ sent
//! ```
//!
//! # Invariants
//!
//! 1. The pieces of a lane, one after the other, are all rows of its group in the walk's reader. A piece
//!    begins behind the last row of the one before it.
//! 2. A lane holds three pieces at most: the one sent last, one that is ready, and one that is being built. While a
//!    lane is full the walk waits.
//! 3. The walk waits [`LANE_STALL_MAX`] at most for a follower that takes no piece. It leaves that follower behind: from
//!    there on its pieces are read for it alone, from the same reader.
//! 4. A follower that gives its lane up, or a stop of the walk, ends the waiting at once.
//! 5. A lane outlives the walk until its follower has all pieces: it may ask for the last piece again.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use larder_env::threads::Condvar;
use larder_kv::KvReader;
use larder_protocol::pg::{Piece, owner};
use larder_protocol::{IndexError, PeerMessage};
use larder_types::{OpId, PgId, ServerId, View};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::super::index::index_error;
use crate::limits::{LANE_STALL_MAX, WALK_PIECE_BYTES};
use crate::planted::{Bug, has};

/// A shared walk over the index.
pub(super) struct SharedWalk {
    /// The time that it waits for a follower that takes no piece.
    max_wait: Duration,
    lanes: Mutex<BTreeMap<PgId, Lane>>,
    /// Notified when a piece was taken, or a lane is gone.
    moved: Condvar,
}

/// A message with a piece for a follower.
pub(super) struct Sending {
    pub(super) pg: PgId,
    pub(super) to: ServerId,
    pub(super) message: PeerMessage,
}

/// The result of a follower's request for a piece.
pub(in super::super) enum PieceTaken {
    /// The piece.
    Here(Piece),
    /// The piece is not built yet, and is sent once it is.
    Later,
    /// The walk does not have the piece: it is to be read for the follower alone.
    Elsewhere,
}

/// A follower's part in a walk; dropping it lets the walk go on without the follower.
pub(in super::super) struct LaneOf {
    walk: Arc<SharedWalk>,
    pg: PgId,
}

/// The follower that the rows of a group are for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Follower {
    pub(super) to: ServerId,
    pub(super) view: View,
    /// The last op that the rows show.
    pub(super) at: OpId,
}

struct Lane {
    follower: Follower,
    sent: Option<Part>,
    ready: Option<Part>,
    /// The time at which `ready` was last filled.
    ready_since: Instant,
    building: Part,
    building_bytes: usize,
    /// True if the follower waits for the piece behind `sent`.
    is_asked: bool,
}

/// A piece, and the row behind which it begins.
#[derive(Clone)]
struct Part {
    after: Option<Vec<u8>>,
    piece: Piece,
}

/// Bytes of rows in one piece. They are fewer in simulations, whose groups have few rows and are to have several pieces.
fn piece_bytes() -> usize {
    #[cfg(test)]
    if larder_env::simulated::threads::are_simulated() {
        return 256;
    }
    WALK_PIECE_BYTES
}

impl Default for SharedWalk {
    fn default() -> Self {
        Self::new(LANE_STALL_MAX)
    }
}

impl SharedWalk {
    fn new(max_wait: Duration) -> Self {
        Self { max_wait, lanes: Mutex::default(), moved: Condvar::new() }
    }

    /// Adds a follower that needs all rows of a group; a walk has one for each group.
    pub(super) fn join(self: &Arc<Self>, pg: PgId, follower: Follower) -> LaneOf {
        let before = self.lanes.lock().insert(pg, Lane::new(follower));
        assert!(before.is_none(), "pg {pg} has one lane in a walk");
        LaneOf { walk: self.clone(), pg }
    }

    /// The groups that are read.
    pub(super) fn groups(&self) -> Vec<PgId> {
        self.lanes.lock().keys().copied().collect()
    }

    /// Stops the walk: all followers are left behind.
    pub(super) fn stop(&self) {
        self.lanes.lock().clear();
        self.moved.notify_all();
    }

    /// Reads all rows, and sends them to followers that ask, until each has taken all or is left behind.
    ///
    /// # Errors
    /// The index's; no follower gets a last piece then.
    pub(super) fn run(
        &self,
        reader: &dyn KvReader,
        pg_count: u32,
        send: &dyn Fn(Sending),
    ) -> Result<(), IndexError> {
        let mut failed = None;
        let read = reader.scan(&[], None, &mut |row, value| match owner(row, value, pg_count) {
            Ok(Some(pg)) => self.note(pg, row, value, send),
            Ok(None) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        });
        let read = read.map_err(index_error).and_then(|()| failed.map_or(Ok(()), Err));
        match &read {
            Ok(()) => self.finish(send),
            Err(_) => self.stop(),
        }
        read
    }

    fn note(&self, pg: PgId, row: &[u8], value: &[u8], send: &dyn Fn(Sending)) -> ControlFlow<()> {
        let mut lanes = self.lanes.lock();
        let is_full = lanes.get(&pg).is_some_and(|lane| lane.building_bytes >= piece_bytes());
        if is_full {
            self.wait_for_free_lane(&mut lanes, pg);
        }
        if lanes.is_empty() {
            return ControlFlow::Break(());
        }
        let Some(lane) = lanes.get_mut(&pg) else { return ControlFlow::Continue(()) };
        let sending = is_full.then(|| lane.close(pg, false)).flatten();
        if !(is_full && has(Bug::SkipsRows)) {
            lane.building_bytes += row.len() + value.len();
            lane.building.piece.rows.push((row.to_vec(), value.to_vec()));
        }
        drop(lanes);
        sending.into_iter().for_each(send);
        ControlFlow::Continue(())
    }

    /// Closes the last pieces after the last row, and waits until they are taken.
    fn finish(&self, send: &dyn Fn(Sending)) {
        for pg in self.groups() {
            let mut lanes = self.lanes.lock();
            self.wait_for_free_lane(&mut lanes, pg);
            let sending = lanes.get_mut(&pg).and_then(|lane| lane.close(pg, true));
            drop(lanes);
            sending.into_iter().for_each(send);
        }
        for pg in self.groups() {
            self.wait_for_free_lane(&mut self.lanes.lock(), pg);
        }
    }

    /// Waits until a lane's ready piece is taken, or the lane is gone.
    fn wait_for_free_lane(&self, lanes: &mut MutexGuard<'_, BTreeMap<PgId, Lane>>, pg: PgId) {
        while let Some(waits) = lanes.get(&pg).filter(|lane| lane.ready.is_some()) {
            let waited = waits.ready_since.elapsed();
            if waited < self.max_wait {
                self.moved.wait_for(lanes, self.max_wait - waited);
            } else {
                // Leaves all stalled followers behind at once: a server that is gone follows many groups.
                lanes.retain(|pg, lane| {
                    let stays = lane.ready.is_none() || lane.ready_since.elapsed() < self.max_wait;
                    if !stays {
                        tracing::debug!(%pg, follower = %lane.follower.to, "a follower of a snapshot was too slow and was dropped");
                    }
                    stays
                });
            }
        }
    }
}

impl Lane {
    fn new(follower: Follower) -> Self {
        Self {
            follower,
            sent: None,
            ready: None,
            ready_since: Instant::now(),
            building: Part::behind(None),
            building_bytes: 0,
            is_asked: false,
        }
    }

    /// Closes the piece that was built: it goes to the follower if that waits for it, else it is ready.
    fn close(&mut self, pg: PgId, is_last: bool) -> Option<Sending> {
        assert!(self.ready.is_none(), "pg {pg}: a piece is taken before the next is ready");
        let last = self.building.piece.rows.last().map(|(row, _)| row.clone());
        let mut part = std::mem::replace(&mut self.building, Part::behind(last));
        self.building_bytes = 0;
        part.piece.is_last = is_last;
        if !std::mem::take(&mut self.is_asked) {
            (self.ready, self.ready_since) = (Some(part), Instant::now());
            return None;
        }
        let Follower { to, view, at } = self.follower;
        let after = part.after.clone();
        let piece = self.send(part);
        Some(Sending { pg, to, message: PeerMessage::SnapshotRows { view, at, after, piece } })
    }

    fn take(&mut self, after: Option<&[u8]>) -> PieceTaken {
        if let Some(sent) = self.sent.as_ref().filter(|sent| sent.after.as_deref() == after) {
            return PieceTaken::Here(sent.piece.clone());
        }
        let next = self.ready.as_ref().unwrap_or(&self.building);
        if next.after.as_deref() != after {
            return PieceTaken::Elsewhere;
        }
        match self.ready.take() {
            Some(part) => PieceTaken::Here(self.send(part)),
            None => {
                self.is_asked = true;
                PieceTaken::Later
            }
        }
    }

    /// Keeps a piece that is sent: the follower may ask for it again.
    fn send(&mut self, part: Part) -> Piece {
        self.sent.insert(part).piece.clone()
    }
}

impl Part {
    fn behind(after: Option<Vec<u8>>) -> Self {
        Self { after, piece: Piece { rows: Vec::new(), is_last: false } }
    }
}

impl LaneOf {
    /// Takes the piece behind a row. Does not block.
    pub(in super::super) fn take(&self, after: Option<&[u8]>) -> PieceTaken {
        let mut lanes = self.walk.lanes.lock();
        let taken = lanes.get_mut(&self.pg).map_or(PieceTaken::Elsewhere, |lane| lane.take(after));
        drop(lanes);
        self.walk.moved.notify_all();
        taken
    }

    /// Returns true if it is a lane of this walk.
    pub(super) fn is_in(&self, walk: &Arc<SharedWalk>) -> bool {
        Arc::ptr_eq(&self.walk, walk)
    }
}

impl Drop for LaneOf {
    fn drop(&mut self) {
        self.walk.lanes.lock().remove(&self.pg);
        self.walk.moved.notify_all();
    }
}

#[cfg(test)]
mod tests;
