//! Changes of buckets that have a home region: whether they are decided here, and those that are made there (ADR 48).
//!
//! # Invariants
//!
//! 1. A put or delete that is decided here carries the epoch of the record that says so. A primary refuses it under any other one.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use larder_link::limits::CHANGE_BYTES_MAX;
use larder_link::{Change, ChangeKind};
use larder_objects::{
    AppendDone, AppendOptions, BodyDigest, ObjectError, PutBody, PutDone, PutOptions,
};
use larder_protocol::Call;
use larder_types::home::decider;
use larder_types::{
    BucketId, BucketName, BucketRecord, Condition, Decider, ETag, Epoch, ObjectKey, PgId, RegionId,
};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::home_change::{HomeChange, OTHER_ANSWER};
use super::put::Limit;
use super::role_access::RoleAccess;
use super::{Proxy, unavailable};
use crate::limits::CHANGE_PLACE_MS;
use crate::ticket::Settled;

const OF_CHANGES: Limit = Limit {
    what: "what another region passes on to the bucket's home",
    bytes: CHANGE_BYTES_MAX as u64,
};
/// Bytes of a body that is read before there is a place for it.
const SMALL_BYTES_MAX: usize = 64 * 1024;
pub(super) const COMING: &str =
    "the home of the bucket is moving to this region: try again in a moment";

impl<R: RoleAccess> Proxy<R> {
    /// The region that decides a client's change of a bucket, if it is another one.
    ///
    /// # Errors
    /// If the region takes no changes now.
    pub(super) fn home_of(
        &self,
        bucket: &BucketName,
        has_condition: bool,
    ) -> Result<Option<RegionId>, ObjectError> {
        if self.access.region() == RegionId::OWN {
            return Ok(None);
        }
        self.may_change()?;
        let look = |record: &BucketRecord| decider(record.home.as_ref(), has_condition);
        match self.access.bucket(bucket, look) {
            Some(Decider::Region(region)) => Ok(Some(region)),
            Some(Decider::Nobody) => Err(unavailable(COMING)),
            // A bucket that is not there is refused where the key is looked for.
            Some(Decider::Here) | None => Ok(None),
        }
    }

    /// The place of a client's change that is decided here, as one record says.
    pub(super) fn place_of_change(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        has_condition: bool,
    ) -> Result<(BucketId, Epoch, PgId), ObjectError> {
        let look = |record: &BucketRecord| {
            (record.id, record.epoch, decider(record.home.as_ref(), has_condition))
        };
        let (id, epoch, at) = self.access.bucket(bucket, look).ok_or(ObjectError::NoSuchBucket)?;
        match at {
            Decider::Here => Ok((id, epoch, self.access.pg_of(id, key))),
            Decider::Nobody => Err(unavailable(COMING)),
            // It has moved since somebody looked.
            Decider::Region(_) => Err(ObjectError::SlowDown),
        }
    }

    /// Makes a client's delete here, as [`Proxy::put_here`] makes a put.
    ///
    /// # Errors
    /// As [`Proxy::put_here`].
    pub(crate) async fn delete_here(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        condition: Condition,
    ) -> Result<(), ObjectError> {
        let _request = self.clients.begin();
        let (id, epoch, pg) = self.place_of_change(bucket, key, !condition.is_none())?;
        self.access.admit()?;
        let request = self.requests.begin();
        let call =
            Call::Delete { request: request.id(), bucket: id, epoch, key: key.clone(), condition };
        let made = self.access.submit(pg, call).await;
        self.changed(bucket, key, made, Settled::op).await.map(drop)
    }

    /// The same of tags. Of two that are set at once in two regions the later ones stay, so no epoch is needed.
    ///
    /// # Errors
    /// As [`Proxy::put_here`].
    pub(crate) async fn set_tags_here(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        tags: Vec<(String, String)>,
    ) -> Result<(), ObjectError> {
        let (id, _, pg) = self.place_of_change(bucket, key, false)?;
        self.access.admit()?;
        let request = self.requests.begin();
        let call = Call::SetTags { request: request.id(), bucket: id, key: key.clone(), tags };
        let made = self.access.submit(pg, call).await;
        self.changed(bucket, key, made, Settled::op).await.map(drop)
    }

