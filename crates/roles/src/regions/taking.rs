//! Fetches entries with their bytes from another region, and puts them into the store.
//!
//! An entry is put as it comes: the primary of its key decides whether it is newer than what is here. So the machine
//! hears of it once it is durable and shows, and what it wants merged is here already.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use larder_link::{FetchSince, FetchStream, Fetched, Link, LinkError};
use larder_objects::{BodyDigest, BodyError, ObjectError, PutBody};
use larder_protocol::limits::REGION_CLOCK_AHEAD_MS_MAX;
use larder_protocol::region::entry::{EntryKind, Object};
use larder_protocol::region::pull::{self, Event};
use larder_protocol::region::{Base, Entry, Name, Need};
use larder_types::{Amendments, BucketId, BucketName, ETag, RegionId};
use md5::{Digest, Md5};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::Shared;
use crate::limits::{
    REGION_BUSY_MS, REGION_BUSY_TRIES_MAX, REGION_FETCH_BACKOFF_MS, REGION_MISS_COMING_MS,
    REGION_PUTS_BYTES_MAX, REGION_SHOWS_MAX, REGION_TWICE_MS, REGION_WHOLE_BYTES_MAX,
};
use crate::planted::{self, Bug};
use crate::proxy::{BucketSnapshot, ChangeOutcome, RegionAccess};

/// The bytes of a version, as they come or all at once. Checks at their end that they have its entity tag.
struct RemoteBody<'a> {
    whole: Option<Bytes>,
    rest: Option<&'a mut FetchStream>,
    /// The version that these bytes go on, if they are not all.
    base: Option<Base>,
    len: u64,
    /// Their MD5, where the entity tag is one.
    md5_named: Option<[u8; 16]>,
    md5: Md5,
}

impl<'a> RemoteBody<'a> {
    fn whole(object: &Object, base: Option<Base>, bytes: Bytes) -> Self {
        Self { whole: Some(bytes), ..Self::of(object, base) }
    }

    fn coming(object: &Object, base: Option<Base>, stream: &'a mut FetchStream) -> Self {
        Self { rest: Some(stream), ..Self::of(object, base) }
    }

    fn of(object: &Object, base: Option<Base>) -> Self {
        let len = object.metax.size.saturating_sub(base.map_or(0, |base| base.size));
        let md5_named = match (&object.metax.etag, base) {
            (ETag::Md5(md5), None) => Some(*md5),
            // That of parts, or of a version that was appended to, is no digest of bytes.
            _ => None,
        };
        Self { whole: None, rest: None, base, len, md5_named, md5: Md5::new() }
    }

    /// Returns true if the MD5 of the bytes is used: it is that of the version, or of a piece.
    fn is_digested(&self) -> bool {
        self.md5_named.is_some() || self.base.is_some()
    }
}

impl PutBody for RemoteBody<'_> {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        let piece = match &mut self.rest {
            None => self.whole.take().filter(|bytes| !bytes.is_empty())?,
            Some(stream) => match stream.bytes().await {
                Ok(piece) => piece?,
                Err(_) => return Some(Err(BodyError::Incomplete)),
            },
        };
        if self.is_digested() {
            self.md5.update(&piece);
        }
        Some(Ok(piece))
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        let md5: [u8; 16] = self.md5.finalize_reset().into();
        match self.md5_named {
            Some(md5_named) if md5_named != md5 => Err(BodyError::BadDigest),
            _ => Ok(BodyDigest { md5, checksum: None }),
        }
    }
}

/// The result of a fetch.
pub(super) struct FetchResult {
    /// For the machine: entries that are durable here, and those that are to be asked for later.
    pub(super) event: Event,
    /// Entries that were not taken, because what is here wins over them or is the same version.
    pub(super) beaten: BTreeSet<Name>,
}

/// Outcome of one entry.
enum PutOutcome {
    /// It is durable here, by this put, or beaten by what was here.
    Taken { entry: Entry, is_beaten: bool },
    /// The answering region no longer has it.
    Gone,
    /// It cannot be taken now.
    Untaken,
    /// The answering region cannot read it now.
    Withheld,
    /// The answering region has the version, and does not know its end behind the base.
    Baseless,
    /// Another version is here than when it was asked for.
    Changed,
}

