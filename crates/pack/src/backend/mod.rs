//! The seam to somebody else's object store: the few things that packing asks of one, each counted.
//!
//! # Invariants
//!
//! 1. When [`Backend::put`] or [`BackendUpload::finish`] returns `Ok` the object is durable, as far as the backend
//!    keeps its word; on a local directory, synced.
//! 2. A request is repeated on throttling and lost connections, with growing pauses, for a bounded time.
//!
//! Must not: know what blobs are.

mod upload;
mod url;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};

pub(crate) use upload::BackendUpload;

use crate::counters::{Counters, add, count};
use crate::error::PackError;

/// Names on one page of a list, as S3 has it; only to estimate requests.
const PAGE_NAMES: u64 = 1000;

/// Somebody else's object store, or a part of it under a prefix. Cheap to clone.
#[derive(Clone)]
pub struct Backend {
    store: Arc<dyn ObjectStore>,
    counters: Arc<Counters>,
}

/// Why an object did not come.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The backend says that there is none.
    Missing,
    /// Ask again later.
    Failed(PackError),
}

impl Backend {
    /// Reaches the store that a URL names: `file:///directory`, made if it is missing, or
    /// `s3://bucket/prefix?endpoint=URL&region=NAME`. Keys for S3 come from the environment, as other tools have
    /// them (`AWS_ACCESS_KEY_ID` and so on).
    ///
    /// # Errors
    /// [`PackError::Config`] if the URL is not one of these, [`PackError::Backend`] if the store cannot be used.
    pub fn open(url: &str) -> Result<Self, PackError> {
        Ok(Self::over(url::open(url)?))
    }

    /// A store that is at hand.
    #[must_use]
    pub fn over(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, counters: Arc::default() }
    }

    /// What was asked of it, and what else packing counts.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Writes a small object; one that is there is replaced.
    pub(crate) async fn put(&self, name: &str, bytes: Bytes) -> Result<(), PackError> {
        count(&self.counters.backend_writes);
        let len = bytes.len() as u64;
        let put = self.store.put(&Path::from(name), PutPayload::from_bytes(bytes)).await;
        put.map_err(|error| failed("write", name, &error))?;
        add(&self.counters.uploaded_bytes, len);
        Ok(())
    }

    /// Writes a small object that is not there yet; false if it is.
    pub(crate) async fn put_new(&self, name: &str, bytes: Bytes) -> Result<bool, PackError> {
        count(&self.counters.backend_writes);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let payload = PutPayload::from_bytes(bytes);
        match self.store.put_opts(&Path::from(name), payload, options).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(failed("write", name, &error)),
        }
    }

    /// Begins an object that is written part by part.
    pub(crate) async fn begin(&self, name: &str) -> Result<BackendUpload, PackError> {
        count(&self.counters.backend_writes);
        let begun = self.store.put_multipart(&Path::from(name)).await;
        let parts = begun.map_err(|error| failed("begin", name, &error))?;
        Ok(BackendUpload::new(parts, name, self.counters.clone()))
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

    /// One request for bytes of an object, which come as they arrive.
    pub(crate) async fn pieces(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, PackError>>, Unread> {
        count(&self.counters.backend_reads);
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let got = self.store.get_opts(&Path::from(name), options).await;
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

    /// Bytes of an object, or `None` if there is no such object.
    pub(crate) async fn size(&self, name: &str) -> Result<Option<u64>, PackError> {
        count(&self.counters.backend_reads);
        match self.store.head(&Path::from(name)).await {
            Ok(found) => Ok(Some(found.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("look at", name, &error)),
        }
    }

    /// Names, without the prefix, and sizes of all objects below a prefix, sorted.
    pub(crate) async fn names(&self, prefix: &str) -> Result<Vec<(String, u64)>, PackError> {
        let path = Path::from(prefix);
        let mut found = self.store.list(Some(&path));
        let mut names = Vec::new();
        while let Some(object) =
            found.try_next().await.map_err(|error| failed("list", prefix, &error))?
        {
            let location = object.location.as_ref();
            let below = location.strip_prefix(path.as_ref());
            if let Some(name) = below.and_then(|name| name.strip_prefix('/')) {
                names.push((name.to_owned(), object.size));
            }
        }
        add(&self.counters.backend_lists, names.len() as u64 / PAGE_NAMES + 1);
        names.sort_unstable();
        Ok(names)
    }

    /// Removes an object; no error if it is not there.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), PackError> {
        count(&self.counters.backend_deletes);
        match self.store.delete(&Path::from(name)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed("remove", name, &error)),
        }
    }
}

fn failed(operation: &'static str, name: &str, error: &Error) -> PackError {
    PackError::Backend { operation, name: name.to_owned(), reason: error.to_string() }
}
