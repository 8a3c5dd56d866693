//! Renaming. A store has no such thing: a key is linked to another, which moves no bytes, and then deleted.
//!
//! # Invariants
//!
//! 1. A program that looks meanwhile sees a file under the new name before it goes from the old one. A process that is
//!    killed in between leaves it under both, never under none.
//! 2. A directory whose keys cannot all be linked stays as it was. A key that another client has put where one of them
//!    goes is not replaced.
//! 3. The old key is deleted only if it still is what was linked.

use std::ffi::OsStr;

use futures::{StreamExt, TryStreamExt, stream};
use larder_objects::{ListRequest, ObjectError, Objects, Opened, PutDone, PutOptions};
use larder_types::{Condition, HybridClock, ObjectKey};

use super::open::OpenFile;
use super::{Found, Tree, if_new, if_same, if_still, key_of, patiently};
use crate::limits::{PAGE_ENTRIES, RENAME_AT_ONCE, RENAME_KEYS_MAX};
use crate::nodes::Ino;
use crate::path::TreePath;
use crate::refusal::Refusal;

/// A key that was linked.
pub(super) struct Linked {
    source: Opened,
    to: ObjectKey,
    version: HybridClock,
    /// True if there was something before: the marker of an empty directory.
    replaces: bool,
}

impl<O: Objects> Tree<O> {
    /// Renames a file or a directory; a file, or an empty directory, that has the new name is replaced, unless `is_new`.
    ///
    /// # Errors
    /// [`Refusal::CopyInstead`] for a directory of more than [`RENAME_KEYS_MAX`] keys, and where an object was uploaded in parts;
    /// [`Refusal::Exists`], [`Refusal::NotEmpty`], [`Refusal::IsADirectory`], [`Refusal::NotADirectory`],
    /// [`Refusal::NotFound`].
    pub async fn rename(
        &self,
        (parent, name): (Ino, &OsStr),
        (new_parent, new_name): (Ino, &OsStr),
        is_new: bool,
    ) -> Result<(), Refusal> {
        let _alone = self.moves.write().await;
        let (from, to) = (self.child(parent, name)?, self.child(new_parent, new_name)?);
        if from == to {
            return Ok(());
        }
        if to.moved(&from, &from).is_some() {
            return Err(Refusal::Invalid);
        }
        let unsaved = self.unsaved_at(&from);
        let condition = if is_new { if_new() } else { Condition::default() };
        if let Some((ino, file)) = unsaved {
            self.make_room(&to, false, is_new).await?;
            return self.rename_unsaved(ino, &file, &from, &to, condition).await;
        }
        match self.find(&from).await? {
            Found::File(source) => {
                self.make_room(&to, false, is_new).await?;
                self.rename_file(&source, &from, &to, condition).await
            }
            Found::Directory(_) => {
                self.make_room(&to, true, is_new).await?;
                self.rename_directory(&from, &to).await
            }
        }
    }

    /// Sees that what has the new name may be replaced, and that programs that have it open keep
    /// it.
    async fn make_room(
        &self,
        to: &TreePath,
        for_directory: bool,
        is_new: bool,
    ) -> Result<(), Refusal> {
        let found = match self.find(to).await {
            Err(Refusal::NotFound) => None,
            found => Some(found?),
        };
        let open = self.nodes.lock().open_at(to);
        let unsaved = open.as_ref().is_some_and(|(_, file)| file.unsaved().is_some());
        match found {
            None if !unsaved => return Ok(()),
            _ if is_new => return Err(Refusal::Exists),
            Some(Found::Directory(_)) if !unsaved => {
                return match for_directory {
                    true => self.must_be_empty(to).await,
                    false => Err(Refusal::IsADirectory),
                };
            }
            _ if for_directory => return Err(Refusal::NotADirectory),
            _ => {}
        }
        if let Some((ino, file)) = open {
            self.keep_for_readers(ino, &mut *file.content.lock().await).await?;
        }
        Ok(())
    }

    /// Puts the written bytes under the new name at once.
    async fn rename_unsaved(
        &self,
        ino: Ino,
        file: &OpenFile,
        from: &TreePath,
        to: &TreePath,
        condition: Condition,
    ) -> Result<(), Refusal> {
        let mut content = file.content.lock().await;
        let version = self.put_content(to, &content, condition).await?;
        self.nodes.lock().moved(from, to);
        self.saved(ino, file, &mut content, version);
        // An earlier version may have the old name still.
        self.remove(from, &from.file_key()?, Condition::default()).await
    }

    async fn rename_file(
        &self,
        source: &Opened,
        from: &TreePath,
        to: &TreePath,
        condition: Condition,
    ) -> Result<(), Refusal> {
        let must_be_new = condition.if_none_match.is_some();
        let done = match self.link(source, &to.file_key()?, condition).await {
            Err(Refusal::Stale) if must_be_new => return Err(Refusal::Exists),
            done => done?,
        };
        let open = {
            let mut nodes = self.nodes.lock();
            nodes.moved(from, to);
            if let Some(ino) = nodes.at(to)
                && nodes.version(ino) == Some(source.metax.clock)
            {
                nodes.put_as(ino, done.clock);
            }
            nodes.open_at(to)
        };
        if let Some((_, file)) = open {
            let mut content = file.content.lock().await;
            self.follow(to, &mut content, &done).await;
        }
        if let Some(parent) = from.parent() {
            self.keep_directory(&parent).await?;
        }
        self.delete_linked(source).await
    }

