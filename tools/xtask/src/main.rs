//! Every task a developer of Larder does: `cargo xtask` lists them.
//!
//! `check` never writes; `fix` does. The rules of the checks are data, in `rules.toml`.

mod ablation;
mod circles;
mod code_map;
mod counts;
mod coverage;
mod dist;
mod layers;
mod licences;
mod metadata;
mod prose;
mod rules;
mod soak;
mod tidy;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use metadata::Metadata;
use rules::Rules;
use tree::Tree;

/// The reason that a task failed, by what to do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Mend the tree.
    #[error("{check}: {} to mend:\n  {}", faults.len(), faults.join("\n  "))]
    Faults {
        /// The check that found them.
        check: &'static str,
        /// A line each.
        faults: Vec<String>,
    },
    /// Mend what the command says.
    #[error("`{line}` failed{detail}")]
    Command {
        /// The command.
        line: String,
        /// The exit status or the output.
        detail: String,
    },
    /// Install the command.
    #[error("`{line}` does not start")]
    Start {
        /// The command.
        line: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Mend `rules.toml`.
    #[error("rules.toml: {0}")]
    Rules(String),
    /// Another version of cargo than this program knows.
    #[error("cargo metadata: {0}")]
    Metadata(String),
    /// Mend what the file system says.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Give the arguments that the task takes.
    #[error("write: {0}")]
    Usage(&'static str),
    /// Ask for a task that exists.
    #[error("there is no task `{0}`; `cargo xtask` lists them")]
    NoSuchTask(String),
}

impl Failure {
    /// The failure of a check, if it found anything.
    pub(crate) fn of(check: &'static str, faults: Vec<String>) -> Result<(), Self> {
        if faults.is_empty() { Ok(()) } else { Err(Self::Faults { check, faults }) }
    }

    pub(crate) fn start(line: &str, source: std::io::Error) -> Self {
        Self::Start { line: line.to_owned(), source }
    }

    pub(crate) fn file(path: &Path, source: std::io::Error) -> Self {
        Self::File { path: path.display().to_string(), source }
    }
}

/// Features that no release has: bugs for the simulator to find.
const FEATURES: &str = "larder-sim/planted-bugs";

type Run = fn(&[String]) -> Result<(), Failure>;

/// Name, what it does, how.
const TASKS: [(&str, &str, Run); 18] = [
    (
        "check",
        "formatting, clippy, layers, circles, licences, tidy, prose, ablations; writes nothing",
        check,
    ),
    ("style", "check without clippy: builds nothing", style),
    ("fix", "formats, and applies what clippy can mend", fix),
    ("layers", "which crate may depend on which", |_| layers()),
    ("circles", "modules of one crate that use one another in a circle", |_| circles()),
    ("licences", "licences and doubled versions of the crates from outside", |_| licences()),
    ("tidy", "file lengths, names, module heads, unfinished work, whitespace, code map", |_| {
        tidy()
    }),
    ("prose", "[PATH…] sentences; with paths, those of all files below them", prose),
    (
        "ablation",
        "NAME […]: builds a copy with the patch tools/ablations/NAME.patch, or gives cargo the rest",
        ablation::run,
    ),
    ("test", "all tests of the workspace; arguments go to cargo test", test),
    ("sim", "the simulator; --help tells what it takes", sim),
    (
        "blackbox",
        "SCRIPT: one black-box test, arguments go to it; --list and --set of all of them",
        blackbox,
    ),
    ("soak", "what CI runs in short, at length: hours; as root", |_| soak::run()),
    ("counts", "instructions of the hot structures; needs valgrind", |_| counts::print()),
    (
        "coverage",
        "lines of the roles that simulations alone run; needs llvm-tools",
        coverage::print,
    ),
    (
        "dist",
        "[--binary FILE] [--into DIR]: the release's archive, Debian package, image and chart",
        dist::run,
    ),
    ("s3-tests", "--suite PATH: writes docs/s3-compatibility.md", conformance),
    ("ci", "all that CI does, clients included", |_| sh("bash", &[".ci/run"], &[])),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        for (name, purpose, _) in TASKS {
            println!("{name:10} {purpose}");
        }
        return ExitCode::SUCCESS;
    };
    let task = TASKS.iter().find(|(task, ..)| task == name);
    let result = match task {
        Some((_, _, run)) => run(rest),
        None => Err(Failure::NoSuchTask(name.clone())),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask {name}: {failure}");
            let mut cause = std::error::Error::source(&failure);
            while let Some(error) = cause {
                eprintln!("  because: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

/// The checks that build nothing.
fn style(_: &[String]) -> Result<(), Failure> {
    sh(&cargo(), &["fmt", "--all", "--check"], &[])?;
    tidy()?;
    prose(&[])?;
    layers()?;
    circles()?;
    ablation::check(&Tree::read(&root())?)?;
    licences()
}

fn check(rest: &[String]) -> Result<(), Failure> {
    style(rest)?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--features", FEATURES];
    sh(&cargo(), &[&clippy[..], &["--", "-D", "warnings"]].concat(), &[])
}

fn fix(_: &[String]) -> Result<(), Failure> {
    let clippy = ["clippy", "--workspace", "--all-targets", "--fix", "--allow-dirty"];
    sh(&cargo(), &clippy, &[])?;
    sh(&cargo(), &["fmt", "--all"], &[])
}

fn layers() -> Result<(), Failure> {
    layers::check(&Rules::read()?, &Metadata::read()?, &Tree::read(&root())?)
}

fn circles() -> Result<(), Failure> {
    circles::check(&Rules::read()?, &Tree::read(&root())?)
}

fn licences() -> Result<(), Failure> {
    licences::check(&Rules::read()?, &Metadata::read()?)
}

fn tidy() -> Result<(), Failure> {
    let tree = Tree::read(&root())?;
    tidy::check(&Rules::read()?, &tree)?;
    code_map::check(&tree)
}

fn prose(paths: &[String]) -> Result<(), Failure> {
    let (rules, tree) = (Rules::read()?, Tree::read(&root())?);
    if paths.is_empty() { prose::check(&rules, &tree) } else { prose::look(&rules, &tree, paths) }
}

fn test(rest: &[String]) -> Result<(), Failure> {
    sh(&cargo(), &["test", "--workspace", "--locked"], rest)
}

fn sim(rest: &[String]) -> Result<(), Failure> {
    sh(&cargo(), &["run", "--release", "--locked", "--package", "larder-sim", "--"], rest)
}

/// Runs one of the black-box tests, or all scenarios, with the clients they are made for.
pub(crate) fn blackbox(rest: &[String]) -> Result<(), Failure> {
    sh(&cargo(), &["build", "--release", "--locked"], &[])?;
    sh("bash", &["tests/clients/install.sh"], &[])?;
    match rest.split_first() {
        Some((script, arguments)) if !script.starts_with('-') => {
            let script = format!("tests/clients/{}.py", script.trim_end_matches(".py"));
            sh("target/clients/bin/python", &[&script], arguments)
        }
        _ => sh("python3", &["tests/clients/scenarios.py"], rest),
    }
}

fn conformance(rest: &[String]) -> Result<(), Failure> {
    sh(&cargo(), &["build", "--release", "--locked"], &[])?;
    sh("python3", &["tests/s3-tests/run.py"], rest)
}

/// Runs a command at the root of the tree, its output going where ours goes.
fn sh(program: &str, arguments: &[&str], rest: &[String]) -> Result<(), Failure> {
    let line = [&[program], arguments].concat().join(" ");
    let status = Command::new(program).args(arguments).args(rest).current_dir(root()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Command { line, detail: format!(" with {status}") }),
        Err(error) => Err(Failure::start(&line, error)),
    }
}

/// The output of a command on stdout and on stderr.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<(String, String), Failure> {
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

/// The cargo that runs us.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// The root of the tree that this program was built in.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_owned()
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}
