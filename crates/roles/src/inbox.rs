//! A bounded queue of messages for a thread.
//!
//! # Invariants
//!
//! 1. At most so many inputs wait: more are refused, and no caller blocks.
//! 2. Once the thread has ended no input is accepted, and waiting ones are dropped: their callers learn that at once.

use std::collections::VecDeque;
use std::sync::Arc;

use larder_env::threads::Condvar;
use parking_lot::Mutex;
use tokio::time::Instant;

struct Queue<T> {
    waiting: VecDeque<T>,
    max: usize,
    /// Nobody takes anything any more.
    is_over: bool,
}

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    arrived: Condvar,
}

/// The sending end; clones share it.
pub(crate) struct Inbox<T>(Arc<Shared<T>>);

impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The receiving end, which the thread has.
pub(crate) struct InboxReceiver<T>(Arc<Shared<T>>);

/// The reason why something was not put in; it is given back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InboxError<T> {
    /// As many wait as may.
    Full(T),
    /// The thread is gone.
    Over(T),
}

/// An empty one for at most so many.
pub(crate) fn inbox<T>(max: usize) -> (Inbox<T>, InboxReceiver<T>) {
    assert!(max > 0, "something may wait");
    let queue = Queue { waiting: VecDeque::new(), max, is_over: false };
    let shared = Arc::new(Shared { queue: Mutex::new(queue), arrived: Condvar::new() });
    (Inbox(shared.clone()), InboxReceiver(shared))
}

impl<T> Inbox<T> {
    /// Puts something in.
    pub(crate) fn put(&self, input: T) -> Result<(), InboxError<T>> {
        self.put_quietly(input)?;
        self.0.arrived.notify_one();
        Ok(())
    }

    /// Puts something in that the thread takes when it wakes for another reason, or at the time until which it waits.
    pub(crate) fn put_quietly(&self, input: T) -> Result<(), InboxError<T>> {
        let mut queue = self.0.queue.lock();
        if queue.is_over {
            return Err(InboxError::Over(input));
        }
        if queue.waiting.len() >= queue.max {
            return Err(InboxError::Full(input));
        }
        queue.waiting.push_back(input);
        Ok(())
    }
}

impl<T> InboxReceiver<T> {
    /// Takes what waits longest, if anything does.
    pub(crate) fn take(&self) -> Option<T> {
        self.0.queue.lock().waiting.pop_front()
    }

    /// The same; waits for something until then.
    pub(crate) fn take_until(&self, late: Instant) -> Option<T> {
        let mut queue = self.0.queue.lock();
        loop {
            if let Some(input) = queue.waiting.pop_front() {
                return Some(input);
            }
            let left = late.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.0.arrived.wait_for(&mut queue, left);
        }
    }
}

impl<T> Drop for InboxReceiver<T> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.is_over = true;
        let left = std::mem::take(&mut queue.waiting);
        drop(queue);
        // Without the lock: who is dropped may say so to somebody.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn at_most_so_many_wait_and_they_are_taken_in_their_order() {
        let (inbox, taker) = inbox(2);
        assert_eq!((inbox.put(1), inbox.put(2)), (Ok(()), Ok(())));
        assert_eq!(inbox.put(3), Err(InboxError::Full(3)));
        assert_eq!(taker.take(), Some(1));
        assert_eq!(inbox.put(4), Ok(()));
        assert_eq!((taker.take(), taker.take(), taker.take()), (Some(2), Some(4), None));
        assert_eq!(taker.take_until(Instant::now()), None);
    }

    #[test]
    fn whoever_waits_takes_what_comes() {
        let (inbox, taker) = inbox(1);
        let takes =
            std::thread::spawn(move || taker.take_until(Instant::now() + Duration::from_secs(60)));
        assert_eq!(inbox.put(7), Ok(()));
        assert_eq!(takes.join().unwrap(), Some(7));
    }

    #[test]
    fn what_is_put_in_quietly_is_taken_when_the_time_is_over() {
        let (inbox, taker) = inbox(1);
        let late = Instant::now() + Duration::from_millis(20);
        let takes = std::thread::spawn(move || taker.take_until(late));
        assert_eq!(inbox.put_quietly(7), Ok(()));
        assert_eq!(takes.join().unwrap(), Some(7));
    }

    #[test]
    fn what_waits_is_dropped_with_the_thread_that_would_take_it() {
        let (inbox, taker) = inbox(2);
        let waits = Arc::new(());
        assert!(inbox.put(waits.clone()).is_ok());
        drop(taker);
        assert_eq!(Arc::strong_count(&waits), 1);
        assert!(matches!(inbox.put(waits), Err(InboxError::Over(_))));
    }
}
