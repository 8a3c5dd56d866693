//! Reads: find the version, here or in another region, then its bytes, in pieces, each verified before it leaves.
//! `ahead.rs` decides how many at once.

mod coalesced;
mod lookup;
mod source;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::future;
use futures::stream::{self, StreamExt, TryStreamExt};
use larder_objects::{ListedPart, ObjectError, Opened, ReadBody};
use larder_types::{
    Body, BucketId, BucketName, BucketRecord, ETag, ObjectEntry, ObjectKey, OpId, PartRow, PgId,
    RegionId, VersionRow, rows,
};
use tokio::time::Instant;

use super::ahead::{Ahead, PieceRead, PieceReads};
use super::other_regions::RegionLookup;
use super::role_access::RoleAccess;
use super::task::Task;
use super::{Proxy, decoded, unavailable, undecodable};
use crate::data::ReadFailure;
use crate::limits::BUCKET_UPDATE_MAX;
use lookup::Lookup;
use source::{Named, Piece, Source};

/// The purpose for which an object is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadPurpose {
    /// To know its METAX.
    Metax,
    /// To read all its bytes as well.
    Whole,
}

impl<R: RoleAccess> Proxy<R> {
    /// Finds a key's version, here or in another region.
    pub(super) async fn open_wherever(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        wanted: ReadPurpose,
    ) -> Result<Opened, ObjectError> {
        let _request = self.clients.begin();
        let found = self.find(bucket, key, wanted).await;
        let is_local = || self.access.bucket(bucket, BucketRecord::is_local) == Some(true);
        if !matches!(found, Err(ObjectError::NoSuchKey)) || is_local() {
            return found;
        }
        let looked = match self.elsewhere().filter(|_| self.access.is_gateway()) {
            Some(elsewhere) => elsewhere.find_elsewhere(bucket, key).await?,
            None => self.access.read_gateway_state(bucket, key).await?,
        };
        match looked {
            RegionLookup::Here => self.find(bucket, key, wanted).await,
            RegionLookup::There(version) => self.opened_there(*version),
            RegionLookup::Nowhere => Err(ObjectError::NoSuchKey),
        }
    }

