//! Puts together the protocol library, the credentials and the face.

use std::fmt;
use std::sync::Arc;

use http::header::HOST;
use http::{HeaderMap, Method, Uri};
use larder_objects::Objects;
use larder_types::{BucketName, CorsRules};
use s3s::auth::{S3Auth, SecretKey};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::host::{S3Host, VirtualHost};
use s3s::service::S3ServiceBuilder;
use s3s::validation::NameValidation;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::face::Face;
use crate::form::Field;
use crate::gate::{Examiner, Gate, Gatekeeper};
use crate::limits::{
    CLOCK_SKEW_MAX_S, FORM_AGE_S_MAX, FORM_FILE_BYTES_MAX, FORM_HEAD_BYTES_MAX, XML_BYTES_MAX,
};
use crate::neighbours::Neighbours;
use crate::root_keys::RootKeys;
use crate::unread::UnreadRequests;
use crate::{errors, version_2};

/// The root user's keys.
#[derive(Clone)]
pub struct Credentials {
    /// Access key id: 3 to 128 letters, digits or `_`, `-`, `.`.
    pub access_key: String,
    /// Secret key: at least 8 characters. Never printed.
    pub secret_key: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Refuses keys with which no request can be signed.
    ///
    /// # Errors
    /// [`OptionsError`] names the key that does not do.
    pub fn check(&self) -> Result<(), OptionsError> {
        check_credentials(self)
    }
}

/// The options of the S3 service.
#[derive(Debug, Clone)]
pub struct FaceOptions {
    /// Region that buckets are said to be in. Requests signed for any region are accepted whose name is of `a-z`, `0-9` and `-`; others
    /// are told this one.
    pub region: String,
    /// Domains below which a bucket's name may stand (`bucket.domain`); path style always works.
    pub domains: Vec<String>,
    /// Takes URLs that are presigned by version 2, which signs no parameters of lists.
    pub version_2: bool,
    /// Takes uploads by HTML forms.
    pub forms: bool,
}

impl Default for FaceOptions {
    fn default() -> Self {
        let region = "us-east-1".to_owned();
        Self { region, domains: Vec::new(), version_2: false, forms: true }
    }
}

impl FaceOptions {
    /// Refuses settings with which no service can be made.
    ///
    /// # Errors
    /// [`OptionsError`] names the setting that does not do.
    pub fn check(&self) -> Result<(), OptionsError> {
        if !is_label(&self.region) || self.region.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(OptionsError::Region(self.region.clone()));
        }
        Domains::new(self.domains.clone()).map(drop)
    }
}

