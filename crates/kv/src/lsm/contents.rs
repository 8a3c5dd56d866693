//! The check that the engine makes too late: how many entries a table's contents claim to have.
//!
//! A table ends with a trailer of 38 bytes: `SFA!`, a version, a kind of checksum, the checksum of the
//! contents (u128), their place (u64) and length (u64), little-endian. The contents are 4 bytes of
//! magic, the number of entries (u32), the entries. The engine reserves memory for that number
//! before it looks at the checksum: one flipped bit asks for gigabytes, and the process ends.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::KvError;

const TRAILER_BYTES: u64 = 38;
const TRAILER_MAGIC: &[u8] = b"SFA!";
/// Place and length of a section; its name is longer than nothing.
const ENTRY_BYTES_MIN: u64 = 16;

/// Refuses a table whose contents cannot have as many entries as they say. All else is the engine's to
/// find, also that a table which a crash left half-written belongs to nothing.
pub(super) fn verify(path: &Path) -> Result<(), KvError> {
    let failed = |error: &std::io::Error| KvError::from_io("looks at its tables", error);
    let tables = match std::fs::read_dir(path.join("tables")) {
        Ok(tables) => tables,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(&error)),
    };
    for table in tables {
        let table = table.map_err(|error| failed(&error))?.path();
        if !plausible(&table).map_err(|error| failed(&error))? {
            let reason = format!("{} claims more entries than it has room for", table.display());
            return Err(KvError::Damaged { key: None, reason });
        }
    }
    Ok(())
}

fn plausible(table: &Path) -> std::io::Result<bool> {
    let file = File::open(table)?;
    let size = file.metadata()?.len();
    let Some(trailer_at) = size.checked_sub(TRAILER_BYTES) else { return Ok(true) };
    let mut trailer = [0; TRAILER_BYTES as usize];
    file.read_exact_at(&mut trailer, trailer_at)?;
    let (place, _) = trailer[22..].split_first_chunk().expect("the trailer has 38 bytes");
    let place = u64::from_le_bytes(*place);
    if !trailer.starts_with(TRAILER_MAGIC) || place.saturating_add(8) > trailer_at {
        return Ok(true);
    }
    let mut count = [0; 4];
    file.read_exact_at(&mut count, place + 4)?;
    Ok(u64::from(u32::from_le_bytes(count)) <= (trailer_at - place) / ENTRY_BYTES_MIN)
}
