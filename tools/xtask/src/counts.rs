//! Instructions per call of the hot structures, counted by callgrind: a trend, not a gate.
//!
//! Each subject is run with two counts; the difference is what the calls cost, without what it costs to
//! begin. The same tree gives the same figures to within a few thousandths on any machine.

use crate::{Failure, cargo, output, sh, target};

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
