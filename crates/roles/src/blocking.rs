//! Work that blocks, away from the tasks: on the runtime's pool; in a simulation, on one of its threads.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Has a closure run where it may block, for a task of this runtime.
pub(crate) fn run<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    run_on(&Handle::current(), run)
}

/// The same, from any thread.
pub(crate) fn run_on<T: Send + 'static>(
    runtime: &Handle,
    run: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    #[cfg(test)]
    if larder_env::simulated::threads::are_simulated() {
        return simulated(runtime, run);
    }
    runtime.spawn_blocking(run)
}

/// Waits for a future, on a thread that may block.
pub(crate) fn wait<F: Future>(runtime: &Handle, future: F) -> F::Output {
    #[cfg(test)]
    if larder_env::simulated::threads::are_simulated() {
        return larder_env::simulated::threads::block_on(future);
    }
    runtime.block_on(future)
}

#[cfg(test)]
fn simulated<T: Send + 'static>(
    runtime: &Handle,
    run: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let (done, ended) = tokio::sync::oneshot::channel();
    let thread = larder_env::threads::spawn("blocking", move || drop(done.send(run())));
    drop(thread.expect("the system gives a thread"));
    runtime.spawn(async move { ended.await.expect("it does not panic") })
}
