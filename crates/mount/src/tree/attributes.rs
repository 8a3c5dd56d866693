//! Tells and changes the attributes of files.

use std::time::SystemTime;

use larder_objects::{Objects, Opened, PutDone, PutOptions};
use larder_types::{Condition, ObjectKey};

use super::open::{Content, OpenFile};
use super::{Found, OpenHow, Tree, if_same, patiently};
use crate::nodes::Ino;
use crate::path::TreePath;
use crate::refusal::Refusal;
use crate::stamp::{PERMISSIONS, Stat};

/// The changes to a file's attributes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Changes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Time of the last write.
    pub mtime: Option<SystemTime>,
    /// Bytes.
    pub size: Option<u64>,
}

impl Changes {
    fn is_stamp(&self) -> bool {
        self.mode.is_some() || self.mtime.is_some()
    }

    fn stamp(&self, stat: &mut Stat) {
        if let Some(mode) = self.mode {
            stat.mode = mode as u16 & PERMISSIONS;
        }
        stat.mtime = self.mtime.unwrap_or(stat.mtime);
    }
}

impl<O: Objects> Tree<O> {
    /// Tells the attributes of a node; those of an open file as it was opened and written since.
    ///
    /// # Errors
    /// [`Refusal::Stale`] if something else is there by now; [`Refusal::NotFound`].
    pub async fn stat(&self, ino: Ino) -> Result<Stat, Refusal> {
        if let Some(file) = self.nodes.lock().open_of(ino) {
            return Ok(file.stat());
        }
        let path = self.nodes.lock().path(ino)?;
        match self.find(&path).await? {
            Found::File(opened) => self.same(ino, &opened).map(|()| Stat::of_file(&opened.metax)),
            Found::Directory(stat) if self.nodes.lock().version(ino).is_none() => Ok(stat),
            Found::Directory(_) => Err(Refusal::Stale),
        }
    }

    fn same(&self, ino: Ino, opened: &Opened) -> Result<(), Refusal> {
        let same = self.nodes.lock().version(ino) == Some(opened.metax.clock);
        if same { Ok(()) } else { Err(Refusal::Stale) }
    }

    /// Changes attributes. Of a file that is being written they are stored with it, of others at once. A size given without an
    /// open file (`by_handle`) is stored at once too.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`] for set-user-id, set-group-id and sticky bits, and for objects that S3 clients uploaded in parts,
    /// which cannot get other attributes without moving their bytes.
    pub async fn change(
        &self,
        ino: Ino,
        changes: Changes,
        by_handle: Option<u64>,
    ) -> Result<Stat, Refusal> {
        if changes.mode.is_some_and(|mode| mode & 0o7000 != 0) {
            return Err(Refusal::NotPermitted);
        }
        if let Some(size) = changes.size {
            match by_handle {
                Some(handle) => self.resize(&self.file_of(handle)?.1, size).await?,
                None => self.truncate(ino, size).await?,
            }
        }
        if changes.is_stamp() {
            self.restamp(ino, changes).await?;
        }
        self.stat(ino).await
    }

    async fn truncate(&self, ino: Ino, size: u64) -> Result<(), Refusal> {
        let how = OpenHow { writes: true, ..OpenHow::default() };
        let handle = self.open_to_keep(ino, how, size).await?;
        let done = match self.file_of(handle) {
            Ok((_, file)) => self.resize(&file, size).await,
            Err(refusal) => Err(refusal),
        };
        let done = match done {
            Ok(()) => self.save(handle).await,
            refused => refused,
        };
        self.release(handle).await;
        done
    }

    async fn restamp(&self, ino: Ino, changes: Changes) -> Result<(), Refusal> {
        let _paths_stay = self.moves.read().await;
        let open = self.nodes.lock().open_of(ino);
        let Some(file) = open else { return self.restamp_stored(ino, changes, None).await };
        let mut content = file.content.lock().await;
        if self.nodes.lock().is_superseded(ino) {
            return Err(Refusal::Stale);
        }
        // Put with the rest, or, of a file that was deleted, never.
        let with_the_rest = content.is_unsaved || self.nodes.lock().path(ino).is_err();
        if with_the_rest {
            changes.stamp(&mut content.stat);
            file.show(&content);
            return Ok(());
        }
        self.restamp_stored(ino, changes, Some((&file, &mut content))).await
    }

    async fn restamp_stored(
        &self,
        ino: Ino,
        changes: Changes,
        open: Option<(&OpenFile, &mut Content)>,
    ) -> Result<(), Refusal> {
        let path = self.nodes.lock().path(ino)?;
        let opened = match self.find(&path).await? {
            Found::File(opened) => *opened,
            Found::Directory(stat) => return self.restamp_directory(&path, stat, changes).await,
        };
        self.same(ino, &opened)?;
        let mut stat = Stat::of_file(&opened.metax);
        changes.stamp(&mut stat);
        let done = self.link_to_itself(&opened, &path.file_key()?, &stat).await?;
        self.nodes.lock().put_as(ino, done.clock);
        if let Some((file, content)) = open {
            changes.stamp(&mut content.stat);
            self.follow(&path, content, &done).await;
            file.show(content);
        }
        Ok(())
    }

    /// An open file is a version that this mount has just made of it.
    pub(super) async fn follow(&self, path: &TreePath, content: &mut Content, done: &PutDone) {
        if content.stored.is_none() {
            return;
        }
        match self.reopened(path).await {
            Ok(opened) if opened.metax.clock == done.clock => content.restore(opened),
            // Another client was quicker: reading on says so.
            _ => {}
        }
    }

    async fn link_to_itself(
        &self,
        opened: &Opened,
        key: &ObjectKey,
        stat: &Stat,
    ) -> Result<PutDone, Refusal> {
        let mut attributes = opened.metax.attributes.clone();
        stat.write_into(&mut attributes);
        let options = PutOptions { attributes, condition: if_same(opened) };
        let link = || self.objects.link(opened, &self.bucket, key, options.clone());
        patiently(link).await?.ok_or(Refusal::NotPermitted)
    }

    /// A directory's mode and time are its marker's. The root has none, and keeps nothing.
    async fn restamp_directory(
        &self,
        path: &TreePath,
        mut stat: Stat,
        changes: Changes,
    ) -> Result<(), Refusal> {
        if path.is_root() {
            return Ok(());
        }
        changes.stamp(&mut stat);
        let key = path.marker_key()?;
        match self.objects.open(&self.bucket, &key).await.map_err(Refusal::from) {
            Ok(marker) => self.link_to_itself(&marker, &key, &stat).await.map(drop),
            Err(Refusal::NotFound) => self.put_marker(&key, &stat, Condition::default()).await,
            Err(refusal) => Err(refusal),
        }
    }
}
