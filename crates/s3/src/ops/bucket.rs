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

use super::gateway::{Gateway, Request};
use crate::answer;
use crate::auth::authorization::BUCKET_REGION;
use crate::errors::elements::{self, invalid_argument};
use crate::errors::{error, from_store, not_implemented};
use crate::options::{DEFAULT_REGION, is_region};
use crate::request::acl::Acl;
use crate::request::head::{Parameters, lines};
use crate::request::names::owner;
use crate::request::token;
use crate::request::xml::{self, once};

/// Most buckets on one page of their list (S3).
const BUCKET_PAGE_MAX: usize = 10_000;
/// Another name of `eu-west-1`, by which old clients make buckets there (S3).
const EU: (&str, &str) = ("EU", "eu-west-1");

pub(crate) async fn create<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let document = request.take_document().await?;
    let (mut acl, mut locks) = (Acl::default(), false);
    for line in lines(&request.parts.headers) {
        match line.name() {
            "x-amz-bucket-object-lock-enabled" => locks = line.boolean()? == Some(true),
            "x-amz-object-ownership" => check_ownership(line.read(Some)?)?,
            _ => drop(acl.take(&line)?),
        }
    }
    acl.check_of_new_bucket()?;
    if locks {
        return Err(not_implemented("Object lock"));
    }
    let location = wanted_location(&document)?;
    check_location(location.as_deref(), gateway.region.as_deref())?;
    let bucket = &request.bucket;
    if is_reserved(bucket.as_str())
        && matches!(gateway.store.bucket(bucket), Err(ObjectError::NoSuchBucket))
    {
        let message = format!(
            "bucket name \"{bucket}\": S3 keeps names that begin or end like this for itself"
        );
        return Err(error(S3ErrorCode::InvalidBucketName, message));
    }
    match gateway.store.create_bucket(bucket, location).await {
        Ok(_) => {}
        // In this region alone S3 takes a repeated creation for the first.
        Err(ObjectError::BucketExists)
            if region(gateway.region.as_deref(), None) == DEFAULT_REGION => {}
        Err(refused) => return Err(from_store(refused)),
    }
    let mut response = Response::new(Body::empty());
    answer::set(response.headers_mut(), LOCATION, &format!("/{bucket}"))?;
    Ok(response)
}

/// True for names that clients take for something else than a bucket (S3). A bucket that has one already keeps it.
fn is_reserved(name: &str) -> bool {
    const BEGINNINGS: [&str; 3] = ["xn--", "sthree-", "amzn-s3-demo-"];
    const ENDS: [&str; 5] = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];
    BEGINNINGS.iter().any(|begin| name.starts_with(begin))
        || ENDS.iter().any(|end| name.ends_with(end))
}

