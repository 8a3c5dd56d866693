//! `DIR/entering`: the machine is on its way into a cluster. What its roles' directories have is then its own, and begins
//! anew; without the note and without a record it is somebody else's.
//!
//! # Invariant
//!
//! The note is there before anything is in a role's directory, and until the record is.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use larder_protocol::manager::state::ServerRole;
use larder_roles::node::{ROLES, role_name};

use super::{NodeError, kind};
use crate::private_file;

/// The file.
const NOTE: &str = "entering";
const TEXT: &str = "# This machine has not come into its cluster yet. Written by larder server, and removed when it has.\n";
/// Files that may lie in a role's directory of a machine that was cut off while it came in.
const BEFORE_ENTERED: [&str; 6] = [
    "identity.pem",
    "identity.pem.draft",
    "authority.pem",
    "authority.pem.draft",
    "lock",
    "tokens",
];
/// The managers' log of a cluster that was being founded.
const QUORUM_DIR: &str = "quorum";

/// Refuses roles' directories that are not left over from a coming in that was cut off. Changes nothing.
pub(super) fn check(dir: &Path) -> Result<(), NodeError> {
    let was_entering = dir.join(NOTE).exists();
    // A machine's own servers lack their record; others have commands of their own.
    let is_machine = was_entering || dir.join(kind::MARKER).exists();
    for role in ROLES {
        let role_dir = dir.join(role_name(role));
        if !is_machine {
            kind::allow(&role_dir, |_| false)?;
        }
        let is_left_over = |name: &str| {
            let is_log = role == ServerRole::Manager && name == QUORUM_DIR;
            was_entering && (is_log || BEFORE_ENTERED.contains(&name))
        };
        let foreign = private_file::first_other(&role_dir, is_left_over);
        if let Some(found) = foreign.map_err(|source| NodeError::file(&role_dir, source))? {
            let (dir, found) = (dir.display().to_string(), found.display().to_string());
            return Err(NodeError::NoRecord { dir, found });
        }
    }
    Ok(())
}

/// Notes that the machine comes in, and removes what is left of a coming in that was cut off. Nothing else is ever
/// removed.
pub(super) fn begin(dir: &Path) -> Result<(), NodeError> {
    check(dir)?;
    let note = note(dir);
    private_file::write(&note, TEXT).map_err(|source| NodeError::file(&note, source))?;
    for role in ROLES {
        let role_dir = dir.join(role_name(role));
        match fs::remove_dir_all(&role_dir) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(NodeError::file(&role_dir, error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Removes the note of a machine that has its record, or that was refused before it had anything.
pub(super) fn end(dir: &Path) -> Result<(), NodeError> {
    let note = note(dir);
    match fs::remove_file(&note).and_then(|()| private_file::sync_above(&note)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(NodeError::file(&note, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The same, if no role's directory is there.
pub(super) fn give_up(dir: &Path) -> Result<(), NodeError> {
    let has_begun = ROLES.into_iter().any(|role| dir.join(role_name(role)).exists());
    if has_begun { Ok(()) } else { end(dir) }
}

fn note(dir: &Path) -> PathBuf {
    dir.join(NOTE)
}
