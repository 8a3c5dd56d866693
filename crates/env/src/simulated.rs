//! Threads on which randomness and clocks are what a simulation says. Only with the feature `simulated`, which no release
//! has.
//!
//! # Invariants
//!
//! 1. Secrets stay those of the operating system: only what must be unique is drawn here.

pub mod threads;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::SeededRng;
use threads::{ThreadId, Threads};

/// The date at which simulations begin, since 1970: some day of 2026.
pub(crate) const BEGINS: Duration = Duration::from_secs(1_795_000_000);

/// A thread's part in its simulation.
#[derive(Clone)]
struct World {
    rng: Arc<Mutex<SeededRng>>,
    elapsed: Arc<dyn Fn() -> Duration + Send + Sync>,
    threads: Option<Arc<Threads>>,
    /// This thread, if it is one of them.
    me: Option<ThreadId>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// The simulation of this thread, which ends when it is dropped.
#[derive(Debug)]
pub struct Simulation(PhantomData<*const ()>);

impl Drop for Simulation {
    fn drop(&mut self) {
        if let Some(threads) = WORLD.take().and_then(|world| world.threads) {
            threads.abandon();
        }
    }
}

/// Begins a simulation on this thread: `seed` decides what is drawn, and `elapsed` tells the time since it began.
///
/// # Panics
/// If there is one already.
#[must_use]
pub fn begin(seed: u64, elapsed: impl Fn() -> Duration + Send + Sync + 'static) -> Simulation {
    let rng = Arc::new(Mutex::new(SeededRng::new(seed)));
    let world = World { rng, elapsed: Arc::new(elapsed), threads: None, me: None };
    assert!(WORLD.replace(Some(world)).is_none(), "a thread is of one simulation");
    Simulation(PhantomData)
}

pub(crate) fn draw() -> Option<u64> {
    WORLD.with_borrow(|world| world.as_ref().map(|world| world.rng.lock().next_u64()))
}

pub(crate) fn elapsed() -> Option<Duration> {
    let elapsed = WORLD.with_borrow(|world| world.as_ref().map(|world| world.elapsed.clone()));
    elapsed.map(|elapsed| elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{uptime_ms, wall};
    use crate::rng::unique_u64;

    #[test]
    fn a_simulation_decides_what_is_drawn_and_what_time_it_is_and_only_while_it_lasts() {
        let drawn = || {
            let _simulation = begin(7, || Duration::from_millis(1500));
            assert_eq!(uptime_ms(), 1500);
            assert_eq!(
                wall().duration_since(std::time::UNIX_EPOCH).unwrap(),
                BEGINS + Duration::from_millis(1500)
            );
            [unique_u64(), unique_u64()]
        };
        assert_eq!(drawn(), drawn());
        assert_ne!(unique_u64(), drawn()[0]);
    }
}
