//! Versions of many bytes, which come in parts. Each part is a request of its own, so that others pass it,
//! and one that breaks off is gone on with where it did.
//!
//! # Invariants
//!
//! 1. What has come is of one version. Once a region gives a newer one, it is freed. An older one is begun with in its place only if
//!    nothing more of it has come for [`REGION_PARTIAL_NEWER_MS`].
//! 2. Nothing is added to what was to be all: its end may be in effect.
//! 3. What has come of a version that nobody wants any more is freed after [`REGION_PARTIAL_MS`], and of at most
//!    [`REGION_PARTIALS_MAX`] versions something is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use larder_link::{FetchPart, FetchStream, Fetched, Link, LinkError};
use larder_objects::ObjectError;
use larder_protocol::region::entry::{EntryKind, Object};
use larder_protocol::region::pull::{self, Event};
use larder_protocol::region::{Entry, Name, Need};
use larder_types::limits::{CHUNK_BYTES_MAX, OBJECT_BYTES_MAX};
use larder_types::{Amendments, BucketName, RegionId, Stamp};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::Shared;
use super::taking::{self, FetchResult};
use crate::limits::{
    REGION_BUSY_MS, REGION_BUSY_TRIES_MAX, REGION_FETCH_BACKOFF_MS, REGION_PARTIAL_ENDS_MAX,
    REGION_PARTIAL_MS, REGION_PARTIAL_NEWER_MS, REGION_PARTIALS_MAX, REGION_TWICE_MS,
    REGION_WHOLE_BYTES_MAX,
};
use crate::proxy::{BucketSnapshot, ChangeOutcome, RegionAccess, RemoteParts};

/// A version of which some parts are here.
struct Partial<R: RegionAccess> {
    at: Stamp,
    /// Its bytes, as the first region that gave a part of it said.
    size: u64,
    parts: RemoteParts<R>,
    /// The region that gave the last part.
    from: RegionId,
    /// Tries to make all of it the key's version that failed.
    ends: u8,
    /// Time at which some of it came last, or it was begun.
    since: Instant,
}

/// See the module's head.
pub(super) struct Partials<R: RegionAccess>(Mutex<BTreeMap<Name, Partial<R>>>);

impl<R: RegionAccess> Default for Partials<R> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<R: RegionAccess> Partials<R> {
    /// Bytes that are here of versions that are not here as a whole, by the region that gave some last.
    pub(super) fn bytes(&self) -> BTreeMap<RegionId, u64> {
        let mut bytes = BTreeMap::new();
        for partial in self.0.lock().values() {
            *bytes.entry(partial.from).or_default() += partial.parts.bytes();
        }
        bytes
    }

    fn take(&self, name: &Name) -> Option<Partial<R>> {
        self.0.lock().remove(name)
    }

    fn keep(&self, name: Name, partial: Partial<R>) {
        let mut kept = self.0.lock();
        while kept.len() >= REGION_PARTIALS_MAX {
            let oldest = kept.iter().min_by_key(|(_, partial)| partial.since);
            let oldest = oldest.map(|(name, _)| name.clone()).expect("there are many");
            kept.remove(&oldest);
        }
        kept.insert(name, partial);
    }

    /// Returns true if something has come of a version of it.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.0.lock().contains_key(name)
    }

    /// Frees what has come of a key's version if that is none any more, as this one is here.
    pub(super) fn forget_older(&self, name: &Name, than: Stamp) {
        let mut kept = self.0.lock();
        if kept.get(name).is_some_and(|partial| partial.at <= than) {
            kept.remove(name);
        }
    }

    /// Frees what nobody wants any more.
    pub(super) fn forget(&self, is_wanted: impl Fn(&Name) -> bool) {
        let max_wait = Duration::from_millis(REGION_PARTIAL_MS);
        let is_old = |partial: &Partial<R>| partial.since.elapsed() >= max_wait;
        self.0.lock().retain(|name, partial| !is_old(partial) || is_wanted(name));
    }

    /// Frees all.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

