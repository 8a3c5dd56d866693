//! Finds a backup, and makes an index of it.

use larder_kv::Progress;

use super::v1::read_segment;
use super::{HEADS, Head};
use crate::backend::{Backend, Unread};
use crate::error::PackError;
use crate::ids::BackupId;
use crate::index::Index;
use crate::limits::{BACKUP_BATCH_BYTES, BACKUP_HEAD_BYTES_MAX};
use crate::owner::takeover_fence::TakeoverFence;

/// Backups whose heads verify, oldest first, but those of workers beyond what their heirs know.
pub(crate) async fn known(
    backend: &Backend,
    takeover_fence: &TakeoverFence,
) -> Result<Vec<Head>, PackError> {
    let mut heads = Vec::new();
    for (name, bytes) in backend.names(HEADS).await? {
        let Some((id, None)) = BackupId::parse(&name) else {
            tracing::warn!(name, "found a foreign object among Larder's backups");
            continue;
        };
        match read_head(backend, id, bytes).await {
            Ok(head) if takeover_fence.has(head.blob()) => heads.push(head),
            Ok(_) => {}
            Err(error @ (PackError::Damaged { .. } | PackError::Codec(_))) => {
                tracing::warn!(%error, "a backup of the index was skipped");
            }
            Err(error) => return Err(error),
        }
    }
    heads.sort_by_key(|head| head.id);
    Ok(heads)
}

async fn read_head(backend: &Backend, id: BackupId, bytes: u64) -> Result<Head, PackError> {
    if bytes > BACKUP_HEAD_BYTES_MAX {
        return Err(PackError::damaged(id.head_path(), "it is too long for a head"));
    }
    Head::decode(id, &read(backend, &id.head_path(), bytes).await?)
}

async fn read(backend: &Backend, name: &str, bytes: u64) -> Result<bytes::Bytes, PackError> {
    match backend.read(name, 0..bytes).await {
        Ok(read) => Ok(read),
        Err(Unread::Missing) => Err(PackError::damaged(name, "it is not there")),
        // One that is too short cannot be read to its end, however often.
        Err(Unread::Failed(error)) => match backend.size(name).await? {
            Some(size) if size == bytes => Err(error),
            _ => Err(PackError::damaged(name, "it is not as long as it should be")),
        },
    }
}

/// Fills an empty index from a backup. False if the backup is damaged: then the index is empty again.
pub(crate) async fn restore(
    backend: &Backend,
    index: &Index,
    head: &Head,
) -> Result<bool, PackError> {
    for (number, expected) in head.segments.iter().enumerate() {
        let name = head.id.segment_path(number);
        let restored = match read(backend, &name, expected.bytes).await {
            Ok(bytes) => read_segment(&name, &bytes, *expected, BACKUP_BATCH_BYTES, &mut |batch| {
                index.commit(batch, None)
            }),
            Err(error) => Err(error),
        };
        match restored {
            Ok(()) => {}
            Err(error @ (PackError::Damaged { .. } | PackError::Version { .. })) => {
                tracing::warn!(%error, "a backup of the index was skipped");
                index.clear()?;
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        if index.unflushed_bytes() >= larder_kv::limits::FLUSH_BYTES {
            index.flush()?;
            while index.maintain()? == Progress::Worked {}
        }
    }
    index.read_buckets()?;
    index.forget_ended_bundles()?;
    Ok(true)
}
