//! One measured run: preload, warm-up, window, report.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::BenchError;
use crate::args::LoadArgs;
use crate::client::Client;
use crate::cpu;
use crate::error::{CallError, Pid};
use crate::fleet::{Deal, Fleet, prepared};
use crate::load::{Pace, Starts, Tally, Window, pause_after};
use crate::report::{CpuTime, Report};
use crate::sign::Credentials;
use crate::workload::{Call, Keyspace, Operation, Source, Supply};

/// Object bytes and objects preloaded by default.
const PRELOAD_DEFAULT: Preload = Preload { bytes: 256 << 20, objects: 10_000 };
/// The same for deletes, each of which uses one up.
const PRELOAD_FOR_DELETES: Preload = Preload { bytes: 1 << 30, objects: 100_000 };

struct Preload {
    bytes: u64,
    objects: u64,
}

/// Makes the run that the arguments describe; `objects` is what `--objects` says.
///
/// # Errors
/// [`BenchError`] if there is no result; failed requests are part of the result.
pub fn load(
    operation: Operation,
    args: &LoadArgs,
    objects: Option<u64>,
    credentials: Credentials,
) -> Result<Report, BenchError> {
    if args.duration.is_zero() {
        return Err(BenchError::usage("--duration", "0 measures nothing: give at least 1ms"));
    }
    let preloaded = objects_needed(operation, args, objects)?;
    cpu::used(&args.endpoint.pids)?;
    let fleet = Fleet::prepare(&args.endpoint, credentials)?;
    let keys = Arc::new(Keyspace {
        prefix: format!("{:x}/", run_number()),
        size: args.size.0,
        preloaded,
        floor: args.floor,
    });
    preload(&fleet, &keys)?;
    let window = Window::after(args.warmup, args.duration);
    let starts = Arc::new(Starts::new(window, args.rate.map(Pace::new)));
    let (mut tally, elapsed, cpu) =
        measure(&fleet, &keys, operation, &starts, &args.endpoint.pids)?;
    let mut unsent = 0;
    for waited in starts.unsent() {
        tally.latencies.record(waited);
        unsent += 1;
    }
    if args.clean {
        tally.merge(clean(&fleet, &keys)?);
    }
    let mut report = Report::new(operation.name(), fleet.concurrency(), tally, elapsed, cpu);
    report.size = Some(args.size.0);
    report.unsent = unsent;
    Ok(report)
}

/// The number of objects to put before the measured time.
fn objects_needed(
    operation: Operation,
    args: &LoadArgs,
    asked: Option<u64>,
) -> Result<u64, BenchError> {
    let by_default = |preload: Preload| (preload.bytes / args.size.0.max(1)).min(preload.objects);
    match (operation, args.rate) {
        (Operation::Put | Operation::Append { .. }, _) => Ok(0),
        (Operation::Delete, Some(rate)) => {
            let needed = Pace::new(rate).due_after(args.warmup + args.duration);
            if asked.is_some_and(|asked| asked < needed) {
                let reason = format!("this rate deletes {needed} objects: ask for as many");
                return Err(BenchError::usage("--objects", reason));
            }
            Ok(asked.unwrap_or(needed))
        }
        (Operation::Delete, None) => {
            Ok(asked
                .unwrap_or_else(|| by_default(PRELOAD_FOR_DELETES).max(args.endpoint.concurrency)))
        }
        _ => {
            Ok(asked.unwrap_or_else(|| by_default(PRELOAD_DEFAULT).max(args.endpoint.concurrency)))
        }
    }
}

/// A number that no other run has: the nanosecond of its begin.
pub fn run_number() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos()
}

fn preload(fleet: &Fleet, keys: &Arc<Keyspace>) -> Result<(), BenchError> {
    let deal = Deal::new("preloading", keys.preloaded as usize);
    let ended = fleet.run(|_, mut client| {
        let (deal, keys) = (Arc::clone(&deal), Arc::clone(keys));
        async move {
            while let Some(index) = deal.next() {
                if let Err(error) = keys.perform(&mut client, Call::Put(index as u64)).await {
                    deal.stop();
                    return Err(error);
                }
                deal.done();
            }
            Ok(())
        }
    })?;
    prepared("preloading", ended)
}

