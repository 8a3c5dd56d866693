//! Buckets of a store that several workers share, as the gateway sees them. `peers/buckets.rs` has how they are stored.

use larder_objects::{ListItem, ListRequest, ObjectError};
use larder_types::limits::LIST_PAGE_MAX;
use larder_types::{BucketId, BucketName, BucketRecord, Condition};

use crate::commit::command::{Command, Target};
use crate::commit::neighbours::Neighbours;
use crate::error::unread;
use crate::packer::Packer;
use crate::peers::Others;
use crate::peers::buckets::{ensure, mark, record};
use crate::peers::hidden;
use crate::peers::list;

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
        let command = mark(queue, index, name, location).await?;
        match self.change(command).await {
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
        let tombstones = hidden::tombstones(&target.bucket);
        let location = Some(target.bucket.as_str().to_owned());
        ensure(&self.shared.queue, &self.shared.index, &tombstones, location).await?;
        self.change(Command::PutTombstone { target, tombstones, condition }).await.map(drop)
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
}