    async fn link(
        &self,
        source: &Opened,
        to: &ObjectKey,
        condition: Condition,
    ) -> Result<PutDone, Refusal> {
        let options = PutOptions { attributes: source.metax.attributes.clone(), condition };
        let link = || self.objects.link(source, &self.bucket, to, options.clone());
        patiently(link).await?.ok_or(Refusal::CopyInstead)
    }

    /// Deletes what was linked, unless another client has replaced it meanwhile.
    async fn delete_linked(&self, source: &Opened) -> Result<(), Refusal> {
        let still = if_still(&source.metax.etag, source.metax.clock);
        match self.delete(&source.key, still).await {
            Ok(()) | Err(ObjectError::PreconditionFailed | ObjectError::NoSuchKey) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn rename_directory(&self, from: &TreePath, to: &TreePath) -> Result<(), Refusal> {
        let pairs = self.pairs_below(from, to).await?;
        let linked = self.link_all(pairs, &to.marker_key()?).await?;
        self.nodes.lock().moved(from, to);
        self.follow_all(&linked).await;
        if let Some(parent) = from.parent() {
            self.keep_directory(&parent).await?;
        }
        let delete = |linked: Linked| async move { self.delete_linked(&linked.source).await };
        let deletes = stream::iter(linked).map(delete);
        deletes.buffer_unordered(RENAME_AT_ONCE).try_collect::<()>().await
    }

    /// Each key below a directory, and what it becomes.
    pub(super) async fn pairs_below(
        &self,
        from: &TreePath,
        to: &TreePath,
    ) -> Result<Vec<(ObjectKey, ObjectKey)>, Refusal> {
        let (mut pairs, mut after) = (Vec::new(), None);
        loop {
            let request = ListRequest {
                prefix: from.below(),
                delimiter: None,
                after: after.take(),
                max: PAGE_ENTRIES,
            };
            let page = self.objects.list(&self.bucket, request).await?;
            for key in page.items.into_iter().filter_map(key_of) {
                let behind = key.as_str().strip_prefix(&from.below()).ok_or(Refusal::Failed)?;
                let new = ObjectKey::new(&format!("{}{behind}", to.below()));
                after = Some(key.as_str().to_owned());
                pairs.push((key, new.map_err(|_| Refusal::NameTooLong)?));
            }
            if pairs.len() > RENAME_KEYS_MAX {
                return Err(Refusal::CopyInstead);
            }
            if !page.truncated || after.is_none() {
                return Ok(pairs);
            }
        }
    }

    /// Links all, or none. Of what they become only the marker may be there.
    pub(super) async fn link_all(
        &self,
        pairs: Vec<(ObjectKey, ObjectKey)>,
        marker: &ObjectKey,
    ) -> Result<Vec<Linked>, Refusal> {
        let links = stream::iter(pairs).map(|(key, to)| self.link_key(key, to, marker));
        let done: Vec<_> = links.buffer_unordered(RENAME_AT_ONCE).collect().await;
        let (linked, refused): (Vec<_>, Vec<_>) = done.into_iter().partition(Result::is_ok);
        let linked: Vec<_> = linked.into_iter().filter_map(Result::ok).collect();
        let Some(refusal) = refused.into_iter().find_map(Result::err) else { return Ok(linked) };
        self.take_back(&linked).await;
        Err(refusal)
    }

    /// Deletes what was linked, where it still is that version.
    pub(super) async fn take_back(&self, linked: &[Linked]) {
        for Linked { to, version, .. } in linked.iter().filter(|linked| !linked.replaces) {
            let taken_back = match self.objects.open(&self.bucket, to).await {
                Ok(there) if there.metax.clock == *version => {
                    self.delete(to, if_still(&there.metax.etag, *version)).await
                }
                Ok(_) | Err(ObjectError::NoSuchKey) => continue,
                Err(error) => Err(error),
            };
            if let Err(error) = taken_back {
                tracing::warn!(key = to.as_str(), %error, "a rename was abandoned: this key keeps its name");
            }
        }
    }

    pub(super) async fn link_key(
        &self,
        key: ObjectKey,
        to: ObjectKey,
        marker: &ObjectKey,
    ) -> Result<Linked, Refusal> {
        let source = self.objects.open(&self.bucket, &key).await?;
        let there = match to == *marker {
            true => self.objects.open(&self.bucket, &to).await.ok(),
            false => None,
        };
        let condition = there.as_ref().map_or_else(if_new, if_same);
        let done = match self.link(&source, &to, condition).await {
            Err(Refusal::Stale) => return Err(Refusal::NotEmpty),
            done => done?,
        };
        Ok(Linked { source, to, version: done.clock, replaces: there.is_some() })
    }

    /// Nodes, and what is open of them, are the versions that renaming made.
    async fn follow_all(&self, linked: &[Linked]) {
        for Linked { source, to, version, .. } in linked {
            let open = {
                let mut nodes = self.nodes.lock();
                let Some(ino) = nodes.at_key(to) else { continue };
                if nodes.version(ino) != Some(source.metax.clock) {
                    continue;
                }
                nodes.put_as(ino, *version);
                nodes.open_of(ino)
            };
            if let Some(file) = open {
                let mut content = file.content.lock().await;
                if content.stored.is_some()
                    && let Ok(opened) = self.objects.open(&self.bucket, to).await
                    && opened.metax.clock == *version
                {
                    content.restore(opened);
                }
            }
        }
    }
}
