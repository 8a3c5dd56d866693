//! Snapshots that followers take from this server (`protocol/pg/snapshot.rs` has the rules).
//!
//! The rows of a group are scattered over the index, whose order serves lists: a read of one group's rows visits those of all
//! groups. A server that was away for long, or has lost its disk, takes snapshots of all its groups. So followers of several
//! groups share walks over the index.
//!
//! ```text
//!  report that would begin a snapshot ─▶ held, until no walk is under way
//!  turn: each report that is held: step ─▶ Effect::Snapshot; one reader for all; walk (lanes.rs)
//!  SnapshotNext ─▶ the lane's piece, or one that is read for this follower alone
//! ```
//!
//! # Invariants
//!
//! 1. A follower's reader shows exactly the state of its group that the snapshot's header names. If an op
//!    was applied to the group between its step and the taking of the shared reader, the group keeps a reader
//!    of its own.
//! 2. One report is held for each group. Others are dropped: a server that wants to follow repeats its report at its next tick.
//! 3. There is one walk at a time. A held report is stepped once the walk before it is over.
//! 4. A report of a member of the view is never held: commits wait for it.

mod lanes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_kv::{Kv, KvReader};
use larder_protocol::pg::read_piece;
use larder_protocol::{Event, PeerMessage};
use larder_types::{OpId, PgId, ServerId};
use parking_lot::Mutex;

use super::cluster::Cluster;
use super::index::index_error;
use super::{Member, Meta};
use crate::blocking;
use crate::limits::WALK_LANES_MAX;
use lanes::{Follower, LaneOf, PieceTaken, Sending, SharedWalk};

/// A snapshot that a follower takes.
pub(super) struct FollowerSnapshot {
    at: OpId,
    reader: Arc<dyn KvReader>,
    /// True while a piece is being read for this follower alone.
    is_read: bool,
    /// Its part in a walk that it shares.
    lane: Option<LaneOf>,
}

/// The followers that wait for a walk, and the walk under way.
#[derive(Default)]
pub(super) struct Snapshots {
    walk_queue: Mutex<WalkQueue>,
    begun: AtomicU64,
    walks: AtomicU64,
    read_alone: AtomicU64,
}

#[derive(Default)]
struct WalkQueue {
    held: BTreeMap<PgId, (ServerId, PeerMessage)>,
    is_walking: bool,
    is_stopped: bool,
    walk: Option<Arc<SharedWalk>>,
}

/// Counts of the snapshots that followers took from a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotCounters {
    /// Snapshots begun.
    pub begun: u64,
    /// Walks over the whole index that several may have shared.
    pub walks: u64,
    /// Pieces read for one follower alone.
    pub read_alone: u64,
}

impl Snapshots {
    pub(super) fn counters(&self) -> SnapshotCounters {
        SnapshotCounters {
            begun: self.begun.load(Ordering::Relaxed),
            walks: self.walks.load(Ordering::Relaxed),
            read_alone: self.read_alone.load(Ordering::Relaxed),
        }
    }

    /// Ends the walk under way, and lets no other begin.
    pub(super) fn stop(&self) {
        let mut walk_queue = self.walk_queue.lock();
        walk_queue.is_stopped = true;
        walk_queue.held.clear();
        if let Some(walk) = &walk_queue.walk {
            walk.stop();
        }
    }

    /// Holds a report. Returns true if no walk is under way, so that the caller must begin one.
    fn hold(&self, pg: PgId, from: ServerId, message: PeerMessage) -> bool {
        let mut walk_queue = self.walk_queue.lock();
        if walk_queue.is_stopped {
            return false;
        }
        if walk_queue.held.get(&pg).is_none_or(|(held, _)| *held == from) {
            walk_queue.held.insert(pg, (from, message));
        }
        !std::mem::replace(&mut walk_queue.is_walking, true)
    }

    /// Takes the reports for the next walk; none if no report is held.
    fn next_turn(&self, walk: &Arc<SharedWalk>) -> Vec<(PgId, ServerId, PeerMessage)> {
        let mut walk_queue = self.walk_queue.lock();
        let mut turn = Vec::new();
        // Once stopped, no report is held.
        while turn.len() < WALK_LANES_MAX
            && let Some((pg, (from, message))) = walk_queue.held.pop_first()
        {
            turn.push((pg, from, message));
        }
        walk_queue.is_walking = !turn.is_empty();
        walk_queue.walk = walk_queue.is_walking.then(|| walk.clone());
        turn
    }
}

impl Meta {
    /// Holds a report of a follower that needs a snapshot until a walk over the index begins.
    pub(super) fn hold_report(
        &self,
        cluster: &Cluster,
        pg: PgId,
        from: ServerId,
        message: PeerMessage,
    ) {
        if self.snapshots.hold(pg, from, message)
            && let Some(meta) = cluster.meta()
        {
            drop(blocking::run_on(&cluster.runtime, move || meta.walk_for_followers()));
        }
    }

