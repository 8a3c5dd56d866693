//! Buckets of a store that several workers share: there is one if the newest that anybody has of its key in
//! `larder.buckets` is a version. Each worker that uses it has a record of its own of it, with an id of its own.

use std::sync::Arc;

use larder_objects::ObjectError;
use larder_types::limits::SUM_BYTES;
use larder_types::{
    Attributes, BucketId, BucketName, BucketRecord, Condition, ETag, EtagList, Metax,
};

use super::hidden;
use crate::commit::command::{Body, Command, Description, Target};
use crate::commit::queue::{Queue, ask};
use crate::format::sums::BodySums;
use crate::index::Index;

/// Name of the attribute with a bucket's location.
const LOCATION: &str = "location";

/// The first start with a name: there are the buckets that this worker had before it got one.
pub(crate) async fn share_own(queue: &Arc<Queue>, index: &Index) -> Result<(), ObjectError> {
    // Made last, so that what was cut off is done again; but never twice, as others may remove buckets then.
    let done = hidden::shared();
    if index.bucket_id(&done).is_some() {
        return Ok(());
    }
    let own = index.buckets().into_iter().filter(|record| !hidden::is_hidden(&record.name));
    for record in own {
        let command = mark(queue, index, &record.name, record.location).await?;
        match ask(queue, command).await {
            Ok(_) | Err(ObjectError::PreconditionFailed) => {}
            Err(error) => return Err(error),
        }
    }
    ensure(queue, index, &hidden::buckets(), None).await?;
    ensure(queue, index, &done, None).await.map(drop)
}

fn own_id(index: &Index, name: &BucketName) -> Result<BucketId, ObjectError> {
    index.bucket_id(name).ok_or(ObjectError::NoSuchBucket)
}

/// This worker has a record of a bucket.
pub(crate) async fn ensure(
    queue: &Arc<Queue>,
    index: &Index,
    name: &BucketName,
    location: Option<String>,
) -> Result<BucketId, ObjectError> {
    if let Some(id) = index.bucket_id(name) {
        return Ok(id);
    }
    match ask(queue, Command::MakeBucket { name: name.clone(), location }).await {
        Ok(_) | Err(ObjectError::BucketExists) => own_id(index, name),
        Err(error) => Err(error),
    }
}

/// The command that there be a bucket, unless there is.
pub(crate) async fn mark(
    queue: &Arc<Queue>,
    index: &Index,
    name: &BucketName,
    location: Option<String>,
) -> Result<Command, ObjectError> {
    let buckets = hidden::buckets();
    ensure(queue, index, &buckets, None).await?;
    let user = location.map(|location| (LOCATION.to_owned(), location)).into_iter().collect();
    let attributes = Attributes { user, ..Attributes::default() };
    let description = Description { etag: ETag::Md5([0; 16]), checksum: None, attributes };
    let sums = BodySums::of(0, SUM_BYTES, &[]);
    let condition = Condition { if_none_match: Some(EtagList::Any), ..Condition::default() };
    let body = Body::Packed { pieces: Vec::new(), sums };
    let target = Target { bucket: buckets, key: hidden::key_of(name) };
    Ok(Command::Put { target, description, condition, body })
}

/// A bucket as clients see it.
pub(crate) fn record(index: &Index, name: BucketName, metax: &Metax) -> BucketRecord {
    let location = metax.attributes.user.iter().find(|(name, _)| name == LOCATION);
    let location = location.map(|(_, location)| location.clone());
    let id = index.bucket_id(&name).unwrap_or_default();
    BucketRecord { location, ..BucketRecord::new(id, name, metax.clock.ms()) }
}
