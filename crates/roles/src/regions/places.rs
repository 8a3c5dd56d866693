//! A bounded number of slots for lookups in other regions, given to buckets in turn, so that one bucket cannot use all
//! of them.
//!
//! # Invariants
//!
//! 1. Nobody waits while a place is free.
//! 2. A place that is freed goes to the bucket whose turn it is, and there to the look that has waited the longest.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use larder_types::BucketId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Places(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Looks that wait; no bucket has none.
    waiting: BTreeMap<BucketId, VecDeque<oneshot::Sender<Place>>>,
    /// The bucket that had its turn last.
    last: BucketId,
}

/// A place, which is given to somebody else once this is dropped.
#[derive(Debug)]
pub(super) struct Place(Option<Arc<Places>>);

impl Places {
    pub(super) fn new(count: usize) -> Arc<Self> {
        let (waiting, last) = (BTreeMap::new(), BucketId(0));
        Arc::new(Self(Mutex::new(State { free: count, waiting, last })))
    }

    /// Waits for a place.
    pub(super) async fn take(self: &Arc<Self>, bucket: BucketId) -> Place {
        let given = {
            let mut state = self.0.lock();
            if state.free > 0 {
                state.free -= 1;
                return Place(Some(self.clone()));
            }
            let (gives, given) = oneshot::channel();
            state.waiting.entry(bucket).or_default().push_back(gives);
            given
        };
        given.await.expect("a look that waits is given a place, or is not waited for any more")
    }

    fn give(self: Arc<Self>) {
        let mut place = Place(Some(self.clone()));
        loop {
            let next = self.0.lock().next_turn();
            let Some(next) = next else { break };
            match next.send(place) {
                Ok(()) => return,
                // It has given up.
                Err(back) => place = back,
            }
        }
        place.0 = None;
    }
}

impl State {
    /// Takes the look whose turn it is. If none waits the place is free.
    fn next_turn(&mut self) -> Option<oneshot::Sender<Place>> {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let turn = self.waiting.range(behind).next().or_else(|| self.waiting.first_key_value());
        let Some((bucket, _)) = turn else {
            self.free += 1;
            return None;
        };
        self.last = *bucket;
        let waiting = self.waiting.get_mut(&self.last).expect("it was there");
        let next = waiting.pop_front().expect("no bucket has none that waits");
        if waiting.is_empty() {
            self.waiting.remove(&self.last);
        }
        Some(next)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(places) = self.0.take() {
            places.give();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Taking = Pin<Box<dyn Future<Output = Place>>>;

    fn take(places: &Arc<Places>, bucket: u64) -> Taking {
        let places = places.clone();
        Box::pin(async move { places.take(BucketId(bucket)).await })
    }

    fn given(taking: &mut Taking) -> Option<Place> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_bucket_with_many_looks_leaves_another_its_turn() {
        let places = Places::new(2);
        let mut held: Vec<_> = (0..2).map(|_| given(&mut take(&places, 1)).unwrap()).collect();
        let mut many: Vec<_> = (0..100).map(|_| take(&places, 1)).collect();
        assert!(many.iter_mut().all(|it| given(it).is_none()));
        let mut other = take(&places, 2);
        assert!(given(&mut other).is_none());
        held.pop();
        let first = given(&mut many[0]).expect("the first of them");
        assert!(many[1..].iter_mut().all(|it| given(it).is_none()));
        held.pop();
        assert!(given(&mut other).is_some(), "it is its turn");
        assert!(given(&mut many[1]).is_some(), "nobody else waits");
        drop(first);
        assert!(given(&mut many[2]).is_some());
    }

    #[test]
    fn a_look_that_was_given_up_keeps_no_place() {
        let places = Places::new(1);
        let held = given(&mut take(&places, 1)).unwrap();
        let mut waits: Vec<_> = (1..=3).map(|bucket| take(&places, bucket)).collect();
        assert!(waits.iter_mut().all(|it| given(it).is_none()));
        waits.clear();
        drop(held);
        assert!(given(&mut take(&places, 4)).is_some(), "it is free");
    }

    /// The place was sent to it, and it has not looked.
    #[test]
    fn a_look_that_ends_as_it_is_given_a_place_frees_it() {
        let places = Places::new(1);
        let held = given(&mut take(&places, 1)).unwrap();
        let mut waits = take(&places, 2);
        assert!(given(&mut waits).is_none());
        drop(held);
        drop(waits);
        assert!(given(&mut take(&places, 3)).is_some());
    }
}
