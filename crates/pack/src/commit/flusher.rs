//! The thread that makes the index durable, so that the log behind it may go.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_kv::limits::FLUSH_BYTES;
use larder_kv::{KvError, Progress};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::commit::committer::Marks;
use crate::index::Index;

/// Time from one look for something to do to the next.
const PERIOD: Duration = Duration::from_millis(250);

/// The flusher of an index.
pub(crate) struct Flusher {
    stopped: Mutex<bool>,
    wake: Condvar,
    marks: Arc<Marks>,
    index: Arc<Index>,
}

impl Flusher {
    pub(crate) fn new(marks: Arc<Marks>, index: Arc<Index>) -> Self {
        Self { stopped: Mutex::new(false), wake: Condvar::new(), marks, index }
    }

    /// Runs until it is stopped, or the index fails: then `fatal` says why.
    pub(crate) fn run(&self, fatal: &watch::Sender<Option<String>>) {
        loop {
            let stopped = {
                let mut stopped = self.stopped.lock();
                if !*stopped {
                    self.wake.wait_for(&mut stopped, PERIOD);
                }
                *stopped
            };
            let due = self.index.unflushed_bytes() >= FLUSH_BYTES;
            if (due || stopped || self.marks.is_flush_due())
                && let Err(error) = self.flush()
            {
                match error {
                    KvError::Full { .. } => {
                        tracing::warn!(%error, "the index cannot be flushed for lack of space: waiting");
                    }
                    error => {
                        tracing::error!(%error, "the store stops: the index failed");
                        fatal.send_replace(Some(error.to_string()));
                        return;
                    }
                }
            }
            if stopped {
                return;
            }
        }
    }

    /// Makes the index durable; the log behind it may go.
    fn flush(&self) -> Result<(), KvError> {
        let applied = self.marks.applied.load(Ordering::Relaxed);
        self.index.flush()?;
        self.marks.flushed.store(applied, Ordering::Relaxed);
        while self.index.maintain()? == Progress::Worked {}
        Ok(())
    }

    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.wake.notify_all();
    }
}
