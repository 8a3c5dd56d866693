//! Machines as the simulation knows them: a disk and a link, each of which does one thing after the other.
//!
//! # Invariants
//!
//! 1. What comes first to a disk or to a side of a link is done first, and takes its time whole.
//! 2. A link's two sides do not disturb each other, and the network between machines has no limit.

const US_PER_S: u64 = 1_000_000;

/// The times that hardware takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hardware {
    /// Bytes a second of a link, each way.
    pub(crate) link_bytes_per_s: u64,
    /// Bytes a second of a disk in sequence.
    pub(crate) disk_bytes_per_s: u64,
    /// Microseconds until a disk is where it reads or writes: the way there, and half a turn.
    pub(crate) seek_us: u64,
    /// Microseconds of a sync: a turn.
    pub(crate) sync_us: u64,
    /// Microseconds of a message.
    pub(crate) message_us: u64,
    /// Nanoseconds of a look at a row of the index: a start with a hundred million rows took 143 s (`docs/benchmarks/many-objects.md`).
    pub(crate) row_ns: u64,
}

impl Hardware {
    /// A server of the paper (Ghemawat et al., 2003, section 6.1): full-duplex Ethernet of 100 Mbit/s, and disks of 5,400
    /// turns a minute. Rate and seek of such a disk are assumed; the link is slower.
    pub(crate) const GFS: Self = Self {
        link_bytes_per_s: 12_500_000,
        disk_bytes_per_s: 30_000_000,
        seek_us: 15_000,
        sync_us: 11_111,
        message_us: 200,
        row_ns: 1_430,
    };
}

/// A part of a machine that does one thing after the other.
#[derive(Debug, Default)]
struct Queue {
    free_us: u64,
}

impl Queue {
    /// The time at which something is done that comes now.
    fn take(&mut self, now_us: u64, takes_us: u64) -> u64 {
        self.free_us = self.free_us.max(now_us) + takes_us;
        self.free_us
    }
}

/// A machine.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    disk: Queue,
    sends: Queue,
    receives: Queue,
}

impl Machine {
    /// The time at which its disk has read or written so many bytes that lie together.
    pub(crate) fn disk(&mut self, now_us: u64, bytes: u64, hardware: &Hardware) -> u64 {
        let takes_us = hardware.seek_us + bytes * US_PER_S / hardware.disk_bytes_per_s;
        self.disk.take(now_us, takes_us)
    }

    /// The time at which it has sent so many bytes.
    pub(crate) fn send(&mut self, now_us: u64, bytes: u64, hardware: &Hardware) -> u64 {
        self.sends.take(now_us, bytes * US_PER_S / hardware.link_bytes_per_s)
    }

    /// The time at which it has received them.
    pub(crate) fn receive(&mut self, now_us: u64, bytes: u64, hardware: &Hardware) -> u64 {
        self.receives.take(now_us, bytes * US_PER_S / hardware.link_bytes_per_s)
    }
}
