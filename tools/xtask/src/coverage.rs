//! Lines of the roles that simulations run: of each source file, without those of tests.
//!
//! The test program of the roles is the only one that counts lines, so that everything below it is built once for this and
//! for the other tests. Its simulations run as in CI, or with as many seeds as the variables of `docs/testing.md` say. Simulations of
//! planted faults are left out: their runs do what no release does.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Failure, cargo, output, root, sh, target};

/// Names of the tests that are simulations begin behind this.
const SIMULATIONS: &str = "sim::";
/// The ends of names of those that have a planted fault found.
const PLANTED: &str = "_found";
/// The sources that are looked at.
const SOURCES: &str = "crates/roles/src/";
/// Parts of paths that only tests have: their folders, faults that are planted, and what simulates.
const OF_TESTS: [&str; 4] = ["/tests/", "/tests.rs", "/sim/", "/planted.rs"];
/// A source begins its tests with these lines, and ends with them.
const TESTS: &str = "#[cfg(test)]\nmod tests {";
/// Files of the table, if none are named.
const WORST: usize = 20;

/// A source file, and its lines that have code.
#[derive(Debug, PartialEq, Eq)]
struct File {
    /// Below the sources.
    path: String,
    lines: usize,
    /// Numbers of those that were not run.
    missed: Vec<usize>,
}

/// Builds, runs and prints the table of the files that lack most. With `parts` it is of the files with one of these in their
/// paths, with the numbers of the lines that were not run.
pub(crate) fn print(parts: &[String]) -> Result<(), Failure> {
    let (profdata, cov) = (llvm_tool("llvm-profdata")?, llvm_tool("llvm-cov")?);
    let folder = target().join("coverage");
    // Counts of an earlier run are of other lines.
    let _missing = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|error| Failure::file(&folder, error))?;
    let program = build()?;
    simulate(&program, &folder)?;
    let merged = folder.join("simulations.profdata").display().to_string();
    output(&profdata, &["merge", "-sparse", &folder.display().to_string(), "-o", &merged])?;
    let profile = format!("-instr-profile={merged}");
    let exported = output(&cov, &["export", "-format=lcov", &profile, &program])?.0;
    let source = |path: &str| {
        std::fs::read_to_string(path).map_err(|error| Failure::file(Path::new(path), error))
    };
    let mut files = files(&exported, source)?;
    files.sort_by_key(|file| (std::cmp::Reverse(file.missed.len()), file.path.clone()));
    println!("{}", table(&files, parts));
    Ok(())
}

/// A tool of the component llvm-tools, which goes with the compiler.
fn llvm_tool(name: &str) -> Result<String, Failure> {
    let libraries = output("rustc", &["--print", "target-libdir"])?.0;
    let tool = Path::new(libraries.trim()).with_file_name("bin").join(name);
    match tool.is_file() {
        true => Ok(tool.display().to_string()),
        false => Err(Failure::Usage("rustup component add llvm-tools")),
    }
}

/// Builds the test program of the roles with counters of its lines; returns its path.
fn build() -> Result<String, Failure> {
    let arguments = [
        "rustc",
        "--package=larder-roles",
        "--lib",
        "--profile=test",
        "--locked",
        "--message-format=json-render-diagnostics",
        "--",
        "-Cinstrument-coverage",
    ];
    let said = output(&cargo(), &arguments)?.0;
    let executable =
        |line| serde_json::from_str::<Value>(line).ok()?["executable"].as_str().map(str::to_owned);
    said.lines().filter_map(executable).next_back().ok_or_else(|| Failure::Command {
        line: format!("cargo {}", arguments.join(" ")),
        detail: ": it names no test program".to_owned(),
    })
}

/// Runs the simulations; what they counted is in the folder then.
fn simulate(program: &str, folder: &Path) -> Result<(), Failure> {
    let counted = format!("LLVM_PROFILE_FILE={}", folder.join("%p.profraw").display());
    let package: PathBuf = root().join("crates/roles");
    let package = format!("CARGO_MANIFEST_DIR={}", package.display());
    let run = ["-n", "10", "env", &counted, &package, program, SIMULATIONS, "--skip", PLANTED];
    sh("nice", &run, &[])
}

