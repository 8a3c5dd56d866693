//! The tests that CI runs in short, at length: hours, by hand.

use crate::{Failure, ablation, blackbox, cargo, counts, sh};

/// Arguments of cargo, a line each.
const LINES: [&str; 26] = [
    "run --release --locked --quiet -p larder-sim -- --seeds 20000 --members 3 --ops 1000 --once",
    "run --release --locked --quiet -p larder-sim -- --seeds 2000 --members 3 --restless",
    "run --release --locked --quiet -p larder-sim --features small-limits -- --seeds 5000 --ops 1000",
    "run --release --locked --quiet -p larder-model -- log --views 5 --ops 2 --restarts 0 --damages 0 --patient --pairs",
    "run --release --locked --quiet -p larder-model -- put --replicas 2 --policy 2 --attempts 2 --restarts 2 --losses 1 --views 2",
    "run --release --locked --quiet -p larder-model -- put --replicas 3 --policy 2 --attempts 1 --restarts 2 --losses 1 --views 2",
    "run --release --locked --quiet -p larder-model -- space --replicas 2",
    "run --release --locked --quiet -p larder-model -- space --replicas 1 --views 3 --restarts 2 --repairs 1",
    "run --release --locked --quiet -p larder-model -- deletion --deletions 2",
    "run --release --locked --quiet -p larder-model -- deletion --asks 2 --puts 1 --purges --reopenings 2 --joins",
    "run --release --locked --quiet -p larder-model -- home --begun 2 --lost 2 --told 2 --removes --given",
    "run --release --locked --quiet -p larder-model -- home --begun 2 --ended 1 --lost 1 --told 1 --given",
    "run --release --locked --quiet -p larder-model -- copies --numbers 4",
    "run --release --locked --quiet -p larder-model -- copies --kills 1 --heir",
    "run --release --locked --quiet -p larder-model -- copies --directories 3 --numbers 2 --kills 1",
    "test --release --locked --quiet -p larder-sim --features planted-bugs --test planted",
    "test --release --locked --quiet -p larder-pack --lib sim::",
    "test --release --locked --quiet -p larder-s3 --test s3 -- a_server_outlives_spoiled_requests",
    "test --locked --quiet -p larder-protocol --test pg hostile",
    "test --locked --quiet -p larder-roles --test members bytes_from",
    "test --locked --quiet -p larder-roles --test data_node bytes_from",
    "test --locked --quiet -p larder-roles --lib bytes_from",
    "test --release --locked --quiet -p larder-roles --lib proxy::remote_roles::sim",
    "test --locked --quiet -p larder-net --lib hostile",
    "test --locked --quiet -p larder-link --lib hostile",
    "test --locked --quiet -p larder-pack --lib hostile",
];

/// Each ablation, and what is asked of it.
const ABLATIONS: [&str; 3] = [
    "ordered test --locked --quiet -p larder-compare",
    "without-groups test --locked --quiet -p larder-protocol --lib without_groups",
    "without-locations check --locked --quiet -p larder",
];

/// Seeds of the simulation of packing.
const PACK_SEEDS: &str = "LARDER_PACK_SEEDS=2000";
/// Seeds of the simulated proxies.
const PROXY_SEEDS: &str = "LARDER_PROXY_SEEDS=20000";
/// Seeds of simulated clusters of real servers.
const CLUSTER_SEEDS: &str = "LARDER_CLUSTER_SEEDS=10000";
/// The time that each fuzzer runs: an hour.
const FUZZ_SECONDS: &str = "LARDER_FUZZ_SECONDS=3600";

/// Seconds of spoiled requests.
const SPOIL: &str = "LARDER_SPOIL_S=3600";

/// Runs all parts, also after one that failed; the first failure is what is told.
pub(crate) fn run() -> Result<(), Failure> {
    let parts = LINES.map(|line| {
        println!("\n== cargo {line}");
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let cargo = cargo();
        sh(
            "env",
            &[
                &[PACK_SEEDS, PROXY_SEEDS, CLUSTER_SEEDS, FUZZ_SECONDS, SPOIL, &cargo],
                &arguments[..],
            ]
            .concat(),
            &[],
        )
    });
    let ablations = ABLATIONS.map(|line| {
        println!("\n== ablation {line}");
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        ablation::run(&words)
    });
    let counts = counts::print();
    let scenarios = blackbox(&["--set".to_owned(), "soak".to_owned()]);
    parts.into_iter().chain(ablations).chain([counts, scenarios]).collect()
}
