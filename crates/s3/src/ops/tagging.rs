//! Operations on the tags of an object.

use larder_objects::Objects;
use s3s::dto::{
    DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetObjectTaggingInput,
    GetObjectTaggingOutput, PutObjectTaggingInput, PutObjectTaggingOutput, Tag,
};
use s3s::{S3Request, S3Response, S3Result};

use super::face::Face;
use crate::errors::from_store;
use crate::request::names::{key, null_version};
use crate::request::tags::{Tags, of_xml};

pub(crate) async fn get<O: Objects>(
    face: &Face<O>,
    request: S3Request<GetObjectTaggingInput>,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    null_version(input.version_id.as_deref())?;
    let opened = face.store.open(&bucket, &key(input.key)?).await.map_err(from_store)?;
    let tag = |(name, value)| Tag { key: Some(name), value: Some(value) };
    let tag_set = opened.metax.attributes.tags.into_iter().map(tag).collect();
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id: None }))
}

pub(crate) async fn put<O: Objects>(
    face: &Face<O>,
    request: S3Request<PutObjectTaggingInput>,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    null_version(input.version_id.as_deref())?;
    let tags = of_xml(input.tagging)?;
    face.store.set_tags(&bucket, &key(input.key)?, tags).await.map_err(from_store)?;
    Ok(S3Response::new(PutObjectTaggingOutput::default()))
}

pub(crate) async fn delete<O: Objects>(
    face: &Face<O>,
    request: S3Request<DeleteObjectTaggingInput>,
) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    null_version(input.version_id.as_deref())?;
    face.store.set_tags(&bucket, &key(input.key)?, Tags::new()).await.map_err(from_store)?;
    Ok(S3Response::new(DeleteObjectTaggingOutput::default()))
}
