use clap::Parser;

use super::*;
use crate::args::BenchCommand;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: BenchCommand,
}

fn load_args(options: &str) -> LoadArgs {
    let line = format!("bench put --endpoint http://127.0.0.1:1 {options}");
    match Line::try_parse_from(line.split_ascii_whitespace()).unwrap().command {
        BenchCommand::Put(args) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn preloads_are_bounded_in_bytes_and_number() {
    let needed =
        |operation, options: &str| objects_needed(operation, &load_args(options), None).unwrap();
    assert_eq!(needed(Operation::Put, ""), 0);
    assert_eq!(needed(Operation::Get, ""), 10_000);
    assert_eq!(needed(Operation::Get, "--size 1MiB"), 256);
    assert_eq!(needed(Operation::Get, "--size 1GiB"), 20, "one for each request in flight");
    assert_eq!(needed(Operation::Get, "--size 0"), 10_000);
    assert_eq!(needed(Operation::Delete, ""), 100_000);
    assert_eq!(needed(Operation::Delete, "--rate 100 --warmup 1s --duration 2s"), 301);
    assert_eq!(objects_needed(Operation::Get, &load_args(""), Some(7)).unwrap(), 7);
}

#[test]
fn too_few_objects_for_a_rate_are_refused() {
    let args = load_args("--rate 1000");
    let error = objects_needed(Operation::Delete, &args, Some(10)).unwrap_err().to_string();
    assert!(error.starts_with("--objects") && error.contains("11001"), "{error}");
}

#[test]
fn a_run_without_time_is_refused() {
    let credentials = Credentials::new("key", "secret", "region").unwrap();
    let args = load_args("--duration 0s");
    let error = load(Operation::Put, &args, None, credentials).unwrap_err().to_string();
    assert!(error.starts_with("--duration"), "{error}");
}

#[test]
fn the_window_ends_early_when_all_workers_have_ended() {
    let hour = Duration::from_secs(3600);
    let (running, all_ended) = mpsc::channel::<()>();
    drop(running);
    assert!(!is_running_at(Instant::now() + hour, &all_ended));
    let error = sample(Window::after(hour, hour), &[], all_ended).unwrap_err().to_string();
    assert!(error.starts_with("--objects"), "{error}");
    let (_running, all_ended) = mpsc::channel::<()>();
    assert!(is_running_at(Instant::now(), &all_ended));
}
