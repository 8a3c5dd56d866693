//! A single node's space: above the high-water marks it is given from the first moment on; what rows leave free below is read
//! from the index behind the scenes (ADR 37).
//!
//! # Invariants
//!
//! 1. The index is read as it was when the PGs began to serve: all of their logs applied, nothing appended since. So what
//!    is found free below a mark was never given meanwhile.
//! 2. What contradicts itself ends the server, as it would have kept it from starting.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Instant;

use larder_kv::{Kv, KvReader};
use larder_protocol::rebuild::{Space, SpaceScan};
use larder_protocol::{IndexError, LvInfo};
use larder_types::{LvId, PgId, rows};

use super::recover::OpenError;
use super::{Here, Meta};
use crate::clock::now;

/// What is still to be read.
pub(super) struct Unread {
    reader: Box<dyn KvReader>,
    /// The puts that were open are in it.
    scan: SpaceScan,
    owners: BTreeMap<LvId, PgId>,
}

/// Takes a row with its value.
pub(super) type TakeRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), IndexError> + 'a;

impl Meta {
    /// Has every PG serve above its marks. Nothing is appended before.
    pub(super) fn begin_space(&self, here: &Here) -> Result<Unread, OpenError> {
        let map = here.manager.map();
        let (lvs, boot) = (&map.map.lvs, here.data.boot());
        lvs.iter().for_each(|record| here.data.create(record));
        let mut scan = SpaceScan::new(lvs.iter().map(|record| record.info(boot)));
        let mut by_pg: BTreeMap<PgId, Vec<LvInfo>> = BTreeMap::new();
        for record in lvs {
            by_pg.entry(record.pg).or_default().push(record.info(boot));
        }
        let reader = self.index.kv.snapshot()?;
        for pg in self.pg_ids() {
            let mut member = self.lock(pg);
            let machine = &mut member.pg;
            machine.open_chunks().for_each(|chunk| scan.claim(chunk));
            // Every proxy of before lived in a process that is gone.
            machine.end_sessions();
            let lvs = by_pg.remove(&pg).unwrap_or_default();
            let super::Member { pg: machine, out, .. } = &mut *member;
            let adopted = machine.adopt_early(lvs.into_iter(), out);
            adopted.map_err(|fault| OpenError::Contradiction(fault.to_string()))?;
            self.carry_out(&mut member);
        }
        let owners = lvs.iter().map(|record| (record.lv, record.pg)).collect();
        Ok(Unread { reader, scan, owners })
    }

    /// The space thread: reads all rows, then has every PG know what they leave free.
    pub(super) fn space_loop(&self, unread: Unread) {
        if let Err(error) = self.read_space(unread) {
            self.fail(format!("the space cannot be derived: {error}"));
        }
    }

    /// Visits every row that names space or streams; whether these were all, as the server is not stopping.
    pub(super) fn read_rows(
        &self,
        reader: &dyn KvReader,
        visit: &mut TakeRow<'_>,
    ) -> Result<bool, OpenError> {
        let mut unreadable = None;
        for table in rows::SPACE_TABLES {
            reader.scan(&[table], Some(&[table + 1]), &mut |row, value| {
                unreadable = visit(row, value).err();
                match unreadable.is_some() || self.is_stopping() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })?;
            if let Some(error) = unreadable {
                return Err(error.into());
            }
        }
        Ok(!self.is_stopping())
    }

    fn read_space(&self, unread: Unread) -> Result<(), OpenError> {
        let Unread { reader, mut scan, owners } = unread;
        let (begun, mut rows_read) = (Instant::now(), 0u64);
        let is_whole = self.read_rows(&*reader, &mut |row, value| {
            rows_read += 1;
            scan.note(row, value)
        })?;
        if !is_whole {
            return Ok(());
        }
        // What it holds back may go now.
        drop(reader);
        let derived = scan.finish();
        if let Some(fault) = derived.faults.first() {
            return Err(OpenError::Contradiction(fault.to_string()));
        }
        let is_as_wanted = derived.space.is_as_wanted;
        let mut by_pg: BTreeMap<PgId, Vec<_>> = BTreeMap::new();
        for (info, runs) in derived.space.lvs {
            by_pg.entry(owners[&info.lv]).or_default().push((info, runs));
        }
        for pg in self.pg_ids() {
            let lvs = by_pg.remove(&pg).unwrap_or_default();
            let mut member = self.lock(pg);
            let super::Member { pg: machine, out, .. } = &mut *member;
            machine.complete_space(now(), Space { lvs, is_as_wanted }, &self.index, out);
            self.carry_out(&mut member);
        }
        let ms = begun.elapsed().as_millis() as u64;
        tracing::info!(rows = rows_read, ms, "the space is known");
        self.space_known.send_replace(true);
        Ok(())
    }
}
