//! An object that goes up part by part, a bounded number of them under way.
//!
//! # Invariant
//!
//! Where parts have numbers, one that failed can be sent again, and those that came through stay.
//! So an upload goes on where it was cut off, as long as the process lives.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{Error, MultipartId, MultipartUpload, PutPayload};
use tokio::task::JoinSet;

use super::{BackendClient, failed};
use crate::class::RequestClass;
use crate::counters::add;
use crate::error::PackError;

type Stored<T> = object_store::Result<T>;

/// A store whose parts have numbers, and the prefix of its names.
#[derive(Clone)]
pub(super) struct Numbered {
    pub(super) store: Arc<dyn MultipartStore>,
    pub(super) prefix: Path,
}

impl Numbered {
    pub(super) fn below(&self, prefix: &str) -> Self {
        let prefix = self.prefix.parts().chain(Path::from(prefix).parts()).collect();
        Self { store: self.store.clone(), prefix }
    }

    pub(super) async fn begin(&self, path: &Path) -> Stored<Parts> {
        let path = self.prefix.parts().chain(path.parts()).collect();
        let id = self.store.create_multipart(&path).await?;
        Ok(Parts::Numbered(Arc::new(Begun { store: self.store.clone(), path, id })))
    }
}

/// An upload that the store knows by its id.
pub(super) struct Begun {
    store: Arc<dyn MultipartStore>,
    path: Path,
    id: MultipartId,
}

/// An upload as the store takes it.
pub(super) enum Parts {
    Numbered(Arc<Begun>),
    /// Each part is sent once, one after the other.
    InOrder(Box<dyn MultipartUpload>),
}

impl Parts {
    fn send(
        &mut self,
        number: usize,
        data: PutPayload,
    ) -> BoxFuture<'static, Stored<Option<PartId>>> {
        match self {
            Self::Numbered(begun) => {
                let begun = begun.clone();
                Box::pin(async move {
                    begun.store.put_part(&begun.path, &begun.id, number, data).await.map(Some)
                })
            }
            Self::InOrder(parts) => {
                let part = parts.put_part(data);
                Box::pin(async move { part.await.map(|()| None) })
            }
        }
    }

    async fn complete(&mut self, done: &BTreeMap<usize, Option<PartId>>) -> Stored<()> {
        match self {
            Self::Numbered(begun) => {
                let ids = done.values().flatten().cloned().collect();
                begun.store.complete_multipart(&begun.path, &begun.id, ids).await.map(drop)
            }
            Self::InOrder(parts) => parts.complete().await.map(drop),
        }
    }

    async fn abort(&mut self) -> Stored<()> {
        match self {
            Self::Numbered(begun) => begun.store.abort_multipart(&begun.path, &begun.id).await,
            Self::InOrder(parts) => parts.abort().await,
        }
    }
}

/// An object being written. Dropped before [`BackendUpload::finish`] it is given up.
pub(crate) struct BackendUpload {
    parts: Option<Parts>,
    under_way: JoinSet<(usize, Stored<Option<PartId>>)>,
    /// Parts that the store has.
    done: BTreeMap<usize, Option<PartId>>,
    next: usize,
    /// True if the store said that it does not know this upload.
    is_lost: bool,
    name: String,
    asked: BackendClient,
    bytes: u64,
}

impl BackendUpload {
    pub(super) fn new(parts: Parts, name: &str, asked: BackendClient) -> Self {
        Self {
            parts: Some(parts),
            under_way: JoinSet::new(),
            done: BTreeMap::new(),
            next: 0,
            is_lost: false,
            name: name.to_owned(),
            asked,
            bytes: 0,
        }
    }

    /// Sends the next part once fewer than `under_way_max` are under way. All parts but the last are of equal size.
    pub(crate) async fn add(
        &mut self,
        pieces: Vec<Bytes>,
        under_way_max: usize,
    ) -> Result<(), PackError> {
        let number = self.next;
        self.next += 1;
        self.send(number, pieces, under_way_max).await
    }

    /// As [`BackendUpload::add`], for the part of this number: one that the store does not have yet.
    pub(crate) async fn send(
        &mut self,
        number: usize,
        pieces: Vec<Bytes>,
        under_way_max: usize,
    ) -> Result<(), PackError> {
        while self.under_way.len() >= under_way_max {
            self.one_done().await?;
        }
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let payload: PutPayload = pieces.into_iter().collect();
        let parts = self.parts.as_mut().expect("a finished upload takes no parts");
        let (asked, part) = (self.asked.clone(), parts.send(number, payload));
        self.bytes += bytes;
        let sent = async move { (number, asked.ask(RequestClass::Part, part).await) };
        self.under_way.spawn(sent);
        Ok(())
    }

    /// Returns true if the store has a part.
    pub(crate) fn has(&self, number: usize) -> bool {
        self.done.contains_key(&number)
    }

    /// Parts that the store has.
    pub(crate) fn parts_done(&self) -> usize {
        self.done.len()
    }

    /// Returns true if parts that failed can be sent again.
    pub(crate) fn can_resume(&self) -> bool {
        !self.is_lost && matches!(self.parts, Some(Parts::Numbered(_)))
    }

    /// Waits for the parts under way, whatever becomes of them.
    pub(crate) async fn settle(&mut self) {
        while !self.under_way.is_empty() {
            if let Err(error) = self.one_done().await {
                tracing::debug!(%error, "another part failed");
            }
        }
    }

    /// Makes the object of all parts.
    pub(crate) async fn finish(&mut self) -> Result<(), PackError> {
        self.finish_with(|| {}).await
    }

    /// As [`BackendUpload::finish`]; calls `whole` when the store has all parts, before it is asked.
    pub(crate) async fn finish_with(&mut self, whole: impl FnOnce()) -> Result<(), PackError> {
        while !self.under_way.is_empty() {
            self.one_done().await?;
        }
        whole();
        let parts = self.parts.as_mut().expect("an upload is finished once");
        let finished = self.asked.ask(RequestClass::Put, parts.complete(&self.done)).await;
        finished.map_err(|error| failed("finish", &self.name, &error))?;
        self.is_there();
        Ok(())
    }

    /// The object is there: nothing is left to give up.
    pub(crate) fn is_there(&mut self) {
        if self.parts.take().is_some() {
            add(&self.asked.counters.uploaded_bytes, self.bytes);
        }
    }

    async fn one_done(&mut self) -> Result<(), PackError> {
        match self.under_way.join_next().await {
            None => Ok(()),
            Some(Ok((number, Ok(id)))) => {
                self.done.insert(number, id);
                Ok(())
            }
            Some(Ok((_, Err(error)))) => {
                self.is_lost |= matches!(error, Error::NotFound { .. });
                Err(failed("write", &self.name, &error))
            }
            Some(Err(panicked)) => Err(PackError::Backend {
                operation: "write",
                name: self.name.clone(),
                reason: panicked.to_string(),
            }),
        }
    }
}

impl Drop for BackendUpload {
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        let name = std::mem::take(&mut self.name);
        self.under_way.abort_all();
        // Without a runtime the process ends, and the backend keeps the parts until its own rules remove them.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let asked = self.asked.clone();
            runtime.spawn(async move {
                let given_up = asked.ask(RequestClass::Delete, parts.abort()).await;
                if let Err(error) = given_up {
                    tracing::warn!(%name, %error, "the parts of a broken-off upload stay in the backend");
                }
            });
        }
    }
}
