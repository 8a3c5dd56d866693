//! Serving before the rows are read: space above the high-water marks is given at once, the rest once it is known
//! (ADR 37).

use std::collections::BTreeMap;

use larder_types::codec::encode;
use larder_types::{Chunk, LvId, OpSeq, rows};

use super::{Pg, Role};
use crate::high_water::HighWater;
use crate::index::{Changes, Index, IndexError, Row};
use crate::message::Outbox;
use crate::now::Now;
use crate::rebuild::{Space, SpaceFault};
use crate::space::{LvInfo, VolumeGroup};

impl Pg {
    /// Serves from now on in these LVs, above their marks. Everything in the log is applied: the driver keeps a reader of
    /// the index as it is now, and the chunks of the puts that are open now, for [`Pg::complete_space`].
    ///
    /// # Errors
    /// [`SpaceFault`] if open puts contradict each other or the map: nothing is served then.
    ///
    /// # Panics
    /// If the view is not active, or not everything is applied.
    pub fn adopt_early(
        &mut self,
        lvs: impl Iterator<Item = LvInfo>,
        out: &mut Outbox,
    ) -> Result<(), SpaceFault> {
        assert_eq!(self.applied, self.last(), "pg {}: all of its log is applied", self.id);
        let mut open: BTreeMap<LvId, Vec<&Chunk>> = BTreeMap::new();
        for chunk in self.open_chunks() {
            open.entry(chunk.lv).or_default().push(chunk);
        }
        let mut group = VolumeGroup::new(self.view);
        for info in lvs {
            let lv = info.lv;
            let mark = self.high_water.as_ref().map_or(info.blocks, |marks| marks.mark(lv));
            let open = open.remove(&lv).unwrap_or_default();
            group.add_above(info, mark, open.into_iter())?;
        }
        if let Some(&lv) = open.keys().next() {
            return Err(SpaceFault::UnknownLv { lv });
        }
        self.early_ms = self.now_ms;
        self.serve_in(group, true, out);
        Ok(())
    }

    /// Whether the rows are still to be read for its space.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.space.as_ref().is_some_and(VolumeGroup::is_unread)
    }

    /// Takes what was free when it began to serve, by all rows of that time and the puts that were open then.
    pub fn complete_space(&mut self, now: Now, space: Space, index: &dyn Index, out: &mut Outbox) {
        self.set_now(now);
        if self.role != Role::Serving {
            return;
        }
        if let Err(error) = self.try_complete(space, index, out) {
            self.halt(&error, out);
        }
        self.check();
    }

    fn try_complete(
        &mut self,
        found: Space,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let space = self.space.as_mut().expect("a serving primary has space");
        for (info, free) in found.lvs {
            space.complete(info.lv, free).map_err(|fault| IndexError(fault.to_string()))?;
        }
        let mut marks = HighWater::known(self.applied.view, space.tops());
        let mut changes = Changes::default();
        if let Some(row) = marks.changed(self.applied.view) {
            changes.put(rows::high_water(self.id), encode(&row));
        }
        index.write(changes)?;
        self.high_water = Some(marks);
        if !found.is_as_wanted {
            self.refills.want_walk();
        }
        self.feed_starved(index, out)
    }

    /// The row of its marks, for who writes rows that name what was reserved ([`Pg::reserve`]); `None` if they are not
    /// known.
    #[must_use]
    pub fn high_water_row(&self) -> Option<Row> {
        let marks = self.high_water.as_ref()?;
        Some((rows::high_water(self.id), encode(&marks.row(self.applied.view))))
    }

    pub(super) fn serve_in(&mut self, group: VolumeGroup, is_as_wanted: bool, out: &mut Outbox) {
        assert_eq!(self.role, Role::Active, "pg {}: space is adopted in an active view", self.id);
        for info in group.infos() {
            self.open_lv(info, info.present().iter(), OpSeq(0), out);
        }
        self.space = Some(group);
        self.role = Role::Serving;
        for open in self.open.values_mut().filter(|open| open.since_ms == 0) {
            // It was taken from the log, before there was a clock.
            open.since_ms = self.now_ms;
        }
        if !is_as_wanted {
            self.refills.want_walk();
        }
    }
}
