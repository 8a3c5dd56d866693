//! The files of a bucket: what the kernel asks, done with a store. No FUSE here.
//!
//! # Invariants
//!
//! 1. What is closed or synced without an error is durable in the store, as one object; until then no other client sees any of it.
//! 2. Files that were deleted or replaced never come back: what is written to them afterwards is put nowhere.
//! 3. Locks are taken in this order: `moves`, then a file's content, then nodes or handles, which nothing waits under.
//!    Whatever puts under a path, or takes one away, holds `moves`: shared, or alone to rename.

mod attributes;
mod names;
mod open;
mod read;
mod rename;
#[cfg(test)]
mod tests;
mod write;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use larder_objects::{ListRequest, ObjectError, Objects, Opened, PutBody, PutDone, PutOptions};
use larder_types::{BucketName, Condition, ETag, EtagList, HybridClock, ObjectKey};
use parking_lot::Mutex;
use tokio::sync::RwLock;
use tokio::time::Instant;

use crate::counters::{Counters, MountGauges};
use crate::draft::{Budget, DraftBody};
use crate::handles::Handles;
use crate::limits::{PAUSE_MAX, PAUSE_MIN, TIMEOUT};
use crate::listing::Listing;
use crate::nodes::{Ino, Nodes};
use crate::path::TreePath;
use crate::refusal::Refusal;
use crate::stamp::Stat;

pub use attributes::Changes;
use open::OpenFile;
pub use open::OpenHow;

/// The file or directory that is open under a number.
#[derive(Clone)]
enum Handle {
    File { ino: Ino, file: Arc<OpenFile>, writes: bool },
    Directory { ino: Ino, listing: Arc<tokio::sync::Mutex<Listing>> },
}

/// The thing that the store has at a path.
enum Found {
    File(Box<Opened>),
    Directory(Stat),
}

/// The files of a bucket.
pub struct Tree<O> {
    objects: Arc<O>,
    bucket: BucketName,
    drafts: PathBuf,
    budget: Arc<Budget>,
    nodes: Mutex<Nodes<Arc<OpenFile>>>,
    handles: Mutex<Handles<Handle>>,
    moves: RwLock<()>,
    since: SystemTime,
    /// The counters.
    pub counters: Counters,
}

impl<O: Objects> Tree<O> {
    /// The files of `bucket`; those that are being written wait in `drafts`, and take `draft_bytes` at most.
    #[must_use]
    pub fn new(objects: Arc<O>, bucket: BucketName, drafts: PathBuf, draft_bytes: u64) -> Self {
        Self {
            objects,
            bucket,
            drafts,
            budget: Budget::new(draft_bytes),
            nodes: Mutex::default(),
            handles: Mutex::default(),
            moves: RwLock::default(),
            since: SystemTime::now(),
            counters: Counters::default(),
        }
    }

    /// The bucket.
    #[must_use]
    pub fn bucket(&self) -> &BucketName {
        &self.bucket
    }

    /// The number of things that it holds.
    #[must_use]
    pub fn held(&self) -> MountGauges {
        let (nodes, open) = (self.nodes.lock().len(), self.handles.lock().len());
        MountGauges { nodes, open, draft_bytes: self.budget.used() }
    }

    /// Bytes that may be written at once, and how many of them are left.
    #[must_use]
    pub fn room(&self) -> (u64, u64) {
        (self.budget.max(), self.budget.max() - self.budget.used())
    }

    /// Finds the node with this name in a directory, and counts that the kernel knows it.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], or what a store answers.
    pub async fn lookup(&self, parent: Ino, name: &OsStr) -> Result<(Ino, Stat), Refusal> {
        let path = self.child(parent, name)?;
        if let Some(reported) = self.find_unsaved(&path) {
            return Ok(reported);
        }
        match self.find(&path).await? {
            Found::Directory(stat) => Ok((self.nodes.lock().look_up_inode(&path, None)?, stat)),
            Found::File(opened) => self.describe_file(&path, *opened).await,
        }
    }

    /// Tells of a file that is being written at a path: the store does not have it yet.
    fn find_unsaved(&self, path: &TreePath) -> Option<(Ino, Stat)> {
        let mut nodes = self.nodes.lock();
        let (ino, file) = nodes.open_at(path)?;
        let stat = file.unsaved()?;
        nodes.refresh_lookup(ino);
        Some((ino, stat))
    }

