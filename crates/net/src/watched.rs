//! A value, and tasks that wait until it is as they need it.
//!
//! They are woken in an order that only the order of their waiting decides. Tokio's `watch` draws it: connections that end
//! together would end in another order each time, and no simulation of them would be the same twice (ADR 36).

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use tokio::sync::Notify;

/// Lists of those who wait, so that busy connections seldom meet at a lock.
const LISTS: usize = 8;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Watched<T> {
    value: RwLock<T>,
    waiting: [Notify; LISTS],
    next: AtomicUsize,
}

impl<T: PartialEq> Watched<T> {
    /// Replaces the value, and wakes those who wait if it is another.
    pub(crate) fn set(&self, value: T) {
        let mut known = self.value.write();
        let is_news = *known != value;
        *known = value;
        drop(known);
        if is_news {
            self.waiting.iter().for_each(Notify::notify_waiters);
        }
    }

    /// Returns true if the value is so.
    pub(crate) fn is(&self, so: impl Fn(&T) -> bool) -> bool {
        so(&self.value.read())
    }

    /// Returns when the value is so.
    pub(crate) async fn until(&self, so: impl Fn(&T) -> bool) {
        let list = &self.waiting[self.next.fetch_add(1, Ordering::Relaxed) % LISTS];
        loop {
            // It hears of changes from here on, so that none is missed between the look and the wait.
            let changed = list.notified();
            if self.is(&so) {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tokio::task::yield_now;

    use super::*;

    /// Has so many tasks wait, and returns the order in which they are woken.
    async fn woken(tasks: usize) -> Vec<usize> {
        let (watched, woken) = (Arc::new(Watched::<bool>::default()), Arc::new(Mutex::default()));
        let mut waiting = Vec::new();
        for number in 0..tasks {
            let (watched, woken) = (watched.clone(), woken.clone());
            waiting.push(tokio::spawn(async move {
                watched.until(|is_over| *is_over).await;
                Vec::push(&mut woken.lock(), number);
            }));
        }
        yield_now().await;
        watched.set(false);
        yield_now().await;
        assert!(woken.lock().is_empty(), "nothing has changed");
        watched.set(true);
        for waits in waiting {
            waits.await.unwrap();
        }
        watched.until(|is_over| *is_over).await;
        Arc::into_inner(woken).unwrap().into_inner()
    }

    #[tokio::test]
    async fn those_who_wait_are_woken_in_an_order_that_nothing_draws() {
        let tasks = 3 * LISTS;
        let in_order: Vec<usize> =
            (0..LISTS).flat_map(|list| (list..tasks).step_by(LISTS)).collect();
        assert_eq!(woken(tasks).await, in_order);
    }
}