/// The result of a fetch of a part.
enum PieceOutcome {
    /// More is to come.
    Part,
    /// The version is here, or something that wins over it.
    All { entry: Box<Entry>, is_beaten: bool },
    /// The answering region no longer has it.
    Gone,
    /// It cannot be taken now.
    Untaken,
    /// The answering region cannot read it now.
    Withheld,
    /// It has an older version than the one of which something has come.
    Older,
    /// It is small by now, or no object, or of a bucket that is not here.
    Whole,
}

/// A fetch of a part.
struct PartFetch<'a, R: RegionAccess> {
    shared: &'a Arc<Shared<R>>,
    link: &'a Link,
    name: &'a Name,
    bucket: (&'a BucketName, BucketSnapshot),
    bytes_max: u64,
    received_bytes: u64,
}

/// Fetches the next part of an entry, and stores it.
pub(super) async fn fetch<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    link: Arc<Link>,
    request: u64,
    (name, bytes_max): (Name, u64),
) -> FetchResult {
    let mut fetched = pull::Fetched::default();
    let mut beaten = BTreeSet::new();
    if shared.in_flight.has(&name) {
        // A machine before this one has asked for it, or a client has: it may be here then.
        let max_wait = Duration::from_millis(REGION_TWICE_MS);
        match timeout(max_wait, shared.in_flight.ended(&name)).await {
            Ok(()) => fetched.changed.push(name),
            Err(_late) => fetched.untaken.push(name),
        }
        return FetchResult { event: Event::Fetched { request, fetched }, beaten };
    }
    let coming = shared.in_flight.begin(vec![name.clone()]);
    let region = link.number();
    let whole = u64::from(CHUNK_BYTES_MAX);
    let bytes_max = (bytes_max / whole).max(1) * whole;
    let came = match shared.find_bucket(name.bucket) {
        Some((bucket, known)) => {
            let bucket = (&bucket, known);
            let (link, received_bytes) = (&*link, 0);
            let mut part =
                PartFetch { shared, link, name: &name, bucket, bytes_max, received_bytes };
            let came = part.fetch().await;
            fetched.received_bytes = part.received_bytes;
            came
        }
        None => Ok(PieceOutcome::Whole),
    };
    match came {
        // One of an earlier release gives no parts.
        Ok(PieceOutcome::Whole) | Err(LinkError::Unsound(_)) if fetched.received_bytes == 0 => {
            drop(coming);
            return taking::fetch(shared, link, request, vec![(name, Need::Bytes(None))]).await;
        }
        Ok(PieceOutcome::Part | PieceOutcome::Whole) => shared.watch.answered(region),
        Ok(PieceOutcome::All { entry, is_beaten }) => {
            shared.watch.answered(region);
            if is_beaten {
                beaten.insert(name.clone());
            }
            fetched.entries.push((name, Some(*entry)));
        }
        Ok(PieceOutcome::Gone) => fetched.entries.push((name, None)),
        Ok(PieceOutcome::Untaken) => fetched.untaken.push(name),
        Ok(PieceOutcome::Older) => fetched.withheld.push(name),
        Ok(PieceOutcome::Withheld) => {
            shared.watch.withheld(region, &name);
            fetched.withheld.push(name);
        }
        Err(error) => {
            shared.watch.unanswered(region, &error);
            // One that breaks before a chunk has come might do so for ever: others are asked for it, and for others.
            if fetched.received_bytes > 0 && fetched.received_bytes < whole {
                fetched.withheld.push(name);
            }
            sleep(Duration::from_millis(REGION_FETCH_BACKOFF_MS)).await;
        }
    }
    FetchResult { event: Event::Fetched { request, fetched }, beaten }
}