/// Deletes the run's objects, page by page, and looks whether they are gone. Failures alone are counted, and a list that
/// fails ends it.
fn clean(fleet: &Fleet, keys: &Arc<Keyspace>) -> Result<Tally, BenchError> {
    let untimed = Window::of_failures();
    let find = |after: String| {
        let keys = Arc::clone(keys);
        fleet.once(move |mut client| {
            let (keys, after) = (Arc::clone(&keys), after.clone());
            async move { keys.find(&mut client, &after).await }
        })
    };
    let mut tally = Tally::default();
    let failed = |tally: &mut Tally, error| tally.count(&untimed, Instant::now(), Err(&error));
    let mut after = keys.prefix.clone();
    loop {
        let page = match find(after)? {
            Ok(page) => Arc::new(page),
            Err(error) => {
                failed(&mut tally, error);
                return Ok(tally);
            }
        };
        let Some(last) = page.last() else { break };
        after = last.clone();
        tally.merge(delete(fleet, &page)?);
    }
    match find(keys.prefix.clone())? {
        Ok(left) if left.is_empty() => {}
        Ok(_) => failed(&mut tally, CallError::Wrong("a deleted object is still there")),
        Err(error) => failed(&mut tally, error),
    }
    Ok(tally)
}

fn delete(fleet: &Fleet, page: &Arc<Vec<String>>) -> Result<Tally, BenchError> {
    let untimed = Window::of_failures();
    let deal = Deal::new("deleting", page.len());
    let ended = fleet.run(|_, mut client| {
        let (deal, page) = (Arc::clone(&deal), Arc::clone(page));
        async move {
            let mut tally = Tally::default();
            while let Some(index) = deal.next() {
                let deleted = client.delete(&page[index]).await;
                tally.count(&untimed, Instant::now(), deleted.as_ref().map(|()| 0));
                deal.done();
            }
            tally
        }
    })?;
    Ok(Tally::sum(ended))
}

/// Runs the workers, and beside them a thread that keeps the pace and one that reads the CPU time.
fn measure(
    fleet: &Fleet,
    keys: &Arc<Keyspace>,
    operation: Operation,
    starts: &Arc<Starts>,
    pids: &[Pid],
) -> Result<(Tally, Duration, CpuTime), BenchError> {
    let supply = Supply::new(keys.preloaded);
    let (running, all_ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| starts.keep_pace());
        let sampler = scope.spawn(|| sample(starts.window(), pids, all_ended));
        let tallies = fleet.run(|worker, client| {
            let source = Source::new(operation, &supply, worker, fleet.concurrency());
            work(client, Arc::clone(keys), Arc::clone(starts), source)
        });
        drop(running);
        let sampled = sampler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // In this order: without workers the sampler would blame the number of objects.
        let tally = Tally::sum(tallies?);
        let (elapsed, cpu) = sampled?;
        Ok((tally, elapsed, cpu))
    })
}

/// One worker.
async fn work(
    mut client: Client,
    keys: Arc<Keyspace>,
    starts: Arc<Starts>,
    mut source: Source,
) -> Tally {
    let mut tally = Tally::default();
    let window = starts.window();
    while let Some(begun) = starts.next().await {
        let Some(call) = source.choose() else { break };
        let result = keys.perform(&mut client, call).await;
        source.settle(call, result.is_ok());
        tally.count(&window, begun, result.as_ref().copied());
        if let Err(error) = &result {
            pause_after(error).await;
        }
    }
    tally
}

/// The length of the window and the CPU time used in it. The window ends early when all workers
/// have ended, which they do only if they run out of objects to delete.
fn sample(
    window: Window,
    pids: &[Pid],
    all_ended: Receiver<()>,
) -> Result<(Duration, CpuTime), BenchError> {
    if !is_running_at(window.begin, &all_ended) {
        let reason = "all objects were deleted before the measured time: ask for more";
        return Err(BenchError::usage("--objects", reason));
    }
    let begin = (Instant::now(), cpu::used(pids)?, cpu::used_by_self()?);
    is_running_at(window.end, &all_ended);
    let end = (Instant::now(), cpu::used(pids)?, cpu::used_by_self()?);
    let cpu = CpuTime {
        server: (!pids.is_empty()).then(|| end.1.saturating_sub(begin.1)),
        client: end.2.saturating_sub(begin.2),
    };
    Ok((end.0.min(window.end) - window.begin, cpu))
}

/// Waits until `moment`; `false` as soon as all workers have ended.
fn is_running_at(moment: Instant, all_ended: &Receiver<()>) -> bool {
    let wait = moment.saturating_duration_since(Instant::now());
    matches!(all_ended.recv_timeout(wait), Err(RecvTimeoutError::Timeout))
}

#[cfg(test)]
mod tests;
