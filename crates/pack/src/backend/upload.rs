//! An object that goes up part by part, a bounded number of them under way.

use bytes::Bytes;
use object_store::{MultipartUpload, PutPayload};
use tokio::task::JoinSet;

use super::{Asked, failed};
use crate::class::RequestClass;
use crate::counters::add;
use crate::error::PackError;

/// An object being written. Dropped before [`BackendUpload::finish`] it is given up.
pub(crate) struct BackendUpload {
    parts: Option<Box<dyn MultipartUpload>>,
    under_way: JoinSet<object_store::Result<()>>,
    name: String,
    asked: Asked,
    bytes: u64,
}

impl BackendUpload {
    pub(super) fn new(parts: Box<dyn MultipartUpload>, name: &str, asked: Asked) -> Self {
        let (name, under_way) = (name.to_owned(), JoinSet::new());
        Self { parts: Some(parts), under_way, name, asked, bytes: 0 }
    }

    /// Sends the next part once fewer than `under_way_max` are under way. All parts but the last are of equal size.
    pub(crate) async fn add(
        &mut self,
        pieces: Vec<Bytes>,
        under_way_max: usize,
    ) -> Result<(), PackError> {
        while self.under_way.len() >= under_way_max {
            self.one_done().await?;
        }
        self.bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let payload: PutPayload = pieces.into_iter().collect();
        let parts = self.parts.as_mut().expect("a finished upload takes no parts");
        let (asked, part) = (self.asked.clone(), parts.put_part(payload));
        self.under_way.spawn(async move { asked.ask(RequestClass::Part, part).await });
        Ok(())
    }

    /// Makes the object of all parts.
    pub(crate) async fn finish(mut self) -> Result<(), PackError> {
        while !self.under_way.is_empty() {
            self.one_done().await?;
        }
        let parts = self.parts.as_mut().expect("an upload is finished once");
        let finished = self.asked.ask(RequestClass::Put, parts.complete()).await;
        finished.map_err(|error| failed("finish", &self.name, &error))?;
        self.parts = None;
        add(&self.asked.counters.uploaded_bytes, self.bytes);
        Ok(())
    }

    async fn one_done(&mut self) -> Result<(), PackError> {
        match self.under_way.join_next().await {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(failed("write", &self.name, &error)),
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
