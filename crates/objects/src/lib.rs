//! The object interface: what a gateway (S3, a mount) asks of a store (the cluster's proxy, a packed
//! bucket).
//!
//! # Invariants that every implementation keeps
//!
//! 1. When a call that changes something returns `Ok`, the change is durable and every later call
//!    sees it. When it returns an error other than [`ObjectError::Unavailable`] or
//!    [`ObjectError::SlowDown`], nothing has changed.
//! 2. A future dropped half-way leaves no half-state: the change happens wholly or not at all.
//! 3. Bytes are verified against their checksums before [`Objects::read`] gives them out: those of a [`Remote`] by the store that has
//!    them.
//! 4. Conditions are decided atomically with the change they guard.

#![deny(unsafe_code)]

mod assemble;
mod opened;
mod page;
mod remote;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

use bytes::Bytes;
use futures::Stream;
use larder_types::limits::{CORS_ALL_BYTES_MAX, PART_NUMBER_MAX};
use larder_types::{
    Attributes, BucketName, BucketRecord, ChecksumAlgorithm, ChecksumKind, Condition, CorsRules,
    ETag, HybridClock, Metax, ObjectChecksum, ObjectKey, RegionId, UploadId, UploadRow,
};

pub use assemble::{Assembled, assemble};
pub use opened::Opened;
pub use page::{Page, ScanStep};
pub use remote::Remote;

/// Errors of a call, sorted by what the caller should do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// Fix the request: there is no such bucket.
    #[error("the bucket does not exist")]
    NoSuchBucket,
    /// Fix the request: the bucket is there already.
    #[error("the bucket exists already")]
    BucketExists,
    /// Fix the request: the bucket has objects or open uploads.
    #[error("the bucket is not empty")]
    BucketNotEmpty,
    /// Fix the request: the cluster has as many buckets as it may.
    #[error("the cluster has as many buckets as it may")]
    TooManyBuckets,
    /// Fix the request, or shorten the rules of other buckets.
    #[error("the CORS rules of all buckets have at most {CORS_ALL_BYTES_MAX} bytes together")]
    TooMuchCors,
    /// Fix the request: there is no such object.
    #[error("the object does not exist")]
    NoSuchKey,
    /// Fix the request: there is no such upload.
    #[error("the upload does not exist")]
    NoSuchUpload,
    /// Fix the request: a named part is missing or has another etag or checksum.
    #[error("part {number} was not uploaded, or its etag or checksum is another")]
    InvalidPart {
        /// The part.
        number: u16,
    },
    /// Fix the request: parts must be named in ascending order.
    #[error("parts must be named in ascending order, each once, from 1 to {PART_NUMBER_MAX}")]
    InvalidPartOrder,
    /// Fix the request: a part other than the last is below 5 MiB.
    #[error("part {number} has {bytes} bytes; every part but the last has at least 5 MiB")]
    PartTooSmall {
        /// The part.
        number: u16,
        /// Its size.
        bytes: u64,
    },
    /// Fix the request: too large an object, part or set of attributes.
    #[error("{what} is larger than the {limit_bytes} bytes allowed")]
    TooLarge {
        /// The thing that is too large.
        what: &'static str,
        /// The limit.
        limit_bytes: u64,
    },
    /// Fix the request: the object does not end where bytes were to be appended.
    #[error("the write offset is not the object's size, which is {size}")]
    WriteOffset {
        /// The object's size; 0 if there is none.
        size: u64,
    },
    /// Fix the request: the object has as many pieces as it may.
    #[error("the object has as many pieces as it may")]
    TooManyPieces,
    /// Fix the request: user metadata or tags with an append to an object that is there.
    #[error("an append to an object that is there cannot set its metadata")]
    AppendAttributes,
    /// Fix the request: nothing is to be appended.
    #[error("an append has at least a byte")]
    EmptyAppend,
    /// Fix the request: this store does not do it.
    #[error("this store does not do it: {what}")]
    Unsupported {
        /// The operation that it lacks.
        what: &'static str,
    },
    /// Give the home up first: an operator does that.
    #[error(
        "the bucket has a home region: `larder region home` gives it up, then the bucket can be deleted"
    )]
    HasHome,
    /// Fix the request or give up: a condition does not hold.
    #[error("a condition of the request does not hold")]
    PreconditionFailed,
    /// Fix the request: the body broke off, or is not what its digest said.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// Ask again from the start: the object changed between [`Objects::open`] and the read.
    #[error("the object changed while it was being read")]
    Changed,
    /// Retry later, more slowly: a queue is full.
    #[error("the server is at its limit, retry later")]
    SlowDown,
    /// Free space or add disks; deletes still work.
    #[error("no space is left for new data; deletes still work")]
    Full,
    /// Retry later: a part of the store is down. Whether a change happened is not known.
    #[error("not available now: {reason}")]
    Unavailable {
        /// The part that is down.
        reason: String,
    },
    /// Give up: the index of the store is damaged. Nothing was changed. An alarm was raised.
    #[error(
        "the index of the store is damaged: what it has lost cannot be read or listed, and nothing is changed. An operator copies what is left to another store, or restores a backup"
    )]
    IndexDamaged,
    /// Give up: every copy is damaged. An alarm was raised.
    #[error("every copy of the data is damaged")]
    Damaged,
}

