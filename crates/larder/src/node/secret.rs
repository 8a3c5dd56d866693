//! The secret that the machines of a cluster share: made by `larder secret`, read from a file that its owner alone can
//! read.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use larder_net::PeerSecret;

use super::NodeError;
use crate::exit;

/// Most bytes of a secret file: a line.
const FILE_BYTES_MAX: u64 = 256;

/// Prints a new secret.
pub(crate) fn run() -> ExitCode {
    match PeerSecret::draw() {
        Ok(secret) => {
            println!("{secret}");
            exit::code(exit::OK)
        }
        Err(error) => {
            eprintln!("error: {error}");
            exit::code(exit::CANNOT_START)
        }
    }
}

/// Reads one.
pub(super) fn read(path: &Path) -> Result<PeerSecret, NodeError> {
    let name = path.display().to_string();
    let failed = |source| NodeError::SecretFile { path: name.clone(), source };
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.mode() & 0o077 != 0 {
        return Err(NodeError::SecretExposed { path: name });
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    text.parse().map_err(|source| NodeError::Secret { path: name, source })
}
