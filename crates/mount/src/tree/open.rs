//! Opening, making and closing files.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use larder_objects::{ObjectError, Objects, Opened, PutDone, PutOptions};
use larder_types::{Attributes, Condition, HybridClock};
use parking_lot::Mutex;

use super::{Found, Handle, Tree, if_new};
use crate::draft::{Draft, DraftBody};
use crate::limits::COPY_UP_BYTES_MAX;
use crate::nodes::Ino;
use crate::path::TreePath;
use crate::refusal::Refusal;
use crate::stamp::{Kind, Stat};

/// The way in which a file is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// To be written.
    pub writes: bool,
    /// Emptied first.
    pub empties: bool,
    /// Only if it is not there yet.
    pub is_new: bool,
}

/// A file while it is open, shared by all that opened it.
pub(super) struct OpenFile {
    pub(super) content: tokio::sync::Mutex<Content>,
    /// The attributes to tell meanwhile, without waiting for the task that changes it.
    shown: Mutex<ShownSize>,
}

#[derive(Debug, Clone, Copy)]
struct ShownSize {
    stat: Stat,
    unsaved: bool,
}

/// The content of an open file.
pub(super) struct Content {
    /// The version it was opened as, or this mount has made of that since by changing its attributes.
    pub(super) stored: Option<Arc<Opened>>,
    /// Its bytes, once it was written to. Before `stored` where both are there.
    pub(super) draft: Option<Draft>,
    /// True if the store lacks what is here.
    pub(super) is_unsaved: bool,
    /// The other attributes of a put; for mode and time the stat goes before them.
    pub(super) attributes: Attributes,
    /// Mode and time.
    pub(super) stat: Stat,
    /// True if the first put must find nothing.
    pub(super) must_be_new: bool,
}

impl Content {
    fn new(stat: Stat) -> Self {
        Self {
            stored: None,
            draft: None,
            is_unsaved: false,
            attributes: Attributes::default(),
            stat,
            must_be_new: false,
        }
    }

    pub(super) fn of(opened: Opened) -> Self {
        let mut content = Self::new(Stat::of_file(&opened.metax));
        content.restore(opened);
        content
    }

    /// A new file, empty.
    fn made(stat: Stat, draft: Draft, must_be_new: bool) -> Self {
        Self { draft: Some(draft), is_unsaved: true, must_be_new, ..Self::new(stat) }
    }

    /// It is this version now.
    pub(super) fn restore(&mut self, opened: Opened) {
        self.stat = Stat::of_file(&opened.metax);
        self.attributes = opened.metax.attributes.clone();
        self.stored = Some(Arc::new(opened));
    }

    /// Nothing of what was in it stays but its mode.
    pub(super) fn empty(&mut self, draft: Draft) {
        self.draft = Some(draft);
        self.stored = None;
        self.attributes = Attributes::default();
        self.written();
    }

    /// Its draft was changed.
    pub(super) fn written(&mut self) {
        self.is_unsaved = true;
        self.stat.mtime = SystemTime::now();
        self.stat.size = self.draft.as_ref().map_or(0, Draft::size);
    }
}

impl OpenFile {
    fn new(content: Content) -> Arc<Self> {
        let shown = ShownSize { stat: content.stat, unsaved: content.is_unsaved };
        Arc::new(Self { content: tokio::sync::Mutex::new(content), shown: Mutex::new(shown) })
    }

    /// To be called after each change, before the content is unlocked.
    pub(super) fn show(&self, content: &Content) {
        *self.shown.lock() = ShownSize { stat: content.stat, unsaved: content.is_unsaved };
    }

    pub(super) fn stat(&self) -> Stat {
        self.shown.lock().stat
    }

    /// The attributes to tell if the store lacks what is here.
    pub(super) fn unsaved(&self) -> Option<Stat> {
        let shown = *self.shown.lock();
        shown.unsaved.then_some(shown.stat)
    }
}

impl<O: Objects> Tree<O> {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if it is to be written, is not emptied, and has more than [`COPY_UP_BYTES_MAX`];
    /// [`Refusal::Stale`] if another client replaced it; [`Refusal::TooManyOpen`].
    pub async fn open(&self, ino: Ino, how: OpenHow) -> Result<u64, Refusal> {
        self.open_to_keep(ino, how, u64::MAX).await
    }

