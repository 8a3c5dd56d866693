//! Orders of operators about buckets that the running server has not carried out yet: a file of each kind in DIR/region.
//!
//! A setting belongs to the store, which keeps it with its buckets. Here it only waits, of a single node. Orders about homes stand in
//! the gateway's directory, of a single node and of a cluster: only the gateway asks other regions.

use std::io::ErrorKind;
use std::path::Path;

use larder_types::codec::{decode, encode};
use larder_types::{BucketName, HomeScope};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{LinkError, Usage};
use crate::files;
use crate::limits::WAITING_MAX;
use crate::registry::read;

/// A kind of orders, at most one of each bucket.
pub trait Waiting: Serialize + DeserializeOwned + PartialEq {
    /// The file's name.
    const FILE: &'static str;
    /// The kind in errors.
    const WHAT: &'static str;

    /// The bucket.
    fn bucket(&self) -> &BucketName;
}

/// A bucket's changes are answered once so many regions have them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The bucket.
    pub bucket: BucketName,
    /// Regions, this one among them.
    pub regions: u8,
}

/// This region alone is to have a bucket, or all are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharingSetting {
    /// The bucket.
    pub bucket: BucketName,
    /// True if it is to be this region's alone.
    pub is_local: bool,
}

/// The place where a bucket's home is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// This region is to be the home.
    Here(HomeScope),
    /// This region, which is the home, is to give it up: the bucket has none then.
    Nowhere,
}

/// An order about a bucket's home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeOrder {
    /// The bucket.
    pub bucket: BucketName,
    /// The order.
    pub order: Order,
}

impl Waiting for Setting {
    const FILE: &'static str = "settings";
    const WHAT: &'static str = "settings of buckets";

    fn bucket(&self) -> &BucketName {
        &self.bucket
    }
}

impl Waiting for SharingSetting {
    const FILE: &'static str = "sharing";
    const WHAT: &'static str = "buckets to share or not";

    fn bucket(&self) -> &BucketName {
        &self.bucket
    }
}

impl Waiting for HomeOrder {
    const FILE: &'static str = "homes";
    const WHAT: &'static str = "orders about homes";

    fn bucket(&self) -> &BucketName {
        &self.bucket
    }
}

/// Orders something of the server, in place of an earlier order of that kind about that bucket.
///
/// # Errors
/// [`Usage::NotRegion`], [`Usage::ManyWait`], and if the file cannot be read or written.
pub fn submit_order<W: Waiting>(dir: &Path, asked: W) -> Result<(), LinkError> {
    if read(dir)?.is_none() {
        return Err(Usage::NotRegion(dir.to_owned()).into());
    }
    change(dir, |all: &mut Vec<W>| {
        all.retain(|it| it.bucket() != asked.bucket());
        all.push(asked);
    })
}

/// The orders of a kind.
///
/// # Errors
/// If the file cannot be read, or is not what was written.
pub fn asked<W: Waiting>(dir: &Path) -> Result<Vec<W>, LinkError> {
    let path = files::path(dir, W::FILE);
    let bytes = match files::read(&path) {
        Err(LinkError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        read => read?,
    };
    decode(W::WHAT, &bytes).map_err(|error| LinkError::Damaged { path, why: error.to_string() })
}

/// Forgets orders that were carried out, or cannot be.
///
/// # Errors
/// If the file cannot be read or written.
pub fn forget<W: Waiting>(dir: &Path, done: &[W]) -> Result<(), LinkError> {
    change(dir, |all: &mut Vec<W>| all.retain(|it| !done.contains(it)))
}

fn change<W: Waiting>(dir: &Path, with: impl FnOnce(&mut Vec<W>)) -> Result<(), LinkError> {
    let _lock = files::lock(dir)?;
    let mut all = asked(dir)?;
    with(&mut all);
    if all.len() > WAITING_MAX {
        return Err(Usage::ManyWait.into());
    }
    files::replace(&files::path(dir, W::FILE), &encode(&all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> BucketName {
        BucketName::new(text).unwrap()
    }

    fn region() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let refused = submit_order(dir.path(), Setting { bucket: name("photos"), regions: 2 });
        assert!(matches!(refused, Err(LinkError::Usage(Usage::NotRegion(_)))));
        let (own, advertise) = ("one".parse().unwrap(), "127.0.0.1:7001".parse().unwrap());
        crate::found(dir.path(), own, "127.0.0.1:7001".to_owned(), advertise).unwrap();
        dir
    }

    #[test]
    fn what_is_asked_for_waits_until_it_is_done() {
        let dir = region();
        let setting = |text: &str, regions| Setting { bucket: name(text), regions };
        assert_eq!(asked::<Setting>(dir.path()).unwrap(), []);
        for (text, regions) in [("photos", 2), ("films", 3), ("photos", 1)] {
            submit_order(dir.path(), setting(text, regions)).unwrap();
        }
        let all = || asked::<Setting>(dir.path()).unwrap();
        assert_eq!(all(), [setting("films", 3), setting("photos", 1)]);
        forget(dir.path(), &[setting("films", 3), setting("photos", 2)]).unwrap();
        assert_eq!(all(), [setting("photos", 1)], "another was asked since");
        assert_eq!(encode(&all()), b"\x01\x01\x06photos\x01");
        assert_eq!(asked::<HomeOrder>(dir.path()).unwrap(), [], "kinds have files of their own");
    }

    #[test]
    fn orders_and_settings_are_written_as_ever() {
        let (bucket, scope) = (name("photos"), HomeScope::Writes);
        let orders = [Order::Here(scope), Order::Nowhere]
            .map(|order| HomeOrder { bucket: bucket.clone(), order });
        assert_eq!(encode(&orders.to_vec()), b"\x01\x02\x06photos\x00\x01\x06photos\x01");
        let local = SharingSetting { bucket, is_local: true };
        assert_eq!(encode(&vec![local]), b"\x01\x01\x06photos\x01");
    }
}
