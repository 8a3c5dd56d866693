//! How a primary serves before its ledger is known: above the high-water marks, while one thread reads the index for what
//! lies below and for the ledgers (ADR 37).
//!
//! # Invariants
//!
//! 1. A reading's index is that of the moment in which its PGs began to serve: all of their logs applied, nothing appended.
//! 2. A PG waits for one reading at most: that of its latest view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Instant;

use larder_kv::{Kv, KvReader};
use larder_protocol::LvInfo;
use larder_protocol::pg::{LedgerWalk, Role};
use larder_types::{BucketId, Chunk, PgId, StreamId, View};

use super::adopt::Adopting;
use super::cluster::Cluster;
use super::recover::OpenError;
use super::{Member, Meta};
use crate::clock::now;

/// A PG that serves above its marks.
struct Early {
    view: View,
    lvs: Vec<LvInfo>,
    /// Its open puts' when it began.
    open: Vec<Chunk>,
}

/// What is to be read for some PGs.
pub(super) struct Reading {
    reader: Box<dyn KvReader>,
    walk: LedgerWalk,
    pgs: BTreeMap<PgId, Early>,
}

impl Reading {
    /// These PGs wait for a later one; whether any still waits for this.
    pub(super) fn leave_out(&mut self, later: &Self) -> bool {
        self.pgs.retain(|pg, _| !later.pgs.contains_key(pg));
        !self.pgs.is_empty()
    }
}

/// Streams that a PG's index shows to be open.
pub(super) type Streams = BTreeSet<(BucketId, StreamId)>;

impl Meta {
    /// Has PGs serve of which the ledger is not known.
    pub(super) fn adopt_early(
        &self,
        cluster: &Cluster,
        adopting: Vec<(Adopting, Streams)>,
    ) -> Result<(), OpenError> {
        if adopting.is_empty() {
            return Ok(());
        }
        let reader = self.index.kv.snapshot()?;
        let walk = LedgerWalk::new(self.pgs.len() as u32);
        let mut reading = Reading { reader, walk, pgs: BTreeMap::new() };
        for (adopting, streams) in adopting {
            self.begin_early(cluster, adopting, streams, &mut reading);
        }
        if !reading.pgs.is_empty() {
            cluster.adoption.read(reading);
        }
        Ok(())
    }

    fn begin_early(
        &self,
        cluster: &Cluster,
        adopting: Adopting,
        streams: Streams,
        reading: &mut Reading,
    ) {
        let (pg, view, lvs) = (adopting.pg, adopting.volumes.view, adopting.volumes.lvs.clone());
        let mut member = self.lock(pg);
        if !member.is_active_in(view) {
            return;
        }
        if member.pg.ledger().is_some() {
            // The first walk is through by now.
            drop(member);
            return self.end_adoption(cluster, adopting, streams);
        }
        if let Some(fault) = member.pg.ledger_fault() {
            tracing::error!(%pg, %fault, "what was known of the pg's blocks is void: the index is read again");
        }
        reading.walk.add(&mut member.pg);
        reading.walk.shows(pg, member.pg.applied());
        let open = member.pg.open_chunks().cloned().collect();
        let Member { pg: machine, out, .. } = &mut *member;
        if let Err(fault) = machine.adopt_early(lvs.iter().cloned(), out) {
            tracing::error!(%pg, %fault, "the metadata contradicts itself: the pg is not served");
            member.duties.contradicts = true;
            return;
        }
        reading.pgs.insert(pg, Early { view, lvs, open });
        self.serves(cluster, &mut member, adopting.volumes, streams);
    }

    /// The reading thread: all ledgers first, then what PGs that serve early wait for.
    pub(super) fn reading_loop(&self, cluster: &Cluster) {
        let mut done = self.know_ledgers(cluster);
        while done.is_ok()
            && let Some(reading) = cluster.adoption.take_reading()
        {
            done = self.read_early(cluster, reading);
        }
        if let Err(error) = done {
            self.fail(format!("the space cannot be derived: {error}"));
        }
    }

    fn read_early(&self, cluster: &Cluster, reading: Reading) -> Result<(), OpenError> {
        let Reading { reader, mut walk, pgs } = reading;
        let begun = Instant::now();
        if !self.read_rows(&*reader, &mut |row, value| walk.note(row, value))? {
            return Ok(());
        }
        drop(reader);
        cluster.adoption.ledger_reads.fetch_add(1, Ordering::Relaxed);
        let count = pgs.len();
        for (pg, Early { view, lvs, open }) in pgs {
            let space = walk.space(pg, lvs.into_iter(), open.iter());
            let mut member = self.lock(pg);
            walk.end(&mut member.pg);
            if member.pg.view() != view || member.pg.role() != Role::Serving {
                continue;
            }
            match space {
                Some(Ok(space)) => {
                    let Member { pg: machine, out, .. } = &mut *member;
                    machine.complete_space(now(), space, &self.index, out);
                    self.carry_out(&mut member);
                }
                Some(Err(fault)) => return Err(OpenError::Contradiction(fault.to_string())),
                None => unreachable!("pg {pg} was added when it began to serve"),
            }
        }
        let ms = begun.elapsed().as_millis() as u64;
        tracing::info!(pgs = count, ms, "the index was read for pgs that serve");
        Ok(())
    }
}
