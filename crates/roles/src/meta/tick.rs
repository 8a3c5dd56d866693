//! A tick of one group: its machine's, and a step of its garbage if it is its turn.

use larder_protocol::Event;
use larder_types::PgId;

use super::{Member, Meta};
use crate::limits::REAPS_PER_TICK_MAX;

/// Groups that remove a step of their garbage at a tick: a few, in turns. However many large objects go at once, the thread
/// that applies ops of all groups has time for clients.
#[derive(Default)]
pub(super) struct Reaps {
    /// Groups that have no steps yet may get them.
    pub(super) may_begin: bool,
    /// Pieces of objects may be coalesced.
    pub(super) may_coalesce: bool,
    /// Of this tick.
    begun: u32,
    /// The first group whose turn it is.
    next: u32,
}

impl Reaps {
    fn may(&self, pg: PgId) -> bool {
        self.begun < REAPS_PER_TICK_MAX && pg.0 >= self.next
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
    pub(super) fn tick(&self, member: &mut Member, reaps: &mut Reaps) {
        if member.pg.wants_tick() {
            self.step(member, Event::Tick);
        }
        member.pg.let_coalesce(reaps.may_coalesce);
        let may_begin = reaps.may_begin;
        if reaps.may(member.pg.id()) && member.pg.wants_to_reap(may_begin) {
            self.step(member, Event::Reap { may_begin });
            if member.pg.is_reaping() {
                reaps.begun(member.pg.id());
            }
        }
    }
}
