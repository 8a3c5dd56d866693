//! Writing to open files.

use bytes::Bytes;
use futures::StreamExt;
use larder_objects::{Objects, Opened, ReadBody};

use super::open::{Content, OpenFile};
use super::{Handle, Tree};
use crate::counters::Counters;
use crate::draft::Draft;
use crate::limits::COPY_UP_BYTES_MAX;
use crate::nodes::Ino;
use crate::refusal::Refusal;

impl<O: Objects> Tree<O> {
    /// Writes to an open file. It is in the store once the file is closed or synced.
    ///
    /// # Errors
    /// [`Refusal::NoSpace`] beyond what may be written at once; [`Refusal::TooLarge`] beyond what an object may have;
    /// [`Refusal::Stale`] if another client replaced it and its bytes cannot be had any more.
    pub async fn write(&self, handle: u64, offset: u64, data: Bytes) -> Result<(), Refusal> {
        let file = match self.handles.lock().get(handle)? {
            Handle::File { file, writes: true, .. } => file,
            _ => return Err(Refusal::BadHandle),
        };
        let mut content = file.content.lock().await;
        self.copy_up(&mut content, u64::MAX).await?;
        let draft = content.draft.as_mut().expect("it was copied up");
        let bytes = data.len();
        draft.write(offset, data).await?;
        content.written();
        file.show(&content);
        Counters::add(&self.counters.written_bytes, bytes);
        Ok(())
    }

    /// Cuts an open file, or makes it longer.
    pub(super) async fn resize(&self, file: &OpenFile, size: u64) -> Result<(), Refusal> {
        let mut content = file.content.lock().await;
        if content.draft.is_none() && content.stat.size == size {
            return Ok(());
        }
        self.copy_up(&mut content, size).await?;
        content.draft.as_mut().expect("it was copied up").set_size(size).await?;
        content.written();
        file.show(&content);
        Ok(())
    }

    /// Sees that a file's bytes are in a draft, as many of them as are kept.
    async fn copy_up(&self, content: &mut Content, kept: u64) -> Result<(), Refusal> {
        if content.draft.is_some() {
            return Ok(());
        }
        let mut draft = Draft::new(&self.drafts, &self.budget).await?;
        if let Some(stored) = content.stored.clone() {
            let size = stored.metax.size.min(kept);
            if size > COPY_UP_BYTES_MAX {
                return Err(Refusal::TooLarge);
            }
            self.copy_into(&mut draft, &stored, size).await?;
        }
        content.draft = Some(draft);
        Ok(())
    }

    async fn copy_into(
        &self,
        draft: &mut Draft,
        stored: &Opened,
        size: u64,
    ) -> Result<(), Refusal> {
        if size == 0 {
            return Ok(());
        }
        let mut pieces = match self.objects.read(stored, 0..size).await? {
            ReadBody::Whole(bytes) => return draft.write(0, bytes).await,
            ReadBody::Stream(pieces) => pieces,
        };
        while let Some(piece) = pieces.next().await {
            draft.write(draft.size(), piece?).await?;
        }
        assert_eq!(draft.size(), size, "a store gives all, or an error");
        Ok(())
    }

    /// Called before this mount deletes or replaces a file: programs that have it open keep it, if
    /// it is not too large.
    pub(super) async fn keep_for_readers(
        &self,
        ino: Ino,
        content: &mut Content,
    ) -> Result<(), Refusal> {
        match self.copy_up(content, u64::MAX).await {
            Err(refusal @ (Refusal::TooLarge | Refusal::Stale | Refusal::NoSpace)) => {
                tracing::warn!(ino = ino.0, %refusal, "a deleted file that is still open cannot be read any more");
                Ok(())
            }
            done => done,
        }
    }
}
