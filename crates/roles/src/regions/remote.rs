//! Reads objects of many bytes where they are, until they have come.
//!
//! # Invariants
//!
//! 1. A client that takes its time holds no connection to the other region: what comes with a request is in memory before any of it is
//!    passed on, at most [`REGION_REMOTE_BYTES_MAX`] for each of [`REGION_REMOTES_MAX`] clients.
//! 2. All bytes are of one version.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use larder_link::{FetchPart, Fetched, Link, LinkError};
use larder_objects::{ObjectError, Opened, ReadBody, Remote};
use larder_protocol::region::entry::What;
use larder_protocol::region::{Entry, Name};
use larder_types::{Body, Stamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Shared;
use super::taking;
use crate::limits::{REGION_MISS_COMING_MS, REGION_REMOTE_BYTES_MAX};
use crate::proxy::RegionReach;

/// A version that another region has.
#[derive(Debug, Clone)]
struct There {
    link: Arc<Link>,
    /// As that region numbers its buckets.
    name: Name,
    at: Stamp,
    places: Arc<Semaphore>,
}

/// An entry of another region, as an object whose bytes are read from there.
///
/// # Errors
/// If the bucket is not known there any more, or no region says what that one does.
pub(super) fn opened<R: RegionReach>(
    shared: &Shared<R>,
    places: &Arc<Semaphore>,
    (link, entry): (Arc<Link>, Entry),
    name: &Name,
) -> Result<Opened, ObjectError> {
    let there = shared.names.there(link.number(), name).ok_or(ObjectError::NoSuchKey)?;
    if !taking::is_to_be_taken(shared, link.number(), name, &entry) {
        let reason = "the object is in another region, and cannot be taken from there now";
        return Err(ObjectError::Unavailable { reason: reason.to_owned() });
    }
    let What::Object(object) = entry.what else { return Err(ObjectError::NoSuchKey) };
    let remote = There { link, name: there, at: entry.at, places: places.clone() };
    Ok(Opened {
        bucket: name.bucket,
        key: name.key.clone(),
        op: entry.origin.op,
        metax: object.metax,
        body: Body::Inline(Bytes::new()),
        told_parts: object.parts,
        remote: Some(Arc::new(remote)),
    })
}

fn away(error: &LinkError) -> ObjectError {
    ObjectError::Unavailable {
        reason: format!(
            "the object is in another region, and cannot be had from there now: {error}"
        ),
    }
}

impl There {
    /// Reads bytes into memory; checks that they are of the version still.
    async fn part(&self, range: Range<u64>) -> Result<Vec<Bytes>, ObjectError> {
        let patience = Duration::from_millis(REGION_MISS_COMING_MS);
        let place = timeout(patience, self.link.place_for_read()).await;
        let _place = place.ok().flatten().ok_or(ObjectError::SlowDown)?;
        let len = range.end - range.start;
        let (name, at, from) = (self.name.clone(), Some(self.at), range.start);
        let part = FetchPart { name, at, from, bytes_max: len };
        let reading = async {
            let mut stream = self.link.fetch_part(part).await?;
            let first = stream.next().await?;
            let mut pieces = Vec::new();
            while let Some(piece) = stream.bytes().await? {
                pieces.push(piece);
            }
            // The connection is used again once the answer has ended.
            let _ended = stream.next().await?;
            Ok((first, pieces))
        };
        let (first, pieces) = reading.await.map_err(|error| away(&error))?;
        match first {
            Some(Fetched { is_withheld: true, .. }) => Err(ObjectError::Unavailable {
                reason: "the object is in another region, which cannot read it now".to_owned(),
            }),
            Some(Fetched { entry: Some(entry), bytes, .. })
                if entry.at == self.at && bytes == len =>
            {
                Ok(pieces)
            }
            _ => Err(ObjectError::Changed),
        }
    }

    /// Reads the first bytes of a range, and takes them off it.
    async fn next(&self, range: &mut Range<u64>) -> Result<Vec<Bytes>, ObjectError> {
        let part = range.start..range.end.min(range.start + REGION_REMOTE_BYTES_MAX);
        range.start = part.end;
        let there = self.clone();
        // A client that leaves does not end it: it is over soon.
        let reading = tokio::spawn(async move { there.part(part).await });
        reading.await.unwrap_or_else(|_panicked| Err(ObjectError::Changed))
    }
}

/// A read that is under way.
struct Reading {
    there: There,
    rest: Range<u64>,
    _place: OwnedSemaphorePermit,
}

impl Remote for There {
    fn read(&self, mut range: Range<u64>) -> BoxFuture<'_, Result<ReadBody, ObjectError>> {
        Box::pin(async move {
            if range.start >= range.end {
                return Ok(ReadBody::Whole(Bytes::new()));
            }
            let place = self.places.clone().try_acquire_owned();
            let place = place.map_err(|_all_taken| ObjectError::SlowDown)?;
            // Whatever is wrong with it is said before the answer begins.
            let first = self.next(&mut range).await?;
            let reading = Reading { there: self.clone(), rest: range, _place: place };
            let rest = stream::unfold(Some(reading), async |reading| {
                let mut reading = reading.filter(|reading| !reading.rest.is_empty())?;
                match reading.there.next(&mut reading.rest).await {
                    Ok(pieces) => Some((Ok(pieces), Some(reading))),
                    Err(error) => Some((Err(error), None)),
                }
            });
            let parts = stream::once(async move { Ok(first) }).chain(rest);
            let pieces = parts.flat_map(|part| {
                stream::iter(match part {
                    Ok(pieces) => pieces.into_iter().map(Ok).collect::<Vec<_>>(),
                    Err(error) => vec![Err(error)],
                })
            });
            Ok(ReadBody::Stream(Box::pin(pieces)))
        })
    }
}
