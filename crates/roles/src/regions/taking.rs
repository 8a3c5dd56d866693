//! Entries of another region, and their bytes, on their way into the store.
//!
//! An entry is put as it comes: the primary of its key decides whether it is newer than what is here. So the machine is
//! told of it once it is durable, and what it wants joined is there already.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use larder_link::{Fetch, FetchStream, Fetched, Link, LinkError};
use larder_objects::{BodyDigest, BodyError, ObjectError, PutBody};
use larder_protocol::limits::REGION_CLOCK_AHEAD_MS_MAX;
use larder_protocol::region::entry::{Object, What};
use larder_protocol::region::pull::Event;
use larder_protocol::region::{Entry, Name};
use larder_types::{Amendments, ETag, RegionId};
use md5::{Digest, Md5};

use super::Shared;
use crate::clock::now_ms;
use crate::limits::{REGION_PUTS_MAX, REGION_RETRY_MS, REGION_WHOLE_BYTES_MAX};

/// The bytes of a version, as they come or all at once. Says at their end whether they are those of its entity tag.
struct ToldBody<'a> {
    whole: Option<Bytes>,
    rest: Option<&'a mut FetchStream>,
    len: u64,
    etag: ETag,
    md5: Md5,
}

impl<'a> ToldBody<'a> {
    fn whole(object: &Object, bytes: Bytes) -> Self {
        let (len, etag) = (object.metax.size, object.metax.etag.clone());
        Self { whole: Some(bytes), rest: None, len, etag, md5: Md5::new() }
    }

    fn coming(object: &Object, stream: &'a mut FetchStream) -> Self {
        let (len, etag) = (object.metax.size, object.metax.etag.clone());
        Self { whole: None, rest: Some(stream), len, etag, md5: Md5::new() }
    }

    /// That of parts is no digest of the bytes.
    fn is_digested(&self) -> bool {
        matches!(self.etag, ETag::Md5(_))
    }
}

impl PutBody for ToldBody<'_> {
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
        match self.etag {
            ETag::Md5(told) if told != md5 => Err(BodyError::BadDigest),
            _ => Ok(BodyDigest { md5, checksum: None }),
        }
    }
}

type Putting<'a> = FuturesUnordered<
    Pin<Box<dyn Future<Output = (Name, Entry, Result<(), ObjectError>)> + Send + 'a>>,
>;

/// Fetches entries, and puts them. What it returns is for the machine: entries that are durable here, or that the machine
/// has to refuse.
pub(super) async fn fetch(
    shared: &Shared,
    link: &Link,
    request: u64,
    names: Vec<(Name, bool)>,
) -> Event {
    let region = link.number();
    let mut taking = Taking { shared, region, done: Vec::new(), has_failed: false };
    if let Err(error) = taking.all(link, names).await {
        shared.watch.unanswered(region, error.to_string());
        taking.has_failed = true;
    } else {
        shared.watch.answered(region);
    }
    if taking.has_failed {
        // What is wanted still is asked for again at once.
        tokio::time::sleep(Duration::from_millis(REGION_RETRY_MS)).await;
    }
    match taking.done.is_empty() {
        true => Event::Unanswered { request },
        false => Event::Fetched { request, entries: taking.done },
    }
}

/// Fetches one entry with its bytes, and puts it; whether it is here now.
pub(super) async fn take_one(shared: &Shared, link: &Link, name: Name) -> bool {
    let region = link.number();
    let mut taking = Taking { shared, region, done: Vec::new(), has_failed: false };
    let taken = taking.all(link, vec![(name, true)]).await;
    taken.is_ok() && taking.done.iter().any(|(_, entry)| entry.is_some())
}

struct Taking<'a> {
    shared: &'a Shared,
    region: RegionId,
    done: Vec<(Name, Option<Entry>)>,
    has_failed: bool,
}

