//! How a primary begins to serve in a view: it derives the PG's space from METAX, and drops the streams of
//! sessions that are over. One thread does it for all PGs that wait at the time, in one walk over the index.
//!
//! # Invariants
//!
//! 1. Between the derivation of a PG's space and its adoption nothing is appended to its log: it leads in an
//!    active view and serves nothing, and everything in its log is applied.
//! 2. A PG whose METAX contradicts itself is not served; the others are.

use std::collections::{BTreeMap, BTreeSet};

use larder_kv::{Kv, KvReader};
use larder_protocol::pg::{Role, owner};
use larder_protocol::rebuild::{Derived, SpaceScan};
use larder_protocol::{Call, Event};
use larder_types::codec::decode;
use larder_types::{BucketId, PgId, SessionId, StreamId, View, rows};
use parking_lot::{Condvar, Mutex};

use super::callers::NOBODY;
use super::cluster::Cluster;
use super::duties::Volumes;
use super::recover::{OpenError, for_each_row};
use super::{Member, Meta};

/// What waits for the adopt thread.
#[derive(Default)]
pub(super) struct Adoption {
    waiting: Mutex<Waiting>,
    ready: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// PGs that were told of their LVs.
    pgs: BTreeSet<PgId>,
    /// Sessions that are over.
    ended: BTreeSet<SessionId>,
    stopped: bool,
}

impl Adoption {
    pub(super) fn adopt(&self, pg: PgId) {
        self.waiting.lock().pgs.insert(pg);
        self.ready.notify_one();
    }

    pub(super) fn end_sessions(&self, sessions: BTreeSet<SessionId>) {
        self.waiting.lock().ended.extend(sessions);
        self.ready.notify_one();
    }

    pub(super) fn stop(&self) {
        self.waiting.lock().stopped = true;
        self.ready.notify_one();
    }

    /// All that waits, once there is something; `None` when stopped.
    fn take(&self) -> Option<(BTreeSet<PgId>, BTreeSet<SessionId>)> {
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
}

/// A PG whose space is being derived.
struct Adopting {
    view: View,
    sessions: BTreeSet<SessionId>,
    scan: SpaceScan,
}

impl Meta {
    /// The adopt thread.
    pub(super) fn adopt_loop(&self, cluster: &Cluster) {
        while let Some((pgs, ended)) = cluster.adoption.take() {
            let done = self.end_sessions(&ended).and_then(|()| self.adopt_all(cluster, &pgs));
            if let Err(error) = done {
                return self.fail(format!("the space cannot be derived: {error}"));
            }
        }
    }

    fn adopt_all(&self, cluster: &Cluster, pgs: &BTreeSet<PgId>) -> Result<(), OpenError> {
        let mut adopting: BTreeMap<PgId, Adopting> = BTreeMap::new();
        for &pg in pgs {
            adopting.extend(self.begin_adoption(cluster, pg).map(|begun| (pg, begun)));
        }
        if adopting.is_empty() {
            return Ok(());
        }
        let reader = self.index.kv.snapshot()?;
        let pg_count = self.pgs.len() as u32;
        for_each_row(&*reader, &mut |row, value| {
            let of = owner(row, value, pg_count)?;
            match of.and_then(|of| adopting.get_mut(&of)) {
                Some(adopting) => adopting.scan.note(row, value),
                None => Ok(()),
            }
        })?;
        drop(reader);
        for (pg, adopting) in adopting {
            self.end_adoption(cluster, pg, adopting);
        }
        Ok(())
    }

    /// Applies all that the PG's log has; `None` if that is not what it waits for any more.
    fn begin_adoption(&self, cluster: &Cluster, pg: PgId) -> Option<Adopting> {
        let mut member = self.lock(pg);
        let volumes = member.duties.volumes.take()?;
        if !member.is_active_in(volumes.view) {
            // Told again while its space was being derived: it serves by now, and may have new LVs.
            self.heed_volumes(cluster, &mut member, volumes);
            return None;
        }
        let Volumes { view, lvs, sessions } = volumes;
        self.apply_all(&mut member);
        if !member.is_active_in(view) {
            return None;
        }
        assert_eq!(
            member.pg.applied(),
            member.pg.last(),
            "pg {pg}: a view begins with its last op"
        );
        Some(Adopting { view, sessions, scan: SpaceScan::new(lvs.into_iter()) })
    }

    fn end_adoption(&self, cluster: &Cluster, pg: PgId, adopting: Adopting) {
        let Adopting { view, sessions, mut scan } = adopting;
        let mut member = self.lock(pg);
        if !member.is_active_in(view) {
            return;
        }
        member.pg.open_chunks().for_each(|chunk| scan.claim(chunk));
        let Derived { space, faults, open_streams, .. } = scan.finish();
        if let Some(fault) = faults.first() {
            tracing::error!(%pg, %fault, "the metadata contradicts itself: the pg is not served");
            member.duties.contradicts = true;
            return;
        }
        for (info, _) in &space.lvs {
            member.duties.note_lv(info);
        }
        let Member { pg: machine, out, .. } = &mut *member;
        machine.adopt_space(space, out);
        self.carry_out(&mut member);
        cluster.renew_soon();
        tracing::info!(%pg, %view, "the pg is served");
        let map = cluster.managers.map();
        // The list may be older than a session's end that was dealt with before this PG was served.
        let is_over = |session: &SessionId| {
            !sessions.contains(session) || map.closed.iter().any(|(_, it)| it == session)
        };
        let mut streams: BTreeSet<(BucketId, StreamId)> = member.pg.pending_streams().collect();
        streams.extend(open_streams.into_iter().map(|(bucket, stream, _)| (bucket, stream)));
        streams.retain(|(_, stream)| is_over(&stream.session));
        self.drop_streams(&mut member, streams);
    }

    fn drop_streams(&self, member: &mut Member, streams: BTreeSet<(BucketId, StreamId)>) {
        for (bucket, stream) in streams {
            let call = Call::DropStream { bucket, stream };
            self.step(member, Event::Call { token: NOBODY, call });
        }
    }

    /// Refuses what still comes of these sessions, then drops the streams that they left.
    fn end_sessions(&self, ended: &BTreeSet<SessionId>) -> Result<(), OpenError> {
        if ended.is_empty() {
            return Ok(());
        }
        let mut streams: BTreeMap<PgId, BTreeSet<(BucketId, StreamId)>> = BTreeMap::new();
        for pg in self.pg_ids() {
            let mut member = self.lock(pg);
            for &session in ended {
                self.step(&mut member, Event::Floor { session, floor: u64::MAX });
            }
            // Before the index is read: what is not pending any more is there.
            streams.entry(pg).or_default().extend(member.pg.pending_streams());
        }
        self.index.kv.scan(b"O", rows::prefix_end(b"O").as_deref(), &mut |row, value| {
            let of = decode::<PgId>("open stream row", value).ok();
            if let (Some(of), Some(stream)) = (of, rows::parse_open_stream(row)) {
                streams.entry(of).or_default().insert(stream);
            }
            std::ops::ControlFlow::Continue(())
        })?;
        for (pg, mut streams) in streams {
            streams.retain(|(_, stream)| ended.contains(&stream.session));
            if let Some(mut member) = self.member(pg)
                && member.pg.role() == Role::Serving
            {
                self.drop_streams(&mut member, streams);
            }
        }
        Ok(())
    }
}

impl Member {
    fn is_active_in(&self, view: View) -> bool {
        self.pg.view() == view && self.pg.role() == Role::Active
    }
}
