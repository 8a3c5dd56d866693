//! Calls that block, away from the threads that serve requests.

use crate::error::PackError;

/// Runs `call` where it may block.
///
/// # Errors
/// [`PackError::System`] if the runtime stops first.
pub(crate) async fn run<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PackError> {
    #[cfg(test)]
    if crate::sim::is_running() {
        return Ok(call());
    }
    let called = tokio::task::spawn_blocking(call).await;
    called.map_err(|stopped| PackError::System(std::io::Error::other(stopped)))
}
