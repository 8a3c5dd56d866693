//! The operations of a request.

/// The thing that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// An operation on a bucket, or on an object.
    S3(S3Operation),
    /// The operation that names no bucket.
    ListBuckets,
    /// An upload by an HTML form.
    PostObject,
    /// The question of a browser whether a page of another origin may ask.
    Preflight,
    /// A question for more than objects, whatever its method.
    Admin(Question),
    /// Nothing that any operation does.
    Unknown,
}

/// A question of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// The state of the store or its cluster.
    Status,
    /// The same for MinIO's client.
    Info,
    /// Metrics, as MinIO's client asks and as it has Prometheus ask.
    Metrics,
}

impl Question {
    /// No bucket's name begins with `_`, and a bucket `minio` has MinIO's paths for keys.
    pub(super) fn of(path: &str, has_minio: impl FnOnce() -> bool) -> Option<Self> {
        let asked = match path {
            "/_larder/v1/status" => return Some(Self::Status),
            "/minio/admin/v3/info" => Self::Info,
            "/minio/v2/metrics/cluster" | "/minio/v2/metrics/node" => Self::Metrics,
            _ => return None,
        };
        (!has_minio()).then_some(asked)
    }
}

/// An operation on a bucket, or on an object. A setting is a sub-resource's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum S3Operation {
    AbortMultipartUpload,
    CompleteMultipartUpload,
    CopyObject,
    CreateBucket,
    CreateMultipartUpload,
    DeleteBucket,
    DeleteBucketCors,
    DeleteBucketSetting(&'static str),
    DeleteObject,
    DeleteObjectTagging,
    DeleteObjects,
    GetBucketCors,
    GetBucketLocation,
    GetBucketSetting(&'static str),
    GetObject,
    GetObjectAttributes,
    GetObjectSetting(&'static str),
    GetObjectTagging,
    HeadBucket,
    HeadObject,
    ListMultipartUploads,
    ListObjectVersions,
    ListObjects,
    ListObjectsV2,
    ListParts,
    PutBucketCors,
    PutBucketSetting(&'static str),
    PutObject,
    PutObjectSetting(&'static str),
    PutObjectTagging,
    UploadPart,
    UploadPartCopy,
}

impl S3Operation {
    /// S3's name. Settings are counted together but for CORS: nobody has any other.
    fn name(self) -> &'static str {
        match self {
            Self::AbortMultipartUpload => "AbortMultipartUpload",
            Self::CompleteMultipartUpload => "CompleteMultipartUpload",
            Self::CopyObject => "CopyObject",
            Self::CreateBucket => "CreateBucket",
            Self::CreateMultipartUpload => "CreateMultipartUpload",
            Self::DeleteBucket => "DeleteBucket",
            Self::DeleteBucketCors => "DeleteBucketCors",
            Self::DeleteBucketSetting(_) => "DeleteBucketSetting",
            Self::DeleteObject => "DeleteObject",
            Self::DeleteObjectTagging => "DeleteObjectTagging",
            Self::DeleteObjects => "DeleteObjects",
            Self::GetBucketCors => "GetBucketCors",
            Self::GetBucketLocation => "GetBucketLocation",
            Self::GetBucketSetting(_) => "GetBucketSetting",
            Self::GetObject => "GetObject",
            Self::GetObjectAttributes => "GetObjectAttributes",
            Self::GetObjectSetting(_) => "GetObjectSetting",
            Self::GetObjectTagging => "GetObjectTagging",
            Self::HeadBucket => "HeadBucket",
            Self::HeadObject => "HeadObject",
            Self::ListMultipartUploads => "ListMultipartUploads",
            Self::ListObjectVersions => "ListObjectVersions",
            Self::ListObjects => "ListObjects",
            Self::ListObjectsV2 => "ListObjectsV2",
            Self::ListParts => "ListParts",
            Self::PutBucketCors => "PutBucketCors",
            Self::PutBucketSetting(_) => "PutBucketSetting",
            Self::PutObject => "PutObject",
            Self::PutObjectSetting(_) => "PutObjectSetting",
            Self::PutObjectTagging => "PutObjectTagging",
            Self::UploadPart => "UploadPart",
            Self::UploadPartCopy => "UploadPartCopy",
        }
    }

    /// True if it is about an upload that has begun.
    pub(crate) fn is_of_upload(self) -> bool {
        matches!(
            self,
            Self::AbortMultipartUpload
                | Self::CompleteMultipartUpload
                | Self::ListParts
                | Self::UploadPart
                | Self::UploadPartCopy
        )
    }
}

impl Operation {
    /// S3's name of the operation, for counts and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::S3(operation) => operation.name(),
            Self::ListBuckets => "ListBuckets",
            Self::PostObject => "PostObject",
            Self::Preflight => "Preflight",
            Self::Admin(Question::Status) => "AdminStatus",
            Self::Admin(Question::Info) => "AdminInfo",
            Self::Admin(Question::Metrics) => "AdminMetrics",
            Self::Unknown => "Unknown",
        }
    }
}
