//! Metrics of every process: its release, time, memory and files, under the names that Prometheus' libraries use.

use std::fmt::Write;
use std::fs;
use std::time::UNIX_EPOCH;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::release::{COMMIT, VERSION};

/// Seconds since 1970 at which a process begins to count.
pub(super) fn now_s() -> f64 {
    UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64()
}

/// Writes the metrics of a process that began then. A number that the system does not tell is left out.
pub(super) fn write(began_s: f64, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "# HELP larder_build_info Release of this program, and the commit it was built from."
    )?;
    writeln!(out, "# TYPE larder_build_info gauge")?;
    writeln!(out, "larder_build_info{{version=\"{VERSION}\",commit=\"{COMMIT}\"}} 1")?;
    let name = "process_cpu_seconds";
    writeln!(
        out,
        "# HELP {name} Processor time of this process in seconds.\n# TYPE {name} counter"
    )?;
    writeln!(out, "{name}_total {}", cpu_s())?;
    let files = getrlimit(Resource::Nofile).current;
    for (name, help, value) in [
        (
            "resident_memory_bytes",
            "Memory of this process, with the files that it maps",
            resident(),
        ),
        ("open_fds", "Files and connections that this process has open", open_files()),
        ("max_fds", "Those that it may have open", files.map(|it| it as f64)),
        ("start_time_seconds", "Start of this process, in seconds since 1970", Some(began_s)),
    ] {
        if let Some(value) = value {
            writeln!(out, "# HELP process_{name} {help}.\n# TYPE process_{name} gauge")?;
            writeln!(out, "process_{name} {value}")?;
        }
    }
    Ok(())
}

fn cpu_s() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// The second number of `statm` counts pages.
fn resident() -> Option<f64> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split(' ').nth(1)?.parse().ok()?;
    Some((pages * rustix::param::page_size() as u64) as f64)
}

/// Counts open files, but for the one that lists them.
fn open_files() -> Option<f64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shows_its_release_time_memory_and_files() {
        let mut out = String::new();
        write(1.5, &mut out).unwrap();
        let value = |name: &str| -> f64 {
            let line = out.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} in {out}")).parse().unwrap()
        };
        assert!(out.contains("larder_build_info{version=\"") && out.contains("commit=\""));
        assert!(value("process_cpu_seconds_total") > 0.0);
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") > value("process_open_fds"));
        assert!((value("process_start_time_seconds") - 1.5).abs() < f64::EPSILON);
    }
}
