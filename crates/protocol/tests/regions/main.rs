//! Regions under one seed: machines that pull from each other, stores that crash and are wiped, links that are cut,
//! clocks that differ. Afterwards everything heals, and all regions must have the same.

mod journal;
mod judge;
mod site;
mod world;

use world::{Bug, World};

/// Runs seeds one after the other; what the first says that fails.
fn run(seeds: impl IntoIterator<Item = u64>, bug: Bug) -> Result<world::Counts, String> {
    let mut counts = world::Counts::default();
    for seed in seeds {
        let of_seed = World::new(seed, bug).run().map_err(|why| format!("seed {seed}: {why}"))?;
        counts.add(&of_seed);
    }
    Ok(counts)
}

/// The seeds to run: `LARDER_REGION_SEEDS` of them, from `LARDER_REGION_SEED` on.
fn seeds(or: u64) -> std::ops::Range<u64> {
    let number = |of: &str| std::env::var(of).ok().map(|it| it.parse::<u64>().expect("a number"));
    let first = number("LARDER_REGION_SEED");
    let count = number("LARDER_REGION_SEEDS").unwrap_or(if first.is_some() { 1 } else { or });
    first.unwrap_or(0)..first.unwrap_or(0) + count
}

#[test]
fn regions_come_to_have_the_same_whatever_happened() {
    let seeds = seeds(32);
    let has_many = seeds.end - seeds.start > 1;
    let counts = run(seeds, Bug::default());
    let counts = counts.unwrap_or_else(|why| panic!("{why}; LARDER_REGION_SEED repeats it"));
    println!("{counts:?}");
    assert!(!has_many || counts.has_all(), "the runs meet too little: {counts:?}");
}

#[cfg(feature = "planted-bugs")]
#[test]
fn each_planted_bug_is_found() {
    for (name, bug, first) in world::bugs() {
        match run(std::iter::once(first).chain(0..2000), bug) {
            Ok(_) => panic!("{name} is not found in 2000 seeds"),
            Err(why) => println!("{name}: {why}"),
        }
    }
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    let run = || World::new(7, Bug::default()).run().map(|counts| format!("{counts:?}"));
    assert_eq!(run(), run());
}
