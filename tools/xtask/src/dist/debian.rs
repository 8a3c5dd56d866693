//! The Debian package: the same files, and the scripts of `deploy/debian`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::program::Program;
use super::{Release, make, read, remove, text};
use crate::{Failure, root, sh};

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
/// Settings of the operator, which an upgrade leaves as they are.
const SETTINGS: &str = "/etc/larder/larder.toml\n";
const KIB: u64 = 1024;

/// Builds the package.
pub(super) fn write(release: &Release, program: &Program, files: &Path) -> Result<(), Failure> {
    let control = files.join("DEBIAN");
    make(&control)?;
    let from = root().join("deploy/debian");
    let described = read(&from.join("control"))?
        .replace("@VERSION@", &release.version)
        .replace("@ARCH@", program.arch.of_debian)
        .replace("@GLIBC@", &program.glibc)
        .replace("@KIB@", &bytes(files)?.div_ceil(KIB).to_string());
    write_file(&control.join("control"), &described, 0o644)?;
    write_file(&control.join("conffiles"), SETTINGS, 0o644)?;
    for script in SCRIPTS {
        write_file(&control.join(script), &read(&from.join(script))?, 0o755)?;
    }
    let package =
        release.into.join(format!("larder_{}_{}.deb", release.version, program.arch.of_debian));
    let time = format!("SOURCE_DATE_EPOCH={}", release.epoch_s);
    let level = format!("-z{}", release.level);
    sh(
        "env",
        &[
            &time,
            "dpkg-deb",
            "--root-owner-group",
            "-Zgzip",
            &level,
            "--build",
            &text(files),
            &text(&package),
        ],
        &[],
    )?;
    remove(&control)
}

fn write_file(file: &Path, content: &str, mode: u32) -> Result<(), Failure> {
    fs::write(file, content).map_err(|e| Failure::file(file, e))?;
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).map_err(|e| Failure::file(file, e))
}

/// Of all files below a directory.
fn bytes(dir: &Path) -> Result<u64, Failure> {
    let failed = |e| Failure::file(dir, e);
    let mut sum = 0;
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let about = entry.metadata().map_err(failed)?;
        sum += if about.is_dir() { bytes(&entry.path())? } else { about.len() };
    }
    Ok(sum)
}
