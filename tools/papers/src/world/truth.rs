//! The copies that there really are, whatever managers and primaries believe: when each chunk has all of its copies again,
//! and which copies were made before more urgent ones.
//!
//! # Invariants
//!
//! 1. A copy counts once it is durable on a server that runs, and not before.
//! 2. Nothing that is simulated looks here.

use std::collections::BTreeMap;

use larder_types::LvId;

/// Copies of every chunk, as all were stored.
pub(crate) const COPIES: u8 = 3;

/// A look at the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Microseconds since servers went.
    pub(crate) at_us: u64,
    /// Bytes of copies made by then.
    pub(crate) made: u64,
    /// Chunks with a single copy.
    pub(crate) single: u64,
    /// Chunks with two.
    pub(crate) double: u64,
}

/// The state of a volume that lost copies.
#[derive(Debug, Clone)]
struct Volume {
    /// Copies of each chunk.
    copies: Vec<u8>,
    /// Chunks of which a copy is under way.
    under_way: Vec<bool>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    volumes: BTreeMap<LvId, Volume>,
    /// Chunks with so many copies.
    count: [u64; COPIES as usize + 1],
    /// Chunks with a single copy, none of which is under way.
    single_waiting: u64,
    pub(crate) made: u64,
    pub(crate) chunks_made: u64,
    /// Since when servers are gone.
    gone_us: u64,
    /// The first copy began.
    pub(crate) began_us: Option<u64>,
    /// No chunk has a single copy any more.
    pub(crate) doubled_us: Option<u64>,
    /// All have all.
    pub(crate) restored_us: Option<u64>,
    /// Copies that the servers had which went.
    pub(crate) lost: u64,
    /// Chunks with a single copy when servers went.
    pub(crate) singles: u64,
    /// Copies of chunks with two that began while a chunk with one waited.
    pub(crate) passed_over: u64,
    /// The last of them began, in microseconds since the first copy.
    pub(crate) passed_over_until_us: u64,
    /// Copies of chunks that have all.
    pub(crate) needless: u64,
    pub(crate) samples: Vec<Sample>,
}

impl Truth {
    /// A volume of so many chunks that each lose so many copies.
    pub(crate) fn lose(&mut self, lv: LvId, chunks: usize, lost: u8) {
        let copies = COPIES - lost;
        self.lost += chunks as u64 * u64::from(lost);
        self.count[usize::from(copies)] += chunks as u64;
        if copies == 1 {
            self.singles += chunks as u64;
            self.single_waiting += chunks as u64;
        }
        let volume = Volume { copies: vec![copies; chunks], under_way: vec![false; chunks] };
        self.volumes.insert(lv, volume);
    }

    /// The copies of these volumes are gone now.
    pub(crate) fn begin(&mut self, now_us: u64) {
        self.gone_us = now_us;
        self.sample(now_us);
    }

    /// A copy of a chunk begins.
    pub(crate) fn begins(&mut self, now_us: u64, lv: LvId, chunk: usize) {
        let since_us = now_us - self.gone_us;
        let began_us = *self.began_us.get_or_insert(since_us);
        let Some(volume) = self.volumes.get_mut(&lv) else { return };
        match volume.copies[chunk] {
            1 if !std::mem::replace(&mut volume.under_way[chunk], true) => self.single_waiting -= 1,
            1 => {}
            COPIES.. => self.needless += 1,
            _ if self.single_waiting > 0 => {
                self.passed_over += 1;
                self.passed_over_until_us = since_us - began_us;
            }
            _ => {}
        }
    }

    /// A copy is durable, or was not made.
    pub(crate) fn ends(&mut self, now_us: u64, lv: LvId, chunk: usize, bytes: Option<u64>) {
        let Some(volume) = self.volumes.get_mut(&lv) else { return };
        let copies = &mut volume.copies[chunk];
        let was_under_way = std::mem::take(&mut volume.under_way[chunk]);
        let Some(bytes) = bytes else {
            self.single_waiting += u64::from(*copies == 1 && was_under_way);
            return;
        };
        self.made += bytes;
        self.chunks_made += 1;
        if *copies >= COPIES {
            return;
        }
        self.count[usize::from(*copies)] -= 1;
        *copies += 1;
        self.count[usize::from(*copies)] += 1;
        let since_us = now_us - self.gone_us;
        if self.count[1] == 0 {
            self.doubled_us.get_or_insert(since_us);
        }
        if self.count[1] + self.count[2] == 0 {
            self.restored_us.get_or_insert(since_us);
            self.sample(now_us);
        }
    }

    pub(crate) fn sample(&mut self, now_us: u64) {
        let [_, single, double, _] = self.count;
        let at_us = now_us - self.gone_us;
        self.samples.push(Sample { at_us, made: self.made, single, double });
    }

    /// Returns true if nothing lacks a copy.
    pub(crate) fn is_restored(&self) -> bool {
        self.restored_us.is_some()
    }
}
