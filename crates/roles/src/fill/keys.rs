//! Keys of filled objects, `fill-SEED/NUMBER`, and the numbers that a bucket has.
//!
//! Invariant: keys of one seed sort by their numbers, so that no row lies behind that of the last number.

use std::ops::ControlFlow;

use larder_kv::{KvError, KvReader};
use larder_types::{BucketId, ObjectKey, rows};

use super::{FillConfig, FillError};

/// Numbers of one seed, from 0.
pub(super) const NUMBERS: u64 = 1_000_000_000_000;
/// The beginning of all keys.
const PREFIX: &str = "fill-";

/// The key of an object.
pub(super) fn key(seed: u64, number: u64) -> ObjectKey {
    assert!(number < NUMBERS, "a number has twelve digits");
    let key = format!("{PREFIX}{seed:016x}/{number:012}");
    ObjectKey::new(&key).expect("letters and digits are a key")
}

/// The number behind the last that the bucket has of this seed.
///
/// # Errors
/// [`FillError::NotOfAFill`] if the bucket has rows that are no fill's, and what the index says.
pub(super) fn next_number(
    kv: &dyn KvReader,
    bucket: BucketId,
    config: &FillConfig,
) -> Result<u64, FillError> {
    let foreign = || FillError::NotOfAFill { bucket: config.bucket.as_str().to_owned() };
    let filled = rows::key_prefix(b'V', bucket, PREFIX.as_bytes());
    let (objects, uploads) = (rows::bucket(b'V', bucket), rows::bucket(b'U', bucket));
    let behind = rows::prefix_end(&filled);
    let end_of = |rows: &[u8]| rows::prefix_end(rows);
    let has_others = has_row(kv, &objects, Some(&filled))?
        || has_row(kv, behind.as_deref().unwrap_or(&objects), end_of(&objects).as_deref())?
        || has_row(kv, &uploads, end_of(&uploads).as_deref())?;
    if has_others {
        return Err(foreign());
    }
    let of_seed = format!("{PREFIX}{:016x}/", config.seed);
    let end = end_of(&rows::key_prefix(b'V', bucket, of_seed.as_bytes()));
    let has_from = |number| {
        let row = rows::versions(b'V', bucket, &key(config.seed, number));
        has_row(kv, &row, end.as_deref())
    };
    // The least number at or behind which there is nothing.
    let (mut low, mut high) = (0, NUMBERS - 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if has_from(middle)? {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if has_from(low)? { Err(foreign()) } else { Ok(low) }
}

fn has_row(kv: &dyn KvReader, from: &[u8], to: Option<&[u8]>) -> Result<bool, KvError> {
    let mut found = false;
    kv.scan(from, to, &mut |_, _| {
        found = true;
        ControlFlow::Break(())
    })?;
    Ok(found)
}
