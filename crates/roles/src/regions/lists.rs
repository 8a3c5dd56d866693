//! Lists the keys of all regions, for clients that ask for this (ADR 50): asks each region for its own, and merges them.
//!
//! # Invariants
//!
//! 1. A list has what every region has. If one does not answer, the client hears of it instead of a list.
//! 2. A region that is asked tells what it has itself, and asks nobody.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::try_join_all;
use larder_link::{Keys, LinkError, Members};
use larder_objects::ObjectError;
use larder_protocol::region::listing::{
    Answering, KeysAnswer, KeysAsk, ListedPage, Merging, Onward as Walk, PageAsk,
};
use larder_types::codec::{CodecError, decode};
use larder_types::{BucketId, BucketName, BucketRecord, ObjectEntry, ObjectKey, RegionId, rows};
use tokio::time::{Instant, timeout, timeout_at};

use super::Shared;
use super::puller::link_to;
use super::shown::Unreadable;
use crate::limits::{REGION_LIST_MS, REGION_LIST_PLACE_MS};
use crate::proxy::{Onward, RegionReach, Scan};

/// A page of a bucket's keys in all regions.
pub(super) async fn page<R: RegionReach>(
    shared: &Arc<Shared<R>>,
    bucket: &BucketName,
    ask: PageAsk,
) -> Result<ListedPage, ObjectError> {
    let counters = shared.watch.counters();
    let patience = Duration::from_millis(REGION_LIST_PLACE_MS);
    let Ok(Ok(_place)) = timeout(patience, shared.lists.acquire()).await else {
        return Err(ObjectError::SlowDown);
    };
    let listed = merged(shared, bucket, ask).await;
    let count = if listed.is_ok() { &counters.lists } else { &counters.lists_failed };
    count.fetch_add(1, Ordering::Relaxed);
    listed
}

async fn merged<R: RegionReach>(
    shared: &Arc<Shared<R>>,
    bucket: &BucketName,
    ask: PageAsk,
) -> Result<ListedPage, ObjectError> {
    let until = Instant::now() + Duration::from_millis(REGION_LIST_MS);
    let members = shared.site.members().borrow().clone();
    let others = members.live().map(|peer| peer.number);
    let mut merging = Merging::new(ask, [shared.shown.own()].into_iter().chain(others));
    loop {
        let asks = merging.step();
        if asks.is_empty() {
            return Ok(merging.finish());
        }
        let asking = asks.into_iter().map(async |(region, ask)| {
            let told = told_by(shared, &members, region, (bucket, &ask));
            let told = timeout_at(until, told).await.unwrap_or_else(|_elapsed| {
                let why = format!("it takes longer than {} s", REGION_LIST_MS / 1000);
                Err(not_listed(&members, region, &why))
            });
            Ok::<_, ObjectError>((region, ask, told?))
        });
        for (region, ask, told) in try_join_all(asking).await? {
            merging.take(region, &ask, told);
        }
    }
}

/// A region's keys.
async fn told_by<R: RegionReach>(
    shared: &Arc<Shared<R>>,
    members: &Members,
    region: RegionId,
    (bucket, ask): (&BucketName, &KeysAsk),
) -> Result<KeysAnswer, ObjectError> {
    if region == shared.shown.own() {
        return match keys_of(shared, bucket, ask).await {
            Ok(told) => told.ok_or(ObjectError::NoSuchBucket),
            Err(Unreadable::Store(error)) => Err(error),
            Err(error) => {
                tracing::error!(%error, "the index cannot be read for a list");
                Err(not_listed(members, region, "its index holds a row that cannot be used"))
            }
        };
    }
    if members.peer(region).is_some_and(|peer| peer.paused) {
        return Err(not_listed(members, region, "an operator paused it here"));
    }
    let keys = Keys { bucket: bucket.clone(), ask: ask.clone() };
    let told = async { link_to(shared, region)?.keys(keys).await }.await;
    match told {
        // One that does not share it has none of its keys.
        Ok(told) => Ok(told.unwrap_or_default()),
        Err(LinkError::Unsound(why)) => {
            let why = format!("is it of an earlier release? It says what no region says: {why}");
            Err(not_listed(members, region, &why))
        }
        Err(error) => Err(not_listed(members, region, &error.to_string())),
    }
}

fn not_listed(members: &Members, region: RegionId, why: &str) -> ObjectError {
    let name = members.peer(region).map_or_else(|| region.to_string(), |it| it.name.to_string());
    let reason = format!("a list of all regions needs each of them. Region {name}: {why}");
    ObjectError::Unavailable { reason }
}

/// This region's keys of a bucket; `None` if it shares no bucket of this name.
pub(super) async fn keys_of<R: RegionReach>(
    shared: &Arc<Shared<R>>,
    bucket: &BucketName,
    ask: &KeysAsk,
) -> Result<Option<KeysAnswer>, Unreadable> {
    let look = |record: &BucketRecord| (!record.is_local()).then_some(record.id);
    let Some(id) = shared.shown.reach().bucket(bucket, look).flatten() else {
        return Ok(None);
    };
    let mut answering = Answering::new(ask);
    // Once the first walk began, all that was taken before shows to the second one, too.
    walk(shared, (b'V', id), ask, true, |key, value| {
        Ok(answering.version(key, ObjectEntry::read(value)?))
    })
    .await?;
    walk(shared, (b'T', id), ask, false, |key, value| {
        Ok(answering.tombstone(key, decode("tombstone", value)?))
    })
    .await?;
    let own = shared.shown.own();
    Ok(Some(answering.finish(own, |key| shared.shown.pg_of(id, key))))
}

/// Walks over a table's rows of null versions, from the place that is asked for.
async fn walk<R: RegionReach>(
    shared: &Arc<Shared<R>>,
    (table, bucket): (u8, BucketId),
    ask: &KeysAsk,
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
        wanted: ask.keys_max as usize + 1,
    };
    let visit = |row: &[u8], value: &[u8]| {
        let Some((_, key, slot)) = rows::parse_version(row) else {
            failed = Some(Unreadable::Form(row.escape_ascii().to_string()));
            return Onward::Stop;
        };
        if !slot.is_unversioned() {
            return Onward::Next;
        }
        match visit(key, value) {
            Ok(Walk::Next) => Onward::Next,
            Ok(Walk::Past(place)) => Onward::Seek(row_at(&place)),
            Ok(Walk::Stop) => Onward::Stop,
            Err(error) => {
                failed = Some(error.into());
                Onward::Stop
            }
        }
    };
    shared.shown.reach().scan(scan, visit).await?;
    failed.map_or(Ok(()), Err)
}
