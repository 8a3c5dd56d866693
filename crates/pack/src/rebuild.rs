//! The index from the backend alone: every blob's footer, in the order of their names.
//!
//! # Invariant
//!
//! Only a prefix of a worker's blobs is taken: a blob that is missing between others stops it, since what it
//! deleted would come back.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use larder_types::OpId;

use crate::backend::{Backend, Unread};
use crate::blob::{BlobName, FooterReader};
use crate::entry::{BlobId, WorkerId};
use crate::error::PackError;
use crate::index::Index;
use crate::limits::FOOTERS_AHEAD;
use crate::rows::{Applied, BlobRow};

/// Prefix of all blobs.
const PREFIX: &str = "blobs";

/// Fills an empty index. Gives how far it is then, as `worker` counts: with the numbers of its own blobs and the
/// greatest clock of all.
pub(crate) async fn rebuild(
    backend: &Backend,
    index: &Index,
    worker: WorkerId,
) -> Result<Applied, PackError> {
    let blobs = blobs(backend).await?;
    tracing::info!(blobs = blobs.len(), "the index is rebuilt from the backend");
    let fetch = |(name, bytes): (BlobName, u64)| async move {
        let tail = tail(backend, &name, bytes).await?;
        Ok::<_, PackError>((name, bytes, tail))
    };
    let mut tails = std::pin::pin!(stream::iter(blobs).map(fetch).buffered(FOOTERS_AHEAD));
    let (mut applied, mut last) = (Applied::default(), OpId::default());
    while let Some((name, bytes, tail)) = tails.try_next().await? {
        let path = name.path();
        let footer = FooterReader::new(&path, &tail)?;
        if footer.trailer.id != name.id || footer.trailer.blob_bytes() != bytes {
            return Err(PackError::damaged(path, "it is not the blob that its name says"));
        }
        for entry in footer {
            let entry = entry?;
            let op = entry.op(name.id.worker);
            if op <= last {
                return Err(PackError::damaged(path, "its changes are older than those before"));
            }
            last = op;
            index.apply(name.id.worker, &entry, None)?;
            applied.clock = applied.clock.max(entry.clock);
            if name.id.worker == worker {
                applied.seq = entry.seq;
            }
        }
        let BlobName { id, created_ms, footer_offset } = name;
        index.add_blob(id, &BlobRow { created_ms, footer_offset, bytes }, None)?;
        if id.worker == worker {
            applied.blob = id.seq;
        }
        if index.unflushed_bytes() >= larder_kv::limits::FLUSH_BYTES {
            index.flush()?;
            while index.maintain()? == larder_kv::Progress::Worked {}
        }
    }
    Ok(applied)
}

/// All blobs, oldest first, with their sizes.
async fn blobs(backend: &Backend) -> Result<Vec<(BlobName, u64)>, PackError> {
    let mut blobs: Vec<(BlobName, u64)> = Vec::new();
    for (name, bytes) in backend.names(PREFIX).await? {
        let blob = BlobName::parse(&name).ok_or_else(|| {
            PackError::damaged(format!("{PREFIX}/{name}"), "it is not named as a blob is")
        })?;
        let before = blobs.last().map(|(before, _)| before.id);
        let expected = match before {
            Some(before) if before.worker == blob.id.worker => before.seq + 1,
            _ => 1,
        };
        if blob.id.seq != expected {
            let missing = BlobId { seq: expected, ..blob.id };
            return Err(PackError::Missing { blob: missing });
        }
        blobs.push((blob, bytes));
    }
    Ok(blobs)
}

async fn tail(backend: &Backend, name: &BlobName, bytes: u64) -> Result<Bytes, PackError> {
    let path = name.path();
    if name.footer_offset >= bytes {
        return Err(PackError::damaged(path, "it is shorter than its name says"));
    }
    backend.read(&path, name.footer_offset..bytes).await.map_err(|unread| match unread {
        Unread::Missing => PackError::Missing { blob: name.id },
        Unread::Failed(error) => error,
    })
}
