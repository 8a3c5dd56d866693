//! Decides what a wish becomes: the change that it makes, or why it makes none. The committer alone
//! decides, against an index that shows every change before it, so that conditions are atomic.

use bytes::Bytes;
use larder_objects::{CompleteOptions, ListedPart, ObjectError, PutDone, UploadOptions, assemble};
use larder_types::limits::{BUCKETS_MAX, PART_NUMBER_MAX, SUM_BYTES};
use larder_types::{
    Attributes, BucketId, BucketName, BucketRecord, BucketState, Condition, ETag, Epoch,
    HybridClock, Metax, ObjectChecksum, ObjectKey, OpId, OpSeq, PgId, RegionId, Unmet, UploadId,
    UploadRow,
};

use crate::carry::{self, Carry};
use crate::entry::{Change, Content, Entry, Place, Within, WorkerId};
use crate::error::PackError;
use crate::index::Index;
use crate::own::UnderWay;
use crate::rows;
use crate::sums::BodySums;
use crate::workers::Others;

/// The bytes of a put.
#[derive(Debug)]
pub(crate) enum Body {
    /// To be packed.
    Packed { pieces: Vec<Bytes>, sums: BodySums },
    /// In the backend already. It is not taken for one that nobody wants while this is held.
    There { place: Place, _under_way: UnderWay },
}

/// A version whose bytes another is to be made of.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) bucket: BucketId,
    /// Its name and key.
    pub(crate) target: Target,
    /// The version: if it is another by now, nothing is done.
    pub(crate) op: OpId,
}

/// The description of a body.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    pub(crate) etag: ETag,
    pub(crate) checksum: Option<ObjectChecksum>,
    pub(crate) attributes: Attributes,
}

/// A change that somebody wants.
#[derive(Debug)]
pub(crate) enum Wish {
    MakeBucket {
        name: BucketName,
        location: Option<String>,
    },
    RemoveBucket {
        name: BucketName,
    },
    Put {
        target: Target,
        description: Description,
        condition: Condition,
        body: Body,
    },
    /// A version of bytes that another key has.
    Link {
        target: Target,
        description: Description,
        condition: Condition,
        source: Source,
    },
    Tag {
        target: Target,
        tags: Vec<(String, String)>,
    },
    Delete {
        target: Target,
        condition: Condition,
    },
    /// A delete where several workers share the bucket: a version in the bucket `graves`.
    Bury {
        target: Target,
        graves: BucketName,
        condition: Condition,
    },
    /// Gives up a superseded version here, as another worker has a newer one, if it is this version
    /// still.
    Yield {
        target: Target,
        op: OpId,
    },
    BeginUpload {
        target: Target,
        options: UploadOptions,
    },
    PutPart {
        target: Target,
        upload: UploadId,
        number: u16,
        description: Description,
        body: Body,
    },
    Complete {
        target: Target,
        upload: UploadId,
        options: CompleteOptions,
    },
    Abort {
        target: Target,
        upload: UploadId,
    },
    /// Re-logs something that a blob says which is to go.
    Carry {
        /// Name of its bucket, if it is about one.
        bucket: Option<BucketName>,
        carry: Carry,
    },
}

/// A key of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) bucket: BucketName,
    pub(crate) key: ObjectKey,
}

/// The result of a change.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Bucket(BucketRecord),
    Put(PutDone),
    Upload(UploadId),
    /// It was re-logged; the place of its bytes, if they were moved.
    Carried(Option<Place>),
}

/// A part of the index that a wish looks at, beside bucket records. Wishes that share one are not
/// decided side by side.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// A key's version.
    Key(Target),
    /// One part.
    Part(UploadId, u16),
    /// More than that.
    Everything,
}

/// The place of a change in the order, if it is made, and that of its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) worker: WorkerId,
    pub(crate) seq: OpSeq,
    pub(crate) clock: HybridClock,
    /// The object that a body lies within, and where.
    pub(crate) within: Within,
    pub(crate) offset: u64,
}

/// A change about to be made.
pub(crate) struct Planned {
    /// Name of the bucket that it is about.
    pub(crate) bucket: Option<BucketName>,
    pub(crate) entry: Entry,
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) done: Done,
}

