//! The clock: S3 clients sign their requests with a time, and certificates have one.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use super::Finding;

const CHECK: &str = "clock";
/// Most that a file's time may be ahead: clocks are set back a little now and then.
const AHEAD_MAX: Duration = Duration::from_secs(60);
/// Signatures are good for a quarter of an hour, either way.
const WHY: &str = "requests of clients whose clocks differ by more than 15 minutes are refused";

pub(super) fn check(dir: &Path) -> Finding {
    if let Some(ahead) = newest(dir).and_then(|time| ahead(time, SystemTime::now())) {
        return Finding::fault(
            CHECK,
            format!("files in the directory are from {} s in the future", ahead.as_secs()),
            format!("set the clock (chronyc makestep, timedatectl): {WHY}"),
        );
    }
    // Asks the kernel, which knows its clock's state whatever program keeps it. Without systemd it
    // is not known.
    let asked = Command::new("timedatectl")
        .args(["show", "--property=NTPSynchronized", "--value"])
        .stdin(Stdio::null())
        .output();
    match asked {
        Ok(reported) if reported.status.success() => {
            kept(String::from_utf8_lossy(&reported.stdout).trim())
        }
        _ => Finding::warning(
            CHECK,
            "it cannot be told whether anything keeps it: timedatectl does not answer",
            format!("see that chrony or systemd-timesyncd runs on this machine: {WHY}"),
        ),
    }
}

fn kept(reported: &str) -> Finding {
    match reported {
        "yes" => Finding::ok(CHECK, "synchronized"),
        _ => Finding::warning(
            CHECK,
            "nobody keeps it",
            format!("run chrony or systemd-timesyncd: {WHY}"),
        ),
    }
}

/// Time of the newest file of the directory.
fn newest(dir: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(dir).ok()?;
    let times = entries.filter_map(|entry| entry.ok()?.metadata().ok()?.modified().ok());
    times.max()
}

/// By how much a time is ahead, if it is more than clocks are set back.
fn ahead(time: SystemTime, now: SystemTime) -> Option<Duration> {
    time.duration_since(now).ok().filter(|ahead| *ahead > AHEAD_MAX)
}

#[cfg(test)]
mod tests {
    use super::super::Grade;
    use super::*;

    #[test]
    fn a_clock_behind_its_files_is_found() {
        let now = SystemTime::now();
        assert_eq!(ahead(now, now), None);
        assert_eq!(ahead(now + AHEAD_MAX, now), None);
        let hour = Duration::from_secs(3600);
        assert_eq!(ahead(now + hour, now), Some(hour));
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("file")).unwrap();
        file.set_modified(now + hour).unwrap();
        assert_eq!(check(dir.path()).grade, Grade::Fault);
    }

    #[test]
    fn an_unsynchronized_clock_is_a_warning() {
        assert_eq!(kept("yes").grade, Grade::Ok);
        assert_eq!(kept("no").grade, Grade::Warning);
    }
}
