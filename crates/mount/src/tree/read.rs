//! Reading files and directories.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use larder_objects::{ObjectError, Objects, Opened, ReadBody};

use super::{Handle, Tree};
use crate::counters::Counters;
use crate::limits::{LINK_BYTES_MAX, READ_TRIES};
use crate::listing::{Entry, Listing};
use crate::nodes::Ino;
use crate::path::TreePath;
use crate::refusal::Refusal;
use crate::stamp::{Kind, Stat};

impl<O: Objects> Tree<O> {
    /// At most `len` bytes of an open file from `offset`; fewer only at its end.
    ///
    /// # Errors
    /// [`Refusal::Stale`] if another client replaced or deleted the file since it was opened, unless it was written to;
    /// [`Refusal::BadHandle`]; what the store answers.
    pub async fn read(&self, handle: u64, offset: u64, len: usize) -> Result<Bytes, Refusal> {
        let (_, file) = self.file_of(handle)?;
        for _ in 0..READ_TRIES {
            let (draft, stored) = {
                let content = file.content.lock().await;
                (content.draft.as_ref().map(|draft| draft.reader()), content.stored.clone())
            };
            let read = match (draft, stored) {
                (Some(draft), _) => draft.read(offset, len).await.map(Ok)?,
                (None, Some(stored)) => self.read_stored(&stored, offset, len).await,
                (None, None) => Ok(Bytes::new()),
            };
            match read {
                Ok(bytes) => {
                    Counters::add(&self.counters.read_bytes, bytes.len());
                    return Ok(bytes);
                }
                // This mount may have given it other attributes, or taken it elsewhere.
                Err(ObjectError::Changed) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Refusal::Stale)
    }

    async fn read_stored(
        &self,
        stored: &Opened,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, ObjectError> {
        let end = offset.saturating_add(len as u64).min(stored.metax.size);
        if offset >= end {
            return Ok(Bytes::new());
        }
        self.read_range(stored, offset..end).await
    }

    pub(super) async fn read_range(
        &self,
        stored: &Opened,
        range: Range<u64>,
    ) -> Result<Bytes, ObjectError> {
        let wanted = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut pieces = match self.objects.read(stored, range).await? {
            ReadBody::Whole(bytes) => return Ok(bytes),
            ReadBody::Stream(pieces) => pieces,
        };
        let mut bytes = BytesMut::with_capacity(wanted);
        while let Some(piece) = pieces.next().await {
            bytes.extend_from_slice(&piece?);
        }
        assert_eq!(bytes.len(), wanted, "a store gives the range that was asked for, or an error");
        Ok(bytes.freeze())
    }

    /// Reads a symbolic link.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if it is none.
    pub async fn read_link(&self, ino: Ino) -> Result<Bytes, Refusal> {
        let path = self.nodes.lock().path(ino)?;
        let opened = self.reopened(&path).await?;
        let stat = Stat::of_file(&opened.metax);
        if stat.kind != Kind::Symlink || stat.size > LINK_BYTES_MAX as u64 {
            return Err(Refusal::Invalid);
        }
        Ok(self.read_stored(&opened, 0, LINK_BYTES_MAX).await?)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// [`Refusal::TooManyOpen`], [`Refusal::Stale`].
    pub fn open_directory(&self, ino: Ino) -> Result<u64, Refusal> {
        let path = self.nodes.lock().path(ino)?;
        let listing = Arc::new(tokio::sync::Mutex::new(Listing::new(&path)));
        self.handles.lock().add(Handle::Directory { ino, listing })
    }

    /// Gives out the names of an open directory behind `place`, each with the place behind it, until
    /// `give` says that no more fit.
    ///
    /// # Errors
    /// What the store answers, if nothing was given before.
    pub async fn read_directory(
        &self,
        handle: u64,
        place: u64,
        mut give: impl FnMut(&Entry, u64) -> bool + Send,
    ) -> Result<(), Refusal> {
        let Handle::Directory { ino, listing } = self.handles.lock().get(handle)? else {
            return Err(Refusal::BadHandle);
        };
        let mut listing = listing.lock().await;
        if listing.must_begin(place) {
            let path = self.nodes.lock().path(ino)?;
            *listing = Listing::new(&path);
            listing.begin(self.unsaved_names(&path));
        }
        let mut given = place;
        loop {
            for (next, entry) in listing.behind(given) {
                if give(entry, next) {
                    return Ok(());
                }
                given = next;
            }
            let Some(request) = listing.request() else { return Ok(()) };
            match self.objects.list(&self.bucket, request).await {
                Ok(page) => listing.take(page),
                // The bytes given so far are good; the next call meets the error by itself.
                Err(_) if given > place => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Names of files right below a directory of which a list may not know yet.
    pub(super) fn unsaved_names(&self, path: &TreePath) -> BTreeSet<String> {
        let open = self.nodes.lock().open_below(path);
        let unsaved = open.into_iter().filter(|(_, _, file)| file.unsaved().is_some());
        let below = path.below();
        unsaved
            .filter_map(|(_, at, _)| at.as_str().strip_prefix(&below).map(str::to_owned))
            .filter(|name| !name.contains('/'))
            .collect()
    }
}
