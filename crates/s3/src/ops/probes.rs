//! Questions about settings that no bucket and no object has, answered as S3 answers them for a fresh
//! bucket, and requests that change nothing.

use larder_objects::Objects;
use s3s::dto::{
    GetBucketAccelerateConfigurationOutput, GetBucketAclOutput, GetBucketLoggingOutput,
    GetBucketNotificationConfigurationOutput, GetBucketOwnershipControlsOutput,
    GetBucketPolicyStatusOutput, GetBucketRequestPaymentOutput, GetBucketVersioningOutput,
    GetObjectAclInput, GetObjectAclOutput, Grant, Grantee, ObjectOwnership, OwnershipControls,
    OwnershipControlsRule, Payer, Permission, PolicyStatus, PutBucketAclInput, PutBucketAclOutput,
    PutObjectAclInput, PutObjectAclOutput, Type,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::face::Face;
use crate::errors::{error, from_store, not_implemented};
use crate::request::attributes::check_acl;
use crate::request::names::{OWNER_ID, OWNER_NAME, key, null_version, owner};

impl<O: Objects> Face<O> {
    /// Answers a question about a bucket's settings, if there is such a bucket.
    ///
    /// # Errors
    /// As [`Face::bucket`]; `NoSuchBucket`.
    pub(crate) fn probe<T>(
        &self,
        bucket: &str,
        owner: Option<&str>,
        answer: T,
    ) -> S3Result<S3Response<T>> {
        let bucket = self.bucket(bucket, owner)?;
        self.store.bucket(&bucket).map_err(from_store)?;
        Ok(S3Response::new(answer))
    }

    /// Says that a bucket does not have a setting, if there is such a bucket.
    ///
    /// # Errors
    /// Always: as [`Face::probe`], or that there is no such setting.
    pub(crate) fn absent<T>(
        &self,
        bucket: &str,
        owner: Option<&str>,
        setting: Setting,
    ) -> S3Result<S3Response<T>> {
        self.probe(bucket, owner, ())?;
        Err(setting.is_absent())
    }
}

/// The answer of S3 about an object's lock in a bucket without locks.
pub(crate) fn no_lock() -> S3Error {
    error(S3ErrorCode::InvalidRequest, "Bucket is missing Object Lock Configuration")
}

/// The answer of S3 if a bucket without versioning is to have locks.
pub(crate) fn no_versioning() -> S3Error {
    error(
        S3ErrorCode::InvalidBucketState,
        "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration",
    )
}

/// Settings that buckets in S3 may have, and here never do, but for CORS.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Setting {
    Cors,
    Encryption,
    Lifecycle,
    ObjectLock,
    Policy,
    PublicAccessBlock,
    Replication,
    Tags,
    Website,
}

impl Setting {
    pub(crate) fn is_absent(self) -> S3Error {
        let (code, message) = match self {
            Setting::Cors => {
                (S3ErrorCode::NoSuchCORSConfiguration, "The CORS configuration does not exist")
            }
            Setting::Encryption => (
                S3ErrorCode::ServerSideEncryptionConfigurationNotFoundError,
                "The server side encryption configuration was not found",
            ),
            Setting::Lifecycle => (
                S3ErrorCode::NoSuchLifecycleConfiguration,
                "The lifecycle configuration does not exist",
            ),
            Setting::ObjectLock => (
                S3ErrorCode::ObjectLockConfigurationNotFoundError,
                "Object Lock configuration does not exist for this bucket",
            ),
            Setting::Policy => {
                (S3ErrorCode::NoSuchBucketPolicy, "The bucket policy does not exist")
            }
            Setting::PublicAccessBlock => (
                S3ErrorCode::Custom("NoSuchPublicAccessBlockConfiguration".into()),
                "The public access block configuration was not found",
            ),
            Setting::Replication => (
                S3ErrorCode::ReplicationConfigurationNotFoundError,
                "The replication configuration was not found",
            ),
            Setting::Tags => (S3ErrorCode::NoSuchTagSet, "The TagSet does not exist"),
            Setting::Website => (
                S3ErrorCode::NoSuchWebsiteConfiguration,
                "The specified bucket does not have a website configuration",
            ),
        };
        let mut absent = error(code, message);
        // The library has other statuses for some of these.
        absent.set_status_code(http::StatusCode::NOT_FOUND);
        absent
    }
}

