//! Decides what a command becomes: the change that it makes, or why it makes none. The committer alone
//! decides, against an index that shows every change before it, so that conditions are atomic.

use larder_objects::{CompleteOptions, ListedPart, ObjectError, PutDone, assemble};
use larder_types::limits::{BUCKETS_MAX, PART_NUMBER_MAX, SUM_BYTES};
use larder_types::{
    Attributes, BucketId, BucketName, BucketRecord, Condition, ETag, Metax, ObjectKey, OpId, PgId,
    Unmet, UploadId, UploadRow,
};

use crate::commit::command::{Command, Description, Done, Target};
use crate::commit::neighbours::Neighbours;
use crate::commit::relocate;
use crate::commit::slot::{Planned, Slot, place};
use crate::error::{unavailable, unread};
use crate::format::entry::{Change, Content, Entry};
use crate::format::rows;
use crate::format::sums::BodySums;
use crate::index::Index;

/// The state that a command is decided against.
#[derive(Clone, Copy)]
pub(crate) struct KnownKeys<'a> {
    pub(crate) index: &'a Index,
    /// The other workers of the bucket, if it is shared.
    pub(crate) others: Option<&'a dyn Neighbours>,
}

/// Decides a command.
///
/// # Errors
/// Why nothing changes.
pub(crate) fn plan(
    command: Command,
    known: KnownKeys<'_>,
    slot: &Slot,
) -> Result<Planned, ObjectError> {
    let index = known.index;
    match command {
        Command::MakeBucket { name, location } => make_bucket(name, location, index, slot),
        Command::RemoveBucket { name } => remove_bucket(name, index, slot),
        Command::Put { target, description, condition, body } => {
            let id = live(index, &target.bucket)?;
            check(known, id, &target, &condition)?;
            let (place, pieces) = place(body, slot);
            let metax = metax(place.len, description, slot);
            let done = Done::Put(put_done(&metax));
            let content = Content::Run(place);
            let change = Change::Put { bucket: id, key: target.key, metax, content };
            Ok(Planned { pieces, ..planned(target.bucket, change, done, slot) })
        }
        Command::Link { target, description, condition, source } => {
            let id = live(index, &target.bucket)?;
            check(known, id, &target, &condition)?;
            // Unreferenced bytes may be removed soon: the source must still exist.
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
        Command::Tag { target, tags } => {
            let id = live(index, &target.bucket)?;
            let version = index.version(id, &target.key).map_err(unread)?;
            let mut version = version.ok_or(ObjectError::NoSuchKey)?;
            version.metax.attributes.tags = tags;
            let (metax, content) = (version.metax, version.content);
            let change = Change::Put { bucket: id, key: target.key, metax, content };
            Ok(planned(target.bucket, change, Done::Nothing, slot))
        }
        Command::Delete { target, condition } => {
            let id = live(index, &target.bucket)?;
            check(known, id, &target, &condition)?;
            let version = index.version(id, &target.key).map_err(unread)?;
            let upto = slot_op(slot);
            let since = version.map_or(upto, |version| version.since);
            let change = Change::Gone { bucket: id, key: target.key, since, upto };
            Ok(planned(target.bucket, change, Done::Nothing, slot))
        }
        Command::PutTombstone { target, tombstones, condition } => {
            let id = live(index, &tombstones)?;
            check(known, id, &target, &condition)?;
            let (etag, checksum, attributes) = (ETag::Md5([0; 16]), None, Attributes::default());
            let metax = metax(0, Description { etag, checksum, attributes }, slot);
            let sums = BodySums::of(0, SUM_BYTES, &[]);
            let content = Content::Run(sums.placed(slot.container, 0));
            let change = Change::Put { bucket: id, key: target.key, metax, content };
            Ok(planned(tombstones, change, Done::Nothing, slot))
        }
        Command::Yield { target, op } => {
            let id = live(index, &target.bucket)?;
            let version = index.version(id, &target.key).map_err(unread)?;
            let version = version.filter(|version| version.op == op).ok_or(ObjectError::Changed)?;
            let (since, upto) = (version.since, slot_op(slot));
            let change = Change::Gone { bucket: id, key: target.key, since, upto };
            Ok(planned(target.bucket, change, Done::Nothing, slot))
        }
        Command::BeginUpload { target, options } => {
            let id = live(index, &target.bucket)?;
            let upload = UploadId { pg: PgId(0), op: slot_op(slot) };
            let (attributes, checksum) = (options.attributes, options.checksum);
            let row =
                UploadRow { upload, key: target.key, clock: slot.clock, attributes, checksum };
            let change = Change::UploadBegun { bucket: id, row };
            Ok(planned(target.bucket, change, Done::Upload(upload), slot))
        }
        Command::PutPart { target, upload, number, description, body } => {
            let id = live(index, &target.bucket)?;
            open_upload(index, id, &target.key, upload)?;
            let (place, pieces) = place(body, slot);
            let metax = metax(place.len, description, slot);
            let done = Done::Put(put_done(&metax));
            let change = Change::PartPut { bucket: id, upload, number, metax, place };
            Ok(Planned { pieces, ..planned(target.bucket, change, done, slot) })
        }
        Command::Complete { target, upload, options } => {
            complete(target, upload, &options, known, slot)
        }
        Command::Abort { target, upload } => {
            let id = live(index, &target.bucket)?;
            open_upload(index, id, &target.key, upload)?;
            let change = Change::UploadAborted { bucket: id, key: target.key, upload };
            Ok(planned(target.bucket, change, Done::Nothing, slot))
        }
        Command::Relocate { bucket, carry } => relocate::plan(bucket, carry, index, slot),
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
    // Clocks grow from change to change and from worker to worker: no bucket has had this one.
    let id = BucketId(slot.clock.0);
    let new = BucketRecord::new(id, name.clone(), slot.clock.ms());
    let record = BucketRecord { location, ..new };
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
    known: KnownKeys<'_>,
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

fn slot_op(slot: &Slot) -> OpId {
    rows::op(slot.worker, slot.seq)
}

fn metax(size: u64, description: Description, slot: &Slot) -> Metax {
    Metax {
        checksum: description.checksum,
        attributes: description.attributes,
        ..Metax::new(size, slot.clock, description.etag)
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
    known: KnownKeys<'_>,
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
