//! The program of a release: built, and parted from its symbols.

use std::path::{Path, PathBuf};

use super::{output_of, text};
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
    pub(super) arch: &'static Arch,
    /// Libraries that it is run with, the loader among them.
    pub(super) libraries: Vec<PathBuf>,
    /// Oldest version of the C library that has all that it asks for, such as `2.34`.
    pub(super) glibc: String,
}

/// Builds the program; where it is then.
///
/// The target is named, so that nothing else is built with these flags: no path of this machine is left in it.
pub(super) fn build() -> Result<PathBuf, Failure> {
    let target = format!("{}-unknown-linux-gnu", arch()?.of_rust);
    let home = std::env::var("CARGO_HOME").ok().map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let mut flags = format!("RUSTFLAGS=--remap-path-prefix={}=/larder", text(&root()));
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

pub(super) fn arch() -> Result<&'static Arch, Failure> {
    let named = std::env::consts::ARCH;
    ARCHS.iter().find(|it| it.of_rust == named).ok_or_else(|| {
        Failure::Metadata(format!("no release is made for processors of kind {named}"))
    })
}

impl Program {
    /// Parts a program from its symbols, which go to `symbols`, where the program names them.
    pub(super) fn strip(
        built: &Path,
        arch: &'static Arch,
        stage: &Path,
        symbols: &Path,
    ) -> Result<Self, Failure> {
        let file = stage.join("larder");
        let (from, bare, debug) = (text(built), text(&file), text(symbols));
        sh("objcopy", &["--only-keep-debug", &from, &debug], &[])?;
        sh("chmod", &["0644", &debug], &[])?;
        let link = format!("--add-gnu-debuglink={debug}");
        sh("objcopy", &["--strip-all", &link, &from, &bare], &[])?;
        let versions = output_of("readelf", &["--version-info", "--wide", &bare])?;
        let glibc = newest_glibc(&versions).ok_or_else(|| Failure::Command {
            line: format!("readelf --version-info {bare}"),
            detail: ": it names no version of the C library".to_owned(),
        })?;
        Ok(Self { libraries: libraries(&output_of("ldd", &[&bare])?), file, arch, glibc })
    }
}

/// Files that `ldd` shows.
fn libraries(shown: &str) -> Vec<PathBuf> {
    let words =
        shown.lines().filter_map(|line| line.split_whitespace().find(|it| it.starts_with('/')));
    words.map(PathBuf::from).collect()
}

/// The newest version of the C library that `readelf --version-info` shows as needed.
fn newest_glibc(shown: &str) -> Option<String> {
    let words = shown.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_"));
    let numbers = words.filter_map(|version| {
        version.split('.').map(|number| number.parse().ok()).collect::<Option<Vec<u32>>>()
    });
    let newest = numbers.max()?;
    Some(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_ldd_shows() {
        let shown = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                     \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries(shown), expected.map(PathBuf::from));
    }

    #[test]
    fn versions_are_numbers() {
        let shown = "  0x0010:   Name: GLIBC_2.9  Flags: none\n  0x0020:   Name: GLIBC_2.34  Flags: none\n GLIBC_PRIVATE";
        assert_eq!(newest_glibc(shown).as_deref(), Some("2.34"));
        assert_eq!(newest_glibc("nothing"), None);
    }
}
