//! `larder-sim`: runs seeds of the simulator, and shortens those that fail. Progress on standard error, results on standard output;
//! exit code 1 at the first failure.

use std::cell::Cell;
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use clap::Parser;
use larder_sim::planted::Bugs;
use larder_sim::reduction::Reduction;
use larder_sim::trace::Text;
use larder_sim::verdict::Covered;
use larder_sim::{MACHINES_MAX, Options, Report, run_less};

mod shorten;

/// A run is small pieces of memory taken and given back: a fifth of its time with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the store under a seeded scheduler and checks what its clients saw.
#[derive(Debug, Parser)]
#[command(name = "larder-sim")]
struct Args {
    /// The number of seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Members of each placement group, 1 or 3; alternates if not given.
    #[arg(long)]
    members: Option<usize>,
    /// Machines of each cluster of several members, up to 15; drawn if not given, and most have few.
    #[arg(long)]
    machines: Option<usize>,
    /// Calls of clients in each run.
    #[arg(long, default_value_t = 500)]
    ops: u32,
    /// A planted bug to be found (needs the feature `planted-bugs`).
    #[arg(long)]
    planted: Option<String>,
    /// Large ops in every seed, so that the log is pressed.
    #[arg(long)]
    heavy_log: bool,
    /// Members that often go and come in every seed of several members.
    #[arg(long)]
    restless: bool,
    /// Primaries of every other view serve before their rows are read for space.
    #[arg(long)]
    early: bool,
    /// Pieces of objects that are appended to are coalesced in every seed.
    #[arg(long)]
    coalesces: bool,
    /// Run each seed once only, without comparing the traces of two runs.
    #[arg(long)]
    once: bool,
    /// Seeds that run at once; as many as there are processors if not given.
    #[arg(long)]
    jobs: Option<usize>,
    /// Print every event of every run to standard error, and run each seed once.
    #[arg(long)]
    trace: bool,
    /// Print calls, answers, faults and views of every run, and run each seed once.
    #[arg(long, conflicts_with = "trace")]
    timeline: bool,
    /// Leave calls, faults and more out of each run, as the minimiser writes them: `calls=30/averted=0-4,7`.
    #[arg(long)]
    less: Option<Reduction>,
    /// Leave out of a seed that fails whatever it fails without, and print its timeline.
    #[arg(long)]
    minimise: Option<u64>,
    /// Runs that the minimiser may try.
    #[arg(long, default_value_t = 1000)]
    tries: u32,
    /// Of a seed that fails print one line.
    #[arg(long)]
    brief: bool,
}

thread_local! {
    /// The seed that this thread runs, and its members, for the report of a failed assertion.
    static RUNNING: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// Between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// The findings of all threads so far.
#[derive(Default)]
struct Total {
    seeds: u64,
    ops: u64,
    faults: u64,
    events: u64,
    kinds: Covered,
    answers: Covered,
    /// The report of the first failure.
    failure: Option<Vec<String>>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let machines_min = args.members.unwrap_or(3);
    if args.machines.is_some_and(|machines| machines < machines_min || machines > MACHINES_MAX) {
        eprintln!("--machines must be from {machines_min} to {MACHINES_MAX}");
        return ExitCode::from(2);
    }
    if args.members.is_some_and(|members| members != 1 && members != 3) {
        eprintln!("--members must be 1 or 3");
        return ExitCode::from(2);
    }
    if let Some(seed) = args.minimise {
        return shorten::shorten(&args, seed);
    }
    let bugs = match &args.planted {
        None => Bugs::default(),
        Some(name) => match Bugs::named(name) {
            Some(bugs) => bugs,
            None => {
                eprintln!("--planted: no bug is called {name:?} in this build");
                return ExitCode::from(2);
            }
        },
    };
    // Assertions end the process in a release: the seed must be known by then.
    std::panic::set_hook(Box::new(|panic| {
        let (seed, members) = RUNNING.get();
        println!("seed {seed}, {members} members: FAILED: an assertion failed: {panic}");
        println!(
            "see it again with: larder-sim --members {members} --from {seed} --seeds 1 --trace"
        );
        std::process::exit(1);
    }));
    let started = Instant::now();
    let total = run_all(&args, bugs);
    if let Some(lines) = total.failure {
        lines.iter().for_each(|line| println!("{line}"));
        return ExitCode::FAILURE;
    }
    let Total { seeds, ops, faults, events, kinds, answers, .. } = total;
    println!("faults and their effects:");
    kinds.iter().for_each(|(what, times)| println!("  {times:>12}  {what}"));
    println!("answers to clients:");
    answers.iter().for_each(|(what, times)| println!("  {times:>12}  {what}"));
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds, {ops} ops, {faults} faults, {events} events in {seconds:.1} s: no failure"
    );
    ExitCode::SUCCESS
}

