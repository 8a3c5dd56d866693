//! The owner of a backend: claims in it, and the file that names a directory's own claim.
//!
//! A claim is an object `claims/NUMBER`, made only if there is none of that number. Its number is
//! the worker's id. The latest claim owns the backend. One that was refused is withdrawn: it stays,
//! with a nonce of 0, and its number is not given again. A request to remove it, come late, would
//! remove the claim of another directory that has the number by then.
//!
//! # Invariants
//!
//! 1. No two directories have the same number in one backend, and a directory never has another one.
//! 2. A directory is used only with the backend in which its claim lies: the nonce tells it from any other.
//! 3. A name among claims that this build does not know stops it: it may be such a [marker](crate::owner::marker) of a later one.

use bytes::Bytes;
use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError};
use larder_types::codec::{decode, encode};
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Unread};
use crate::error::PackError;
use crate::ids::WorkerId;
use crate::limits::CLAIM_BYTES_MAX;
use crate::owner::announce::refuse_shared;
use crate::owner::marker::{CLAIMS, MARKER};

/// File of the directory.
const FILE: &str = "worker";
/// The directory's worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) worker: WorkerId,
    /// Drawn with the directory.
    pub(crate) nonce: u64,
    /// True once the claim was made: before that the backend does not have it yet.
    pub(crate) claimed: bool,
}

/// A claim as the backend has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) nonce: u64,
    pub(crate) claimed_ms: u64,
}

/// The nonce of a claim that was withdrawn.
const WITHDRAWN: u64 = 0;

/// The claims to a backend.
struct Claims {
    /// The last number that was given.
    last: WorkerId,
    owner: Option<WorkerId>,
}

fn path(worker: WorkerId) -> String {
    format!("{CLAIMS}/{:016x}", worker.0)
}

/// The terms on which a directory claims a backend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claiming {
    pub(crate) now_ms: u64,
    /// True if it may take the backend over.
    pub(crate) take_over: bool,
    /// Before the first number that a claim to this backend has.
    pub(crate) base: WorkerId,
    /// True if the bucket must not be shared.
    pub(crate) is_alone: bool,
}

