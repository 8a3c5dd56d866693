//! Making and deleting directories, symbolic links and files' names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

use bytes::Bytes;
use larder_objects::{ObjectError, Objects, PutDone, PutOptions};
use larder_types::{Attributes, Condition, ObjectKey};

use super::{Found, Tree, if_new};
use crate::draft::DraftBody;
use crate::limits::LINK_BYTES_MAX;
use crate::nodes::Ino;
use crate::path::TreePath;
use crate::refusal::Refusal;
use crate::stamp::{Kind, Stat};

impl<O: Objects> Tree<O> {
    /// Makes a directory: puts its marker.
    ///
    /// # Errors
    /// [`Refusal::Exists`]; what the store answers.
    pub async fn make_directory(
        &self,
        parent: Ino,
        name: &OsStr,
        mode: u16,
    ) -> Result<(Ino, Stat), Refusal> {
        let path = self.child(parent, name)?;
        let _paths_stay = self.moves.read().await;
        self.must_not_be(&path).await?;
        let stat = Stat::new(Kind::Directory, mode, SystemTime::now());
        match self.put_marker(&path.marker_key()?, &stat, if_new()).await {
            Err(Refusal::Stale) => return Err(Refusal::Exists),
            done => done?,
        }
        Ok((self.nodes.lock().look_up_inode(&path, None)?, stat))
    }

    /// Makes a symbolic link: an object of what it says.
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::NameTooLong`]; what the store answers.
    pub async fn make_link(
        &self,
        parent: Ino,
        name: &OsStr,
        to: &OsStr,
    ) -> Result<(Ino, Stat), Refusal> {
        if to.len() > LINK_BYTES_MAX {
            return Err(Refusal::NameTooLong);
        }
        let path = self.child(parent, name)?;
        let _paths_stay = self.moves.read().await;
        self.must_not_be(&path).await?;
        let mut stat = Stat::new(Kind::Symlink, 0o777, SystemTime::now());
        stat.size = to.len() as u64;
        let to = Bytes::copy_from_slice(to.as_bytes());
        let done = match self.put_bytes(&path.file_key()?, &stat, to, if_new()).await {
            Err(Refusal::Stale) => return Err(Refusal::Exists),
            done => done?,
        };
        Ok((self.nodes.lock().look_up_inode(&path, Some(done.clock))?, stat))
    }

    async fn must_not_be(&self, path: &TreePath) -> Result<(), Refusal> {
        if self.unsaved_at(path).is_some() {
            return Err(Refusal::Exists);
        }
        match self.find(path).await {
            Ok(_) => Err(Refusal::Exists),
            Err(Refusal::NotFound) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// The file at a path that the store lacks, or has as it was.
    pub(super) fn unsaved_at(
        &self,
        path: &TreePath,
    ) -> Option<(Ino, std::sync::Arc<super::OpenFile>)> {
        self.nodes.lock().open_at(path).filter(|(_, file)| file.unsaved().is_some())
    }

    pub(super) async fn put_marker(
        &self,
        key: &ObjectKey,
        stat: &Stat,
        condition: Condition,
    ) -> Result<(), Refusal> {
        self.put_bytes(key, stat, Bytes::new(), condition).await.map(drop)
    }

    async fn put_bytes(
        &self,
        key: &ObjectKey,
        stat: &Stat,
        bytes: Bytes,
        condition: Condition,
    ) -> Result<PutDone, Refusal> {
        let mut attributes = Attributes::default();
        stat.write_into(&mut attributes);
        let options = PutOptions { attributes, condition };
        self.put(key, options, || DraftBody::held(bytes.clone())).await
    }

    /// Sees that a directory stays when what is in it goes: what S3 clients made has no marker.
    pub(super) async fn keep_directory(&self, path: &TreePath) -> Result<(), Refusal> {
        if path.is_root() {
            return Ok(());
        }
        let key = path.marker_key()?;
        match self.objects.open(&self.bucket, &key).await {
            Ok(_) => return Ok(()),
            Err(ObjectError::NoSuchKey) => {}
            Err(error) => return Err(error.into()),
        }
        let stat = Stat::directory(SystemTime::now());
        match self.put_marker(&key, &stat, if_new()).await {
            Ok(()) | Err(Refusal::Stale) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Deletes a file. Programs that have it open keep it.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::IsADirectory`]; what the store answers.
    pub async fn delete_file(&self, parent: Ino, name: &OsStr) -> Result<(), Refusal> {
        let path = self.child(parent, name)?;
        let _paths_stay = self.moves.read().await;
        let open = self.nodes.lock().open_at(&path);
        // While this is held nothing is put there.
        let mut content = match &open {
            Some((_, file)) => Some(file.content.lock().await),
            None => None,
        };
        let is_unsaved = content.as_ref().is_some_and(|content| content.is_unsaved);
        let is_stored = match self.find(&path).await {
            Ok(Found::File(_)) => true,
            Err(Refusal::NotFound) | Ok(Found::Directory(_)) if is_unsaved => false,
            Ok(Found::Directory(_)) => return Err(Refusal::IsADirectory),
            Err(refusal) => return Err(refusal),
        };
        if is_stored {
            if let (Some((ino, _)), Some(content)) = (&open, &mut content) {
                self.keep_for_readers(*ino, content).await?;
            }
            self.remove(&path, &path.file_key()?, Condition::default()).await?;
        }
        self.nodes.lock().gone(&path);
        Ok(())
    }

    /// Deletes a key of what is at a path, and keeps the directory that it is in.
    pub(super) async fn remove(
        &self,
        path: &TreePath,
        key: &ObjectKey,
        condition: Condition,
    ) -> Result<(), Refusal> {
        if let Some(parent) = path.parent() {
            self.keep_directory(&parent).await?;
        }
        Ok(self.delete(key, condition).await?)
    }

    /// Deletes an empty directory.
    ///
    /// # Errors
    /// [`Refusal::NotEmpty`] also if keys below it are not shown; [`Refusal::NotADirectory`], [`Refusal::NotFound`].
    pub async fn delete_directory(&self, parent: Ino, name: &OsStr) -> Result<(), Refusal> {
        let path = self.child(parent, name)?;
        let _paths_stay = self.moves.read().await;
        if let Found::File(_) = self.find(&path).await? {
            return Err(Refusal::NotADirectory);
        }
        self.must_be_empty(&path).await?;
        self.remove(&path, &path.marker_key()?, Condition::default()).await?;
        self.nodes.lock().gone(&path);
        Ok(())
    }

    /// Nothing is in a directory but its marker.
    pub(super) async fn must_be_empty(&self, path: &TreePath) -> Result<(), Refusal> {
        let marker = path.marker_key()?;
        let keys = self.keys_below(path, 2).await?;
        let open = self.nodes.lock().open_below(path);
        let unsaved = open.iter().any(|(_, _, file)| file.unsaved().is_some());
        match unsaved || keys.iter().any(|key| *key != marker) {
            true => Err(Refusal::NotEmpty),
            false => Ok(()),
        }
    }
}
