//! `larder dev-cluster`: a cluster of processes on one machine, for trying out.
//!
//! ```text
//!  DIR/cluster.toml            where each process lies and listens; written once, when all of it is made
//!  DIR/node-N/ROLE/role.toml   its configuration
//!  DIR/node-N/ROLE/process.log what it printed
//! ```
//!
//! Each process holds the end of a pipe from this one: when this one is gone, however that came, all stop.

mod child;
mod layout;
mod make;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::DevClusterArgs;
use crate::exit;
use child::{Happened, Part, Process};
use layout::Layout;

/// Between two looks whether the proxies are ready.
const READY_PAUSE: Duration = Duration::from_millis(100);
/// Longest that a cluster takes until it is ready.
const READY_MAX: Duration = Duration::from_secs(120);
/// Longest that a proxy's answer takes.
const PROBE_MAX: Duration = Duration::from_secs(2);
/// Most events that wait to be told to people: a few of each process of the largest cluster.
const WOKEN_MAX: usize = 256;
/// Longest that all processes take to stop; each ends itself before that.
const STOP_MAX: Duration = Duration::from_secs(15);

/// Errors with which the cluster does not start, or stops.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevError {
    #[error(transparent)]
    Kind(#[from] crate::kind::KindError),
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error(
        "{dir} has no cluster.toml, but {found} is there: restore cluster.toml, or empty the directory"
    )]
    NoLayout { dir: String, found: String },
    #[error(
        "{path} is not what it should be: {reason}; name another directory, or remove this one"
    )]
    Layout { path: String, reason: String },
    #[error(
        "{dir} stays at --nodes {found}, not {asked}: a development cluster does not grow. Leave --nodes out, or name another directory; to see a cluster grow, start machines with `larder server DIR --peer`"
    )]
    Nodes { dir: String, found: usize, asked: usize },
    #[error("the cluster cannot be founded: {0}")]
    Found(String),
    #[error("the system does not let a process run: {0}")]
    System(std::io::Error),
    #[error("the cluster was not ready within {} s: see the logs in {dir}/node-*/*/process.log", READY_MAX.as_secs())]
    NotReady { dir: String },
}

/// The configuration of a server of a development cluster that asks the managers as well as any.
pub(crate) fn operator_role(dir: &Path) -> PathBuf {
    dir.join("node-1/proxy/role.toml")
}

/// The report that is printed when the cluster is ready.
#[derive(Serialize)]
struct Report {
    nodes: Vec<ReportedNode>,
}

#[derive(Serialize)]
struct ReportedNode {
    name: String,
    endpoint: String,
    processes: Vec<ReportedProcess>,
}

#[derive(Serialize)]
struct ReportedProcess {
    role: &'static str,
    pid: u32,
}

/// The events that wake the supervisor.
enum Woken {
    Signal,
    Process(Part, Happened),
}

