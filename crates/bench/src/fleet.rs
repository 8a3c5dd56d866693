//! The clients of a run: where they go, how many there are, and how work is dealt out to them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

use crate::BenchError;
use crate::args::EndpointArgs;
use crate::client::{Client, Endpoint, Target};
use crate::error::CallError;
use crate::pool;
use crate::sign::Credentials;

/// One client for each request that may be in flight.
#[derive(Debug)]
pub(crate) struct Fleet {
    target: Arc<Target>,
    threads: usize,
    concurrency: usize,
}

impl Fleet {
    /// Checks the endpoint's arguments and makes the bucket.
    pub(crate) fn prepare(
        args: &EndpointArgs,
        credentials: Credentials,
    ) -> Result<Self, BenchError> {
        let bucket = larder_types::BucketName::new(&args.bucket)
            .map_err(|error| BenchError::usage("--bucket", error.to_string()))?;
        let target = Arc::new(Target {
            endpoint: Endpoint::resolve(&args.endpoint)?,
            bucket,
            credentials,
            sign_payload: !args.unsigned_payload,
            timeout: args.timeout,
        });
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let fleet = Self {
            target,
            threads: args.threads.map_or(cores, |threads| threads as usize),
            concurrency: args.concurrency as usize,
        };
        let made = fleet.once(|mut client| async move { client.create_bucket().await })?;
        prepared("making the bucket", vec![made])?;
        Ok(fleet)
    }

    /// Requests in flight at most.
    pub(crate) fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// Runs one worker per request in flight, each with a client, until all have ended.
    pub(crate) fn run<T, F>(
        &self,
        work: impl Fn(usize, Client) -> F + Sync,
    ) -> Result<Vec<T>, BenchError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        pool::run(self.threads, self.concurrency, |worker| work(worker, self.client()))
    }

    /// Runs one worker, with a client.
    pub(crate) fn once<T, F>(&self, work: impl Fn(Client) -> F + Sync) -> Result<T, BenchError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let mut ended = pool::run(1, 1, |_| work(self.client()))?;
        Ok(ended.pop().expect("one worker has one outcome"))
    }

    fn client(&self) -> Client {
        Client::new(Arc::clone(&self.target))
    }
}

/// The first failure of what comes before the measured time, if there was one.
pub(crate) fn prepared(
    what: &'static str,
    ended: Vec<Result<(), CallError>>,
) -> Result<(), BenchError> {
    let first = ended.into_iter().collect::<Result<(), CallError>>();
    first.map_err(|source| BenchError::Preparation { what, source })
}

/// Deals the numbers below a count out to workers, each once, and shows how far they are.
#[derive(Debug)]
pub(crate) struct Deal {
    next: AtomicUsize,
    count: usize,
    bar: ProgressBar,
}

impl Deal {
    /// Deals out `0` to `count - 1`; `what` stands beside the progress bar.
    pub(crate) fn new(what: &'static str, count: usize) -> Arc<Self> {
        Arc::new(Self { next: AtomicUsize::new(0), count, bar: progress_bar(what, count) })
    }

    /// The next number.
    pub(crate) fn next(&self) -> Option<usize> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.count).then_some(number)
    }

    /// One of the numbers is done.
    pub(crate) fn done(&self) {
        self.bar.inc(1);
    }

    /// Deals out nothing more.
    pub(crate) fn stop(&self) {
        // Far enough from the end of the range that no number of workers wraps it around.
        self.next.store(usize::MAX / 2, Ordering::Relaxed);
    }
}

/// A bar on stderr, shown only on a terminal and gone with the value.
pub(crate) fn progress_bar(what: &'static str, count: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:<12} {wide_bar} {pos}/{len} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(count as u64).with_style(style).with_message(what);
    bar.with_finish(indicatif::ProgressFinish::AndClear)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_dealt_once_until_the_end_or_a_stop() {
        let deal = Deal::new("testing", 5);
        assert_eq!([deal.next(), deal.next(), deal.next()], [Some(0), Some(1), Some(2)]);
        deal.stop();
        assert_eq!(deal.next(), None);
        assert_eq!(Deal::new("testing", 0).next(), None);
    }
}
