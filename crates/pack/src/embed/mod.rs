//! A packed store within a program: one of its buckets, with a few plain calls, and as an
//! [`ObjectStore`](object_store::ObjectStore) for programs that know those.
//!
//! ```
//! use std::sync::Arc;
//!
//! use bytes::Bytes;
//! use larder_pack::{Backend, PackConfig, PackedBucket, Packer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (dir, blobs) = (tempfile::tempdir()?, tempfile::tempdir()?);
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let backend = Backend::open(&format!("file://{}", blobs.path().display()))?;
//! let packer = Arc::new(Packer::open(PackConfig::new(dir.path()), backend).await?);
//! let photos = PackedBucket::open(&packer, "photos").await?;
//!
//! photos.put("2026/cat.jpg", Bytes::from_static(b"a cat")).await?;
//! assert_eq!(photos.get("2026/cat.jpg").await?, "a cat");
//! let page = photos.list("2026/", None).await?;
//! assert_eq!(page.objects[0].key.as_str(), "2026/cat.jpg");
//! // It is durable here. Now it is in the backend too.
//! photos.flush().await?;
//! photos.delete("2026/cat.jpg").await?;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! A worker's directory is one program's at a time, and so is a backend: `larder pack` and a program do not share one.

mod answers;
mod body;
mod store;
mod upload;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use larder_objects::{
    ListItem, ListRequest, ListedObject, ObjectError, Objects, PutDone, PutOptions, ReadBody,
};
use larder_types::limits::LIST_PAGE_MAX;
use larder_types::{BucketName, Condition, ObjectKey};

use self::body::Given;
use crate::limits::CHANGED_RETRIES_MAX;
use crate::packer::Packer;

/// A bucket of a packed store. Cheap to clone.
#[derive(Clone)]
pub struct PackedBucket {
    packer: Arc<Packer>,
    name: BucketName,
}

/// The reason why a call of a program did not do what was asked, sorted by what the program should
/// do.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// Fix the name.
    #[error("{name:?} is no name of a {what}: {rule}")]
    Name {
        /// A bucket or a key.
        what: &'static str,
        /// The name that was given.
        name: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// Depends on what the store says.
    #[error(transparent)]
    Store(#[from] ObjectError),
    /// Open the store again: it has stopped, and its log says why. Objects that were acknowledged
    /// are in its directory.
    #[error("the store has stopped before everything was in the backend")]
    Stopped,
}

/// A page of a list.
#[derive(Debug, Clone)]
pub struct KeyPage {
    /// Objects in the order of their keys.
    pub objects: Vec<ListedObject>,
    /// Give it to the next call; `None` at the end.
    pub after: Option<ObjectKey>,
}

impl PackedBucket {
    /// A bucket, made if there is none of that name.
    ///
    /// # Errors
    /// [`EmbedError`].
    pub async fn open(packer: &Arc<Packer>, name: &str) -> Result<Self, EmbedError> {
        let bucket = BucketName::new(name).map_err(|error| EmbedError::Name {
            what: "bucket",
            name: name.to_owned(),
            rule: error.to_string(),
        })?;
        match packer.create_bucket(&bucket, None).await {
            Ok(_) | Err(ObjectError::BucketExists) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self { packer: packer.clone(), name: bucket })
    }

    /// Makes an object, in the place of one that has the key. When it returns it is as durable as the store was
    /// configured ([`crate::Acknowledge`]).
    ///
    /// # Errors
    /// [`EmbedError`].
    pub async fn put(&self, key: &str, bytes: Bytes) -> Result<PutDone, EmbedError> {
        let body = Given::whole(vec![bytes]);
        Ok(self.packer.put(&self.name, &named(key)?, PutOptions::default(), body).await?)
    }

    /// All bytes of an object, verified.
    ///
    /// # Errors
    /// [`EmbedError`]; [`ObjectError::NoSuchKey`] within, if there is none.
    pub async fn get(&self, key: &str) -> Result<Bytes, EmbedError> {
        let key = named(key)?;
        let mut changed = 0;
        loop {
            match self.read_whole(&key).await {
                // It was replaced in between.
                Err(ObjectError::Changed) if changed < CHANGED_RETRIES_MAX => changed += 1,
                read => return Ok(read?),
            }
        }
    }

    async fn read_whole(&self, key: &ObjectKey) -> Result<Bytes, ObjectError> {
        let object = self.packer.open(&self.name, key).await?;
        if object.metax.size == 0 {
            return Ok(Bytes::new());
        }
        match self.packer.read(&object, 0..object.metax.size).await? {
            ReadBody::Whole(bytes) => Ok(bytes),
            ReadBody::Stream(mut pieces) => {
                let mut bytes = BytesMut::new();
                while let Some(piece) = pieces.next().await {
                    bytes.extend_from_slice(&piece?);
                }
                Ok(bytes.freeze())
            }
        }
    }

    /// Removes an object; no error if there is none.
    ///
    /// # Errors
    /// [`EmbedError`].
    pub async fn delete(&self, key: &str) -> Result<(), EmbedError> {
        Ok(self.packer.delete(&self.name, &named(key)?, Condition::default()).await?)
    }

    /// A page of the objects whose keys begin with `prefix`, behind the one that the page before ended with.
    ///
    /// # Errors
    /// [`EmbedError`].
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&ObjectKey>,
    ) -> Result<KeyPage, EmbedError> {
        let request = ListRequest {
            prefix: prefix.to_owned(),
            after: after.map(|key| key.as_str().to_owned()),
            max: LIST_PAGE_MAX,
            ..ListRequest::default()
        };
        let page = self.packer.list(&self.name, request).await?;
        let entry = |item| match item {
            ListItem::Entry(object) => Some(object),
            // Without a delimiter there are none.
            ListItem::Group(_) => None,
        };
        let objects: Vec<ListedObject> = page.items.into_iter().filter_map(entry).collect();
        let last = objects.last().map(|object| object.key.clone());
        Ok(KeyPage { objects, after: last.filter(|_| page.truncated) })
    }

    /// Waits until everything that was put and deleted before, in all buckets, is in the backend.
    ///
    /// # Errors
    /// [`EmbedError::Stopped`].
    pub async fn flush(&self) -> Result<(), EmbedError> {
        match self.packer.flush().await {
            true => Ok(()),
            false => Err(EmbedError::Stopped),
        }
    }
}

fn named(key: &str) -> Result<ObjectKey, EmbedError> {
    ObjectKey::new(key).map_err(|error| EmbedError::Name {
        what: "key",
        name: key.to_owned(),
        rule: error.to_string(),
    })
}
