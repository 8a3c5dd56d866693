//! The check that the engine leaves out: whether its version file is the one it wrote.
//!
//! `current` names the version in force: its number (u64), the XXH3-128 of its file `v<number>`
//! (u128), both little-endian, and a 0 that stands for XXH3. The engine reads the version file without
//! looking at that sum; a flipped bit there could silently take a table out of the index.

use std::io::ErrorKind;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::KvError;

/// Names the version in force.
pub(super) const CURRENT: &str = "current";
const CURRENT_BYTES: usize = 25;

/// The number of the version in force.
pub(super) fn number(path: &Path) -> Result<u64, KvError> {
    let failed = |error| KvError::from_io("reads its version", &error);
    let current = std::fs::read(path.join(CURRENT)).map_err(failed)?;
    Ok(parsed(current)?.0)
}

/// The number of a version, and the checksum of its file.
fn parsed(current: Vec<u8>) -> Result<(u64, u128), KvError> {
    let current: [u8; CURRENT_BYTES] = current
        .try_into()
        .map_err(|bytes: Vec<u8>| damaged(format!("current has {} bytes", bytes.len())))?;
    let (number, rest) = current.split_first_chunk::<8>().expect("it has 25 bytes");
    let (sum, kind) = rest.split_first_chunk::<16>().expect("it has 25 bytes");
    if kind != [0] {
        return Err(damaged(format!("current names the unknown checksum {}", kind[0])));
    }
    Ok((u64::from_le_bytes(*number), u128::from_le_bytes(*sum)))
}

/// Checks the version that would be opened; a directory without one is a new index.
pub(super) fn verify(path: &Path) -> Result<(), KvError> {
    let current = match std::fs::read(path.join(CURRENT)) {
        Ok(current) => current,
        Err(error) if error.kind() == ErrorKind::NotFound => return verify_new(path),
        Err(error) => return Err(KvError::from_io("reads its version", &error)),
    };
    let (number, sum) = parsed(current)?;
    let file = path.join(format!("v{number}"));
    let version =
        std::fs::read(&file).map_err(|error| KvError::from_io("reads its version", &error))?;
    if xxh3_128(&version) == sum {
        Ok(())
    } else {
        Err(damaged(format!("{} does not match its checksum", file.display())))
    }
}

/// An index that lost its `current` must not be taken for a new one: opening it would remove the
/// tables. The first `current` is written before any table is.
fn verify_new(path: &Path) -> Result<(), KvError> {
    let tables = match std::fs::read_dir(path.join("tables")) {
        Ok(mut tables) => tables.next().is_some(),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(KvError::from_io("lists its tables", &error)),
    };
    if tables { Err(damaged("there are tables but no current".into())) } else { Ok(()) }
}

fn damaged(reason: String) -> KvError {
    KvError::Damaged { key: None, reason }
}
