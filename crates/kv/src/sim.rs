//! The index of the simulator: an ordered map with the crash semantics of the real one.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::trailer::{trailer, verified, verified_bytes};
use crate::{Batch, FlushReport, Kv, KvError, KvReader, Progress, Visit};

type Rows = BTreeMap<Bytes, Bytes>;

/// The way in which the next flush is to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushFault {
    /// It finds the disk full; a later one may succeed.
    Full,
    /// It fails and the disk keeps the old state.
    FailBefore,
    /// It fails although the disk has the new state.
    FailAfter,
    /// The power goes before its boundary is durable.
    CrashBefore,
    /// The power goes after its boundary is durable.
    CrashAfter,
}

/// An index whose "disk" is in memory. Owned by one simulated process at a time; the value itself
/// outlives crashes of that process.
#[derive(Default)]
pub struct SimKv {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Rows that readers see; shared with snapshots and copied when changed under one.
    live: Arc<Rows>,
    /// Rows that a crash leaves.
    durable: Rows,
    /// Changes between `durable` and `live`, in order.
    unflushed: Vec<(Bytes, Option<Bytes>)>,
    unflushed_bytes: u64,
    next_flush: Option<FlushFault>,
    broken: Option<KvError>,
    off: bool,
}

impl SimKv {
    /// An empty index.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The process or the machine dies and starts again: what was not flushed is gone.
    pub fn crash(&self) {
        let mut state = self.state.lock();
        let durable = std::mem::take(&mut state.durable);
        *state = State { live: Arc::new(durable.clone()), durable, ..State::default() };
    }

    /// Sets what the next flush does.
    pub fn fail_next_flush(&self, fault: FlushFault) {
        self.state.lock().next_flush = Some(fault);
    }

    /// Lets the next flush be one as any.
    pub fn disarm(&self) {
        self.state.lock().next_flush = None;
    }

    /// Flips one bit of a stored value, on disk and in memory; `false` if there is no such row.
    pub fn rot(&self, key: &[u8], bit: usize) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(stored) = state.live.get(key) else { return false };
        let mut bytes = stored.to_vec();
        let bit = bit % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let rotten = Bytes::from(bytes);
        Arc::make_mut(&mut state.live).insert(Bytes::copy_from_slice(key), rotten.clone());
        if let Some(stored) = state.durable.get_mut(key) {
            *stored = rotten;
        }
        true
    }

    /// Replaces a stored value by another, with a checksum that is right, on disk and in memory: what no checksum
    /// finds. `false` if there is no such row.
    pub fn replace_unseen(&self, key: &[u8], value: &[u8]) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let stored = Bytes::from([value, &trailer(key, value)].concat());
        let Some(live) = Arc::make_mut(&mut state.live).get_mut(key) else { return false };
        let before = std::mem::replace(live, stored.clone());
        // The disk's earlier value stays as it was: it belongs to an earlier position.
        if let Some(durable) = state.durable.get_mut(key).filter(|durable| **durable == before) {
            *durable = stored.clone();
        }
        for (_, later) in state.unflushed.iter_mut().filter(|(row, _)| row == key) {
            if let Some(later) = later.as_mut().filter(|later| **later == before) {
                *later = stored.clone();
            }
        }
        true
    }

    fn rows(&self) -> Result<Arc<Rows>, KvError> {
        let state = self.state.lock();
        state.running()?;
        Ok(Arc::clone(&state.live))
    }
}

impl State {
    fn running(&self) -> Result<(), KvError> {
        if self.off { Err(KvError::PoweredOff) } else { Ok(()) }
    }

    fn make_durable(&mut self) -> FlushReport {
        for (key, stored) in self.unflushed.drain(..) {
            change(&mut self.durable, key, stored);
        }
        assert_eq!(self.durable.len(), self.live.len(), "a flush makes all of it durable");
        FlushReport { bytes: std::mem::take(&mut self.unflushed_bytes) }
    }

    fn fail(&mut self) -> KvError {
        let error = KvError::Broken { operation: "flushes", reason: "simulated failure".into() };
        self.broken.insert(error).clone()
    }
}

fn change(rows: &mut Rows, key: Bytes, stored: Option<Bytes>) {
    match stored {
        Some(stored) => rows.insert(key, stored),
        None => rows.remove(&key),
    };
}

impl KvReader for SimKv {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        get(&*self.rows()?, key)
    }

    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: &mut Visit<'_>) -> Result<(), KvError> {
        scan(&*self.rows()?, from, to, visit)
    }
}

impl Kv for SimKv {
    fn snapshot(&self) -> Result<Box<dyn KvReader>, KvError> {
        Ok(Box::new(SimSnapshot(self.rows()?)))
    }

    fn apply(&self, batch: &Batch) -> Result<(), KvError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.running()?;
        let live = Arc::make_mut(&mut state.live);
        let positions = batch.positions().map(|(key, stored)| {
            (Bytes::copy_from_slice(key), Some(Bytes::copy_from_slice(stored)))
        });
        for (key, stored) in batch.changes().chain(positions) {
            change(live, key.clone(), stored.clone());
            state.unflushed.push((key, stored));
        }
        state.unflushed_bytes += batch.bytes() as u64;
        Ok(())
    }

    fn flush(&self) -> Result<FlushReport, KvError> {
        let mut state = self.state.lock();
        state.running()?;
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let fault = state.next_flush.take();
        match fault {
            None => Ok(state.make_durable()),
            Some(FlushFault::Full) => Err(KvError::Full { operation: "flushes" }),
            Some(FlushFault::FailBefore) => Err(state.fail()),
            Some(FlushFault::FailAfter) => {
                state.make_durable();
                Err(state.fail())
            }
            Some(FlushFault::CrashBefore) => {
                state.off = true;
                Err(KvError::PoweredOff)
            }
            Some(FlushFault::CrashAfter) => {
                state.make_durable();
                state.off = true;
                Err(KvError::PoweredOff)
            }
        }
    }

    fn unflushed_bytes(&self) -> u64 {
        self.state.lock().unflushed_bytes
    }

    fn disk_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.durable.iter().map(|(key, stored)| (key.len() + stored.len()) as u64).sum()
    }

    fn maintain(&self) -> Result<Progress, KvError> {
        self.state.lock().running()?;
        Ok(Progress::Idle)
    }
}

struct SimSnapshot(Arc<Rows>);

impl KvReader for SimSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        get(&self.0, key)
    }

    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: &mut Visit<'_>) -> Result<(), KvError> {
        scan(&self.0, from, to, visit)
    }
}

fn get(rows: &Rows, key: &[u8]) -> Result<Option<Bytes>, KvError> {
    rows.get(key).map(|stored| verified_bytes(key, stored.clone())).transpose()
}

fn scan(rows: &Rows, from: &[u8], to: Option<&[u8]>, visit: &mut Visit<'_>) -> Result<(), KvError> {
    if to.is_some_and(|to| to <= from) {
        return Ok(());
    }
    let range = (Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded));
    for (key, stored) in rows.range::<[u8], _>(range) {
        if visit(key, verified(key, stored)?) == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(())
}
