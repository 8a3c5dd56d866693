//! Comparisons of the members' indexes: when a primary begins one, and how a member sums its rows. And the rot that
//! they are for: a row that changes on one member, with a checksum that is right.

use std::collections::BTreeMap;

use larder_env::SeededRng;
use larder_kv::Kv;
use larder_protocol::digest::{Compared, IndexSum, Summed, Summer};
use larder_protocol::placement::pg_of;
use larder_protocol::{Event, Index, IndexError};
use larder_types::codec::{decode, encode};
use larder_types::{OpId, PgId, ServerId, VersionRow, rows};

use super::{Node, kv_fate};
use crate::clock::MS;
use crate::event::NodeIn;
use crate::index::{BUCKET, Port};
use crate::net::Net;
use crate::process_end::ProcessEnd;
use crate::verdict::Finding;

/// Longest time for which a sum waits or takes.
const SUM_US: u64 = 1_500 * MS;
/// One in so many sums is not made, as the server has too much to do.
const BUSY_ONE_IN: u64 = 20;
/// One in so many ticks begins a comparison where none of the view has found all equal.
const SOON_ONE_IN: u64 = 6;
/// One in so many ticks begins another.
const AGAIN_ONE_IN: u64 = 150;
/// The mark of a rotten version, which no client put there. Clients of the simulator do not look at
/// it.
const ROTTEN: &str = "rotten";

impl Node {
    /// At a tick: begins comparisons.
    pub(super) fn compare_indexes(&mut self, net: &mut Net) -> Result<(), ProcessEnd> {
        for pg in (0..self.setup.pgs).map(PgId) {
            let machine = &self.member(pg).pg;
            if !machine.may_compare() {
                continue;
            }
            let (view, is_equal) = (machine.view(), machine.compared() == Some(Compared::Equal));
            let map = &self.life().managers.map;
            let is_clean = map.pg(pg).is_some_and(|record| {
                let has_all = record.members.len() == record.target.len()
                    && record.members.iter().all(|member| record.target.contains(member));
                record.view == view && record.learners.is_empty() && has_all
            });
            let one_in = if is_equal { AGAIN_ONE_IN } else { SOON_ONE_IN };
            if is_clean && net.rng.one_in(one_in) {
                self.step(pg, Event::Compare, net)?;
            }
        }
        Ok(())
    }

    /// A digest was applied: the index as it is now is to be summed, a while later.
    pub(super) fn keep_for_sum(
        &mut self,
        pg: PgId,
        at: OpId,
        net: &mut Net,
    ) -> Result<(), ProcessEnd> {
        let reader = self.kv.snapshot().map_err(kv_fate)?;
        let (id, run) = (self.id, self.run);
        self.life().digests.insert(pg, (at, reader));
        let delay = net.rng.below(SUM_US);
        net.after(delay, (id, NodeIn::Sum { run, pg, at }));
        Ok(())
    }

    /// Sums the index as it was at a digest, in pieces of any size.
    pub(super) fn sum(&mut self, pg: PgId, at: OpId, net: &mut Net) -> Result<(), ProcessEnd> {
        let pgs = self.setup.pgs;
        let digests = &mut self.life().digests;
        // It may have been kept at a later digest since.
        if digests.get(&pg).is_none_or(|(of, _)| *of != at) {
            return Ok(());
        }
        let Some((_, reader)) = digests.remove(&pg) else { return Ok(()) };
        let is_live = self.setup.options.bugs.driver.sums_live_rows();
        let reader = if is_live { self.kv.snapshot().map_err(kv_fate)? } else { reader };
        let piece_max = 1 + net.rng.below(4_000) as usize;
        let scan = |from: &[u8], visit: &mut larder_protocol::index::Visit<'_>| {
            reader.scan(from, None, visit).map_err(|error| IndexError(error.to_string()))
        };
        let sum = if net.rng.one_in(BUSY_ONE_IN) {
            Summed::Nothing
        } else {
            match sum_all(&mut Summer::new(pg, pgs), &scan, piece_max) {
                Ok(sum) => Summed::Sum(sum),
                Err(error) => {
                    net.find(Finding::Contradiction(error.0));
                    return Ok(());
                }
            }
        };
        self.step(pg, Event::Digested { at, sum }, net)
    }

    /// Checks the result of a comparison: members differ only if a row was changed.
    pub(super) fn compared(
        &mut self,
        pg: PgId,
        outcome: Compared,
        sums: &BTreeMap<ServerId, Summed>,
        net: &mut Net,
    ) {
        let (name, odd) = match outcome {
            Compared::Equal => ("indexes found equal", None),
            Compared::Odd(server) => ("odd indexes found", Some(server)),
            Compared::Unclear => ("differing indexes, none of them odd", None),
            Compared::Void => ("comparisons of indexes void", None),
        };
        net.faults.add(name, 1);
        let mut agreed = self.agreed.borrow_mut();
        let differs = matches!(outcome, Compared::Odd(_) | Compared::Unclear);
        if differs && !agreed.changed_rows.contains_key(&pg) {
            let text = format!("pg {pg}: indexes differ though nothing rotted: {sums:?}");
            net.find(Finding::Contradiction(text));
        }
        agreed.odd.extend(odd.map(|server| (pg, server.0 as usize)));
    }

    /// Changes a row of a PG behind the index's back, its checksum too; the row, if there was one.
    pub(crate) fn change_row(&self, pg: PgId, rng: &mut SeededRng) -> Option<Vec<u8>> {
        let mut all = Port(&self.kv).collect(&rows::bucket(b'V', BUCKET)).ok()?;
        all.retain(|(row, _)| {
            rows::parse_keyed(row)
                .is_some_and(|(bucket, key, _)| pg_of(bucket, &key, self.setup.pgs) == pg)
        });
        if all.is_empty() {
            return None;
        }
        let (row, value) = all.swap_remove(rng.below(all.len() as u64) as usize);
        let mut version: VersionRow = decode("version row", &value).ok()?;
        version.metax.attributes.content_language = Some(ROTTEN.to_owned());
        self.kv.replace_unseen(&row, &encode(&version)).then_some(row)
    }

    /// The op of a version that this index shows, and whether it is rotten; `None` if there is none.
    pub(crate) fn shown(&self, row: &[u8]) -> Option<(OpId, bool)> {
        let value = Port(&self.kv).get(row).ok()??;
        let version: VersionRow = decode("version row", &value).ok()?;
        let language = version.metax.attributes.content_language;
        Some((version.op, language.as_deref() == Some(ROTTEN)))
    }
}

fn sum_all(
    summer: &mut Summer,
    scan: &larder_protocol::index::ScanFrom<'_>,
    piece_max: usize,
) -> Result<IndexSum, IndexError> {
    loop {
        if let Some(sum) = summer.go_on(scan, piece_max)? {
            return Ok(sum);
        }
    }
}
