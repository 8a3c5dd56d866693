//! Where a directory lies: none inside another that has a kind, but for what that kind puts there itself.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::{Kind, KindError};
use crate::private_file;

/// Refuses a directory inside another that has a kind. Changes nothing.
pub(super) fn outside(dir: &Path, wanted: Option<Kind>) -> Result<(), KindError> {
    let full = resolved(dir)?;
    let cluster = full.ancestors().nth(2).filter(|cluster| {
        wanted.is_some_and(Kind::is_role) && is_server_of(&full, cluster, wanted)
    });
    for outer in cluster.unwrap_or(&full).ancestors().skip(1) {
        if let Some(kind) = kind_at(outer)? {
            let (dir, outer) = (dir.display().to_string(), outer.display().to_string());
            return Err(KindError::Inside { dir, outer, what: kind.what() });
        }
    }
    Ok(())
}

/// Refuses a directory right above one that has a kind: that one would be refused from then on, or overwritten.
pub(super) fn around_none(dir: &Path) -> Result<(), KindError> {
    let fail = |source| KindError::File { path: dir.display().to_string(), source };
    let entries = match private_file::entries(dir) {
        // A file in its place is refused when the directory is to be made.
        Err(error) if error.kind() == ErrorKind::NotADirectory => return Ok(()),
        entries => entries.map_err(fail)?,
    };
    for inner in entries {
        if let Some(kind) = kind_at(&inner)? {
            let (dir, inner) = (dir.display().to_string(), inner.display().to_string());
            return Err(KindError::Around { dir, inner, what: kind.what() });
        }
    }
    Ok(())
}

/// Refuses a backend of a worker that lies inside the worker's directory, or around it, or is no place for blobs.
/// Changes nothing.
pub(crate) fn check_backend(backend: &Path, dir: &Path) -> Result<(), KindError> {
    super::allow(backend, |found| found == Kind::Backend)?;
    outside(backend, None)?;
    let (blobs, own) = (resolved(backend)?, resolved(dir)?);
    if blobs.starts_with(&own) || own.starts_with(&blobs) {
        let (backend, dir) = (backend.display().to_string(), dir.display().to_string());
        return Err(KindError::Nested { backend, dir });
    }
    Ok(())
}

/// True if it is the place of such a server in a development cluster: `node-N/ROLE`.
fn is_server_of(dir: &Path, cluster: &Path, wanted: Option<Kind>) -> bool {
    let name = |path: Option<&Path>| {
        path.and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or("").to_owned()
    };
    let is_node = name(dir.parent()).starts_with("node-");
    let is_role = wanted.and_then(Kind::role_dir).is_some_and(|role| role == name(Some(dir)));
    is_node && is_role && matches!(kind_at(cluster), Ok(Some(Kind::DevCluster)))
}

/// The kind of a directory around another, or in it: one that cannot be looked into has none.
fn kind_at(dir: &Path) -> Result<Option<Kind>, KindError> {
    match super::read(dir) {
        Ok(None) => Ok(super::certain(dir)),
        Err(KindError::File { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            Ok(None)
        }
        other => other,
    }
}

/// The path without links, as far as it is there.
fn resolved(path: &Path) -> Result<PathBuf, KindError> {
    let fail = |source| KindError::File { path: path.display().to_string(), source };
    let absolute = std::path::absolute(path).map_err(fail)?;
    let (mut there, mut missing) = (absolute.as_path(), Vec::new());
    loop {
        match there.canonicalize() {
            Ok(found) => return Ok(missing.iter().rev().fold(found, |path, name| path.join(name))),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(fail(error)),
        }
        let (Some(parent), Some(name)) = (there.parent(), there.file_name()) else {
            return Err(fail(io::Error::from(ErrorKind::NotFound)));
        };
        missing.push(name);
        there = parent;
    }
}