impl Wish {
    pub(crate) fn scopes(&self) -> Vec<Scope> {
        match self {
            Self::Put { target, .. }
            | Self::Tag { target, .. }
            | Self::Delete { target, .. }
            | Self::BeginUpload { target, .. } => vec![Scope::Key(target.clone())],
            Self::Bury { target, graves, .. } => {
                let grave = Target { bucket: graves.clone(), key: target.key.clone() };
                vec![Scope::Key(target.clone()), Scope::Key(grave)]
            }
            Self::Yield { target, .. } => vec![Scope::Key(target.clone())],
            Self::Link { target, source, .. } => {
                vec![Scope::Key(target.clone()), Scope::Key(source.target.clone())]
            }
            Self::PutPart { upload, number, .. } => vec![Scope::Part(*upload, *number)],
            Self::Carry { bucket, carry } => carry.scopes(bucket.as_ref()),
            _ => vec![Scope::Everything],
        }
    }

    /// Bytes that are to be packed.
    pub(crate) fn body_bytes(&self) -> u64 {
        match self {
            Self::Put { body: Body::Packed { sums, .. }, .. }
            | Self::PutPart { body: Body::Packed { sums, .. }, .. } => sums.len,
            Self::Carry { carry, .. } => carry.body_bytes(),
            _ => 0,
        }
    }

    /// The bucket and key whose bytes are to be packed, as far as that is known.
    pub(crate) fn packed_for(&self) -> Option<(&BucketName, &ObjectKey)> {
        match self {
            Self::Put { target, body: Body::Packed { .. }, .. }
            | Self::PutPart { target, body: Body::Packed { .. }, .. } => {
                Some((&target.bucket, &target.key))
            }
            Self::Carry { bucket: Some(bucket), carry: Carry::Version { key, .. } } => {
                Some((bucket, key))
            }
            _ => None,
        }
    }

    /// Returns true if it may end a key's version, and with that the parts which the version has.
    pub(crate) fn may_end_parts(&self) -> bool {
        matches!(
            self,
            Self::Put { .. } | Self::Link { .. } | Self::Delete { .. } | Self::Yield { .. }
        )
    }

    /// Returns true if it moves a part, which may be a version's.
    pub(crate) fn moves_part(&self) -> bool {
        matches!(self, Self::Carry { carry: Carry::Part { .. }, .. })
    }

    /// Returns true if it only ends something: it is taken when there is room for nothing else.
    pub(crate) fn only_ends(&self) -> bool {
        matches!(
            self,
            Self::Delete { .. }
                | Self::Bury { .. }
                | Self::Yield { .. }
                | Self::Abort { .. }
                | Self::RemoveBucket { .. }
        )
    }
}

/// The state that a wish is decided against.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) index: &'a Index,
    /// The other workers of the bucket, if it is shared.
    pub(crate) others: Option<&'a Others>,
}