impl<'a> Taking<'a> {
    async fn all(&mut self, link: &Link, names: Vec<(Name, bool)>) -> Result<(), LinkError> {
        let mut asked = Vec::with_capacity(names.len());
        let mut here = BTreeMap::new();
        for (name, with_bytes) in names {
            // What was told of has names of buckets: they were told with it.
            if let Some(there) = self.shared.names.there(self.region, &name) {
                here.insert(there.clone(), (name, with_bytes));
                asked.push((there, with_bytes));
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let mut stream = link.fetch(Fetch { names: asked }).await?;
        let mut putting = Putting::new();
        while let Some(Fetched { name, entry, bytes }) = stream.next().await? {
            let Some((name, with_bytes)) = here.remove(&name) else { continue };
            let Some(entry) = entry else {
                self.done.push((name, None));
                continue;
            };
            if !is_to_be_taken(&name, &entry) || (with_bytes && bytes != entry.bytes()) {
                self.done.push((name, Some(entry)));
                continue;
            }
            match &entry.what {
                What::Object(object) if with_bytes && bytes > REGION_WHOLE_BYTES_MAX => {
                    let body = ToldBody::coming(object, &mut stream);
                    let put = self.shared.take(&name, &entry, Some(body)).await;
                    self.ended(name, entry.clone(), put);
                }
                _ => {
                    let whole = read_whole(&mut stream, bytes).await?;
                    let shared = self.shared;
                    putting.push(Box::pin(async move {
                        let put = match &entry.what {
                            // One without bytes is asked for without them.
                            What::Object(object) if with_bytes || entry.bytes() == 0 => {
                                let body = ToldBody::whole(object, whole);
                                shared.take(&name, &entry, Some(body)).await
                            }
                            _ => shared.take(&name, &entry, None).await,
                        };
                        (name, entry, put)
                    }));
                }
            }
            while putting.len() >= REGION_PUTS_MAX
                && let Some((name, entry, put)) = putting.next().await
            {
                self.ended(name, entry, put);
            }
        }
        while let Some((name, entry, put)) = putting.next().await {
            self.ended(name, entry, put);
        }
        Ok(())
    }

    fn ended(&mut self, name: Name, entry: Entry, put: Result<(), ObjectError>) {
        match put {
            Ok(()) => {
                self.shared.watch.taken(self.region, entry.bytes());
                self.done.push((name, Some(entry)));
            }
            Err(error) => {
                self.shared.watch.counters().failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(region = %self.region, key = ?name.key, %error, "a change of another region is not taken");
                self.has_failed = true;
            }
        }
    }
}

/// Whether the machine would take it. What it would not is for it to refuse.
fn is_to_be_taken(name: &Name, entry: &Entry) -> bool {
    let ahead_ms = entry.clock().ms().saturating_sub(now_ms());
    entry.is_sound(name.slot) && ahead_ms <= REGION_CLOCK_AHEAD_MS_MAX
}

async fn read_whole(stream: &mut FetchStream, bytes: u64) -> Result<Bytes, LinkError> {
    let mut whole = BytesMut::with_capacity(bytes as usize);
    while let Some(piece) = stream.bytes().await? {
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

impl Shared {
    /// Puts an entry that another region has, unless what is here is newer. Without its bytes only what was set since.
    async fn take(
        &self,
        name: &Name,
        entry: &Entry,
        body: Option<ToldBody<'_>>,
    ) -> Result<(), ObjectError> {
        let bucket = self.shown.buckets().get(&name.bucket).cloned();
        let bucket = bucket.ok_or(ObjectError::NoSuchBucket)?;
        match &entry.what {
            What::Object(object) => {
                if let Some(body) = body {
                    self.proxy.put_told(&bucket, &name.key, (entry, object), body).await?;
                }
                if object.amended == Amendments::default() {
                    return Ok(());
                }
                self.proxy.amend_told(&bucket, &name.key, (entry.at, object)).await
            }
            What::Purged => {
                self.proxy.purge_told(&bucket, &name.key, (entry.at, entry.origin)).await
            }
            What::Marker => {
                Err(ObjectError::Unsupported { what: "delete markers of another region" })
            }
        }
    }
}

/// Keeps a region's driver alive for a task of its own.
pub(super) async fn fetch_for(
    shared: Arc<Shared>,
    link: Arc<Link>,
    request: u64,
    names: Vec<(Name, bool)>,
) -> Event {
    fetch(&shared, &link, request, names).await
}
