//! Shortens a seed that fails. Each try is a process of its own, as a failed assertion ends one.

use std::env::current_exe;
use std::process::{Command, ExitCode};

use larder_sim::MACHINES_MAX;
use larder_sim::minimise::minimise;
use larder_sim::reduction::Reduction;
use larder_sim::verdict::Finding;

use crate::Args;

/// The inputs that all tries share.
struct Tries<'a> {
    args: &'a Args,
    seed: u64,
    machines: Option<usize>,
    done: u32,
}

/// The failure of a run.
struct Failed {
    text: String,
    calls: u32,
    faults: usize,
}

/// Shortens a seed, and prints what is left of it.
pub(crate) fn shorten(args: &Args, seed: u64) -> ExitCode {
    let mut tries = Tries { args, seed, machines: args.machines, done: 0 };
    let Some(mut failed) = tries.run(&Reduction::default()) else {
        println!("seed {seed} does not fail");
        return ExitCode::SUCCESS;
    };
    println!("seed {seed}: {}", failed.text);
    let kind = Finding::kind(&failed.text).to_owned();
    let members = args.members.unwrap_or(if seed.is_multiple_of(2) { 1 } else { 3 });
    for machines in members..if members == 1 || args.machines.is_some() { 0 } else { MACHINES_MAX }
    {
        let before = tries.machines.replace(machines);
        match tries.run(&Reduction::default()).filter(|it| Finding::kind(&it.text) == kind) {
            Some(few) => {
                failed = few;
                break;
            }
            None => tries.machines = before,
        }
    }
    let mut fails = |less: &Reduction| {
        let failed = tries.run(less).filter(|it| Finding::kind(&it.text) == kind)?;
        Some(failed.calls)
    };
    let less = minimise((failed.calls, failed.faults), args.tries, &mut fails);
    println!("what is left after {} tries:", tries.done);
    let mut command = tries.command(&less);
    command.arg("--timeline");
    let line: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
    if let Err(error) = command.status() {
        eprintln!("it cannot be run again: {error}");
    }
    println!("see it again with: larder-sim {}", line.join(" "));
    ExitCode::FAILURE
}

impl Tries<'_> {
    fn command(&self, less: &Reduction) -> Command {
        let program = current_exe().unwrap_or_else(|_| "larder-sim".into());
        let mut command = Command::new(program);
        let Args { ops, members, planted, heavy_log, restless, early, coalesces, .. } = self.args;
        command.args(["--from", &self.seed.to_string(), "--seeds", "1", "--jobs", "1"]);
        command.args(["--once", "--ops", &ops.to_string()]);
        if let Some(members) = members {
            command.args(["--members", &members.to_string()]);
        }
        if let Some(machines) = self.machines {
            command.args(["--machines", &machines.to_string()]);
        }
        if let Some(planted) = planted {
            command.args(["--planted", planted]);
        }
        command.args(heavy_log.then_some("--heavy-log"));
        command.args(restless.then_some("--restless"));
        command.args(early.then_some("--early"));
        command.args(coalesces.then_some("--coalesces"));
        if *less != Reduction::default() {
            command.args(["--less", &less.to_string()]);
        }
        command
    }

    /// Runs it once; how it failed, if it did.
    fn run(&mut self, less: &Reduction) -> Option<Failed> {
        self.done += 1;
        let output = self.command(less).arg("--brief").output();
        let output = output.inspect_err(|error| eprintln!("it cannot be run: {error}")).ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let (_, finding) = text.split_once("FAILED: ")?;
        let counts = text.split_once("by then it had made ").map(|(_, counts)| counts);
        let mut numbers = counts.unwrap_or("").split(' ').filter_map(|word| word.parse().ok());
        // A failed assertion does not tell them.
        let (calls, faults) = (numbers.next(), numbers.next());
        let text = finding.lines().next().unwrap_or("").to_owned();
        let calls = calls.unwrap_or(less.calls.unwrap_or(self.args.ops));
        let faults = faults.map_or(FAULTS_UNKNOWN, |faults| faults as usize);
        Some(Failed { text, calls, faults })
    }
}

/// Faults that are averted one after the other where it is not known how many there were.
const FAULTS_UNKNOWN: usize = 64;
