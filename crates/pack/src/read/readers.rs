//! Readers under way: what they may be reading is not removed from the backend.
//!
//! # Invariant
//!
//! A reader enters before it looks up where bytes are. So whatever the index does not name at a [`Readers::mark`] is
//! read only by those that entered before it.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use larder_objects::{ObjectError, ReadBody};
use parking_lot::Mutex;

/// All readers of a store.
#[derive(Debug, Default)]
pub(crate) struct Readers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// One reader, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reader {
    all: Arc<Readers>,
    number: u64,
}

/// A moment in the order in which readers enter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(u64);

impl Readers {
    pub(crate) fn enter(self: &Arc<Self>) -> Reader {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number);
        Reader { all: self.clone(), number }
    }

    /// Now.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.0.lock().next)
    }

    /// Returns true if all that entered before the mark are done.
    pub(crate) fn are_done(&self, mark: Mark) -> bool {
        self.0.lock().under_way.first().is_none_or(|oldest| *oldest >= mark.0)
    }
}

impl Reader {
    /// The reader is under way until the body has been read, or is dropped.
    pub(crate) fn reading(self, body: ReadBody) -> ReadBody {
        match body {
            ReadBody::Stream(pieces) => {
                ReadBody::Stream(Box::pin(Reading { pieces, _reader: self }))
            }
            whole => whole,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.all.0.lock().under_way.remove(&self.number);
    }
}

/// A body that is being read.
struct Reading<S> {
    pieces: S,
    _reader: Reader,
}

impl<S: Stream<Item = Result<Bytes, ObjectError>> + Unpin> Stream for Reading<S> {
    type Item = Result<Bytes, ObjectError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.pieces).poll_next(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_waits_for_those_that_entered_before_it_alone() {
        let readers = Arc::new(Readers::default());
        let (first, second) = (readers.enter(), readers.enter());
        let mark = readers.mark();
        let later = readers.enter();
        drop(second);
        assert!(!readers.are_done(mark));
        drop(first);
        assert!(readers.are_done(mark));
        assert!(!readers.are_done(readers.mark()));
        drop(later);
        assert!(readers.are_done(readers.mark()));
    }
}
