//! Workers spread over threads, each thread with an event loop of its own.
//!
//! No worker ever moves to another thread, and threads share nothing but what their workers share.
//! The client takes its CPU time from the server under test, so it has to be small.

use std::future::Future;
use std::sync::Mutex;

use crate::BenchError;

/// Runs `make(0)` to `make(workers - 1)` on `threads` threads until all have ended; their results in
/// no particular order.
///
/// # Errors
/// [`BenchError::System`] if a thread cannot have an event loop.
pub fn run<T, F>(
    threads: usize,
    workers: usize,
    make: impl Fn(usize) -> F + Sync,
) -> Result<Vec<T>, BenchError>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let results = Mutex::new(Vec::with_capacity(workers));
    std::thread::scope(|scope| {
        let (results, make) = (&results, &make);
        let threads: Vec<_> = (0..threads.min(workers))
            .map(|thread| {
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_io()
                        .enable_time()
                        .build()
                        .map_err(BenchError::System)?;
                    let ended = runtime.block_on(async {
                        let mut tasks = tokio::task::JoinSet::new();
                        for worker in (thread..workers).step_by(threads) {
                            tasks.spawn(make(worker));
                        }
                        tasks.join_all().await
                    });
                    results.lock().unwrap_or_else(|poison| poison.into_inner()).extend(ended);
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(results.into_inner().unwrap_or_else(|poison| poison.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_runs_once_whatever_the_number_of_threads() {
        for threads in [1, 2, 7] {
            let mut ended = run(threads, 5, |worker| async move { worker }).unwrap();
            ended.sort_unstable();
            assert_eq!(ended, [0, 1, 2, 3, 4], "{threads}");
        }
    }
}