/// Runs all seeds on some threads, up to the first failure.
fn run_all(args: &Args, bugs: Bugs) -> Total {
    let next = AtomicU64::new(args.from);
    let end = args.from.saturating_add(args.seeds);
    let jobs = args.jobs.unwrap_or_else(|| available_parallelism().map_or(1, NonZero::get));
    let (outcomes, done) = std::sync::mpsc::channel();
    let mut total = Total::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (next, outcomes) = (&next, outcomes.clone());
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || outcomes.send(run_seed(args, bugs, seed)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(outcomes);
        let mut last_shown = Instant::now();
        for outcome in &done {
            total.take(outcome);
            if total.failure.is_some() {
                next.store(end, Ordering::Relaxed);
            }
            if last_shown.elapsed() >= PROGRESS_EVERY {
                last_shown = Instant::now();
                let Total { seeds, ops, faults, .. } = &total;
                eprintln!("{seeds} of {} seeds, {ops} ops, {faults} faults", args.seeds);
            }
        }
    });
    total
}

/// Runs a seed, twice unless told otherwise.
fn run_seed(args: &Args, bugs: Bugs, seed: u64) -> Result<Report, Vec<String>> {
    let members = args.members.unwrap_or(if seed.is_multiple_of(2) { 1 } else { 3 });
    RUNNING.set((seed, members));
    let text = match (args.trace, args.timeline) {
        (true, _) => Text::Live,
        (_, true) => Text::Timeline,
        _ => Text::None,
    };
    let less = args.less.clone().unwrap_or_default();
    let run = |options| run_less(seed, options, &less);
    let options = Options {
        members,
        machines: args.machines,
        ops: args.ops,
        heavy_log: args.heavy_log,
        restless: args.restless,
        early: args.early,
        coalesces: args.coalesces,
        bugs,
        text,
    };
    let report = run(options);
    if let Some(finding) = &report.finding {
        let is_told = text != Text::None || args.brief;
        let tail = (!is_told).then(|| run(Options { text: Text::Tail, ..options }).tail);
        let (calls, faults) = (report.ops, report.faults);
        let mut lines = tail.unwrap_or_default();
        lines.push(format!("seed {seed}, {members} members: FAILED: {finding}"));
        lines.push(format!("by then it had made {calls} calls and met {faults} faults"));
        return Err(lines);
    }
    let once = args.once || text != Text::None;
    if !once && run(options).trace_hash != report.trace_hash {
        return Err(vec![format!("seed {seed}, {members} members: FAILED: two runs of it differ")]);
    }
    Ok(report)
}

impl Total {
    fn take(&mut self, outcome: Result<Report, Vec<String>>) {
        let report = match outcome {
            Ok(report) => report,
            Err(lines) => {
                self.failure.get_or_insert(lines);
                return;
            }
        };
        self.seeds += 1;
        self.ops += report.ops;
        self.faults += report.faults;
        self.events += report.events;
        self.kinds.merge(&report.faults_by_kind);
        self.answers.merge(&report.answers);
    }
}
