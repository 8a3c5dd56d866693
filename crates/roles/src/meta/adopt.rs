//! Adoption: a primary begins to serve in a view. It takes the PG's space from its ledger, and drops the streams of
//! closed sessions. The adopt thread does it for all PGs that wait at the time. The rows thread walks over the
//! index when the server starts, so that every member's ledger is known, and again for ledgers that become
//! unknown. A primary whose ledger is not known yet serves above its high-water marks meanwhile, or waits for
//! the walk if it has none (ADR 39).
//!
//! ```text
//!  told of LVs ─▶ adopt thread ─┬─ ledger known ─▶ serves
//!                     ▲         ├─ marks ────────▶ serves above them ─┐
//!                     │         └─ neither ─────▶ waits ──────────────┤
//!                     └──────────────── rows are read ◀── rows thread ◀┘
//! ```
//!
//! # Invariants
//!
//! 1. From the time at which a PG's space is taken until it serves, nothing is appended to its log. The primary leads
//!    in an active view and serves nothing, and everything in its log is applied.
//! 2. A PG whose METAX contradicts itself is not served; the others are.
//! 3. A PG that waits, or serves early, is queued for the rows thread, or in its walk. Only where the index is damaged nobody
//!    takes the queue any more, and the server ends once its groups can spare it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use larder_kv::KvReader;
use larder_protocol::pg::{LedgerWalk, Role};
use larder_protocol::rebuild::SpaceFault;
use larder_protocol::{Call, Event};
use larder_types::codec::decode;
use larder_types::{BucketId, PgId, SessionId, StreamId, View, rows};
use tokio::time::Instant;

use super::callers::NOBODY;
use super::cluster::Cluster;
use super::error::OpenError;
use super::pg_view::Volumes;
use super::{Member, Meta};
use crate::planted::{Bug, has};

/// A PG that is about to serve.
struct Adopting {
    pg: PgId,
    volumes: Volumes,
}

/// The open streams in the index.
type OpenStreams = BTreeMap<PgId, BTreeSet<(BucketId, StreamId)>>;

impl Meta {
    /// Runs the adopt thread.
    pub(super) fn adopt_loop(&self, cluster: &Cluster) {
        let mut done = Ok(());
        while done.is_ok()
            && let Some((pgs, ended)) = cluster.adoption.take()
        {
            done = self.end_sessions(&ended).and_then(|()| self.adopt_all(cluster, &pgs));
        }
        if let Err(error) = done {
            self.fail(format!("the space cannot be derived: {error}"));
        }
    }

    /// Runs the rows thread.
    pub(super) fn rows_loop(&self, cluster: &Cluster) {
        let mut done = self.derive_ledgers(cluster, &self.pg_ids().collect());
        while done.is_ok()
            && let Some(pgs) = cluster.adoption.take_unread()
        {
            done = self.derive_ledgers(cluster, &pgs);
        }
        if let Err(error) = done {
            if self.is_damaged_and_needed(cluster) {
                // It ends when it is not, and goes on until then with what it can read.
                return tracing::error!(%error, "the space cannot be derived, and groups need this server: start their other meta servers");
            }
            self.fail_unread(&error);
        }
    }

    /// Reads the rows of the PGs among these whose ledger or counts are not known. PGs that waited for it go on.
    fn derive_ledgers(&self, cluster: &Cluster, pgs: &BTreeSet<PgId>) -> Result<(), OpenError> {
        let were_read = self.read_unknown(cluster, pgs)?;
        for &pg in pgs {
            if !has(Bug::ForgetsEarly) {
                self.complete_space(pg);
            }
            let mut member = self.lock(pg);
            if let Some(fault) = member.pg.ledger_fault().filter(|_| member.leads_unserved()) {
                self.give_up(&mut member, fault);
            } else if member.pg.ledger().is_some() {
                member.pg.write_marks(&self.index)?;
                cluster.adoption.adopt(pg);
            } else if member.pg.is_unread() || member.pg.is_whole() && member.leads_unserved() {
                // Too much changed meanwhile.
                cluster.adoption.read(pg);
            }
            if member.pg.wants_count() && !member.view_state.contradicts {
                cluster.adoption.read(pg);
            }
        }
        if were_read {
            // The flush makes the marks durable for the next start.
            self.flush.ask();
        }
        if self.contradictions() > 0 {
            self.keep_void_marks()?;
            // A halted group would not even follow. The next run reads the rows before it leads, and serves the others.
            self.fail("the metadata of a group that was served contradicts itself".to_owned());
        }
        Ok(())
    }

