//! Buckets themselves.

use std::time::{Duration, UNIX_EPOCH};

use larder_objects::{ObjectError, Objects};
use s3s::dto::{
    Bucket, BucketLocationConstraint, CreateBucketInput, CreateBucketOutput, DeleteBucketInput,
    DeleteBucketOutput, GetBucketLocationInput, GetBucketLocationOutput, HeadBucketInput,
    HeadBucketOutput, ListBucketsInput, ListBucketsOutput, ObjectOwnership, Timestamp,
};
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::face::Face;
use crate::errors::{error, from_store, not_implemented};
use crate::request::attributes::check_acl;
use crate::request::names::owner;
use crate::request::token;

/// Most buckets on one page of their list (S3).
const BUCKET_PAGE_MAX: i32 = 10_000;
/// The oldest region, which has no location constraint (S3).
const NO_CONSTRAINT: &str = "us-east-1";

pub(crate) async fn create<O: Objects>(
    face: &Face<O>,
    request: S3Request<CreateBucketInput>,
) -> S3Result<S3Response<CreateBucketOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, None)?;
    let grants = input.grant_full_control.is_some()
        || input.grant_read.is_some()
        || input.grant_read_acp.is_some()
        || input.grant_write.is_some()
        || input.grant_write_acp.is_some();
    check_acl(input.acl.as_ref().map(|acl| acl.as_str()), grants)?;
    if input.object_lock_enabled_for_bucket == Some(true) {
        return Err(not_implemented("Object lock"));
    }
    match input.object_ownership.as_ref().map(ObjectOwnership::as_str) {
        None | Some(ObjectOwnership::BUCKET_OWNER_ENFORCED) => {}
        Some(_) => return Err(not_implemented("Object ownership by others than the bucket owner")),
    }
    let configuration = input.create_bucket_configuration.unwrap_or_default();
    if configuration.bucket.is_some() || configuration.location.is_some() {
        return Err(not_implemented("A directory bucket"));
    }
    let location = configuration.location_constraint.map(|place| place.as_str().to_owned());
    check_location(location.as_deref(), &face.region)?;
    match face.store.create_bucket(&bucket, location).await {
        Ok(_) => {}
        // In this region alone S3 takes a repeated creation for the first.
        Err(ObjectError::BucketExists) if face.region == NO_CONSTRAINT => {}
        Err(refused) => return Err(from_store(refused)),
    }
    Ok(S3Response::new(CreateBucketOutput { location: Some(format!("/{bucket}")) }))
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
    request: S3Request<DeleteBucketInput>,
) -> S3Result<S3Response<DeleteBucketOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    face.store.delete_bucket(&bucket).await.map_err(from_store)?;
    Ok(S3Response::new(DeleteBucketOutput {}))
}

pub(crate) fn head<O: Objects>(
    face: &Face<O>,
    request: S3Request<HeadBucketInput>,
) -> S3Result<S3Response<HeadBucketOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    face.store.bucket(&bucket).map_err(from_store)?;
    let output =
        HeadBucketOutput { bucket_region: Some(face.region.clone()), ..Default::default() };
    Ok(S3Response::new(output))
}

pub(crate) fn location<O: Objects>(
    face: &Face<O>,
    request: S3Request<GetBucketLocationInput>,
) -> S3Result<S3Response<GetBucketLocationOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    face.store.bucket(&bucket).map_err(from_store)?;
    let constraint = (face.region != NO_CONSTRAINT).then(|| face.region.clone());
    Ok(S3Response::new(GetBucketLocationOutput {
        location_constraint: constraint.map(BucketLocationConstraint::from),
    }))
}

pub(crate) fn list<O: Objects>(
    face: &Face<O>,
    request: S3Request<ListBucketsInput>,
) -> S3Result<S3Response<ListBucketsOutput>> {
    let input = request.input;
    let max = input.max_buckets.unwrap_or(BUCKET_PAGE_MAX);
    let max = match usize::try_from(max) {
        Ok(max) if (1..=BUCKET_PAGE_MAX as usize).contains(&max) => max,
        _ => {
            return Err(error(
                S3ErrorCode::InvalidArgument,
                format!("Argument max-buckets must be an integer between 1 and {BUCKET_PAGE_MAX}"),
            ));
        }
    };
    let after = input.continuation_token.as_deref().map(token::decode).transpose()?;
    let prefix = input.prefix.as_deref().unwrap_or("");
    let elsewhere = input.bucket_region.as_deref().is_some_and(|region| region != face.region);
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
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(buckets),
        continuation_token: next,
        owner: Some(owner()),
        prefix: input.prefix,
    }))
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
