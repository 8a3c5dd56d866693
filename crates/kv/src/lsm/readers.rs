//! The numbers at which readers read, and the number up to which anybody may.
//!
//! Invariant: [`Readers::watermark`] never exceeds the number of a reader that is there or will come,
//! because entering and asking for it happen under one lock and `visible` only grows.

use lsm_tree::SeqNo;
use parking_lot::Mutex;

pub(super) struct Readers {
    state: Mutex<State>,
}

struct State {
    /// Readers that enter see the batches numbered below it.
    visible: SeqNo,
    /// Number and count of the readers that are there. Few at any time: one per reading thread and
    /// snapshot at most.
    live: Vec<(SeqNo, usize)>,
}

/// A registered reader.
pub(super) struct ReadAt<'a> {
    readers: &'a Readers,
    pub(super) seqno: SeqNo,
}

impl Readers {
    pub(super) fn new(visible: SeqNo) -> Self {
        Self { state: Mutex::new(State { visible, live: Vec::new() }) }
    }

    /// Registers a reader of what is visible now.
    pub(super) fn enter(&self) -> ReadAt<'_> {
        let mut state = self.state.lock();
        let seqno = state.visible;
        match state.live.iter_mut().find(|(live, _)| *live == seqno) {
            Some((_, count)) => *count += 1,
            None => state.live.push((seqno, 1)),
        }
        ReadAt { readers: self, seqno }
    }

    /// Ends a reader whose registration was detached.
    pub(super) fn leave(&self, seqno: SeqNo) {
        let mut state = self.state.lock();
        let place = state.live.iter().position(|(live, _)| *live == seqno);
        let place = place.expect("a reader leaves once, where it entered");
        state.live[place].1 -= 1;
        if state.live[place].1 == 0 {
            state.live.swap_remove(place);
        }
    }

    /// Lets readers see everything numbered below `seqno`.
    pub(super) fn publish(&self, seqno: SeqNo) {
        let mut state = self.state.lock();
        assert!(state.visible <= seqno, "what was visible stays visible");
        state.visible = seqno;
    }

    /// The least number at which anybody reads: rows that no reader at it or above can see may be
    /// dropped.
    pub(super) fn watermark(&self) -> SeqNo {
        let state = self.state.lock();
        state.live.iter().map(|(seqno, _)| *seqno).min().unwrap_or(state.visible)
    }
}

impl ReadAt<'_> {
    /// The number, with the duty to call [`Readers::leave`].
    pub(super) fn detach(self) -> SeqNo {
        let seqno = self.seqno;
        std::mem::forget(self);
        seqno
    }
}

impl Drop for ReadAt<'_> {
    fn drop(&mut self) {
        self.readers.leave(self.seqno);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watermark_waits_for_the_oldest_reader() {
        let readers = Readers::new(5);
        assert_eq!(readers.watermark(), 5);
        let old = readers.enter();
        let twin = readers.enter();
        readers.publish(9);
        let young = readers.enter().detach();
        assert_eq!((old.seqno, young, readers.watermark()), (5, 9, 5));
        drop(old);
        assert_eq!(readers.watermark(), 5);
        drop(twin);
        assert_eq!(readers.watermark(), 9);
        readers.leave(young);
        readers.publish(11);
        assert_eq!(readers.watermark(), 11);
    }
}
