//! Limits of the system for a process: open files and memory.

use std::fs;

use larder_s3::ServerOptions;
use larder_s3::limits::CONNECTIONS_MAX;

use super::Finding;
use crate::quantity::bytes;

/// Bodies of requests, the index' cache and connections are made for about this much.
const MEMORY_MIN: u64 = 2 << 30;
/// Where a container's limit is: of control groups of version 2, and of version 1.
const LIMITS: [&str; 2] =
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

pub(super) fn check() -> [Finding; 2] {
    [files(larder_env::open_files::allowed()), memory(allowed_memory())]
}

fn files(allowed: u64) -> Finding {
    const CHECK: &str = "open files";
    let connections = ServerOptions::within_files(allowed).connections_max;
    if connections < CONNECTIONS_MAX {
        return Finding::warning(
            CHECK,
            format!("{allowed}: clients may have {connections} connections, not {CONNECTIONS_MAX}"),
            "raise the hard limit: LimitNOFILE= of a unit, `ulimit -Hn` of a shell",
        );
    }
    Finding::ok(
        CHECK,
        if allowed == u64::MAX { "no limit".to_owned() } else { allowed.to_string() },
    )
}

fn memory(allowed: Option<u64>) -> Finding {
    const CHECK: &str = "memory";
    match allowed {
        None => Finding::ok(CHECK, "not known"),
        Some(allowed) if allowed < MEMORY_MIN => Finding::warning(
            CHECK,
            bytes(allowed),
            format!(
                "give it {} at least: with less, requests are told to slow down, or the system ends the process",
                bytes(MEMORY_MIN)
            ),
        ),
        Some(allowed) => Finding::ok(CHECK, bytes(allowed)),
    }
}

/// Memory of the machine, or of the container if that is less.
fn allowed_memory() -> Option<u64> {
    let of_machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let read = |path: &&str| fs::read_to_string(path).ok()?.trim().parse().ok();
    let limits = LIMITS.iter().filter_map(read);
    limits.chain(of_machine).min()
}

/// Bytes that `/proc/meminfo` shows as the machine's.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::super::Grade;
    use super::*;

    #[test]
    fn few_files_and_little_memory_are_warnings() {
        assert_eq!(files(1024).grade, Grade::Warning);
        assert_eq!(files(1 << 20).grade, Grade::Ok);
        assert_eq!(files(u64::MAX).saw, "no limit");
        assert_eq!(memory(Some(MEMORY_MIN - 1)).grade, Grade::Warning);
        assert_eq!(memory(Some(MEMORY_MIN)).grade, Grade::Ok);
    }

    #[test]
    fn memory_is_read_as_the_kernel_shows_it() {
        assert_eq!(total("MemTotal:       24576 kB\nMemFree: 1 kB\n"), Some(24_576 * 1024));
        assert_eq!(total("nothing"), None);
        assert!(allowed_memory().is_some_and(|bytes| bytes > 0));
    }
}
