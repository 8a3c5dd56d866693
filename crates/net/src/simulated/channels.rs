//! The directions of connections, each with the bytes on their way in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::task::Waker;

use bytes::Bytes;
use larder_types::ServerId;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// Most bytes of one direction that are on their way or wait to be read, as buffers of the kernel bound them.
const WINDOW_BYTES: usize = 256 * 1024;

/// Bytes that have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Microseconds since the network was made.
    pub at_us: u64,
    /// Number of the connection's direction.
    pub way: u64,
    /// The sender.
    pub from: ServerId,
    /// The receiver.
    pub to: ServerId,
    /// Bytes of the piece.
    pub bytes: usize,
    /// Their checksum.
    pub sum: u64,
}

/// One direction of a connection.
pub(super) struct Channel {
    pub(super) from: ServerId,
    pub(super) to: ServerId,
    /// Pieces with their times of arrival, in that order.
    under_way: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    /// The latest arrival so far: bytes arrive in the order in which they were sent.
    last: Instant,
    /// The time at which the reader sees the end, once the writer is gone.
    ends: Option<Instant>,
    reader_closed: bool,
    /// The connection was reset.
    is_reset: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The result of a read.
pub(super) enum Found {
    Bytes(Bytes),
    End,
    Reset,
    /// Nothing yet: bytes arrive at this time.
    Later(Instant),
    /// Nothing is on its way.
    Nothing,
}

/// All directions of connections, and the pairs of servers between which they are cut.
pub(super) struct ChannelTable {
    all: BTreeMap<u64, Channel>,
    last: u64,
    cut: BTreeSet<(ServerId, ServerId)>,
    began: Instant,
    delivered: Vec<Delivered>,
}

fn wake(sleeper: &mut Option<Waker>) {
    if let Some(sleeper) = sleeper.take() {
        sleeper.wake();
    }
}

impl Channel {
    fn new(from: ServerId, to: ServerId) -> Self {
        Self {
            from,
            to,
            under_way: VecDeque::new(),
            bytes: 0,
            last: Instant::now(),
            ends: None,
            reader_closed: false,
            is_reset: false,
            reader: None,
            writer: None,
        }
    }

    fn forget(&mut self) {
        self.under_way.clear();
        self.bytes = 0;
    }
}

impl ChannelTable {
    pub(super) fn new(began: Instant) -> Self {
        let (all, cut, delivered) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Self { all, last: 0, cut, began, delivered }
    }

    pub(super) fn delivered(&self) -> &[Delivered] {
        &self.delivered
    }

    /// The two directions of a new connection: from the server that opens it, and back.
    pub(super) fn open(&mut self, from: ServerId, to: ServerId) -> (u64, u64) {
        let (there, back) = (self.last + 1, self.last + 2);
        self.last = back;
        self.all.insert(there, Channel::new(from, to));
        self.all.insert(back, Channel::new(to, from));
        (there, back)
    }

    fn way(&mut self, number: u64) -> &mut Channel {
        self.all.get_mut(&number).expect("a way is there as long as either end")
    }

    /// The servers of a way.
    pub(super) fn ends_of(&mut self, number: u64) -> (ServerId, ServerId) {
        let way = self.way(number);
        (way.from, way.to)
    }

    pub(super) fn is_cut(&self, from: ServerId, to: ServerId) -> bool {
        self.cut.contains(&(from, to))
    }

    pub(super) fn cut(&mut self, from: ServerId, to: ServerId) {
        self.cut.insert((from, to));
    }

    pub(super) fn heal(&mut self, from: ServerId, to: ServerId) {
        self.cut.remove(&(from, to));
        for way in self.all.values_mut() {
            if (way.from, way.to) == (from, to) {
                wake(&mut way.reader);
            } else if (way.to, way.from) == (from, to) {
                // The writer may learn now that its reader is gone.
                wake(&mut way.writer);
            }
        }
    }

    pub(super) fn reset(&mut self, one: ServerId, other: ServerId) {
        for way in self.all.values_mut() {
            if (way.from, way.to) == (one, other) || (way.to, way.from) == (one, other) {
                way.is_reset = true;
                way.forget();
                wake(&mut way.reader);
                wake(&mut way.writer);
            }
        }
    }

    /// Takes up to `room` bytes that have arrived. Keeps the reader's waker, and wakes it when there may be more.
    pub(super) fn take(&mut self, number: u64, room: usize, reader: &Waker) -> Found {
        let now = Instant::now();
        let at_us = (now - self.began).as_micros() as u64;
        let ends = self.ends_of(number);
        let is_cut = self.cut.contains(&ends);
        let way = self.all.get_mut(&number).expect("it was there just now");
        if way.is_reset {
            return Found::Reset;
        }
        way.reader = Some(reader.clone());
        if is_cut {
            return Found::Nothing;
        }
        if let Some((due, bytes)) = way.under_way.front_mut() {
            if *due > now {
                return Found::Later(*due);
            }
            let taken = bytes.split_to(bytes.len().min(room));
            if bytes.is_empty() {
                way.under_way.pop_front();
            }
            way.bytes -= taken.len();
            wake(&mut way.writer);
            let (from, to) = ends;
            let (bytes, sum) = (taken.len(), xxh3_64(&taken));
            self.delivered.push(Delivered { at_us, way: number, from, to, bytes, sum });
            return Found::Bytes(taken);
        }
        match way.ends {
            Some(due) if due <= now => Found::End,
            Some(due) => Found::Later(due),
            None => Found::Nothing,
        }
    }

    /// The number of bytes that may be written now. If there is no room, wakes the writer when there is.
    pub(super) fn room(&mut self, number: u64, writer: &Waker) -> io::Result<usize> {
        let (from, to) = self.ends_of(number);
        let hears = !self.is_cut(to, from);
        let way = self.way(number);
        if way.is_reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if way.reader_closed && hears {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let room = WINDOW_BYTES - way.bytes;
        if room == 0 {
            way.writer = Some(writer.clone());
        }
        Ok(room)
    }

    /// Sends bytes for which there is room. They arrive at `due`, or after those that were sent before.
    pub(super) fn send(&mut self, number: u64, bytes: Bytes, due: Instant) {
        let way = self.way(number);
        way.last = way.last.max(due);
        way.bytes += bytes.len();
        way.under_way.push_back((way.last, bytes));
        wake(&mut way.reader);
    }

    /// Closes the writer's end. The reader sees the end after all bytes that were sent.
    pub(super) fn end(&mut self, number: u64, due: Instant) {
        let way = self.way(number);
        way.ends = Some(way.last.max(due));
        wake(&mut way.reader);
        self.forget(number);
    }

    /// Closes the reader's end: bytes on their way are lost.
    pub(super) fn abandon(&mut self, number: u64) {
        let way = self.way(number);
        way.reader_closed = true;
        way.forget();
        wake(&mut way.writer);
        self.forget(number);
    }

    fn forget(&mut self, number: u64) {
        let way = self.way(number);
        if way.reader_closed && way.ends.is_some() {
            self.all.remove(&number);
        }
    }
}
