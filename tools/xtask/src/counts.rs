//! Instructions per call of the hot structures, counted by callgrind: a trend, not a gate.
//!
//! Each subject is run with two counts; the difference is what the calls cost, without what it costs to
//! begin. The same tree gives the same figures to within a few thousandths on any machine.

use std::path::PathBuf;
use std::process::Command;

use crate::{Failure, cargo, root, sh};

const FEW: u64 = 512;
const MANY: u64 = 2048;

/// Prints a table.
pub(crate) fn print() -> Result<(), Failure> {
    sh(&cargo(), &["build", "--release", "--locked", "--quiet", "--package", "larder-micro"], &[])?;
    let micro = target().join("release/larder-micro").display().to_string();
    let subjects = output(&micro, &[])?.0;
    println!("| what | instructions | |\n|---|---:|---|");
    for line in subjects.lines() {
        let (name, about) = line.split_once('\t').unwrap_or((line, ""));
        let each =
            (collected(&micro, name, MANY)? - collected(&micro, name, FEW)?) / (MANY - FEW) as f64;
        println!("| {name} | {each:.0} | {about} |");
    }
    Ok(())
}

/// Where cargo puts what it builds.
fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Instructions of one run.
fn collected(micro: &str, name: &str, count: u64) -> Result<f64, Failure> {
    let arguments =
        ["--tool=callgrind", "--callgrind-out-file=/dev/null", micro, name, &count.to_string()];
    let said = output("valgrind", &arguments)?.1;
    let found = said.lines().find_map(|line| line.split_once("Collected :"));
    found.and_then(|(_, number)| number.trim().parse().ok()).ok_or_else(|| Failure::Command {
        line: format!("valgrind {}", arguments.join(" ")),
        detail: format!(": it does not say what it collected:\n{said}"),
    })
}

/// The output of a command on stdout and on stderr.
fn output(program: &str, arguments: &[&str]) -> Result<(String, String), Failure> {
    let line = [&[program], arguments].concat().join(" ");
    let done = Command::new(program)
        .args(arguments)
        .current_dir(root())
        .output()
        .map_err(|error| Failure::start(&line, error))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&done.stdout), text(&done.stderr));
    if done.status.success() {
        Ok((stdout, stderr))
    } else {
        Err(Failure::Command { line, detail: format!(" with {}:\n{stderr}", done.status) })
    }
}
