//! Lists the keys of all regions, for clients that ask for this (ADR 50): asks each region for its own, and merges them.
//!
//! # Invariants
//!
//! 1. A list has what every region has. If one does not respond, the client gets an error instead of a list.
//! 2. A region answers with its own keys, and asks no other region.
//! 3. A tombstone that one region has sent, or that another has yet to apply, exists until the list has ended:
//!    `tombstones.rs` waits longer than a list may take.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use larder_link::{Declined, Keys, KeysReply, Later, LinkError, Members};
use larder_objects::ObjectError;
use larder_protocol::limits::REGION_LISTED_KEYS_MAX;
use larder_protocol::region::listing::{
    Answering, KeysAnswer, KeysRequest, ListedPage, Merging, PageRequest, ScanStep as Walk,
};
use larder_types::codec::{CodecError, decode};
use larder_types::{
    BucketId, BucketName, BucketRecord, BucketState, ObjectEntry, ObjectKey, RegionId, rows,
};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use super::Shared;
use super::runs::Unreadable;
use crate::blocking;
use crate::limits::{REGION_KEYS_MS, REGION_LIST_MS, REGION_LIST_PLACE_MS};
use crate::planted::{self, Bug};
use crate::proxy::{RegionAccess, Scan, ScanStep};

/// A page of a bucket's keys in all regions.
pub(super) async fn page<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    bucket: &BucketName,
    ask: PageRequest,
) -> Result<ListedPage, ObjectError> {
    let counters = shared.watch.counters();
    let max_wait = Duration::from_millis(REGION_LIST_PLACE_MS);
    let listed = match timeout(max_wait, shared.lists.acquire()).await {
        Ok(Ok(_place)) => merged(shared, bucket, ask).await,
        Ok(Err(_)) | Err(_) => Err(ObjectError::SlowDown),
    };
    match &listed {
        Ok(_) => _ = counters.lists.fetch_add(1, Ordering::Relaxed),
        Err(ObjectError::NoSuchBucket) => {}
        Err(_) => _ = counters.lists_failed.fetch_add(1, Ordering::Relaxed),
    }
    listed
}

async fn merged<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    bucket: &BucketName,
    ask: PageRequest,
) -> Result<ListedPage, ObjectError> {
    let until = Instant::now() + Duration::from_millis(REGION_LIST_MS);
    let members = shared.region_endpoint.members().borrow().clone();
    refuse_absent(shared, &members)?;
    // Others first: their answers are on their way while this one's are read.
    let others = members.live().map(|peer| peer.number);
    let regions: Vec<_> = others.chain([shared.shown.own()]).collect();
    let mut merging = Merging::new(ask, regions.iter().copied());
    loop {
        let asks = merging.step();
        if asks.is_empty() {
            return Ok(merging.finish());
        }
        let asking = asks.into_iter().map(async |(region, ask)| {
            let fetched = fetch_keys(shared, &members, region, (bucket, &ask, &regions));
            (region, timeout_at(until, fetched).await, ask)
        });
        // All are awaited: a call that is dropped would cost its connection.
        let mut late = None;
        for (region, fetched, ask) in join_all(asking).await {
            match fetched {
                Ok(Ok(fetched)) => merging.take(region, &ask, fetched),
                Ok(Err(ListRefused::Late(error))) => late = Some(error),
                Ok(Err(ListRefused::Refused(error))) => return Err(error),
                Err(_elapsed) => {
                    let why = format!("it takes longer than {} s", REGION_LIST_MS / 1000);
                    late = Some(not_listed(&members, region, &why));
                }
            }
        }
        if let Some(error) = late {
            // The known part may be a page: the client goes on behind it.
            return merging.cut().ok_or(error);
        }
    }
}

/// Reason for not telling keys.
enum ListRefused {
    /// It passes by itself.
    Late(ObjectError),
    Refused(ObjectError),
}

/// Refuses a list while a region is known to be away.
fn refuse_absent<R: RegionAccess>(
    shared: &Shared<R>,
    members: &Members,
) -> Result<(), ObjectError> {
    for peer in members.live() {
        if peer.paused {
            return Err(not_listed(members, peer.number, "an operator paused it here"));
        }
        if let Some(why) = shared.watch.away(peer.number) {
            return Err(not_listed(members, peer.number, &why));
        }
    }
    Ok(())
}

/// A region's keys.
async fn fetch_keys<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    members: &Members,
    region: RegionId,
    (bucket, ask, regions): (&BucketName, &KeysRequest, &[RegionId]),
) -> Result<KeysAnswer, ListRefused> {
    let not_listed = |why: &str| not_listed(members, region, why);
    if region == shared.shown.own() {
        let place = shared.listed.clone().acquire_owned().await.ok();
        return match read(shared, place, bucket.clone(), ask.clone()).await {
            Ok(Some(fetched)) => Ok(fetched),
            Ok(None) => Err(ListRefused::Refused(ObjectError::NoSuchBucket)),
            Err(Unreadable::Store(error)) => Err(ListRefused::Late(error)),
            Err(error) => {
                tracing::error!(%error, "the index cannot be read for a list");
                let why = "its index holds a row that cannot be used";
                Err(ListRefused::Refused(not_listed(why)))
            }
        };
    }
    let keys = Keys { bucket: bucket.clone(), ask: ask.clone(), regions: regions.to_vec() };
    match async { shared.link_to(region)?.keys(keys).await }.await {
        Ok(KeysReply::Keys(fetched)) => Ok(fetched),
        Ok(KeysReply::NoBucket) => Ok(KeysAnswer::default()),
        Ok(KeysReply::OtherRegions) => {
            let why = "it knows other regions than this one: try again in some seconds";
            Err(ListRefused::Refused(not_listed(why)))
        }
        Err(_) if shared.region_endpoint.members().borrow().peer(region).is_none() => {
            Err(ListRefused::Refused(not_listed("it was removed meanwhile: try again")))
        }
        Err(LinkError::Later(Later::Busy)) => Err(ListRefused::Late(ObjectError::SlowDown)),
        Err(error @ LinkError::Later(_)) => Err(ListRefused::Late(not_listed(&error.to_string()))),
        Err(LinkError::Unsound(why)) => {
            tracing::warn!(%region, %why, "a region did not send keys for a list");
            let why = format!("{why}. Do all regions run one release?");
            Err(ListRefused::Refused(not_listed(&why)))
        }
        Err(error) => Err(ListRefused::Refused(not_listed(&error.to_string()))),
    }
}

