//! Settings that no bucket and no object has. Questions are answered as S3 answers them for a fresh bucket. What would change
//! nothing is taken, and all else refused.

use http::Response;
use larder_objects::Objects;
use s3s::dto::{
    GetBucketAccelerateConfigurationOutput, GetBucketAclOutput, GetBucketLoggingOutput,
    GetBucketNotificationConfigurationOutput, GetBucketRequestPaymentOutput,
    GetBucketVersioningOutput, GetObjectAclOutput, Grant, Grantee, ObjectOwnership,
    OwnershipControls, OwnershipControlsRule, Payer, Permission, PolicyStatus, Type,
};
use s3s::{Body, S3Error, S3ErrorCode, S3Result};

use super::gateway::{Gateway, Request};
use crate::answer;
use crate::errors::{error, from_store, not_implemented};
use crate::request::acl::Acl;
use crate::request::head::lines;
use crate::request::names::{OWNER_ID, OWNER_NAME, owner};

pub(crate) fn get_of_bucket<O: Objects>(
    gateway: &Gateway<O>,
    request: &Request,
    name: &'static str,
) -> S3Result<Response<Body>> {
    check_bucket(gateway, request)?;
    match name {
        "accelerate" => answer::document(&GetBucketAccelerateConfigurationOutput::default()),
        // The owner may do everything and nobody else anything.
        "acl" => {
            answer::document(&GetBucketAclOutput { grants: Some(grants()), owner: Some(owner()) })
        }
        // Requests are nowhere logged for the bucket's owner.
        "logging" => answer::document(&GetBucketLoggingOutput::default()),
        "notification" => answer::document(&GetBucketNotificationConfigurationOutput::default()),
        // Every object belongs to the bucket's owner.
        "ownershipControls" => {
            let enforced = ObjectOwnership::BUCKET_OWNER_ENFORCED;
            let object_ownership = ObjectOwnership::from_static(enforced);
            let rules = vec![OwnershipControlsRule { object_ownership }];
            answer::document(&OwnershipControls { rules })
        }
        // Nobody else may read it.
        "policyStatus" => answer::document(&PolicyStatus { is_public: Some(false) }),
        // The owner pays, were there anything to pay.
        "requestPayment" => {
            let payer = Some(Payer::from_static(Payer::BUCKET_OWNER));
            answer::document(&GetBucketRequestPaymentOutput { payer })
        }
        // It never had any.
        "versioning" => answer::document(&GetBucketVersioningOutput::default()),
        _ => Err(absent(name)),
    }
}

/// The answer of S3 about a setting that a bucket does not have.
pub(crate) fn absent(name: &str) -> S3Error {
    let (code, message) = match name {
        "cors" => (S3ErrorCode::NoSuchCORSConfiguration, "The CORS configuration does not exist"),
        "encryption" => (
            S3ErrorCode::ServerSideEncryptionConfigurationNotFoundError,
            "The server side encryption configuration was not found",
        ),
        "lifecycle" => (
            S3ErrorCode::NoSuchLifecycleConfiguration,
            "The lifecycle configuration does not exist",
        ),
        "object-lock" => (
            S3ErrorCode::ObjectLockConfigurationNotFoundError,
            "Object Lock configuration does not exist for this bucket",
        ),
        "policy" => (S3ErrorCode::NoSuchBucketPolicy, "The bucket policy does not exist"),
        "publicAccessBlock" => (
            S3ErrorCode::Custom("NoSuchPublicAccessBlockConfiguration".into()),
            "The public access block configuration was not found",
        ),
        "replication" => (
            S3ErrorCode::ReplicationConfigurationNotFoundError,
            "The replication configuration was not found",
        ),
        "tagging" => (S3ErrorCode::NoSuchTagSet, "The TagSet does not exist"),
        "website" => (
            S3ErrorCode::NoSuchWebsiteConfiguration,
            "The specified bucket does not have a website configuration",
        ),
        _ => return not_implemented(&format!("GET of {name} of a bucket")),
    };
    let mut absent = error(code, message);
    // The library's codes have other statuses for some of these.
    absent.set_status_code(http::StatusCode::NOT_FOUND);
    absent
}

/// Takes the access rules that every bucket has, and no others.
pub(crate) async fn put_of_bucket<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
    name: &'static str,
) -> S3Result<Response<Body>> {
    let document = request.take_document().await?;
    check_bucket(gateway, &request)?;
    match name {
        "acl" => change_rules(&request, &document),
        "object-lock" => Err(error(
            S3ErrorCode::InvalidBucketState,
            "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration",
        )),
        _ => Err(not_implemented(&format!("PUT of {name} of a bucket"))),
    }
}

/// Takes it for deleted: it is not there.
pub(crate) fn delete_of_bucket<O: Objects>(
    gateway: &Gateway<O>,
    request: &Request,
    name: &'static str,
) -> S3Result<Response<Body>> {
    check_bucket(gateway, request)?;
    match name {
        "ownershipControls" => Err(not_implemented("DELETE of ownershipControls of a bucket")),
        _ => Ok(answer::no_content()),
    }
}

pub(crate) async fn get_of_object<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
    name: &'static str,
) -> S3Result<Response<Body>> {
    check_object(gateway, &mut request, name).await?;
    answer::document(&GetObjectAclOutput {
        grants: Some(grants()),
        owner: Some(owner()),
        request_charged: None,
    })
}

/// Takes the access rules that every object has, and no others.
pub(crate) async fn put_of_object<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
    name: &'static str,
) -> S3Result<Response<Body>> {
    let document = request.take_document().await?;
    check_object(gateway, &mut request, name).await?;
    change_rules(&request, &document)
}

fn check_bucket<O: Objects>(gateway: &Gateway<O>, request: &Request) -> S3Result<()> {
    request.check_owner()?;
    gateway.store.bucket(&request.bucket).map_err(from_store).map(drop)
}

/// Refuses a question for another setting than access rules, and of an object that is not there.
async fn check_object<O: Objects>(
    gateway: &Gateway<O>,
    request: &mut Request,
    name: &'static str,
) -> S3Result<()> {
    check_bucket(gateway, request)?;
    if name != "acl" {
        let message = "Bucket is missing Object Lock Configuration";
        return Err(error(S3ErrorCode::InvalidRequest, message));
    }
    request.check_version()?;
    let key = request.take_key()?;
    gateway.store.open(&request.bucket, &key).await.map_err(from_store).map(drop)
}

/// Takes the rules that there are, in headers or in the body.
fn change_rules(request: &Request, document: &[u8]) -> S3Result<Response<Body>> {
    let mut acl = Acl::default();
    for line in lines(&request.parts.headers) {
        acl.take(&line)?;
    }
    acl.check_change(document)?;
    Ok(Response::new(Body::empty()))
}

/// The owner's right to everything.
fn grants() -> Vec<Grant> {
    let grantee = Grantee {
        display_name: Some(OWNER_NAME.to_owned()),
        email_address: None,
        id: Some(OWNER_ID.to_owned()),
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    let permission = Some(Permission::from_static(Permission::FULL_CONTROL));
    vec![Grant { grantee: Some(grantee), permission }]
}
