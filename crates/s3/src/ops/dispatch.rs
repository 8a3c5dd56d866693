//! The protocol library's interface, implemented over the object interface. Every method delegates
//! to the module that knows its rules; none of these knows of this one.

use larder_objects::Objects;
use s3s::{S3, S3Request, S3Response, S3Result, dto};

use super::face::Face;
use super::probes::Setting;
use super::{
    bucket, bucket_cors, copy, delete, describe, list, probes, tagging, upload, upload_lists,
};

/// The argument and result of a method.
type Asked<T> = S3Request<T>;
type Answer<T> = S3Result<S3Response<T>>;

#[async_trait::async_trait]
impl<O: Objects> S3 for Face<O> {
    async fn create_bucket(
        &self,
        asked: Asked<dto::CreateBucketInput>,
    ) -> Answer<dto::CreateBucketOutput> {
        bucket::create(self, asked).await
    }

    async fn delete_bucket(
        &self,
        asked: Asked<dto::DeleteBucketInput>,
    ) -> Answer<dto::DeleteBucketOutput> {
        bucket::delete(self, asked).await
    }

    async fn head_bucket(
        &self,
        asked: Asked<dto::HeadBucketInput>,
    ) -> Answer<dto::HeadBucketOutput> {
        bucket::head(self, asked)
    }

    async fn list_buckets(
        &self,
        asked: Asked<dto::ListBucketsInput>,
    ) -> Answer<dto::ListBucketsOutput> {
        bucket::list(self, asked)
    }

    async fn get_bucket_location(
        &self,
        asked: Asked<dto::GetBucketLocationInput>,
    ) -> Answer<dto::GetBucketLocationOutput> {
        bucket::location(self, asked)
    }

    async fn delete_objects(
        &self,
        asked: Asked<dto::DeleteObjectsInput>,
    ) -> Answer<dto::DeleteObjectsOutput> {
        delete::objects(self, asked).await
    }

    async fn get_object_tagging(
        &self,
        asked: Asked<dto::GetObjectTaggingInput>,
    ) -> Answer<dto::GetObjectTaggingOutput> {
        tagging::get(self, asked).await
    }

    async fn put_object_tagging(
        &self,
        asked: Asked<dto::PutObjectTaggingInput>,
    ) -> Answer<dto::PutObjectTaggingOutput> {
        tagging::put(self, asked).await
    }

    async fn delete_object_tagging(
        &self,
        asked: Asked<dto::DeleteObjectTaggingInput>,
    ) -> Answer<dto::DeleteObjectTaggingOutput> {
        tagging::delete(self, asked).await
    }

    async fn list_objects(
        &self,
        asked: Asked<dto::ListObjectsInput>,
    ) -> Answer<dto::ListObjectsOutput> {
        list::v1(self, asked).await
    }

    async fn list_object_versions(
        &self,
        asked: Asked<dto::ListObjectVersionsInput>,
    ) -> Answer<dto::ListObjectVersionsOutput> {
        list::versions(self, asked).await
    }

    async fn copy_object(
        &self,
        asked: Asked<dto::CopyObjectInput>,
    ) -> Answer<dto::CopyObjectOutput> {
        copy::object(self, asked).await
    }

    async fn create_multipart_upload(
        &self,
        asked: Asked<dto::CreateMultipartUploadInput>,
    ) -> Answer<dto::CreateMultipartUploadOutput> {
        upload::create(self, asked).await
    }

    async fn upload_part(
        &self,
        asked: Asked<dto::UploadPartInput>,
    ) -> Answer<dto::UploadPartOutput> {
        upload::part(self, asked).await
    }

    async fn upload_part_copy(
        &self,
        asked: Asked<dto::UploadPartCopyInput>,
    ) -> Answer<dto::UploadPartCopyOutput> {
        copy::part(self, asked).await
    }

    async fn complete_multipart_upload(
        &self,
        asked: Asked<dto::CompleteMultipartUploadInput>,
    ) -> Answer<dto::CompleteMultipartUploadOutput> {
        upload::complete(self, asked).await
    }

    async fn abort_multipart_upload(
        &self,
        asked: Asked<dto::AbortMultipartUploadInput>,
    ) -> Answer<dto::AbortMultipartUploadOutput> {
        upload::abort(self, asked).await
    }

    async fn list_parts(&self, asked: Asked<dto::ListPartsInput>) -> Answer<dto::ListPartsOutput> {
        upload_lists::parts(self, asked).await
    }

