//! The driver against the floor server: every operation, with signed bodies and without, and bare.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use clap::Parser;
use larder_bench::args::LoadArgs;
use larder_bench::report::Report;
use larder_bench::scenario::load;
use larder_bench::sign::Credentials;
use larder_bench::workload::Operation;
use larder_bench::{BenchCommand, BenchError};

use tokio::net::TcpListener;
use tokio::sync::oneshot;

const ACCESS_KEY: &str = "floor-access";
const SECRET_KEY: &str = "floor-secret-key";

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: BenchCommand,
}

/// A floor server in this process, stopped with the value.
struct Floor {
    endpoint: String,
    _stop: oneshot::Sender<()>,
    _runtime: tokio::runtime::Runtime,
}

impl Floor {
    fn start(bare: bool) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            let _ = stopped.await;
        };
        let root =
            larder_s3::Credentials { access_key: ACCESS_KEY.into(), secret_key: SECRET_KEY.into() };
        runtime.spawn(async move {
            match bare {
                true => larder_floor::serve_bare(listener, stopped).await,
                false => larder_floor::serve(listener, root, stopped).await,
            }
        });
        Self { endpoint, _stop: stop, _runtime: runtime }
    }

    fn args(&self, options: &str) -> LoadArgs {
        let endpoint = &self.endpoint;
        let times = match options.contains("--duration") {
            true => "",
            false => "--warmup 20ms --duration 150ms",
        };
        let line = format!("bench put --endpoint {endpoint} --floor {times} {options}");
        match Line::parse_from(line.split_ascii_whitespace()).command {
            BenchCommand::Put(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn load(&self, operation: Operation, options: &str) -> Result<Report, BenchError> {
        let credentials = Credentials::new(ACCESS_KEY, SECRET_KEY, "us-east-1").unwrap();
        load(operation, &self.args(options), Some(40), credentials)
    }
}

fn assert_sound(report: &Report) {
    assert_eq!(report.errors, 0, "{report}");
    assert!(report.p50_us <= report.p99_us && report.p99_us <= report.p999_us, "{report}");
    assert!(report.p50_us > Some(0.0), "{report}");
}

#[test]
fn every_operation_runs_without_an_error() {
    let floor = Floor::start(false);
    let mix = "40,40,20".parse().unwrap();
    for operation in [
        Operation::Put,
        Operation::Get,
        Operation::Head,
        Operation::Mixed(mix),
        Operation::List { page: 10 },
    ] {
        assert_sound(&floor.load(operation, "").unwrap());
    }
}

#[test]
fn objects_of_every_size_pass_signed_and_unsigned() {
    let floor = Floor::start(false);
    for size in ["0", "1", "8KiB", "600001"] {
        for signing in ["", "--unsigned-payload"] {
            let options = format!("--size {size} {signing} --concurrency 2");
            let put = floor.load(Operation::Put, &options).unwrap();
            assert_sound(&put);
            assert_eq!(put.bytes, put.ops * put.size.unwrap());
            assert_sound(&floor.load(Operation::Get, &options).unwrap());
        }
    }
}

#[test]
fn deletes_end_when_all_objects_are_deleted() {
    let floor = Floor::start(false);
    let report = floor.load(Operation::Delete, "--warmup 0s --duration 60s").unwrap();
    assert_sound(&report);
    assert_eq!(report.ops, 40);
    assert!(report.seconds < 30.0, "{report}");
}

#[test]
fn an_open_loop_makes_as_many_requests_as_were_asked_for() {
    let floor = Floor::start(false);
    let report = floor.load(Operation::Put, "--rate 200 --warmup 50ms --duration 500ms").unwrap();
    assert_sound(&report);
    let seen = report.ops + report.unsent;
    // 10 fall due before the window and 100 in it, of which 20 may be under way at its end.
    assert!((80..=110).contains(&seen), "{report}");
}

#[test]
fn cpu_time_is_reported_for_named_processes_only() {
    let floor = Floor::start(false);
    let unnamed = floor.load(Operation::Put, "").unwrap();
    assert_eq!(unnamed.server_cpu_us_per_op, None);
    let pid = std::process::id();
    let options = format!("--pid {pid} --warmup 0s --duration 60s");
    let named = floor.load(Operation::Delete, &options).unwrap();
    assert!(named.server_cpu_us_per_op.is_some());
    let missing = floor.load(Operation::Put, &format!("--pid {}", u32::MAX));
    assert!(matches!(missing, Err(BenchError::Process { .. })), "{missing:?}");
}

#[test]
fn a_wrong_secret_ends_the_run_before_it_begins() {
    let floor = Floor::start(false);
    let credentials = Credentials::new(ACCESS_KEY, "another-secret", "us-east-1").unwrap();
    let error = load(Operation::Put, &floor.args(""), None, credentials).unwrap_err();
    assert!(error.to_string().contains("SignatureDoesNotMatch"), "{error}");
    assert_eq!(error.exit_code(), 3);
}

#[test]
fn a_bare_floor_takes_the_same_load() {
    let floor = Floor::start(true);
    for operation in [
        Operation::Put,
        Operation::Get,
        Operation::Head,
        Operation::Delete,
        Operation::List { page: 10 },
    ] {
        let options = match operation {
            Operation::Delete => "--warmup 0s --duration 60s",
            _ => "--size 300000 --concurrency 2",
        };
        assert_sound(&floor.load(operation, options).unwrap());
    }
}

#[test]
fn without_the_floor_flag_its_one_file_is_seen_to_be_wrong() {
    let floor = Floor::start(false);
    let mut args = floor.args("");
    args.floor = false;
    let credentials = Credentials::new(ACCESS_KEY, SECRET_KEY, "us-east-1").unwrap();
    let report = load(Operation::Get, &args, Some(5), credentials).unwrap();
    assert_eq!(report.ops, 0);
    assert!(report.errors > 0);
}
