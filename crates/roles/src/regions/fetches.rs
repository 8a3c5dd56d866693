//! Answers fetches of other regions: opens entries and their bytes a few at a time, and sends them in the order asked for.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, Stream, StreamExt, stream};
use larder_link::{Declined, FetchPart, FetchRequest, FetchSince, FetchSink, Fetched, LinkError};
use larder_objects::{ObjectError, Objects, ReadBody};
use larder_protocol::region::entry::EntryKind;
use larder_protocol::region::{Base, Entry, KeyRows, Name};
use larder_types::{
    Body, BucketName, ObjectEntry, ObjectKey, OpId, PieceEntry, RegionId, Stamp, rows,
};
use tokio::time::timeout;

use super::Shared;
use crate::limits::{
    REGION_AHEAD_BYTES_MAX, REGION_CHANGED_TRIES_MAX, REGION_OPEN_MS, REGION_OPENS_MAX,
};
use crate::planted::{self, Bug};
use crate::proxy::RegionAccess;

/// Sends what a fetch asks for.
pub(super) async fn answer<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    from: RegionId,
    asked: FetchRequest,
    sink: FetchSink,
) -> Result<(), Declined> {
    match asked {
        FetchRequest::Entries(fetch) => send_entries(shared, from, fetch, sink).await,
        FetchRequest::Part(part) => send_part(shared, from, part, sink).await,
    }
}

/// Sends a part of an entry's bytes.
async fn send_part<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    from: RegionId,
    part: FetchPart,
    mut sink: FetchSink,
) -> Result<(), Declined> {
    let name = part.name.clone();
    let FetchPart { at, from: begins_at, bytes_max, .. } = part;
    let wanted = Wanted::Part { at, from: begins_at, bytes_max };
    let Opened { fetched, body, .. } = opened(shared.clone(), from, name, wanted).await;
    let bytes = fetched.bytes;
    let sent = send(&mut sink, fetched, body).await;
    sent.map_err(|error| broken_off(from, &error))?;
    shared.watch.counters().count_part_sent(bytes);
    Ok(())
}

async fn send_entries<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    from: RegionId,
    fetch: FetchSince,
    mut sink: FetchSink,
) -> Result<(), Declined> {
    let bases: BTreeMap<u32, Base> = fetch.bases.into_iter().collect();
    let ahead = |((name, with_bytes), at): ((Name, bool), u32)| {
        let (base, bytes_max) = (bases.get(&at).copied(), REGION_AHEAD_BYTES_MAX);
        let bytes = Wanted::Bytes { base, bytes_max };
        opened(shared.clone(), from, name, if with_bytes { bytes } else { Wanted::Fields })
    };
    let ahead = stream::iter(fetch.names.into_iter().zip(0..)).map(ahead);
    let ahead = ahead.buffered(REGION_OPENS_MAX);
    let mut ahead = Ahead { opening: pin!(ahead), opened: VecDeque::new() };
    loop {
        let next = ahead.next(&mut sink).await.map_err(|error| broken_off(from, &error))?;
        let Some(Opened { mut fetched, mut wanted, mut body, is_large }) = next else {
            return Ok(());
        };
        if let Wanted::Bytes { bytes_max, .. } = &mut wanted
            && is_large
        {
            *bytes_max = u64::MAX;
            // Entries before it do not wait for it.
            sink.flush().await.map_err(|error| broken_off(from, &error))?;
            let opening = opened(shared.clone(), from, fetched.name, wanted);
            Opened { fetched, body, .. } = ahead.beside(opening).await;
        }
        let bytes = fetched.bytes;
        if let Err(error) = ahead.beside(send(&mut sink, fetched, body)).await {
            // Entries before this one are whole.
            let _gone = sink.flush().await;
            return Err(broken_off(from, &error));
        }
        shared.watch.counters().count_entry_sent(bytes);
    }
}

/// The bytes of an entry that a region wants.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// None.
    Fields,
    /// All, or those behind the base that it has, if they are at most so many: others wait for their turn.
    Bytes { base: Option<Base>, bytes_max: u64 },
    /// At most so many from a place on, of this version if one is known.
    Part { at: Option<Stamp>, from: u64, bytes_max: u64 },
}

/// The bytes of an object that are to be opened.
enum Places {
    None,
    Of(Range<u64>),
    /// They are too many.
    Large,
    /// The asking region may have the beginning, and this one does not know.
    LacksBase,
}

