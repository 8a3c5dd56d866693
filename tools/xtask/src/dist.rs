//! The files of a release: one program, stripped, in an archive, a Debian package and an image for containers, with the chart and
//! checksums of all.
//!
//! The same commit gives the same bytes on the same system, with the same compiler: times are the commit's, owners root's, and names sorted.

mod archive;
mod debian;
mod image;
mod licences;
mod program;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use crate::metadata::Metadata;
use crate::{Failure, root, sh};
use program::Program;

/// A release that is made.
pub(crate) struct Release {
    /// As in `Cargo.toml`.
    pub(crate) version: String,
    /// Seconds since 1970 of the commit, which all files bear.
    pub(crate) epoch_s: u64,
    /// Where the packages go.
    pub(crate) into: PathBuf,
    /// The level of gzip: the best of a release, the fastest of a program that somebody names, for a trial.
    pub(crate) level: char,
}

/// Builds the packages: `[--binary FILE] [--into DIR]`.
///
/// Without `--binary` the program is built first. It needs the C library of this machine or a later one.
/// A static program would still load the modules that resolve names (`nsswitch.conf`), and on another
/// machine these belong to another C library.
pub(crate) fn run(rest: &[String]) -> Result<(), Failure> {
    let (binary, into) = options(rest)?;
    let release = Release {
        version: version()?,
        epoch_s: epoch_s()?,
        into,
        level: if binary.is_some() { '1' } else { '9' },
    };
    let built = match binary {
        Some(file) => file,
        None => program::build()?,
    };
    let stage = release.into.join("stage");
    clear(&release.into)?;
    make(&stage)?;
    let arch = program::arch()?;
    let name = format!("larder-{}-linux-{}", release.version, arch.of_rust);
    let symbols = release.into.join(format!("{name}.debug"));
    let program = Program::strip(&built, arch, &stage, &symbols)?;
    let files = stage.join("root");
    tree::assemble(&program, &files)?;
    archive::write(&release, &files, &name)?;
    debian::write(&release, &program, &files)?;
    image::write(&release, &program, &name)?;
    archive::chart(&release)?;
    remove(&stage)?;
    checksums(&release.into)
}

fn options(rest: &[String]) -> Result<(Option<PathBuf>, PathBuf), Failure> {
    let (mut binary, mut into) = (None, root().join("target/dist"));
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let value = words.next().map(PathBuf::from);
        match (word.as_str(), value) {
            ("--binary", Some(file)) => binary = Some(absolute(&file)?),
            ("--into", Some(dir)) => into = absolute(&dir)?,
            _ => return Err(Failure::Usage("cargo xtask dist [--binary FILE] [--into DIR]")),
        }
    }
    Ok((binary, into))
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::file(path, e))
}

/// Of the program's crate.
fn version() -> Result<String, Failure> {
    let metadata = Metadata::read()?;
    let larder = metadata.packages.iter().find(|it| it.name == "larder");
    larder
        .map(|it| it.version.clone())
        .ok_or_else(|| Failure::Metadata("the workspace has no crate larder".to_owned()))
}

fn epoch_s() -> Result<u64, Failure> {
    let output = output_of("git", &["log", "-1", "--format=%ct"])?;
    output.trim().parse().map_err(|_| Failure::Command {
        line: "git log -1 --format=%ct".to_owned(),
        detail: format!(": it printed {output:?}"),
    })
}

/// The output of a command.
fn output_of(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let line = [&[program], arguments].concat().join(" ");
    let mut command = std::process::Command::new(program);
    let output = command.args(arguments).current_dir(root()).output();
    let output = output.map_err(|e| Failure::start(&line, e))?;
    if !output.status.success() {
        let detail = format!(": {}", String::from_utf8_lossy(&output.stderr).trim());
        return Err(Failure::Command { line, detail });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Of all files that are there, in a form that `sha256sum -c` reads.
fn checksums(into: &Path) -> Result<(), Failure> {
    sh(
        "sh",
        &["-c", "cd \"$0\" && sha256sum -- larder* > SHA256SUMS && cat SHA256SUMS", &text(into)],
        &[],
    )
}

/// A path as an argument of a command.
fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Makes room for packages: only what an earlier run made is removed.
fn clear(into: &Path) -> Result<(), Failure> {
    let entries = match fs::read_dir(into) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return make(into),
        entries => entries.map_err(|e| Failure::file(into, e))?,
    };
    let names = entries.map(|entry| entry.map(|it| it.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<Result<Vec<_>, _>>().map_err(|e| Failure::file(into, e))?;
    let is_ours = |name: &&String| {
        name.starts_with("larder-") || name.starts_with("larder_") || *name == "SHA256SUMS"
    };
    let (ours, others): (Vec<_>, Vec<_>) =
        names.iter().filter(|name| *name != "stage").partition(is_ours);
    if let Some(other) = others.first() {
        let fault = format!("{} has {other}: name a directory of its own", into.display());
        return Failure::of("dist", vec![fault]);
    }
    remove(&into.join("stage"))?;
    ours.iter().try_for_each(|name| {
        let file = into.join(name);
        fs::remove_file(&file).map_err(|e| Failure::file(&file, e))
    })
}

fn make(dir: &Path) -> Result<(), Failure> {
    fs::create_dir_all(dir).map_err(|e| Failure::file(dir, e))
}

fn remove(dir: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::file(dir, error))
        }
        _ => Ok(()),
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::rename(from, to).map_err(|e| Failure::file(from, e))
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|e| Failure::file(file, e))
}
