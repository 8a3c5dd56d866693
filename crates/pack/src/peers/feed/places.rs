//! The room that a worker has for the others: calls and streams under way, and bytes of answers in memory. Each of the others
//! has a share, so that none can take all of it.
//!
//! # Invariants
//!
//! 1. What is under way, and what answers have in memory until they have left, stays within [`ALL`], and of one caller within
//!    [`EACH`].
//! 2. A caller that waits for its own share has nothing of what all share: its queue holds up nobody else.
//! 3. A caller's share lasts as long as anything of it is in use. So there are at most as many as there are places.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use larder_types::ServerId;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{
    CHANGE_CALLS_OF_ONE_MAX, FEED_BODY_BYTES_MAX, FEED_BODY_BYTES_OF_ONE_MAX, FEED_BYTES_MAX,
    FEED_CALLS_MAX, FEED_CALLS_OF_ONE_MAX, FEED_CHANGES_BYTES_MAX, HANDED_ON_MAX,
    HANDED_ON_OF_ONE_MAX, PACKED_BYTES_MAX, WORKERS_MAX,
};

/// The most of each kind.
pub(super) struct Limits {
    body_calls: usize,
    change_calls: usize,
    streams: usize,
    change_bytes: usize,
    body_bytes: usize,
}

/// The room for all of them.
pub(super) const ALL: Limits = Limits {
    body_calls: FEED_CALLS_MAX,
    change_calls: WORKERS_MAX * CHANGE_CALLS_OF_ONE_MAX,
    streams: HANDED_ON_MAX,
    change_bytes: FEED_CHANGES_BYTES_MAX,
    body_bytes: FEED_BODY_BYTES_MAX,
};

/// The share of each.
pub(super) const EACH: Limits = Limits {
    body_calls: FEED_CALLS_OF_ONE_MAX,
    change_calls: CHANGE_CALLS_OF_ONE_MAX,
    streams: HANDED_ON_OF_ONE_MAX,
    change_bytes: FEED_BYTES_MAX,
    body_bytes: FEED_BODY_BYTES_OF_ONE_MAX,
};

/// The kinds of calls, and of bytes in memory. Those of changes are apart, so that they wait for no bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeedQuota {
    Changes,
    Bodies,
}

/// Room that is left.
struct PlaceBudget {
    body_calls: Arc<Semaphore>,
    change_calls: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    change_bytes: Arc<Semaphore>,
    body_bytes: Arc<Semaphore>,
}

impl PlaceBudget {
    fn of(limits: &Limits) -> Self {
        let room = |most| Arc::new(Semaphore::new(most));
        Self {
            body_calls: room(limits.body_calls),
            change_calls: room(limits.change_calls),
            streams: room(limits.streams),
            change_bytes: room(limits.change_bytes),
            body_bytes: room(limits.body_bytes),
        }
    }

    fn bytes(&self, of: FeedQuota) -> Arc<Semaphore> {
        match of {
            FeedQuota::Changes => self.change_bytes.clone(),
            FeedQuota::Bodies => self.body_bytes.clone(),
        }
    }
}

/// The room for all, and the shares of those that use some.
pub(crate) struct Places {
    all: Arc<PlaceBudget>,
    shares: Mutex<BTreeMap<ServerId, Arc<PlaceBudget>>>,
}

/// Something of all, and of a share.
#[derive(Debug)]
struct Taken {
    own: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

/// A call or stream under way.
pub(crate) struct Place {
    all: Arc<PlaceBudget>,
    share: Arc<PlaceBudget>,
    _taken: Taken,
}

/// Bytes of an answer, until they have left.
struct Leaving {
    bytes: Vec<u8>,
    _memory: Memory,
    _place: Place,
}

impl AsRef<[u8]> for Leaving {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Memory for an answer.
#[derive(Debug)]
pub(super) struct Memory(Taken);

impl Places {
    pub(super) fn new() -> Self {
        Self { all: Arc::new(PlaceBudget::of(&ALL)), shares: Mutex::default() }
    }

