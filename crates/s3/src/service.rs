//! Puts together the protocol library, the credentials and the face.

use std::sync::Arc;

use larder_objects::{ObjectError, Objects};
use larder_types::{BucketName, CorsRules};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::S3ServiceBuilder;
use s3s::validation::NameValidation;

use crate::auth::root_keys::RootKeys;
use crate::auth::signature::Signatures;
use crate::limits::XML_BYTES_MAX;
use crate::neighbours::Neighbours;
use crate::ops::Operations;
use crate::ops::face::Face;
use crate::options::{Domains, FaceOptions, OptionsError};

/// Looks up the CORS rules of a bucket, in memory.
type Cors = dyn Fn(&BucketName) -> Option<CorsRules> + Send + Sync;

/// The S3 service: answers requests from a store. Cheap to clone.
#[derive(Clone)]
pub struct S3Service {
    /// Answers requests that were let in, of the operations that are called directly.
    pub(crate) operations: Arc<dyn Operations>,
    /// Answers all others that were let in. It checks no signature, and gets none.
    pub(crate) library: s3s::service::S3Service,
    pub(crate) signatures: Signatures,
    /// See [`FaceOptions::forms`].
    pub(crate) forms: bool,
    pub(crate) cors: Arc<Cors>,
    has_bucket: Arc<dyn Fn(&BucketName) -> bool + Send + Sync>,
    pub(crate) neighbours: Option<Arc<dyn Neighbours>>,
}

impl S3Service {
    /// A service over `store` for one user.
    ///
    /// # Errors
    /// [`OptionsError`] names the setting that does not do.
    pub fn new<O: Objects>(
        store: Arc<O>,
        root: impl Into<RootKeys>,
        options: FaceOptions,
    ) -> Result<Self, OptionsError> {
        let root: RootKeys = root.into();
        root.check()?;
        options.check()?;
        let FaceOptions { region, domains, version_2, forms } = options;
        let domains = Domains::new(domains)?;
        let rules = Arc::clone(&store);
        let cors: Arc<Cors> = Arc::new(move |bucket| rules.cors(bucket));
        let buckets = Arc::clone(&store);
        let has_bucket = Arc::new(move |bucket: &BucketName| {
            !matches!(buckets.bucket(bucket), Err(ObjectError::NoSuchBucket))
        });
        let face = Face::new(store, region.clone());
        let operations: Arc<dyn Operations> = Arc::new(face.clone());
        let library = library(face, &domains);
        let signatures = Signatures { root, domains, version_2, region };
        Ok(Self { operations, library, signatures, forms, cors, has_bucket, neighbours: None })
    }

    /// The domains below which buckets' names stand.
    pub(crate) fn domains(&self) -> &Domains {
        &self.signatures.domains
    }

    /// True if there is a bucket of the name below which MinIO's clients ask for more than objects.
    pub(crate) fn has_minio(&self) -> bool {
        BucketName::new("minio").is_ok_and(|name| (self.has_bucket)(&name))
    }

    /// Notes that a request of this user was let in.
    pub(crate) fn used_by(&self, access_key: &str) {
        self.signatures.root.used(access_key);
    }

    /// Has requests of uploads that others have begun handed on to them.
    #[must_use]
    pub fn beside(mut self, neighbours: Arc<dyn Neighbours>) -> Self {
        self.neighbours = Some(neighbours);
        self
    }
}

/// The protocol library over a face.
fn library<O: Objects>(face: Face<O>, domains: &Domains) -> s3s::service::S3Service {
    let mut builder = S3ServiceBuilder::new(face);
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(library_config()))));
    builder.set_validation(BucketNames);
    if !domains.are_none() {
        builder.set_host(domains.clone());
    }
    builder.build()
}

fn library_config() -> S3Config {
    let mut config = S3Config::default();
    config.xml_max_body_size = XML_BYTES_MAX;
    config
}

/// Larder's rules for bucket names.
struct BucketNames;

impl NameValidation for BucketNames {
    fn validate_bucket_name(&self, name: &str) -> bool {
        BucketName::new(name).is_ok()
    }
}
