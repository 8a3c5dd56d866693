//! Puts together the protocol library, the credentials and the face.

use std::sync::Arc;

use http::{HeaderMap, Method, Uri};
use larder_objects::Objects;
use larder_types::{BucketName, CorsRules};
use s3s::auth::{S3Auth, SecretKey};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::S3ServiceBuilder;
use s3s::validation::NameValidation;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::auth::gate::{Examiner, Gate, Gatekeeper};
use crate::auth::root_keys::RootKeys;
use crate::auth::version_2;
use crate::compat::unread::UnreadRequests;
use crate::errors;
use crate::limits::{
    CLOCK_SKEW_MAX_S, FORM_AGE_S_MAX, FORM_FILE_BYTES_MAX, FORM_HEAD_BYTES_MAX, XML_BYTES_MAX,
};
use crate::neighbours::Neighbours;
use crate::ops::face::Face;
use crate::options::{Domains, FaceOptions, OptionsError};

/// Looks up the CORS rules of a bucket, in memory.
type Cors = dyn Fn(&BucketName) -> Option<CorsRules> + Send + Sync;

/// Makes the protocol library for one HTML form: its gate learns when the key is asked for.
type FormLibrary = dyn Fn(Arc<Gate>) -> s3s::service::S3Service + Send + Sync;

/// The S3 service: answers requests from a store. Cheap to clone.
#[derive(Clone)]
pub struct S3Service {
    pub(crate) library: s3s::service::S3Service,
    /// Verifies signatures, and does nothing else.
    pub(crate) examiner: s3s::service::S3Service,
    /// The same of paths that are no bucket's.
    pub(crate) examiner_of_paths: s3s::service::S3Service,
    forms: Option<Arc<FormLibrary>>,
    pub(crate) version_2: bool,
    /// See [`FaceOptions::region`].
    pub(crate) region: String,
    root: RootKeys,
    pub(crate) domains: Domains,
    pub(crate) cors: Arc<Cors>,
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
        let domains = Domains::new(options.domains)?;
        let region = options.region;
        let rules = Arc::clone(&store);
        let cors: Arc<Cors> = Arc::new(move |bucket| rules.cors(bucket));
        let face = Face::new(store, region.clone());
        let unchecked = library(face.clone(), &domains, CLOCK_SKEW_MAX_S).build();
        let mut checked = library(face.clone(), &domains, CLOCK_SKEW_MAX_S);
        checked.set_auth(RootAuth { root: root.clone(), gate: None });
        checked.set_access(Gatekeeper);
        checked.set_route(UnreadRequests::new(unchecked));
        let examining = || {
            let mut examiner = library(face.clone(), &domains, CLOCK_SKEW_MAX_S);
            examiner.set_auth(RootAuth { root: root.clone(), gate: None });
            examiner.set_access(Examiner);
            examiner
        };
        let examiner = examining().build();
        let mut of_paths = examining();
        of_paths.set_validation(AnyName);
        let examiner_of_paths = of_paths.build();
        let forms: Option<Arc<FormLibrary>> = match options.forms {
            true => Some(Arc::new(form_library(face, domains.clone(), root.clone()))),
            false => None,
        };
        let version_2 = options.version_2;
        let library = checked.build();
        let neighbours = None;
        Ok(Self {
            library,
            examiner,
            examiner_of_paths,
            forms,
            version_2,
            region,
            root,
            domains,
            cors,
            neighbours,
        })
    }

    /// The protocol library for an HTML form.
    ///
    /// # Errors
    /// `MethodNotAllowed` if forms are switched off.
    pub(crate) fn forms(&self, gate: Arc<Gate>) -> S3Result<s3s::service::S3Service> {
        let forms = self.forms.as_ref().ok_or_else(|| {
            errors::error(S3ErrorCode::MethodNotAllowed, "Uploads by HTML forms are switched off.")
        })?;
        Ok(forms(gate))
    }

    /// Verifies a form's signature of version 2, if it has one.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`
    pub(crate) fn check_form(&self, fields: &[(String, String)]) -> S3Result<()> {
        version_2::check_form(fields, &self.root)
    }

    /// Verifies a query's signature of version 2, if it has one.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`
    pub(crate) fn check_url(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> S3Result<()> {
        match self.version_2 {
            true => version_2::check_url((method, uri, headers), &self.domains, &self.root),
            false => Ok(()),
        }
    }

    /// Notes that a request of this user was let in.
    pub(crate) fn used_by(&self, access_key: &str) {
        self.root.used(access_key);
    }

    /// Has requests of uploads that others have begun handed on to them.
    #[must_use]
    pub fn beside(mut self, neighbours: Arc<dyn Neighbours>) -> Self {
        self.neighbours = Some(neighbours);
        self
    }
}

/// The protocol library over a face, with all but authentication.
fn library<O: Objects>(face: Face<O>, domains: &Domains, skew_s_max: u32) -> S3ServiceBuilder {
    let mut builder = S3ServiceBuilder::new(face);
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(library_config(skew_s_max)))));
    builder.set_validation(BucketNames);
    if !domains.are_none() {
        builder.set_host(domains.clone());
    }
    builder
}

/// The library over a face for HTML forms. Their policy bounds their age: their date only says with which day's key they
/// are signed.
fn form_library<O: Objects>(
    face: Face<O>,
    domains: Domains,
    root: RootKeys,
) -> impl Fn(Arc<Gate>) -> s3s::service::S3Service {
    move |gate| {
        let mut library = library(face.clone(), &domains, FORM_AGE_S_MAX);
        library.set_auth(RootAuth { root: root.clone(), gate: Some(gate) });
        library.set_access(Gatekeeper);
        library.build()
    }
}

fn library_config(skew_s_max: u32) -> S3Config {
    let mut config = S3Config::default();
    config.xml_max_body_size = XML_BYTES_MAX;
    config.post_object_max_file_size = FORM_FILE_BYTES_MAX;
    config.form_max_field_size = FORM_HEAD_BYTES_MAX;
    config.form_max_fields_size = FORM_HEAD_BYTES_MAX;
    config.presigned_url_max_skew_time_secs = skew_s_max;
    config
}

struct RootAuth {
    root: RootKeys,
    /// Of a form.
    gate: Option<Arc<Gate>>,
}

#[async_trait::async_trait]
impl S3Auth for RootAuth {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let Some(secret_key) = self.root.secret_of(access_key) else {
            return Err(S3Error::with_message(
                S3ErrorCode::InvalidAccessKeyId,
                "The AWS Access Key Id you provided does not exist in our records.",
            ));
        };
        if let Some(gate) = &self.gate {
            gate.ask_key();
        }
        Ok(SecretKey::from(secret_key))
    }
}

/// Larder's rules for bucket names, and that every label of a name can stand in a domain.
struct BucketNames;

impl NameValidation for BucketNames {
    fn validate_bucket_name(&self, name: &str) -> bool {
        BucketName::new(name).is_ok() && !name.contains(".-") && !name.contains("-.")
    }
}

/// Takes any name, for paths that are no bucket's.
struct AnyName;

impl NameValidation for AnyName {
    fn validate_bucket_name(&self, _: &str) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buckets_labels_can_stand_in_a_domain() {
        for (name, valid) in [("a.b-c", true), ("a-.b", false), ("a.-b", false), ("a..b", false)] {
            assert_eq!(BucketNames.validate_bucket_name(name), valid, "{name}");
        }
    }
}
