//! Requests that wait for the committer.

use std::collections::VecDeque;
use std::time::Instant;

use larder_kv::KvReader;
use larder_objects::ObjectError;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::commit::command::{Command, Done};
use crate::error::{PackError, unavailable};
use crate::format::rows::{Applied, BlobRow};
use crate::ids::{BlobId, ProcessId, StandaloneId};
use crate::limits::QUEUE_MAX;

/// The answer to a command: what it made, and the number of the blob that it is in.
pub(crate) type Answer = Result<(Done, u64), ObjectError>;

/// A request to the committer.
pub(crate) enum Request {
    /// To change something.
    Change { command: Box<Command>, reply: oneshot::Sender<Answer> },
    /// To take down that a blob is in the backend. Answered by dropping `reply` when that is durable.
    Uploaded { seq: u64, row: BlobRow, reply: oneshot::Sender<()> },
    /// To take down that a retired blob is in the backend no longer. Answered by dropping `reply`.
    Forget { blob: BlobId, reply: oneshot::Sender<()> },
    /// To forget a bundle that a process uploaded and nothing holds, before it is removed.
    ForgetBundle {
        own: StandaloneId,
        process: ProcessId,
        reply: oneshot::Sender<Result<(), PackError>>,
    },
    /// All rows of one state, for a backup.
    Snapshot { reply: oneshot::Sender<Snapshot> },
    /// For bodies that were not stored in an object of their own, and are not about to be: the last blob with any
    /// change.
    UnwantedSince { own: StandaloneId, reply: oneshot::Sender<Option<u64>> },
    /// To close the open blob; answered with the number of the last one.
    Seal { reply: oneshot::Sender<u64> },
}

/// All rows of the index, and how far that is.
pub(crate) struct Snapshot {
    pub(crate) rows: Box<dyn KvReader>,
    pub(crate) at: Applied,
}

/// The reason for which the committer woke up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// There is something to do.
    Asked,
    /// It is due.
    Due,
    /// There is nothing left, and nothing comes any more.
    Stopped,
}

/// A bounded queue.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    stopped: bool,
}

impl Queue {
    /// Asks for a change.
    ///
    /// # Errors
    /// [`ObjectError::SlowDown`] if too many wait, [`ObjectError::Unavailable`] once it is stopped.
    pub(crate) fn push(&self, request: Request) -> Result<(), ObjectError> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(ObjectError::Unavailable { reason: "the store is stopping".into() });
        }
        // The store's own requests are few, and others wait for them.
        let is_change = matches!(request, Request::Change { .. });
        if is_change && state.requests.len() >= QUEUE_MAX {
            return Err(ObjectError::SlowDown);
        }
        state.requests.push_back(request);
        self.ready.notify_one();
        Ok(())
    }

    /// Moves all that waits behind what `into` has. Blocks, if `into` is empty, until there is something, until
    /// `due` or until it is stopped.
    pub(crate) fn take(&self, into: &mut VecDeque<Request>, due: Option<Instant>) -> Woken {
        let mut state = self.state.lock();
        while into.is_empty() && state.requests.is_empty() {
            if state.stopped {
                return Woken::Stopped;
            }
            match due {
                None => self.ready.wait(&mut state),
                Some(due) => {
                    if self.ready.wait_until(&mut state, due).timed_out() {
                        return Woken::Due;
                    }
                }
            }
        }
        into.append(&mut state.requests);
        Woken::Asked
    }

    /// Nothing is taken from now on.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.ready.notify_all();
    }
}

/// Asks for a change and waits for it.
///
/// # Errors
/// Why nothing changed; [`ObjectError::Unavailable`] if that is not known.
pub(crate) async fn ask(queue: &Queue, command: Command) -> Result<(Done, u64), ObjectError> {
    let (reply, answer) = oneshot::channel();
    queue.push(Request::Change { command: Box::new(command), reply })?;
    answer.await.unwrap_or_else(|_| Err(unavailable("the store has stopped")))
}
