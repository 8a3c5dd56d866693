//! The simulator: whole clusters of production parts under one seeded scheduler.
//!
//! A run is a function of its seed. Machines, disks, messages, clocks and clients are simulated. The rest is the code that
//! serves: the PGs' machines, the managers' quorum, map and policy, the metadata log, volumes, codecs, row formats and the
//! derivation of space. Clients' answers are checked for linearizability. At the end every fault ends, and the store must
//! come to rest and serve. Then everything restarts, and it must come to rest again and be whole.

#![deny(unsafe_code)]
#![expect(
    clippy::large_enum_variant,
    reason = "what happens in the world is moved once: boxes would only hide it"
)]

mod agreed;
mod choices;
mod client;
mod clock;
mod content;
mod draw;
mod event;
mod faults;
mod finish;
pub mod history;
mod index;
mod links;
mod log;
mod manager;
mod managers;
pub mod minimise;
mod mix;
mod net;
mod node;
mod places;
pub mod planted;
mod process_end;
mod promises;
mod proxy;
mod proxy_context;
mod quiescence;
pub mod reduction;
mod servers;
mod setup;
mod store;
pub mod trace;
pub mod verdict;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use setup::{MACHINES_MAX, Options};
pub use verdict::{Finding, Report};

use reduction::Reduction;
use world::World;

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, options: Options) -> Report {
    run_less(seed, options, &Reduction::default())
}

/// Runs one seed, but for what is left out.
#[must_use]
pub fn run_less(seed: u64, options: Options, less: &Reduction) -> Report {
    let mut setup = setup::Setup::draw(seed, options);
    less.of(&mut setup);
    let mut world = World::new(setup, less.clone());
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    if let Err(panic) = ended {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        world.net.find(Finding::Panic(text));
    }
    world.report()
}
