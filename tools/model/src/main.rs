//! `larder-model`: explores one model within given bounds. Exit code 1 if a property is broken or
//! states are left.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use larder_model::explore::{Model, explore};
use larder_model::{copies, deletion, home, log, put, space};

/// Looks at every state that a model of the protocol can reach.
#[derive(Debug, Parser)]
#[command(name = "larder-model")]
struct Args {
    #[command(subcommand)]
    model: Which,
    /// States after which to give up.
    #[arg(long, global = true, default_value_t = 200_000_000)]
    states_max: usize,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// Copies of a directory of packing, and which of their blobs count.
    Copies {
        #[command(flatten)]
        bounds: copies::Bounds,
        /// A weaker reading.
        #[arg(long, default_value = "safe")]
        variant: copies::Variant,
    },
    /// The deletion of a bucket that several regions have.
    Deletion {
        #[command(flatten)]
        bounds: deletion::Bounds,
        /// A weaker reading.
        #[arg(long, default_value = "safe")]
        variant: deletion::Variant,
    },
    /// The home of a bucket, among regions.
    Home {
        #[command(flatten)]
        bounds: home::Bounds,
        /// A weaker reading.
        #[arg(long, default_value = "safe")]
        variant: home::Variant,
    },
    /// The log of one PG on its members.
    Log {
        #[command(flatten)]
        bounds: log::Bounds,
        /// A weaker reading.
        #[arg(long, default_value = "safe")]
        variant: log::Variant,
    },
    /// One put, from its grant to its outcome.
    Put {
        #[command(flatten)]
        bounds: put::Bounds,
        /// A weaker reading.
        #[arg(long, default_value = "safe")]
        variant: put::Variant,
    },
    /// Floors and the reuse of space.
    Space {
        #[command(flatten)]
        bounds: space::Bounds,
        /// A weaker reading.
        #[arg(long, default_value = "safe")]
        variant: space::Variant,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.model {
        Which::Copies { bounds, variant } => {
            run(&copies::Copies { bounds, variant }, args.states_max)
        }
        Which::Deletion { bounds, variant } => {
            run(&deletion::Deletions { bounds, variant }, args.states_max)
        }
        Which::Home { bounds, variant } => run(&home::Homes { bounds, variant }, args.states_max),
        Which::Log { bounds, variant } => {
            run(&log::Replication { bounds, variant }, args.states_max)
        }
        Which::Put { bounds, variant } => run(&put::Put { bounds, variant }, args.states_max),
        Which::Space { bounds, variant } => run(&space::Space { bounds, variant }, args.states_max),
    }
}

fn run<M: Model>(model: &M, states_max: usize) -> ExitCode {
    let report = explore(model, states_max);
    println!(
        "{} states, {} steps, depth {}, {:.1} s, {}",
        report.states,
        report.steps,
        report.depth,
        report.took.as_secs_f64(),
        if report.exhausted { "exhausted" } else { "not exhausted" }
    );
    for (name, reached) in &report.reached {
        println!("{} {name}", if *reached { "reached:" } else { "NOT reached:" });
    }
    let Some((property, way)) = report.violation else {
        return if report.exhausted { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    println!("{property:?} is broken after {} steps:", way.len());
    for (at, action) in way.iter().enumerate() {
        println!("{:4}  {action:?}", at + 1);
    }
    ExitCode::FAILURE
}
