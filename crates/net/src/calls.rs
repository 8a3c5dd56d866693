//! Calls of one peer that wait for their answers.
//!
//! # Invariants
//!
//! 1. A number is never used twice, and numbers grow in the order in which calls are queued. So the highest number that has
//!    left decides for each call whether it has left.
//! 2. Each caller gets exactly one outcome: the answer, or the error of the deadline or of the connection's end,
//!    whichever comes first.
//! 3. No waiting call has a deadline before `due`.

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::{CallError, NotSent, Unknown};
use crate::frame::Frame;
use crate::limits::REQUESTS_MAX;

/// The outcome of a call: its answer, or the reason why there is none.
pub(crate) type Outcome = Result<Frame, CallError>;

/// A call that waits for its answer.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) answer: oneshot::Sender<Outcome>,
    pub(crate) deadline: Instant,
    pub(crate) since: Instant,
}

/// State of a call at the time it was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// It will not be sent.
    Before,
    /// Its peer may have it.
    UnderWay,
    /// It had ended.
    Over,
}

#[derive(Debug)]
struct Place {
    number: u64,
    waiting: Option<Waiting>,
}

/// All calls that wait, each in the slot that the low bits of its number name.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    places: Vec<Place>,
    free: Vec<u16>,
    issued: u64,
    /// The highest number whose frame was sent whole.
    sent_through: u64,
    /// The highest number whose frame is being sent, or was sent.
    begun_through: u64,
    /// The earliest deadline, also of calls that were answered since the last look.
    due: Option<Instant>,
}

const PLACE_BITS: u32 = 16;

impl Calls {
    /// The number of calls that wait.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The time to look for late calls again ([`expire`](Self::expire)); `None` if none waits.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes a call and returns its number; `None` if [`REQUESTS_MAX`] wait.
    pub(crate) fn enter(&mut self, waiting: Waiting) -> Option<u64> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() == REQUESTS_MAX => return None,
            None => {
                self.places.push(Place { number: 0, waiting: None });
                (self.places.len() - 1) as u16
            }
        };
        self.due = Some(self.due.map_or(waiting.deadline, |due| due.min(waiting.deadline)));
        self.issued += 1;
        let number = self.issued << PLACE_BITS | u64::from(place);
        let entry = &mut self.places[usize::from(place)];
        assert!(entry.waiting.is_none(), "a free place is empty");
        *entry = Place { number, waiting: Some(waiting) };
        Some(number)
    }

    /// Ends a call; `None` if it has ended before.
    pub(crate) fn leave(&mut self, number: u64) -> Option<Waiting> {
        let place = (number & ((1 << PLACE_BITS) - 1)) as u16;
        let entry = self.places.get_mut(usize::from(place))?;
        if entry.number != number {
            return None;
        }
        let waiting = entry.waiting.take()?;
        self.free.push(place);
        Some(waiting)
    }

    /// Returns true if its caller still waits for the answer.
    pub(crate) fn wanted(&self, number: u64) -> bool {
        let waiting = self.entry(number).and_then(|entry| entry.waiting.as_ref());
        waiting.is_some_and(|waiting| !waiting.answer.is_closed())
    }

    /// Notes that a call's frame is being sent and cannot be held back.
    pub(crate) fn begun(&mut self, number: u64) {
        assert!(number > self.begun_through, "calls leave in the order of their numbers");
        self.begun_through = number;
    }

    /// Cancels a call: one whose frame is not being sent yet ends here.
    pub(crate) fn cancel(&mut self, number: u64) -> Cancelled {
        if number <= self.begun_through {
            return if self.waits(number) { Cancelled::UnderWay } else { Cancelled::Over };
        }
        self.leave(number).map_or(Cancelled::Over, |_| Cancelled::Before)
    }

    /// Returns true if the call is still outstanding.
    pub(crate) fn waits(&self, number: u64) -> bool {
        self.entry(number).is_some_and(|entry| entry.waiting.is_some())
    }

    fn entry(&self, number: u64) -> Option<&Place> {
        let place = (number & ((1 << PLACE_BITS) - 1)) as usize;
        self.places.get(place).filter(|entry| entry.number == number)
    }

    pub(crate) fn sent(&mut self, number: u64) {
        assert!(number > self.sent_through, "calls leave in the order of their numbers");
        self.sent_through = number;
    }

    /// Ends calls whose deadline has passed, and those that no caller waits for if they can be held back. A call that was
    /// sent keeps its slot until its answer or its deadline, though no caller waits for it.
    pub(crate) fn expire(&mut self, now: Instant, ended: &mut Ended) {
        let begun = |number| number <= self.begun_through;
        let over = |place: &&Place| match &place.waiting {
            Some(waiting) => {
                waiting.deadline <= now || (waiting.answer.is_closed() && !begun(place.number))
            }
            None => false,
        };
        let numbers: Vec<u64> = self.places.iter().filter(over).map(|place| place.number).collect();
        self.end(&numbers, ended, CallError::NotSent(NotSent::Late), Unknown::Late);
        let left = self.places.iter().filter_map(|place| place.waiting.as_ref());
        self.due = left.map(|waiting| waiting.deadline).min();
        assert!(self.due.is_none_or(|due| due > now), "a caller that is late was told");
    }

    /// Ends all calls: the connection broke, or could not be made.
    pub(crate) fn fail(&mut self, not_sent: &CallError, unknown: Unknown, ended: &mut Ended) {
        let waits = |place: &&Place| place.waiting.is_some();
        let numbers: Vec<u64> =
            self.places.iter().filter(waits).map(|place| place.number).collect();
        self.end(&numbers, ended, not_sent.clone(), unknown);
        assert_eq!(self.len(), 0, "nobody waits on a broken connection");
    }

    fn end(&mut self, numbers: &[u64], ended: &mut Ended, not_sent: CallError, unknown: Unknown) {
        for &number in numbers {
            let sent = number <= self.sent_through;
            let error = if sent { CallError::Unknown(unknown.clone()) } else { not_sent.clone() };
            if let Some(waiting) = self.leave(number) {
                ended.push((waiting, Err(error)));
            }
        }
    }
}

