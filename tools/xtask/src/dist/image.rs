//! An image for containers, in the layout of the Open Container Initiative (image-spec 1.1), written without a daemon.
//!
//! It has the program with its libraries, certificates of the usual authorities and a directory for the store, which belongs to
//! the user that the program runs as. Nothing else is in it, no shell either.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::program::Program;
use super::{Release, archive, make, output_of, read, remove, rename, text, tree};
use crate::{Failure, sh};

/// User and group of the program, as a number that no distribution gives to anybody.
const USER: &str = "65532:65532";
const NUMBER: &str = "65532";
const STORE: &str = "var/lib/larder";
/// Where Debian keeps the authorities; the program looks there, too.
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A blob, as others name it.
#[derive(Debug, Serialize)]
struct Descriptor {
    #[serde(rename = "mediaType")]
    kind: &'static str,
    digest: String,
    size: u64,
}

/// Writes `NAME.oci.tar`: what `podman load`, `docker load` and `skopeo copy oci-archive:` take.
pub(super) fn write(release: &Release, program: &Program, name: &str) -> Result<(), Failure> {
    let layout = release.into.join("stage/image");
    let blobs = layout.join("blobs/sha256");
    make(&blobs)?;
    let layer = layer(release, program)?;
    let plain = digest(&layer)?;
    archive::gzip(release, &layer)?;
    let packed = keep(&blobs, &layer.with_extension("tar.gz"), LAYER)?;
    let config = configuration(release, program, &plain)?;
    let config = keep_json(&blobs, &config, CONFIG)?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [packed],
    });
    let manifest = keep_json(&blobs, &manifest, MANIFEST)?;
    let mut entry = json!(manifest);
    entry["platform"] = json!({"architecture": program.arch.of_debian, "os": "linux"});
    let named = format!("localhost/larder:{}", release.version);
    // By these names `podman load` and `docker load` know it.
    entry["annotations"] = json!({
        "org.opencontainers.image.ref.name": named,
        "io.containerd.image.name": named,
    });
    let index = json!({"schemaVersion": 2, "manifests": [entry]});
    write_file(&layout.join("index.json"), index.to_string().as_bytes())?;
    write_file(&layout.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    archive::pack(release, &layout, ".", &release.into.join(format!("{name}.oci.tar")))
}

/// The files of the image, as a tar archive.
fn layer(release: &Release, program: &Program) -> Result<PathBuf, Failure> {
    let files = release.into.join("stage/image-files");
    remove(&files)?;
    for dir in ["usr/bin", "etc/ssl/certs", "var/lib"] {
        make(&files.join(dir))?;
    }
    copy(&program.file, &files.join(tree::PROGRAM))?;
    for library in &program.libraries {
        copy(library, &files.join(library.strip_prefix("/").unwrap_or(library)))?;
    }
    copy(&tree::third_party(release), &files.join(tree::THIRD_PARTY))?;
    let authorities = Path::new("/").join(AUTHORITIES);
    write_file(&files.join(AUTHORITIES), read(&authorities)?.as_bytes())?;
    write_file(
        &files.join("etc/passwd"),
        b"larder:x:65532:65532::/var/lib/larder:/sbin/nologin\n",
    )?;
    write_file(&files.join("etc/group"), b"larder:x:65532:\n")?;
    let to = release.into.join("stage/layer.tar");
    archive::pack(release, &files, ".", &to)?;
    // The store is the user's; all else is root's.
    make(&files.join(STORE))?;
    let (owner, group) = (format!("--owner={NUMBER}"), format!("--group={NUMBER}"));
    let time = format!("--mtime=@{}", release.epoch_s);
    let line = ["--append", "--format=gnu", "--numeric-owner", "--mode=0700", "--no-recursion"];
    let place =
        ["--file", &text(&to), "--directory", &text(&files), "./var/lib/larder"].map(str::to_owned);
    sh("tar", &[&line[..], &[&owner, &group, &time]].concat(), &place)?;
    Ok(to)
}

/// Copies what a link leads to.
fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    make(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map(drop).map_err(|e| Failure::file(from, e))
}

/// Configuration with which the image is run.
fn configuration(
    release: &Release,
    program: &Program,
    layer: &str,
) -> Result<serde_json::Value, Failure> {
    let made =
        output_of("date", &["--utc", "--date", &format!("@{}", release.epoch_s), "+%FT%TZ"])?;
    let made = made.trim();
    Ok(json!({
        "created": made,
        "architecture": program.arch.of_debian,
        "os": "linux",
        "config": {
            "User": USER,
            "Entrypoint": ["/usr/bin/larder"],
            // Ports of a container are open to nobody until they are published.
            "Cmd": ["server", "/var/lib/larder", "--listen", "0.0.0.0:9000", "--metrics-listen", "0.0.0.0:9001"],
            "ExposedPorts": {"9000/tcp": {}, "9001/tcp": {}},
            "Volumes": {"/var/lib/larder": {}},
            "WorkingDir": "/var/lib/larder",
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "Larder",
                "org.opencontainers.image.description": "S3-compatible object store",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [layer]},
        "history": [{"created": made, "created_by": "cargo xtask dist"}],
    }))
}

/// `sha256:` and the digits.
fn digest(file: &Path) -> Result<String, Failure> {
    let bytes = fs::read(file).map_err(|e| Failure::file(file, e))?;
    Ok(named(&bytes))
}

fn named(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sha256:{digits}")
}

/// Moves a file among the blobs.
fn keep(blobs: &Path, file: &Path, kind: &'static str) -> Result<Descriptor, Failure> {
    let digest = digest(file)?;
    let size = fs::metadata(file).map_err(|e| Failure::file(file, e))?.len();
    rename(file, &blobs.join(digest.trim_start_matches("sha256:")))?;
    Ok(Descriptor { kind, digest, size })
}

fn keep_json(
    blobs: &Path,
    value: &serde_json::Value,
    kind: &'static str,
) -> Result<Descriptor, Failure> {
    let bytes = value.to_string().into_bytes();
    let digest = named(&bytes);
    write_file(&blobs.join(digest.trim_start_matches("sha256:")), &bytes)?;
    Ok(Descriptor { kind, digest, size: bytes.len() as u64 })
}

fn write_file(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(file, bytes).map_err(|e| Failure::file(file, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_that_others_compute() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(named(b""), empty);
    }
}