impl ObjectError {
    /// The error as the reason of another one, without the words "not available now", which that one has.
    #[must_use]
    pub fn into_reason(self) -> String {
        match self {
            Self::Unavailable { reason } => reason,
            error => error.to_string(),
        }
    }
}

/// The faults of a put's body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Fewer bytes came than announced, or the connection broke.
    #[error("the body ended before its announced length")]
    Incomplete,
    /// `Content-MD5` is another.
    #[error("the body's MD5 is not the one given in Content-MD5")]
    BadDigest,
    /// An `x-amz-checksum-*` or the signed SHA-256 is another.
    #[error("the body's {0} is not the one given")]
    BadChecksum(&'static str),
    /// A chunk signature or the framing is wrong.
    #[error("the body is framed or signed wrongly: {0}")]
    Malformed(String),
}

/// The hashes of a whole body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyDigest {
    /// MD5 of all bytes.
    pub md5: [u8; 16],
    /// S3 checksum to store, already verified if the client sent one.
    pub checksum: Option<ObjectChecksum>,
}

/// The body of a put, pulled by the store in pieces of any size.
pub trait PutBody: Send {
    /// Exact length, if it was announced.
    fn len(&self) -> Option<u64>;
    /// True if it was announced to be empty.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
    /// The next piece; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Option<Result<Bytes, BodyError>>> + Send;
    /// Called once after the end: verifies everything the client announced.
    ///
    /// # Errors
    /// [`BodyError`]; the put must then not happen.
    fn finish(&mut self) -> Result<BodyDigest, BodyError>;
}

/// Everything else that a put says.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// Headers, user metadata, tags.
    pub attributes: Attributes,
    /// The condition that must hold.
    pub condition: Condition,
}

/// Where appended bytes are to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendAt {
    /// At this offset, which must be the object's size.
    Offset(u64),
    /// Wherever the object ends by then: a record, of at most
    /// [`RECORD_BYTES_MAX`](larder_types::limits::RECORD_BYTES_MAX) bytes.
    End,
}

impl AppendAt {
    /// The offset, if it names one.
    #[must_use]
    pub fn offset(self) -> Option<u64> {
        if let Self::Offset(offset) = self { Some(offset) } else { None }
    }
}

/// Everything else that an append says.
#[derive(Debug, Clone)]
pub struct AppendOptions {
    /// Where the bytes are to begin.
    pub at: AppendAt,
    /// Headers, user metadata, tags of an object that the append makes. Those of one that is there stay.
    pub attributes: Attributes,
    /// The condition that must hold.
    pub condition: Condition,
}

/// The result of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendDone {
    /// Where its bytes begin.
    pub offset: u64,
    /// The object that ends with them.
    pub object: PutDone,
}

/// The result of a put, a part or a completed upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutDone {
    /// Entity tag.
    pub etag: ETag,
    /// S3 checksum stored with it.
    pub checksum: Option<ObjectChecksum>,
    /// Its clock; gives Last-Modified.
    pub clock: HybridClock,
    /// Bytes.
    pub size: u64,
}

/// Where a version is, as far as its store knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replication {
    /// COMPLETED, PENDING or REPLICA, as S3 calls them.
    pub status: ReplicationStatus,
    /// Regions that have it: that of its put first.
    pub regions: Vec<RegionId>,
}

/// The status of a version among regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationStatus {
    /// Some lack it, or have not said that they have it.
    Pending,
    /// All have it.
    Completed,
    /// It was put in another region.
    Replica,
}

