//! The walk over the index that a meta server makes when it starts, or serves before it has read its rows, while its
//! members go on. Checks what members know, too.

use larder_protocol::ledger::{BucketCounts, NamedBlocks};
use larder_protocol::pg::LedgerWalk;
use larder_protocol::rebuild::{Space, SpaceFault};
use larder_protocol::{IndexError, LvInfo};
use larder_types::codec::decode;
use larder_types::{OpId, PgId, rows};

use super::Node;
use crate::clock::MS;
use crate::event::{NodeIn, ReadStep};
use crate::index::Port;
use crate::net::Net;
use crate::process_end::ProcessEnd;
use crate::verdict::Finding;

/// Microseconds between two steps of the walk, at most.
const STEP_US: u64 = 120 * MS;
/// Rows of a stretch, at most.
const STRETCH_ROWS: u64 = 60;

impl Node {
    /// Begins the walk, reads a stretch, ends the stretch: anything may come between.
    pub(super) fn read_index(&mut self, step: ReadStep, net: &mut Net) -> Result<(), ProcessEnd> {
        let pgs = self.setup.pgs;
        let life = self.life();
        let next = match step {
            ReadStep::Begin => {
                let mut walk = LedgerWalk::new(pgs);
                life.members.iter_mut().for_each(|member| walk.add(&mut member.pg));
                life.reading = Some(walk);
                ReadStep::Read
            }
            ReadStep::Read => {
                let Some(mut walk) = life.reading.take() else { return Ok(()) };
                let count = 1 + net.rng.below(STRETCH_ROWS) as usize;
                let until = self.read_for(&mut walk, count).unwrap_or_else(|error| {
                    net.find(Finding::Contradiction(error.0));
                    None
                });
                self.life().reading = Some(walk);
                ReadStep::End { until }
            }
            ReadStep::End { until } => {
                let Some(mut walk) = life.reading.take() else { return Ok(()) };
                let members = life.members.iter_mut();
                members.for_each(|member| walk.end_stretch(&mut member.pg, until.as_deref()));
                match until {
                    Some(until) => {
                        walk.go_on(until);
                        life.reading = Some(walk);
                        ReadStep::Read
                    }
                    None if self.complete_all(net)? => ReadStep::Begin,
                    None => {
                        self.life().is_reading = false;
                        return Ok(());
                    }
                }
            }
        };
        let pause = net.rng.below(STEP_US);
        net.after(pause, (self.id, NodeIn::ReadIndex { run: self.run, step: next }));
        Ok(())
    }

    /// All rows are read; returns whether some PG needs them again.
    fn complete_all(&mut self, net: &mut Net) -> Result<bool, ProcessEnd> {
        let mut is_any_unread = false;
        for pg in (0..self.setup.pgs).map(PgId) {
            is_any_unread |= self.complete_space(pg, net)?;
        }
        Ok(is_any_unread)
    }

    /// Reads so many rows, from where the walk is; returns the first that was not read.
    fn read_for(&self, walk: &mut LedgerWalk, count: usize) -> Result<Option<Vec<u8>>, IndexError> {
        let port = Port(&self.kv);
        for pg in walk.pgs().collect::<Vec<_>>() {
            let at = larder_protocol::Index::get(&port, &rows::applied(pg))?;
            let at = at.map(|row| decode::<OpId>("applied position", &row)).transpose()?;
            walk.shows(pg, at.unwrap_or_default());
        }
        let from = walk.from().to_vec();
        let mut left = count;
        for (row, value) in port.collect(&[])? {
            if row < from || LedgerWalk::is_behind_all(&row) {
                continue;
            }
            if left == 0 {
                return Ok(Some(row));
            }
            left -= 1;
            walk.note(&row, &value)?;
        }
        Ok(None)
    }

    /// The space that a PG may allocate from, by its ledger; it learns what the index names if that
    /// is not known.
    pub(super) fn derive_space(&mut self, pg: PgId, lvs: Vec<LvInfo>) -> Result<Space, IndexError> {
        let mut walk = LedgerWalk::new(self.setup.pgs);
        walk.add(&mut self.member(pg).pg);
        if walk.pgs().next().is_some() {
            self.read_for(&mut walk, usize::MAX)?;
            walk.end_stretch(&mut self.member(pg).pg, None);
        }
        let space = self.member(pg).pg.derive_space(lvs.into_iter());
        let fault = |fault: SpaceFault| IndexError(fault.to_string());
        space.ok_or_else(|| IndexError("nothing is known".to_owned()))?.map_err(fault)
    }

    /// Checks that nothing contradicts the ledger.
    pub(super) fn check_ledger(&mut self, pg: PgId, net: &mut Net) {
        if let Some(fault) = self.member(pg).pg.ledger_fault() {
            net.find(Finding::Contradiction(format!("the ledger of pg {pg}: {fault}")));
        }
        if let Some(fault) = self.member(pg).pg.count_fault() {
            net.find(Finding::Contradiction(format!("the counts of pg {pg}: {fault}")));
        }
    }

    /// Checks that every member knows of a PG what its rows say.
    pub(crate) fn check_ledgers(&self) -> Result<(), IndexError> {
        self.check_counts()?;
        let chunks = Port(&self.kv).chunks()?;
        for pg in self.pgs().filter(|pg| pg.is_whole()) {
            let mut named = NamedBlocks::default();
            for chunk in chunks.iter().filter(|chunk| chunk.grant.pg == pg.id()) {
                named.note(chunk).map_err(|fault| IndexError(fault.to_string()))?;
            }
            if pg.ledger() != Some(&named) {
                let (id, known) = (pg.id(), pg.ledger());
                return Err(IndexError(format!(
                    "pg {id}: rows name {named:?}, known is {known:?}"
                )));
            }
        }
        Ok(())
    }
}

impl Node {
    /// The objects that every member has counted are those of its rows.
    fn check_counts(&self) -> Result<(), IndexError> {
        let objects = Port(&self.kv).objects(self.setup.pgs)?;
        for pg in self.pgs().filter(|pg| pg.is_whole()) {
            let mut counts = BucketCounts::default();
            for (_, bucket, size) in objects.iter().filter(|(of, ..)| *of == pg.id()) {
                counts.note(*bucket, *size).map_err(|fault| IndexError(fault.to_string()))?;
            }
            if pg.counts() != Some(&counts) {
                let (id, known) = (pg.id(), pg.counts());
                return Err(IndexError(format!(
                    "pg {id}: rows have {counts:?}, counted is {known:?}"
                )));
            }
        }
        Ok(())
    }
}

/// True if two say the same of a PG's space.
pub(super) fn is_same(one: &Space, other: &Space) -> bool {
    one.lvs == other.lvs && one.is_as_wanted == other.is_as_wanted
}
