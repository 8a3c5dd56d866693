//! The files that a package installs, as they lie below `/`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::program::Program;
use super::{Release, licences, make, output_of, text};
use crate::{Failure, root, sh};

/// From the tree to where it is installed.
const FILES: [(&str, &str); 4] = [
    ("LICENSE", "usr/share/doc/larder/copyright"),
    ("CHANGELOG.md", "usr/share/doc/larder/CHANGELOG.md"),
    ("deploy/systemd/larder.service", "usr/lib/systemd/system/larder.service"),
    ("deploy/systemd/larder.toml", "etc/larder/larder.toml"),
];

/// Completions: shell, and where it looks for them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/larder"),
    ("zsh", "usr/share/zsh/vendor-completions/_larder"),
    ("fish", "usr/share/fish/vendor_completions.d/larder.fish"),
];

/// Where the program goes.
pub(super) const PROGRAM: &str = "usr/bin/larder";

/// Licences of the crates that the program is made of.
pub(super) const THIRD_PARTY: &str = "usr/share/doc/larder/third-party.txt";

/// Lays out what is installed. The program itself writes its man pages and completions.
pub(super) fn assemble(program: &Program, files: &Path) -> Result<(), Failure> {
    for (from, to) in FILES {
        copy(&root().join(from), &files.join(to), 0o644)?;
    }
    copy(&program.file, &files.join(PROGRAM), 0o755)?;
    let larder = text(&program.file);
    for (shell, to) in COMPLETIONS {
        let to = files.join(to);
        make(to.parent().unwrap_or(files))?;
        let script = output_of(&larder, &["completions", shell])?;
        fs::write(&to, script).map_err(|e| Failure::file(&to, e))?;
    }
    licences::write(&files.join(THIRD_PARTY))?;
    let pages = files.join("usr/share/man/man1");
    sh(&larder, &["man", &text(&pages)], &[])?;
    sh("sh", &["-c", "gzip -9n \"$0\"/*.1", &text(&pages)], &[])
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), Failure> {
    make(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map_err(|e| Failure::file(from, e))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(|e| Failure::file(to, e))
}

/// Where the licences lie, once the files are laid out.
pub(super) fn third_party(release: &Release) -> PathBuf {
    release.into.join("stage/root").join(THIRD_PARTY)
}