/// Runs the cluster until it is told to stop. `reached_by`: see [`crate::run`].
pub(crate) fn run(args: &DevClusterArgs, reached_by: &[&'static str]) -> ExitCode {
    match start(args, reached_by) {
        Ok(()) => exit::code(exit::OK),
        Err(error) => {
            eprintln!("error: {error}");
            let usage = matches!(error, DevError::Nodes { .. });
            exit::code(if usage { exit::USAGE } else { exit::CANNOT_START })
        }
    }
}

fn start(args: &DevClusterArgs, reached_by: &[&'static str]) -> Result<(), DevError> {
    let (layout, _held) = make::open_or_make(args)?;
    let (woken, wakes) = sync_channel(WOKEN_MAX);
    watch_signals(woken.clone())?;
    let mut processes = Vec::new();
    let threads = layout::threads(layout.nodes.len());
    for (number, node) in layout.nodes.iter().enumerate() {
        for part in &node.parts {
            let part = Part::new(number, part.role, &part.dir, threads, reached_by);
            let woken = woken.clone();
            // It is only for people to read: events that find no room are dropped.
            let tell = move |part, what| drop(woken.try_send(Woken::Process(part, what)));
            let process = Process::run(part, !args.no_restart, tell);
            processes.push(process.map_err(DevError::System)?);
        }
    }
    let outcome = ready_and_watch(args, &layout, &processes, &wakes);
    let deadline = Instant::now() + STOP_MAX;
    processes.iter().for_each(|process| process.stop());
    for process in &processes {
        if !process.stopped(deadline) {
            let Part { node, role, .. } = &process.part;
            eprintln!("node {}: the {} process has not stopped", node + 1, role.name());
        }
    }
    outcome
}

/// Waits until it is ready, prints that, and watches until it is stopped.
fn ready_and_watch(
    args: &DevClusterArgs,
    layout: &Layout,
    processes: &[Arc<Process>],
    wakes: &Receiver<Woken>,
) -> Result<(), DevError> {
    let deadline = Instant::now() + READY_MAX;
    let mut waiting: Vec<&str> = layout.nodes.iter().map(|node| node.s3.as_str()).collect();
    while !waiting.is_empty() {
        if Instant::now() > deadline {
            return Err(DevError::NotReady { dir: args.dir.display().to_string() });
        }
        match wakes.recv_timeout(READY_PAUSE) {
            Ok(Woken::Signal) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(Woken::Process(part, happened)) => print_event(&part, &happened),
            Err(RecvTimeoutError::Timeout) => waiting.retain(|s3| !is_ready(s3)),
        }
    }
    let announced = announce(args, &report(layout, processes));
    make::credentials(&args.dir)?.show_once(&args.dir.join(make::CREDENTIALS));
    announced.map_err(|source| DevError::File { path: "stdout".to_owned(), source })?;
    loop {
        match wakes.recv() {
            Ok(Woken::Signal) | Err(_) => return Ok(()),
            Ok(Woken::Process(part, happened)) => print_event(&part, &happened),
        }
    }
}

fn report(layout: &Layout, processes: &[Arc<Process>]) -> Report {
    let node = |(number, node): (usize, &layout::Node)| {
        let own = processes.iter().filter(|process| process.part.node == number);
        let running = own.filter_map(|process| {
            Some(ReportedProcess { role: process.part.role.name(), pid: process.pid()? })
        });
        ReportedNode {
            name: node.name.clone(),
            endpoint: format!("http://{}", node.s3),
            processes: running.collect(),
        }
    };
    Report { nodes: layout.nodes.iter().enumerate().map(node).collect() }
}

fn announce(args: &DevClusterArgs, report: &Report) -> std::io::Result<()> {
    if args.json {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
        return out.flush();
    }
    for node in &report.nodes {
        eprintln!("{} serves S3 on {}", node.name, node.endpoint);
        for process in &node.processes {
            eprintln!("  {:<8} process {}", process.role, process.pid);
        }
    }
    if let Some(node) = report.nodes.first() {
        let keys = args.dir.join(crate::credentials::FILE);
        eprintln!("Try, with the keys of {}:", keys.display());
        eprintln!("  aws --endpoint-url {} s3 mb s3://first", node.endpoint);
    }
    eprintln!("SIGTERM or Ctrl-C stops all of it");
    Ok(())
}

fn print_event(part: &Part, happened: &Happened) {
    if let Happened::Ended(how) = happened {
        eprintln!(
            "node {}: the {} process ended: {how}; see {}",
            part.node + 1,
            part.role.name(),
            part.log.display()
        );
    }
}

/// True if a proxy serves every placement group, and new objects have their disks.
fn is_ready(s3: &str) -> bool {
    ["/readyz", "/healthz/cluster"].into_iter().all(|path| answers_ok(s3, path))
}

fn answers_ok(s3: &str, path: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let address = s3.parse().map_err(std::io::Error::other)?;
        let mut stream = TcpStream::connect_timeout(&address, PROBE_MAX)?;
        stream.set_read_timeout(Some(PROBE_MAX))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {s3}\r\nConnection: close\r\n\r\n")?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok(&status == b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}

/// Tells of SIGTERM and SIGINT.
fn watch_signals(woken: SyncSender<Woken>) -> Result<(), DevError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(DevError::System)?;
    let (mut terminate, mut interrupt) = {
        let _inside = runtime.enter();
        let listen = |kind| signal(kind).map_err(DevError::System);
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?)
    };
    let wait = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                if woken.send(Woken::Signal).is_err() {
                    return;
                }
            }
        });
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    thread.map(drop).map_err(DevError::System)
}

fn file_error(path: &Path, source: std::io::Error) -> DevError {
    DevError::File { path: path.display().to_string(), source }
}