/// Never had versioning.
pub(crate) fn versioning() -> GetBucketVersioningOutput {
    GetBucketVersioningOutput::default()
}

/// Nobody else may read it.
pub(crate) fn policy_status() -> GetBucketPolicyStatusOutput {
    let policy_status = Some(PolicyStatus { is_public: Some(false) });
    GetBucketPolicyStatusOutput { policy_status }
}

/// Requests are nowhere logged for the bucket's owner.
pub(crate) fn logging() -> GetBucketLoggingOutput {
    GetBucketLoggingOutput::default()
}

/// The owner pays, were there anything to pay.
pub(crate) fn request_payment() -> GetBucketRequestPaymentOutput {
    GetBucketRequestPaymentOutput { payer: Some(Payer::from_static(Payer::BUCKET_OWNER)) }
}

/// Nobody is notified.
pub(crate) fn notification() -> GetBucketNotificationConfigurationOutput {
    GetBucketNotificationConfigurationOutput::default()
}

/// Not accelerated.
pub(crate) fn acceleration() -> GetBucketAccelerateConfigurationOutput {
    GetBucketAccelerateConfigurationOutput::default()
}

/// Every object belongs to the bucket's owner.
pub(crate) fn ownership() -> GetBucketOwnershipControlsOutput {
    let object_ownership = ObjectOwnership::from_static(ObjectOwnership::BUCKET_OWNER_ENFORCED);
    let rules = vec![OwnershipControlsRule { object_ownership }];
    GetBucketOwnershipControlsOutput { ownership_controls: Some(OwnershipControls { rules }) }
}

/// The owner may do everything and nobody else anything.
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

/// A bucket's access rules.
pub(crate) fn bucket_acl() -> GetBucketAclOutput {
    GetBucketAclOutput { grants: Some(grants()), owner: Some(owner()) }
}

pub(crate) async fn object_acl<O: Objects>(
    face: &Face<O>,
    request: S3Request<GetObjectAclInput>,
) -> S3Result<S3Response<GetObjectAclOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    null_version(input.version_id.as_deref())?;
    face.store.open(&bucket, &key(input.key)?).await.map_err(from_store)?;
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(grants()),
        owner: Some(owner()),
        request_charged: None,
    }))
}

/// Takes the access rules that every bucket has, and no others.
pub(crate) fn put_bucket_acl<O: Objects>(
    face: &Face<O>,
    request: S3Request<PutBucketAclInput>,
) -> S3Result<S3Response<PutBucketAclOutput>> {
    let input = request.input;
    let grants = input.grant_full_control.is_some()
        || input.grant_read.is_some()
        || input.grant_read_acp.is_some()
        || input.grant_write.is_some()
        || input.grant_write_acp.is_some();
    let answer = face.probe(
        &input.bucket,
        input.expected_bucket_owner.as_deref(),
        PutBucketAclOutput::default(),
    )?;
    require_canned(input.acl.as_ref().map(|acl| acl.as_str()), grants)?;
    Ok(answer)
}

/// Takes the access rules that every object has, and no others.
pub(crate) async fn put_object_acl<O: Objects>(
    face: &Face<O>,
    request: S3Request<PutObjectAclInput>,
) -> S3Result<S3Response<PutObjectAclOutput>> {
    let input = request.input;
    let grants = input.grant_full_control.is_some()
        || input.grant_read.is_some()
        || input.grant_read_acp.is_some()
        || input.grant_write.is_some()
        || input.grant_write_acp.is_some();
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    null_version(input.version_id.as_deref())?;
    face.store.open(&bucket, &key(input.key)?).await.map_err(from_store)?;
    require_canned(input.acl.as_ref().map(|acl| acl.as_str()), grants)?;
    Ok(S3Response::new(PutObjectAclOutput::default()))
}

fn require_canned(canned: Option<&str>, grants: bool) -> S3Result<()> {
    if canned.is_none() {
        return Err(not_implemented("An access control list other than 'private'"));
    }
    check_acl(canned, grants)
}
