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

fn seeds(or: u64) -> u64 {
    std::env::var("LARDER_REGION_SEEDS").map_or(or, |seeds| seeds.parse().expect("a number"))
}

#[test]
fn regions_come_to_have_the_same_whatever_happened() {
    let counts = match std::env::var("LARDER_REGION_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("a number");
            run(seed..seed + 1, Bug::default())
        }
        Err(_) => run(0..seeds(32), Bug::default()),
    };
    let counts = counts.unwrap_or_else(|why| panic!("{why}; LARDER_REGION_SEED repeats it"));
    println!("{counts:?}");
    assert!(counts.has_all(), "the runs meet too little: {counts:?}");
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
