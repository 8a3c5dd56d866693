//! Removes what killed processes have left of uploads into a local directory. Such files are named
//! like objects, with a hash and a number behind, and no list shows them. In object stores over
//! HTTP the library cannot list such leftovers: there the store's own rule for incomplete uploads
//! has to remove them.
//!
//! # Invariant
//!
//! Only what a worker up to this one began goes, and only when nobody has written to it for [`LEFTOVER_AGE`].

use std::path::Path;
use std::time::SystemTime;

use crate::backend::Backend;
use crate::ids::WorkerId;
use crate::limits::LEFTOVER_AGE;
use crate::owner::marker::MARKER;

/// Prefixes below which names begin with that of a worker, or are a marker.
const PREFIXES: [&str; 7] = [
    crate::format::blob::PREFIX,
    crate::format::names::PREFIX,
    crate::backup::SEGMENTS,
    crate::backup::HEADS,
    crate::owner::counting::PREFIX,
    crate::owner::marker::TAKEOVER_FENCES,
    crate::owner::marker::CLAIMS,
];
/// Digits of a worker in names.
const WORKER_DIGITS: usize = 16;

/// Removes them, if the backend is a local directory; returns how many. Blocks.
pub(crate) fn remove(backend: &Backend, worker: WorkerId) -> u64 {
    backend.dir().map_or(0, |dir| remove_in(dir, worker))
}

/// A file that cannot be removed is logged, and left.
fn remove_in(dir: &Path, worker: WorkerId) -> u64 {
    let mut removed = 0;
    for prefix in PREFIXES {
        let Ok(files) = std::fs::read_dir(dir.join(prefix)) else { continue };
        for file in files.filter_map(Result::ok) {
            let name = file.file_name();
            if !name.to_str().is_some_and(|name| is_leftover(name, worker)) || !is_old(&file) {
                continue;
            }
            match std::fs::remove_file(file.path()) {
                Ok(()) => removed += 1,
                Err(error) => {
                    let file = file.path();
                    tracing::warn!(?file, %error, "leftovers of an upload could not be removed");
                }
            }
        }
    }
    removed
}

fn is_leftover(name: &str, worker: WorkerId) -> bool {
    let Some((object, number)) = name.split_once('#') else { return false };
    let begun_by = object.get(..WORKER_DIGITS).and_then(|by| u64::from_str_radix(by, 16).ok());
    (begun_by.is_some_and(|by| by <= worker.0) || object == MARKER)
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_old(file: &std::fs::DirEntry) -> bool {
    let modified = file.metadata().and_then(|metadata| metadata.modified());
    let age = modified.ok().and_then(|modified| SystemTime::now().duration_since(modified).ok());
    age.is_some_and(|age| age >= LEFTOVER_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn old_leftovers_of_workers_up_to_this_one_go_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 2 * LEFTOVER_AGE;
        let make = |name: &str, is_old: bool| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let file = fs::File::create(&path).unwrap();
            if is_old {
                file.set_modified(old).unwrap();
            }
        };
        let kept = [
            ("blobs/0000000000000002-0000000000000001-018bcfe56800-0000000009", true),
            ("blobs/0000000000000002-0000000000000001-018bcfe56800-0000000009#1", false),
            ("objects/0000000000000003-0000000000000000-0000000000000101#1", true),
            ("objects/0000000000000002-other#x", true),
            ("elsewhere/0000000000000002#1", true),
            ("claims/0000000000000002", true),
            ("claims/numbered", true),
        ];
        for (name, is_old) in kept {
            make(name, is_old);
        }
        make("blobs/0000000000000002-0000000000000002-018bcfe56800-0000000009#1", true);
        make("objects/0000000000000001-0000000000000000-0000000000000101#12", true);
        make("incarnations/0000000000000002-00000007#3", true);
        make("incarnations/0000000000000001-00000007-from#3", true);
        make("horizons/0000000000000002#1", true);
        make("claims/0000000000000002#1", true);
        make("claims/numbered#2", true);
        assert_eq!(remove_in(dir.path(), WorkerId(2)), 7);
        for (name, _) in kept {
            assert!(dir.path().join(name).exists(), "{name}");
        }
        assert_eq!(remove_in(&dir.path().join("missing"), WorkerId(2)), 0);
    }
}
