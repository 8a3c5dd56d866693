//! One process of a cluster that is tried out: started, watched, started again.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::layout::PartRole;
use crate::exit;

/// First pause before a process that died is started again.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause; one that ran for longer than this begins with the first again.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Variable that sets the threads of a process's event loop.
const THREADS: &str = "TOKIO_WORKER_THREADS";

/// A process of the cluster.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// Node.
    pub(super) node: usize,
    /// The role that it has.
    pub(super) role: PartRole,
    /// Its configuration file.
    pub(super) config: PathBuf,
    /// The file that its output is added to.
    pub(super) log: PathBuf,
    /// Threads of its event loop.
    pub(super) threads: usize,
    /// Words of its command line before the role: see [`crate::run`].
    reached_by: Vec<&'static str>,
}

impl Part {
    /// The process of one role of a node, which has a directory of its own.
    pub(super) fn new(
        node: usize,
        role: PartRole,
        dir: &Path,
        threads: usize,
        reached_by: &[&'static str],
    ) -> Self {
        let (config, log) = (dir.join("role.toml"), dir.join("process.log"));
        Self { node, role, config, log, threads, reached_by: reached_by.to_vec() }
    }
}

/// Events of a process.
#[derive(Debug)]
pub(super) enum Happened {
    /// It runs.
    Started,
    /// It ended, and is started again or not.
    Ended(String),
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) part: Part,
    state: Mutex<State>,
    woken: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pid: Option<u32>,
    /// The process ends when this is closed.
    lifeline: Option<ChildStdin>,
    stopping: bool,
    done: bool,
}

impl Process {
    /// Starts the process, and again whenever it ends, if `restart`. Reports each event.
    pub(super) fn run(
        part: Part,
        restart: bool,
        tell: impl Fn(Part, Happened) + Send + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let process = Arc::new(Self { part, state: Mutex::default(), woken: Condvar::new() });
        let child = process.start()?;
        let runs = process.clone();
        let name = format!("{} {}", runs.part.role.name(), runs.part.node);
        std::thread::Builder::new().name(name).spawn(move || {
            runs.watch(child, restart, &|what| tell(runs.part.clone(), what));
            runs.state.lock().done = true;
            runs.woken.notify_all();
        })?;
        Ok(process)
    }

    /// Its number, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.state.lock().pid
    }

    /// Has the process stop in order; it is not started again.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        drop(state.lifeline.take());
        self.woken.notify_all();
    }

    /// Waits until it has stopped; false if that took longer than until the deadline.
    pub(super) fn stopped(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        while !state.done {
            if self.woken.wait_until(&mut state, deadline).timed_out() {
                return state.done;
            }
        }
        true
    }

    fn start(&self) -> std::io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(&self.part.log)?;
        let mut command = Command::new(std::env::current_exe()?);
        if std::env::var_os(THREADS).is_none() {
            command.env(THREADS, self.part.threads.to_string());
        }
        let mut child = command
            .args(&self.part.reached_by)
            .arg(self.part.role.name())
            .arg("--config")
            .arg(&self.part.config)
            .arg("--while-stdin-open")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut state = self.state.lock();
        state.pid = Some(child.id());
        state.lifeline = child.stdin.take();
        if state.stopping {
            drop(state.lifeline.take());
        }
        Ok(child)
    }

    fn watch(&self, mut child: Child, restart: bool, tell: &dyn Fn(Happened)) {
        let mut pause = PAUSE_MIN;
        tell(Happened::Started);
        loop {
            let began = Instant::now();
            let ended = child.wait();
            let code = ended.as_ref().ok().and_then(std::process::ExitStatus::code);
            self.state.lock().pid = None;
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            if self.state.lock().stopping {
                return;
            }
            tell(Happened::Ended(how));
            if !restart || code == Some(i32::from(exit::REMOVED)) {
                return;
            }
            pause = if began.elapsed() > PAUSE_MAX { PAUSE_MIN } else { pause };
            child = loop {
                if self.pause(pause) {
                    return;
                }
                pause = (pause * 2).min(PAUSE_MAX);
                match self.start() {
                    Ok(child) => break child,
                    Err(error) => tell(Happened::Ended(error.to_string())),
                }
            };
            tell(Happened::Started);
        }
    }

    /// Waits; true if the process is not to be started any more.
    fn pause(&self, pause: Duration) -> bool {
        let deadline = Instant::now() + pause;
        let mut state = self.state.lock();
        while !state.stopping {
            if self.woken.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.stopping
    }
}
