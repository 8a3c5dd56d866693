//! A primary that serves above its high-water marks while its rows are read; and runs of a release that knows no marks.

use larder_kv::{Batch, Kv};
use larder_protocol::{LvInfo, Outbox};
use larder_types::codec::encode;
use larder_types::{HighWaterRow, OpId, PgId, rows};

use super::Node;
use crate::event::{NodeIn, ReadStep};
use crate::index::Port;
use crate::net::Net;
use crate::process_end::ProcessEnd;
use crate::verdict::Finding;

/// One in so many runs is of a release that knows no marks, where primaries serve early in others.
pub(super) const OLDER_ONE_IN: u64 = 3;

impl Node {
    /// In every other view a primary serves early, if it may.
    pub(super) fn serves_early(&mut self, pg: PgId) -> bool {
        let is_wanted = self.setup.options.early && !self.life().is_older;
        let machine = &self.member(pg).pg;
        is_wanted && machine.view().0.is_multiple_of(2) && machine.has_marks()
    }

    /// Serves at once, and has the rows read.
    pub(super) fn adopt_early(
        &mut self,
        pg: PgId,
        lvs: Vec<LvInfo>,
        net: &mut Net,
    ) -> Result<(), ProcessEnd> {
        let mut out = Outbox::new();
        let machine = &mut self.member(pg).pg;
        machine.forget_ledger();
        if let Err(fault) = machine.adopt_early(lvs.into_iter(), &mut out) {
            let view = machine.view();
            net.find(Finding::Contradiction(format!("pg {pg} in view {view}: {fault}")));
            return Ok(());
        }
        net.faults.add("views served before the rows are read", 1);
        if !std::mem::replace(&mut self.life().is_reading, true) {
            net.soon((self.id, NodeIn::ReadIndex { run: self.run, step: ReadStep::Begin }));
        }
        self.perform(pg, out, net)
    }

    /// The rows are read: takes what they leave free. Returns whether they are to be read again for it.
    pub(super) fn complete_space(&mut self, pg: PgId, net: &mut Net) -> Result<bool, ProcessEnd> {
        let (now, kv) = (self.now(net), self.kv.clone());
        loop {
            let mut out = Outbox::new();
            let goes_on = self.member(pg).pg.complete_space(now, &Port(&kv), &mut out);
            self.perform(pg, out, net)?;
            if !goes_on {
                break;
            }
        }
        let machine = &self.member(pg).pg;
        if let Some(fault) = machine.contradiction() {
            net.find(Finding::Contradiction(format!("pg {pg}, read behind the scenes: {fault}")));
        }
        // Also one that leads no more, whose ledger was given up when it began to.
        let is_unknown = machine.is_whole() && machine.ledger().is_none();
        Ok(machine.is_unread() || is_unknown || machine.wants_count())
    }

    /// The row of a PG's marks, if this run is of a release that leaves it as it is.
    pub(super) fn marks_to_keep(&mut self, pg: PgId) -> Option<Vec<u8>> {
        if !self.life().is_older {
            return None;
        }
        let row = larder_protocol::Index::get(&Port(&self.kv), &rows::high_water(pg));
        let void = || encode(&HighWaterRow { op: OpId::default(), marks: Vec::new() });
        Some(row.ok().flatten().map_or_else(void, |row| row.to_vec()))
    }

    /// Leaves the row of a PG's marks as it was, though the position beside it has moved on.
    pub(super) fn keep_marks(&self, pg: PgId, marks: &[u8]) -> Result<(), ProcessEnd> {
        let mut batch = Batch::new();
        batch.position(&rows::high_water(pg), marks);
        self.kv.apply(&batch).map_err(super::kv_fate)
    }
}