    /// Walks until no report is held.
    fn walk_for_followers(&self) {
        let Some(cluster) = self.cluster() else { return };
        loop {
            let walk = Arc::default();
            let turn = self.snapshots.next_turn(&walk);
            if turn.is_empty() {
                return;
            }
            let Some(reader) = self.begin_walk(&walk, turn) else { continue };
            if self.is_stopping() {
                // The stop of the server may have come before the walk had lanes.
                walk.stop();
            }
            self.snapshots.walks.fetch_add(1, Ordering::Relaxed);
            let send = |Sending { pg, to, message }| cluster.send(pg, to, message);
            if let Err(error) = walk.run(&*reader, self.pgs.len() as u32, &send) {
                self.fail(format!("rows cannot be read for followers: {error}"));
            }
        }
    }

    /// Steps the held reports, and gives those that begin a snapshot one reader; `None` if none does.
    fn begin_walk(
        &self,
        walk: &Arc<SharedWalk>,
        turn: Vec<(PgId, ServerId, PeerMessage)>,
    ) -> Option<Arc<dyn KvReader>> {
        for (pg, to, message) in turn {
            let mut member = self.lock(pg);
            self.step(&mut member, Event::Peer { from: to, message });
            let (view, applied) = (member.pg.view(), member.pg.applied());
            let kept = member.view_state.snapshots.get_mut(&to);
            if let Some(kept) = kept.filter(|kept| kept.at == applied && kept.lane.is_none()) {
                kept.lane = Some(walk.join(pg, Follower { to, view, at: applied }));
            }
        }
        let groups = walk.groups();
        if groups.is_empty() {
            return None;
        }
        tracing::info!(groups = groups.len(), "one scan serves several followers' snapshots");
        let reader: Arc<dyn KvReader> = match self.index.kv.snapshot() {
            Ok(reader) => reader.into(),
            Err(error) => {
                self.fail(format!("no snapshot can be taken: {error}"));
                return None;
            }
        };
        for pg in groups {
            let mut member = self.lock(pg);
            let applied = member.pg.applied();
            let in_walk = |kept: &&mut FollowerSnapshot| {
                kept.lane.as_ref().is_some_and(|lane| lane.is_in(walk))
            };
            let Some(kept) = member.view_state.snapshots.values_mut().find(in_walk) else {
                continue;
            };
            if kept.at == applied {
                kept.reader = reader.clone();
            } else {
                kept.lane = None;
            }
        }
        Some(reader)
    }

    /// Keeps a reader of the index as it is now for a follower.
    pub(super) fn keep_snapshot(&self, member: &mut Member, to: ServerId, at: OpId) {
        let pg = member.pg.id();
        match self.index.kv.snapshot() {
            Ok(reader) => {
                tracing::info!(%pg, follower = %to, "a follower receives a snapshot");
                self.snapshots.begun.fetch_add(1, Ordering::Relaxed);
                let kept =
                    FollowerSnapshot { at, reader: reader.into(), is_read: false, lane: None };
                member.view_state.snapshots.insert(to, kept);
            }
            Err(error) => self.fail(format!("pg {pg}: no snapshot can be taken: {error}")),
        }
    }

    /// Sends the next rows of a follower's snapshot: from the walk that it shares, or read for it alone.
    pub(super) fn send_rows(
        &self,
        cluster: &Cluster,
        member: &mut Member,
        to: ServerId,
        (at, after): (OpId, Option<Vec<u8>>),
    ) {
        let (pg, view) = (member.pg.id(), member.pg.view());
        let Some(kept) = member.view_state.snapshots.get_mut(&to) else { return };
        if kept.at != at {
            return;
        }
        match kept.lane.as_ref().map_or(PieceTaken::Elsewhere, |lane| lane.take(after.as_deref())) {
            PieceTaken::Here(piece) => {
                return cluster.send(pg, to, PeerMessage::SnapshotRows { view, at, after, piece });
            }
            PieceTaken::Later => return,
            PieceTaken::Elsewhere => {}
        }
        if std::mem::replace(&mut kept.is_read, true) {
            return;
        }
        let (reader, Some(meta)) = (kept.reader.clone(), cluster.meta()) else { return };
        self.snapshots.read_alone.fetch_add(1, Ordering::Relaxed);
        drop(blocking::run_on(&cluster.runtime, move || {
            let scan = |from: &[u8], visit: &mut larder_protocol::index::Visit<'_>| {
                reader.scan(from, None, visit).map_err(index_error)
            };
            let pg_count = meta.pgs.len() as u32;
            let piece = read_piece(&scan, (pg, pg_count), after.as_deref());
            let kept = |kept: &&mut FollowerSnapshot| kept.at == at;
            if let Some(kept) = meta.lock(pg).view_state.snapshots.get_mut(&to).filter(kept) {
                kept.is_read = false;
            }
            match (piece, meta.cluster()) {
                (Ok(piece), Some(cluster)) => {
                    cluster.send(pg, to, PeerMessage::SnapshotRows { view, at, after, piece });
                }
                (Ok(_), None) => {}
                (Err(error), _) => meta.fail(format!("pg {pg}: rows cannot be read: {error}")),
            }
        }));
    }

    /// The counts of snapshots that followers took.
    #[must_use]
    pub fn snapshots(&self) -> SnapshotCounters {
        self.snapshots.counters()
    }
}
