//! The text files of the tree: those git tracks, and new ones it does not ignore.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

/// Files whose text the checks read.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    pub(crate) files: Vec<Source>,
}

/// A text file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Below the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Tree {
    /// Reads all text files; files with a NUL byte or bytes that are no UTF-8 are not text.
    pub(crate) fn read(root: &Path) -> Result<Self, Failure> {
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let output = git.current_dir(root).output().map_err(|e| Failure::start("git", e))?;
        let mut files = Vec::new();
        for path in String::from_utf8_lossy(&output.stdout).split_terminator('\0') {
            // A file that was just deleted is still listed.
            let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
            let Ok(text) = String::from_utf8(bytes) else { continue };
            if !text.contains('\0') {
                files.push(Source { path: path.to_owned(), text });
            }
        }
        Ok(Self { root: root.to_owned(), files })
    }

    /// The Rust sources of the crate with this manifest.
    pub(crate) fn rust_of(&self, manifest: &Path) -> impl Iterator<Item = &Source> {
        let folder = manifest.parent().and_then(|p| p.strip_prefix(&self.root).ok());
        let folder = folder.map(|f| format!("{}/", f.display()));
        let inside = move |s: &&Source| folder.as_ref().is_some_and(|f| s.path.starts_with(f));
        self.files.iter().filter(|s| s.is_rust()).filter(inside)
    }
}

/// The part of a path below `crates/` (what ships) or `tools/` (what does not): the crate's folder and what is inside.
pub(crate) fn within_crate(path: &str) -> Option<(&str, &str)> {
    let below = path.strip_prefix("crates/").or_else(|| path.strip_prefix("tools/"));
    below.and_then(|path| path.split_once('/'))
}

impl Source {
    /// True for Rust source.
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// True for a file of tests alone.
    pub(crate) fn is_test(&self) -> bool {
        let mut folders = self.path.split('/');
        let file = folders.next_back().unwrap_or_default();
        file == "tests.rs" || folders.any(|f| f == "tests" || f == "benches")
    }
}
