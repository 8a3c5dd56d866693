//! A tick of one group: a step of its machine, and the removal of some of its garbage if it has its turn.

use larder_protocol::{Event, EventTime};
use larder_types::PgId;

use super::{Member, Meta};
use crate::limits::REAPS_PER_TICK_MAX;

/// Turns of groups to remove some of their garbage: a few groups at each tick. So the apply thread, which all groups share, has
/// time for clients however many large objects are deleted at once.
#[derive(Default)]
pub(super) struct Reaps {
    /// True if all servers know removal in steps, so that groups may begin it.
    pub(super) may_begin: bool,
    /// True while a damaged index takes no changes: garbage stays where it is.
    pub(super) is_held: bool,
    /// True if all servers know coalescing.
    pub(super) may_coalesce: bool,
    /// The number of groups that had a turn in this tick.
    begun: u32,
    /// The first group that has not had its turn.
    next: u32,
}

impl Reaps {
    fn may(&self, pg: PgId) -> bool {
        !self.is_held && self.begun < REAPS_PER_TICK_MAX && pg.0 >= self.next
    }

    fn begun(&mut self, pg: PgId) {
        self.begun += 1;
        if self.begun == REAPS_PER_TICK_MAX {
            self.next = pg.0 + 1;
        }
    }

    pub(super) fn end_tick(&mut self) {
        if self.begun < REAPS_PER_TICK_MAX {
            self.next = 0;
        }
        self.begun = 0;
    }
}

impl Meta {
    pub(super) fn tick(&self, now: EventTime, member: &mut Member, reaps: &mut Reaps) {
        match member.pg.wants_tick() {
            true => self.step_at(now, member, Event::Tick),
            false if self.cluster().is_some() => member.pg.pass_tick(),
            false => {}
        }
        member.pg.let_coalesce(reaps.may_coalesce);
        let may_begin = reaps.may_begin;
        if reaps.may(member.pg.id()) && member.pg.wants_to_reap(may_begin) {
            self.step_at(now, member, Event::Reap { may_begin });
            if member.pg.is_reaping() {
                reaps.begun(member.pg.id());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_group_has_a_turn_while_garbage_is_held() {
        let mut reaps = Reaps::default();
        assert!(reaps.may(PgId(0)));
        reaps.is_held = true;
        assert!(!reaps.may(PgId(0)), "whatever it has begun");
    }
}
