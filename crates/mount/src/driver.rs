//! The kernel's requests: each is handed to a task, which answers it. The threads that take them wait for nothing but a place
//! among those under way.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::Bytes;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, TimeOrNow, WriteFlags,
};
use larder_objects::Objects;
use nix::libc;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::counters::Request;
use crate::limits::{NAME_BYTES_MAX, TTL, WRITE_BYTES_MAX};
use crate::nodes::Ino;
use crate::refusal::Refusal;
use crate::stamp::{Kind, PERMISSIONS, Stat};
use crate::tree::{Changes, OpenHow, Tree};

/// Bytes of a block, as `stat` and `statfs` count.
const BLOCK_BYTES: u32 = 4096;
/// Bytes of the unit in which a file's blocks are told.
const SECTOR_BYTES: u64 = 512;
/// Stands for a number in a directory's names: a file gets one when it is looked up.
const NO_NUMBER: INodeNo = INodeNo(u64::MAX);

/// Answers with an error and ends the task, or goes on with the value.
macro_rules! or_refuse {
    ($outcome:expr, $reply:ident) => {
        match $outcome {
            Ok(value) => value,
            Err(refusal) => {
                $reply.error(refusal.errno());
                return Err(refusal);
            }
        }
    };
}

/// Answers the kernel.
pub(crate) struct Driver<O> {
    pub(crate) tree: Arc<Tree<O>>,
    pub(crate) runtime: Handle,
    /// One place for each request under way.
    pub(crate) places: Arc<Semaphore>,
    /// The owner of the files: user and group.
    pub(crate) owner: (u32, u32),
}

impl<O: Objects> Driver<O> {
    fn start<F>(&self, kind: Request, task: impl FnOnce(Arc<Tree<O>>) -> F)
    where
        F: Future<Output = Result<(), Refusal>> + Send + 'static,
    {
        self.tree.counters.count(kind);
        // Closed when the mount is: what comes then is answered by dropping it.
        let Ok(place) = self.runtime.block_on(self.places.clone().acquire_owned()) else { return };
        let (tree, task) = (self.tree.clone(), task(self.tree.clone()));
        self.runtime.spawn(async move {
            if let Err(refusal) = task.await
                && refusal.is_fault()
            {
                tree.counters.faults.fetch_add(1, Ordering::Relaxed);
            }
            drop(place);
        });
    }
}

fn attr(owner: (u32, u32), ino: Ino, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino.0),
        size: stat.size,
        blocks: stat.size.div_ceil(SECTOR_BYTES),
        atime: stat.mtime,
        mtime: stat.mtime,
        ctime: stat.mtime,
        crtime: stat.mtime,
        kind: file_type(stat.kind),
        perm: stat.mode,
        nlink: if stat.kind == Kind::Directory { 2 } else { 1 },
        uid: owner.0,
        gid: owner.1,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
    }
}

fn how(flags: i32) -> OpenHow {
    let access = OpenFlags(flags).acc_mode();
    let writes = access != OpenAccMode::O_RDONLY;
    OpenHow {
        writes,
        empties: writes && flags & libc::O_TRUNC != 0,
        is_new: flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0,
    }
}

/// Permissions of what is made.
fn made_mode(mode: u32, umask: u32) -> u16 {
    (mode & !umask) as u16 & PERMISSIONS
}

