//! Stores another region's version of many bytes in parts, as they come with one request after another.
//!
//! # Invariants
//!
//! 1. Its chunks have no parent before all have come: nobody reads them, and they are freed if this is dropped.
//! 2. Only whole chunks are kept, each of which is durable. A store that fails ends all of it: that chunk's put is in doubt, and no
//!    other of the same place may be beside it.

use bytes::Bytes;
use larder_objects::{BodyDigest, BodyError, ObjectError};
use larder_protocol::Content;
use larder_protocol::region::{Entry, entry};
use larder_types::limits::CHUNK_BYTES_MAX;
use larder_types::{Attributes, BucketName, Condition, ETag, ObjectKey};
use md5::{Digest, Md5};

use super::Proxy;
use super::put::{Pieces, PutRequest, StreamGuard};
use super::region_version::RegionVersion;
use super::remote_change::{ChangeOutcome, unless_beaten};
use super::role_access::{BucketSnapshot, RoleAccess};

/// See the module's head.
pub struct RemoteParts<R: RoleAccess> {
    guard: StreamGuard<R>,
    chunks: u32,
    bytes: u64,
    md5: Md5,
    /// It was to be all.
    is_ended: bool,
}

impl<R: RoleAccess> RemoteParts<R> {
    /// Bytes that are durable here.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<R: RoleAccess> Proxy<R> {
    fn wanted_remote(
        &self,
        (bucket, known): (&BucketName, BucketSnapshot),
        key: &ObjectKey,
    ) -> Result<PutRequest, ObjectError> {
        let place = self.place(bucket, key)?;
        known.is((place.0, place.1))?;
        Ok(self.wanted(place, (bucket, key), Attributes::default(), Condition::default()))
    }

    /// Begins to store a version.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn begin_remote(
        &self,
        bucket: (&BucketName, BucketSnapshot),
        key: &ObjectKey,
    ) -> Result<RemoteParts<R>, ObjectError> {
        let guard = self.new_chunks(&self.wanted_remote(bucket, key)?);
        Ok(RemoteParts { guard, chunks: 0, bytes: 0, md5: Md5::new(), is_ended: false })
    }

    /// Returns true if chunks that are here are kept. Those of a session that has ended are freed.
    pub fn keeps(&self, parts: &RemoteParts<R>) -> bool {
        parts.guard.stream().session == self.requests.session()
    }

    /// Refuses a chunk that would not be taken, before it is put.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn admits_remote(
        &self,
        bucket: (&BucketName, BucketSnapshot),
        key: &ObjectKey,
    ) -> Result<(), ObjectError> {
        self.wanted_remote(bucket, key)?;
        self.access.admit_data()
    }

    /// Stores the next chunk. Each has [`CHUNK_BYTES_MAX`] bytes, but for the last of all.
    ///
    /// # Errors
    /// [`ObjectError`]: what is here of the version is of no use any more, as this chunk's put is in doubt.
    ///
    /// # Panics
    /// If the chunk before was the last, or this one is too large.
    pub async fn add_remote(
        &self,
        bucket: (&BucketName, BucketSnapshot),
        key: &ObjectKey,
        parts: &mut RemoteParts<R>,
        chunk: Vec<Bytes>,
    ) -> Result<(), ObjectError> {
        let wanted = self.wanted_remote(bucket, key)?;
        let is_whole = parts.bytes == u64::from(parts.chunks) * u64::from(CHUNK_BYTES_MAX);
        let mut pieces = Pieces::default();
        chunk.iter().for_each(|piece| pieces.push(piece.clone()));
        let bytes = pieces.len as u64;
        assert!(!parts.is_ended && is_whole, "nothing comes behind the last chunk");
        assert!(bytes <= u64::from(CHUNK_BYTES_MAX), "a chunk has room for it");
        self.store_part_of_stream(&wanted, parts.guard.stream(), parts.chunks, pieces).await?;
        chunk.iter().for_each(|piece| parts.md5.update(piece));
        (parts.chunks, parts.bytes) = (parts.chunks + 1, parts.bytes + bytes);
        Ok(())
    }

    /// Makes the chunks another region's version, unless what is here is newer. It may be asked again after an error, unless that is of
    /// the bytes.
    ///
    /// # Errors
    /// [`ObjectError`]; [`ObjectError::Body`] if these are not the version's bytes.
    pub async fn end_remote(
        &self,
        bucket: (&BucketName, BucketSnapshot),
        key: &ObjectKey,
        (entry, object): (&Entry, &entry::Object),
        parts: &mut RemoteParts<R>,
    ) -> Result<ChangeOutcome, ObjectError> {
        let wanted = self.wanted_remote(bucket, key)?;
        let md5: [u8; 16] = parts.md5.clone().finalize().into();
        // That of parts of an upload is no digest of the bytes.
        if matches!(object.metax.etag, ETag::Md5(md5_named) if md5_named != md5) {
            return Err(BodyError::BadDigest.into());
        }
        parts.is_ended = true;
        let wanted = PutRequest {
            remote_version: Some(Box::new(RegionVersion::of(entry, object))),
            ..wanted
        };
        let (stream, chunks) = (parts.guard.stream(), parts.chunks);
        let content = Content::Stream { stream, chunks, chunk_bytes: CHUNK_BYTES_MAX };
        let digest = BodyDigest { md5, checksum: None };
        let done = self.put_parent(&wanted, content, (parts.bytes, digest)).await;
        if done.is_ok() {
            parts.guard.claimed();
        }
        done.map(|_done| ChangeOutcome::Taken).or_else(unless_beaten)
    }
}
