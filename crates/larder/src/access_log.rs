//! The access log: a line of JSON for each S3 request that has ended, in a file of its own.
//!
//! # Invariants
//!
//! 1. No request waits for the file. Lines go into a queue of at most [`QUEUE_BYTES_MAX`], which one thread writes; what finds
//!    no room, or cannot be written, is counted as dropped.
//! 2. A line is of version [`line::VERSION`] and holds no secret: no query, no header that signs.
//! 3. A file that cannot be opened takes the place of none: the one before stays.
//! 4. A line begins a line of the file, whatever a full disk or a crash left at its end.
//!
//! # Not here
//!
//! Syncing. The last lines before a crash may be missing, and those that wait for a file system that hangs.

mod follow;
mod line;

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_s3::FinishedRequest;
use larder_types::LogLimiter;
use parking_lot::{Condvar, Mutex};

pub(crate) use follow::{Setting, follow, ignore_hangups};

/// Most bytes of lines that wait for the file; as many again are being written.
const QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Time that a stop waits for the last lines, after all else: a supervisor allows some ten seconds for the whole.
const CLOSE_WAIT_MAX: Duration = Duration::from_millis(500);
/// Mode of a file that is made: names of objects are not everybody's to read.
const MODE: u32 = 0o640;

/// An access log that cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessLogError {
    #[error(
        "access_log {path:?} cannot be opened: {source}; make its directory and let the server read and write there, or name another file, or \"off\""
    )]
    Open { path: PathBuf, source: io::Error },
    #[error(
        "access_log {0:?} is a pipe, a directory or another thing that is no file: name a file, or \"off\""
    )]
    NoFile(PathBuf),
    #[error("the system does not let the access log be written: {0}")]
    System(io::Error),
}

/// See the module's head. Off until it is given a file.
#[derive(Default)]
pub(crate) struct AccessLog {
    is_on: AtomicBool,
    queue: Mutex<Queue>,
    /// Something is in the queue, or the log ends.
    changed: Condvar,
    /// The writer has ended.
    ended: Condvar,
    written: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Queue {
    lines: Vec<u8>,
    /// A file to go on with.
    next: Option<Out>,
    /// No file is to be written behind these lines.
    turns_off: bool,
    has_writer: bool,
    is_closed: bool,
}

/// A file that lines go to.
struct Out {
    file: File,
    path: PathBuf,
    /// True if its last line was cut off; of one that is new to the writer, it is still to look.
    is_torn: Option<bool>,
}

impl AccessLog {
    /// Goes on with the file at `path`, which is made if it is missing; without one, with none. The file may be the same as
    /// before: it is opened anew.
    ///
    /// # Errors
    /// [`AccessLogError`], and the log is as it was.
    pub(crate) fn switch(self: &Arc<Self>, path: Option<&Path>) -> Result<(), AccessLogError> {
        let next = path.map(Out::open).transpose()?;
        let is_on = next.is_some();
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return Ok(());
        }
        if is_on && !queue.has_writer {
            let log = self.clone();
            let thread = std::thread::Builder::new().name("access-log".to_owned());
            drop(thread.spawn(move || log.write()).map_err(AccessLogError::System)?);
            queue.has_writer = true;
        }
        // Lines that wait for a file that waits itself still go there.
        queue.next = next.or(queue.next.take());
        queue.turns_off = !is_on;
        self.is_on.store(is_on, Ordering::Relaxed);
        self.changed.notify_one();
        Ok(())
    }

    /// Notes a request of a client. One that another server has handed on is in that one's log.
    pub(crate) fn note(&self, ended: &FinishedRequest<'_>) {
        if self.is_on.load(Ordering::Relaxed)
            && let Some(client) = ended.client()
        {
            self.queue(&line::of(ended, client, larder_env::clock::wall()));
        }
    }

