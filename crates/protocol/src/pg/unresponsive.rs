//! Members that do not answer their primary. The managers may hear both servers, if only the connection between the two is
//! cut or the member's log has stalled. Unless the primary reports it, they leave the view as it is, and nothing commits.
//!
//! # Invariants
//!
//! 1. A member that acknowledges the same op again and again, while others wait for it, is as one that is silent. Its log
//!    takes nothing, and the primary's tail stays full.

use larder_types::ServerId;

use super::{Pg, Role};
use crate::limits::UNRESPONSIVE_TICKS_MAX;
use crate::message::PeerMessage;

impl Pg {
    /// A tick. Every member that can says something soon: it reports, or acknowledges what ticks repeat to it, and so gets
    /// on; one that has everything does now and then ([`IDLE_TICKS`](crate::limits::IDLE_TICKS)).
    pub(super) fn count_quiet(&mut self) {
        if matches!(self.role, Role::Levelling | Role::Active | Role::Serving) {
            for member in &self.members[1..] {
                *self.quiet.entry(*member).or_default() += 1;
            }
        }
    }

    /// Returns true if this message shows that its sender gets this primary's messages. A member that gets none keeps
    /// reporting, and a view that waits for it commits nothing. Acknowledgements show progress if they advance.
    pub(super) fn acknowledges(&self, message: &PeerMessage) -> bool {
        match message {
            PeerMessage::Report { .. } => !self.levelled,
            PeerMessage::Acked { .. } => false,
            _ => true,
        }
    }

    /// Other members of this primary's view that it has not heard for long; none for one that is no primary.
    pub fn unheard(&self) -> impl Iterator<Item = ServerId> + '_ {
        let quiet = self.quiet.iter().filter(|(_, ticks)| **ticks > UNRESPONSIVE_TICKS_MAX);
        quiet.map(|(member, _)| *member)
    }
}
