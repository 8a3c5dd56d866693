//! A manager that joins.
//!
//! # Invariant
//!
//! Its log comes first, and its identity last: a manager that has an identity and no log has lost that.

use std::path::Path;
use std::sync::Arc;

use larder_env::{Disk, RealDisk};
use larder_identity::{Identity, JoinToken, Subject};
use larder_types::{ClusterId, ServerId};

use super::disk::QuorumDisk;
use super::error::ManagerError;
use crate::identity::{Nobody, identity_prepared};

/// The identity of a manager in its directory, as [`identity_in`](crate::identity::identity_in) has it for other servers.
///
/// # Errors
/// [`Nobody`], by what to do.
pub async fn manager_identity_in(
    dir: &Path,
    managers: &[String],
    token: Option<&JoinToken>,
) -> Result<Identity, Nobody> {
    identity_prepared(dir, managers, token, |identity| {
        let (disk, Subject { cluster, server, .. }) = (RealDisk::create(dir)?, identity.subject());
        Ok(make_log(Arc::new(disk), cluster, server)?)
    })
    .await
}

/// Makes the log of a manager whose identity is not kept yet. Blocks.
pub(crate) fn make_log(
    disk: Arc<dyn Disk>,
    cluster: ClusterId,
    me: ServerId,
) -> Result<(), ManagerError> {
    QuorumDisk::make(disk, cluster, me).map(drop)
}
