//! The settings of a service and of the server before it, and how they are checked.

use std::sync::Arc;
use std::time::Duration;

use http::header::HOST;
use http::{HeaderMap, Uri};

use crate::limits::{
    BODY_BUDGET_BYTES, CONNECTIONS_MAX, DRAIN_MAX, IDLE_BEFORE_CLOSED, REQUESTS_MAX, WAITING_MAX,
};

/// The region of a server whose operator named none. It is the oldest, which has no location constraint (S3).
pub const DEFAULT_REGION: &str = "us-east-1";

/// The options of the S3 service.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// Region reported as the location of buckets. Requests signed for any region are accepted whose name is of `a-z`,
    /// `0-9` and `-`; others get an error that names this one. `None`: [`DEFAULT_REGION`], and a bucket's location is
    /// the one that its creator requested.
    pub region: Option<String>,
    /// Domains below which a bucket's name may stand (`bucket.domain`); path style always works.
    pub domains: Vec<String>,
    /// Takes URLs that are presigned by version 2, which signs no parameters of lists.
    pub version_2: bool,
    /// Takes uploads by HTML forms.
    pub forms: bool,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self { region: None, domains: Vec::new(), version_2: false, forms: true }
    }
}

impl GatewayOptions {
    /// Refuses settings with which no service can be made.
    ///
    /// # Errors
    /// [`OptionsError`] names the setting that does not do.
    pub fn check(&self) -> Result<(), OptionsError> {
        if !is_region(self.region()) {
            return Err(OptionsError::Region(self.region().to_owned()));
        }
        Domains::new(self.domains.clone()).map(drop)
    }

    /// The region that the server is said to be in.
    #[must_use]
    pub fn region(&self) -> &str {
        self.region.as_deref().unwrap_or(DEFAULT_REGION)
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
    #[error(
        "domain {0:?} must have labels of letters, digits or '-', the last not only digits, without port and scheme"
    )]
    Domain(String),
}

/// Limits of one server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Connections open at once. One more takes the place of the one that is idle longest; if none is, it is answered
    /// 503 and closed.
    pub connections_max: usize,
    /// The same of one client: an address, or the first 64 bits of one of IPv6.
    pub connections_of_client_max: usize,
    /// Time that a connection must have been idle before another may take its place.
    pub idle_before_closed: Duration,
    /// Requests worked on at once; more wait.
    pub requests_max: usize,
    /// Requests that wait at once; one more is answered `SlowDown`.
    pub waiting_max: usize,
    /// Bytes of request bodies held in memory at once.
    pub body_budget_bytes: usize,
    /// The time that requests have to finish after the shutdown signal.
    pub drain_max: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            connections_of_client_max: CONNECTIONS_MAX / 2,
            idle_before_closed: IDLE_BEFORE_CLOSED,
            requests_max: REQUESTS_MAX,
            waiting_max: WAITING_MAX,
            body_budget_bytes: BODY_BUDGET_BYTES,
            drain_max: DRAIN_MAX,
        }
    }
}

impl ServerOptions {
    /// The defaults in a process that may open so many files: no more than half of them are connections, the rest is for
    /// disks and for other servers.
    #[must_use]
    pub fn within_files(files: u64) -> Self {
        let half = usize::try_from(files / 2).unwrap_or(usize::MAX);
        let connections_max = half.clamp(2, CONNECTIONS_MAX);
        let connections_of_client_max = connections_max / 2;
        Self { connections_max, connections_of_client_max, ..Self::default() }
    }
}

/// Domains for virtual-host style, in lower case. A host that is none of them, nor below one, is
/// taken as path style, so that a server can also be reached by address or by another name.
#[derive(Debug, Clone)]
pub(crate) struct Domains(Arc<[String]>);

impl Domains {
    pub(crate) fn new(domains: Vec<String>) -> Result<Self, OptionsError> {
        for domain in &domains {
            // A host below such a domain can be an address, whose bucket stands in the path.
            let ends_an_address = domain.rsplit('.').next().is_some_and(is_number);
            if domain.is_empty() || ends_an_address || !domain.split('.').all(is_label) {
                return Err(OptionsError::Domain(domain.clone()));
            }
        }
        let mut domains: Vec<String> = domains.iter().map(|d| d.to_ascii_lowercase()).collect();
        // The longest first: a domain may lie below another.
        domains.sort_by_key(|domain| std::cmp::Reverse(domain.len()));
        Ok(Self(domains.into()))
    }

    /// No domains.
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
        // DNS writes a name that is whole with a dot behind it.
        let name = name.strip_suffix('.').unwrap_or(name);
        self.0.iter().find_map(|domain| {
            let cut = name.len().checked_sub(domain.len() + 1)?;
            let (bucket, rest) = (name.get(..cut)?, name.get(cut..)?);
            let below = rest.starts_with('.') && rest[1..].eq_ignore_ascii_case(domain);
            (below && !bucket.is_empty()).then_some(bucket)
        })
    }
}

fn is_number(label: &str) -> bool {
    label.bytes().all(|byte| byte.is_ascii_digit())
}

/// True for a name that a region may have.
pub(crate) fn is_region(name: &str) -> bool {
    is_label(name) && !name.bytes().any(|b| b.is_ascii_uppercase())
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
        assert_eq!(domains.bucket_of("photos.s3.:9000"), Some("photos"));
        for host in ["com", "s3", "127.0.0.1:9000", ".s3", "xs3", "localhost", ""] {
            assert_eq!(domains.bucket_of(host), None, "{host}");
        }
    }

    #[test]
    fn domains_that_do_not_do_are_named() {
        for domain in ["", "a..b", "http://x", "x:9000", "0.1", "example.1"] {
            let refused = Domains::new(vec![domain.into()]).unwrap_err();
            assert_eq!(refused, OptionsError::Domain(domain.into()));
        }
    }
}