    /// A place for a call; `None` if there is none now.
    pub(crate) fn call(&self, caller: ServerId, of: FeedQuota) -> Option<Place> {
        self.enter(caller, |room| match of {
            FeedQuota::Changes => &room.change_calls,
            FeedQuota::Bodies => &room.body_calls,
        })
    }

    /// A place for a stream; `None` if there is none now.
    pub(super) fn stream(&self, caller: ServerId) -> Option<Place> {
        self.enter(caller, |room| &room.streams)
    }

    fn enter(
        &self,
        caller: ServerId,
        of: impl Fn(&PlaceBudget) -> &Arc<Semaphore>,
    ) -> Option<Place> {
        let mut shares = self.shares.lock();
        shares.retain(|_, share| Arc::strong_count(share) > 1);
        let share =
            shares.entry(caller).or_insert_with(|| Arc::new(PlaceBudget::of(&EACH))).clone();
        drop(shares);
        let own = of(&share).clone().try_acquire_owned().ok()?;
        let all = of(&self.all).clone().try_acquire_owned().ok()?;
        Some(Place { all: self.all.clone(), share, _taken: Taken { own, all } })
    }
}

impl Place {
    /// Waits for memory: first of the share, so that nothing of all is kept meanwhile.
    pub(super) async fn memory(&self, of: FeedQuota, bytes: usize) -> Memory {
        let most = match of {
            FeedQuota::Changes => EACH.change_bytes,
            FeedQuota::Bodies => EACH.body_bytes,
        };
        assert!(bytes <= most, "an answer fits its caller's share");
        let bytes = u32::try_from(bytes).expect("a share is less than 4 GiB");
        let own = self.share.bytes(of).acquire_many_owned(bytes).await;
        let own = own.expect("it is never closed");
        let all = self.all.bytes(of).acquire_many_owned(bytes).await;
        Memory(Taken { own, all: all.expect("it is never closed") })
    }

    /// The payload of an answer. The place and the memory are free once it has left, or never will.
    pub(super) fn payload(self, bytes: Vec<u8>, mut memory: Memory) -> Bytes {
        memory.shrink(bytes.len());
        Bytes::from_owner(Leaving { bytes, _memory: memory, _place: self })
    }
}

impl Memory {
    /// Gives back what is more than that.
    fn shrink(&mut self, bytes: usize) {
        for taken in [&mut self.0.own, &mut self.0.all] {
            let more = taken.num_permits().checked_sub(bytes);
            let more = more.expect("an answer takes no more memory than it waited for");
            drop(taken.split(more));
        }
    }
}

const _: () = assert!(
    EACH.body_calls < ALL.body_calls && EACH.streams < ALL.streams,
    "one worker leaves places to the others"
);
const _: () = assert!(
    2 * EACH.change_bytes <= ALL.change_bytes && 2 * EACH.body_bytes <= ALL.body_bytes,
    "one worker leaves memory to the others"
);
const _: () = assert!(
    EACH.change_bytes >= FEED_BYTES_MAX && EACH.body_bytes as u64 >= PACKED_BYTES_MAX,
    "the largest answer fits a share"
);
const _: () = assert!(ALL.body_bytes < u32::MAX as usize, "permits are counted in u32");

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const ONE: ServerId = ServerId(1);
    const OTHER: ServerId = ServerId(2);

    #[test]
    fn changes_are_sent_while_bodies_use_all_slots() {
        let places = Places::new();
        let callers = (0..).map(ServerId).take(ALL.body_calls / EACH.body_calls);
        let bodies: Vec<Place> = callers
            .flat_map(|caller| std::iter::from_fn(move || Some(caller)).take(EACH.body_calls))
            .filter_map(|caller| places.call(caller, FeedQuota::Bodies))
            .collect();
        assert_eq!(bodies.len(), ALL.body_calls);
        assert!(places.call(OTHER, FeedQuota::Bodies).is_none());
        let changes: Vec<Place> =
            std::iter::from_fn(|| places.call(OTHER, FeedQuota::Changes)).take(9).collect();
        assert_eq!(changes.len(), EACH.change_calls);
    }