/// Errors with which a service cannot be made: fix the setting that is named.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The access key cannot stand in a credential scope.
    #[error("the access key must have 3 to 128 letters, digits, '_', '-' or '.'")]
    AccessKey,
    /// The secret key is too short.
    #[error("the secret key must have at least 8 characters")]
    SecretKey,
    /// The region cannot stand in a credential scope.
    #[error("region {0:?} must have 1 to 63 lower-case letters, digits or '-'")]
    Region(String),
    /// Not a domain.
    #[error("domain {0:?} must have labels of letters, digits or '-', without port and scheme")]
    Domain(String),
}

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
        let mut examiner = library(face.clone(), &domains, CLOCK_SKEW_MAX_S);
        examiner.set_auth(RootAuth { root: root.clone(), gate: None });
        examiner.set_access(Examiner);
        let examiner = examiner.build();
        let forms: Option<Arc<FormLibrary>> = match options.forms {
            true => Some(Arc::new(form_library(face, domains.clone(), root.clone()))),
            false => None,
        };
        let version_2 = options.version_2;
        let library = checked.build();
        let neighbours = None;
        Ok(Self { library, examiner, forms, version_2, region, root, domains, cors, neighbours })
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
    pub(crate) fn check_form(&self, fields: &[Field]) -> S3Result<()> {
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
    if !domains.0.is_empty() {
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

fn check_credentials(root: &Credentials) -> Result<(), OptionsError> {
    let key = &root.access_key;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    if !(3..=128).contains(&key.len()) || !key.bytes().all(plain) {
        return Err(OptionsError::AccessKey);
    }
    if root.secret_key.len() < 8 {
        return Err(OptionsError::SecretKey);
    }
    Ok(())
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

/// Domains for virtual-host style, in lower case. A host that is none of them, nor below one, is
/// taken as path style, so that a server can also be reached by address or by another name.
#[derive(Debug, Clone)]
pub(crate) struct Domains(Arc<[String]>);

impl Domains {
    pub(crate) fn new(domains: Vec<String>) -> Result<Self, OptionsError> {
        for domain in &domains {
            if domain.is_empty() || !domain.split('.').all(is_label) {
                return Err(OptionsError::Domain(domain.clone()));
            }
        }
        let mut domains: Vec<String> = domains.iter().map(|d| d.to_ascii_lowercase()).collect();
        // The longest first: a domain may lie below another.
        domains.sort_by_key(|domain| std::cmp::Reverse(domain.len()));
        Ok(Self(domains.into()))
    }

    /// No domains: path style only.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self(Arc::new([]))
    }

    /// The bucket that a request for one is about.
    pub(crate) fn bucket_in<'r>(&self, headers: &'r HeaderMap, uri: &'r Uri) -> &'r str {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let in_path = || uri.path().trim_matches('/');
        host.and_then(|host| self.bucket_of(host)).unwrap_or_else(in_path)
    }

    /// The bucket named by a `Host` header, if it names one.
    pub(crate) fn bucket_of<'h>(&self, host: &'h str) -> Option<&'h str> {
        let name = host.split_once(':').map_or(host, |(name, _)| name);
        self.0.iter().find_map(|domain| {
            let cut = name.len().checked_sub(domain.len() + 1)?;
            let (bucket, rest) = (name.get(..cut)?, name.get(cut..)?);
            let below = rest.starts_with('.') && rest[1..].eq_ignore_ascii_case(domain);
            (below && !bucket.is_empty()).then_some(bucket)
        })
    }
}

impl S3Host for Domains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let parsed = VirtualHost::new(host);
        Ok(match self.bucket_of(host) {
            Some(bucket) => parsed.with_bucket(bucket),
            None => parsed,
        })
    }
}

fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_stand_below_a_domain_only() {
        let domains =
            Domains::new(vec!["com".into(), "S3.example.com".into(), "s3".into()]).unwrap();
        assert_eq!(domains.bucket_of("photos.s3.EXAMPLE.com:9000"), Some("photos"));
        assert_eq!(domains.bucket_of("my.photos.s3"), Some("my.photos"));
        for host in ["com", "s3", "127.0.0.1:9000", ".s3", "xs3", "localhost", ""] {
            assert_eq!(domains.bucket_of(host), None, "{host}");
        }
    }

    #[test]
    fn settings_that_do_not_do_are_named() {
        for domain in ["", "a..b", "http://x", "x:9000"] {
            let refused = Domains::new(vec![domain.into()]).unwrap_err();
            assert_eq!(refused, OptionsError::Domain(domain.into()));
        }
        let keys = |access: &str, secret: &str| Credentials {
            access_key: access.into(),
            secret_key: secret.into(),
        };
        assert_eq!(check_credentials(&keys("a/b", "12345678")), Err(OptionsError::AccessKey));
        assert_eq!(check_credentials(&keys("abc", "1234567")), Err(OptionsError::SecretKey));
        assert_eq!(check_credentials(&keys("abc", "12345678")), Ok(()));
    }

    #[test]
    fn a_buckets_labels_can_stand_in_a_domain() {
        for (name, valid) in [("a.b-c", true), ("a-.b", false), ("a.-b", false), ("a..b", false)] {
            assert_eq!(BucketNames.validate_bucket_name(name), valid, "{name}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let keys = Credentials { access_key: "abc".into(), secret_key: "hush-hush".into() };
        assert!(!format!("{keys:?}").contains("hush"));
    }
}
