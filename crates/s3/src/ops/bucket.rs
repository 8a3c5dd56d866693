//! Buckets themselves.

use std::time::{Duration, UNIX_EPOCH};

use http::Response;
use http::header::LOCATION;
use http::request::Parts;
use larder_objects::{ObjectError, Objects};
use s3s::dto::{
    Bucket, BucketLocationConstraint, GetBucketLocationOutput, ListBucketsOutput, ObjectOwnership,
    Timestamp,
};
use s3s::{Body, S3ErrorCode, S3Result};

use super::face::{Face, Request};
use crate::answer;
use crate::auth::authorization::BUCKET_REGION;
use crate::errors::{error, from_store, not_implemented};
use crate::request::attributes::check_acl;
use crate::request::head::{Parameters, lines};
use crate::request::names::owner;
use crate::request::token;
use crate::request::xml::{self, once};

/// Most buckets on one page of their list (S3).
const BUCKET_PAGE_MAX: usize = 10_000;
/// The oldest region, which has no location constraint (S3).
const NO_CONSTRAINT: &str = "us-east-1";

pub(crate) async fn create<O: Objects>(
    face: &Face<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let document = request.take_document().await?;
    let (mut canned, mut grants, mut locks) = (None, false, false);
    for line in lines(&request.parts.headers) {
        match line.name() {
            "x-amz-acl" => canned = line.read(Some)?,
            "x-amz-bucket-object-lock-enabled" => locks = line.boolean()? == Some(true),
            "x-amz-object-ownership" => match line.read(Some)? {
                None | Some(ObjectOwnership::BUCKET_OWNER_ENFORCED) => {}
                Some(_) => {
                    let what = "Object ownership by others than the bucket owner";
                    return Err(not_implemented(what));
                }
            },
            name if name.starts_with("x-amz-grant-") => grants |= line.is_given()?,
            _ => {}
        }
    }
    check_acl(canned, grants)?;
    if locks {
        return Err(not_implemented("Object lock"));
    }
    let location = wanted_location(&document)?;
    check_location(location.as_deref(), &face.region)?;
    let bucket = &request.bucket;
    match face.store.create_bucket(bucket, location).await {
        Ok(_) => {}
        // In this region alone S3 takes a repeated creation for the first.
        Err(ObjectError::BucketExists) if face.region == NO_CONSTRAINT => {}
        Err(refused) => return Err(from_store(refused)),
    }
    let mut response = Response::new(Body::empty());
    answer::set(response.headers_mut(), LOCATION, &format!("/{bucket}"))?;
    Ok(response)
}

/// The region that the document of a creation names, if there is one.
fn wanted_location(document: &[u8]) -> S3Result<Option<String>> {
    if document.is_empty() {
        return Ok(None);
    }
    let mut location = None;
    xml::read(document, "CreateBucketConfiguration", |xml| {
        xml.children(|xml, name| match name {
            "LocationConstraint" => once(&mut location, xml.word()?),
            "Bucket" | "Location" => Err(not_implemented("A directory bucket")),
            "Tags" => Err(not_implemented("A bucket's tags (Tags)")),
            _ => Err(xml::malformed()),
        })
    })?;
    Ok(location)
}

/// A bucket is made in the region that is asked.
fn check_location(constraint: Option<&str>, region: &str) -> S3Result<()> {
    match constraint {
        None | Some("") => Ok(()),
        Some(constraint) if constraint == region => Ok(()),
        Some(_) => Err(error(
            S3ErrorCode::InvalidLocationConstraint,
            "The specified location-constraint is not valid",
        )),
    }
}

pub(crate) async fn delete<O: Objects>(
    face: &Face<O>,
    request: Request,
) -> S3Result<Response<Body>> {
    request.check_owner()?;
    face.store.delete_bucket(&request.bucket).await.map_err(from_store)?;
    Ok(answer::no_content())
}

pub(crate) fn head<O: Objects>(face: &Face<O>, request: &Request) -> S3Result<Response<Body>> {
    request.check_owner()?;
    face.store.bucket(&request.bucket).map_err(from_store)?;
    let mut response = Response::new(Body::empty());
    answer::set(response.headers_mut(), BUCKET_REGION, &face.region)?;
    Ok(response)
}

pub(crate) fn location<O: Objects>(face: &Face<O>, request: &Request) -> S3Result<Response<Body>> {
    request.check_owner()?;
    face.store.bucket(&request.bucket).map_err(from_store)?;
    let constraint = (face.region != NO_CONSTRAINT).then(|| face.region.clone());
    answer::document(&GetBucketLocationOutput {
        location_constraint: constraint.map(BucketLocationConstraint::from),
    })
}

pub(crate) fn list<O: Objects>(face: &Face<O>, request: &Parts) -> S3Result<Response<Body>> {
    let parameters = Parameters::of(request.uri.query().unwrap_or(""));
    let max = match parameters.one("max-buckets")?.map(|text| text.parse()) {
        None => BUCKET_PAGE_MAX,
        Some(Ok(max @ 1..=BUCKET_PAGE_MAX)) => max,
        Some(_) => {
            return Err(error(
                S3ErrorCode::InvalidArgument,
                format!("Argument max-buckets must be an integer between 1 and {BUCKET_PAGE_MAX}"),
            ));
        }
    };
    let after = parameters.one("continuation-token")?;
    let after = after.as_deref().map(token::decode).transpose()?;
    let wanted_prefix = parameters.one("prefix")?;
    let region = parameters.one("bucket-region")?;
    let prefix = wanted_prefix.as_deref().unwrap_or("");
    let elsewhere = region.is_some_and(|region| region != face.region);
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut next = None;
    for record in face.store.buckets().map_err(from_store)? {
        let name = record.name.as_str();
        if elsewhere || !name.starts_with(prefix) || after.as_deref().is_some_and(|a| name <= a) {
            continue;
        }
        if buckets.len() == max {
            next = buckets.last().and_then(|last| last.name.as_deref()).map(token::encode);
            break;
        }
        buckets.push(Bucket {
            bucket_region: Some(face.region.clone()),
            creation_date: Some(Timestamp::from(
                UNIX_EPOCH + Duration::from_millis(record.created_ms),
            )),
            name: Some(name.to_owned()),
        });
    }
    answer::document(&ListBucketsOutput {
        buckets: Some(buckets),
        continuation_token: next,
        owner: Some(owner()),
        prefix: wanted_prefix,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_made_where_it_is_asked_for() {
        assert!(check_location(None, "eu-1").is_ok());
        assert!(check_location(Some(""), "eu-1").is_ok());
        assert!(check_location(Some("eu-1"), "eu-1").is_ok());
        let refused = check_location(Some("us-1"), "eu-1").unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::InvalidLocationConstraint);
    }
}
