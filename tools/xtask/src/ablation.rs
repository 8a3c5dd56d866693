//! Programs without a part of the protocol, for measurement: the patches of `tools/ablations`. Each opens with what it
//! measures, and where the result stands.
//!
//! A patch is applied to a copy of the last commit below `target`. The tree itself never has it, and what the copy builds
//! says so as its version.

use std::path::Path;
use std::process::Command;

use crate::tree::Tree;
use crate::{Failure, cargo, root};

const FOLDER: &str = "tools/ablations/";
const END: &str = ".patch";
/// Copies of the tree, each with one patch.
const COPIES: &str = "target/ablations";
/// Arguments of cargo in a copy, unless others are given.
const BUILD: [&str; 7] = ["build", "--release", "--locked", "-p", "larder", "-p", "larder-compare"];

/// Reports each patch that does not apply, or names no page of the tree.
pub(crate) fn check(tree: &Tree) -> Result<(), Failure> {
    let patches = tree.files.iter().filter(|source| name_of(&source.path).is_some());
    let mut faults = Vec::new();
    for patch in patches {
        let path = &patch.path;
        if !names_a_page(&patch.text, |page| tree.files.iter().any(|it| it.path == page)) {
            faults.push(format!("{path}: says no page below docs/ that has its result"));
        }
        let mut git = Command::new("git");
        git.args(["apply", "--check", path]).current_dir(root());
        let output = git.output().map_err(|error| Failure::start("git apply", error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let first = said.lines().next().unwrap_or_default();
            faults.push(format!("{path}: does not apply ({first}); mend it, or write it anew"));
        }
    }
    Failure::of("ablations", faults)
}

fn name_of(path: &str) -> Option<&str> {
    path.strip_prefix(FOLDER)?.strip_suffix(END)
}

/// True if the words before the first change name a page that is there.
fn names_a_page(patch: &str, is_there: impl Fn(&str) -> bool) -> bool {
    let (head, _) = patch.split_once("diff --git").unwrap_or(("", ""));
    let mut words = head.split(|c: char| c.is_whitespace() || c == ',');
    words.any(|word| {
        let page = word.trim_end_matches(['.', ':']);
        page.starts_with("docs/") && is_there(page)
    })
}

/// Has cargo work in a copy of the last commit with the named patch: builds the programs, or does what `rest` says.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let Some((name, rest)) = arguments.split_first() else {
        return Err(Failure::Usage(
            "ablation NAME [ARGUMENTS OF CARGO], a name of tools/ablations",
        ));
    };
    let patch = root().join(format!("{FOLDER}{name}{END}"));
    if !patch.is_file() {
        return Err(Failure::Usage("ablation NAME, of a patch that is in tools/ablations"));
    }
    let copy = root().join(COPIES).join(name);
    prepare(&copy, &patch)?;
    let head = said("git", &["rev-parse", "--short=12", "HEAD"], &root())?;
    let words: Vec<&str> = match rest {
        [] => BUILD.to_vec(),
        rest => rest.iter().map(String::as_str).collect(),
    };
    let line = format!("cargo {} in {}", words.join(" "), copy.display());
    println!("{line}");
    let mut command = Command::new(cargo());
    command.args(words).current_dir(&copy).env("LARDER_COMMIT", format!("{head}-{name}"));
    let status = command.status().map_err(|error| Failure::start(&line, error))?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::Command { line, detail: format!(" with {status}") }),
    }
}

/// Makes the copy, or brings one that is there to the last commit, and applies the patch. What was built in it stays.
fn prepare(copy: &Path, patch: &Path) -> Result<(), Failure> {
    let (copy_text, patch) = (copy.display().to_string(), patch.display().to_string());
    if copy.join(".git").exists() {
        said("git", &["reset", "--quiet", "--hard"], copy)?;
        said("git", &["clean", "--quiet", "-d", "--force"], copy)?;
        let head = said("git", &["rev-parse", "HEAD"], &root())?;
        said("git", &["checkout", "--quiet", "--detach", &head], copy)?;
    } else {
        said("git", &["worktree", "prune"], &root())?;
        said("git", &["worktree", "add", "--quiet", "--detach", &copy_text, "HEAD"], &root())?;
    }
    said("git", &["apply", &patch], copy).map(drop)
}

/// Runs a command in a folder, and returns what it says.
fn said(program: &str, arguments: &[&str], folder: &Path) -> Result<String, Failure> {
    let line = [&[program], arguments].concat().join(" ");
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(folder).output();
    let output = output.map_err(|error| Failure::start(&line, error))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            let detail = format!(": {}", String::from_utf8_lossy(&output.stderr).trim());
            Err(Failure::Command { line, detail })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_the_page_that_has_its_result() {
        let named = |text| names_a_page(text, |page| page == "docs/a.md");
        assert!(named("Measures it, see docs/a.md.\n\ndiff --git a/x b/x\n"));
        assert!(!named("Measures it, see docs/b.md.\n\ndiff --git a/x b/x\n"));
        assert!(!named("Measures it.\n\ndiff --git a/docs/a.md b/docs/a.md\n"));
        assert_eq!(name_of("tools/ablations/a.patch"), Some("a"));
    }
}