    fn queue(&self, line: &[u8]) {
        let mut queue = self.queue.lock();
        if queue.lines.len() + line.len() > QUEUE_BYTES_MAX {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.lines.extend_from_slice(line);
        self.changed.notify_one();
    }

    /// Lines that were written, and lines that were dropped.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }

    /// Ends the log: waits until what is queued is written, but for no longer than [`CLOSE_WAIT_MAX`].
    pub(crate) fn close(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        self.changed.notify_one();
        let until = Instant::now() + CLOSE_WAIT_MAX;
        while queue.has_writer {
            if self.ended.wait_until(&mut queue, until).timed_out() {
                tracing::warn!("the access log's last lines were not written in time");
                return;
            }
        }
    }

    /// The writer's thread.
    fn write(&self) {
        let (mut lines, mut out) = (Vec::new(), None::<Out>);
        let mut losses = Losses::new();
        while let Some((next, turns_off)) = self.wait(&mut lines) {
            out = next.or(out);
            let (written, outcome) = out.as_mut().map_or((0, Ok(())), |out| out.append(&lines));
            self.written.fetch_add(written, Ordering::Relaxed);
            self.dropped.fetch_add(count(&lines) - written, Ordering::Relaxed);
            losses.log_losses(self.dropped.load(Ordering::Relaxed), out.as_ref(), outcome.err());
            lines.clear();
            out = out.filter(|_| !turns_off);
        }
    }

    /// Waits for lines, which it takes, for another file, or to write none behind these lines; `None` at the end.
    fn wait(&self, lines: &mut Vec<u8>) -> Option<(Option<Out>, bool)> {
        let mut queue = self.queue.lock();
        while queue.lines.is_empty() && queue.next.is_none() && !queue.turns_off {
            if queue.is_closed {
                queue.has_writer = false;
                self.ended.notify_all();
                return None;
            }
            self.changed.wait(&mut queue);
        }
        std::mem::swap(&mut queue.lines, lines);
        Some((queue.next.take(), std::mem::take(&mut queue.turns_off)))
    }
}

/// Says in the server's log that lines are lost, once in a while.
struct Losses {
    begun: Instant,
    lines: LogLimiter,
    /// Lost lines that were reported.
    logged: u64,
}

impl Losses {
    fn new() -> Self {
        Self { begun: Instant::now(), lines: LogLimiter::default(), logged: 0 }
    }

    fn log_losses(&mut self, dropped: u64, out: Option<&Out>, error: Option<io::Error>) {
        let now_ms = self.begun.elapsed().as_millis() as u64;
        if dropped == self.logged || self.lines.happens(now_ms).is_none() {
            return;
        }
        let lost = dropped - std::mem::replace(&mut self.logged, dropped);
        let path = out.map(|out| tracing::field::display(out.path.display()));
        let error = error.map(tracing::field::display);
        tracing::warn!(
            path,
            error,
            lost,
            "the access log lost lines: its disk is full or too slow"
        );
    }
}

impl Out {
    fn open(path: &Path) -> Result<Self, AccessLogError> {
        // Opening a pipe would wait for its reader.
        if std::fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.file_type().is_char_device())
        {
            return Err(AccessLogError::NoFile(path.to_owned()));
        }
        let mut options = OpenOptions::new();
        let opened = options.read(true).append(true).create(true).mode(MODE).open(path);
        let path = path.to_owned();
        match opened {
            Ok(file) => Ok(Self { file, path, is_torn: None }),
            Err(source) => Err(AccessLogError::Open { path, source }),
        }
    }

    /// True if the file ends within a line. It is the writer that looks, as it may have been writing to the same file before.
    fn ends_torn(&self) -> io::Result<bool> {
        let about = self.file.metadata()?;
        if !about.is_file() || about.len() == 0 {
            return Ok(false);
        }
        let mut last = [0];
        self.file.read_exact_at(&mut last, about.len() - 1)?;
        Ok(last != *b"\n")
    }

    /// Appends lines. Returns how many of them are whole in the file.
    fn append(&mut self, lines: &[u8]) -> (u64, io::Result<()>) {
        if let Err(error) = self.end_line() {
            return (0, Err(error));
        }
        let mut rest = lines;
        let outcome = loop {
            if rest.is_empty() {
                break Ok(());
            }
            match self.file.write(rest) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => rest = &rest[bytes..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let written = &lines[..lines.len() - rest.len()];
        self.is_torn = Some(written.last().is_some_and(|byte| *byte != b'\n'));
        (count(written), outcome)
    }

    /// Ends a line that was cut off.
    fn end_line(&mut self) -> io::Result<()> {
        let is_torn = match self.is_torn {
            Some(is_torn) => is_torn,
            None => self.ends_torn()?,
        };
        if is_torn {
            self.file.write_all(b"\n")?;
        }
        self.is_torn = Some(false);
        Ok(())
    }
}

/// Counts lines: each ends with the only line break that it has.
fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests;