/// Fetches entries, and puts them.
pub(super) async fn fetch<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    link: Arc<Link>,
    request: u64,
    names: Vec<(Name, Need)>,
) -> FetchResult {
    // A machine before this one, or a client, has some fetched already: once these have come they are looked up.
    let (twice, names): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|(name, _)| shared.in_flight.has(name));
    let coming = shared.in_flight.begin(names.iter().map(|(name, _)| name.clone()).collect());
    let mut taking = Taking::new(shared.clone(), link.number());
    let fetched = taking.all(&link, names).await;
    taking.drain().await;
    drop(coming);
    let by = Instant::now() + Duration::from_millis(REGION_TWICE_MS);
    for (name, _) in twice {
        match timeout_at(by, shared.in_flight.ended(&name)).await {
            Ok(()) => taking.fetched.changed.push(name),
            // Looked up later: what has come with these does not wait for it.
            Err(_late) => taking.fetched.untaken.push(name),
        }
    }
    match fetched {
        Ok(()) => shared.watch.answered(link.number()),
        Err(error) => {
            shared.watch.unanswered(link.number(), &error);
            // Backs off: the machine asks again at once for all that it still wants.
            tokio::time::sleep(Duration::from_millis(REGION_FETCH_BACKOFF_MS)).await;
        }
    }
    let Taking { fetched, beaten, .. } = taking;
    FetchResult { event: Event::Fetched { request, fetched }, beaten }
}

/// Fetches one entry with its bytes, and puts it: true if it is here now, false if the region has it no more. `None` if neither can be
/// said.
pub(super) async fn take_one<R: RegionAccess>(
    shared: &Arc<Shared<R>>,
    link: &Link,
    name: Name,
) -> Option<bool> {
    let max_wait = Duration::from_millis(REGION_MISS_COMING_MS);
    let _place = timeout(max_wait, link.place_for_miss()).await.ok().flatten()?;
    let mut taking = Taking::new(shared.clone(), link.number());
    let fetched = taking.all(link, vec![(name, Need::Bytes(None))]).await;
    taking.drain().await;
    fetched.ok().and(taking.fetched.entries.first()).map(|(_, entry)| entry.is_some())
}

struct Taking<R: RegionAccess> {
    shared: Arc<Shared<R>>,
    region: RegionId,
    /// Puts under way with their sizes, in tasks of their own: neither they nor readers of their keys wait for the
    /// link.
    putting: JoinSet<(Name, PutOutcome, u64)>,
    /// The sizes of these together.
    putting_bytes: u64,
    fetched: pull::Fetched,
    beaten: BTreeSet<Name>,
    /// The buckets as they were when the entries were asked for.
    buckets: BTreeMap<BucketId, (BucketName, BucketSnapshot)>,
}

impl<R: RegionAccess> Taking<R> {
    fn new(shared: Arc<Shared<R>>, region: RegionId) -> Self {
        let (putting, putting_bytes, buckets) = (JoinSet::new(), 0, BTreeMap::new());
        let (fetched, beaten) = (pull::Fetched::default(), BTreeSet::new());
        Self { shared, region, putting, putting_bytes, fetched, beaten, buckets }
    }

