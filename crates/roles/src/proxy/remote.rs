//! Reads versions of many bytes in the regions that have them, until they have come. It does so by way of
//! the driver of regions, or of the cluster's gateway if this proxy is none.
//!
//! # Invariants
//!
//! 1. A client that takes its time holds no connection to another region. The bytes that come with a
//!    request are in memory before any of it is passed on. They are at most [`REGION_REMOTE_BYTES_MAX`] for
//!    each of [`REGION_REMOTES_MAX`](crate::limits::REGION_REMOTES_MAX) clients.
//! 2. All bytes are of one version.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use larder_objects::{ObjectError, Opened, ReadBody, Remote};
use larder_protocol::region::entry::EntryKind;
use larder_types::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::role_access::RoleAccess;
use super::{OtherRegions, Proxy, unavailable};
use crate::limits::{REGION_REMOTE_BYTES_MAX, REGION_REMOTE_MS, REGION_REMOTE_PAUSE_MS};
use crate::wire::{RemotePart, RemoteVersion};

/// A version that other regions have.
struct RemoteObject<R> {
    access: Arc<R>,
    elsewhere: Option<Weak<dyn OtherRegions>>,
    /// Its first part, as it is asked for.
    of: RemotePart,
    places: Arc<Semaphore>,
}

impl<R> Clone for RemoteObject<R> {
    fn clone(&self) -> Self {
        let Self { access, elsewhere, of, places } = self;
        let (access, places) = (access.clone(), places.clone());
        Self { access, elsewhere: elsewhere.clone(), of: of.clone(), places }
    }
}

impl<R> fmt::Debug for RemoteObject<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("There").field(&self.of).finish()
    }
}

impl<R: RoleAccess> Proxy<R> {
    /// A version of other regions, as an object whose bytes are read from there.
    pub(super) fn opened_there(&self, version: RemoteVersion) -> Result<Opened, ObjectError> {
        let RemoteVersion { name, regions, entry } = version;
        let EntryKind::Object(object) = entry.what else { return Err(ObjectError::NoSuchKey) };
        let (bucket, key) = (name.bucket, name.key.clone());
        let of = RemotePart { name, at: entry.at, regions, from: 0, len: 0 };
        let remote = RemoteObject {
            access: self.access.clone(),
            elsewhere: self.elsewhere.get().cloned(),
            of,
            places: self.remotes.clone(),
        };
        Ok(Opened {
            bucket,
            key,
            op: entry.origin.op,
            metax: object.metax,
            body: Body::Inline(Bytes::new()),
            bytes: None,
            remote_parts: object.parts,
            remote: Some(Arc::new(remote)),
        })
    }
}

impl<R: RoleAccess> RemoteObject<R> {
    /// Reads a part into memory.
    async fn part(&self, range: &Range<u64>) -> Result<Bytes, ObjectError> {
        let len = range.end - range.start;
        let part = RemotePart { from: range.start, len, ..self.of.clone() };
        let elsewhere = self.elsewhere.as_ref().and_then(Weak::upgrade);
        let bytes = match elsewhere.filter(|_| self.access.is_gateway()) {
            Some(elsewhere) => elsewhere.part(part).await?,
            None => self.access.part_at_gateway(part).await?,
        };
        if bytes.len() as u64 != len {
            return Err(unavailable("another region gives fewer bytes of an object than it has"));
        }
        Ok(bytes)
    }

    /// Reads the first bytes of a range, and takes them off it.
    async fn first(&self, range: &mut Range<u64>) -> Result<Bytes, ObjectError> {
        let part = range.start..range.end.min(range.start + REGION_REMOTE_BYTES_MAX);
        range.start = part.end;
        self.part(&part).await
    }

    /// The same of a read that has begun: its client was told that it has the object.
    async fn next(&self, range: &mut Range<u64>) -> Result<Bytes, ObjectError> {
        let deadline = Instant::now() + Duration::from_millis(REGION_REMOTE_MS);
        loop {
            let mut rest = range.clone();
            match self.first(&mut rest).await {
                // All places are taken, or another proxy is about to be the gateway.
                Err(ObjectError::SlowDown | ObjectError::Unavailable { .. })
                    if Instant::now() < deadline =>
                {
                    sleep(Duration::from_millis(REGION_REMOTE_PAUSE_MS)).await;
                }
                read => {
                    *range = rest;
                    return read;
                }
            }
        }
    }
}

/// A read that is under way.
struct Reading<R> {
    there: RemoteObject<R>,
    rest: Range<u64>,
    _place: OwnedSemaphorePermit,
}

impl<R: RoleAccess> Remote for RemoteObject<R> {
    fn read(&self, mut range: Range<u64>) -> BoxFuture<'_, Result<ReadBody, ObjectError>> {
        Box::pin(async move {
            if range.start >= range.end {
                return Ok(ReadBody::Whole(Bytes::new()));
            }
            let place = self.places.clone().try_acquire_owned();
            let place = place.map_err(|_all_taken| ObjectError::SlowDown)?;
            // Any fault of it is said before the answer begins.
            let first = self.first(&mut range).await?;
            let reading = Reading { there: self.clone(), rest: range, _place: place };
            let rest = stream::unfold(Some(reading), async |reading| {
                let mut reading = reading.filter(|reading| !reading.rest.is_empty())?;
                // It ends with the client that waits for it.
                let mut under_way = JoinSet::new();
                under_way.spawn(async move {
                    let read = reading.there.next(&mut reading.rest).await;
                    (read, reading)
                });
                match under_way.join_next().await? {
                    Ok((Ok(bytes), reading)) => Some((Ok(bytes), Some(reading))),
                    Ok((Err(error), _)) => Some((Err(error), None)),
                    Err(_panicked) => Some((Err(ObjectError::Changed), None)),
                }
            });
            let parts = stream::once(async move { Ok(first) }).chain(rest);
            Ok(ReadBody::Stream(Box::pin(parts)))
        })
    }
}
