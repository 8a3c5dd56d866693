//! The interface to somebody else's object store: the few operations that packing needs. Each passes the request
//! scheduler (`request_scheduler.rs`), which counts it: over HTTP request by request (`http.rs`), else here.
//!
//! # Invariants
//!
//! 1. When [`Backend::put`] or [`BackendUpload::finish`] returns `Ok` the object is durable, as far as the backend
//!    keeps its word; on a local directory, synced.
//! 2. A request is repeated on throttling and lost connections, with growing pauses, for a bounded time.
//!
//! Must not: know what blobs are.

mod adaptive_limiter;
#[cfg(test)]
pub(crate) mod fakes;
mod http;
mod listing;
mod request_scheduler;
mod spend_limiter;
mod streamed;
pub(crate) mod token_bucket;
mod uplink;
mod upload;
mod url;

use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, UpdateVersion,
};

pub(crate) use http::jittered;
pub(crate) use listing::Listing;
pub(crate) use streamed::Source;
pub(crate) use upload::BackendUpload;

use self::adaptive_limiter::Answer;
use self::request_scheduler::{NotMade, RequestScheduler};
use self::streamed::{Streamed, Streams};
use self::upload::{Numbered, Parts};
use self::url::Opened;
use crate::blocking;
use crate::class::{Prices, RequestClass};
use crate::counters::{Counters, add};
use crate::error::PackError;
use crate::limits::{MISSING_PAUSE, MISSING_READS_MAX};

/// Somebody else's object store, or a part of it under a prefix. Cheap to clone.
#[derive(Clone)]
pub struct Backend {
    store: Arc<dyn ObjectStore>,
    asked: BackendClient,
    /// Sends parts by their numbers, if the store takes them so.
    numbered: Option<Numbered>,
    /// The way it takes requests whose bodies are read from files, if it does.
    streams: Option<Streams>,
    /// Where it is, if it is a directory.
    dir: Option<PathBuf>,
}

/// The request scheduler and the counters that a store's requests pass.
#[derive(Clone)]
struct BackendClient {
    scheduler: Arc<RequestScheduler>,
    counters: Arc<Counters>,
    /// Requests pass the request scheduler one by one on their way out, and not as the calls that they are made for.
    over_http: bool,
}

/// A request for all of an object that failed.
#[derive(Debug)]
pub(crate) struct BrokenOff {
    pub(crate) error: PackError,
    /// Most bytes of the object that went out in one try.
    pub(crate) sent: u64,
    /// The backend, or somebody on the way, was reached.
    pub(crate) is_made: bool,
    /// It was answered, and not as it would be for rights or the backend's state: perhaps it is too large.
    pub(crate) is_refused: bool,
}

/// The reason why an object did not come.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The backend says that there is none.
    Missing,
    /// Ask again later.
    Failed(PackError),
}

impl Backend {
    /// Reaches the store that a URL names: `file:///directory`, made if it is missing,
    /// `s3://bucket/prefix?endpoint=URL&region=NAME`, `gs://bucket/prefix?endpoint=URL` or
    /// `az://container/prefix?account=NAME&endpoint=URL`. Keys come from the environment, as other tools have them
    /// (`AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_KEY` and so on).
    ///
    /// # Errors
    /// [`PackError::Config`] if the URL is not one of these, [`PackError::Backend`] if the store cannot be used.
    pub fn open(url: &str) -> Result<Self, PackError> {
        let asked = BackendClient::new();
        Ok(Self::of(url::open(url, &asked.scheduler)?, asked))
    }

    fn of(opened: Opened, asked: BackendClient) -> Self {
        let Opened { store, numbered, streams, dir } = opened;
        Self {
            store,
            asked: BackendClient { over_http: dir.is_none(), ..asked },
            numbered,
            streams,
            dir,
        }
    }

    /// Checks that a URL names a backend: one that may be opened, as far as that shows without
    /// asking it. Changes nothing.
    ///
    /// # Errors
    /// [`PackError`] names what is wrong with it.
    pub fn check(url: &str) -> Result<(), PackError> {
        match url::dir_of(url)? {
            Some(dir) => url::check_dir(url, dir),
            None => Self::open(url).map(drop),
        }
    }