/// Calls that have ended. Their callers are told once no lock is held.
pub(crate) type Ended = Vec<(Waiting, Outcome)>;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn waiting(deadline: Instant) -> (Waiting, oneshot::Receiver<Outcome>) {
        let (answer, receiver) = oneshot::channel();
        (Waiting { answer, deadline, since: Instant::now() }, receiver)
    }

    #[test]
    fn a_reply_to_an_ended_call_is_dropped() {
        let far = Instant::now() + Duration::from_secs(60);
        let mut calls = Calls::default();
        let (first, _receiver) = waiting(far);
        let number = calls.enter(first).unwrap();
        assert!(calls.leave(number).is_some());
        let (second, _receiver) = waiting(far);
        let again = calls.enter(second).unwrap();
        assert_eq!(again & 0xffff, number & 0xffff, "the place is used again");
        assert!(calls.leave(number).is_none());
        assert!(calls.leave(again).is_some());
        assert!(calls.leave(u64::MAX).is_none());
    }

    #[test]
    fn who_may_be_late_first_is_looked_for_then() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let (mut calls, mut ended) = (Calls::default(), Vec::new());
        assert_eq!(calls.due(), None);
        let (waits, _receivers): (Vec<_>, Vec<_>) =
            [9, 5, 7].map(at).map(waiting).into_iter().unzip();
        let numbers: Vec<u64> = waits.into_iter().map(|it| calls.enter(it).unwrap()).collect();
        assert_eq!(calls.due(), Some(at(5)));
        assert!(calls.leave(numbers[1]).is_some());
        assert!(calls.due() <= Some(at(7)), "no later than that of any that waits");
        calls.expire(at(5), &mut ended);
        assert_eq!((calls.due(), ended.len()), (Some(at(7)), 0));
        calls.expire(at(7), &mut ended);
        assert_eq!((calls.due(), ended.len()), (Some(at(9)), 1));
        calls.expire(at(9), &mut ended);
        assert_eq!((calls.due(), ended.len()), (None, 2));
    }

    #[test]
    fn what_has_left_may_have_been_executed_and_the_rest_was_not() {
        let mut calls = Calls::default();
        let now = Instant::now();
        let (sent, _sent) = waiting(now);
        let (queued, _queued) = waiting(now);
        let number = calls.enter(sent).unwrap();
        calls.enter(queued).unwrap();
        calls.sent(number);
        let mut ended = Vec::new();
        calls.expire(now, &mut ended);
        assert!(matches!(ended[0].1, Err(CallError::Unknown(Unknown::Late))));
        assert!(matches!(ended[1].1, Err(CallError::NotSent(NotSent::Late))));
        assert_eq!(calls.len(), 0);
    }

    #[test]
    fn a_closing_connection_keeps_its_slot_until_its_peer_is_notified() {
        let mut calls = Calls::default();
        let now = Instant::now();
        let (far, mut ended) = (now + Duration::from_secs(60), Vec::new());
        let [(begun, gone), (queued, also_gone)] = [waiting(far), waiting(far)];
        let number = calls.enter(begun).unwrap();
        calls.enter(queued).unwrap();
        calls.begun(number);
        drop((gone, also_gone));
        calls.expire(now, &mut ended);
        assert_eq!(ended.len(), 1, "one never leaves");
        assert_eq!(calls.cancel(number), Cancelled::UnderWay);
        assert!(calls.waits(number), "a cancel finds it");
        calls.expire(far, &mut ended);
        assert_eq!((ended.len(), calls.len()), (2, 0), "it has an end");
    }

    #[test]
    fn there_is_room_for_so_many_calls_and_no_more() {
        let mut calls = Calls::default();
        let mut kept = Vec::new();
        for _ in 0..REQUESTS_MAX {
            let (call, receiver) = waiting(Instant::now());
            kept.push(receiver);
            assert!(calls.enter(call).is_some());
        }
        assert!(calls.enter(waiting(Instant::now()).0).is_none());
    }
}
