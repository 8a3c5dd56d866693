//! The secret that the machines of a cluster share: made by `larder secret`, read from a file that its owner alone can
//! read, or root's group.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use larder_identity::PeerSecret;

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
        Err(error) => exit::failed(&error, exit::CANNOT_START),
    }
}

/// Reads one.
pub(super) fn read(path: &Path) -> Result<PeerSecret, NodeError> {
    let name = path.display().to_string();
    let failed = |source| NodeError::SecretFile { path: name.clone(), source };
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if is_exposed(about.mode(), about.uid()) {
        return Err(NodeError::SecretExposed { path: name });
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    text.parse().map_err(|source| NodeError::Secret { path: name, source })
}

/// True of a file that others than those who are to know it can read.
///
/// Of a file of root's, members of its group may: packages and Kubernetes give a service its secrets so, as the service
/// cannot replace them then.
const fn is_exposed(mode: u32, owner: u32) -> bool {
    let allowed = if owner == 0 { 0o740 } else { 0o700 };
    mode & 0o777 & !allowed != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_by_its_owner_and_by_the_group_of_a_file_of_roots() {
        for (mode, owner, is_refused) in [
            (0o600, 1000, false),
            (0o400, 0, false),
            (0o640, 0, false),
            (0o440, 0, false),
            (0o640, 1000, true),
            (0o440, 1000, true),
            (0o660, 0, true),
            (0o644, 0, true),
            (0o604, 1000, true),
        ] {
            assert_eq!(is_exposed(mode, owner), is_refused, "{mode:o} of {owner}");
        }
    }
}
