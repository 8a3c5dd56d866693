//! Applies changes of other workers, and follows their clocks.
//!
//! # Invariant
//!
//! The committer, which decides a change, knows the clock of everything that it sees. No received change is applied
//! before its clock is observed, nor while a change is being decided. So a change that is decided by a version has a
//! later clock than that.

use std::sync::atomic::{AtomicU64, Ordering};

use larder_types::HybridClock;
use parking_lot::{Mutex, MutexGuard};

use crate::bugs::{self, Bug};

/// See the module's head.
#[derive(Default)]
pub(crate) struct PeerClock {
    /// The greatest clock that was heard of.
    clock: AtomicU64,
    /// Held while something is decided, or shown.
    deciding: Mutex<()>,
}

/// While this is held nothing more is shown.
pub(crate) struct Deciding<'a> {
    _hidden_guard: MutexGuard<'a, ()>,
    /// The greatest clock of what is shown.
    pub(crate) clock: HybridClock,
}

impl PeerClock {
    /// Another worker is as far as that.
    pub(crate) fn observe(&self, clock: HybridClock) {
        self.clock.fetch_max(clock.0, Ordering::Relaxed);
    }

    /// Makes visible what another worker told; no clock in it is greater than `clock`.
    pub(crate) fn show<T>(&self, clock: HybridClock, show: impl FnOnce() -> T) -> T {
        let _nobody_decides = self.deciding.lock();
        self.observe(clock);
        show()
    }

    /// Something is about to be decided.
    pub(crate) fn decide(&self) -> Deciding<'_> {
        let _hidden_guard = self.deciding.lock();
        let clock = match bugs::planted(Bug::ClockNotFollowed) {
            true => HybridClock(0),
            false => HybridClock(self.clock.load(Ordering::Relaxed)),
        };
        Deciding { _hidden_guard, clock }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn who_decides_sees_nothing_of_which_the_clock_is_unknown() {
        let peer_clock = Arc::new(PeerClock::default());
        let shown = Arc::new(AtomicU64::new(0));
        let deciding = peer_clock.decide();
        let (begun, waits) = channel();
        let shower = thread::spawn({
            let (peer_clock, shown) = (peer_clock.clone(), shown.clone());
            move || {
                begun.send(()).unwrap();
                peer_clock.show(HybridClock(7), || shown.store(7, Ordering::SeqCst));
            }
        });
        waits.recv().unwrap();
        assert_eq!((deciding.clock, shown.load(Ordering::SeqCst)), (HybridClock(0), 0));
        drop(deciding);
        // Either it is decided before it is shown, or with its clock.
        for _ in 0..1000 {
            let deciding = peer_clock.decide();
            assert!(deciding.clock.0 >= shown.load(Ordering::SeqCst));
        }
        shower.join().unwrap();
        assert_eq!(peer_clock.decide().clock, HybridClock(7));
        assert_eq!(shown.load(Ordering::SeqCst), 7);
    }
}