    /// Finds a key's version; if it is to be read whole, with its bytes where they come along.
    pub(super) async fn find(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        wanted: ReadPurpose,
    ) -> Result<Opened, ObjectError> {
        let deadline = Instant::now() + BUCKET_UPDATE_MAX;
        loop {
            let known = self.known(bucket)?;
            let pg = self.access.pg_of(known.id, key);
            let found = match wanted {
                ReadPurpose::Metax => {
                    self.access.find(pg, known.id, key).await.map(|row| (row, None))
                }
                ReadPurpose::Whole => self.access.find_and_read(pg, known.id, key).await,
            };
            match found {
                Ok((row, bytes)) => {
                    let mut opened = opened(known.id, key, row.ok_or(ObjectError::NoSuchKey)?);
                    opened.bytes = bytes;
                    self.find_remote_parts(pg, &mut opened).await?;
                    return Ok(opened);
                }
                Err(ObjectError::NoSuchBucket) => {
                    self.await_bucket_update(bucket, known, deadline).await?
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Of a version that another region took in parts, what only its row in the index says. Nothing of others.
    async fn find_remote_parts(&self, pg: PgId, opened: &mut Opened) -> Result<(), ObjectError> {
        let is_told = self.access.region() != RegionId::OWN
            && matches!(opened.metax.etag, ETag::Parts(..))
            && !matches!(opened.body, Body::Parts { .. } | Body::Pieces { .. });
        if !is_told {
            return Ok(());
        }
        let row = rows::version(opened.bucket, &opened.key, rows::UNVERSIONED);
        let Some(value) = self.access.settled_row(pg, &row).await? else { return Ok(()) };
        let entry = ObjectEntry::read(&value).map_err(undecodable)?;
        // Of one that has taken its place meanwhile, nothing.
        if entry.row.op == opened.op {
            opened.remote_parts = entry.parts;
        }
        Ok(())
    }

    /// The op of the key's version now, to tell a replaced object from a damaged one.
    async fn op_now(&self, object: &Opened) -> Option<OpId> {
        let pg = self.access.pg_of(object.bucket, &object.key);
        let row = self.access.find(pg, object.bucket, &object.key).await.ok()?;
        row.map(|row| row.op)
    }

    pub(super) async fn read_range(
        &self,
        object: &Opened,
        range: Range<u64>,
    ) -> Result<ReadBody, ObjectError> {
        if range.start >= range.end {
            return Ok(ReadBody::Whole(Bytes::new()));
        }
        if let Some(bytes) = &object.bytes
            && range.end <= bytes.len() as u64
        {
            return Ok(ReadBody::Whole(bytes.slice(range.start as usize..range.end as usize)));
        }
        let names_rows =
            matches!(object.body, Body::Stream { .. } | Body::Parts { .. } | Body::Pieces { .. });
        let source = Arc::new(Source {
            access: self.access.clone(),
            bucket: object.bucket,
            key: object.key.clone(),
            op: object.op,
            rows_in: names_rows.then(|| self.access.pg_of(object.bucket, &object.key)),
        });
        let mut lookup = Lookup::new(source.clone());
        lookup.push_body(&object.body, Named::ByVersion, None, range)?;
        // The first piece is read before anything is answered: if the object was replaced since it was
        // found, the caller can still start again.
        let first = match lookup.next().await {
            Ok(Some(first)) => first,
            Ok(None) => return Ok(ReadBody::Whole(Bytes::new())),
            Err(failure) => return Err(self.explain(object, failure).await),
        };
        if lookup.spans.is_empty() {
            return match source.read(first).await {
                Ok(bytes) => Ok(ReadBody::Whole(bytes)),
                Err(failure) => Err(self.explain(object, failure).await),
            };
        }
        let mut pieces = Ahead::new(reads(first, lookup), &self.ahead);
        let first = match pieces.next().await {
            Some(Ok(first)) => first,
            Some(Err(failure)) => return Err(self.explain(object, failure).await),
            None => Bytes::new(),
        };
        let rest = pieces.map_err(|failure| {
            tracing::warn!(?failure, "a read ended early");
            match failure {
                ReadFailure::Mismatch => ObjectError::Changed,
                ReadFailure::Unreadable => unavailable("the rest of the object cannot be read"),
            }
        });
        let first = stream::once(future::ready(Ok(first)));
        Ok(ReadBody::Stream(Box::pin(first.chain(rest))))
    }

    /// The reason why a read failed: the object was replaced meanwhile, or every copy of it is bad.
    async fn explain(&self, object: &Opened, failure: ReadFailure) -> ObjectError {
        if self.op_now(object).await != Some(object.op) {
            return ObjectError::Changed;
        }
        match failure {
            ReadFailure::Mismatch => {
                self.alarms.bad_copies.fetch_add(1, Ordering::Relaxed);
                self.alarms.lost_reads.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    bucket = %object.bucket,
                    key = object.key.as_str(),
                    "every copy of an object is damaged: restore it from a backup"
                );
                ObjectError::Damaged
            }
            ReadFailure::Unreadable => unavailable("the disk does not give the data"),
        }
    }

    pub(super) async fn part_of(
        &self,
        object: &Opened,
        number: u16,
    ) -> Result<ListedPart, ObjectError> {
        let Body::Parts { upload, .. } = &object.body else {
            return Err(ObjectError::InvalidPart { number });
        };
        let row = self.access.row(upload.pg, &rows::part(object.bucket, *upload, number)).await?;
        let Some(row) = row else {
            let is_there = self.op_now(object).await == Some(object.op);
            return Err(match is_there {
                true => ObjectError::InvalidPart { number },
                false => ObjectError::Changed,
            });
        };
        Ok(ListedPart { number, metax: decoded::<PartRow>("part row", &row)?.metax })
    }
}

/// Looks up and reads the pieces, each in a task of its own. How long a replica takes is measured, others
/// join the read, and a primary that is away is asked again, also while the client takes nothing.
fn reads<R: RoleAccess>(first: Piece, lookup: Lookup<R>) -> PieceReads<ReadFailure> {
    let source = lookup.source.clone();
    let rest = stream::try_unfold(lookup, async |mut lookup| {
        if let Some(piece) = lookup.take_cached() {
            return Ok(Some((piece, lookup)));
        }
        if lookup.spans.is_empty() {
            return Ok(None);
        }
        let looked = Task::spawn(async move { (lookup.next().await, lookup) });
        let (piece, lookup) = looked.outcome().await?;
        Ok(piece?.map(|piece| (piece, lookup)))
    });
    let pieces = stream::once(future::ready(Ok(first))).chain(rest);
    Box::pin(pieces.map_ok(move |piece| -> PieceRead<ReadFailure> {
        if let Piece::Inline(bytes) = piece {
            return Box::pin(future::ready(Ok(bytes)));
        }
        let source = source.clone();
        let task = Task::spawn(async move { source.read(piece).await });
        Box::pin(async move { task.outcome().await? })
    }))
}

fn opened(bucket: BucketId, key: &ObjectKey, row: VersionRow) -> Opened {
    let VersionRow { op, metax, body } = row;
    let (key, remote_parts) = (key.clone(), Vec::new());
    Opened { bucket, key, op, metax, body, bytes: None, remote_parts, remote: None }
}
