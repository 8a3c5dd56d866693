//! The limits of a mount, with their units, and how they relate.

use std::time::Duration;

use larder_types::limits::{LIST_PAGE_MAX, PUT_BYTES_MAX};

/// Bytes of all files that are being written, together: they wait on the worker's disk. More is `ENOSPC`.
pub const DRAFT_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;
/// Bytes of a stored file that may be opened for writing without being emptied: it is read into a draft first. A larger
/// one is `EFBIG`.
pub const COPY_UP_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Keys below a directory that is renamed; with more it is `EXDEV`, so that `mv` copies.
pub const RENAME_KEYS_MAX: usize = 10_000;
/// Keys of such a directory that are renamed at once.
pub const RENAME_AT_ONCE: usize = 64;
/// Files and directories that the kernel knows at once; more are `ENOMEM`.
pub const NODES_MAX: usize = 1024 * 1024;
/// Open files and directories; more are `ENFILE`.
pub const HANDLES_MAX: usize = 8192;
/// Requests of the kernel under way at once; more wait in the kernel.
pub const REQUESTS_MAX: usize = 256;
/// Threads that take requests from the kernel. They only hand them on.
pub const SESSION_THREADS: usize = 2;
/// Bytes of one write.
pub const WRITE_BYTES_MAX: u32 = 1024 * 1024;
/// Bytes of a draft that are read at a time while it is put.
pub const PIECE_BYTES: usize = 512 * 1024;
/// Bytes of a file's name. Longer ones cannot be made, and are not shown: programs have no room for them.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of what a symbolic link says.
pub const LINK_BYTES_MAX: usize = 4096;
/// Entries of a directory asked for at once.
pub const PAGE_ENTRIES: usize = LIST_PAGE_MAX;
/// The time for which the kernel believes a file's attributes: changes by S3 clients show by then.
pub const TTL: Duration = Duration::from_secs(1);
/// The time for which a change is tried again while the store says that it is at its limit.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// The first pause of that; each is twice the one before.
pub const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Times that a read begins anew because the file was given other attributes meanwhile.
pub const READ_TRIES: usize = 4;
/// The time that requests have to end when a mount is closed.
pub const CLOSE_WAIT: Duration = Duration::from_secs(8);

const _: () = assert!(COPY_UP_BYTES_MAX < DRAFT_BYTES_MAX, "a file that is copied up fits");
const _: () = assert!(PUT_BYTES_MAX < DRAFT_BYTES_MAX, "the largest file fits");
const _: () = assert!(PAUSE_MAX.as_millis() < TIMEOUT.as_millis());