    #[test]
    fn a_caller_has_its_share_of_places_and_leaves_some_to_others() {
        let places = Places::new();
        let taken: Vec<Place> =
            std::iter::from_fn(|| places.call(ONE, FeedQuota::Bodies)).collect();
        assert_eq!(taken.len(), FEED_CALLS_OF_ONE_MAX);
        assert!(places.call(OTHER, FeedQuota::Bodies).is_some());
        assert!(places.stream(ONE).is_some(), "streams have places of their own");
        drop(taken);
        assert!(places.call(ONE, FeedQuota::Bodies).is_some());
    }

    #[test]
    fn all_together_have_no_more_than_all_places() {
        let places = Places::new();
        let taken = (0..).map_while(|caller| {
            let taken: Vec<Place> =
                std::iter::from_fn(|| places.call(ServerId(caller), FeedQuota::Bodies)).collect();
            (!taken.is_empty()).then_some(taken)
        });
        let taken: Vec<Vec<Place>> = taken.collect();
        assert_eq!(taken.iter().flatten().count(), FEED_CALLS_MAX);
        assert!(places.shares.lock().len() <= FEED_CALLS_MAX + 1);
        drop(taken);
        assert!(places.call(ONE, FeedQuota::Bodies).is_some());
        assert_eq!(places.shares.lock().len(), 1, "a share goes when nobody uses it");
    }

    #[test]
    fn memory_is_taken_until_an_answer_has_left() {
        let places = Places::new();
        let place = || places.call(ONE, FeedQuota::Bodies).unwrap();
        let bytes = EACH.body_bytes / 2;
        let answers: Vec<Bytes> = (0..2)
            .map(|_| {
                let place = place();
                let memory = place.memory(FeedQuota::Bodies, bytes).now_or_never().unwrap();
                place.payload(vec![0; bytes], memory)
            })
            .collect();
        let waits = place();
        let mut third = Box::pin(waits.memory(FeedQuota::Bodies, bytes));
        assert!(third.as_mut().now_or_never().is_none(), "its share is taken");
        let other = places.call(OTHER, FeedQuota::Bodies).unwrap();
        assert!(other.memory(FeedQuota::Bodies, EACH.body_bytes).now_or_never().is_some());
        assert!(waits.memory(FeedQuota::Changes, EACH.change_bytes).now_or_never().is_some());
        drop(answers);
        assert!(third.now_or_never().is_some());
    }

    #[test]
    fn memory_that_an_answer_does_not_need_is_free_at_once() {
        let places = Places::new();
        let place = || places.call(ONE, FeedQuota::Bodies).unwrap();
        let (first, second) = (place(), place());
        let memory = first.memory(FeedQuota::Changes, EACH.change_bytes).now_or_never().unwrap();
        let answer = first.payload(vec![7; 5], memory);
        assert_eq!(answer, [7; 5][..]);
        let rest = EACH.change_bytes - 5;
        assert!(second.memory(FeedQuota::Changes, rest + 1).now_or_never().is_none());
        assert!(second.memory(FeedQuota::Changes, rest).now_or_never().is_some());
    }

    #[test]
    fn a_caller_that_waits_for_its_share_holds_up_nobody() {
        let places = Places::new();
        let of = |caller| places.call(ServerId(caller), FeedQuota::Bodies).unwrap();
        let slow = of(1);
        let _all_of_it = slow.memory(FeedQuota::Bodies, EACH.body_bytes).now_or_never().unwrap();
        let waiting: Vec<Place> = (0..8).map(|_| of(1)).collect();
        let mut waits: Vec<_> =
            waiting.iter().map(|place| Box::pin(place.memory(FeedQuota::Bodies, 1))).collect();
        assert!(waits.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        let rest = (ALL.body_bytes / EACH.body_bytes) as u32;
        let others: Vec<Place> = (2..=rest).map(of).collect();
        let held: Vec<Memory> = (others.iter())
            .map(|other| other.memory(FeedQuota::Bodies, EACH.body_bytes).now_or_never().unwrap())
            .collect();
        assert_eq!(held.len() as u32, rest - 1);
    }
}
