//! The commit and the machine that a page names.

use std::process::Command;

/// The commit of the folder that this is started in, with a mark if files differ from it.
#[must_use]
pub fn commit() -> String {
    let output =
        Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=10"]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    match text {
        Some(text) => String::from_utf8_lossy(&text).trim().to_owned(),
        None => "unknown".to_owned(),
    }
}

/// The machine that this runs on, as far as the system tells: its processor, cores and kernel.
#[must_use]
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let model = processors.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|line| line.split_once(':')).map_or("unknown", |(_, it)| it.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}
