//! The rounds of a comparison: every system in every round, on an empty directory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use sha2::{Digest, Sha256};

use crate::args::SystemsArgs;
use crate::clusters::CLUSTERS;
use crate::error::CompareError;
use crate::launch::{LaunchError, Running, launch};
use crate::machine;
use crate::peaks;
use crate::process::Interrupts;
use crate::results::{About, AtPeak, Entrant, Figures, Results, Row};
use crate::systems::{self, Keys, LARDER, System};
use crate::usage::Meter;
use crate::works::{self, Subject, Work};
use larder_bench::scenario::run_number;
use larder_bench::sign::{Credentials, hex};
use larder_bench::workload::Random;

/// Measured time of a quick comparison's works.
const QUICK_DURATION: Duration = Duration::from_millis(500);

/// Seeds drawn from the clock are below this: enough to differ, and short to write.
const SEEDS: u128 = 1_000_000;

/// The plan, the same through all rounds.
struct Plan<'a> {
    args: SystemsArgs,
    scratch: &'a Path,
    works: Vec<Work>,
    keys: Keys,
    credentials: Credentials,
    interrupts: Arc<Interrupts>,
}

/// Measures.
pub(crate) fn run(asked: &SystemsArgs) -> Result<Results, CompareError> {
    let mut args = asked.clone();
    if args.quick {
        (args.rounds, args.duration) = (1, QUICK_DURATION);
    }
    let scratch = machine::scratch(args.scratch.as_deref())?;
    let works = works::chosen(&args.works, args.trace.is_some())?;
    let kinds = if args.cluster { &CLUSTERS[..] } else { &systems::KINDS[..] };
    let (systems, absent) = systems::find(kinds, &args)?;
    absent.iter().for_each(|line| eprintln!("{line}"));
    let seed = args.seed.unwrap_or_else(|| (run_number() % SEEDS) as u64);
    let about = about(&args, &scratch, seed, &systems, absent);
    allow_connections()?;
    let keys = draw_keys();
    let credentials = Credentials::new(&keys.access, &keys.secret, "us-east-1")?;
    let interrupts = Interrupts::watch()?;
    let plan = Plan { args, scratch: &scratch, works, keys, credentials, interrupts };
    let mut results = Results { about, rows: Vec::new(), at_peaks: Vec::new() };
    let mut random = Random(seed);
    for round in 1..=plan.args.rounds {
        for index in shuffled(systems.len(), &mut random) {
            plan.measure(round, &systems[index], &mut results.rows)?;
        }
        if let Some(larder) = systems.iter().find(|system| system.kind.name == LARDER) {
            plan.measure_at_peaks(round, larder, &mut results)?;
        }
    }
    Ok(results)
}

/// A system that was to be started, and where.
struct Started<'a> {
    system: &'a System,
    directory: &'a Path,
    launched: Result<Running, LaunchError>,
}

impl Plan<'_> {
    /// One system in one round.
    fn measure(
        &self,
        round: u64,
        system: &System,
        rows: &mut Vec<Row>,
    ) -> Result<(), CompareError> {
        self.with(system, |started| {
            let works = self.works.iter();
            for work in works.filter(|work| !(system.kind.floor && work.op.needs_store())) {
                let figures = self.figures(started, work);
                self.interrupts.check()?;
                rows.push(self.row(round, system, work, figures));
            }
            Ok(())
        })
    }

    /// Larder under each load that was a peer's peak in this round.
    fn measure_at_peaks(
        &self,
        round: u64,
        larder: &System,
        results: &mut Results,
    ) -> Result<(), CompareError> {
        let peaks = peaks::of_round(&results.rows, round, &results.about.systems);
        if peaks.is_empty() {
            return Ok(());
        }
        self.with(larder, |started| {
            for peak in peaks {
                let Some(work) = peak.offered() else { continue };
                let figures = self.figures(started, &work);
                self.interrupts.check()?;
                let Row { figures, failure, .. } = self.row(round, larder, &work, figures);
                results.at_peaks.push(AtPeak { peak, larder: figures, failure });
            }
            Ok(())
        })
    }

    /// Starts a system on an empty directory for what `measure` does with it, and stops it.
    fn with(
        &self,
        system: &System,
        measure: impl FnOnce(&Started<'_>) -> Result<(), CompareError>,
    ) -> Result<(), CompareError> {
        let directory = tempfile::Builder::new().prefix("larder-compare-").tempdir_in(self.scratch);
        let directory = directory.map_err(CompareError::System)?;
        // This system is not to pay for what another left to be written.
        rustix::fs::sync();
        let launched =
            launch(system, directory.path(), &self.keys, &self.credentials, &self.interrupts);
        self.interrupts.check()?;
        let started = Started { system, directory: directory.path(), launched };
        let measured = measure(&started);
        // The server goes before its directory does.
        drop(started);
        measured
    }

    /// One work.
    fn figures(&self, started: &Started<'_>, work: &Work) -> Result<Figures, String> {
        let running = started.launched.as_ref().map_err(ToString::to_string)?;
        if running.server.has_ended_within(Duration::ZERO) {
            return Err(LaunchError::Ended.to_string());
        }
        let text = |error: std::io::Error| error.to_string();
        let pids = running.server.pids().map_err(text)?;
        let meter = Meter::begin(&pids, started.directory).map_err(text)?;
        let subject = Subject {
            endpoint: &running.endpoint,
            pids: &pids,
            credentials: &self.credentials,
            floor: started.system.kind.floor,
        };
        let report = work.run(&subject, &self.args).map_err(|error| error.to_string())?;
        let usage = meter.end().map_err(text)?;
        Ok(Figures::new(work, &report, &usage))
    }

    fn row(
        &self,
        round: u64,
        system: &System,
        work: &Work,
        figures: Result<Figures, String>,
    ) -> Row {
        let begin = format!(
            "round {round} of {}, {} ({}), {}",
            self.args.rounds,
            system.kind.name,
            system.kind.setting,
            work.name()
        );
        match &figures {
            Ok(figures) => eprintln!(
                "{begin}: {:.0} ops/s, {:.1} us CPU, {} errors {}",
                figures.ops_s,
                figures.server_cpu_us_per_op.unwrap_or_default(),
                figures.errors,
                figures.error_kind
            ),
            Err(failure) => eprintln!("{begin}: failed: {failure}"),
        }
        let failure = figures.as_ref().err().cloned();
        Row {
            round,
            system: system.kind.name.to_owned(),
            version: system.version.clone(),
            setting: system.kind.setting.to_owned(),
            work: *work,
            figures: figures.ok(),
            failure,
        }
    }
}