/// An entry and its bytes.
struct Found {
    entry: Option<Entry>,
    bytes: u64,
    body: Option<ReadBody>,
    /// True if it has more bytes than were to be opened.
    is_large: bool,
    /// True if the asking region may have the beginning, and this one does not know.
    lacks_base: bool,
}

impl Found {
    /// An entry without its bytes.
    fn bare(entry: Option<Entry>) -> Self {
        Self { entry, bytes: 0, body: None, is_large: false, lacks_base: false }
    }
}

impl<R: RegionAccess> Shared<R> {
    /// The bytes of an object that are to be opened.
    async fn places(
        &self,
        (name, wanted): (&Name, Wanted),
        entry: &Entry,
        version: &ObjectEntry,
    ) -> Result<Places, ObjectError> {
        let size = entry.bytes();
        Ok(match wanted {
            Wanted::Fields => Places::None,
            Wanted::Bytes { base, bytes_max } => {
                match self.end_of_base(name, version, base).await? {
                    None => Places::LacksBase,
                    Some(from) if size - from > bytes_max => Places::Large,
                    Some(from) => Places::Of(from..size),
                }
            }
            Wanted::Part { at, from, bytes_max } => {
                let is_it = at.is_none_or(|asked| asked == entry.at) && from <= size;
                let upto = size.min(from.saturating_add(bytes_max));
                if is_it { Places::Of(from..upto) } else { Places::None }
            }
        })
    }

    /// Reads a name's entry, and opens those of its bytes that are wanted.
    async fn open(&self, name: &Name, wanted: Wanted) -> Result<Found, ObjectError> {
        let (shown, buckets) = (&self.shown, self.shown.buckets());
        // To the other regions it is gone.
        if buckets.local().contains(&name.bucket) || shown.is_deleted(name.bucket) {
            return Ok(Found::bare(None));
        }
        let bucket = buckets.all().get(&name.bucket).cloned().ok_or(ObjectError::NoSuchBucket)?;
        for _ in 0..REGION_CHANGED_TRIES_MAX {
            let mut kept = shown.kept(name.bucket, &name.key).await?;
            if kept == KeyRows::default() {
                // A put of a moment ago may not show yet.
                shown.access().shows(name.bucket, &name.key).await?;
                kept = shown.kept(name.bucket, &name.key).await?;
            }
            let entry = shown.entry_of(name.bucket, &name.key, &kept);
            let (Some(object @ Entry { what: EntryKind::Object(_), .. }), Some(version)) =
                (&entry, &kept.version)
            else {
                return Ok(Found::bare(entry));
            };
            let places = match self.places((name, wanted), object, version).await? {
                Places::None => return Ok(Found::bare(entry)),
                Places::LacksBase => return Ok(Found { lacks_base: true, ..Found::bare(entry) }),
                Places::Large => return Ok(Found { is_large: true, ..Found::bare(entry) }),
                Places::Of(places) => places,
            };
            let bytes = places.end - places.start;
            match self.body(&bucket, &name.key, version.row.op, places).await {
                Ok(Some(body)) => {
                    return Ok(Found { bytes, body: Some(body), ..Found::bare(entry) });
                }
                // Another version has taken its place meanwhile.
                Ok(None) | Err(ObjectError::NoSuchKey | ObjectError::Changed) => {}
                Err(ObjectError::NoSuchBucket) if shown.is_deleted(name.bucket) => {
                    return Ok(Found::bare(None));
                }
                Err(error) => return Err(error),
            }
        }
        Err(ObjectError::SlowDown)
    }

    /// Where a version's bytes go on behind a base out of which it grew by appends; 0 if it did not. `None` if it is not known here, as
    /// appends of another region came as one piece: that region knows.
    async fn end_of_base(
        &self,
        name: &Name,
        version: &ObjectEntry,
        base: Option<Base>,
    ) -> Result<Option<u64>, ObjectError> {
        let (Some(base), Body::Pieces { pieces, .. }) = (base, &version.row.body) else {
            return Ok(Some(0));
        };
        if base.size >= version.row.metax.size {
            return Ok(Some(0));
        }
        let row = rows::piece(name.bucket, *pieces, base.size);
        let pg = self.shown.pg_of(name.bucket, &name.key);
        let value = self.shown.access().row(pg, &row).await?;
        let piece = value.and_then(|value| PieceEntry::decode(&value).ok());
        // A piece from before there were regions has no stamp: all bytes are sent.
        let is_it = piece.is_some_and(|piece| piece.at.qualified_by(self.shown.own()) == base.at);
        Ok(match is_it || planted::has(Bug::TakesAnyBase) {
            true => Some(base.size),
            false => version.origin.is_none().then_some(0),
        })
    }