/// Decides a wish.
///
/// # Errors
/// Why nothing changes.
pub(crate) fn plan(wish: Wish, known: Known<'_>, slot: &Slot) -> Result<Planned, ObjectError> {
    let index = known.index;
    match wish {
        Wish::MakeBucket { name, location } => make_bucket(name, location, index, slot),
        Wish::RemoveBucket { name } => remove_bucket(name, index, slot),
        Wish::Put { target, description, condition, body } => {
            let id = live(index, &target.bucket)?;
            check(known, id, &target, &condition)?;
            let (place, pieces) = place(body, slot);
            let metax = metax(place.len, description, slot);
            let done = Done::Put(put_done(&metax));
            let content = Content::Run(place);
            let change = Change::Put { bucket: id, key: target.key, metax, content };
            Ok(Planned { pieces, ..planned(target.bucket, change, done, slot) })
        }
        Wish::Link { target, description, condition, source } => {
            let id = live(index, &target.bucket)?;
            check(known, id, &target, &condition)?;
            // Bytes that nobody has may be gone before long: the source must have them still.
            let found = index.version(source.bucket, &source.target.key).map_err(unread)?;
            let found = found.filter(|version| version.op == source.op);
            let content = found.ok_or(ObjectError::Changed)?.content;
            let Content::Run(place) = &content else {
                return Err(unavailable("parts belong to one object"));
            };
            let metax = metax(place.len, description, slot);
            let done = Done::Put(put_done(&metax));
            let change = Change::Put { bucket: id, key: target.key, metax, content };
            Ok(planned(target.bucket, change, done, slot))
        }
        Wish::Tag { target, tags } => {
            let id = live(index, &target.bucket)?;
            let version = index.version(id, &target.key).map_err(unread)?;
            let mut version = version.ok_or(ObjectError::NoSuchKey)?;
            version.metax.attributes.tags = tags;
            let (metax, content) = (version.metax, version.content);
            let change = Change::Put { bucket: id, key: target.key, metax, content };
            Ok(planned(target.bucket, change, Done::Nothing, slot))
        }
        Wish::Delete { target, condition } => {
            let id = live(index, &target.bucket)?;
            check(known, id, &target, &condition)?;
            let version = index.version(id, &target.key).map_err(unread)?;
            let upto = slot_op(slot);
            let since = version.map_or(upto, |version| version.since);
            let change = Change::Gone { bucket: id, key: target.key, since, upto };
            Ok(planned(target.bucket, change, Done::Nothing, slot))
        }
        Wish::Bury { target, graves, condition } => {
            let id = live(index, &graves)?;
            check(known, id, &target, &condition)?;
            let (etag, checksum, attributes) = (ETag::Md5([0; 16]), None, Attributes::default());
            let metax = metax(0, Description { etag, checksum, attributes }, slot);
            let sums = BodySums::of(0, SUM_BYTES, &[]);
            let content = Content::Run(sums.placed(slot.within, 0));
            let change = Change::Put { bucket: id, key: target.key, metax, content };
            Ok(planned(graves, change, Done::Nothing, slot))
        }
        Wish::Yield { target, op } => {
            let id = live(index, &target.bucket)?;
            let version = index.version(id, &target.key).map_err(unread)?;
            let version = version.filter(|version| version.op == op).ok_or(ObjectError::Changed)?;
            let (since, upto) = (version.since, slot_op(slot));
            let change = Change::Gone { bucket: id, key: target.key, since, upto };
            Ok(planned(target.bucket, change, Done::Nothing, slot))
        }
        Wish::BeginUpload { target, options } => {
            let id = live(index, &target.bucket)?;
            let upload = UploadId { pg: PgId(0), op: slot_op(slot) };
            let (attributes, checksum) = (options.attributes, options.checksum);
            let row =
                UploadRow { upload, key: target.key, clock: slot.clock, attributes, checksum };
            let change = Change::UploadBegun { bucket: id, row };
            Ok(planned(target.bucket, change, Done::Upload(upload), slot))
        }
        Wish::PutPart { target, upload, number, description, body } => {
            let id = live(index, &target.bucket)?;
            open_upload(index, id, &target.key, upload)?;
            let (place, pieces) = place(body, slot);
            let metax = metax(place.len, description, slot);
            let done = Done::Put(put_done(&metax));
            let change = Change::PartPut { bucket: id, upload, number, metax, place };
            Ok(Planned { pieces, ..planned(target.bucket, change, done, slot) })
        }
        Wish::Complete { target, upload, options } => {
            complete(target, upload, &options, known, slot)
        }
        Wish::Abort { target, upload } => {
            let id = live(index, &target.bucket)?;
            open_upload(index, id, &target.key, upload)?;
            let change = Change::UploadAborted { bucket: id, key: target.key, upload };
            Ok(planned(target.bucket, change, Done::Nothing, slot))
        }
        Wish::Carry { bucket, carry } => carry::plan(bucket, carry, index, slot),
    }
}

fn make_bucket(
    name: BucketName,
    location: Option<String>,
    index: &Index,
    slot: &Slot,
) -> Result<Planned, ObjectError> {
    if index.bucket_id(&name).is_some() {
        return Err(ObjectError::BucketExists);
    }
    if index.buckets().len() >= BUCKETS_MAX {
        return Err(ObjectError::TooManyBuckets);
    }
    let record = BucketRecord {
        // Clocks grow from change to change and from worker to worker: no bucket has had this one.
        id: BucketId(slot.clock.0),
        name: name.clone(),
        epoch: Epoch(1),
        state: BucketState::Live,
        created_ms: slot.clock.ms(),
        location,
        write_policy: larder_types::WritePolicy::All,
        regions: 1,
        home: None,
        sharing: larder_types::Sharing::All,
        cors: None,
    };
    let done = Done::Bucket(record.clone());
    Ok(planned(name, Change::BucketMade(record), done, slot))
}

