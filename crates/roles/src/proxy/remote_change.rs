//! Stores other regions' changes: bytes go the way of a client's put; the op has the stamp that the change has everywhere.

use larder_objects::{BodyError, ObjectError, PutBody};
use larder_protocol::Call;
use larder_protocol::region::{Base, Entry, RemoteAppend, RemoteChange, entry};
use larder_types::{
    Appended, BucketId, BucketName, Condition, ETag, Epoch, FreedTombstone, Metax, ObjectKey, OpId,
    OpSeq, Origin, Passed, PgId, Stamp,
};

use super::Proxy;
use super::put::{OF_REMOTE_CHANGE, PutRequest};
use super::region_version::RegionVersion;
use super::role_access::{BucketSnapshot, RoleAccess};

/// The outcome of another region's change that is durable here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// It is in effect.
    Taken,
    /// The version that was here wins over it, or is the same.
    Beaten,
}

/// Takes it as success that a newer change beats this one.
pub(super) fn unless_beaten(error: ObjectError) -> Result<ChangeOutcome, ObjectError> {
    // Another region's change has no other condition.
    let is_beaten = matches!(error, ObjectError::PreconditionFailed);
    if is_beaten { Ok(ChangeOutcome::Beaten) } else { Err(error) }
}

impl BucketSnapshot {
    /// Refuses a change that was requested when the bucket was another, or had another epoch. Tombstones that would
    /// beat it may have gone with a deletion of the bucket in another region.
    pub(super) fn is(self, now: (BucketId, Epoch)) -> Result<(), ObjectError> {
        if self.place() == now { Ok(()) } else { Err(ObjectError::NoSuchBucket) }
    }
}