    /// Has the home of a bucket make a put.
    pub(super) async fn put_at_home<B: PutBody>(
        &self,
        home: RegionId,
        (bucket, key): (&BucketName, &ObjectKey),
        options: PutOptions,
        mut body: B,
    ) -> Result<PutDone, ObjectError> {
        let (bytes, _place) =
            self.read_for_home(&mut body, OF_CHANGES, (&self.changes, CHANGE_PLACE_MS)).await?;
        let digest = body.finish()?;
        let (size, md5, attributes) =
            (bytes.len() as u64, digest.md5, Box::new(options.attributes));
        let checksum = digest.checksum.clone();
        let kind = ChangeKind::Put { attributes, md5, checksum, bytes };
        match self.change_at_home(home, (bucket, key), options.condition, kind).await? {
            HomeChange::Put(clock) => {
                Ok(PutDone { etag: ETag::Md5(md5), checksum: digest.checksum, clock, size })
            }
            HomeChange::Appended(_) | HomeChange::Changed | HomeChange::Uploaded(_) => {
                Err(unavailable(OTHER_ANSWER))
            }
        }
    }

    /// Has the home of a bucket make an append.
    pub(super) async fn append_at_home<B: PutBody>(
        &self,
        home: RegionId,
        (bucket, key): (&BucketName, &ObjectKey),
        options: AppendOptions,
        mut body: B,
    ) -> Result<AppendDone, ObjectError> {
        let (bytes, _place) =
            self.read_for_home(&mut body, OF_CHANGES, (&self.changes, CHANGE_PLACE_MS)).await?;
        if bytes.is_empty() {
            return Err(ObjectError::EmptyAppend);
        }
        let BodyDigest { md5, checksum, .. } = body.finish()?;
        let AppendOptions { at, attributes, condition, .. } = options;
        let (offset, attributes) = (at.offset(), Box::new(attributes));
        let kind = ChangeKind::Append { offset, attributes, md5, checksum, bytes };
        match self.change_at_home(home, (bucket, key), condition, kind).await? {
            HomeChange::Appended(done) => Ok(done),
            HomeChange::Put(_) | HomeChange::Changed | HomeChange::Uploaded(_) => {
                Err(unavailable(OTHER_ANSWER))
            }
        }
    }

    /// Reads a body that another region gets as a whole, and waits so long for one of these places for it.
    pub(super) async fn read_for_home<'a, B: PutBody>(
        &self,
        body: &mut B,
        limit: Limit,
        (places, wait_ms): (&'a Semaphore, u64),
    ) -> Result<(Bytes, SemaphorePermit<'a>), ObjectError> {
        if body.len().is_some_and(|len| len > limit.bytes) {
            return Err(limit.exceeded());
        }
        let (mut bytes, mut place) = (BytesMut::new(), None);
        while let Some(piece) = body.next().await {
            bytes.extend_from_slice(&piece?);
            if bytes.len() as u64 > limit.bytes {
                return Err(limit.exceeded());
            }
            // A client that sends little, slowly, keeps nobody waiting.
            if bytes.len() > SMALL_BYTES_MAX && place.is_none() {
                place = Some(place_in(places, wait_ms).await?);
            }
        }
        let place = match place {
            Some(place) => place,
            None => place_in(places, wait_ms).await?,
        };
        Ok((bytes.freeze(), place))
    }

    /// Has the home of a bucket make a change.
    pub(super) async fn change_at_home(
        &self,
        home: RegionId,
        (bucket, key): (&BucketName, &ObjectKey),
        condition: Condition,
        kind: ChangeKind,
    ) -> Result<HomeChange, ObjectError> {
        let change = Change { bucket: bucket.clone(), key: key.clone(), condition, kind };
        match self.elsewhere().filter(|_| self.access.is_gateway()) {
            Some(elsewhere) => elsewhere.change(home, change).await,
            None => self.access.change_at_gateway(home, change).await,
        }
    }
}

/// Waits for a place for the bytes of a change that another region is to make: they are in memory.
async fn place_in(places: &Semaphore, wait_ms: u64) -> Result<SemaphorePermit<'_>, ObjectError> {
    let max_wait = Duration::from_millis(wait_ms);
    let place = timeout(max_wait, places.acquire()).await;
    place.ok().and_then(Result::ok).ok_or(ObjectError::SlowDown)
}
