//! The PG that a key belongs to.

use larder_types::limits::PG_COUNT_MAX;
use larder_types::{BucketId, ObjectKey, PgId};

/// The PG of a key: `hash(bucket, key) mod pg_count`. FNV-1a with a final mix, fixed for ever: a change of it would
/// lose every object.
///
/// # Panics
/// If `pg_count` is not a power of two up to [`PG_COUNT_MAX`].
#[must_use]
pub fn pg_of(bucket: BucketId, key: &ObjectKey, pg_count: u32) -> PgId {
    assert!(
        pg_count.is_power_of_two() && pg_count <= PG_COUNT_MAX,
        "pg_count is a power of two up to {PG_COUNT_MAX}"
    );
    let mut hash = 0xCBF2_9CE4_8422_2325u64 ^ bucket.0;
    for &byte in key.as_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    hash = (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    hash ^= hash >> 32;
    PgId((hash & u64::from(pg_count - 1)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_is_fixed_for_ever() {
        let key = ObjectKey::new("photos/2026/cat.jpg").unwrap();
        assert_eq!(pg_of(BucketId(1), &key, 256), PgId(67));
        assert_eq!(pg_of(BucketId(1), &key, 1), PgId(0));
    }

    #[test]
    fn keys_spread_evenly() {
        let mut counts = vec![0u32; 256];
        for i in 0..256_000 {
            let key = ObjectKey::new(&format!("bench/{i:08}")).unwrap();
            counts[pg_of(BucketId(7), &key, 256).0 as usize] += 1;
        }
        assert!(counts.iter().all(|&n| (850..1150).contains(&n)), "{counts:?}");
    }
}
