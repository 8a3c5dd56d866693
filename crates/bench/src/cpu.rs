//! CPU time of processes, as the kernel accounts it: all threads, user and system, ended ones too.

use std::time::Duration;

use crate::error::{BenchError, Pid};

/// CPU time that the processes have used so far, together.
///
/// # Errors
/// [`BenchError::Process`] if one of them is not there.
pub fn used(pids: &[Pid]) -> Result<Duration, BenchError> {
    pids.iter().map(|&pid| used_by(&pid.to_string(), pid)).sum()
}

/// CPU time that this process has used so far.
///
/// # Errors
/// [`BenchError::Process`] if `/proc` cannot be read.
pub fn used_by_self() -> Result<Duration, BenchError> {
    used_by("self", std::process::id())
}

fn used_by(directory: &str, pid: Pid) -> Result<Duration, BenchError> {
    let stat = std::fs::read_to_string(format!("/proc/{directory}/stat"))
        .map_err(|source| BenchError::Process { pid, source })?;
    let ticks = ticks(&stat).ok_or_else(|| BenchError::Process {
        pid,
        source: std::io::Error::other("its stat file is not in the kernel's format"),
    })?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs(ticks) / u32::try_from(per_second).unwrap_or(100))
}

/// User and system time in clock ticks: the 14th and 15th field of `/proc/PID/stat`.
fn ticks(stat: &str) -> Option<u64> {
    // The second field, the program's name in parentheses, may itself hold blanks and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_does_not_shift_the_fields() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 120 34 0 0 20 0";
        assert_eq!(ticks(&format!("77 (larder) {rest}")), Some(154));
        assert_eq!(ticks(&format!("77 (a) b (c) {rest}")), Some(154));
        assert_eq!(ticks("77 (larder) S 1"), None);
    }

    #[test]
    fn work_is_accounted_to_this_process() {
        let before = used_by_self().unwrap();
        let mut sum = 0u64;
        while used_by_self().unwrap() == before {
            sum = (0..100_000u64).fold(sum, |sum, i| std::hint::black_box(sum ^ i));
        }
        assert!(used(&[std::process::id()]).unwrap() > before);
    }

    #[test]
    fn a_missing_process_is_named() {
        let error = used(&[Pid::MAX]).expect_err("no process has this id");
        assert!(error.to_string().contains(&Pid::MAX.to_string()), "{error}");
    }
}