/// The files that the export names, but those of tests: a line for each file, for each line with code, and for the end of the file.
fn files(
    exported: &str,
    source: impl Fn(&str) -> Result<String, Failure>,
) -> Result<Vec<File>, Failure> {
    let (mut found, mut file, mut first_of_tests) = (Vec::new(), None, usize::MAX);
    for line in exported.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            file = match path.split_once(SOURCES) {
                Some((_, name)) if !OF_TESTS.iter().any(|part| path.contains(part)) => {
                    let text = source(path)?;
                    let tests = text.find(TESTS).map(|at| text[..at].lines().count() + 1);
                    first_of_tests = tests.unwrap_or(usize::MAX);
                    Some(File { path: name.to_owned(), lines: 0, missed: Vec::new() })
                }
                _ => None,
            };
        } else if let (Some(counted), Some(file)) = (line.strip_prefix("DA:"), &mut file) {
            let (number, count) = counted.split_once(',').ok_or_else(|| unknown(line))?;
            let number: usize = number.parse().map_err(|_| unknown(line))?;
            if number < first_of_tests {
                file.lines += 1;
                file.missed.extend((count == "0").then_some(number));
            }
        } else if line == "end_of_record" {
            found.extend(file.take());
        }
    }
    if found.is_empty() { Err(unknown("no file")) } else { Ok(found) }
}

fn unknown(line: &str) -> Failure {
    Failure::Command {
        line: "llvm-cov export".to_owned(),
        detail: format!(": it says something else than lines of files: {line}"),
    }
}

/// The files that are asked for, and the sum of all.
fn table(files: &[File], parts: &[String]) -> String {
    let mut table = "| file | lines | not run | run |\n|---|---:|---:|---:|".to_owned();
    let mut row = |name: &str, lines: usize, missed: usize| {
        let percent = 100.0 * (lines - missed) as f64 / lines.max(1) as f64;
        table += &format!("\n| {name} | {lines} | {missed} | {percent:.1} % |");
    };
    let is_asked = |file: &&File| parts.iter().any(|part| file.path.contains(part.as_str()));
    let asked: Vec<&File> = match parts {
        [] => files.iter().take(WORST).collect(),
        _ => files.iter().filter(is_asked).collect(),
    };
    for file in &asked {
        row(&format!("`roles/{}`", file.path), file.lines, file.missed.len());
    }
    let lines = files.iter().map(|file| file.lines).sum();
    let missed = files.iter().map(|file| file.missed.len()).sum();
    row(&format!("all {} files", files.len()), lines, missed);
    if !parts.is_empty() {
        for file in asked {
            table += &format!("\n\n{}: {}", file.path, ranges(&file.missed));
        }
    }
    table
}

/// Numbers in a row are told as one range.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let reported = runs.map(|run| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    reported.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &str, counts: &[(usize, u64)]) -> String {
        let lines = counts.iter().map(|(line, count)| format!("DA:{line},{count}\n"));
        format!("SF:{path}\n{}LF:9\nend_of_record\n", lines.collect::<String>())
    }

    fn found(exported: &str) -> Result<Vec<File>, Failure> {
        files(exported, |_| Ok("one\ntwo\n#[cfg(test)]\nmod tests {\n}\n".to_owned()))
    }

    #[test]
    fn lines_of_tests_and_of_other_crates_do_not_count() {
        let exported = [
            record("/tree/crates/roles/src/meta/log.rs", &[(1, 7), (2, 0), (3, 0), (4, 0)]),
            record("/tree/crates/roles/src/meta/log/tests.rs", &[(1, 0)]),
            record("/tree/crates/roles/src/proxy/away/sim/mod.rs", &[(1, 0)]),
            record("/tree/crates/roles/src/planted.rs", &[(1, 0)]),
            record("/tree/crates/net/src/link.rs", &[(1, 0)]),
        ];
        let file = File { path: "meta/log.rs".to_owned(), lines: 2, missed: vec![2] };
        assert_eq!(found(&exported.concat()).expect("it is an export"), [file]);
    }

    #[test]
    fn an_export_without_lines_is_no_table_of_zeros() {
        assert!(found("").is_err());
        assert!(found("SF:/tree/crates/roles/src/news.rs\nDA:what\nend_of_record\n").is_err());
    }

    #[test]
    fn the_sum_is_of_all_files_and_not_of_those_shown() {
        let of = |path: &str, missed| File { path: path.to_owned(), lines: 10, missed };
        let all = [of("a.rs", vec![1, 2, 3, 7]), of("b.rs", vec![])];
        let reported = table(&all, &["a".to_owned()]);
        assert!(reported.contains("| `roles/a.rs` | 10 | 4 | 60.0 % |"), "{reported}");
        assert!(reported.contains("| all 2 files | 20 | 4 | 80.0 % |"), "{reported}");
        assert!(reported.ends_with("a.rs: 1-3 7") && !reported.contains("b.rs"), "{reported}");
    }
}
