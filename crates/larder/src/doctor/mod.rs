//! `larder doctor`: whether a machine is fit for `larder server` with these settings, before it is started or when it behaves oddly.
//!
//! Each check gives a [`Finding`]: what was seen, and what to do if that is not right. Checks change nothing but one small
//! file in the directory, which is gone again when they end. What a store has in it is for `larder inspect`, and how a running
//! one does for `larder status`.

mod clock;
mod disk;
mod limits;
mod net;

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::{Access, access};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::config::Config;
use crate::exit;
use crate::kind::{self, Kind, KindError};

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Grade {
    Ok,
    /// It works, and worse than it could, or not for long.
    Warning,
    /// A server would not start here, or what it keeps would not be safe.
    Fault,
}

/// Result of a check.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    grade: Grade,
    /// The observation.
    saw: String,
    /// The action to take; none if all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, saw: impl Into<String>) -> Self {
        Self { check, grade: Grade::Ok, saw: saw.into(), remedy: None }
    }

    fn warning(check: &'static str, saw: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, grade: Grade::Warning, saw: saw.into(), remedy: Some(remedy.into()) }
    }

    fn fault(check: &'static str, saw: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, grade: Grade::Fault, saw: saw.into(), remedy: Some(remedy.into()) }
    }
}

/// The server that is to run here, with its settings.
struct Patient {
    dir: PathBuf,
    /// The directory, or the nearest above it that is there.
    there: PathBuf,
    config: Config,
    /// A server runs on the directory.
    is_running: bool,
}

/// Looks at this machine; the exit code says whether a server can run here.
pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let config = match Config::load(args.config.as_deref()) {
        Ok(config) => config,
        Err(error) => return exit::failed(&error, exit::USAGE),
    };
    let wanted = if config.peers.is_empty() { Kind::Store } else { Kind::Machine };
    // A machine's directory is looked at without its peers, too.
    let is_machine = matches!(kind::found(&args.dir), Ok(Some(Kind::Machine)));
    let wanted = if is_machine { Kind::Machine } else { wanted };
    let place = kind::check(&args.dir, wanted);
    if let Err(error @ KindError::Other { .. }) = &place {
        return exit::failed(&error, exit::CANNOT_START);
    }
    let there = args.dir.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    let patient = Patient {
        there: there.to_owned(),
        is_running: disk::is_held(&args.dir),
        dir: args.dir.clone(),
        config,
    };
    let mut findings = examine(&patient);
    match place {
        // Root sees it for the user.
        Ok(()) | Err(KindError::OfUser { .. }) => {}
        Err(error) => {
            findings.push(Finding::fault(
                "place",
                error.to_string(),
                "name another directory, or mend that",
            ));
        }
    }
    if is_machine && patient.config.peers.is_empty() {
        let saw = "a machine of a cluster, of whose peers nothing was said";
        findings.push(Finding::warning(
            "cluster",
            saw,
            "name the file with `peers`: --config FILE",
        ));
    }
    let is_fit = findings.iter().all(|it| it.grade != Grade::Fault);
    if let Err(error) = print(&findings, args.json)
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        return exit::failed(&error, exit::CANNOT_START);
    }
    exit::code(if is_fit { exit::OK } else { exit::FAULTS })
}

fn examine(patient: &Patient) -> Vec<Finding> {
    let mut findings = vec![directory(patient)];
    findings.extend(disk::check(patient));
    findings.push(clock::check(&patient.dir));
    findings.extend(limits::check());
    findings.extend(net::check(patient));
    findings
}

/// Looks at the directory's owner and kind.
fn directory(patient: &Patient) -> Finding {
    const CHECK: &str = "directory";
    let Patient { dir, there, is_running, .. } = patient;
    let shown = dir.display();
    let Ok(about) = fs::metadata(there) else {
        return Finding::fault(
            CHECK,
            format!("{shown} cannot be read"),
            "run this as root, or as the user of the server",
        );
    };
    if dir.exists() && !dir.is_dir() {
        return Finding::fault(
            CHECK,
            format!("{shown} is no directory"),
            "name one, or a name that is free",
        );
    }
    if there != dir {
        let saw = format!("{shown} is not there yet: the first start makes it");
        return Finding::ok(CHECK, saw);
    }
    if access(dir, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Finding::fault(
            CHECK,
            format!("{shown} belongs to user {} and cannot be written by this one", about.uid()),
            "run this as the user of the server (sudo -u larder larder doctor …), or chown the directory",
        );
    }
    if about.mode() & 0o002 != 0 {
        let remedy =
            format!("chmod o-w {shown}: anyone who can write there can replace keys and data");
        return Finding::warning(CHECK, format!("{shown} can be written by everybody"), remedy);
    }
    let me = rustix::process::geteuid();
    let owner = fs::metadata(dir.join(kind::MARKER)).map_or(me.as_raw(), |about| about.uid());
    if owner != me.as_raw() && !me.is_root() {
        let saw =
            format!("files in {shown} belong to user {owner}, and this is user {}", me.as_raw());
        return Finding::fault(CHECK, saw, format!("run this, and the server, as user {owner}"));
    }
    let what = match kind::found(dir) {
        Ok(Some(found)) => found.what(),
        _ => "empty, or has nothing of Larder's",
    };
    let running = if *is_running { ", and a server runs on it" } else { "" };
    Finding::ok(CHECK, format!("{shown} is {what}{running}"))
}

fn print(findings: &[Finding], as_json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if as_json {
        serde_json::to_writer(&mut out, findings)?;
        return writeln!(out);
    }
    write_text(&mut out, findings)
}

fn write_text(out: &mut impl Write, findings: &[Finding]) -> std::io::Result<()> {
    for Finding { check, grade, saw, remedy } in findings {
        let grade = match grade {
            Grade::Ok => "ok",
            Grade::Warning => "WARNING",
            Grade::Fault => "FAULT",
        };
        writeln!(out, "{grade:8} {check:12} {saw}")?;
        if let Some(remedy) = remedy {
            writeln!(out, "{:21} → {remedy}", "")?;
        }
    }
    let count = |of: Grade| findings.iter().filter(|it| it.grade == of).count();
    let (faults, warnings) = (count(Grade::Fault), count(Grade::Warning));
    let fit = if faults == 0 { "fit for larder server" } else { "NOT FIT for larder server" };
    writeln!(out, "\n{fit} (checks: {}, faults: {faults}, warnings: {warnings})", findings.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_what_to_do_and_how_many_faults_there_are() {
        let findings = [
            Finding::ok("clock", "kept by chrony"),
            Finding::warning("memory", "512 MiB", "give it more"),
            Finding::fault("port", "9000 is taken", "name another"),
        ];
        let mut shown = Vec::new();
        write_text(&mut shown, &findings).unwrap();
        let expected = "\
ok       clock        kept by chrony
WARNING  memory       512 MiB
                      → give it more
FAULT    port         9000 is taken
                      → name another

NOT FIT for larder server (checks: 3, faults: 1, warnings: 1)
";
        assert_eq!(String::from_utf8(shown).unwrap(), expected);
    }
}