    /// A store that is at hand.
    #[must_use]
    pub fn over(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, asked: BackendClient::new(), numbered: None, streams: None, dir: None }
    }

    /// The objects below a prefix, as a store of its own. Its requests pass the same request scheduler, and are
    /// counted with this one's.
    pub(crate) fn below(&self, prefix: &str) -> Self {
        if prefix.is_empty() {
            return self.clone();
        }
        let store = Arc::new(PrefixStore::new(self.store.clone(), Path::from(prefix)));
        let dir = self.dir.as_ref().map(|dir| dir.join(prefix));
        let numbered = self.numbered.as_ref().map(|numbered| numbered.below(prefix));
        let (asked, streams) = (self.asked.clone(), self.streams.clone());
        Self { store, asked, numbered, streams, dir }
    }

    /// The counters of its requests, and of what else packing counts.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.asked.counters
    }

    /// The local directory that it is, if it is one.
    pub(crate) fn dir(&self) -> Option<&std::path::Path> {
        self.dir.as_deref()
    }

    /// Sets the budgets: requests a second, and money a day at these prices.
    pub(crate) fn set_budgets(&self, per_second: Option<f64>, prices: Prices, day: Option<f64>) {
        self.asked.scheduler.set_budgets(per_second, prices, day);
    }

    /// Requests that may be under way now.
    pub(crate) fn requests_max(&self) -> u32 {
        self.asked.scheduler.limit()
    }

    /// Requests of uploads that may be under way now, 1 at least.
    pub(crate) fn uploads_max(&self) -> u32 {
        self.asked.scheduler.writes_max()
    }

    /// Returns true if uploads wait for the budget of money.
    pub(crate) fn is_spent(&self) -> bool {
        self.asked.scheduler.is_spent(RequestClass::Put)
    }

    /// Writes a small object; one that is there is replaced.
    pub(crate) async fn put(&self, name: &str, bytes: Bytes) -> Result<(), PackError> {
        self.put_pieces(name, vec![bytes]).await
    }

    /// As [`Backend::put`], of several pieces.
    pub(crate) async fn put_pieces(&self, name: &str, pieces: Vec<Bytes>) -> Result<(), PackError> {
        let payload = pieces.into_iter().collect::<PutPayload>();
        let (path, len) = (Path::from(name), payload.content_length() as u64);
        let put = self.store.put(&path, payload);
        let put = self.asked.ask(RequestClass::Put, put).await;
        put.map_err(|error| failed("write", name, &error))?;
        add(&self.asked.counters.uploaded_bytes, len);
        Ok(())
    }

    /// Most bytes that [`Backend::put_from`] takes; 0 if it takes none.
    pub(crate) fn put_bytes_max(&self) -> u64 {
        self.streams.as_ref().map_or(0, |streams| streams.put_bytes_max)
    }

    /// Writes an object of any size with one request, which reads it meanwhile; one that is there is replaced. Made again
    /// only where little of it had gone out. A caller counts its bytes, once it knows that they are there.
    pub(crate) async fn put_from(&self, name: &str, source: &Source) -> Result<(), BrokenOff> {
        let streams = self.streams.as_ref().filter(|_| source.len() <= self.put_bytes_max());
        let streams = streams.expect("a caller looks how much the backend takes");
        let (path, streamed) = (Path::from(name), Streamed::new(source, &streams.signs));
        let mut options = PutOptions::default();
        options.extensions.insert(streamed.clone());
        let put = self.store.put_opts(&path, PutPayload::new(), options);
        let answer = self.asked.ask(RequestClass::Put, put).await;
        let (sent, is_made) = (streamed.sent(), streamed.is_made());
        match answer {
            Ok(_) if sent == source.len() => Ok(()),
            Ok(_) => {
                let reason = format!("it took {sent} bytes of {} for all of it", source.len());
                let error = PackError::Backend { operation: "write", name: name.into(), reason };
                Err(BrokenOff { error, sent, is_made: true, is_refused: true })
            }
            Err(error) => {
                let error = failed("write", name, &error);
                let is_refused = streamed.is_refused();
                Err(BrokenOff { error, sent, is_made, is_refused })
            }
        }
    }

    /// Writes a small object that is not there yet; false if it is.
    ///
    /// A store answers 409 also when two such requests meet and neither took effect: so the object is looked for, and if
    /// it is missing the request is made again.
    pub(crate) async fn put_new(&self, name: &str, bytes: Bytes) -> Result<bool, PackError> {
        let mut pause = MISSING_PAUSE;
        for _ in 0..MISSING_READS_MAX {
            if self.try_put_new(name, bytes.clone()).await? {
                return Ok(true);
            }
            if self.size(name).await?.is_some() {
                self.sync_dir_of(name).await?;
                return Ok(false);
            }
            tokio::time::sleep(jittered(pause)).await;
            pause *= 4;
        }
        Err(PackError::Backend {
            operation: "write",
            name: name.to_owned(),
            reason: "the backend says that it exists, and does not have it".to_owned(),
        })
    }

    /// In a local directory, makes durable that there is an object: who made it may have been killed before that.
    async fn sync_dir_of(&self, name: &str) -> Result<(), PackError> {
        let Some(dir) = self.dir.as_ref().and_then(|dir| Some(dir.join(name).parent()?.to_owned()))
        else {
            return Ok(());
        };
        Ok(blocking::run(move || std::fs::File::open(dir)?.sync_all()).await??)
    }

    async fn try_put_new(&self, name: &str, bytes: Bytes) -> Result<bool, PackError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let path = Path::from(name);
        let put = self.store.put_opts(&path, PutPayload::from_bytes(bytes), options);
        match self.asked.ask(RequestClass::Put, put).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(failed("write", name, &error)),
        }
    }

    /// Replaces a small object that still has these bytes; false if it is another by now, or gone.
    pub(crate) async fn replace(
        &self,
        name: &str,
        old: &[u8],
        new: Bytes,
    ) -> Result<bool, PackError> {
        let path = Path::from(name);
        let got = self.store.get_opts(&path, GetOptions::default());
        let got = match self.asked.ask(RequestClass::Get, got).await {
            Ok(got) if got.meta.size == old.len() as u64 => got,
            Ok(_) | Err(Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(failed("read", name, &error)),
        };
        let version =
            UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
        if got.bytes().await.map_err(|error| failed("read", name, &error))? != old {
            return Ok(false);
        }
        // A directory knows no such condition; nor does a request to it come late.
        let mode = if self.dir.is_some() { PutMode::Overwrite } else { PutMode::Update(version) };
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.store.put_opts(&path, PutPayload::from_bytes(new), options);
        match self.asked.ask(RequestClass::Put, put).await {
            Ok(_) => Ok(true),
            Err(
                Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotFound { .. },
            ) => Ok(false),
            Err(error) => Err(failed("replace", name, &error)),
        }
    }

    /// Begins an object that is written part by part.
    pub(crate) async fn begin(&self, name: &str) -> Result<BackendUpload, PackError> {
        let path = Path::from(name);
        let begin = async {
            match &self.numbered {
                Some(numbered) => numbered.begin(&path).await,
                None => self.store.put_multipart(&path).await.map(Parts::InOrder),
            }
        };
        let begun = self.asked.ask(RequestClass::Put, begin).await;
        let parts = begun.map_err(|error| failed("begin", name, &error))?;
        Ok(BackendUpload::new(parts, name, self.asked.clone()))
    }

    /// Bytes of an object.
    pub(crate) async fn read(&self, name: &str, range: Range<u64>) -> Result<Bytes, Unread> {
        let wanted = range.end - range.start;
        let pieces = self.pieces(name, range).await?;
        let mut bytes = Vec::with_capacity(wanted as usize);
        let mut pieces = std::pin::pin!(pieces);
        while let Some(piece) = pieces.try_next().await.map_err(Unread::Failed)? {
            bytes.extend_from_slice(&piece);
        }
        match bytes.len() as u64 == wanted {
            true => Ok(bytes.into()),
            false => Err(Unread::Failed(PackError::Backend {
                operation: "read",
                name: name.to_owned(),
                reason: format!("it gave {} bytes instead of {wanted}", bytes.len()),
            })),
        }
    }

    /// As [`Backend::read`], of an object that was uploaded. One that seems to be missing is looked for again, for about
    /// a second.
    pub(crate) async fn read_uploaded(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<Bytes, Unread> {
        read_again(name, || self.read(name, range.clone())).await
    }

    /// All of a small object, whatever its length is by now; more than `most` bytes are an error.
    pub(crate) async fn whole(&self, name: &str, most: u64) -> Result<Bytes, Unread> {
        let path = Path::from(name);
        let asked = self.store.get_opts(&path, GetOptions::default());
        match self.asked.ask(RequestClass::Get, asked).await {
            Ok(got) if got.meta.size > most => {
                let reason = format!("it has {} bytes, more than {most}", got.meta.size);
                Err(Unread::Failed(PackError::damaged(name, reason)))
            }
            Ok(got) => {
                let bytes = got.bytes().await;
                bytes.map_err(|error| Unread::Failed(failed("read", name, &error)))
            }
            Err(Error::NotFound { .. }) => Err(Unread::Missing),
            Err(error) => Err(Unread::Failed(failed("read", name, &error))),
        }
    }

    /// One request for bytes of an object, which come as they arrive.
    pub(crate) async fn pieces(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, PackError>>, Unread> {
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let path = Path::from(name);
        let got = self.asked.ask(RequestClass::Get, self.store.get_opts(&path, options)).await;
        let name = name.to_owned();
        match got {
            Ok(got) => {
                let named = move |error: Error| failed("read", &name, &error);
                Ok(got.into_stream().map_err(named).boxed())
            }
            Err(Error::NotFound { .. }) => Err(Unread::Missing),
            Err(error) => Err(Unread::Failed(failed("read", &name, &error))),
        }
    }

    /// As [`Backend::pieces`], of an object that was uploaded: see [`Backend::read_uploaded`].
    pub(crate) async fn pieces_uploaded(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, PackError>>, Unread> {
        read_again(name, || self.pieces(name, range.clone())).await
    }

    /// Bytes of an object, or `None` if there is no such object.
    pub(crate) async fn size(&self, name: &str) -> Result<Option<u64>, PackError> {
        let path = Path::from(name);
        match self.asked.ask(RequestClass::Head, self.store.head(&path)).await {
            Ok(found) => Ok(Some(found.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("look at", name, &error)),
        }
    }

    /// An object as the store has it, past the request scheduler.
    #[cfg(test)]
    pub(crate) async fn at_once(&self, name: &str) -> Option<Bytes> {
        self.store.get(&Path::from(name)).await.ok()?.bytes().await.ok()
    }

    /// Objects below a prefix, some at a time.
    pub(crate) fn list(&self, prefix: &str) -> Listing {
        let found = self.store.list(Some(&Path::from(prefix)));
        Listing::new(self.asked.clone(), prefix, found)
    }

    /// Names, without the prefix, and sizes of all objects below a prefix, sorted.
    pub(crate) async fn names(&self, prefix: &str) -> Result<Vec<(String, u64)>, PackError> {
        sorted(self.list(prefix)).await
    }

    /// Names, without the prefix, of all objects below a prefix, sorted, and when the backend got each, in milliseconds since
    /// 1970, by its own clock.
    pub(crate) async fn names_made(&self, prefix: &str) -> Result<Vec<(String, i64)>, PackError> {
        let (mut listing, mut names) = (self.list(prefix), Vec::new());
        while let Some(page) = listing.page().await? {
            let made = |(name, object): (String, ObjectMeta)| {
                (name, object.last_modified.timestamp_millis())
            };
            names.extend(page.into_iter().map(made));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// As [`Backend::names`], but only those that sort behind `after`, which need not be one's.
    pub(crate) async fn names_after(
        &self,
        prefix: &str,
        after: &str,
    ) -> Result<Vec<(String, u64)>, PackError> {
        let offset = Path::from(format!("{prefix}/{after}"));
        let found = self.store.list_with_offset(Some(&Path::from(prefix)), &offset);
        sorted(Listing::new(self.asked.clone(), prefix, found)).await
    }

    /// Removes an object; no error if it is not there.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), PackError> {
        let path = Path::from(name);
        match self.asked.ask(RequestClass::Delete, self.store.delete(&path)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed("remove", name, &error)),
        }
    }
}

impl BackendClient {
    fn new() -> Self {
        let counters = Arc::<Counters>::default();
        Self {
            scheduler: Arc::new(RequestScheduler::new(counters.clone())),
            counters,
            over_http: false,
        }
    }

    /// Makes a request, once there is money for it. It is begun, and so signed, only then.
    async fn ask<T>(
        &self,
        class: RequestClass,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        self.scheduler.afford(class).await;
        if self.over_http {
            return request.await;
        }
        let pass = self.scheduler.enter(class).await.map_err(not_made)?;
        let answer = request.await;
        pass.answered(if answer.is_ok() { Answer::Good } else { Answer::Unknown });
        answer
    }
}

/// Looks again for what seems to be missing: some stores say so for a moment of what is there.
async fn read_again<T, F: Future<Output = Result<T, Unread>>>(
    name: &str,
    look: impl Fn() -> F,
) -> Result<T, Unread> {
    let mut pause = MISSING_PAUSE;
    for looks in 1..MISSING_READS_MAX {
        match look().await {
            Err(Unread::Missing) => {
                tracing::warn!(
                    name,
                    looks,
                    "the backend reports that an uploaded object is missing"
                );
                tokio::time::sleep(jittered(pause)).await;
                pause *= 4;
            }
            looked => return looked,
        }
    }
    look().await
}

async fn sorted(mut listing: Listing) -> Result<Vec<(String, u64)>, PackError> {
    let mut names = Vec::new();
    while let Some(some) = listing.next().await? {
        names.extend(some);
    }
    names.sort_unstable();
    Ok(names)
}

fn not_made(reason: NotMade) -> Error {
    Error::Generic { store: "the gate before the backend", source: Box::new(reason) }
}

fn failed(operation: &'static str, name: &str, error: &Error) -> PackError {
    PackError::Backend { operation, name: name.to_owned(), reason: error.to_string() }
}
