//! A server's processes: started in a group of their own, and gone when the value is.
//!
//! # Invariants
//! - Only this group is ever signalled. Its leader stays unreaped until the last signal has been
//!   sent, so that its id cannot have become another's.
//! - No server outlives the comparison: SIGINT and SIGTERM end the group first.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid as Group, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::signal::unix::{SignalKind, signal};

use crate::error::CompareError;
use larder_bench::Pid;

/// Time that a server has to stop by itself after SIGTERM.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Bytes shown of the end of a server's log.
const LOG_TAIL_BYTES: usize = 2000;

/// The process group that runs now, and whether the comparison has been interrupted.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Group>,
    interrupted: bool,
}

impl Interrupts {
    /// Begins to wait for SIGINT and SIGTERM, which from now on end the server and not this process.
    pub(crate) fn watch() -> Result<Arc<Self>, CompareError> {
        let interrupts = Arc::new(Self::default());
        let watching = Arc::clone(&interrupts);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(CompareError::System)?;
        let (mut terminate, mut interrupt) = {
            let _entered = runtime.enter();
            let caught = |kind| signal(kind).map_err(CompareError::System);
            (caught(SignalKind::terminate())?, caught(SignalKind::interrupt())?)
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            });
            watching.interrupt();
        });
        Ok(interrupts)
    }

    fn interrupt(&self) {
        let mut state = self.lock();
        state.interrupted = true;
        if let Some(group) = state.running {
            signal_group(group, Signal::TERM);
        }
    }

    /// # Errors
    /// [`CompareError::Interrupted`] once that has happened.
    pub(crate) fn check(&self) -> Result<(), CompareError> {
        if self.lock().interrupted { Err(CompareError::Interrupted) } else { Ok(()) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    group: Group,
    /// Disconnected when the leader has ended.
    ended: Receiver<()>,
    interrupts: Arc<Interrupts>,
    log: PathBuf,
}

impl Server {
    /// Starts it; all it prints goes to `log`.
    pub(crate) fn start(
        command: Command,
        log: &Path,
        interrupts: &Arc<Interrupts>,
    ) -> io::Result<Self> {
        let file = File::create(log)?;
        Self::spawn(command, file.try_clone()?, file, log, interrupts)
    }

    /// Starts it; what it prints on stdout goes to `out`, everything else to `log`.
    pub(crate) fn start_with_output(
        command: Command,
        out: File,
        log: &Path,
        interrupts: &Arc<Interrupts>,
    ) -> io::Result<Self> {
        Self::spawn(command, out, File::create(log)?, log, interrupts)
    }

    fn spawn(
        mut command: Command,
        out: File,
        errors: File,
        log: &Path,
        interrupts: &Arc<Interrupts>,
    ) -> io::Result<Self> {
        let mut state = interrupts.lock();
        if state.interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let child =
            command.process_group(0).stdin(Stdio::null()).stdout(out).stderr(errors).spawn()?;
        let group = Group::from_child(&child);
        state.running = Some(group);
        drop(state);
        let (running, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while matches!(waitid(WaitId::Pid(group), how), Err(rustix::io::Errno::INTR)) {}
            drop(running);
        });
        Ok(Self { child, group, ended, interrupts: Arc::clone(interrupts), log: log.to_owned() })
    }

    /// Waits for its end, but not longer than `time`.
    pub(crate) fn has_ended_within(&self, time: Duration) -> bool {
        self.ended.recv_timeout(time) == Err(RecvTimeoutError::Disconnected)
    }

    /// All processes of the group that live.
    pub(crate) fn pids(&self) -> io::Result<Vec<Pid>> {
        let mut pids = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<Pid>().ok()) else {
                continue;
            };
            // One that has ended since the folder was read is none of the living.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if living_group(&stat) == Some(self.group.as_raw_nonzero().get()) {
                pids.push(pid);
            }
        }
        Ok(pids)
    }

    /// The end of what it printed.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(LOG_TAIL_BYTES)..];
        String::from_utf8_lossy(tail).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        signal_group(self.group, Signal::TERM);
        self.has_ended_within(STOP_MAX);
        self.interrupts.lock().running = None;
        // Also those whose leader went without them.
        signal_group(self.group, Signal::KILL);
        if let Err(error) = self.child.wait() {
            eprintln!("a server's end could not be awaited: {error}");
        }
    }
}

/// A group that has ended already has nobody to tell.
fn signal_group(group: Group, signal: Signal) {
    match kill_process_group(group, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => eprintln!("a server could not be signalled: {error}"),
    }
}

/// The group of a process that lives: the fifth field of `/proc/PID/stat`, after its state.
fn living_group(stat: &str) -> Option<i32> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(group)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn start(script: &str) -> (Server, Arc<Interrupts>, tempfile::TempDir) {
        let (directory, interrupts) = (tempfile::tempdir().unwrap(), Arc::default());
        let server =
            Server::start(shell(script), &directory.path().join("log"), &interrupts).unwrap();
        (server, interrupts, directory)
    }

    /// The time to wait for an event that must come.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_server_that_ends_by_itself_is_seen_and_its_words_are_kept() {
        let (server, _interrupts, _directory) = start("echo out; echo wrong >&2");
        assert!(server.has_ended_within(LONG));
        assert_eq!(server.log_tail(), "out\nwrong\n");
        assert_eq!(server.pids().unwrap(), [] as [Pid; 0]);
    }

    #[test]
    fn children_end_with_the_server() {
        let (directory, interrupts) = (tempfile::tempdir().unwrap(), Arc::default());
        let pipe = directory.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let script = format!("tail -f /dev/null >{} & wait", pipe.display());
        let server =
            Server::start(shell(&script), &directory.path().join("log"), &interrupts).unwrap();
        // Opens when the child has it open too, and is at its end when the child is.
        let mut held_by_child = File::open(&pipe).unwrap();
        assert_eq!(server.pids().unwrap().len(), 2);
        drop(server);
        assert_eq!(held_by_child.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn an_interrupt_ends_the_server_and_lets_no_other_begin() {
        let (server, interrupts, directory) = start("exec tail -f /dev/null");
        interrupts.check().unwrap();
        interrupts.interrupt();
        assert!(server.has_ended_within(LONG));
        assert!(matches!(interrupts.check(), Err(CompareError::Interrupted)));
        assert!(Server::start(shell("exit"), &directory.path().join("log"), &interrupts).is_err());
    }

    #[test]
    fn zombies_are_not_counted_among_the_living() {
        assert_eq!(living_group("7 (a b) S 1 42 42 0"), Some(42));
        assert_eq!(living_group("7 (a) b) Z 1 42 42 0"), None);
        assert_eq!(living_group(""), None);
    }
}
