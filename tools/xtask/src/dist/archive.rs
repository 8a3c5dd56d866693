//! Archives whose bytes depend on their files alone.

use std::path::Path;

use super::{Release, read, text};
use crate::{Failure, root, sh};

/// Packs what lies in a directory into a tar archive at `to`. With `below`, names in it begin with that.
pub(super) fn pack(release: &Release, dir: &Path, below: &str, to: &Path) -> Result<(), Failure> {
    let time = format!("--mtime=@{}", release.epoch_s);
    let renamed = format!("--transform=flags=r;s,^\\.,{below},");
    sh(
        "tar",
        &[
            "--create",
            "--format=gnu",
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mode=go=rX,u+rw,a-s",
            &time,
            &renamed,
            "--file",
            &text(to),
            "--directory",
            &text(dir),
            ".",
        ],
        &[],
    )
}

/// Packs a file, without its time, as `FILE.gz`.
pub(super) fn gzip(release: &Release, file: &Path) -> Result<(), Failure> {
    sh("gzip", &[&format!("-{}n", release.level), &text(file)], &[])
}

/// The archive of the release: `NAME.tar.gz`, with all below `NAME/`.
pub(super) fn write(release: &Release, files: &Path, name: &str) -> Result<(), Failure> {
    let to = release.into.join(format!("{name}.tar"));
    pack(release, files, name, &to)?;
    gzip(release, &to)
}

/// The chart, as `helm package` would name it, of the release's version.
pub(super) fn chart(release: &Release) -> Result<(), Failure> {
    let dir = root().join("deploy/helm/larder");
    let described = read(&dir.join("Chart.yaml"))?;
    for field in ["version", "appVersion"] {
        let line = format!("{field}: \"{}\"", release.version);
        if !described.lines().any(|it| it == line) {
            let fault = format!("deploy/helm/larder/Chart.yaml: write {line}, as in Cargo.toml");
            return Failure::of("chart", vec![fault]);
        }
    }
    let to = release.into.join(format!("larder-chart-{}.tar", release.version));
    pack(release, &dir, "larder", &to)?;
    gzip(release, &to)?;
    let packed = release.into.join(format!("larder-chart-{}.tar.gz", release.version));
    super::rename(&packed, &release.into.join(format!("larder-chart-{}.tgz", release.version)))
}
