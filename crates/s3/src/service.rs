//! Puts together the credentials and the operations over a store.

use std::sync::Arc;

use larder_objects::Objects;
use larder_types::{BucketName, CorsRules};

use crate::auth::root_keys::RootKeys;
use crate::auth::signature::Signatures;
use crate::forwarding::UploadForwarder;
use crate::ops::Operations;
use crate::ops::gateway::Gateway;
use crate::options::{Domains, GatewayOptions, OptionsError};

/// Looks up the CORS rules of a bucket, in memory.
type Cors = dyn Fn(&BucketName) -> Option<CorsRules> + Send + Sync;

/// The S3 service: answers requests from a store. Cheap to clone.
#[derive(Clone)]
pub struct S3Service {
    /// Answers requests that were let in.
    pub(crate) operations: Arc<dyn Operations>,
    pub(crate) signatures: Signatures,
    /// See [`GatewayOptions::forms`].
    pub(crate) forms: bool,
    pub(crate) cors: Arc<Cors>,
    has_bucket: Arc<dyn Fn(&BucketName) -> bool + Send + Sync>,
    pub(crate) forwarder: Option<Arc<dyn UploadForwarder>>,
}

impl S3Service {
    /// A service over `store` for one user.
    ///
    /// # Errors
    /// [`OptionsError`] names the setting that does not do.
    pub fn new<O: Objects>(
        store: Arc<O>,
        root: impl Into<RootKeys>,
        options: GatewayOptions,
    ) -> Result<Self, OptionsError> {
        let root: RootKeys = root.into();
        root.check()?;
        options.check()?;
        let region = options.region().to_owned();
        let GatewayOptions { region: named, domains, version_2, forms } = options;
        let domains = Domains::new(domains)?;
        let rules = Arc::clone(&store);
        let cors: Arc<Cors> = Arc::new(move |bucket| rules.cors(bucket));
        let buckets = Arc::clone(&store);
        let has_bucket = Arc::new(move |bucket: &BucketName| buckets.has_bucket(bucket));
        let operations: Arc<dyn Operations> = Arc::new(Gateway::new(store, named));
        let signatures = Signatures { root, domains, version_2, region };
        Ok(Self { operations, signatures, forms, cors, has_bucket, forwarder: None })
    }

    /// The domains below which buckets' names stand.
    pub(crate) fn domains(&self) -> &Domains {
        &self.signatures.domains
    }

    /// True if there is a bucket of the name below which MinIO's clients ask for more than objects.
    pub(crate) fn has_minio(&self) -> bool {
        self.has_bucket("minio")
    }

    /// True if there is a bucket of this name.
    pub(crate) fn has_bucket(&self, name: &str) -> bool {
        BucketName::new(name).is_ok_and(|name| (self.has_bucket)(&name))
    }

    /// Notes that a request of this user was let in.
    pub(crate) fn used_by(&self, access_key: &str) {
        self.signatures.root.used(access_key);
    }

    /// Has requests of uploads that others have begun handed on to them.
    #[must_use]
    pub fn with_forwarder(mut self, forwarder: Arc<dyn UploadForwarder>) -> Self {
        self.forwarder = Some(forwarder);
        self
    }
}
