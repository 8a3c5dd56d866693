//! `larder pack --mount`: a bucket of the packed store as files.

use std::sync::Arc;

use larder_mount::{MountConfig, MountError, Mounted, mount};
use larder_pack::Packer;
use tokio::runtime::Handle;

use super::error::WorkerError;
use crate::args::{MountArg, PackServeArgs};

/// Where files that are being written wait, below the worker's directory.
const DRAFTS: &str = "drafts";
/// The index of a worker that has run, likewise.
const INDEX: &str = "kv";

/// Checks what `--mount` says before anything is made. A new worker has no buckets, unless others have some for it.
pub(super) fn check(args: &PackServeArgs) -> Result<(), WorkerError> {
    let Some(MountArg { bucket, path }) = &args.mount else { return Ok(()) };
    larder_mount::check(path)?;
    let is_new = !args.dir.join(INDEX).exists();
    if is_new && args.worker.is_none() && !args.take_over {
        return Err(MountError::NoSuchBucket { bucket: bucket.clone() }.into());
    }
    Ok(())
}

/// Mounts what `--mount` says.
pub(super) fn start(
    packer: &Arc<Packer>,
    args: &PackServeArgs,
    runtime: &Handle,
) -> Result<Option<Mounted<Packer>>, WorkerError> {
    let Some(MountArg { bucket, path }) = args.mount.clone() else { return Ok(None) };
    let line = format!("The bucket {bucket} is mounted on {}", path.display());
    let config = MountConfig { bucket, path, drafts: args.dir.join(DRAFTS) };
    let mounted = mount(packer.clone(), config, runtime.clone())?;
    eprintln!("{line}");
    Ok(Some(mounted))
}
