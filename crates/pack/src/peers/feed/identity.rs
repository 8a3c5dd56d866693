//! The identities of workers. All that know the bucket's secret have the same authority, which follows from it: each
//! makes its own certificate without a request.
//!
//! # Invariants
//!
//! 1. The secret itself is never sent.
//! 2. A worker's key is drawn at each start, and is in no file. Its certificate names its claim, so that an heir is not
//!    taken for the worker before it.

use std::sync::Arc;

use bytes::Bytes;
use larder_identity::limits::AUTHORITY_VALIDITY;
use larder_identity::proof::{SECRET_BYTES, Secret};
use larder_identity::{Authority, Credentials, Role, Roles};
use larder_types::ServerId;
use xxhash_rust::xxh3::xxh3_64;

use crate::backend::{Backend, Unread};
use crate::error::PackError;
use crate::ids::WorkerId;

/// Name of the secret in the bucket.
const SECRET: &str = "secret";

/// The secret of a bucket's workers: all that can read the bucket know it. The first worker draws it.
pub(crate) async fn secret_of(root: &Backend) -> Result<Secret, PackError> {
    let found = match root.whole(SECRET, SECRET_BYTES as u64).await {
        Ok(found) => found,
        Err(Unread::Failed(error)) => return Err(error),
        Err(Unread::Missing) => {
            let mut drawn = [0; SECRET_BYTES];
            larder_env::rng::fill_secret(&mut drawn);
            root.put_new(SECRET, Bytes::copy_from_slice(&drawn)).await?;
            // Another may have been quicker.
            match root.whole(SECRET, SECRET_BYTES as u64).await {
                Ok(found) => found,
                Err(Unread::Missing) => {
                    return Err(PackError::damaged(SECRET, "it was written and is not there"));
                }
                Err(Unread::Failed(error)) => return Err(error),
            }
        }
    };
    let found = found.as_ref().try_into();
    found.map(Secret::of).map_err(|_| PackError::damaged(SECRET, "it is not as long as a secret"))
}

/// The certificate that a worker shows the others, with its key. The certificate is good for longer than a process runs.
pub(crate) fn credentials(
    secret: &Secret,
    worker: WorkerId,
) -> Result<Arc<Credentials>, PackError> {
    let workers = Roles::of(&[Role::Worker]);
    Authority::from_secret(secret)
        .and_then(|authority| {
            authority.identity_for(server_of(worker), workers, AUTHORITY_VALIDITY)
        })
        .and_then(|identity| Credentials::new(&identity))
        .map_err(|error| PackError::damaged(SECRET, error.to_string()))
}

/// The number by which a certificate names a claim: the lower half of its XXH3-64. Two claims may have the same, so a call
/// names the claim besides.
pub(crate) fn server_of(worker: WorkerId) -> ServerId {
    ServerId(xxh3_64(&worker.0.to_le_bytes()) as u32)
}