/// Returns true if the directory ever had an identity.
pub(crate) fn is_known(disk: &dyn Disk) -> Result<bool, PackError> {
    match read_file(disk, FILE) {
        Ok(_) => Ok(true),
        Err(DiskError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if the backend has a claim that was not withdrawn.
pub(crate) async fn is_claimed(backend: &Backend) -> Result<bool, PackError> {
    for name in names(backend).await? {
        if !is_withdrawn(backend, &format!("{CLAIMS}/{name}")).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The directory's identity, made and claimed if the directory is new.
pub(crate) async fn establish(
    disk: &dyn Disk,
    backend: &Backend,
    claiming: Claiming,
) -> Result<Identity, PackError> {
    let known = match read_file(disk, FILE) {
        Ok(bytes) => Some(decode::<Identity>("the worker's file", &bytes)?),
        Err(DiskError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    match known {
        Some(identity) if identity.claimed => {
            verify(backend, &identity).await?;
            Ok(identity)
        }
        // A claim was begun: perhaps it came to be.
        Some(identity) => claim(disk, backend, identity, claiming).await,
        None => {
            let nonce = larder_env::rng::unique_u64().max(WITHDRAWN + 1);
            let identity = Identity { worker: WorkerId(0), nonce, claimed: false };
            claim(disk, backend, identity, claiming).await
        }
    }
}

/// Names below the claims' prefix, without the marker.
async fn names(backend: &Backend) -> Result<Vec<String>, PackError> {
    let all = backend.names(CLAIMS).await?.into_iter().map(|(name, _)| name);
    Ok(all.filter(|name| name != MARKER).collect())
}

/// Refuses if the backend is this worker's no longer.
pub(crate) async fn check_owner(backend: &Backend, worker: WorkerId) -> Result<(), PackError> {
    let mut next = WorkerId(worker.0 + 1);
    while backend.size(&path(next)).await?.is_some() {
        if !is_withdrawn(backend, &path(next)).await? {
            return Err(PackError::Superseded { worker, by: next });
        }
        next = WorkerId(next.0 + 1);
    }
    Ok(())
}

async fn verify(backend: &Backend, identity: &Identity) -> Result<(), PackError> {
    let worker = identity.worker;
    match read_claim(backend, worker).await? {
        Some(claim) if claim.nonce == identity.nonce => check_owner(backend, worker).await,
        Some(_) => Err(PackError::OtherBackend {
            reason: format!("worker {worker} of this backend has another directory"),
        }),
        None => {
            Err(PackError::OtherBackend { reason: format!("this backend has no worker {worker}") })
        }
    }
}

async fn claim(
    disk: &dyn Disk,
    backend: &Backend,
    mut identity: Identity,
    claiming: Claiming,
) -> Result<Identity, PackError> {
    let Claiming { now_ms, take_over, base, is_alone } = claiming;
    if identity.worker != WorkerId(0)
        && read_claim(backend, identity.worker).await?.is_some_and(|c| c.nonce == identity.nonce)
    {
        return claimed(disk, backend, identity, is_alone).await;
    }
    // Workers that share it look for claims after they have announced themselves: one of both sees the other.
    if is_alone {
        refuse_shared(backend).await?;
    }
    loop {
        let Claims { last, owner } = claims(backend, base).await?;
        if let Some(owner) = owner
            && !take_over
        {
            return Err(PackError::Owned { owner });
        }
        if last.0 & WorkerId::TAKE_OVERS == WorkerId::TAKE_OVERS {
            return Err(PackError::damaged(path(last), "it is the last that a worker may have"));
        }
        identity.worker = WorkerId(last.0 + 1);
        // First the file, so that a claim always has a directory that knows it.
        keep(disk, identity)?;
        let claim = Claim { nonce: identity.nonce, claimed_ms: now_ms };
        if backend.put_new(&path(identity.worker), Bytes::from(encode(&claim))).await? {
            return claimed(disk, backend, identity, is_alone).await;
        }
        // A repeated request may have met its own first try.
        if read_claim(backend, identity.worker).await? == Some(claim) {
            return claimed(disk, backend, identity, is_alone).await;
        }
    }
}

/// There is a claim, which counts from now on.
async fn claimed(
    disk: &dyn Disk,
    backend: &Backend,
    identity: Identity,
    is_alone: bool,
) -> Result<Identity, PackError> {
    if is_alone && let Err(refused) = refuse_shared(backend).await {
        // Nobody has used it, and nobody will.
        withdraw(backend, identity).await?;
        return Err(refused);
    }
    keep(disk, Identity { claimed: true, ..identity })
}

fn keep(disk: &dyn Disk, identity: Identity) -> Result<Identity, PackError> {
    replace_file(disk, "", FILE, &encode(&identity))?;
    Ok(identity)
}

/// Leaves a claim of this directory without effect, and never one of another.
async fn withdraw(backend: &Backend, identity: Identity) -> Result<(), PackError> {
    let mine = read_claim(backend, identity.worker).await?;
    let Some(mine) = mine.filter(|claim| claim.nonce == identity.nonce) else { return Ok(()) };
    let withdrawn = encode(&Claim { nonce: WITHDRAWN, ..mine });
    backend.replace(&path(identity.worker), &encode(&mine), withdrawn.into()).await.map(drop)
}

/// Returns true if a claim was withdrawn. One that is not there, or cannot be read as a claim, was
/// not.
async fn is_withdrawn(backend: &Backend, path: &str) -> Result<bool, PackError> {
    match backend.whole(path, CLAIM_BYTES_MAX).await {
        Ok(bytes) => {
            Ok(decode::<Claim>("a claim", &bytes).is_ok_and(|claim| claim.nonce == WITHDRAWN))
        }
        Err(Unread::Missing) => Ok(false),
        Err(Unread::Failed(error)) => Err(error),
    }
}

async fn claims(backend: &Backend, base: WorkerId) -> Result<Claims, PackError> {
    let mut numbers = Vec::new();
    for name in names(backend).await? {
        let number = u64::from_str_radix(&name, 16).ok().filter(|_| name.len() == 16);
        let number = number.map(WorkerId).filter(|number| number.line() == base.line());
        let number =
            number.ok_or_else(|| PackError::unknown(format!("{CLAIMS}/{name}"), "a claim"))?;
        numbers.push(number);
    }
    numbers.sort_unstable();
    let last = numbers.last().copied().unwrap_or(base);
    for number in numbers.into_iter().rev() {
        if !is_withdrawn(backend, &path(number)).await? {
            return Ok(Claims { last, owner: Some(number) });
        }
    }
    Ok(Claims { last, owner: None })
}

async fn read_claim(backend: &Backend, worker: WorkerId) -> Result<Option<Claim>, PackError> {
    let name = path(worker);
    let Some(bytes) = backend.size(&name).await? else { return Ok(None) };
    if bytes > CLAIM_BYTES_MAX {
        return Err(PackError::damaged(name, "it is too long for a claim"));
    }
    match backend.read(&name, 0..bytes).await {
        Ok(bytes) => Ok(Some(decode("a claim", &bytes)?)),
        Err(Unread::Missing) => Ok(None),
        Err(Unread::Failed(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_env::RealDisk;
    use object_store::memory::InMemory;

    use super::*;

    fn disk() -> (tempfile::TempDir, RealDisk) {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path()).unwrap();
        (dir, disk)
    }

    async fn establish(
        disk: &dyn Disk,
        backend: &Backend,
        now_ms: u64,
        take_over: bool,
    ) -> Result<Identity, PackError> {
        let claiming = Claiming { now_ms, take_over, base: WorkerId(0), is_alone: true };
        super::establish(disk, backend, claiming).await
    }

    fn backend() -> Backend {
        Backend::over(Arc::new(InMemory::new()))
    }

    #[tokio::test]
    async fn a_backend_belongs_to_the_directory_that_claimed_it() {
        let backend = backend();
        let ((_a, first), (_b, second)) = (disk(), disk());
        let mine = establish(&first, &backend, 1, false).await.unwrap();
        assert_eq!(mine.worker, WorkerId(1));
        assert_eq!(establish(&first, &backend, 2, false).await.unwrap(), mine, "at every start");
        let refused = establish(&second, &backend, 3, false).await.unwrap_err();
        assert!(matches!(refused, PackError::Owned { owner: WorkerId(1) }), "{refused}");
        let next = establish(&second, &backend, 4, true).await.unwrap();
        assert_eq!(next.worker, WorkerId(2));
        let refused = establish(&first, &backend, 5, true).await.unwrap_err();
        assert!(matches!(refused, PackError::Superseded { .. }), "{refused}");
        assert!(check_owner(&backend, next.worker).await.is_ok());
    }

    #[tokio::test]
    async fn a_directory_is_refused_by_another_backend() {
        let ((_a, first), (_b, second)) = (disk(), disk());
        establish(&first, &backend(), 1, false).await.unwrap();
        let refused = establish(&first, &backend(), 2, true).await.unwrap_err();
        assert!(matches!(refused, PackError::OtherBackend { .. }), "an empty one: {refused}");
        let other = backend();
        establish(&second, &other, 3, false).await.unwrap();
        let refused = establish(&first, &other, 4, true).await.unwrap_err();
        assert!(
            matches!(refused, PackError::OtherBackend { .. }),
            "one with a worker 1: {refused}"
        );
    }

    #[tokio::test]
    async fn a_claim_that_is_withdrawn_is_no_owners_and_its_number_is_not_given_again() {
        let backend = backend();
        let ((_a, first), (_b, second), (_c, third)) = (disk(), disk(), disk());
        let owner = establish(&first, &backend, 1, false).await.unwrap();
        let refused = establish(&second, &backend, 2, true).await.unwrap();
        withdraw(&backend, refused).await.unwrap();
        check_owner(&backend, owner.worker).await.unwrap();
        let owned = establish(&third, &backend, 3, false).await.unwrap_err();
        assert!(matches!(owned, PackError::Owned { owner: WorkerId(1) }), "{owned}");
        let heir = establish(&third, &backend, 4, true).await.unwrap();
        assert_eq!(heir.worker, WorkerId(3));
        assert!(matches!(
            check_owner(&backend, owner.worker).await,
            Err(PackError::Superseded { by: WorkerId(3), .. })
        ));
    }

    #[tokio::test]
    async fn a_withdrawal_that_comes_late_leaves_the_claim_of_another() {
        let backend = backend();
        let ((_a, first), (_b, second)) = (disk(), disk());
        let refused = establish(&first, &backend, 1, false).await.unwrap();
        withdraw(&backend, refused).await.unwrap();
        assert!(!is_claimed(&backend).await.unwrap());
        let owner = establish(&second, &backend, 2, false).await.unwrap();
        assert_eq!(owner.worker, WorkerId(2));
        for late in [refused, Identity { worker: owner.worker, ..refused }] {
            withdraw(&backend, late).await.unwrap();
        }
        assert_eq!(establish(&second, &backend, 3, false).await.unwrap(), owner);
        assert!(is_claimed(&backend).await.unwrap());
    }

    #[tokio::test]
    async fn a_claim_that_was_cut_off_is_taken_up_again() {
        let backend = backend();
        let (_a, disk) = disk();
        let mine = establish(&disk, &backend, 1, false).await.unwrap();
        keep(&disk, Identity { claimed: false, ..mine }).unwrap();
        assert_eq!(establish(&disk, &backend, 2, false).await.unwrap(), mine);
        let begun = Identity { worker: WorkerId(9), nonce: 77, claimed: false };
        let (_b, new) = self::disk();
        keep(&new, begun).unwrap();
        assert!(matches!(establish(&new, &backend, 3, false).await, Err(PackError::Owned { .. })));
        assert_eq!(establish(&new, &backend, 4, true).await.unwrap().worker, WorkerId(2));
    }
}
