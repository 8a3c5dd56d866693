//! Calls that wait for space: each is tried again when there may be some.

use super::Pg;
use crate::index::{Index, IndexError};
use crate::message::{Call, Outbox, Refusal, Token};

/// A call that waits for space.
#[derive(Debug)]
pub(super) struct SpaceWaiter {
    pub(super) token: Token,
    pub(super) call: Call,
    /// The tick at which it began to wait.
    since: u64,
}

impl SpaceWaiter {
    pub(super) fn call(self) -> (Token, Call) {
        (self.token, self.call)
    }
}

impl Pg {
    pub(super) fn starve(&mut self, token: Token, call: Call) {
        self.starved.push_back(SpaceWaiter { token, call, since: self.ticks });
    }

    /// Tries again the calls that wait for space; one that waits on has waited since it came.
    pub(super) fn feed_starved(
        &mut self,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let mut waiters = std::mem::take(&mut self.starved);
        while let Some(SpaceWaiter { token, call, since }) = waiters.pop_front() {
            if let Err(error) = self.mutate(token, call, true, index, out) {
                // A group that halts refuses all that wait.
                self.starved.append(&mut waiters);
                return Err(error);
            }
            if let Some(last) = self.starved.back_mut().filter(|last| last.token == token) {
                last.since = since;
            }
        }
        Ok(())
    }

    /// Refuses calls that began to wait for space at a tick before this one: space may never come, and they use up the
    /// limit of calls that need none. Their proxies may retry.
    pub(super) fn refuse_starved(&mut self, before: u64, out: &mut Outbox) {
        let is_overdue = |starved: &mut SpaceWaiter| starved.since < before;
        while let Some(SpaceWaiter { token, .. }) = self.starved.pop_front_if(is_overdue) {
            self.refuse(token, Refusal::Busy, out);
        }
    }
}
