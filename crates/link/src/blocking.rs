//! Work that waits for the disk, away from the tasks: on the runtime's pool. In a simulation it is done at once: its files are
//! small, and no time passes meanwhile.

use tokio::task::{JoinError, spawn_blocking};

/// Has a closure run where it may block.
pub(crate) async fn run<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    #[cfg(feature = "simulated")]
    if larder_env::simulated::threads::are_simulated() {
        return Ok(run());
    }
    spawn_blocking(run).await
}
