//! Concurrent reads of the same bytes share one request: the first asks a replica, and the others get its result.
//!
//! # Invariants
//!
//! 1. A joined reader has its chunk from METAX, now or earlier, and joins a read of the same place. Bytes
//!    that were written under a grant never change, so what it gets is what a read of its own would have
//!    given.
//! 2. Only verified bytes are handed on. A reader goes on by itself if the read that it joined failed or
//!    was given up. It also does if that read takes longer than reads are waited for before another replica
//!    is asked. Readers that come later join this one.
//! 3. Of one read so many are part at most; one more reads by itself.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use larder_protocol::scheduler::SizeClass;
use larder_types::{Chunk, Grant, Holders};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::RemoteRoles;
use super::copies::{self, Certainty};
use super::counters::count;
use crate::data::ReadFailure;
use crate::limits::{JOINED_MAX, JOINS_MAX};

/// The features that make two reads the same. Each place of a chunk has a grant of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Same {
    grant: Grant,
    seed: u64,
    holders: Holders,
    range: Range<u32>,
}

/// A read that others may join.
#[derive(Debug)]
struct SharedRead {
    number: u64,
    waiting: Vec<oneshot::Sender<Bytes>>,
}

#[derive(Debug, Default)]
struct State {
    reads: HashMap<Same, SharedRead>,
    last: u64,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct SingleFlight(Mutex<State>);

/// The part that a read is to play.
enum Part<'a> {
    /// It reads, and others may join it.
    Reads(First<'a>),
    /// It waits for the one of this number.
    Waits(u64, oneshot::Receiver<Bytes>),
    /// It reads, and nobody joins it.
    Alone,
}

/// A read that others may join; if it is dropped they learn that it has no result.
struct First<'a> {
    of: &'a SingleFlight,
    same: &'a Same,
    number: u64,
}

impl First<'_> {
    fn has(self, bytes: &Bytes) {
        for waiting in self.of.end(self.same, self.number) {
            // A reader that has gone away meanwhile needs none.
            drop(waiting.send(bytes.clone()));
        }
    }
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        drop(self.of.end(self.same, self.number));
    }
}

impl SingleFlight {
    fn enter<'a>(&'a self, same: &'a Same) -> Part<'a> {
        let mut state = self.0.lock();
        let State { reads, last } = &mut *state;
        if let Some(under_way) = reads.get_mut(same) {
            if under_way.waiting.len() == JOINED_MAX {
                return Part::Alone;
            }
            let (sender, receiver) = oneshot::channel();
            under_way.waiting.push(sender);
            return Part::Waits(under_way.number, receiver);
        }
        *last += 1;
        reads.insert(same.clone(), SharedRead { number: *last, waiting: Vec::new() });
        Part::Reads(First { of: self, same, number: *last })
    }

    /// Nobody joins this read any more; those who have.
    fn end(&self, same: &Same, number: u64) -> Vec<oneshot::Sender<Bytes>> {
        let mut state = self.0.lock();
        if state.reads.get(same).is_none_or(|under_way| under_way.number != number) {
            return Vec::new();
        }
        state.reads.remove(same).map(|under_way| under_way.waiting).unwrap_or_default()
    }
}

/// Reads bytes of a chunk and verifies them, or joins a read that does.
pub(super) async fn read(
    remote: &RemoteRoles,
    chunk: &Chunk,
    range: Range<u32>,
    certainty: Certainty,
) -> Result<Bytes, ReadFailure> {
    let replicas = &remote.replicas;
    let Chunk { grant, seed, holders, .. } = *chunk;
    let same = Same { grant, seed, holders, range: range.clone() };
    for _ in 0..JOINS_MAX {
        match replicas.joined.enter(&same) {
            Part::Reads(first) => {
                let read = copies::read(remote, chunk, range, certainty).await;
                if let Ok(bytes) = &read {
                    first.has(bytes);
                }
                return read;
            }
            Part::Waits(number, other) => {
                let class = SizeClass::of(range.len() as u64);
                match timeout(replicas.reads.hedge_after(class), other).await {
                    Ok(Ok(bytes)) => {
                        count(&remote.counters().reads_joined);
                        return Ok(bytes);
                    }
                    // It gave nothing.
                    Ok(Err(_)) => {}
                    Err(_) => drop(replicas.joined.end(&same, number)),
                }
            }
            Part::Alone => break,
        }
    }
    copies::read(remote, chunk, range, certainty).await
}