/// Every object belongs to its bucket's owner.
fn check_ownership(asked: Option<&str>) -> S3Result<()> {
    match asked {
        None | Some(ObjectOwnership::BUCKET_OWNER_ENFORCED) => Ok(()),
        Some(ObjectOwnership::BUCKET_OWNER_PREFERRED | ObjectOwnership::OBJECT_WRITER) => {
            Err(not_implemented("Object ownership by others than the bucket owner"))
        }
        Some(other) => {
            let message = format!("Invalid x-amz-object-ownership header: {other}");
            Err(invalid_argument(message, "x-amz-object-ownership", other))
        }
    }
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

/// A bucket is made in the region that the operator named, or in any.
fn check_location(constraint: Option<&str>, named: Option<&str>) -> S3Result<()> {
    let constraint = constraint.unwrap_or_default();
    let is_taken = match named {
        Some(named) => constraint == named,
        None => constraint == EU.0 || is_region(constraint),
    };
    if constraint.is_empty() || is_taken {
        return Ok(());
    }
    let message = "The specified location-constraint is not valid";
    let invalid = error(S3ErrorCode::InvalidLocationConstraint, message);
    Err(elements::with(invalid, [("LocationConstraint", constraint.to_owned())]))
}

/// The region in which a bucket is said to be: the one that the operator named, else the one that its maker named. Clients
/// sign for it from then on, and any is accepted.
fn region<'r>(named: Option<&'r str>, location: Option<&'r str>) -> &'r str {
    let made_in = location.filter(|location| !location.is_empty());
    match named.or(made_in) {
        Some(region) if region == EU.0 => EU.1,
        region => region.unwrap_or(DEFAULT_REGION),
    }
}

pub(crate) async fn delete<O: Objects>(
    gateway: &Gateway<O>,
    request: Request,
) -> S3Result<Response<Body>> {
    request.check_owner()?;
    gateway.store.delete_bucket(&request.bucket).await.map_err(from_store)?;
    Ok(answer::no_content())
}

pub(crate) fn head<O: Objects>(
    gateway: &Gateway<O>,
    request: &Request,
) -> S3Result<Response<Body>> {
    request.check_owner()?;
    let record = gateway.store.bucket(&request.bucket).map_err(from_store)?;
    let region = region(gateway.region.as_deref(), record.location.as_deref());
    let mut response = Response::new(Body::empty());
    answer::set(response.headers_mut(), BUCKET_REGION, region)?;
    Ok(response)
}

pub(crate) fn location<O: Objects>(
    gateway: &Gateway<O>,
    request: &Request,
) -> S3Result<Response<Body>> {
    request.check_owner()?;
    let record = gateway.store.bucket(&request.bucket).map_err(from_store)?;
    let region = region(gateway.region.as_deref(), record.location.as_deref());
    let constraint = Some(region).filter(|region| *region != DEFAULT_REGION);
    answer::document(&GetBucketLocationOutput {
        location_constraint: constraint.map(|it| BucketLocationConstraint::from(it.to_owned())),
    })
}

pub(crate) fn list<O: Objects>(gateway: &Gateway<O>, request: &Parts) -> S3Result<Response<Body>> {
    let parameters = Parameters::of(request.uri.query().unwrap_or(""));
    let asked = parameters.one("max-buckets")?;
    let max = match asked.as_deref().map(str::parse) {
        None => BUCKET_PAGE_MAX,
        Some(Ok(max @ 1..=BUCKET_PAGE_MAX)) => max,
        Some(_) => {
            let message =
                format!("Argument max-buckets must be an integer between 1 and {BUCKET_PAGE_MAX}");
            let asked = asked.as_deref().unwrap_or_default();
            return Err(invalid_argument(message, "max-buckets", asked));
        }
    };
    let after = parameters.one("continuation-token")?;
    let after = after.as_deref().map(token::decode).transpose()?;
    let wanted_prefix = parameters.one("prefix")?;
    let wanted_region = parameters.one("bucket-region")?;
    let prefix = wanted_prefix.as_deref().unwrap_or("");
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut next = None;
    for record in gateway.store.buckets().map_err(from_store)? {
        let name = record.name.as_str();
        let region = region(gateway.region.as_deref(), record.location.as_deref());
        let elsewhere = wanted_region.as_deref().is_some_and(|wanted| wanted != region);
        if elsewhere || !name.starts_with(prefix) || after.as_deref().is_some_and(|a| name <= a) {
            continue;
        }
        if buckets.len() == max {
            next = buckets.last().and_then(|last| last.name.as_deref()).map(token::encode);
            break;
        }
        buckets.push(Bucket {
            bucket_region: Some(region.to_owned()),
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
        let code = |constraint, named| {
            check_location(constraint, named).map_err(|refused| refused.code().clone())
        };
        for named in [None, Some("eu-1")] {
            for constraint in [None, Some(""), Some("eu-1")] {
                assert_eq!(code(constraint, named), Ok(()), "{constraint:?} {named:?}");
            }
        }
        let invalid = Err(S3ErrorCode::InvalidLocationConstraint);
        for other in ["us-1", "EU"] {
            assert_eq!(code(Some(other), Some("eu-1")), invalid, "{other}");
            assert_eq!(code(Some(other), None), Ok(()), "{other}");
        }
        for none in ["US", "eu_west", "é", &"a".repeat(64)] {
            assert_eq!(code(Some(none), None), invalid, "{none}");
        }
    }

    #[test]
    fn a_buckets_location_is_the_operators_region_or_its_creators() {
        assert_eq!(region(None, None), "us-east-1");
        assert_eq!(region(None, Some("")), "us-east-1");
        assert_eq!(region(None, Some("eu-1")), "eu-1");
        assert_eq!(region(None, Some("EU")), "eu-west-1");
        assert_eq!(region(Some("here"), Some("eu-1")), "here");
    }
}
