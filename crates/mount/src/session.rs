//! Mounting and unmounting.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use larder_objects::Objects;
use larder_types::BucketName;
use nix::libc;
use nix::mount::{MntFlags, umount2};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::driver::Driver;
use crate::limits::{CLOSE_WAIT, DRAFT_BYTES_MAX, REQUESTS_MAX, SESSION_THREADS};
use crate::tree::Tree;

/// The kernel's device.
const DEVICE: &str = "/dev/fuse";

/// Errors with which a bucket is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Load the kernel's module, or run where the device is.
    #[error("files need {DEVICE}, which cannot be opened: {0}")]
    NoDevice(io::Error),
    /// Name another directory.
    #[error("{path} cannot be mounted on: {source}")]
    Unusable {
        /// The directory.
        path: String,
        /// The reason.
        source: io::Error,
    },
    /// Name another directory, or move away what is in it.
    #[error("{path} is not empty: what is in it would be hidden")]
    NotEmpty {
        /// The directory.
        path: String,
    },
    /// Make the bucket first.
    #[error("the bucket {bucket} does not exist; make it first")]
    NoSuchBucket {
        /// The bucket.
        bucket: BucketName,
    },
    /// See to the worker's disk.
    #[error("files being written have no place in {path}: {source}")]
    Drafts {
        /// Where they were to be.
        path: String,
        /// The reason.
        source: io::Error,
    },
    /// Mount as root, or install fusermount3.
    #[error("the system does not mount on {path}: {source}")]
    Refused {
        /// The directory.
        path: String,
        /// The reason.
        source: io::Error,
    },
}

/// The bucket to mount, and the place.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// The bucket.
    pub bucket: BucketName,
    /// An empty directory.
    pub path: PathBuf,
    /// Where files wait that are being written; made if it is missing.
    pub drafts: PathBuf,
}

/// A bucket that is mounted.
pub struct Mounted<O> {
    /// Its files.
    pub tree: Arc<Tree<O>>,
    path: PathBuf,
    session: BackgroundSession,
    places: Arc<Semaphore>,
    runtime: Handle,
}

/// Refuses a directory on which no bucket can be mounted, as far as that shows beforehand.
///
/// # Errors
/// [`MountError`].
pub fn check(path: &Path) -> Result<(), MountError> {
    OpenOptions::new().read(true).write(true).open(DEVICE).map_err(MountError::NoDevice)?;
    must_be_free(path)
}

/// Mounts a bucket. Requests are answered on `runtime`.
///
/// # Errors
/// [`MountError`].
pub fn mount<O: Objects>(
    objects: Arc<O>,
    config: MountConfig,
    runtime: Handle,
) -> Result<Mounted<O>, MountError> {
    let MountConfig { bucket, path, drafts } = config;
    check(&path)?;
    if objects.bucket(&bucket).is_err() {
        return Err(MountError::NoSuchBucket { bucket });
    }
    std::fs::create_dir_all(&drafts)
        .map_err(|source| MountError::Drafts { path: drafts.display().to_string(), source })?;
    let name = format!("larder:{bucket}");
    let tree = Arc::new(Tree::new(objects, bucket, drafts, DRAFT_BYTES_MAX));
    let places = Arc::new(Semaphore::new(REQUESTS_MAX));
    let owner = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
    let driver =
        Driver { tree: tree.clone(), runtime: runtime.clone(), places: places.clone(), owner };
    let session = fuser::spawn_mount(driver, &path, &options(name))
        .map_err(|source| MountError::Refused { path: path.display().to_string(), source })?;
    Ok(Mounted { tree, path, session, places, runtime })
}

fn options(name: String) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(name),
        MountOption::Subtype("larder".into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
    ];
    config.acl = SessionACL::Owner;
    config.n_threads = Some(SESSION_THREADS);
    config
}

/// The directory is there and empty. What a killed process left mounted there is taken away: nobody can use it any more.
fn must_be_free(path: &Path) -> Result<(), MountError> {
    let shown = || path.display().to_string();
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            tracing::info!(path = shown(), "a mount was left there by a process that ended");
            detach(path).and_then(|()| std::fs::read_dir(path))
        }
        entries => entries,
    };
    let mut entries = entries.map_err(|source| MountError::Unusable { path: shown(), source })?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(MountError::NotEmpty { path: shown() }),
    }
}

/// Nobody finds the mount from now on; who uses it may go on.
fn detach(path: &Path) -> io::Result<()> {
    umount2(path, MntFlags::MNT_DETACH).map_err(io::Error::from)
}

impl<O: Objects> Mounted<O> {
    /// Unmounts, when what is open has been saved. Programs that have files open see them fail once this process has ended.
    /// Not to be called from a task.
    pub fn close(self) {
        let Self { tree, path, session, places, runtime } = self;
        if let Err(error) = session.umount_and_join() {
            tracing::warn!(path = %path.display(), %error, "programs still use the mount: unmounting anyway");
            if let Err(error) = detach(&path) {
                tracing::error!(path = %path.display(), %error, "it cannot be unmounted");
            }
        }
        let ended = runtime.block_on(async {
            let all = places.acquire_many(REQUESTS_MAX as u32);
            let ended = tokio::time::timeout(CLOSE_WAIT, all).await.is_ok();
            tree.save_all().await;
            ended
        });
        places.close();
        if !ended {
            tracing::warn!("requests for files did not end in time");
        }
    }
}