fn about(
    args: &SystemsArgs,
    scratch: &Path,
    seed: u64,
    systems: &[System],
    absent: Vec<String>,
) -> About {
    let entrant = |system: &System| Entrant {
        system: system.kind.name.to_owned(),
        version: system.version.clone(),
        setting: system.kind.setting.to_owned(),
        durability: system.kind.durability.to_owned(),
        command: system.command_line(),
        floor: system.kind.floor,
    };
    About {
        date: machine::date(),
        commit: larder_plot::commit(),
        command: command_line(args, seed),
        machine: machine::machine(scratch),
        seed,
        rounds: args.rounds,
        measured_ms: args.duration.as_millis() as u64,
        warm_up_ms: args.warmup.as_millis() as u64,
        listed: args.listed,
        systems: systems.iter().map(entrant).collect(),
        absent,
    }
}

/// The command that makes the same comparison again, wherever the peers and the trace are.
fn command_line(args: &SystemsArgs, seed: u64) -> String {
    let (duration, warmup) = (args.duration.as_millis(), args.warmup.as_millis());
    let mut command = format!(
        "larder-compare systems --rounds {} --duration {duration}ms --warmup {warmup}ms --listed {} \
         --seed {seed}",
        args.rounds, args.listed
    );
    for (option, names) in [("--works", &args.works), ("--systems", &args.systems)] {
        if !names.is_empty() {
            command.push_str(&format!(" {option} {}", names.join(",")));
        }
    }
    if let Some(name) = args.trace.as_deref().and_then(Path::file_name) {
        command.push_str(&format!(" --trace {}", name.display()));
    }
    if args.cluster {
        command.push_str(" --cluster");
    }
    if let Some(part) = &args.part {
        command.push_str(&format!(" --part {part}"));
    }
    command
}

/// Lets this process and the servers that it starts have as many open files as the system allows.
fn allow_connections() -> Result<(), CompareError> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).map_err(|error| CompareError::System(error.into()))
}

pub(crate) fn draw_keys() -> Keys {
    let secret = hex(&Sha256::digest(run_number().to_le_bytes()));
    Keys { access: format!("GK{}", &secret[..24]), secret: hex(&Sha256::digest(&secret)) }
}

/// The numbers below `count`, in an order drawn from `random`.
pub(crate) fn shuffled(count: usize, random: &mut Random) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_every_system_once_and_follows_from_the_seed() {
        let draw = |seed| -> Vec<Vec<usize>> {
            let mut random = Random(seed);
            (0..20).map(|_| shuffled(6, &mut random)).collect()
        };
        let orders = draw(7);
        assert_eq!(orders, draw(7));
        assert_ne!(orders, draw(8));
        assert!(orders.iter().any(|order| order != &orders[0]), "rounds differ");
        for mut order in orders {
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3, 4, 5]);
        }
    }

    #[test]
    fn keys_have_the_form_that_every_system_takes() {
        let keys = draw_keys();
        assert_eq!((keys.access.len(), keys.secret.len()), (26, 64));
        assert!(keys.access.starts_with("GK") && !keys.secret.contains(&keys.access[2..]));
    }
}
