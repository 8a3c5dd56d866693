//! Ends a process when the one that started it is gone: that one holds the other end of stdin.

use std::io::Read;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::exit;

/// Longest that a process takes to stop in order.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Becomes true when stdin ends. A process that has not stopped in order by then plus 10 s is ended.
pub(crate) fn hold() -> std::io::Result<watch::Receiver<bool>> {
    let (ended, receiver) = watch::channel(false);
    std::thread::Builder::new().name("lifeline".to_owned()).spawn(move || {
        let mut byte = [0];
        // Reads everything, and errors too: only the end counts.
        while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
        ended.send_replace(true);
        let deadline = Instant::now() + STOP_MAX;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            std::thread::park_timeout(left);
        }
        eprintln!("error: the process did not stop in order within {} s", STOP_MAX.as_secs());
        std::process::exit(i32::from(exit::EXIT_RESTART));
    })?;
    Ok(receiver)
}
