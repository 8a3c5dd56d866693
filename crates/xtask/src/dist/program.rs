//! The program of a release: built, and parted from its symbols.

use std::path::{Path, PathBuf};

use super::{text, told};
use crate::{Failure, cargo, root, sh};

/// A kind of processor, by the names that others have for it.
pub(super) struct Arch {
    pub(super) of_rust: &'static str,
    /// Of Debian and of images.
    pub(super) of_debian: &'static str,
}

const ARCHS: [Arch; 2] = [
    Arch { of_rust: "x86_64", of_debian: "amd64" },
    Arch { of_rust: "aarch64", of_debian: "arm64" },
];

/// A program without its symbols.
pub(super) struct Program {
    pub(super) file: PathBuf,
    /// Of a debugger; the program names the file.
    pub(super) symbols: PathBuf,
    pub(super) arch: &'static Arch,
    /// Libraries that it needs.
    pub(super) libraries: Vec<String>,
}

/// Builds the program without libraries that it needs at run time; where it is then.
///
/// The target is named, so that what runs while it is built, procedural macros among it, is linked as always. No path of
/// this machine is left in it.
pub(super) fn build() -> Result<PathBuf, Failure> {
    let target = format!("{}-unknown-linux-gnu", arch()?.of_rust);
    let home = std::env::var("CARGO_HOME").ok().map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let mut flags = format!(
        "RUSTFLAGS=-C target-feature=+crt-static --remap-path-prefix={}=/larder",
        text(&root())
    );
    if let Some(home) = home {
        flags = format!("{flags} --remap-path-prefix={}=/cargo", text(&home));
    }
    let cargo = cargo();
    let line =
        [&flags, &cargo, "build", "--release", "--locked", "-p", "larder", "--target", &target];
    sh("env", &line, &[])?;
    let dir = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let dir = dir.unwrap_or_else(|| PathBuf::from("target"));
    Ok(root().join(dir).join(target).join("release/larder"))
}

fn arch() -> Result<&'static Arch, Failure> {
    let named = std::env::consts::ARCH;
    ARCHS.iter().find(|it| it.of_rust == named).ok_or_else(|| {
        Failure::Metadata(format!("no release is made for processors of kind {named}"))
    })
}

impl Program {
    /// Parts a program from its symbols; both are in `stage` then.
    pub(super) fn strip(built: &Path, stage: &Path) -> Result<Self, Failure> {
        let arch = arch()?;
        let (file, symbols) = (stage.join("larder"), stage.join("larder.debug"));
        let (from, bare, debug) = (text(built), text(&file), text(&symbols));
        sh("objcopy", &["--only-keep-debug", &from, &debug], &[])?;
        let link = format!("--add-gnu-debuglink={debug}");
        sh("objcopy", &["--strip-all", &link, &from, &bare], &[])?;
        let dynamic = told("readelf", &["--dynamic", "--wide", &bare])?;
        Ok(Self { file, symbols, arch, libraries: needed(&dynamic) })
    }

    /// True if it needs no library.
    pub(super) const fn is_static(&self) -> bool {
        self.libraries.is_empty()
    }
}

/// Libraries that `readelf --dynamic` shows as needed.
fn needed(dynamic: &str) -> Vec<String> {
    let lines = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let names = lines.filter_map(|line| line.split_once('[')?.1.split_once(']'));
    names.map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_readelf_shows() {
        let shown = "Dynamic section at offset 0x1 contains 3 entries:\n  Tag        Type                         Name/Value\n \
                     0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]\n \
                     0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n \
                     0x000000000000000c (INIT)               0x1000\n";
        assert_eq!(needed(shown), ["libgcc_s.so.1", "libc.so.6"]);
        assert!(needed("There is no dynamic section in this file.").is_empty());
    }
}
