//! The bytes of a file that is being written: a file without a name on the worker's disk, which the system removes with the
//! process, however that ends.
//!
//! # Invariants
//!
//! 1. All drafts together have [`Budget::max`] bytes at most; each has taken its size from it before it grows.
//! 2. A draft never has more bytes than a put may have.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use larder_objects::{BodyDigest, BodyError, PutBody};
use larder_types::limits::PUT_BYTES_MAX;
use md5::{Digest, Md5};

use crate::limits::PIECE_BYTES;
use crate::refusal::Refusal;

/// Bytes that drafts may have together.
#[derive(Debug)]
pub struct Budget {
    used: AtomicU64,
    max: u64,
}

impl Budget {
    /// A budget of `max` bytes.
    #[must_use]
    pub fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), max })
    }

    /// Bytes that drafts have.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that they may have.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    fn take(&self, bytes: u64) -> Result<(), Refusal> {
        let grown = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.max);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        taken.map(drop).map_err(|_| Refusal::NoSpace)
    }

    fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "no more is given back than was taken");
    }
}

/// A file that is being written.
#[derive(Debug)]
pub struct Draft {
    file: Arc<File>,
    size: u64,
    budget: Arc<Budget>,
}

impl Draft {
    /// An empty one, in a file of `folder`.
    ///
    /// # Errors
    /// [`Refusal::NoSpace`] or [`Refusal::Failed`] if there can be no such file.
    pub async fn new(folder: &Path, budget: &Arc<Budget>) -> Result<Self, Refusal> {
        let folder = folder.to_owned();
        let file = blocking(move || tempfile::tempfile_in(folder)).await?;
        Ok(Self { file: Arc::new(file), size: 0, budget: budget.clone() })
    }

    /// Its bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes at an offset; what is between the end and there is zeroes.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`], [`Refusal::NoSpace`]; then its size is as it was.
    pub async fn write(&mut self, offset: u64, data: Bytes) -> Result<(), Refusal> {
        let end = offset.checked_add(data.len() as u64).ok_or(Refusal::TooLarge)?;
        self.with_free_space(end, move |file| file.write_all_at(&data, offset)).await
    }

    /// Cuts it, or makes it longer with zeroes.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn set_size(&mut self, size: u64) -> Result<(), Refusal> {
        if size > self.size {
            return self.with_free_space(size, move |file| file.set_len(size)).await;
        }
        let file = self.file.clone();
        blocking(move || file.set_len(size)).await?;
        self.budget.give_back(self.size - size);
        self.size = size;
        Ok(())
    }

    /// Does what makes it `end` bytes long, if it was shorter.
    async fn with_free_space(
        &mut self,
        end: u64,
        call: impl FnOnce(&File) -> std::io::Result<()> + Send + 'static,
    ) -> Result<(), Refusal> {
        if end > PUT_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        let more = end.saturating_sub(self.size);
        self.budget.take(more)?;
        // Counted as its own from here, so that they are given back however this ends.
        self.size += more;
        let (file, before) = (self.file.clone(), self.size - more);
        let done = blocking(move || {
            let done = call(&file);
            // Bytes written beyond the end would be read where zeroes belong, once the file grows.
            if done.is_err() && more > 0 {
                file.set_len(before)?;
            }
            done
        });
        let done = done.await;
        if done.is_err() {
            self.size -= more;
            self.budget.give_back(more);
        }
        done
    }

    /// A way to read what it has now.
    #[must_use]
    pub fn reader(&self) -> DraftReader {
        DraftReader { file: self.file.clone(), size: self.size }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.budget.give_back(self.size);
    }
}

/// Reads the bytes that a draft had.
#[derive(Debug, Clone)]
pub struct DraftReader {
    file: Arc<File>,
    size: u64,
}

impl DraftReader {
    /// At most `len` bytes from `offset`; fewer only at the end.
    ///
    /// # Errors
    /// [`Refusal::Failed`].
    pub async fn read(&self, offset: u64, len: usize) -> Result<Bytes, Refusal> {
        let left = self.size.saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(len);
        if len == 0 {
            return Ok(Bytes::new());
        }
        let file = self.file.clone();
        blocking(move || {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, offset)?;
            Ok(Bytes::from(bytes))
        })
        .await
    }
}

/// Runs what may block on the disk where it may.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(call).await {
        Ok(done) => Ok(done?),
        Err(_stopped) => Err(Refusal::Failed),
    }
}

/// Where a body's bytes come from.
enum Source {
    Held(Option<Bytes>),
    Draft(DraftReader),
}

/// The body of a put.
pub struct DraftBody {
    source: Source,
    len: u64,
    at: u64,
    md5: Md5,
}

