//! Reads parts of versions of many bytes in the regions that have them, for clients that do not wait until they have come.
//!
//! # Invariants
//!
//! 1. All bytes are of the version that was asked for.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use larder_link::{FetchPart, Fetched, Link, LinkError};
use larder_objects::ObjectError;
use larder_types::RegionId;
use tokio::time::timeout;

use super::Shared;
use crate::limits::REGION_MISS_COMING_MS;
use crate::proxy::RegionAccess;
use crate::wire::RemotePart;

fn unavailable(why: &str) -> ObjectError {
    let reason =
        format!("the object is in another region, and cannot be had from there now: {why}");
    ObjectError::Unavailable { reason }
}

/// Reads a part into memory of its own, from the first of its regions that gives it: those that were reached last come first.
///
/// # Errors
/// [`ObjectError::Changed`] if one of them has another version by now; otherwise the reason of the last.
pub(super) async fn part<R: RegionAccess>(
    shared: &Shared<R>,
    part: RemotePart,
) -> Result<Bytes, ObjectError> {
    let members = shared.region_endpoint.members().borrow().clone();
    let is_asked = |region: &RegionId| members.peer(*region).is_some_and(|peer| !peer.paused);
    let mut regions: Vec<_> = part.regions.iter().copied().filter(is_asked).collect();
    regions.sort_by_key(|region| !shared.watch.is_reached(*region));
    let mut failed = unavailable("no region that has it is asked");
    for region in regions {
        let Ok(Some(link)) = shared.region_endpoint.link_to(region) else { continue };
        match part_of(shared, &link, &part).await {
            Ok(bytes) => return Ok(bytes),
            Err(_) if failed == ObjectError::Changed => {}
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Reads a part in a region; checks that it is of the version still.
async fn part_of<R: RegionAccess>(
    shared: &Shared<R>,
    link: &Link,
    part: &RemotePart,
) -> Result<Bytes, ObjectError> {
    let there = shared.names.there(link.number(), &part.name);
    let there = there.ok_or_else(|| unavailable("that region's buckets are not known yet"))?;
    let max_wait = Duration::from_millis(REGION_MISS_COMING_MS);
    let place = timeout(max_wait, link.place_for_read()).await;
    let _place = place.ok().flatten().ok_or(ObjectError::SlowDown)?;
    let &RemotePart { at, from, len, .. } = part;
    let asked = FetchPart { name: there, at: Some(at), from, bytes_max: len };
    let reading = async {
        let mut stream = link.fetch_part(asked).await?;
        let first = stream.next().await?;
        let mut read = BytesMut::with_capacity(len as usize);
        while let Some(piece) = stream.bytes().await? {
            read.extend_from_slice(&piece);
        }
        // The connection is used again once the answer has ended.
        let _ended = stream.next().await?;
        Ok((first, read.freeze()))
    };
    let read = reading.await.map_err(|error: LinkError| unavailable(&error.to_string()));
    let (first, read) = read?;
    match first {
        Some(Fetched { is_withheld: true, .. }) => Err(unavailable("that region cannot read it")),
        Some(Fetched { entry: Some(entry), bytes, .. }) if entry.at == at && bytes == len => {
            Ok(read)
        }
        _ => Err(ObjectError::Changed),
    }
}