    async fn list_multipart_uploads(
        &self,
        asked: Asked<dto::ListMultipartUploadsInput>,
    ) -> Answer<dto::ListMultipartUploadsOutput> {
        upload_lists::uploads(self, asked).await
    }

    async fn get_object_attributes(
        &self,
        asked: Asked<dto::GetObjectAttributesInput>,
    ) -> Answer<dto::GetObjectAttributesOutput> {
        describe::object(self, asked).await
    }

    async fn get_object_acl(
        &self,
        asked: Asked<dto::GetObjectAclInput>,
    ) -> Answer<dto::GetObjectAclOutput> {
        probes::object_acl(self, asked).await
    }

    async fn put_object_acl(
        &self,
        asked: Asked<dto::PutObjectAclInput>,
    ) -> Answer<dto::PutObjectAclOutput> {
        probes::put_object_acl(self, asked).await
    }

    async fn put_bucket_acl(
        &self,
        asked: Asked<dto::PutBucketAclInput>,
    ) -> Answer<dto::PutBucketAclOutput> {
        probes::put_bucket_acl(self, asked)
    }

    async fn get_bucket_versioning(
        &self,
        asked: Asked<dto::GetBucketVersioningInput>,
    ) -> Answer<dto::GetBucketVersioningOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            probes::versioning(),
        )
    }

    async fn get_bucket_policy_status(
        &self,
        asked: Asked<dto::GetBucketPolicyStatusInput>,
    ) -> Answer<dto::GetBucketPolicyStatusOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            probes::policy_status(),
        )
    }

    async fn get_bucket_logging(
        &self,
        asked: Asked<dto::GetBucketLoggingInput>,
    ) -> Answer<dto::GetBucketLoggingOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            probes::logging(),
        )
    }

    async fn get_bucket_request_payment(
        &self,
        asked: Asked<dto::GetBucketRequestPaymentInput>,
    ) -> Answer<dto::GetBucketRequestPaymentOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            probes::request_payment(),
        )
    }

    async fn get_bucket_notification_configuration(
        &self,
        asked: Asked<dto::GetBucketNotificationConfigurationInput>,
    ) -> Answer<dto::GetBucketNotificationConfigurationOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            probes::notification(),
        )
    }

    async fn get_bucket_accelerate_configuration(
        &self,
        asked: Asked<dto::GetBucketAccelerateConfigurationInput>,
    ) -> Answer<dto::GetBucketAccelerateConfigurationOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            probes::acceleration(),
        )
    }

    async fn get_bucket_ownership_controls(
        &self,
        asked: Asked<dto::GetBucketOwnershipControlsInput>,
    ) -> Answer<dto::GetBucketOwnershipControlsOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            probes::ownership(),
        )
    }

    async fn get_bucket_acl(
        &self,
        asked: Asked<dto::GetBucketAclInput>,
    ) -> Answer<dto::GetBucketAclOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            probes::bucket_acl(),
        )
    }

    async fn get_bucket_cors(
        &self,
        asked: Asked<dto::GetBucketCorsInput>,
    ) -> Answer<dto::GetBucketCorsOutput> {
        bucket_cors::get(self, asked)
    }

    async fn put_bucket_cors(
        &self,
        asked: Asked<dto::PutBucketCorsInput>,
    ) -> Answer<dto::PutBucketCorsOutput> {
        bucket_cors::put(self, asked).await
    }

    async fn get_bucket_encryption(
        &self,
        asked: Asked<dto::GetBucketEncryptionInput>,
    ) -> Answer<dto::GetBucketEncryptionOutput> {
        self.absent(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            Setting::Encryption,
        )
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        asked: Asked<dto::GetBucketLifecycleConfigurationInput>,
    ) -> Answer<dto::GetBucketLifecycleConfigurationOutput> {
        self.absent(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            Setting::Lifecycle,
        )
    }

    async fn get_object_lock_configuration(
        &self,
        asked: Asked<dto::GetObjectLockConfigurationInput>,
    ) -> Answer<dto::GetObjectLockConfigurationOutput> {
        self.absent(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            Setting::ObjectLock,
        )
    }

    async fn get_bucket_policy(
        &self,
        asked: Asked<dto::GetBucketPolicyInput>,
    ) -> Answer<dto::GetBucketPolicyOutput> {
        self.absent(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            Setting::Policy,
        )
    }

    async fn get_public_access_block(
        &self,
        asked: Asked<dto::GetPublicAccessBlockInput>,
    ) -> Answer<dto::GetPublicAccessBlockOutput> {
        self.absent(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            Setting::PublicAccessBlock,
        )
    }

    async fn get_bucket_replication(
        &self,
        asked: Asked<dto::GetBucketReplicationInput>,
    ) -> Answer<dto::GetBucketReplicationOutput> {
        self.absent(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            Setting::Replication,
        )
    }

    async fn get_bucket_tagging(
        &self,
        asked: Asked<dto::GetBucketTaggingInput>,
    ) -> Answer<dto::GetBucketTaggingOutput> {
        self.absent(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            Setting::Tags,
        )
    }

    async fn get_bucket_website(
        &self,
        asked: Asked<dto::GetBucketWebsiteInput>,
    ) -> Answer<dto::GetBucketWebsiteOutput> {
        self.absent(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            Setting::Website,
        )
    }

    async fn delete_bucket_cors(
        &self,
        asked: Asked<dto::DeleteBucketCorsInput>,
    ) -> Answer<dto::DeleteBucketCorsOutput> {
        bucket_cors::delete(self, asked).await
    }

    async fn delete_bucket_encryption(
        &self,
        asked: Asked<dto::DeleteBucketEncryptionInput>,
    ) -> Answer<dto::DeleteBucketEncryptionOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            dto::DeleteBucketEncryptionOutput {},
        )
    }

    async fn delete_bucket_lifecycle(
        &self,
        asked: Asked<dto::DeleteBucketLifecycleInput>,
    ) -> Answer<dto::DeleteBucketLifecycleOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            dto::DeleteBucketLifecycleOutput {},
        )
    }

    async fn delete_bucket_policy(
        &self,
        asked: Asked<dto::DeleteBucketPolicyInput>,
    ) -> Answer<dto::DeleteBucketPolicyOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            dto::DeleteBucketPolicyOutput {},
        )
    }

    async fn delete_bucket_replication(
        &self,
        asked: Asked<dto::DeleteBucketReplicationInput>,
    ) -> Answer<dto::DeleteBucketReplicationOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            dto::DeleteBucketReplicationOutput {},
        )
    }

    async fn delete_bucket_tagging(
        &self,
        asked: Asked<dto::DeleteBucketTaggingInput>,
    ) -> Answer<dto::DeleteBucketTaggingOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            dto::DeleteBucketTaggingOutput {},
        )
    }

    async fn delete_bucket_website(
        &self,
        asked: Asked<dto::DeleteBucketWebsiteInput>,
    ) -> Answer<dto::DeleteBucketWebsiteOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            dto::DeleteBucketWebsiteOutput {},
        )
    }

    async fn delete_public_access_block(
        &self,
        asked: Asked<dto::DeletePublicAccessBlockInput>,
    ) -> Answer<dto::DeletePublicAccessBlockOutput> {
        self.probe(
            &asked.input.bucket,
            asked.input.expected_bucket_owner.as_deref(),
            dto::DeletePublicAccessBlockOutput {},
        )
    }

    async fn get_object_retention(
        &self,
        asked: Asked<dto::GetObjectRetentionInput>,
    ) -> Answer<dto::GetObjectRetentionOutput> {
        self.probe(&asked.input.bucket, asked.input.expected_bucket_owner.as_deref(), ())?;
        Err(probes::no_lock())
    }

    async fn put_object_retention(
        &self,
        asked: Asked<dto::PutObjectRetentionInput>,
    ) -> Answer<dto::PutObjectRetentionOutput> {
        self.probe(&asked.input.bucket, asked.input.expected_bucket_owner.as_deref(), ())?;
        Err(probes::no_lock())
    }

    async fn get_object_legal_hold(
        &self,
        asked: Asked<dto::GetObjectLegalHoldInput>,
    ) -> Answer<dto::GetObjectLegalHoldOutput> {
        self.probe(&asked.input.bucket, asked.input.expected_bucket_owner.as_deref(), ())?;
        Err(probes::no_lock())
    }

    async fn put_object_legal_hold(
        &self,
        asked: Asked<dto::PutObjectLegalHoldInput>,
    ) -> Answer<dto::PutObjectLegalHoldOutput> {
        self.probe(&asked.input.bucket, asked.input.expected_bucket_owner.as_deref(), ())?;
        Err(probes::no_lock())
    }

    async fn put_object_lock_configuration(
        &self,
        asked: Asked<dto::PutObjectLockConfigurationInput>,
    ) -> Answer<dto::PutObjectLockConfigurationOutput> {
        self.probe(&asked.input.bucket, asked.input.expected_bucket_owner.as_deref(), ())?;
        Err(probes::no_versioning())
    }
}
