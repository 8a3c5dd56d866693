//! Questions for the version of the map that has every command that was answered before.
//!
//! # Invariants
//!
//! 1. A question is answered with the version that this manager had applied after the question came.
//! 2. It is answered only once a majority has followed this manager since. So no other manager can have answered a command in a
//!    later term before the question.
//! 3. One confirmation is under way at a time. Questions that come meanwhile share the next.
//! 4. At most [`COMMITTED_ASKERS_MAX`] wait. A further one is answered as busy.
//! 5. No ticket here is one of the policy's, nor used twice.

use larder_protocol::manager::quorum::Ticket;
use larder_protocol::manager::state::MapVersion;

use crate::limits::COMMITTED_ASKERS_MAX;

/// The first ticket: the policy counts its own from 0.
const TICKETS: u64 = 1 << 63;

/// See the module's head. `A` is an asker.
#[derive(Debug)]
pub(super) struct CommittedQuestions<A> {
    tickets: u64,
    under_way: Option<(Ticket, MapVersion, Vec<A>)>,
    next: Vec<A>,
}

impl<A> Default for CommittedQuestions<A> {
    fn default() -> Self {
        Self { tickets: TICKETS, under_way: None, next: Vec::new() }
    }
}

impl<A> CommittedQuestions<A> {
    /// Takes a question while this manager leads; returns the asker if too many wait.
    pub(super) fn ask(&mut self, asker: A) -> Result<(), A> {
        let waiting = self.under_way.as_ref().map_or(0, |(.., askers)| askers.len());
        if waiting + self.next.len() >= COMMITTED_ASKERS_MAX {
            return Err(asker);
        }
        self.next.push(asker);
        Ok(())
    }

    /// Begins the next confirmation with the version that is applied, if one is due.
    pub(super) fn begin(&mut self, applied: MapVersion) -> Option<Ticket> {
        if self.under_way.is_some() || self.next.is_empty() {
            return None;
        }
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        assert!(ticket.0 >= TICKETS, "the policy has the tickets below");
        self.under_way = Some((ticket, applied, std::mem::take(&mut self.next)));
        Some(ticket)
    }

    /// A majority has followed this manager since the confirmation began. Returns its version, and those who asked.
    pub(super) fn confirmed(&mut self, ticket: Ticket) -> Option<(MapVersion, Vec<A>)> {
        let (_, version, askers) = self.under_way.take_if(|(begun, ..)| *begun == ticket)?;
        Some((version, askers))
    }

    /// Returns all askers: this manager leads no more, or nobody follows it.
    pub(super) fn give_up(&mut self) -> Vec<A> {
        let mut askers = self.under_way.take().map(|(.., askers)| askers).unwrap_or_default();
        askers.append(&mut self.next);
        askers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_come_during_a_confirmation_share_the_next() {
        let mut questions = CommittedQuestions::default();
        assert_eq!(questions.begin(MapVersion(3)), None, "nobody asks");
        questions.ask(1).unwrap();
        let first = questions.begin(MapVersion(3)).unwrap();
        questions.ask(2).unwrap();
        questions.ask(3).unwrap();
        assert_eq!(questions.begin(MapVersion(4)), None, "one is under way");
        assert_eq!(questions.confirmed(Ticket(1)), None, "the policy's");
        assert_eq!(questions.confirmed(first), Some((MapVersion(3), vec![1])));
        let second = questions.begin(MapVersion(5)).unwrap();
        assert_eq!(questions.confirmed(first), None, "that one is over");
        assert_eq!(questions.confirmed(second), Some((MapVersion(5), vec![2, 3])));
    }

    #[test]
    fn a_confirmation_given_up_answers_nobody_later() {
        let mut questions = CommittedQuestions::default();
        questions.ask(1).unwrap();
        let before = questions.begin(MapVersion(3)).unwrap();
        questions.ask(2).unwrap();
        assert_eq!(questions.give_up(), [1, 2]);
        questions.ask(3).unwrap();
        let ticket = questions.begin(MapVersion(9)).unwrap();
        assert_eq!(questions.confirmed(before), None);
        assert_eq!(questions.confirmed(ticket), Some((MapVersion(9), vec![3])));
    }

    #[test]
    fn only_so_many_wait() {
        let mut questions = CommittedQuestions::default();
        questions.ask(0).unwrap();
        assert!(questions.begin(MapVersion(1)).is_some());
        (1..COMMITTED_ASKERS_MAX).for_each(|asker| questions.ask(asker).unwrap());
        assert_eq!(questions.ask(COMMITTED_ASKERS_MAX), Err(COMMITTED_ASKERS_MAX));
        assert_eq!(questions.give_up().len(), COMMITTED_ASKERS_MAX);
        questions.ask(7).unwrap();
    }
}
