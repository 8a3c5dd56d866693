//! Buckets of a store that several workers share: there is one if the newest that anybody has of its key in
//! `larder.buckets` is a version. Each worker that uses it has a record of its own of it, with an id of its own.

use std::sync::Arc;

use larder_objects::{ListItem, ListRequest, ObjectError};
use larder_types::limits::{LIST_PAGE_MAX, SUM_BYTES};
use larder_types::{
    Attributes, BucketId, BucketName, BucketRecord, BucketState, Condition, ETag, Epoch, EtagList,
    Metax,
};

use super::{Others, hidden, list};
use crate::error::unread;
use crate::index::Index;
use crate::packer::Packer;
use crate::queue::{Queue, ask};
use crate::sums::BodySums;
use crate::wish::{Body, Description, Target, Wish};

/// Name of the attribute with a bucket's location.
const LOCATION: &str = "location";

impl Packer {
    pub(crate) fn shared_bucket(
        &self,
        others: &Others,
        name: &BucketName,
    ) -> Result<BucketRecord, ObjectError> {
        others.fresh()?;
        if hidden::is_hidden(name) {
            return Err(ObjectError::NoSuchBucket);
        }
        let index = &self.shared.index;
        let found = others.current(index, &hidden::buckets(), &hidden::key_of(name));
        let metax = found.map_err(unread)?.ok_or(ObjectError::NoSuchBucket)?;
        Ok(record(index, name.clone(), &metax))
    }

    pub(crate) fn shared_buckets(&self, others: &Others) -> Result<Vec<BucketRecord>, ObjectError> {
        others.fresh()?;
        let index = &self.shared.index;
        let (mut records, mut after) = (Vec::new(), None);
        loop {
            let request = ListRequest { max: LIST_PAGE_MAX, after, ..ListRequest::default() };
            let page = list::fill(others, index, &hidden::buckets(), &request)?;
            let mut last = None;
            for item in page.items {
                let ListItem::Entry(entry) = item else { continue };
                if let Ok(name) = BucketName::new(entry.key.as_str()) {
                    records.push(record(index, name, &entry.metax));
                }
                last = Some(entry.key.as_str().to_owned());
            }
            if !page.truncated || last.is_none() {
                return Ok(records);
            }
            after = last;
        }
    }

    pub(crate) async fn make_shared_bucket(
        &self,
        others: &Others,
        name: &BucketName,
        location: Option<String>,
    ) -> Result<BucketRecord, ObjectError> {
        match self.shared_bucket(others, name) {
            Ok(_) => return Err(ObjectError::BucketExists),
            Err(ObjectError::NoSuchBucket) => {}
            Err(error) => return Err(error),
        }
        if hidden::is_hidden(name) {
            return Err(ObjectError::Unsupported {
                what: "a bucket of a name that begins with larder.",
            });
        }
        let (queue, index) = (&self.shared.queue, &self.shared.index);
        ensure(queue, index, name, location.clone()).await?;
        let wish = mark(queue, index, name, location).await?;
        match self.change(wish).await {
            Ok(_) => self.shared_bucket(others, name),
            Err(ObjectError::PreconditionFailed) => Err(ObjectError::BucketExists),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn remove_shared_bucket(
        &self,
        others: &Others,
        name: &BucketName,
    ) -> Result<(), ObjectError> {
        self.shared_bucket(others, name)?;
        let request = ListRequest { max: 1, ..ListRequest::default() };
        if !list::fill(others, &self.shared.index, name, &request)?.items.is_empty() {
            return Err(ObjectError::BucketNotEmpty);
        }
        let buckets = hidden::buckets();
        let target = Target { bucket: buckets, key: hidden::key_of(name) };
        self.bury(target, Condition::default()).await
    }

    /// Deletes a key of any worker.
    pub(crate) async fn bury(
        &self,
        target: Target,
        condition: Condition,
    ) -> Result<(), ObjectError> {
        let graves = hidden::graves(&target.bucket);
        let location = Some(target.bucket.as_str().to_owned());
        ensure(&self.shared.queue, &self.shared.index, &graves, location).await?;
        self.change(Wish::Bury { target, graves, condition }).await.map(drop)
    }

    /// This worker has a record of a bucket that there is.
    pub(crate) async fn use_shared_bucket(
        &self,
        others: &Others,
        name: &BucketName,
    ) -> Result<BucketId, ObjectError> {
        let record = self.shared_bucket(others, name)?;
        ensure(&self.shared.queue, &self.shared.index, name, record.location).await
    }

    /// The first start with a name: there are the buckets that this worker had before it got one.
    pub(crate) async fn share_own_buckets(&self) -> Result<(), ObjectError> {
        let (queue, index) = (&self.shared.queue, &self.shared.index);
        // Made last, so that what was cut off is done again; but never twice, as others may remove buckets then.
        let done = hidden::shared();
        if index.bucket_id(&done).is_some() {
            return Ok(());
        }
        let own = index.buckets().into_iter().filter(|record| !hidden::is_hidden(&record.name));
        for record in own {
            let wish = mark(queue, index, &record.name, record.location).await?;
            match ask(queue, wish).await {
                Ok(_) | Err(ObjectError::PreconditionFailed) => {}
                Err(error) => return Err(error),
            }
        }
        ensure(queue, index, &hidden::buckets(), None).await?;
        ensure(queue, index, &done, None).await.map(drop)
    }
}

fn own_id(index: &Index, name: &BucketName) -> Result<BucketId, ObjectError> {
    index.bucket_id(name).ok_or(ObjectError::NoSuchBucket)
}

/// This worker has a record of a bucket.
pub(super) async fn ensure(
    queue: &Arc<Queue>,
    index: &Index,
    name: &BucketName,
    location: Option<String>,
) -> Result<BucketId, ObjectError> {
    if let Some(id) = index.bucket_id(name) {
        return Ok(id);
    }
    match ask(queue, Wish::MakeBucket { name: name.clone(), location }).await {
        Ok(_) | Err(ObjectError::BucketExists) => own_id(index, name),
        Err(error) => Err(error),
    }
}

/// The wish that there be a bucket, unless there is.
pub(super) async fn mark(
    queue: &Arc<Queue>,
    index: &Index,
    name: &BucketName,
    location: Option<String>,
) -> Result<Wish, ObjectError> {
    let buckets = hidden::buckets();
    ensure(queue, index, &buckets, None).await?;
    let user = location.map(|location| (LOCATION.to_owned(), location)).into_iter().collect();
    let attributes = Attributes { user, ..Attributes::default() };
    let description = Description { etag: ETag::Md5([0; 16]), checksum: None, attributes };
    let sums = BodySums::of(0, SUM_BYTES, &[]);
    let condition = Condition { if_none_match: Some(EtagList::Any), ..Condition::default() };
    let body = Body::Packed { pieces: Vec::new(), sums };
    let target = Target { bucket: buckets, key: hidden::key_of(name) };
    Ok(Wish::Put { target, description, condition, body })
}

/// A bucket as clients see it.
fn record(index: &Index, name: BucketName, metax: &Metax) -> BucketRecord {
    let location = metax.attributes.user.iter().find(|(name, _)| name == LOCATION);
    BucketRecord {
        id: index.bucket_id(&name).unwrap_or_default(),
        name,
        epoch: Epoch(1),
        state: BucketState::Live,
        created_ms: metax.clock.ms(),
        location: location.map(|(_, location)| location.clone()),
        write_policy: larder_types::WritePolicy::All,
        regions: 1,
        home: None,
        sharing: larder_types::Sharing::All,
        cors: None,
    }
}