impl<R: RegionAccess> PartFetch<'_, R> {
    async fn fetch(&mut self) -> Result<PieceOutcome, LinkError> {
        let (shared, region) = (self.shared, self.link.number());
        match shared.proxy.admits_data() {
            Ok(()) | Err(ObjectError::SlowDown) => {}
            Err(error) => {
                // Its parts take room that others need.
                if error == ObjectError::Full {
                    drop(shared.partials.take(self.name));
                }
                return Ok(self.cannot_take(&error));
            }
        }
        let Some(there) = shared.names.there(region, self.name) else {
            return Ok(PieceOutcome::Part);
        };
        let kept = shared.partials.take(self.name);
        let kept = kept.filter(|partial| shared.proxy.keeps(&partial.parts));
        let (at, from) = match &kept {
            Some(partial) => (Some(partial.at), partial.parts.bytes()),
            None => (None, 0),
        };
        let asked = FetchPart { name: there, at, from, bytes_max: self.bytes_max };
        let began = async {
            let mut stream = self.link.fetch_part(asked).await?;
            let fetched = stream.next().await?;
            Ok((stream, fetched.ok_or_else(|| LinkError::Unsound("no entry".to_owned()))?))
        };
        match began.await {
            Ok((mut stream, fetched)) => {
                let came = self.take(kept, &mut stream, fetched).await;
                self.received_bytes = stream.received_bytes();
                shared.watch.count_received(region, self.received_bytes);
                // The connection is used again once the answer has ended. One of which not all is wanted is closed.
                if matches!(came, Ok(PieceOutcome::Part | PieceOutcome::All { .. })) {
                    let _ended = stream.next().await;
                }
                came
            }
            Err(error) => {
                self.keep(kept);
                Err(error)
            }
        }
    }

    fn keep(&self, partial: Option<Partial<R>>) {
        if let Some(partial) = partial {
            self.shared.partials.keep(self.name.clone(), partial);
        }
    }

    /// Takes the answer: goes on with what has come of its version, or begins with it if it is newer.
    async fn take(
        &self,
        kept: Option<Partial<R>>,
        stream: &mut FetchStream,
        Fetched { entry, bytes, is_withheld, .. }: Fetched,
    ) -> Result<PieceOutcome, LinkError> {
        let (shared, region) = (self.shared, self.link.number());
        let Some(entry) = entry else {
            self.keep(kept);
            return Ok(if is_withheld { PieceOutcome::Withheld } else { PieceOutcome::Gone });
        };
        let object = match &entry.what {
            EntryKind::Object(object) if object.bytes() > REGION_WHOLE_BYTES_MAX => object,
            _ => {
                self.keep(kept);
                return Ok(PieceOutcome::Whole);
            }
        };
        if !taking::is_to_be_taken(shared, region, self.name, &entry) {
            self.keep(kept);
            return Ok(PieceOutcome::Untaken);
        }
        let size = object.bytes();
        let mut partial = match kept {
            // Regions differ: another one gives the rest of the newer version, if it can.
            Some(kept)
                if entry.at < kept.at
                    && kept.since.elapsed() < Duration::from_millis(REGION_PARTIAL_NEWER_MS) =>
            {
                self.keep(Some(kept));
                return Ok(PieceOutcome::Older);
            }
            Some(kept) if entry.at == kept.at => kept,
            // The parts of another one are freed.
            other => {
                let parts = match shared.proxy.begin_remote(self.bucket, &self.name.key) {
                    Ok(parts) => parts,
                    Err(error) => return Ok(self.cannot_take(&error)),
                };
                let (at, from, since) = (entry.at, region, Instant::now());
                let begun = Partial { at, size, parts, from, ends: 0, since };
                if other.is_some() {
                    self.keep(Some(begun));
                    return Ok(PieceOutcome::Part);
                }
                begun
            }
        };
        let left = size.saturating_sub(partial.parts.bytes());
        if size > OBJECT_BYTES_MAX || size != partial.size || bytes != self.bytes_max.min(left) {
            let what = "it gives a part of another length than it says".to_owned();
            shared.watch.alarm(region, what);
            return Ok(PieceOutcome::Untaken);
        }
        partial.from = region;
        let coming = IncomingPart { stream, left: bytes, rest: Bytes::new() };
        self.store(partial, coming, &entry, object).await
    }

    /// Stores what comes. A put that fails ends all of it, and a stream that breaks only itself.
    async fn store(
        &self,
        mut partial: Partial<R>,
        mut coming: IncomingPart<'_>,
        entry: &Entry,
        object: &Object,
    ) -> Result<PieceOutcome, LinkError> {
        let (shared, key) = (self.shared, &self.name.key);
        let mut read = coming.chunk().await;
        // The next chunk comes while one is stored.
        while let Ok(Some(chunk)) = read {
            if let Err(error) = self.admitted().await {
                // Nothing is in doubt. Without room it is of no use to keep what takes some.
                if error != ObjectError::Full {
                    self.keep(Some(partial));
                }
                return Ok(self.cannot_take(&error));
            }
            let storing = shared.proxy.add_remote(self.bucket, key, &mut partial.parts, chunk);
            let (stored, next) = tokio::join!(storing, coming.chunk());
            if let Err(error) = stored {
                return Ok(self.cannot_take(&error));
            }
            partial.since = Instant::now();
            read = next;
        }
        if let Err(error) = read {
            self.keep(Some(partial));
            return Err(error);
        }
        shared.watch.counters().parts.fetch_add(1, Ordering::Relaxed);
        if partial.parts.bytes() < partial.size {
            self.keep(Some(partial));
            return Ok(PieceOutcome::Part);
        }
        Ok(self.end(partial, entry, object).await)
    }

    /// Waits until a chunk may be put. Other puts fill the log, too.
    async fn admitted(&self) -> Result<(), ObjectError> {
        let mut tries = 0;
        loop {
            match self.shared.proxy.admits_remote(self.bucket, &self.name.key) {
                Err(ObjectError::SlowDown) if tries < REGION_BUSY_TRIES_MAX => tries += 1,
                admitted => return admitted,
            }
            sleep(Duration::from_millis(REGION_BUSY_MS)).await;
        }
    }

    /// Makes what has come the key's version.
    async fn end(&self, mut partial: Partial<R>, entry: &Entry, object: &Object) -> PieceOutcome {
        let (shared, key) = (self.shared, &self.name.key);
        let version = (entry, object);
        let ending = async {
            let put =
                shared.proxy.end_remote(self.bucket, key, version, &mut partial.parts).await?;
            if object.amended != Amendments::default() {
                shared.proxy.amend_remote(self.bucket, key, (entry.at, object)).await?;
            }
            shared.proxy.access().shows(self.name.bucket, key).await?;
            Ok(put)
        };
        match ending.await {
            Ok(put) => {
                shared.watch.taken(self.link.number(), 0);
                let is_beaten = put == ChangeOutcome::Beaten;
                PieceOutcome::All { entry: Box::new(entry.clone()), is_beaten }
            }
            Err(error) => {
                // It may be in effect, or is later: a second try says. Bytes that are not the version's are of no use, nor are chunks
                // that are not all there.
                partial.ends += 1;
                let is_later = !matches!(error, ObjectError::Body(_) | ObjectError::Full);
                if is_later && partial.ends < REGION_PARTIAL_ENDS_MAX {
                    self.keep(Some(partial));
                }
                self.cannot_take(&error)
            }
        }
    }

    fn cannot_take(&self, error: &ObjectError) -> PieceOutcome {
        self.shared.cannot_take(self.link.number(), self.name, error);
        PieceOutcome::Untaken
    }
}

/// The bytes of a part, as they come.
struct IncomingPart<'a> {
    stream: &'a mut FetchStream,
    /// Bytes that are not read yet.
    left: u64,
    /// The beginning of the next chunk, if it came with the end of the one before.
    rest: Bytes,
}

impl IncomingPart<'_> {
    /// Reads a chunk, or all that is left, into memory of its own: pieces that came are small parts of larger buffers. `None` if nothing
    /// is left.
    async fn chunk(&mut self) -> Result<Option<Vec<Bytes>>, LinkError> {
        let mut wanted = self.left.min(u64::from(CHUNK_BYTES_MAX));
        if wanted == 0 {
            return Ok(None);
        }
        self.left -= wanted;
        let mut chunk = BytesMut::with_capacity(wanted as usize);
        while wanted > 0 {
            if self.rest.is_empty() {
                let more = self.stream.bytes().await?;
                self.rest = more.ok_or_else(|| LinkError::Unsound("a short part".to_owned()))?;
            }
            let len = usize::try_from(wanted).map_or(self.rest.len(), |it| it.min(self.rest.len()));
            wanted -= len as u64;
            chunk.extend_from_slice(&self.rest.split_to(len));
        }
        Ok(Some(vec![chunk.freeze()]))
    }
}
