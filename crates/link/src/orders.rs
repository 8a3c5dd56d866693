//! Orders of operators about homes of buckets, which the running server has not carried out yet: DIR/region/homes.
//!
//! They stand in the gateway's directory, of a single node and of a cluster: only the gateway asks other regions.

use std::io::ErrorKind;
use std::path::Path;

use larder_types::codec::{decode, encode};
use larder_types::{BucketName, HomeScope};
use serde::{Deserialize, Serialize};

use crate::error::{LinkError, Usage};
use crate::files;
use crate::limits::SETTINGS_MAX;
use crate::registry::read;

const ORDERS: &str = "homes";

/// The place where a bucket's home is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// This region is to be the home.
    Here(HomeScope),
    /// This region, which is the home, is to give it up: the bucket has none then.
    Nowhere,
}

/// An order about a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeOrder {
    /// The bucket.
    pub bucket: BucketName,
    /// The order.
    pub order: Order,
}

/// Orders something of the server, in place of an earlier order about that bucket.
///
/// # Errors
/// [`Usage::NotRegion`], [`Usage::ManySettings`], and if the file cannot be read or written.
pub fn order(dir: &Path, ordered: HomeOrder) -> Result<(), LinkError> {
    if read(dir)?.is_none() {
        return Err(Usage::NotRegion(dir.to_owned()).into());
    }
    change(dir, |orders| {
        orders.retain(|it| it.bucket != ordered.bucket);
        orders.push(ordered);
    })
}

/// The orders.
///
/// # Errors
/// If the file cannot be read, or is not what was written.
pub fn orders(dir: &Path) -> Result<Vec<HomeOrder>, LinkError> {
    let path = files::path(dir, ORDERS);
    let bytes = match files::read(&path) {
        Err(LinkError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        read => read?,
    };
    decode("orders about homes", &bytes)
        .map_err(|error| LinkError::Damaged { path, why: error.to_string() })
}

/// Forgets orders that were carried out, or cannot be.
///
/// # Errors
/// If the file cannot be read or written.
pub fn forget_orders(dir: &Path, over: &[HomeOrder]) -> Result<(), LinkError> {
    change(dir, |orders| orders.retain(|it| !over.contains(it)))
}

fn change(dir: &Path, with: impl FnOnce(&mut Vec<HomeOrder>)) -> Result<(), LinkError> {
    let _lock = files::lock(dir)?;
    let mut all = orders(dir)?;
    with(&mut all);
    if all.len() > SETTINGS_MAX {
        return Err(Usage::ManySettings.into());
    }
    files::replace(&files::path(dir, ORDERS), &encode(&all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_waits_until_it_is_carried_out() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, order| HomeOrder { bucket: BucketName::new(name).unwrap(), order };
        let here = Order::Here(HomeScope::Writes);
        let refused = order(dir.path(), of("photos", here));
        assert!(matches!(refused, Err(LinkError::Usage(Usage::NotRegion(_)))));
        let address = "127.0.0.1:7001";
        let (name, advertise) = ("one".parse().unwrap(), address.parse().unwrap());
        crate::found(dir.path(), name, address.to_owned(), advertise).unwrap();
        assert_eq!(orders(dir.path()).unwrap(), []);
        for (name, ordered) in [("photos", here), ("films", here), ("photos", Order::Nowhere)] {
            order(dir.path(), of(name, ordered)).unwrap();
        }
        forget_orders(dir.path(), &[of("films", here), of("photos", here)]).unwrap();
        let left = orders(dir.path()).unwrap();
        assert_eq!(left, [of("photos", Order::Nowhere)], "another was ordered since");
        order(dir.path(), of("films", here)).unwrap();
        let bytes = b"\x01\x02\x06photos\x01\x05films\x00\x01";
        assert_eq!(encode(&orders(dir.path()).unwrap()), bytes);
    }
}
