//! The name of a directory's worker, if it shares its bucket. A file tells the directory its name.
//!
//! # Invariants
//!
//! 1. A directory keeps the name, and the place in the bucket, that it got first.
//! 2. A bucket is either one worker's without a name, or shared by workers that all have names: one without would not
//!    learn of the others.

use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError};
use larder_types::codec::{decode, encode};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::error::PackError;
use crate::limits::WORKERS_MAX;
use crate::owner::announce::{Announcement, all};
use crate::owner::identity;
use crate::owner::name::{WorkerName, base};

/// File of the directory.
const FILE: &str = "name";

/// The name and place of a directory's worker among those that share a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) name: WorkerName,
    /// Where it lies in the bucket; empty for the whole.
    pub(crate) prefix: String,
}

/// The name of a directory: its own, or the one `wanted` if it has none; `None` for a worker without.
///
/// # Errors
/// [`PackError::Config`] if it has another, or if the bucket is another kind of store.
pub(crate) async fn name(
    disk: &dyn Disk,
    root: &Backend,
    wanted: Option<&WorkerName>,
) -> Result<Option<Named>, PackError> {
    let known = match read_file(disk, FILE) {
        Ok(bytes) => Some(decode::<Named>("the name of the worker", &bytes)?),
        Err(DiskError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let named = match (known, wanted) {
        (Some(known), Some(wanted)) if known.name != *wanted => {
            return Err(PackError::Config {
                what: "the name of the worker",
                found: wanted.to_string(),
                remedy: format!("{}: this directory has it", known.name),
            });
        }
        (Some(known), _) => return Ok(Some(known)),
        (None, None) => return Ok(None),
        (None, Some(wanted)) => place(disk, root, wanted).await?,
    };
    replace_file(disk, "", FILE, &encode(&named))?;
    Ok(Some(named))
}

/// Where a directory that had no name yet lies.
async fn place(disk: &dyn Disk, root: &Backend, name: &WorkerName) -> Result<Named, PackError> {
    let others = all(root).await?;
    if identity::is_known(disk)? {
        return Ok(Named { name: name.clone(), prefix: String::new() });
    }
    if let Some(same) = others.iter().find(|other| other.name == *name) {
        return Ok(Named { name: name.clone(), prefix: same.prefix.clone() });
    }
    let is_at_root = others.iter().any(|other| other.prefix.is_empty());
    if !is_at_root && identity::is_claimed(root).await? {
        return Err(PackError::Config {
            what: "a worker with a name",
            found: format!("{name}, over the bucket of a worker without"),
            remedy: "--worker NAME with that worker's directory first".to_owned(),
        });
    }
    let prefix = name.prefix();
    let is_taken = |other: &&Announcement| base(&other.prefix) == base(&prefix);
    if let Some(other) = others.iter().find(is_taken) {
        return Err(PackError::Config {
            what: "the name of the worker",
            found: name.to_string(),
            remedy: format!("another: its numbers would be those of {}", other.name),
        });
    }
    if others.len() >= WORKERS_MAX {
        return Err(PackError::Config {
            what: "the number of workers",
            found: format!("{}", others.len() + 1),
            remedy: format!("at most {WORKERS_MAX} over one bucket"),
        });
    }
    Ok(Named { name: name.clone(), prefix })
}