fn time(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

impl<O: Objects> Filesystem for Driver<O> {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Without it a file that is to be emptied would be opened first, and copied for nothing.
        let wanted = [InitFlags::FUSE_ATOMIC_O_TRUNC, InitFlags::FUSE_PARALLEL_DIROPS];
        for flag in wanted {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "the kernel does not support this");
            }
        }
        let set = config.set_max_write(WRITE_BYTES_MAX);
        set.map(drop).map_err(|_| std::io::Error::other("the kernel takes no such writes"))
    }

    fn destroy(&mut self) {
        tracing::info!("the mount ended");
    }

    fn lookup(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (owner, name) = (self.owner, name.to_owned());
        self.start(Request::Lookup, |tree| async move {
            let (ino, stat) = or_refuse!(tree.lookup(Ino(parent.0), &name).await, reply);
            reply.entry(&TTL, &attr(owner, ino, &stat), Generation(0));
            Ok(())
        });
    }

    fn forget(&self, _: &fuser::Request, ino: INodeNo, times: u64) {
        self.tree.forget(Ino(ino.0), times);
    }

    fn getattr(&self, _: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let owner = self.owner;
        self.start(Request::Attributes, |tree| async move {
            let stat = or_refuse!(tree.stat(Ino(ino.0)).await, reply);
            reply.attr(&TTL, &attr(owner, Ino(ino.0), &stat));
            Ok(())
        });
    }

    fn setattr(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let owner = self.owner;
        if uid.is_some_and(|uid| uid != owner.0) || gid.is_some_and(|gid| gid != owner.1) {
            return reply.error(Errno::EPERM);
        }
        let mode = mode.map(|mode| mode & 0o7777);
        let changes = Changes { mode, mtime: mtime.map(time), size };
        let handle = handle.map(|handle| handle.0);
        self.start(Request::Change, |tree| async move {
            let stat = or_refuse!(tree.change(Ino(ino.0), changes, handle).await, reply);
            reply.attr(&TTL, &attr(owner, Ino(ino.0), &stat));
            Ok(())
        });
    }

    fn readlink(&self, _: &fuser::Request, ino: INodeNo, reply: ReplyData) {
        self.start(Request::Read, |tree| async move {
            let to = or_refuse!(tree.read_link(Ino(ino.0)).await, reply);
            reply.data(&to);
            Ok(())
        });
    }

    /// Files are made by `create`; there are no devices, pipes and sockets.
    fn mknod(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(
        &self,
        _: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (owner, name, mode) = (self.owner, name.to_owned(), made_mode(mode, umask));
        self.start(Request::Make, |tree| async move {
            let made = tree.make_directory(Ino(parent.0), &name, mode).await;
            let (ino, stat) = or_refuse!(made, reply);
            reply.entry(&TTL, &attr(owner, ino, &stat), Generation(0));
            Ok(())
        });
    }

    fn unlink(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.start(Request::Delete, |tree| async move {
            or_refuse!(tree.delete_file(Ino(parent.0), &name).await, reply);
            reply.ok();
            Ok(())
        });
    }

    fn rmdir(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.start(Request::Delete, |tree| async move {
            or_refuse!(tree.delete_directory(Ino(parent.0), &name).await, reply);
            reply.ok();
            Ok(())
        });
    }

    fn symlink(
        &self,
        _: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        to: &Path,
        reply: ReplyEntry,
    ) {
        let (owner, name, to) = (self.owner, name.to_owned(), to.as_os_str().to_owned());
        self.start(Request::Make, |tree| async move {
            let (ino, stat) = or_refuse!(tree.make_link(Ino(parent.0), &name, &to).await, reply);
            reply.entry(&TTL, &attr(owner, ino, &stat), Generation(0));
            Ok(())
        });
    }

    fn rename(
        &self,
        _: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !RenameFlags::RENAME_NOREPLACE.contains(flags) {
            return reply.error(Errno::EINVAL);
        }
        let is_new = flags.contains(RenameFlags::RENAME_NOREPLACE);
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        self.start(Request::Rename, |tree| async move {
            let (from, to) = ((Ino(parent.0), &*name), (Ino(new_parent.0), &*new_name));
            or_refuse!(tree.rename(from, to, is_new).await, reply);
            reply.ok();
            Ok(())
        });
    }

    /// A file has one name.
    fn link(&self, _: &fuser::Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn open(&self, _: &fuser::Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.start(Request::Open, |tree| async move {
            let handle = or_refuse!(tree.open(Ino(ino.0), how(flags.0)).await, reply);
            reply.opened(FileHandle(handle), FopenFlags::empty());
            Ok(())
        });
    }

    fn create(
        &self,
        _: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (owner, name, mode) = (self.owner, name.to_owned(), made_mode(mode, umask));
        self.start(Request::Open, |tree| async move {
            let made = tree.create(Ino(parent.0), &name, mode, how(flags)).await;
            let (ino, stat, handle) = or_refuse!(made, reply);
            let attr = attr(owner, ino, &stat);
            reply.created(&TTL, &attr, Generation(0), FileHandle(handle), FopenFlags::empty());
            Ok(())
        });
    }

    fn read(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.start(Request::Read, |tree| async move {
            let bytes = or_refuse!(tree.read(handle.0, offset, size as usize).await, reply);
            reply.data(&bytes);
            Ok(())
        });
    }

    fn write(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = Bytes::copy_from_slice(data);
        self.start(Request::Write, |tree| async move {
            let written = data.len() as u32;
            or_refuse!(tree.write(handle.0, offset, data).await, reply);
            reply.written(written);
            Ok(())
        });
    }

    fn flush(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        handle: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.save(handle, reply);
    }

    fn fsync(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.save(handle, reply);
    }

    fn release(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.start(Request::Save, |tree| async move {
            tree.release(handle.0).await;
            reply.ok();
            Ok(())
        });
    }

    fn opendir(&self, _: &fuser::Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.tree.counters.count(Request::List);
        match self.tree.open_directory(Ino(ino.0)) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(refusal) => reply.error(refusal.errno()),
        }
    }

    fn readdir(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        handle: FileHandle,
        place: u64,
        mut reply: ReplyDirectory,
    ) {
        self.start(Request::List, |tree| async move {
            let give = |entry: &crate::listing::Entry, next: u64| {
                reply.add(NO_NUMBER, next, file_type(entry.kind), &entry.name)
            };
            or_refuse!(tree.read_directory(handle.0, place, give).await, reply);
            reply.ok();
            Ok(())
        });
    }

    fn releasedir(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.start(Request::List, |tree| async move {
            tree.release(handle.0).await;
            reply.ok();
            Ok(())
        });
    }

    /// A directory is as durable as what is made in it: at once.
    fn fsyncdir(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    /// A store has no size: told is how much may be written at once.
    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        let (max, left) = self.tree.room();
        let (blocks, free) = (max / u64::from(BLOCK_BYTES), left / u64::from(BLOCK_BYTES));
        reply.statfs(blocks, free, free, 0, 0, BLOCK_BYTES, NAME_BYTES_MAX as u32, BLOCK_BYTES);
    }
}

impl<O: Objects> Driver<O> {
    fn save(&self, handle: FileHandle, reply: ReplyEmpty) {
        self.start(Request::Save, |tree| async move {
            or_refuse!(tree.save(handle.0).await, reply);
            reply.ok();
            Ok(())
        });
    }
}
