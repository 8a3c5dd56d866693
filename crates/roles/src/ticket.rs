//! The state of a call that is under way in a PG and on disks, held by its caller.
//!
//! One ticket serves the whole of a put. The grant comes inline, METAX and the data report from other
//! threads, and the waiting task is woken once, when there is something to decide.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use larder_protocol::manager::state::MapVersion;
use larder_protocol::{Answer, AppendDone, CoalescePlan, Refusal};
use larder_types::{Extent, Grant, Holders, HybridClock, LvId, OpId, OpSeq, VersionRow};
use parking_lot::Mutex;

/// Where a put's data goes.
#[derive(Debug, Clone)]
pub struct Granted {
    /// The grant.
    pub grant: Grant,
    /// LV.
    pub lv: LvId,
    /// Runs of blocks.
    pub extents: Vec<Extent>,
    /// Replicas that all have to have it.
    pub replicas: Holders,
    /// The version's clock.
    pub clock: HybridClock,
    /// The map that names the replicas.
    pub as_of: MapVersion,
}

/// The outcome of a call.
#[derive(Debug)]
pub enum Settled {
    /// The op is in effect.
    Done(OpId, HybridClock),
    /// METAX of a put is persisted and every replica has answered: those of the set have the data.
    Written(Grant, Holders),
    /// The key's version, not in the index yet.
    Version(Option<Box<VersionRow>>),
    /// The index knows.
    AskIndex,
    /// The index shows what was taken before, in rows before this one or in all.
    Shows(Option<Vec<u8>>),
    /// An append is in effect.
    Appended(Box<AppendDone>),
    /// Pieces that are worth to be coalesced.
    Plan(Option<Box<CoalescePlan>>),
    /// Refused.
    Refused(Refusal),
}

impl Settled {
    /// The op that is in effect.
    pub(crate) fn op(&self) -> Option<OpSeq> {
        match self {
            Self::Done(op, _) => Some(op.seq),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    granted: Option<Granted>,
    answer: Option<Answer>,
    /// Replicas asked to write, and what they answered.
    writing: usize,
    written: usize,
    holders: Holders,
    full: bool,
    busy: bool,
    waker: Option<Waker>,
    /// Nobody waits any more.
    orphaned: bool,
}

impl State {
    fn settled(&self) -> bool {
        match &self.answer {
            None => false,
            Some(Answer::Persisted { .. }) => self.writing > 0 && self.written == self.writing,
            Some(_) => true,
        }
    }
}

/// A call under way.
#[derive(Debug, Default)]
pub struct Ticket {
    state: Mutex<State>,
}

impl Ticket {
    /// Takes a PG's response. Returns the op to abandon if it is a grant and the caller has gone.
    pub(crate) fn answered(&self, answer: Answer) -> Option<OpId> {
        let mut state = self.state.lock();
        if let Answer::Granted { grant, lv, extents, replicas, clock, as_of } = answer {
            if state.orphaned {
                return Some(grant.op);
            }
            state.granted = Some(Granted { grant, lv, extents, replicas, clock, as_of });
            wake(&mut state, true);
            return None;
        }
        state.answer = Some(answer);
        wake(&mut state, false);
        None
    }

    /// `replicas` are about to be asked to write the data.
    pub(crate) fn writing(&self, replicas: usize) {
        assert!(replicas > 0, "data goes to at least one replica");
        self.state.lock().writing = replicas;
    }

    /// A replica answered.
    pub(crate) fn written(&self, replica: usize, outcome: WriteOutcome) {
        let mut state = self.state.lock();
        state.written += 1;
        match outcome {
            WriteOutcome::Durable => state.holders = state.holders.with(replica),
            WriteOutcome::Full => state.full = true,
            WriteOutcome::Busy => state.busy = true,
            WriteOutcome::Failed => {}
        }
        wake(&mut state, false);
    }

    /// The grant, if it is there already or as soon as it comes; `None` if the call settled without.
    pub(crate) async fn granted(&self) -> Option<Granted> {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if let Some(granted) = state.granted.take() {
                return Poll::Ready(Some(granted));
            }
            if state.settled() {
                return Poll::Ready(None);
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Waits until the call is settled.
    pub(crate) async fn settled(&self) -> Settled {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if !state.settled() {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            let holders = state.holders;
            Poll::Ready(match state.answer.take() {
                Some(Answer::Persisted { grant }) => Settled::Written(grant, holders),
                Some(Answer::Done { op, clock }) => Settled::Done(op, clock),
                Some(Answer::Version(row)) => Settled::Version(row),
                Some(Answer::AskIndex) => Settled::AskIndex,
                Some(Answer::Passed) => Settled::Shows(None),
                Some(Answer::Settled(before)) => Settled::Shows(before),
                Some(Answer::Appended(done)) => Settled::Appended(done),
                Some(Answer::Plan(plan)) => Settled::Plan(plan),
                Some(Answer::Refused(refusal)) => Settled::Refused(refusal),
                Some(Answer::Granted { .. }) | None => unreachable!("neither settles a call"),
            })
        })
        .await
    }

    /// Returns true if a replica refused for want of space.
    pub(crate) fn hit_full_disk(&self) -> bool {
        self.state.lock().full
    }

    /// Returns true if the disk of a replica had too much to do to try.
    pub(crate) fn hit_busy_disk(&self) -> bool {
        self.state.lock().busy
    }

    /// Nobody waits any more: a grant that comes is to be abandoned. Returns a grant that has come.
    pub(crate) fn orphan(&self) -> Option<OpId> {
        let mut state = self.state.lock();
        state.orphaned = true;
        state.granted.as_ref().map(|granted| granted.grant.op)
    }
}

/// The outcome of a put's data at a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// It is durable there.
    Durable,
    /// The disk is full; nothing was written.
    Full,
    /// There is too much to do; nothing was tried.
    Busy,
    /// It was refused or failed.
    Failed,
}

fn wake(state: &mut State, always: bool) {
    if (always || state.settled())
        && let Some(waker) = state.waker.take()
    {
        waker.wake();
    }
}
