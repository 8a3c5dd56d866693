//! The driver and the replay as judges: a sound store passes, and every lie is noticed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod store;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use larder_bench::BenchCommand;
use larder_bench::replay::replay;
use larder_bench::report::Report;
use larder_bench::scenario::load;
use larder_bench::sign::Credentials;
use larder_bench::workload::Operation;
use store::{Lie, Store};
use tokio::runtime::Runtime;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: BenchCommand,
}

fn credentials() -> Credentials {
    Credentials::new("access", "secret", "us-east-1").unwrap()
}

fn start(lie: Lie) -> (Runtime, Arc<Store>) {
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(Store::start(lie));
    (runtime, store)
}

fn bench(store: &Store, operation: Operation) -> Report {
    bench_with(store, operation, "")
}

fn bench_with(store: &Store, operation: Operation, options: &str) -> Report {
    // Long enough for some requests on a machine that is busy with other tests.
    let endpoint = &store.endpoint;
    let line = format!(
        "bench put --endpoint {endpoint} --size 1000 --warmup 0s --duration 500ms {options}"
    );
    let BenchCommand::Put(args) = Line::parse_from(line.split_ascii_whitespace()).command else {
        panic!("{line}")
    };
    load(operation, &args, Some(60), credentials()).unwrap()
}

fn replay_small(store: &Store) -> Report {
    let trace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("traces/small.txt");
    let line = format!("bench replay {} --endpoint {}", trace.display(), store.endpoint);
    let BenchCommand::Replay(args) = Line::parse_from(line.split_ascii_whitespace()).command else {
        panic!("{line}")
    };
    replay(&args, credentials()).unwrap()
}

/// Finds the objects that the trace leaves behind, by reading it in the simplest way.
fn left_by_small_trace() -> std::collections::BTreeMap<String, usize> {
    let mut left = std::collections::BTreeMap::new();
    let mut met = std::collections::BTreeSet::new();
    for line in include_str!("../../traces/small.txt").lines().filter(|line| !line.starts_with('#'))
    {
        let fields: Vec<&str> = line.split(' ').collect();
        let (name, bytes) = (fields[2].to_owned(), fields[3].parse().unwrap());
        if fields[1] == "PUT" || (fields[1] == "GET" && met.insert(name.clone())) {
            left.insert(name.clone(), bytes);
        }
        if fields[1] == "DELETE" {
            left.remove(&name);
        }
        met.insert(name);
    }
    left
}

#[test]
fn a_sound_store_passes_every_operation() {
    let (_runtime, store) = start(Lie::None);
    let mix = "60,30,10".parse().unwrap();
    for operation in [
        Operation::Put,
        Operation::Get,
        Operation::Head,
        Operation::Mixed(mix),
        Operation::Delete,
        Operation::List { page: 7 },
    ] {
        let report = bench(&store, operation);
        assert_eq!(report.errors, 0, "{report}");
        assert!(report.p50_us > Some(0.0), "{report}");
    }
}

#[test]
fn a_run_leaves_its_objects_unless_it_is_to_clean_up() {
    let (_runtime, store) = start(Lie::None);
    assert_eq!(bench(&store, Operation::Get).errors, 0);
    let left = store.sizes();
    assert_eq!(left.len(), 60);
    // More than a page of them.
    let report = bench_with(&store, Operation::Put, "--clean");
    assert_eq!(report.errors, 0, "{report}");
    assert_eq!(store.sizes(), left, "what others have put stays");
}

#[test]
fn objects_that_a_clean_up_leaves_are_noticed() {
    let (_runtime, store) = start(Lie::KeptDeletes);
    let report = bench_with(&store, Operation::Get, "--clean");
    assert_eq!(report.errors, 1, "{report}");
}

#[test]
fn every_wrong_answer_about_an_object_is_detected() {
    for lie in [Lie::FlippedBit, Lie::Short, Lie::Other, Lie::LostPuts] {
        let (_runtime, store) = start(lie);
        let report = bench(&store, Operation::Get);
        assert!(report.errors > report.ops, "{lie:?} {report}");
    }
}

#[test]
fn a_head_of_another_size_and_one_of_a_lost_object_are_noticed() {
    for lie in [Lie::Short, Lie::LostPuts] {
        let (_runtime, store) = start(lie);
        let report = bench(&store, Operation::Head);
        assert!(report.errors > 0 && report.ops == 0, "{lie:?} {report}");
    }
}

#[test]
fn a_gap_in_a_list_is_noticed() {
    let (_runtime, store) = start(Lie::GappedLists);
    let report = bench(&store, Operation::List { page: 7 });
    assert!(report.errors > 0 && report.ops == 0, "{report}");
}

#[test]
fn refusals_and_broken_connections_are_counted_and_the_run_goes_on() {
    for (lie, kind) in [(Lie::Refusals, "503 SlowDown"), (Lie::Breaks, "connection broke")] {
        let (_runtime, store) = start(lie);
        let report = bench(&store, Operation::Put);
        assert!(report.errors_by_kind.contains_key(kind), "{report}");
        assert_eq!(report.errors_by_kind.len(), 1, "{report}");
        assert!(report.ops > report.errors, "{report}");
    }
}

#[test]
fn a_replay_reproduces_the_trace_exactly() {
    let (_runtime, store) = start(Lie::None);
    for _ in 0..2 {
        let report = replay_small(&store);
        assert_eq!((report.errors, report.ops), (0, 200), "{report}");
        assert!(report.checked > 150, "{report}");
        assert_eq!(store.sizes(), left_by_small_trace());
    }
}

#[test]
fn a_replay_detects_every_wrong_answer() {
    for lie in [Lie::FlippedBit, Lie::Short, Lie::Other, Lie::LostPuts, Lie::KeptDeletes] {
        let (_runtime, store) = start(lie);
        let report = replay_small(&store);
        assert!(report.errors > 0, "{lie:?} {report}");
    }
}

#[test]
fn an_endpoint_that_goes_away_ends_a_replay_with_errors() {
    let (_runtime, store) = start(Lie::End);
    let report = replay_small(&store);
    assert!(report.errors > 0 && report.ops > 0 && report.checked == 0, "{report}");
    assert!(report.errors + report.ops < 200, "what can only fail is not tried: {report}");
}
