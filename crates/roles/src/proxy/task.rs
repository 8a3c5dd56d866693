//! Tasks that end with the caller that waits for them.

use tokio::task::JoinHandle;

use crate::blocking;
use crate::data::ReadFailure;

/// A task that is aborted when it is dropped.
pub(super) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    pub(super) fn spawn(task: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }

    /// Runs on a thread that may block. Dropped before it has one, it does not begin.
    pub(super) fn blocking(work: impl FnOnce() -> T + Send + 'static) -> Self {
        Self(blocking::run(work))
    }

    /// Its outcome. Panics as the task did.
    pub(super) async fn outcome(mut self) -> Result<T, ReadFailure> {
        let joined = (&mut self.0).await;
        joined.map_err(|failed| match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The process ends.
            Err(_cancelled) => ReadFailure::Unreadable,
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
