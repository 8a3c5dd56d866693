//! The proxy's interface to other regions, which the regions' driver implements.

use bytes::Bytes;
use futures::future::BoxFuture;
use larder_link::Change;
use larder_objects::ObjectError;
use larder_protocol::region::listing::{ListedPage, PageRequest};
use larder_types::{BucketId, BucketName, BucketRecord, Epoch, ObjectKey, RegionId};

use super::home_change::HomeChange;
use crate::wire::{RemotePart, RemoteVersion};

/// The result of a look for an object that was not here.
#[derive(Debug)]
pub enum RegionLookup {
    /// It is here now.
    Here,
    /// Other regions have it, and its bytes are read from there: it is large, and comes here by itself.
    There(Box<RemoteVersion>),
    /// No region that answers has it.
    Nowhere,
}

/// The other regions, which may have objects that this store lacks.
pub trait OtherRegions: Send + Sync + 'static {
    /// Returns true if the other regions have removed this one, as far as it has heard.
    fn is_removed(&self) -> bool;

    /// Looks for an object that is not here.
    ///
    /// # Errors
    /// If it is elsewhere, and cannot be had now.
    fn find_elsewhere<'a>(
        &'a self,
        bucket: &'a BucketName,
        key: &'a ObjectKey,
    ) -> BoxFuture<'a, Result<RegionLookup, ObjectError>>;

    /// Reads a part of a large object where it is.
    ///
    /// # Errors
    /// [`ObjectError::Changed`] if it is replaced by now; otherwise that no region gives it.
    fn part(&self, part: RemotePart) -> BoxFuture<'_, Result<Bytes, ObjectError>>;

    /// Deletes a bucket that is marked here, once all regions have closed it.
    ///
    /// # Errors
    /// If one of them has objects in it, or does not answer: then it is open again.
    fn delete_bucket(&self, marked: BucketRecord) -> BoxFuture<'static, Result<(), ObjectError>>;

    /// The end of the deletion of a bucket that is marked here, or was a moment ago; `None` if it is not known.
    fn deletion_of(
        &self,
        marked: (BucketId, BucketName, Epoch),
    ) -> BoxFuture<'_, Option<Result<(), ObjectError>>>;

    /// Has a region make a client's change in a bucket whose home it is; of a put returns its clock.
    ///
    /// # Errors
    /// That region's reason, or that it does not answer.
    fn change(
        &self,
        home: RegionId,
        change: Change,
    ) -> BoxFuture<'_, Result<HomeChange, ObjectError>>;

    /// Lists a page of a bucket's keys in all regions.
    ///
    /// # Errors
    /// If a region does not answer.
    fn list<'a>(
        &'a self,
        bucket: &'a BucketName,
        ask: PageRequest,
    ) -> BoxFuture<'a, Result<ListedPage, ObjectError>>;
}
