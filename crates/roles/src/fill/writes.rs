//! Commands to the disk thread that are under way, and what became of them.

use std::sync::Arc;

use larder_volume::Refusal;
use parking_lot::{Condvar, Mutex};

use crate::data::OnComplete;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    settled: Condvar,
}

#[derive(Default)]
struct State {
    under_way: usize,
    /// The reason of the first refusal.
    refused: Option<Refusal>,
}

/// Several commands that somebody waits for together.
#[derive(Default)]
pub(super) struct Writes(Arc<Shared>);

impl Writes {
    /// One more is about to be sent; what hears of its end.
    pub(super) fn one(&self) -> OnComplete {
        self.0.state.lock().under_way += 1;
        let shared = self.0.clone();
        Box::new(move |result| {
            let mut state = shared.state.lock();
            state.under_way -= 1;
            state.refused = state.refused.or(result.err());
            if state.under_way == 0 {
                shared.settled.notify_all();
            }
        })
    }

    /// Waits for all of them.
    pub(super) fn wait(&self) -> Result<(), Refusal> {
        let mut state = self.0.state.lock();
        while state.under_way > 0 {
            self.0.settled.wait(&mut state);
        }
        state.refused.map_or(Ok(()), Err)
    }
}
