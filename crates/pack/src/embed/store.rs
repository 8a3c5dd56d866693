//! A packed bucket as an [`ObjectStore`].
//!
//! What S3 has is kept: etags, conditions, content headers, user metadata, parts of 5 MiB at least. Tags, versions and
//! extensions are not; a request that names tags is refused.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use larder_objects::{
    ListItem, ListRequest, ListedObject, ObjectError, Objects, ReadBody, UploadOptions,
};
use larder_types::limits::LIST_PAGE_MAX;
use larder_types::{Attributes, Condition, EtagList, Metax, ObjectKey};
use object_store::path::Path;
use object_store::{
    Attribute, AttributeValue, CopyMode, CopyOptions, Error, Extensions, GetOptions, GetResult,
    GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::PackedBucket;
use super::answers::{exists, explained, generic, precondition, result};
use super::body::Given;
use super::upload::PackedUpload;
use crate::limits::CHANGED_RETRIES_MAX;

impl fmt::Display for PackedBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the packed bucket {}", self.name)
    }
}

impl fmt::Debug for PackedBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[async_trait]
impl ObjectStore for PackedBucket {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        refuse_tags(options.tags.encoded())?;
        let key = key_of(location)?;
        let is_new = options.mode == PutMode::Create;
        let condition = match options.mode {
            PutMode::Overwrite => Condition::default(),
            PutMode::Create => absent(),
            PutMode::Update(version) => {
                let etag = version.e_tag.ok_or_else(|| generic("an update names an etag"))?;
                let if_match = Some(EtagList::Of(vec![etag]));
                Condition { if_match, ..Condition::default() }
            }
        };
        let attributes = stored(&options.attributes);
        let options = larder_objects::PutOptions { attributes, condition };
        let body = Given::whole(payload.into_iter().collect());
        let put = self.packer.put(&self.name, &key, options, body).await;
        put.map(|done| result(&done)).map_err(|error| match (is_new, error) {
            (true, ObjectError::PreconditionFailed) => exists(&key),
            // There is nothing to update.
            (false, error @ ObjectError::NoSuchKey) => precondition(&key, error),
            (_, error) => explained(&key, error),
        })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        refuse_tags(options.tags.encoded())?;
        let key = key_of(location)?;
        let attributes = stored(&options.attributes);
        let options = UploadOptions { attributes, ..UploadOptions::default() };
        let begun = self.packer.create_upload(&self.name, &key, options).await;
        let upload = begun.map_err(|error| explained(&key, error))?;
        let (bucket, parts) = (self.clone(), Default::default());
        Ok(Box::new(PackedUpload { bucket, key, upload, number: 0, parts }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            return Err(Error::NotSupported { source: "there are no versions".into() });
        }
        let key = key_of(location)?;
        let mut changed = 0;
        loop {
            let object = self.packer.open(&self.name, &key).await;
            let object = object.map_err(|error| explained(&key, error))?;
            let meta = meta(location.clone(), &object.metax);
            options.check_preconditions(&meta)?;
            let range = ranged(&options, meta.size)?;
            let payload = match range.is_empty() || options.head {
                true => stream::empty().boxed(),
                false => match self.packer.read(&object, range.clone()).await {
                    // It was replaced in between.
                    Err(ObjectError::Changed) if changed < CHANGED_RETRIES_MAX => {
                        changed += 1;
                        continue;
                    }
                    read => streamed(&key, read.map_err(|error| explained(&key, error))?),
                },
            };
            let attributes = shown(&object.metax.attributes);
            let payload = GetResultPayload::Stream(payload);
            let extensions = Extensions::default();
            return Ok(GetResult { payload, meta, range, attributes, extensions });
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let bucket = self.clone();
        let delete = move |location: Path| {
            let bucket = bucket.clone();
            async move {
                let key = key_of(&location)?;
                let gone = bucket.packer.delete(&bucket.name, &key, Condition::default()).await;
                gone.map_err(|error| explained(&key, error)).map(|()| location)
            }
        };
        locations.and_then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(directory(prefix), None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        match offset.as_ref() {
            "" => self.listed(directory(prefix), None),
            _ => match key_of(offset) {
                Ok(after) => self.listed(directory(prefix), Some(after)),
                Err(error) => stream::once(async { Err(error) }).boxed(),
            },
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (mut common_prefixes, mut objects) = (Vec::new(), Vec::new());
        let mut after = None;
        loop {
            let request = ListRequest {
                prefix: directory(prefix),
                delimiter: Some("/".to_owned()),
                after,
                max: LIST_PAGE_MAX,
            };
            let page = self.packer.list(&self.name, request).await;
            let page = page.map_err(|error| generic(error.to_string()))?;
            after = None;
            for item in page.items {
                match item {
                    ListItem::Entry(object) => {
                        after = Some(object.key.as_str().to_owned());
                        objects.push(listed(object)?);
                    }
                    ListItem::Group(group) => {
                        common_prefixes.push(Path::parse(&group)?);
                        after = Some(group);
                    }
                }
            }
            if !page.truncated || after.is_none() {
                let extensions = Extensions::default();
                return Ok(ListResult { common_prefixes, objects, extensions });
            }
        }
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (source, target) = (key_of(from)?, key_of(to)?);
        let is_new = options.mode == CopyMode::Create;
        let condition = if is_new { absent() } else { Condition::default() };
        self.copied(&source, &target, condition).await.map_err(|error| match (is_new, error) {
            (true, ObjectError::PreconditionFailed) => exists(&target),
            (_, error) => explained(&source, error),
        })
    }
}

impl PackedBucket {
    /// Copies by name, or, what was uploaded in parts, byte by byte.
    async fn copied(
        &self,
        source: &ObjectKey,
        target: &ObjectKey,
        condition: Condition,
    ) -> Result<(), ObjectError> {
        let Self { packer, name } = self;
        let object = packer.open(name, source).await?;
        let attributes = object.metax.attributes.clone();
        let options = larder_objects::PutOptions { attributes, condition };
        if packer.link(&object, name, target, options.clone()).await?.is_some() {
            return Ok(());
        }
        let size = object.metax.size;
        if size == 0 {
            let body = Given::whole(Vec::new());
            return packer.put(name, target, options, body).await.map(drop);
        }
        let body = packer.read(&object, 0..size).await?;
        let body = Given::read(body, size);
        packer.put(name, target, options, body).await.map(drop)
    }

    /// Page after page of what lies below a directory.
    fn listed(
        &self,
        prefix: String,
        after: Option<ObjectKey>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let bucket = self.clone();
        // `None` is the end, `Some(None)` the beginning.
        let pages = stream::try_unfold(Some(after), move |after| {
            let (bucket, prefix) = (bucket.clone(), prefix.clone());
            async move {
                let Some(after) = after else { return Ok::<_, Error>(None) };
                let page = bucket.list(&prefix, after.as_ref()).await;
                let page = page.map_err(|error| generic(error.to_string()))?;
                let objects = stream::iter(page.objects.into_iter().map(listed));
                Ok(Some((objects, page.after.map(Some))))
            }
        });
        pages.try_flatten().boxed()
    }
}

/// A directory's keys begin with its name and a slash.
fn directory(prefix: Option<&Path>) -> String {
    match prefix.map(AsRef::as_ref) {
        None | Some("") => String::new(),
        Some(prefix) => format!("{prefix}/"),
    }
}

fn key_of(location: &Path) -> Result<ObjectKey> {
    ObjectKey::new(location.as_ref()).map_err(|error| generic(error.to_string()))
}

fn absent() -> Condition {
    Condition { if_none_match: Some(EtagList::Any), ..Condition::default() }
}

fn refuse_tags(tags: &str) -> Result<()> {
    match tags {
        "" => Ok(()),
        _ => Err(Error::NotSupported { source: "tags are set by S3 clients alone".into() }),
    }
}

fn listed(object: ListedObject) -> Result<ObjectMeta> {
    Ok(meta(Path::parse(object.key.as_str())?, &object.metax))
}

fn meta(location: Path, metax: &Metax) -> ObjectMeta {
    let ms = i64::try_from(metax.clock.ms()).unwrap_or(i64::MAX);
    let last_modified: DateTime<Utc> = DateTime::from_timestamp_millis(ms).unwrap_or_default();
    let e_tag = Some(metax.etag.text());
    ObjectMeta { location, last_modified, size: metax.size, e_tag, version: None }
}

fn ranged(options: &GetOptions, size: u64) -> Result<Range<u64>> {
    match &options.range {
        Some(range) => range.as_range(size).map_err(|error| generic(error.to_string())),
        None => Ok(0..size),
    }
}

fn streamed(key: &ObjectKey, read: ReadBody) -> BoxStream<'static, Result<bytes::Bytes>> {
    match read {
        ReadBody::Whole(bytes) => stream::once(async { Ok(bytes) }).boxed(),
        ReadBody::Stream(pieces) => {
            let key = key.clone();
            pieces.map_err(move |error| explained(&key, error)).boxed()
        }
    }
}

fn stored(given: &object_store::Attributes) -> Attributes {
    let mut attributes = Attributes::default();
    for (name, value) in given {
        let value = value.as_ref().to_owned();
        match name {
            Attribute::ContentType => attributes.content_type = Some(value),
            Attribute::CacheControl => attributes.cache_control = Some(value),
            Attribute::ContentDisposition => attributes.content_disposition = Some(value),
            Attribute::ContentEncoding => attributes.content_encoding = Some(value),
            Attribute::ContentLanguage => attributes.content_language = Some(value),
            Attribute::StorageClass => attributes.storage_class = Some(value),
            Attribute::Metadata(name) => {
                attributes.user.push((name.to_ascii_lowercase(), value));
            }
            // Those that later releases of that interface know are not kept.
            _ => {}
        }
    }
    attributes.user.sort_unstable();
    attributes
}

fn shown(attributes: &Attributes) -> object_store::Attributes {
    let mut shown = object_store::Attributes::new();
    for (name, value) in [
        (Attribute::ContentType, &attributes.content_type),
        (Attribute::CacheControl, &attributes.cache_control),
        (Attribute::ContentDisposition, &attributes.content_disposition),
        (Attribute::ContentEncoding, &attributes.content_encoding),
        (Attribute::ContentLanguage, &attributes.content_language),
        (Attribute::StorageClass, &attributes.storage_class),
    ] {
        if let Some(value) = value {
            shown.insert(name, AttributeValue::from(value.clone()));
        }
    }
    for (name, value) in &attributes.user {
        let name = Attribute::Metadata(Cow::Owned(name.clone()));
        shown.insert(name, AttributeValue::from(value.clone()));
    }
    shown
}