    /// Opens bytes of a key's version, if this op made it.
    async fn body(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        op: OpId,
        places: Range<u64>,
    ) -> Result<Option<ReadBody>, ObjectError> {
        let opened = self.proxy.open_here(bucket, key).await?;
        if opened.op != op || opened.metax.size < places.end {
            return Ok(None);
        }
        Ok(Some(self.proxy.read(&opened, places).await?))
    }
}

/// Entries of a fetch that are opened before their turn. Opening goes on while an earlier one is sent: what it waits
/// for has a deadline.
struct Ahead<S: Stream> {
    opening: S,
    opened: VecDeque<S::Item>,
}

impl<S: Stream + Unpin> Ahead<S> {
    /// Takes the next entry; if it is not ready, entries gathered before are sent.
    async fn next(&mut self, sink: &mut FetchSink) -> Result<Option<S::Item>, LinkError> {
        match self.opened.pop_front() {
            Some(next) => Ok(Some(next)),
            None => next_of(&mut self.opening, sink).await,
        }
    }

    /// Awaits `doing`, and opens more entries meanwhile.
    async fn beside<T>(&mut self, doing: impl Future<Output = T>) -> T {
        let Self { opening, opened } = self;
        let opens = async {
            while opened.len() < REGION_OPENS_MAX
                && let Some(next) = opening.next().await
            {
                opened.push_back(next);
            }
        };
        let mut doing = pin!(doing);
        tokio::select! {
            biased;
            done = &mut doing => return done,
            () = opens => {}
        }
        doing.await
    }
}

fn broken_off(from: RegionId, error: &LinkError) -> Declined {
    tracing::debug!(%from, %error, "a region's fetch ended early");
    Declined::Busy
}

/// An entry of a fetch, as it is sent.
struct Opened {
    fetched: Fetched,
    wanted: Wanted,
    body: Option<ReadBody>,
    /// True if it is opened only at its turn: its bytes would wait in memory, and might be replaced meanwhile.
    is_large: bool,
}

/// Opens an entry of a fetch. One that cannot be read is withheld: it holds up no other.
async fn opened<R: RegionAccess>(
    shared: Arc<Shared<R>>,
    from: RegionId,
    name: Name,
    wanted: Wanted,
) -> Opened {
    let max_wait = Duration::from_millis(REGION_OPEN_MS);
    let late = || ObjectError::Unavailable { reason: "it is not open in time".to_owned() };
    let found = timeout(max_wait, shared.open(&name, wanted)).await.unwrap_or_else(|_| Err(late()));
    let (found, is_withheld) = match found {
        Ok(found) => {
            let is_withheld = found.lacks_base;
            (found, is_withheld)
        }
        Err(error) => {
            tracing::debug!(%from, key = ?name.key, %error, "an object cannot be read for another region");
            (Found::bare(None), true)
        }
    };
    let Found { entry, bytes, body, is_large, .. } = found;
    Opened { fetched: Fetched { name, entry, bytes, is_withheld }, wanted, body, is_large }
}

async fn send(
    sink: &mut FetchSink,
    fetched: Fetched,
    body: Option<ReadBody>,
) -> Result<(), LinkError> {
    sink.entry(fetched).await?;
    match body {
        None => Ok(()),
        Some(ReadBody::Whole(bytes)) => sink.bytes(bytes).await,
        Some(ReadBody::Stream(mut pieces)) => {
            while let Some(piece) = next_of(&mut pieces, sink).await? {
                let bytes = piece.map_err(|error| LinkError::Unsound(error.to_string()))?;
                sink.bytes(bytes).await?;
            }
            Ok(())
        }
    }
}

/// Takes the next of these; if it is not ready, entries gathered before are sent.
async fn next_of<S: Stream + Unpin>(
    from: &mut S,
    sink: &mut FetchSink,
) -> Result<Option<S::Item>, LinkError> {
    if let Some(next) = from.next().now_or_never() {
        return Ok(next);
    }
    sink.flush().await?;
    Ok(from.next().await)
}

#[cfg(test)]
mod tests;