impl<R: RoleAccess> Proxy<R> {
    /// Stores another region's version, unless what is here is newer. The body checks that its bytes are the version's.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn put_remote<B: PutBody>(
        &self,
        (bucket, at): (&BucketName, BucketSnapshot),
        key: &ObjectKey,
        (entry, object): (&Entry, &entry::Object),
        body: B,
    ) -> Result<ChangeOutcome, ObjectError> {
        let attributes = object.metax.attributes.clone();
        let place = self.place(bucket, key)?;
        at.is((place.0, place.1))?;
        let wanted = self.wanted(place, (bucket, key), attributes, Condition::default());
        let wanted = PutRequest {
            remote_version: Some(Box::new(RegionVersion::of(entry, object))),
            ..wanted
        };
        self.store(wanted, body).await.map(|_done| ChangeOutcome::Taken).or_else(unless_beaten)
    }

    /// Appends what another region has of a version behind what is here, unless that is newer.
    ///
    /// # Errors
    /// [`ObjectError`]; [`ObjectError::Changed`] if what is here is not the base.
    pub async fn append_remote<B: PutBody>(
        &self,
        (bucket, known): (&BucketName, BucketSnapshot),
        key: &ObjectKey,
        (entry, object): (&Entry, &entry::Object),
        base: Base,
        mut body: B,
    ) -> Result<ChangeOutcome, ObjectError> {
        let attributes = object.metax.attributes.clone();
        let place = self.place(bucket, key)?;
        known.is((place.0, place.1))?;
        let wanted = self.wanted(place, (bucket, key), attributes, Condition::default());
        let wanted = PutRequest {
            remote_version: Some(Box::new(RegionVersion::of(entry, object))),
            ..wanted
        };
        let appending = self.store_appended(&wanted, &mut body, OF_REMOTE_CHANGE).await?;
        let Metax { size, etag, checksum, .. } = object.metax.clone();
        if base.size.checked_add(appending.size) != Some(size) {
            return Err(BodyError::Incomplete.into());
        }
        let request = self.requests.begin();
        let append = RemoteAppend {
            request: request.id(),
            bucket: wanted.bucket,
            epoch: wanted.epoch,
            key: wanted.key,
            onto: base.at,
            made: Appended { offset: base.size, size, etag, checksum },
            attributes: wanted.attributes,
            etag: ETag::Md5(appending.digest.md5),
            content: appending.content.clone(),
            at: entry.at,
            origin: entry.origin,
        };
        let change = Call::RemoteChange(Box::new(RemoteChange::Append(Box::new(append))));
        match self.access.submit(wanted.pg, change).await {
            Ok(_done) => {
                appending.claimed();
                self.note_remote_append(bucket, key);
                Ok(ChangeOutcome::Taken)
            }
            Err(ObjectError::WriteOffset { .. }) => Err(ObjectError::Changed),
            Err(error) => unless_beaten(error),
        }
    }

    /// Purges a key's null versions up to a stamp, unless what is here is newer.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn purge_remote(
        &self,
        (bucket, known): (&BucketName, BucketSnapshot),
        key: &ObjectKey,
        (at, origin): (Stamp, Origin),
    ) -> Result<ChangeOutcome, ObjectError> {
        let (bucket, epoch, pg) = self.place(bucket, key)?;
        known.is((bucket, epoch))?;
        let request = self.requests.begin();
        let (request, key) = (request.id(), key.clone());
        self.send_to_pg(pg, RemoteChange::Purge { request, bucket, epoch, key, at, origin }).await
    }

    /// Sets another region's tags and amendments on a key's version, unless another is here by now.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn amend_remote(
        &self,
        (bucket, known): (&BucketName, BucketSnapshot),
        key: &ObjectKey,
        (at, object): (Stamp, &entry::Object),
    ) -> Result<ChangeOutcome, ObjectError> {
        let (bucket, epoch, pg) = self.place(bucket, key)?;
        known.is((bucket, epoch))?;
        let request = self.requests.begin();
        let (tags, amended) = (object.metax.attributes.tags.clone(), object.amended);
        let (request, key) = (request.id(), key.clone());
        self.send_to_pg(pg, RemoteChange::Amend { request, bucket, epoch, key, at, tags, amended })
            .await
    }

    /// Has a key's version, if this op made its row, become a new one with the same content. Other regions take it as a change that
    /// they never had. Returns its PG, and the op that their journals have to pass; `None` if the key has changed since.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn renew(
        &self,
        (bucket, known): (&BucketName, BucketSnapshot),
        key: &ObjectKey,
        was: OpId,
    ) -> Result<Option<(PgId, OpSeq)>, ObjectError> {
        let (bucket, epoch, pg) = self.place(bucket, key)?;
        known.is((bucket, epoch))?;
        let request = self.requests.begin();
        let (request, key) = (request.id(), key.clone());
        self.access.admit()?;
        let change = RemoteChange::Renew { request, bucket, epoch, key, was };
        let done = self.access.submit(pg, Call::RemoteChange(Box::new(change))).await;
        let renewed = done.map(|done| done.op().map(|op| (pg, op)));
        renewed.or_else(|error| unless_beaten(error).map(|_beaten| None))
    }

    /// Refuses data while there is no room for it.
    ///
    /// # Errors
    /// The reason.
    pub fn admits_data(&self) -> Result<(), ObjectError> {
        self.access.admit_data()
    }

    /// Has a PG note positions in other regions' journals, and forget outcomes of its own.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn note(
        &self,
        pg: PgId,
        passed: Vec<Passed>,
        forgotten: Option<(OpSeq, OpSeq)>,
    ) -> Result<(), ObjectError> {
        let request = self.requests.begin();
        self.send_to_pg(pg, RemoteChange::Note { request: request.id(), passed, forgotten })
            .await
            .map(|_| ())
    }

    /// Has a PG free tombstones that no region needs any more, at most
    /// [`REGION_FREED_MAX`](larder_protocol::limits::REGION_FREED_MAX).
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn free_tombstones(
        &self,
        pg: PgId,
        tombstones: Vec<FreedTombstone>,
    ) -> Result<(), ObjectError> {
        let request = self.requests.begin();
        self.send_to_pg(pg, RemoteChange::Free { request: request.id(), tombstones })
            .await
            .map(|_| ())
    }

    async fn send_to_pg(
        &self,
        pg: PgId,
        change: RemoteChange,
    ) -> Result<ChangeOutcome, ObjectError> {
        self.access.admit()?;
        let asked = self.access.submit(pg, Call::RemoteChange(Box::new(change))).await;
        asked.map(|_done| ChangeOutcome::Taken).or_else(unless_beaten)
    }
}
