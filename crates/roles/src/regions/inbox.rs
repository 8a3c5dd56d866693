//! The queue of the thread that pulls, and what may be in it.

use larder_protocol::clock_offsets::ClockReading;
use larder_protocol::region::pull::{Event, Source};
use larder_protocol::region::{Name, Token};
use larder_types::{Origin, PgId, RegionId, Stamp};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::taking::FetchResult;
use crate::inbox;

/// A message to the thread.
pub(super) enum Message {
    /// An event for the machine of this number.
    Event(u64, Event),
    /// The result of a fetch for that machine.
    Fetched(u64, FetchResult),
    /// A region's number of PGs, and its clock; `None` if it does not answer.
    Hello(RegionId, Option<(u32, ClockReading)>),
    /// The list of regions has changed.
    Members,
    /// Voids the answers that are on their way; told once they are void.
    VoidAnswers(oneshot::Sender<()>),
    /// Asks which of these tombstones may go.
    MayFree(Vec<Candidate>, oneshot::Sender<Vec<Candidate>>),
    /// Tokens, and true if they are noted now.
    Noted(Vec<(Source, Token)>, bool),
    Stop,
}

/// A tombstone that all other regions have passed.
pub(super) struct Candidate {
    pub(super) name: Name,
    pub(super) origin: Origin,
    /// The region that purged was removed, or is not known here yet.
    pub(super) is_former: bool,
    pub(super) pg: PgId,
    pub(super) at: Stamp,
}

/// The sending end of the thread's queue. The machine's requests bound its length: each has one answer, and a message
/// every [`REGION_COMING_MS`](crate::limits::REGION_COMING_MS) while its answer is coming.
#[derive(Clone)]
pub(super) struct Inbox(inbox::Inbox<Message>);

/// The receiving end of an [`Inbox`].
pub(super) struct Messages(inbox::InboxReceiver<Message>);

impl Inbox {
    pub(super) fn new() -> (Self, Messages) {
        let (inbox, taker) = inbox::inbox(usize::MAX);
        (Self(inbox), Messages(taker))
    }

    /// Asks which tombstones may go.
    pub(super) fn may_free(
        &self,
        candidates: Vec<Candidate>,
        asks: oneshot::Sender<Vec<Candidate>>,
    ) {
        self.send(Message::MayFree(candidates, asks));
    }

    /// Has regions asked again for what they are about to tell of journals, keys and buckets. Returns once answers on their way count
    /// no more; false if the thread has ended.
    pub(super) async fn void_answers(&self) -> bool {
        let (tells, done) = oneshot::channel();
        self.send(Message::VoidAnswers(tells));
        done.await.is_ok()
    }

    pub(super) fn stop(&self) {
        self.send(Message::Stop);
    }

    pub(super) fn send(&self, message: Message) {
        // The thread may have ended.
        let _ended = self.0.put(message);
    }
}

impl Messages {
    /// The next message; `None` if none comes until then.
    pub(super) fn take_until(&self, late: Instant) -> Option<Message> {
        self.0.take_until(late)
    }
}