    async fn all(&mut self, link: &Link, names: Vec<(Name, Need)>) -> Result<(), LinkError> {
        // Without room no bytes are fetched. Entries without bytes are: they free space. A busy log has room soon.
        let admits_data = match self.shared.proxy.admits_data() {
            Err(ObjectError::SlowDown) => Ok(()),
            admits_data => admits_data,
        };
        self.note_buckets(names.iter().map(|(name, _)| name.bucket));
        let (mut asked, mut bases) = (Vec::with_capacity(names.len()), Vec::new());
        let mut due = VecDeque::with_capacity(names.len());
        for (name, need) in names {
            if let (true, Err(error)) = (need.has_bytes(), &admits_data) {
                self.shared.watch.cannot_take(self.region, &name, error);
                self.ended(name, PutOutcome::Untaken);
                continue;
            }
            // The region told the name of an id's bucket with the id.
            if let Some(there) = self.shared.names.there(self.region, &name) {
                if let Need::Bytes(Some(base)) = need {
                    bases.push((asked.len() as u32, base));
                }
                asked.push((there, need.has_bytes()));
                due.push_back((name, need));
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let fetched = match link.fetch(FetchSince { names: asked, bases }).await {
            Ok(mut stream) => {
                let came = self.each(&mut stream, &mut due).await;
                self.fetched.received_bytes += stream.received_bytes();
                came
            }
            Err(error) => Err(error),
        };
        // The entry at which a stream breaks is tried again later, so that it holds up no other.
        if fetched.is_err()
            && let Some((name, _)) = due.pop_front()
        {
            self.ended(name, PutOutcome::Untaken);
        }
        fetched
    }

    fn note_buckets(&mut self, ids: impl Iterator<Item = BucketId>) {
        let known = |id: BucketId| Some((id, self.shared.find_bucket(id)?));
        self.buckets = ids.collect::<BTreeSet<_>>().into_iter().filter_map(known).collect();
    }

    /// Takes entries in the order in which they were asked for: each that has come leaves `due`.
    async fn each(
        &mut self,
        stream: &mut FetchStream,
        due: &mut VecDeque<(Name, Need)>,
    ) -> Result<(), LinkError> {
        while let Some(Fetched { entry, bytes, is_withheld, .. }) = stream.next().await? {
            let (name, need) = due.front().expect("nothing comes that was not asked for");
            let base = entry.as_ref().and_then(|entry| base_of(*need, entry.bytes(), bytes));
            let from = base.map_or(0, |base| base.size);
            let ended = match entry {
                Some(_) if is_withheld => Some(PutOutcome::Baseless),
                None if is_withheld => {
                    self.shared.watch.withheld(self.region, name);
                    Some(PutOutcome::Withheld)
                }
                None => Some(PutOutcome::Gone),
                Some(entry) if !is_to_be_taken(&self.shared, self.region, name, &entry) => {
                    Some(PutOutcome::Untaken)
                }
                Some(entry) if need.has_bytes() && from + bytes != entry.bytes() => {
                    let what = "it gives an object of another length than it says".to_owned();
                    self.shared.watch.alarm(self.region, what);
                    Some(PutOutcome::Untaken)
                }
                Some(entry) if bytes > REGION_WHOLE_BYTES_MAX => {
                    Some(self.take_large(stream, (name, base), entry).await?)
                }
                Some(entry) => {
                    let whole = read_whole(stream, bytes).await?;
                    let has_bytes = need.has_bytes() || entry.bytes() == 0;
                    let name = (name.clone(), base);
                    self.begin(name, entry, has_bytes.then_some(whole)).await;
                    None
                }
            };
            let (name, _) = due.pop_front().expect("it was there");
            if let Some(ended) = ended {
                self.ended(name, ended);
            }
        }
        Ok(())
    }

    /// Puts an entry in a task of its own. An empty one is asked for without bytes, and is put like others.
    async fn begin(
        &mut self,
        (name, base): (Name, Option<Base>),
        entry: Entry,
        bytes: Option<Bytes>,
    ) {
        let size = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        while self.putting_bytes + size > REGION_PUTS_BYTES_MAX {
            self.next_ended().await;
        }
        self.putting_bytes += size;
        let (shared, region) = (self.shared.clone(), self.region);
        let bucket = self.buckets.get(&name.bucket).cloned();
        if planted::has(Bug::TakesBeforePut) {
            self.fetched.entries.push((name.clone(), Some(entry.clone())));
        }
        self.putting.spawn(async move {
            let mut tries = 0;
            let put = loop {
                let body = match (&entry.what, &bytes) {
                    (EntryKind::Object(object), Some(bytes)) => {
                        Some(RemoteBody::whole(object, base, bytes.clone()))
                    }
                    _ => None,
                };
                match shared.take(bucket.as_ref(), &name, &entry, body).await {
                    // Other entries of the fetch fill the log too: this one waits.
                    Err(ObjectError::SlowDown) if tries < REGION_BUSY_TRIES_MAX => {
                        tries += 1;
                        tokio::time::sleep(Duration::from_millis(REGION_BUSY_MS)).await;
                    }
                    put => break put,
                }
            };
            let ended = shared.ended(region, &name, entry, put);
            (name, ended, size)
        });
    }

    /// Puts an entry while its bytes come. If it is refused, the rest of the stream is of no use.
    async fn take_large(
        &self,
        stream: &mut FetchStream,
        (name, base): (&Name, Option<Base>),
        entry: Entry,
    ) -> Result<PutOutcome, LinkError> {
        let EntryKind::Object(object) = &entry.what else { return Ok(PutOutcome::Untaken) };
        let body = RemoteBody::coming(object, base, stream);
        let bucket = self.buckets.get(&name.bucket);
        let put = self.shared.take(bucket, name, &entry, Some(body)).await;
        let given_up = put.as_ref().err().map(|error| format!("it was given up here: {error}"));
        let ended = self.shared.ended(self.region, name, entry.clone(), put);
        match given_up {
            Some(why) => Err(larder_link::Later::Broken(why.into()).into()),
            None => Ok(ended),
        }
    }

    async fn next_ended(&mut self) {
        match self.putting.join_next().await {
            Some(Ok((name, ended, size))) => {
                self.putting_bytes -= size;
                self.ended(name, ended);
            }
            // One that panicked is asked for again.
            Some(Err(_panicked)) => {}
            None => self.putting_bytes = 0,
        }
    }

    /// Waits until all puts are durable and show: from then on the machine compares their ids with the index.
    async fn drain(&mut self) {
        while !self.putting.is_empty() {
            self.next_ended().await;
        }
        let done = std::mem::take(&mut self.fetched.entries).into_iter();
        let showing = done.map(|(name, entry)| shows(self.shared.clone(), name, entry));
        let mut showing = stream::iter(showing).buffer_unordered(REGION_SHOWS_MAX);
        while let Some((name, entry, shown)) = showing.next().await {
            match shown {
                Ok(()) => self.fetched.entries.push((name, entry)),
                Err(error) => {
                    self.shared.cannot_take(self.region, &name, &error);
                    self.fetched.untaken.push(name);
                }
            }
        }
    }

    fn ended(&mut self, name: Name, ended: PutOutcome) {
        let fetched = &mut self.fetched;
        match ended {
            PutOutcome::Taken { entry, is_beaten } => {
                if is_beaten {
                    self.beaten.insert(name.clone());
                }
                self.shared.partials.forget_older(&name, entry.at);
                fetched.entries.push((name, Some(entry)));
            }
            PutOutcome::Gone => fetched.entries.push((name, None)),
            PutOutcome::Untaken => fetched.untaken.push(name),
            PutOutcome::Withheld => fetched.withheld.push(name),
            PutOutcome::Baseless => fetched.baseless.push(name),
            PutOutcome::Changed => fetched.changed.push(name),
        }
    }
}

/// Checks an entry as the machine does. The machine looks later, so an entry refused here must not reach it.
pub(super) fn is_to_be_taken<R: RegionAccess>(
    shared: &Shared<R>,
    region: RegionId,
    name: &Name,
    entry: &Entry,
) -> bool {
    let ahead_ms = entry.clock().ms().saturating_sub(shared.clock().judging_now().wall_ms);
    // An append makes a version (ADR 53): no store has pieces that were joined.
    let has_pieces = matches!(&entry.what, EntryKind::Object(object) if !object.pieces.is_empty());
    if has_pieces || !entry.is_sound(name.slot) {
        shared.watch.unsound(region);
        return false;
    }
    if ahead_ms > REGION_CLOCK_AHEAD_MS_MAX {
        shared.watch.alarm(region, clock_ahead(entry.at.region));
        return false;
    }
    true
}

/// The base behind which an entry's bytes come, if not all of them do.
fn base_of(need: Need, size: u64, bytes: u64) -> Option<Base> {
    let Need::Bytes(base) = need else { return None };
    base.filter(|base| base.size.checked_add(bytes) == Some(size))
}

/// Waits until the puts of a key show.
async fn shows<R: RegionAccess>(
    shared: Arc<Shared<R>>,
    name: Name,
    entry: Option<Entry>,
) -> (Name, Option<Entry>, Result<(), ObjectError>) {
    let shown = match entry {
        Some(_) => shared.proxy.access().shows(name.bucket, &name.key).await,
        None => Ok(()),
    };
    (name, entry, shown)
}

/// The alarm for a clock that is ahead.
pub(super) fn clock_ahead(region: RegionId) -> String {
    format!(
        "the clock of region {region} is more than {} s ahead: its changes wait until they are due. Set the clocks",
        REGION_CLOCK_AHEAD_MS_MAX / 1000
    )
}

async fn read_whole(stream: &mut FetchStream, bytes: u64) -> Result<Bytes, LinkError> {
    let mut whole = BytesMut::with_capacity(bytes as usize);
    while let Some(piece) = stream.bytes().await? {
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

impl<R: RegionAccess> Shared<R> {
    /// Counts a put's result, which is true if what was here beats the entry.
    fn ended(
        &self,
        region: RegionId,
        name: &Name,
        entry: Entry,
        put: Result<bool, ObjectError>,
    ) -> PutOutcome {
        match put {
            Ok(is_beaten) => {
                self.watch.taken(region, entry.bytes());
                PutOutcome::Taken { entry, is_beaten }
            }
            Err(_) if planted::has(Bug::CountsUntaken) => {
                PutOutcome::Taken { entry, is_beaten: false }
            }
            // It was requested again meanwhile, or the home is here since: it is looked up again, which changes
            // nothing.
            Err(ObjectError::Changed) => PutOutcome::Changed,
            Err(error) => {
                self.cannot_take(region, name, &error);
                PutOutcome::Untaken
            }
        }
    }

    /// The record of a bucket that takes other regions' changes.
    pub(super) fn find_bucket(&self, id: BucketId) -> Option<(BucketName, BucketSnapshot)> {
        let buckets = self.shown.buckets();
        let name = buckets.all().get(&id).filter(|_| !buckets.local().contains(&id))?;
        let known = self.shown.access().bucket(name, BucketSnapshot::of)?;
        (known.id == id).then(|| (name.clone(), known))
    }

    pub(super) fn cannot_take(&self, region: RegionId, name: &Name, error: &ObjectError) {
        tracing::debug!(%region, key = ?name.key, %error, "a change from another region was refused");
        // A bucket that is being deleted takes none, which ends by itself.
        if *error != ObjectError::NoSuchBucket {
            self.watch.cannot_take(region, name, error);
        }
    }

    /// Returns true if an entry that came without its bytes is here with them, or something newer is.
    async fn has_bytes(&self, name: &Name, entry: &Entry) -> Result<bool, ObjectError> {
        let kept = self.shown.kept(name.bucket, &name.key).await?;
        Ok(kept.latest(self.shown.own()).is_some_and(|latest| latest >= entry.at))
    }

    /// Puts another region's entry, unless what is here is newer. Without its bytes it puts only what was set since.
    /// Returns true if what was here beats it.
    async fn take(
        &self,
        bucket: Option<&(BucketName, BucketSnapshot)>,
        name: &Name,
        entry: &Entry,
        body: Option<RemoteBody<'_>>,
    ) -> Result<bool, ObjectError> {
        let (bucket, known) = bucket.ok_or(ObjectError::NoSuchBucket)?;
        let bucket = (bucket, *known);
        match &entry.what {
            EntryKind::Object(object) => {
                let mut is_beaten = true;
                if let Some(body) = body {
                    let md5_named = (entry, &**object);
                    let put = match body.base {
                        None => self.proxy.put_remote(bucket, &name.key, md5_named, body).await?,
                        Some(base) => {
                            let key = &name.key;
                            let put = self
                                .proxy
                                .append_remote(bucket, key, md5_named, base, body)
                                .await?;
                            self.watch.counters().took_tail(base);
                            put
                        }
                    };
                    is_beaten = put == ChangeOutcome::Beaten;
                } else if object.bytes() > 0 && !self.has_bytes(name, entry).await? {
                    // The version here has changed since the entry was asked for without its bytes.
                    return Err(ObjectError::Changed);
                }
                if object.amended != Amendments::default() {
                    self.proxy.amend_remote(bucket, &name.key, (entry.at, object)).await?;
                }
                Ok(is_beaten)
            }
            EntryKind::Purged => {
                let purged = (entry.at, entry.origin);
                let ended = self.proxy.purge_remote(bucket, &name.key, purged).await?;
                Ok(ended == ChangeOutcome::Beaten)
            }
            EntryKind::Marker => {
                Err(ObjectError::Unsupported { what: "delete markers of another region" })
            }
        }
    }
}
