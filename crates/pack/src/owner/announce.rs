//! Announces the workers that share a bucket: an object `announced/NAME` of each, that only its
//! owner writes.

use bytes::Bytes;
use larder_types::codec::{decode, encode};
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Unread};
use crate::error::PackError;
use crate::ids::WorkerId;
use crate::limits::ANNOUNCEMENT_BYTES_MAX;
use crate::owner::name::WorkerName;

/// Prefix of the announcements.
const PREFIX: &str = "announced";

/// The announcement by which the others know a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    pub(crate) name: WorkerName,
    pub(crate) prefix: String,
    /// Its claim.
    pub(crate) worker: WorkerId,
    /// Where it answers the others, as `host:port`.
    pub(crate) address: Option<String>,
    pub(crate) announced_ms: u64,
}

impl Announcement {
    pub(crate) fn path(name: &WorkerName) -> String {
        format!("{PREFIX}/{name}")
    }

    /// Tells the others. Only the owner of the claim does.
    pub(crate) async fn write(&self, root: &Backend) -> Result<(), PackError> {
        root.put(&Self::path(&self.name), Bytes::from(encode(self))).await
    }
}

/// Refuses a bucket that others share: a worker without a name would not learn of them.
pub(crate) async fn refuse_shared(root: &Backend) -> Result<(), PackError> {
    match all(root).await?.first() {
        None => Ok(()),
        Some(other) => Err(PackError::Config {
            what: "a worker without a name",
            found: format!("a bucket that {} shares with others", other.name),
            remedy: "--worker NAME".to_owned(),
        }),
    }
}

/// All workers that share the bucket, by name.
pub(crate) async fn all(root: &Backend) -> Result<Vec<Announcement>, PackError> {
    let mut found = Vec::new();
    for (name, bytes) in root.names(PREFIX).await? {
        let path = format!("{PREFIX}/{name}");
        if bytes > ANNOUNCEMENT_BYTES_MAX {
            return Err(PackError::damaged(path, "it is too long for an announcement"));
        }
        let bytes = match root.whole(&path, ANNOUNCEMENT_BYTES_MAX).await {
            Ok(bytes) => bytes,
            Err(Unread::Missing) => continue,
            Err(Unread::Failed(error)) => return Err(error),
        };
        let announcement = decode::<Announcement>("an announcement", &bytes)?;
        if announcement.name.as_str() != name {
            return Err(PackError::damaged(path, "it is that of another worker"));
        }
        found.push(announcement);
    }
    Ok(found)
}