/// A stream of verified pieces.
pub type PieceStream = Pin<Box<dyn Stream<Item = Result<Bytes, ObjectError>> + Send + Sync>>;

/// Verified bytes.
pub enum ReadBody {
    /// All of them: small reads cost no stream.
    Whole(Bytes),
    /// Piece by piece; ends with an error rather than with wrong bytes.
    Stream(PieceStream),
}

/// Asks for a page of a list.
#[derive(Debug, Clone, Default)]
pub struct ListRequest {
    /// Only keys that begin so.
    pub prefix: String,
    /// Keys are grouped up to the first occurrence of this after the prefix; never `Some("")`.
    pub delimiter: Option<String>,
    /// Only keys greater than this, and no group equal to it.
    pub after: Option<String>,
    /// Most keys and groups together; at most 1,000.
    pub max: usize,
}

/// An entry of a list.
#[derive(Debug, Clone, PartialEq)]
pub enum ListItem<T> {
    /// A key.
    Entry(T),
    /// A group: the common beginning of at least one key, delimiter included.
    Group(String),
}

/// A page of a list, in byte order.
#[derive(Debug, Clone)]
pub struct ListPage<T> {
    /// Keys and groups.
    pub items: Vec<ListItem<T>>,
    /// True if more follow.
    pub truncated: bool,
}

/// An object in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedObject {
    /// Key.
    pub key: ObjectKey,
    /// Its metadata.
    pub metax: Metax,
}

/// A part in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedPart {
    /// Part number.
    pub number: u16,
    /// Size, etag, checksum, clock.
    pub metax: Metax,
}

/// Parts of an open upload.
#[derive(Debug, Clone)]
pub struct PartsPage {
    /// The upload.
    pub upload: UploadRow,
    /// Parts in ascending order.
    pub parts: Vec<ListedPart>,
    /// True if more follow.
    pub truncated: bool,
}

/// A part as named in a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPart {
    /// Part number.
    pub number: u16,
    /// Its etag, without quotes.
    pub etag: String,
    /// Its checksum, if the client repeats it.
    pub checksum: Option<(ChecksumAlgorithm, Vec<u8>)>,
}

/// The options for completing an upload.
#[derive(Debug, Clone, Default)]
pub struct CompleteOptions {
    /// The parts, as the client named them.
    pub parts: Vec<NamedPart>,
    /// The condition that the key must meet.
    pub condition: Condition,
    /// Checksum of the whole object that the client expects.
    pub checksum: Option<(ChecksumAlgorithm, Vec<u8>)>,
    /// Size that the client expects (`x-amz-mp-object-size`).
    pub size: Option<u64>,
}

/// The options for beginning an upload.
#[derive(Debug, Clone, Default)]
pub struct UploadOptions {
    /// Attributes of the object to be.
    pub attributes: Attributes,
    /// Checksum algorithm and kind, if chosen.
    pub checksum: Option<(ChecksumAlgorithm, ChecksumKind)>,
}