fn not_listed(members: &Members, region: RegionId, why: &str) -> ObjectError {
    let name = members.peer(region).map_or_else(|| region.to_string(), |it| it.name.to_string());
    let reason = format!("a list of all regions needs each of them. Region {name}: {why}");
    ObjectError::Unavailable { reason }
}

/// Answers another region.
pub(super) async fn send_keys<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    Keys { bucket, ask, regions }: Keys,
) -> Result<KeysReply, Declined> {
    if shared.region_endpoint.members().borrow().live().any(|peer| !regions.contains(&peer.number))
    {
        return Ok(KeysReply::OtherRegions);
    }
    let is_closed = |record: &BucketRecord| record.state == BucketState::Deleting;
    if shared.shown.access().bucket(&bucket, is_closed) == Some(true) {
        // The content of this bucket is not that of one that is made anew.
        return Err(Declined::NotReady);
    }
    let place = shared.listed.clone().try_acquire_owned();
    let Ok(place) = place else { return Err(Declined::Busy) };
    match read(shared, Some(place), bucket, ask).await {
        Ok(fetched) => Ok(fetched.map_or(KeysReply::NoBucket, KeysReply::Keys)),
        Err(error) => {
            tracing::warn!(%error, "keys for another region's list cannot be sent now");
            Err(Declined::NotReady)
        }
    }
}

/// Reads this region's keys of a bucket on a thread that may wait for the disk; `None` if it shares no
/// bucket of this name. The place is given back with the thread, also if its caller has gone.
async fn read<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    place: Option<OwnedSemaphorePermit>,
    bucket: BucketName,
    ask: KeysRequest,
) -> Result<Option<KeysAnswer>, Unreadable> {
    let (shared, runtime) = (shared.clone(), Handle::current());
    let late = |why: &str| ObjectError::Unavailable { reason: why.to_owned() };
    let reading = blocking::run(move || {
        let _place = place;
        let max_wait = Duration::from_millis(REGION_KEYS_MS);
        let reading = blocking::wait(&runtime, timeout(max_wait, keys_of(&shared, &bucket, &ask)));
        reading.unwrap_or_else(|_elapsed| Err(late("what it has taken does not show yet").into()))
    });
    let gone = |_panicked| Err(late("it does not serve any more").into());
    reading.await.unwrap_or_else(gone)
}

async fn keys_of<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    bucket: &BucketName,
    ask: &KeysRequest,
) -> Result<Option<KeysAnswer>, Unreadable> {
    let look = |record: &BucketRecord| (!record.is_local()).then_some(record.id);
    let Some(id) = shared.shown.access().bucket(bucket, look).flatten() else {
        return Ok(None);
    };
    let mut answering = Answering::new(ask, shared.shown.own());
    // Once the first walk began, all that was taken before shows to the second one, too.
    walk(shared, (b'V', id), ask, true, |key, value| {
        Ok(answering.version(key, ObjectEntry::read(value)?))
    })
    .await?;
    if planted::has(Bug::ListsNoTombstones) {
        return Ok(Some(answering.finish()));
    }
    walk(shared, (b'T', id), ask, false, |key, value| {
        Ok(answering.tombstone(key, &decode("tombstone", value)?))
    })
    .await?;
    Ok(Some(answering.finish()))
}

/// Walks over a table's rows of null versions, from the place that is asked for.
async fn walk<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    (table, bucket): (u8, BucketId),
    ask: &KeysRequest,
    settle: bool,
    mut visit: impl FnMut(ObjectKey, &[u8]) -> Result<Walk, CodecError> + Send,
) -> Result<(), Unreadable> {
    let row_at = |place: &[u8]| rows::key_prefix(table, bucket, place);
    let to = rows::prefix_end(&row_at(ask.selection.prefix.as_bytes()));
    let mut failed = None;
    let scan = Scan {
        pg: None,
        settle,
        from: row_at(&ask.from),
        to: to.as_deref(),
        wanted: if table == b'V' { ask.keys_max } else { REGION_LISTED_KEYS_MAX } as usize + 1,
    };
    let visit = |row: &[u8], value: &[u8]| {
        let Some((_, key, slot)) = rows::parse_version(row) else {
            failed = Some(Unreadable::Form(row.escape_ascii().to_string()));
            return ScanStep::Stop;
        };
        if !slot.is_unversioned() {
            return ScanStep::Next;
        }
        match visit(key, value) {
            Ok(Walk::Next) => ScanStep::Next,
            Ok(Walk::Past(place)) => ScanStep::Seek(row_at(&place)),
            Ok(Walk::Stop) => ScanStep::Stop,
            Err(error) => {
                failed = Some(error.into());
                ScanStep::Stop
            }
        }
    };
    shared.shown.access().scan(scan, visit).await?;
    failed.map_or(Ok(()), Err)
}
