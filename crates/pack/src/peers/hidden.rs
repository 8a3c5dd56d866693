//! Buckets that workers keep for themselves in their indexes. Clients neither see nor name them.
//!
//! | bucket | an object in it |
//! |---|---|
//! | `larder.buckets` | for each bucket that was made: its name is the key |
//! | `larder.shared` | nothing: that it is there says that the worker's own buckets have an object in `larder.buckets` |
//! | `larder.graves.HASH` | for each key that was deleted in the bucket whose name has that hash; the record's location is the bucket's name |
//!
//! They are made as buckets are, and their objects are put, moved and re-logged as all others: so a
//! delete has what it needs to survive a rebuild. Buckets themselves are never removed from a
//! worker's index; what counts is the object.

use larder_types::{BucketName, ObjectKey};
use xxhash_rust::xxh3::xxh3_64;

/// The beginning of their names.
const PREFIX: &str = "larder.";
/// The beginning of the names of those for tombstones.
const TOMBSTONES: &str = "larder.graves.";

/// The bucket whose objects stand for buckets.
pub(crate) fn buckets() -> BucketName {
    named(format!("{PREFIX}buckets"))
}

/// Has no objects: that it is there says that the worker's buckets are shared.
pub(crate) fn shared() -> BucketName {
    named(format!("{PREFIX}shared"))
}

/// The bucket whose objects stand for deletes in this one.
pub(crate) fn tombstones(bucket: &BucketName) -> BucketName {
    named(format!("{TOMBSTONES}{:016x}", xxh3_64(bucket.as_str().as_bytes())))
}

/// Returns true if clients may not name it.
pub(crate) fn is_hidden(bucket: &BucketName) -> bool {
    bucket.as_str().starts_with(PREFIX)
}

/// Returns true if its objects stand for deletes.
pub(crate) fn is_for_graves(bucket: &BucketName) -> bool {
    bucket.as_str().starts_with(TOMBSTONES)
}

/// The key that stands for a bucket.
pub(crate) fn key_of(bucket: &BucketName) -> ObjectKey {
    ObjectKey::new(bucket.as_str()).expect("a bucket's name may be a key")
}

fn named(name: String) -> BucketName {
    BucketName::new(&name).expect("it is a name that buckets may have")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_buckets_have_names_that_others_may_not_have() {
        let photos = BucketName::new("photos").unwrap();
        assert_eq!(buckets().as_str(), "larder.buckets");
        // Stored: another hash would forget every delete.
        assert_eq!(
            tombstones(&photos).as_str(),
            format!("larder.graves.{:016x}", xxh3_64(b"photos"))
        );
        assert!(is_hidden(&buckets()) && !is_for_graves(&buckets()));
        assert!(is_hidden(&tombstones(&photos)) && is_for_graves(&tombstones(&photos)));
        assert!(!is_hidden(&photos));
        assert_eq!(key_of(&photos).as_str(), "photos");
    }
}
