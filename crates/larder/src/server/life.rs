//! Ties a store to one life of a region: a file beside DIR/region has the fingerprint of the key that its index was
//! written under.
//!
//! Without DIR/region a store would take writes as if it were alone: its deletes would leave no tombstones, and other
//! regions would bring back what was deleted. With the files of another life it would take what it knows of its own
//! regions for true of those.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use larder_link::RegionEndpoint;

const FILE: &str = "region.life";

/// Reason for not serving a store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LifeError {
    #[error(
        "{0} is the store of a region, and {0}/region is gone: restore that directory from a backup. Without it, other \
         regions would differ from this one for ever. To go on as a store that is alone, copy the objects into a new one"
    )]
    Gone(String),
    #[error(
        "{0} is the store of another region than {0}/region says: restore that directory as it was. To become another \
         region, let an empty store join"
    )]
    Another(String),
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
}

/// Checks that a store has the key that it was served with before, and notes the key the first time.
pub(crate) fn check(dir: &Path, region_endpoint: Option<&RegionEndpoint>) -> Result<(), LifeError> {
    let path = dir.join(FILE);
    let name = dir.display().to_string();
    let failed = |source| LifeError::File { path: path.display().to_string(), source };
    let known = match fs::read_to_string(&path) {
        Ok(known) => Some(known.trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let own = region_endpoint
        .map(|region_endpoint| region_endpoint.members().borrow().own.fingerprint.to_string());
    match (known, own) {
        (None, None) => Ok(()),
        (Some(_), None) => Err(LifeError::Gone(name)),
        (Some(known), Some(own)) if known == own => Ok(()),
        (Some(_), Some(_)) => Err(LifeError::Another(name)),
        (None, Some(own)) => note(&path, &own).map_err(failed),
    }
}

fn note(path: &Path, own: &str) -> std::io::Result<()> {
    let mut file = fs::File::create_new(path)?;
    writeln!(file, "{own}")?;
    file.sync_all()?;
    match path.parent() {
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(dir: &Path) {
        let address = "127.0.0.1:7001";
        let (name, advertise) = ("one".parse().unwrap(), address.parse().unwrap());
        larder_link::found(dir, name, address.to_owned(), advertise).unwrap();
    }

    fn checked(dir: &Path) -> Result<(), LifeError> {
        check(dir, RegionEndpoint::open(dir).unwrap().as_deref())
    }

    #[test]
    fn a_store_is_not_served_as_another_than_it_was() {
        let dir = tempfile::tempdir().unwrap();
        checked(dir.path()).unwrap();
        found(dir.path());
        checked(dir.path()).unwrap();
        checked(dir.path()).unwrap();
        fs::rename(dir.path().join("region"), dir.path().join("away")).unwrap();
        assert!(matches!(checked(dir.path()), Err(LifeError::Gone(_))));
        found(dir.path());
        assert!(matches!(checked(dir.path()), Err(LifeError::Another(_))));
        fs::remove_dir_all(dir.path().join("region")).unwrap();
        fs::rename(dir.path().join("away"), dir.path().join("region")).unwrap();
        checked(dir.path()).unwrap();
    }
}