    /// Gives up a group whose rows or open puts contradict each other. This primary does not serve it in this view. Its marks
    /// are void, so the next start reads its rows.
    fn give_up(&self, member: &mut Member, fault: SpaceFault) {
        let pg = member.pg.id();
        tracing::error!(%pg, %fault, "the metadata contradicts itself: the pg is not served; run `larder inspect`");
        member.view_state.contradicts = true;
        match member.pg.void_marks(&self.index) {
            Ok(()) => self.flush.ask(),
            Err(error) => self.fail(format!("the index takes no mark: {error}")),
        }
    }

    /// Walks over the index for the PGs among these whose ledger or counts are not known. Returns true if there are any and
    /// all rows were read.
    fn read_unknown(&self, cluster: &Cluster, pgs: &BTreeSet<PgId>) -> Result<bool, OpenError> {
        let mut walk = LedgerWalk::new(self.pgs.len() as u32);
        for &pg in pgs {
            let mut member = self.lock(pg);
            if member.view_state.contradicts {
                continue;
            }
            if let Some(fault) = member.pg.ledger_fault() {
                tracing::error!(%pg, %fault, "the pg's free space is uncertain: scanning the index again");
                member.pg.void_marks(&self.index)?;
            }
            if let Some(fault) = member.pg.count_fault() {
                tracing::warn!(%pg, %fault, "the counts of the pg's objects are invalid: counting again");
            }
            walk.add(&mut member.pg);
        }
        let count = walk.pgs().count();
        let begun = Instant::now();
        if count == 0 || !self.read_ledgers(&mut walk)? {
            return Ok(false);
        }
        cluster.adoption.ledger_reads.fetch_add(1, Ordering::Relaxed);
        let ms = begun.elapsed().as_millis() as u64;
        tracing::info!(pgs = count, ms, "the index was scanned for used space");
        Ok(true)
    }

    fn adopt_all(&self, cluster: &Cluster, pgs: &BTreeSet<PgId>) -> Result<(), OpenError> {
        let begin = |&pg| self.begin_adoption(cluster, pg);
        let adopting: Vec<Adopting> = pgs.iter().filter_map(begin).collect();
        if adopting.is_empty() {
            return Ok(());
        }
        let (mut streams, before) =
            (self.open_streams()?, cluster.adoption.counters().views_served);
        for adopting in adopting {
            let streams = streams.remove(&adopting.pg).unwrap_or_default();
            self.end_adoption(cluster, adopting, streams);
        }
        let served = cluster.adoption.counters().views_served - before;
        tracing::info!(served, "serving placement groups");
        Ok(())
    }

    /// Applies the whole log of a PG; `None` if the PG no longer waits for its adoption.
    fn begin_adoption(&self, cluster: &Cluster, pg: PgId) -> Option<Adopting> {
        let mut member = self.lock(pg);
        let volumes_sent = &mut member.view_state.volumes;
        // A PG is not served by an older map than that of its volumes: it is queued again once that map is here.
        let volumes = volumes_sent
            .take_if(|volumes_sent| volumes_sent.as_of <= cluster.managers.map().version)?;
        if !member.is_active_in(volumes.view) {
            // The volumes came again while its space was being derived: it serves by now, and may have new LVs.
            self.handle_volumes(cluster, &mut member, volumes);
            return None;
        }
        self.apply_all(&mut member);
        if !member.is_active_in(volumes.view) {
            return None;
        }
        assert_eq!(
            member.pg.applied(),
            member.pg.last(),
            "pg {pg}: a view begins with its last op"
        );
        Some(Adopting { pg, volumes })
    }