    /// As [`open`](Self::open), of a file of which no more bytes are kept.
    pub(super) async fn open_to_keep(
        &self,
        ino: Ino,
        how: OpenHow,
        kept: u64,
    ) -> Result<u64, Refusal> {
        self.handles.lock().has_room()?;
        let file = self.open_file(ino).await?;
        let opened =
            self.prepare(&file, how, kept).await.and_then(|()| self.handle(ino, &file, how));
        if opened.is_err() {
            self.nodes.lock().close(ino);
        }
        opened
    }

    /// Counts the file as opened once more; the caller gives it a handle, or closes it.
    async fn open_file(&self, ino: Ino) -> Result<Arc<OpenFile>, Refusal> {
        let path = {
            let mut nodes = self.nodes.lock();
            let open = nodes.open_of(ino);
            // The store lacks what is being written, and what was deleted.
            if open.is_some_and(|file| file.unsaved().is_some() || nodes.path(ino).is_err()) {
                return nodes.open(ino, || unreachable!("something is open of it"));
            }
            nodes.path(ino)?
        };
        let opened = match self.find(&path).await? {
            Found::File(opened) => *opened,
            Found::Directory(_) => return Err(Refusal::IsADirectory),
        };
        let mut nodes = self.nodes.lock();
        // The kernel looks the name up again.
        if nodes.version(ino) != Some(opened.metax.clock) {
            return Err(Refusal::Stale);
        }
        nodes.open(ino, || OpenFile::new(Content::of(opened)))
    }

    /// Empties it, or sees that it can be written.
    async fn prepare(&self, file: &OpenFile, how: OpenHow, kept: u64) -> Result<(), Refusal> {
        if !how.writes {
            return Ok(());
        }
        let mut content = file.content.lock().await;
        if how.empties {
            let draft = Draft::new(&self.drafts, &self.budget).await?;
            content.empty(draft);
            file.show(&content);
        } else if content.draft.is_none() && content.stat.size.min(kept) > COPY_UP_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        Ok(())
    }

    fn handle(&self, ino: Ino, file: &Arc<OpenFile>, how: OpenHow) -> Result<u64, Refusal> {
        let writes = how.writes;
        self.handles.lock().add(Handle::File { ino, file: file.clone(), writes })
    }

    /// Makes a file, or opens the one that is there by now.
    ///
    /// # Errors
    /// [`Refusal::Exists`] if it was to be new; [`Refusal::IsADirectory`]; what [`open`](Self::open) refuses.
    pub async fn create(
        &self,
        parent: Ino,
        name: &OsStr,
        mode: u16,
        how: OpenHow,
    ) -> Result<(Ino, Stat, u64), Refusal> {
        let path = self.child(parent, name)?;
        self.handles.lock().has_room()?;
        match self.lookup(parent, name).await {
            Err(Refusal::NotFound) => self.make(&path, mode, how).await,
            Err(refusal) => Err(refusal),
            Ok((ino, stat)) => {
                let opened = match (how.is_new, stat.kind) {
                    (true, _) => Err(Refusal::Exists),
                    (false, Kind::Directory) => Err(Refusal::IsADirectory),
                    (false, _) => self.open(ino, how).await,
                };
                match opened {
                    Ok(handle) => Ok((ino, self.stat_of_open(ino)?, handle)),
                    Err(refusal) => {
                        self.forget(ino, 1);
                        Err(refusal)
                    }
                }
            }
        }
    }

    async fn make(
        &self,
        path: &TreePath,
        mode: u16,
        how: OpenHow,
    ) -> Result<(Ino, Stat, u64), Refusal> {
        let draft = Draft::new(&self.drafts, &self.budget).await?;
        let stat = Stat::new(Kind::File, mode, SystemTime::now());
        let made = OpenFile::new(Content::made(stat, draft, how.is_new));
        let (ino, file) = {
            let mut nodes = self.nodes.lock();
            // The kernel makes one name of a directory at a time: nobody else can have made it meanwhile.
            if nodes.open_at(path).is_some_and(|(_, file)| file.unsaved().is_some()) {
                return Err(Refusal::Exists);
            }
            // A node that the kernel knew there is of what is gone since.
            nodes.supersede(path);
            let ino = nodes.look_up_inode(path, None)?;
            (ino, nodes.open(ino, || made)?)
        };
        match self.handle(ino, &file, how) {
            Ok(handle) => Ok((ino, file.stat(), handle)),
            Err(refusal) => {
                let mut nodes = self.nodes.lock();
                nodes.close(ino);
                nodes.forget(ino, 1);
                Err(refusal)
            }
        }
    }