#[cfg(test)]
mod tests {
    use larder_types::{OpId, OpSeq, PgId, View};

    use super::*;

    fn same(attempt: u32) -> Same {
        let op = OpId { view: View(1), seq: OpSeq(2) };
        let grant = Grant { pg: PgId(0), op, attempt };
        Same { grant, seed: 1, holders: Holders(0b111), range: 0..9 }
    }

    fn first<'a>(joined: &'a SingleFlight, same: &'a Same) -> First<'a> {
        match joined.enter(same) {
            Part::Reads(first) => first,
            Part::Waits(..) | Part::Alone => panic!("none is under way"),
        }
    }

    fn waits(joined: &SingleFlight, same: &Same) -> (u64, oneshot::Receiver<Bytes>) {
        match joined.enter(same) {
            Part::Waits(number, other) => (number, other),
            Part::Reads(_) | Part::Alone => panic!("one is under way"),
        }
    }

    #[test]
    fn what_one_has_got_the_others_get() {
        let (joined, same, bytes) =
            (SingleFlight::default(), same(1), Bytes::from_static(b"bytes"));
        let reads = first(&joined, &same);
        let [(_, mut one), (_, mut two)] = [(); 2].map(|()| waits(&joined, &same));
        reads.has(&bytes);
        assert_eq!([one.try_recv(), two.try_recv()], [Ok(bytes.clone()), Ok(bytes)]);
        drop(first(&joined, &same));
    }

    #[test]
    fn other_bytes_are_read_beside() {
        let (joined, other) = (SingleFlight::default(), same(2));
        let same = same(1);
        let _one = first(&joined, &same);
        let _two = first(&joined, &other);
        let fewer = Same { holders: Holders(0b11), ..same.clone() };
        let _three = first(&joined, &fewer);
        let part = Same { range: 0..8, ..same.clone() };
        let _four = first(&joined, &part);
    }

    #[test]
    fn who_joined_one_that_failed_is_told_and_reads() {
        let (joined, same) = (SingleFlight::default(), same(1));
        let reads = first(&joined, &same);
        let (_, mut other) = waits(&joined, &same);
        drop(reads);
        assert!(other.try_recv().is_err_and(|why| why == oneshot::error::TryRecvError::Closed));
        drop(first(&joined, &same));
    }

    #[test]
    fn who_waited_too_long_is_joined_in_place_of_the_one_that_takes_long() {
        let (joined, same) = (SingleFlight::default(), same(1));
        let slow = first(&joined, &same);
        let [(number, _gone), (_, mut other)] = [(); 2].map(|()| waits(&joined, &same));
        drop(joined.end(&same, number));
        assert!(other.try_recv().is_err(), "it is to join the next one");
        let next = first(&joined, &same);
        let (_, mut joins) = waits(&joined, &same);
        drop(joined.end(&same, number));
        slow.has(&Bytes::from_static(b"late"));
        assert!(joins.try_recv().is_err_and(|why| why == oneshot::error::TryRecvError::Empty));
        next.has(&Bytes::from_static(b"bytes"));
        assert_eq!(joins.try_recv(), Ok(Bytes::from_static(b"bytes")));
    }

    #[test]
    fn so_many_join_and_no_more() {
        let (joined, same) = (SingleFlight::default(), same(1));
        let _reads = first(&joined, &same);
        let _others: Vec<_> = (0..JOINED_MAX).map(|_| waits(&joined, &same)).collect();
        assert!(matches!(joined.enter(&same), Part::Alone));
    }
}