    fn end_adoption(
        &self,
        cluster: &Cluster,
        adopting: Adopting,
        mut streams: BTreeSet<(BucketId, StreamId)>,
    ) {
        let Adopting { pg, volumes } = adopting;
        let view = volumes.view;
        let mut member = self.lock(pg);
        if !member.is_active_in(view) {
            return;
        }
        match member.adopt(&volumes) {
            Ok(Adopted::Known) => {}
            Ok(Adopted::Early) => {
                cluster.adoption.views_early.fetch_add(1, Ordering::Relaxed);
                cluster.adoption.read(pg);
            }
            Ok(Adopted::NotYet) => {
                // Volumes that came since are newer.
                member.view_state.volumes.get_or_insert(volumes);
                return cluster.adoption.read(pg);
            }
            Err(fault) => return self.give_up(&mut member, fault),
        }
        let Volumes { lvs, sessions, .. } = volumes;
        // The effects below ask replicas to open, at the servers that the duties name.
        for info in &lvs {
            member.view_state.note_lv(info);
        }
        self.perform(&mut member);
        self.refresh_away(cluster, &mut member);
        cluster.adoption.views_served.fetch_add(1, Ordering::Relaxed);
        cluster.renew_soon();
        tracing::debug!(%pg, %view, "serving a pg");
        let map = cluster.managers.map();
        // The list may be older than the end of a session that was handled before this PG was served.
        let is_over = |session: &SessionId| {
            !sessions.contains(session) || map.closed.iter().any(|(_, it)| it == session)
        };
        streams.extend(member.pg.pending_streams());
        streams.retain(|(_, stream)| is_over(&stream.session));
        self.drop_streams(&mut member, streams);
    }

    pub(super) fn drop_streams(
        &self,
        member: &mut Member,
        streams: impl IntoIterator<Item = (BucketId, StreamId)>,
    ) {
        for (bucket, stream) in streams {
            let call = Call::DropStream { bucket, stream };
            self.step(member, Event::Call { token: NOBODY, call });
        }
    }

    /// Streams without a parent, of all PGs.
    pub(super) fn open_streams(&self) -> Result<OpenStreams, OpenError> {
        let mut streams = OpenStreams::new();
        let mut unreadable = None;
        self.index.kv.scan(b"O", rows::prefix_end(b"O").as_deref(), &mut |row, value| {
            match decode::<PgId>("open stream row", value)
                .map(|of| (of, rows::parse_open_stream(row)))
            {
                Ok((of, Some(stream))) => {
                    streams.entry(of).or_default().insert(stream);
                }
                Ok((_, None)) => {}
                Err(error) => unreadable = Some(error),
            }
            ControlFlow::Continue(())
        })?;
        unreadable.map_or(Ok(streams), |error| Err(error.into()))
    }

    /// Has PGs refuse late requests of these sessions, then drops the streams that the sessions left.
    fn end_sessions(&self, ended: &BTreeSet<SessionId>) -> Result<(), OpenError> {
        if ended.is_empty() {
            return Ok(());
        }
        let mut streams = OpenStreams::new();
        for pg in self.pg_ids() {
            let mut member = self.lock(pg);
            for &session in ended {
                self.step(&mut member, Event::Floor { session, floor: u64::MAX });
            }
            // Before the index is read, which shows the streams that are not pending any more.
            streams.entry(pg).or_default().extend(member.pg.pending_streams());
        }
        for (of, open) in self.open_streams()? {
            streams.entry(of).or_default().extend(open);
        }
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

/// The outcome of [`Member::adopt`].
enum Adopted {
    /// All of it: it serves.
    Known,
    /// The space above its high-water marks: it serves there.
    Early,
    /// Nothing before its rows are read: it does not serve yet.
    NotYet,
}

impl Member {
    fn is_active_in(&self, view: View) -> bool {
        self.pg.view() == view && self.pg.role() == Role::Active
    }

    /// Returns true if it leads and does not serve yet, without a known contradiction.
    fn leads_unserved(&self) -> bool {
        self.pg.role() == Role::Active && !self.view_state.contradicts
    }

    /// Serves in these volumes, if enough is known of their space.
    fn adopt(&mut self, volumes: &Volumes) -> Result<Adopted, SpaceFault> {
        let Self { pg, out, .. } = self;
        let lvs = || volumes.lvs.iter().cloned();
        if let Some(known) = pg.derive_space(lvs()) {
            pg.adopt_space(known?, out);
            return Ok(Adopted::Known);
        }
        if pg.has_marks() && pg.marks_are_of(|lv| volumes.lvs.iter().any(|info| info.lv == lv)) {
            pg.adopt_early(lvs(), out)?;
            return Ok(Adopted::Early);
        }
        Ok(Adopted::NotYet)
    }
}
