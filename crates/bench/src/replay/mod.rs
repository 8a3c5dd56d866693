//! Replays a trace of requests against an endpoint, and proves afterwards that all of it happened.
//!
//! Three phases: what the trace expects to exist is put, untimed; the requests are made as fast as
//! the endpoint answers; every name is checked, untimed. An object's body follows from its name and
//! size. So a second replay of a trace, also on a store that has what the first left, must come out
//! the same.

mod parse;
mod plan;
mod schedule;

use std::fs::File;
use std::io::BufReader;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::BenchError;
use crate::args::ReplayArgs;
use crate::client::Client;
use crate::content::Content;
use crate::cpu;
use crate::error::CallError;
use crate::fleet::{Deal, Fleet, prepared, progress_bar};
use crate::load::{Tally, UNLIMITED, Window};
use crate::report::{CpuTime, Report};
use crate::sign::Credentials;
use parse::Trace;
use plan::{Plan, Step};
use schedule::{RequestIndex, Schedule};

/// Makes the replay that the arguments describe.
///
/// # Errors
/// [`BenchError`] if there is no result; failed requests and checks are part of the result.
pub fn replay(args: &ReplayArgs, credentials: Credentials) -> Result<Report, BenchError> {
    let file = File::open(&args.file)
        .map_err(|source| BenchError::File { path: args.file.clone(), source })?;
    let trace = Trace::read(BufReader::new(file))?;
    let plan = Plan::new(&trace);
    let pids = &args.endpoint.pids;
    cpu::used(pids)?;
    let fleet = Fleet::prepare(&args.endpoint, credentials)?;
    let job = Arc::new(Job::new(trace, plan));

    put_before(&fleet, &job)?;
    let window = Window::after(Duration::ZERO, UNLIMITED);
    let before = (cpu::used(pids)?, cpu::used_by_self()?);
    let mut tally = make_requests(&fleet, &job, window)?;
    let elapsed = window.begin.elapsed();
    let cpu = CpuTime {
        server: match pids.is_empty() {
            true => None,
            false => Some(cpu::used(pids)?.saturating_sub(before.0)),
        },
        client: cpu::used_by_self()?.saturating_sub(before.1),
    };
    let mut checked = 0;
    if !job.gone.load(Ordering::Relaxed) {
        tally.merge(check_after(&fleet, &job)?);
        checked = job.trace.names.len() as u64;
    }
    let mut report = Report::new("replay", fleet.concurrency(), tally, elapsed, cpu);
    report.checked = checked;
    Ok(report)
}

/// The state that the workers share.
struct Job {
    trace: Trace,
    plan: Plan,
    schedule: Mutex<Schedule>,
    /// The endpoint takes no connections any more: what is left would only fail the same way.
    gone: AtomicBool,
}

impl Job {
    fn new(trace: Trace, plan: Plan) -> Self {
        let names = trace.requests.iter().map(|request| request.name).collect();
        let schedule = Schedule::new(names, trace.names.len());
        Self { trace, plan, schedule: Mutex::new(schedule), gone: AtomicBool::new(false) }
    }

    /// The next request for a worker that has just finished `finished`.
    fn next(&self, finished: Option<RequestIndex>) -> Option<RequestIndex> {
        let mut schedule = self.schedule.lock().unwrap_or_else(|poison| poison.into_inner());
        finished.and_then(|request| schedule.finish(request)).or_else(|| schedule.take())
    }

    async fn perform(&self, client: &mut Client, request: RequestIndex) -> Result<u64, CallError> {
        let name = &self.trace.names[self.trace.requests[request].name];
        match self.plan.steps[request] {
            Step::Put(bytes) => client.put(name, Content::new(name, bytes)).await.map(|()| bytes),
            Step::Get(Some(bytes)) => {
                client.get(name, Content::new(name, bytes)).await.map(|()| bytes)
            }
            Step::Get(None) => client.get_absent(name).await.map(|()| 0),
            Step::Delete => client.delete(name).await.map(|()| 0),
        }
    }
}

/// Puts what the trace expects to exist.
fn put_before(fleet: &Fleet, job: &Arc<Job>) -> Result<(), BenchError> {
    let deal = Deal::new("putting first", job.plan.before.len());
    let ended = fleet.run(|_, mut client| {
        let (deal, job) = (Arc::clone(&deal), Arc::clone(job));
        async move {
            while let Some(number) = deal.next() {
                let (name, bytes) = job.plan.before[number];
                let name = &job.trace.names[name];
                if let Err(error) = client.put(name, Content::new(name, bytes)).await {
                    deal.stop();
                    return Err(error);
                }
                deal.done();
            }
            Ok(())
        }
    })?;
    prepared("putting what the trace expects to exist", ended)
}

/// Makes the trace's requests.
fn make_requests(fleet: &Fleet, job: &Arc<Job>, window: Window) -> Result<Tally, BenchError> {
    let bar = progress_bar("replaying", job.trace.requests.len());
    let tallies = fleet.run(|_, mut client| {
        let (job, bar) = (Arc::clone(job), bar.clone());
        async move {
            let mut tally = Tally::default();
            let mut finished = None;
            while let Some(request) = job.next(finished) {
                let begun = Instant::now();
                let result = job.perform(&mut client, request).await;
                tally.count(&window, begun, result.as_ref().copied());
                if matches!(result, Err(CallError::Connect(_))) {
                    job.gone.store(true, Ordering::Relaxed);
                }
                if job.gone.load(Ordering::Relaxed) {
                    break;
                }
                bar.inc(1);
                finished = Some(request);
            }
            tally
        }
    })?;
    Ok(Tally::sum(tallies))
}

/// Reads back every object that should exist, and asks for every one that should not. Only failures
/// are counted.
fn check_after(fleet: &Fleet, job: &Arc<Job>) -> Result<Tally, BenchError> {
    let deal = Deal::new("verifying", job.trace.names.len());
    let untimed = Window::of_failures();
    let tallies = fleet.run(|_, mut client| {
        let (deal, job) = (Arc::clone(&deal), Arc::clone(job));
        async move {
            let mut tally = Tally::default();
            while let Some(index) = deal.next() {
                let name = &job.trace.names[index];
                let result = match job.plan.after[index] {
                    Some(bytes) => client.get(name, Content::new(name, bytes)).await,
                    None => client.get_absent(name).await,
                };
                tally.count(&untimed, Instant::now(), result.as_ref().map(|()| 0));
                deal.done();
            }
            tally
        }
    })?;
    Ok(Tally::sum(tallies))
}