    async fn describe_file(&self, path: &TreePath, opened: Opened) -> Result<(Ino, Stat), Refusal> {
        let mut opened = opened;
        let open = self.nodes.lock().open_at(path);
        if let Some((ino, file)) = open
            && self.nodes.lock().version(ino) != Some(opened.metax.clock)
        {
            // It may be ours, of a moment ago: the task that puts it holds this until the node
            // knows.
            let _put = file.content.lock().await;
            if let Some(reported) = self.find_unsaved(path) {
                return Ok(reported);
            }
            opened = self.objects.open(&self.bucket, &path.file_key()?).await?;
        }
        let ino = self.nodes.lock().look_up_inode(path, Some(opened.metax.clock))?;
        Ok((ino, Stat::of_file(&opened.metax)))
    }

    /// The kernel forgets a node.
    pub fn forget(&self, ino: Ino, times: u64) {
        self.nodes.lock().forget(ino, times);
    }

    fn child(&self, parent: Ino, name: &OsStr) -> Result<TreePath, Refusal> {
        let parent = self.nodes.lock().path(parent)?;
        parent.child(name)
    }

    /// Finds what the store has at a path: a file, else a directory.
    async fn find(&self, path: &TreePath) -> Result<Found, Refusal> {
        if !path.is_root() {
            match self.objects.open(&self.bucket, &path.file_key()?).await {
                Ok(opened) => return Ok(Found::File(Box::new(opened))),
                Err(ObjectError::NoSuchKey) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.find_directory(path).await.map(Found::Directory)
    }

    async fn find_directory(&self, path: &TreePath) -> Result<Stat, Refusal> {
        if path.is_root() {
            return Ok(Stat::directory(self.since));
        }
        match self.objects.open(&self.bucket, &path.marker_key()?).await {
            Ok(marker) => return Ok(Stat::of_marker(&marker.metax)),
            Err(ObjectError::NoSuchKey) => {}
            Err(error) => return Err(error.into()),
        }
        if self.keys_below(path, 1).await?.is_empty() {
            return Err(Refusal::NotFound);
        }
        Ok(Stat::directory(self.since))
    }

    /// The first keys below a directory, its marker among them.
    async fn keys_below(&self, path: &TreePath, max: usize) -> Result<Vec<ObjectKey>, Refusal> {
        let request = ListRequest { prefix: path.below(), max, ..ListRequest::default() };
        let page = self.objects.list(&self.bucket, request).await?;
        Ok(page.items.into_iter().filter_map(key_of).collect())
    }

    /// Puts a body; while the store is at its limit, again.
    async fn put(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        body: impl Fn() -> DraftBody,
    ) -> Result<PutDone, Refusal> {
        let done = patiently(|| self.put_once(key, options.clone(), body())).await?;
        self.counters.saved.fetch_add(1, Ordering::Relaxed);
        Ok(done)
    }

    async fn put_once<B: PutBody>(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        self.objects.put(&self.bucket, key, options, body).await
    }

    async fn delete(&self, key: &ObjectKey, condition: Condition) -> Result<(), ObjectError> {
        patiently(|| self.objects.delete(&self.bucket, key, condition.clone())).await
    }
}

fn key_of(item: larder_objects::ListItem<larder_objects::ListedObject>) -> Option<ObjectKey> {
    match item {
        larder_objects::ListItem::Entry(object) => Some(object.key),
        larder_objects::ListItem::Group(_) => None,
    }
}

/// The condition that nothing is there yet.
fn if_new() -> Condition {
    Condition { if_none_match: Some(EtagList::Any), ..Condition::default() }
}

/// The condition that the object is as it was found.
fn if_same(opened: &Opened) -> Condition {
    let etag = opened.metax.etag.text();
    Condition { if_match: Some(EtagList::Of(vec![etag])), ..Condition::default() }
}

/// The condition that the object is this version. Another client may have put the same bytes since.
fn if_still(etag: &ETag, version: HybridClock) -> Condition {
    let if_match = Some(EtagList::Of(vec![etag.text()]));
    let if_match_modified_s = Some(version.ms() / 1000);
    Condition { if_match, if_match_modified_s, ..Condition::default() }
}

/// Programs do not try again: this does, more and more slowly, while the store says that it is at its limit.
async fn patiently<T, F: Future<Output = Result<T, ObjectError>>>(
    mut call: impl FnMut() -> F,
) -> Result<T, ObjectError> {
    let (until, mut pause) = (Instant::now() + TIMEOUT, PAUSE_MIN);
    loop {
        match call().await {
            Err(ObjectError::SlowDown) if Instant::now() + pause < until => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            done => return done,
        }
    }
}
