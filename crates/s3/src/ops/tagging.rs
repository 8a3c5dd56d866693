//! Operations on the tags of an object.

use http::Response;
use larder_objects::Objects;
use s3s::dto::{GetObjectTaggingOutput, Tag};
use s3s::{Body, S3Result};

use super::gateway::{Gateway, Request};
use crate::answer;
use crate::errors::from_store;
use crate::request::tags::{Tags, of_document};

pub(crate) async fn get<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let key = request.take_key()?;
    request.check_owner()?;
    request.check_version()?;
    let opened = gateway.store.open(&request.bucket, &key).await.map_err(from_store)?;
    let tag = |(name, value)| Tag { key: Some(name), value: Some(value) };
    let tag_set = opened.metax.attributes.tags.into_iter().map(tag).collect();
    answer::document(&GetObjectTaggingOutput { tag_set, version_id: None })
}

pub(crate) async fn put<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let tags = of_document(&request.take_document().await?)?;
    set(gateway, request, tags).await?;
    Ok(Response::new(Body::empty()))
}

pub(crate) async fn delete<O: Objects>(
    gateway: &Gateway<O>,
    request: Request,
) -> S3Result<Response<Body>> {
    set(gateway, request, Tags::new()).await?;
    Ok(answer::no_content())
}

async fn set<O: Objects>(gateway: &Gateway<O>, mut request: Request, tags: Tags) -> S3Result<()> {
    let key = request.take_key()?;
    request.check_owner()?;
    request.check_version()?;
    gateway.store.set_tags(&request.bucket, &key, tags).await.map_err(from_store)
}
