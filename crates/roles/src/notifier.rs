//! Wakes tasks that wait for a change.
//!
//! They are woken in an order that only the order of their waiting decides. Tokio's `watch`, which does the same, draws it: a
//! simulation of the roles would not be the same twice (ADR 36).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Lists of those who wait, so that the many calls of a proxy seldom meet at a lock.
const LISTS: usize = 8;

#[derive(Debug)]
struct Shared {
    /// Counts what was told.
    reported: AtomicU64,
    is_over: AtomicBool,
    waiting: [Notify; LISTS],
    next: AtomicUsize,
}

/// The sending end; dropping it wakes all that wait, and ends the notifications.
#[derive(Debug)]
pub struct Notifier(Arc<Shared>);

/// The waiting end. A clone waits by itself, and has seen the same changes.
#[derive(Debug)]
pub struct NotifierWatch {
    shared: Arc<Shared>,
    /// The number of notifications when this receiver last checked.
    seen: u64,
    list: usize,
}

/// The sending end was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no news come any more")]
pub struct NotifierClosed;

impl Default for Notifier {
    fn default() -> Self {
        Self(Arc::new(Shared {
            reported: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            waiting: std::array::from_fn(|_| Notify::new()),
            next: AtomicUsize::new(0),
        }))
    }
}

impl Notifier {
    /// Tells all who wait.
    pub fn notify(&self) {
        self.0.reported.fetch_add(1, Ordering::SeqCst);
        self.0.wake();
    }

    /// One that waits for the next.
    #[must_use]
    pub fn subscribe(&self) -> NotifierWatch {
        let list = self.0.next_list();
        let seen = self.0.reported.load(Ordering::SeqCst);
        NotifierWatch { shared: self.0.clone(), seen, list }
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        self.0.wake();
    }
}

impl Shared {
    fn next_list(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % LISTS
    }

    fn wake(&self) {
        self.waiting.iter().for_each(Notify::notify_waiters);
    }
}

impl Clone for NotifierWatch {
    fn clone(&self) -> Self {
        let list = self.shared.next_list();
        Self { shared: self.shared.clone(), seen: self.seen, list }
    }
}

impl NotifierWatch {
    /// Marks all news so far as seen.
    pub fn mark_seen(&mut self) {
        self.seen = self.shared.reported.load(Ordering::SeqCst);
    }

    /// Returns once there has been a notification since the last check.
    ///
    /// # Errors
    /// If none come any more.
    pub async fn changed(&mut self) -> Result<(), NotifierClosed> {
        loop {
            // It receives notifications from here on, so that none is missed between the check and the wait.
            let woken = self.shared.waiting[self.list].notified();
            let reported = self.shared.reported.load(Ordering::SeqCst);
            if reported != self.seen {
                self.seen = reported;
                return Ok(());
            }
            if self.shared.is_over.load(Ordering::SeqCst) {
                return Err(NotifierClosed);
            }
            woken.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn changes_since_the_last_check_are_not_missed() {
        let notifier = Notifier::default();
        notifier.notify();
        let mut watch = notifier.subscribe();
        assert!(watch.changed().now_or_never().is_none(), "the first is known");
        notifier.notify();
        assert_eq!(watch.changed().now_or_never(), Some(Ok(())));
        assert!(watch.changed().now_or_never().is_none());
        notifier.notify();
        watch.mark_seen();
        assert!(watch.changed().now_or_never().is_none(), "it counts as seen");
    }

    #[tokio::test]
    async fn whoever_waits_hears_that_none_come_any_more() {
        let notifier = Notifier::default();
        let mut watch = notifier.subscribe();
        let waits = tokio::spawn(async move { watch.changed().await });
        tokio::task::yield_now().await;
        drop(notifier);
        assert_eq!(waits.await.unwrap(), Err(NotifierClosed));
    }
}