/// A store of objects.
pub trait Objects: Send + Sync + 'static {
    /// Makes a bucket.
    fn create_bucket(
        &self,
        name: &BucketName,
        location: Option<String>,
    ) -> impl Future<Output = Result<BucketRecord, ObjectError>> + Send;
    /// Removes a bucket without objects; open uploads do not keep it and are aborted with it (S3).
    fn delete_bucket(
        &self,
        name: &BucketName,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;
    /// Sets a bucket's CORS rules, or removes them. A store that keeps none says so.
    fn set_cors(
        &self,
        name: &BucketName,
        rules: Option<CorsRules>,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send {
        let set = match (self.bucket(name), rules) {
            (Ok(_), Some(_)) => Err(ObjectError::Unsupported { what: "keeping CORS rules" }),
            (known, _) => known.map(drop),
        };
        std::future::ready(set)
    }
    /// A bucket's CORS rules, from memory: strangers have them looked up.
    fn cors(&self, _: &BucketName) -> Option<CorsRules> {
        None
    }
    /// A bucket's record.
    fn bucket(&self, name: &BucketName) -> Result<BucketRecord, ObjectError>;
    /// True if there is a bucket of this name, as far as is known here.
    fn has_bucket(&self, name: &BucketName) -> bool {
        !matches!(self.bucket(name), Err(ObjectError::NoSuchBucket))
    }
    /// Returns once every bucket is known here whose making was answered before, also through another machine.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if that cannot be known now.
    fn catch_up(&self) -> impl Future<Output = Result<(), ObjectError>> + Send {
        std::future::ready(Ok(()))
    }
    /// All live buckets, by name.
    fn buckets(&self) -> Result<Vec<BucketRecord>, ObjectError>;

    /// Makes the key's new version.
    fn put<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: PutOptions,
        body: B,
    ) -> impl Future<Output = Result<PutDone, ObjectError>> + Send;
    /// True if this store takes appends at all.
    fn takes_appends(&self) -> bool {
        false
    }
    /// Appends to the key's current version, or makes one. It is seen wholly or not at all, and of several appends
    /// none lands inside another.
    fn append<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: AppendOptions,
        body: B,
    ) -> impl Future<Output = Result<AppendDone, ObjectError>> + Send {
        let _ = (bucket, key, options, body);
        async { Err(ObjectError::Unsupported { what: "appending to an object" }) }
    }
    /// Finds the key's current version.
    fn open(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<Opened, ObjectError>> + Send;
    /// The same, for somebody who reads all of it at once: a store may read it while it looks it up.
    fn open_whole(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<Opened, ObjectError>> + Send {
        self.open(bucket, key)
    }
    /// Reads bytes `range` of a version found by [`Objects::open`]; the range lies inside it.
    fn read(
        &self,
        object: &Opened,
        range: Range<u64>,
    ) -> impl Future<Output = Result<ReadBody, ObjectError>> + Send;
    /// Where a version found by [`Objects::open`] in a bucket is; `None` if the store is not one of several regions, or does not know.
    fn replication(
        &self,
        bucket: &BucketName,
        object: &Opened,
    ) -> impl Future<Output = Result<Option<Replication>, ObjectError>> + Send {
        let _ = (bucket, object);
        async { Ok(None) }
    }
    /// Size, etag and checksum of one part of a completed object that [keeps them](Opened::keeps_parts).
    fn part(
        &self,
        object: &Opened,
        number: u16,
    ) -> impl Future<Output = Result<ListedPart, ObjectError>> + Send;
    /// Makes the key's new version of the bytes of a version found by [`Objects::open`], without moving them;
    /// `None` if this store cannot, so that they must be read and put.
    fn link(
        &self,
        source: &Opened,
        bucket: &BucketName,
        key: &ObjectKey,
        options: PutOptions,
    ) -> impl Future<Output = Result<Option<PutDone>, ObjectError>> + Send {
        let _ = (source, bucket, key, options);
        async { Ok(None) }
    }
    /// Ends the key's current version; no error if there was none.
    fn delete(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        condition: Condition,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;
    /// Replaces the tags of the key's current version.
    fn set_tags(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        tags: Vec<(String, String)>,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;
    /// A page of keys.
    fn list(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> impl Future<Output = Result<ListPage<ListedObject>, ObjectError>> + Send;
    /// A page of the keys of all regions, as each of them will have them once it has all changes. Without other regions it is
    /// [`Objects::list`].
    fn list_all_regions(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> impl Future<Output = Result<ListPage<ListedObject>, ObjectError>> + Send {
        self.list(bucket, request)
    }

    /// Begins an upload.
    fn create_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: UploadOptions,
    ) -> impl Future<Output = Result<UploadId, ObjectError>> + Send;
    /// An open upload's record.
    fn upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> impl Future<Output = Result<UploadRow, ObjectError>> + Send;
    /// Stores a part; replaces an earlier one of that number.
    fn put_part<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        number: u16,
        body: B,
    ) -> impl Future<Output = Result<PutDone, ObjectError>> + Send;
    /// Parts of an open upload with numbers above `after`.
    fn list_parts(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        after: u16,
        max: usize,
    ) -> impl Future<Output = Result<PartsPage, ObjectError>> + Send;
    /// Makes the upload the key's current version. Repeating it gives the same answer.
    fn complete_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        options: CompleteOptions,
    ) -> impl Future<Output = Result<PutDone, ObjectError>> + Send;
    /// Ends an upload and frees its parts.
    fn abort_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;
    /// A page of open uploads, by key and then by age. `after_upload` with `request.after` continues
    /// inside one key.
    fn list_uploads(
        &self,
        bucket: &BucketName,
        request: ListRequest,
        after_upload: Option<UploadId>,
    ) -> impl Future<Output = Result<ListPage<UploadRow>, ObjectError>> + Send;
}