    fn stat_of_open(&self, ino: Ino) -> Result<Stat, Refusal> {
        self.nodes.lock().open_of(ino).map(|file| file.stat()).ok_or(Refusal::Stale)
    }

    pub(super) fn file_of(&self, handle: u64) -> Result<(Ino, Arc<OpenFile>), Refusal> {
        match self.handles.lock().get(handle)? {
            Handle::File { ino, file, .. } => Ok((ino, file)),
            Handle::Directory { .. } => Err(Refusal::BadHandle),
        }
    }

    /// Puts what was written, for a close or a sync: it is durable when this returns.
    ///
    /// # Errors
    /// [`Refusal::Exists`] if another client made the file that was to be new. [`Refusal::Stale`] if another client replaced
    /// the file, and programs here saw that before this was written. Else the store's answer. What was written stays, and
    /// the next call puts it.
    pub async fn save(&self, handle: u64) -> Result<(), Refusal> {
        let (ino, file) = self.file_of(handle)?;
        self.save_file(ino, &file).await
    }

    pub(super) async fn save_file(&self, ino: Ino, file: &OpenFile) -> Result<(), Refusal> {
        if file.unsaved().is_none() {
            return Ok(());
        }
        let _paths_stay = self.moves.read().await;
        let mut content = file.content.lock().await;
        let path = self.nodes.lock().path(ino);
        match path {
            Err(stale) if self.nodes.lock().is_superseded(ino) => Err(stale),
            // It was deleted or replaced here: nobody is to see it.
            Err(_gone) => Ok(()),
            Ok(path) if content.is_unsaved => {
                let condition = if content.must_be_new { if_new() } else { Condition::default() };
                let version = self.put_content(&path, &content, condition).await?;
                self.saved(ino, file, &mut content, version);
                Ok(())
            }
            Ok(_saved) => Ok(()),
        }
    }

    /// Puts a file's draft at a path.
    pub(super) async fn put_content(
        &self,
        path: &TreePath,
        content: &Content,
        condition: Condition,
    ) -> Result<HybridClock, Refusal> {
        let draft = content.draft.as_ref().expect("what is unsaved is in a draft").reader();
        let mut attributes = content.attributes.clone();
        content.stat.write_into(&mut attributes);
        let must_be_new = condition.if_none_match.is_some();
        let options = PutOptions { attributes, condition };
        let done = self.put(&path.file_key()?, options, || DraftBody::of(draft.clone())).await;
        match done {
            Ok(PutDone { clock, .. }) => Ok(clock),
            Err(Refusal::Stale) if must_be_new => Err(Refusal::Exists),
            Err(refusal) => Err(refusal),
        }
    }

    /// Notes that what is here is this version.
    pub(super) fn saved(
        &self,
        ino: Ino,
        file: &OpenFile,
        content: &mut Content,
        version: HybridClock,
    ) {
        content.is_unsaved = false;
        content.must_be_new = false;
        self.nodes.lock().put_as(ino, version);
        file.show(content);
    }

    /// Closes a handle for good. What could not be saved is lost then, and logged: no caller waits for a result.
    pub async fn release(&self, handle: u64) {
        if let Ok((ino, file)) = self.file_of(handle) {
            self.release_file(ino, &file).await;
        }
        self.handles.lock().remove(handle);
    }

    async fn release_file(&self, ino: Ino, file: &OpenFile) {
        if let Err(refusal) = self.save_file(ino, file).await {
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
            let path = self.nodes.lock().path(ino);
            let path = path.as_ref().map_or("a deleted file", TreePath::as_str);
            tracing::error!(path, error = %refusal, "what was written to a file is lost");
        }
        self.nodes.lock().close(ino);
    }

    /// Saves whatever is open and was written, when the mount ends.
    pub async fn save_all(&self) {
        let open = self.nodes.lock().all_open();
        for (ino, file) in open {
            if let Err(refusal) = self.save_file(ino, &file).await {
                self.counters.lost.fetch_add(1, Ordering::Relaxed);
                tracing::error!(error = %refusal, "what was written to an open file is lost");
            }
        }
    }

    /// The version that is at a path now.
    pub(super) async fn reopened(&self, path: &TreePath) -> Result<Opened, ObjectError> {
        let key = path.file_key().map_err(|_| ObjectError::NoSuchKey)?;
        self.objects.open(&self.bucket, &key).await
    }
}