impl DraftBody {
    /// Bytes at hand.
    #[must_use]
    pub fn held(bytes: Bytes) -> Self {
        Self { len: bytes.len() as u64, source: Source::Held(Some(bytes)), at: 0, md5: Md5::new() }
    }

    /// A body with the bytes of a draft.
    #[must_use]
    pub fn of(draft: DraftReader) -> Self {
        Self { len: draft.size, source: Source::Draft(draft), at: 0, md5: Md5::new() }
    }
}

impl PutBody for DraftBody {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        if self.at == self.len {
            return None;
        }
        let piece = match &mut self.source {
            Source::Held(bytes) => bytes.take()?,
            Source::Draft(draft) => match draft.read(self.at, PIECE_BYTES).await {
                Ok(piece) => piece,
                Err(_told) => return Some(Err(BodyError::Incomplete)),
            },
        };
        self.at += piece.len() as u64;
        self.md5.update(&piece);
        Some(Ok(piece))
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        if self.at != self.len {
            return Err(BodyError::Incomplete);
        }
        let md5 = std::mem::replace(&mut self.md5, Md5::new()).finalize().into();
        Ok(BodyDigest { md5, checksum: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn drafts_share_a_budget_and_give_it_back() {
        let (folder, budget) = (tempfile::tempdir().unwrap(), Budget::new(100));
        let mut one = Draft::new(folder.path(), &budget).await.unwrap();
        let mut two = Draft::new(folder.path(), &budget).await.unwrap();
        one.write(50, Bytes::from_static(b"0123456789")).await.unwrap();
        assert_eq!((one.size(), budget.used()), (60, 60));
        assert_eq!(two.set_size(41).await, Err(Refusal::NoSpace));
        assert_eq!((two.size(), budget.used()), (0, 60));
        one.write(0, Bytes::from_static(b"x")).await.unwrap();
        assert_eq!(budget.used(), 60, "what is written over is there already");
        one.set_size(52).await.unwrap();
        two.set_size(48).await.unwrap();
        assert_eq!(budget.used(), 100);
        drop((one, two));
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_write_that_failed_half_way_leaves_nothing_behind_the_end() {
        let (folder, budget) = (tempfile::tempdir().unwrap(), Budget::new(1000));
        let mut draft = Draft::new(folder.path(), &budget).await.unwrap();
        draft.write(0, Bytes::from_static(b"abc")).await.unwrap();
        let full = |file: &File| {
            file.write_all_at(b"junk", 3)?;
            Err(std::io::ErrorKind::StorageFull.into())
        };
        assert_eq!(draft.with_free_space(100, full).await, Err(Refusal::NoSpace));
        assert_eq!((draft.size(), budget.used()), (3, 3));
        draft.set_size(8).await.unwrap();
        assert_eq!(draft.reader().read(0, 100).await.unwrap(), &b"abc\0\0\0\0\0"[..]);
    }

    #[tokio::test]
    async fn what_was_written_is_read_and_holes_are_zeroes() {
        let (folder, budget) = (tempfile::tempdir().unwrap(), Budget::new(1000));
        let mut draft = Draft::new(folder.path(), &budget).await.unwrap();
        draft.write(2, Bytes::from_static(b"abc")).await.unwrap();
        let reader = draft.reader();
        assert_eq!(reader.read(0, 100).await.unwrap(), &b"\0\0abc"[..]);
        assert_eq!(reader.read(4, 1).await.unwrap(), &b"c"[..]);
        assert_eq!(reader.read(5, 1).await.unwrap(), &b""[..]);
        assert_eq!(draft.write(u64::MAX, Bytes::from_static(b"x")).await, Err(Refusal::TooLarge));
        assert_eq!(draft.set_size(PUT_BYTES_MAX + 1).await, Err(Refusal::TooLarge));
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "it has no name");
    }

    #[tokio::test]
    async fn a_body_has_the_drafts_bytes_and_their_md5() {
        let (folder, budget) = (tempfile::tempdir().unwrap(), Budget::new(10_000_000));
        let mut draft = Draft::new(folder.path(), &budget).await.unwrap();
        let bytes = Bytes::from(vec![7; PIECE_BYTES + 1]);
        draft.write(0, bytes.clone()).await.unwrap();
        let mut body = DraftBody::of(draft.reader());
        assert_eq!(body.next().await.unwrap().unwrap().len(), PIECE_BYTES);
        assert_eq!(body.finish(), Err(BodyError::Incomplete));
        assert_eq!(body.next().await.unwrap().unwrap().len(), 1);
        assert!(body.next().await.is_none());
        let md5: [u8; 16] = Md5::digest(&bytes).into();
        assert_eq!(body.finish().unwrap().md5, md5);
    }
}