fn remove_bucket(name: BucketName, index: &Index, slot: &Slot) -> Result<Planned, ObjectError> {
    let id = live(index, &name)?;
    if index.has_objects(id).map_err(unread)? {
        return Err(ObjectError::BucketNotEmpty);
    }
    Ok(planned(name, Change::BucketRemoved(id), Done::Nothing, slot))
}

fn complete(
    target: Target,
    upload: UploadId,
    options: &CompleteOptions,
    known: Known<'_>,
    slot: &Slot,
) -> Result<Planned, ObjectError> {
    let index = known.index;
    let id = live(index, &target.bucket)?;
    let row = open_upload(index, id, &target.key, upload)?;
    let stored = index.parts(id, upload, 0, usize::from(PART_NUMBER_MAX)).map_err(unread)?;
    let stored: Vec<_> =
        stored.into_iter().map(|(number, part)| ListedPart { number, metax: part.metax }).collect();
    let assembled = assemble(&row, &stored, options)?;
    check(known, id, &target, &options.condition)?;
    let description = Description {
        etag: assembled.etag,
        checksum: assembled.checksum,
        attributes: row.attributes,
    };
    let metax = metax(assembled.size, description, slot);
    let done = Done::Put(put_done(&metax));
    let (key, parts) = (target.key, assembled.parts);
    let change = Change::UploadCompleted { bucket: id, key, upload, metax, parts };
    Ok(planned(target.bucket, change, done, slot))
}

fn planned(bucket: BucketName, change: Change, done: Done, slot: &Slot) -> Planned {
    let entry = Entry { seq: slot.seq, clock: slot.clock, change };
    Planned { bucket: Some(bucket), entry, pieces: Vec::new(), done }
}

pub(crate) fn place(body: Body, slot: &Slot) -> (Place, Vec<Bytes>) {
    match body {
        Body::Packed { pieces, sums } => {
            // No bytes lie nowhere: their place needs no file.
            let offset = if sums.len == 0 { 0 } else { slot.offset };
            (sums.placed(slot.within, offset), pieces)
        }
        Body::There { place, .. } => (place, Vec::new()),
    }
}

fn slot_op(slot: &Slot) -> OpId {
    rows::op(slot.worker, slot.seq)
}

fn metax(size: u64, description: Description, slot: &Slot) -> Metax {
    Metax {
        size,
        clock: slot.clock,
        region: RegionId(0),
        etag: description.etag,
        checksum: description.checksum,
        attributes: description.attributes,
        expires_ms: None,
        encryption: None,
        retention: None,
    }
}

pub(crate) fn put_done(metax: &Metax) -> PutDone {
    PutDone {
        etag: metax.etag.clone(),
        checksum: metax.checksum.clone(),
        clock: metax.clock,
        size: metax.size,
    }
}

fn live(index: &Index, name: &BucketName) -> Result<BucketId, ObjectError> {
    index.bucket_id(name).ok_or(ObjectError::NoSuchBucket)
}

fn open_upload(
    index: &Index,
    bucket: BucketId,
    key: &ObjectKey,
    upload: UploadId,
) -> Result<UploadRow, ObjectError> {
    index.upload(bucket, key, upload).map_err(unread)?.ok_or(ObjectError::NoSuchUpload)
}

fn check(
    known: Known<'_>,
    bucket: BucketId,
    target: &Target,
    condition: &Condition,
) -> Result<(), ObjectError> {
    if condition.is_none() {
        return Ok(());
    }
    let index = known.index;
    let current = match known.others {
        None => index.version(bucket, &target.key).map(|found| found.map(|version| version.metax)),
        Some(others) => others.current(index, &target.bucket, &target.key),
    };
    condition.check(current.map_err(unread)?.as_ref()).map_err(|unmet| match unmet {
        Unmet::Failed => ObjectError::PreconditionFailed,
        Unmet::NoSuchKey => ObjectError::NoSuchKey,
    })
}

/// The index does not give a row.
pub(crate) fn unread(error: PackError) -> ObjectError {
    tracing::error!(%error, "the index cannot be read");
    unavailable(&error.to_string())
}

pub(crate) fn unavailable(reason: &str) -> ObjectError {
    ObjectError::Unavailable { reason: reason.to_owned() }
}
