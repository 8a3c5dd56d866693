//! URLs of backends.

use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::failed;
use crate::error::PackError;
use crate::limits::{BACKEND_RETRY_MAX, BACKEND_SILENCE_MAX};

const KNOWN: &str = "file:///DIRECTORY or s3://BUCKET/PREFIX?endpoint=URL&region=NAME";

/// What an `s3:` URL says.
#[derive(Debug, PartialEq, Eq)]
struct S3Url<'a> {
    bucket: &'a str,
    prefix: &'a str,
    endpoint: Option<&'a str>,
    region: Option<&'a str>,
}

pub(super) fn open(url: &str) -> Result<Arc<dyn ObjectStore>, PackError> {
    if let Some(dir) = url.strip_prefix("file://") {
        return open_dir(url, dir);
    }
    let rest = url.strip_prefix("s3://").ok_or_else(|| refused(url, KNOWN))?;
    open_s3(url, &parse_s3(url, rest)?)
}

fn open_dir(url: &str, dir: &str) -> Result<Arc<dyn ObjectStore>, PackError> {
    if !dir.starts_with('/') || dir.contains('?') {
        return Err(refused(url, "an absolute path, as in file:///var/blobs"));
    }
    larder_env::RealDisk::create(dir)?;
    let store = LocalFileSystem::new_with_prefix(dir);
    let store = store.map_err(|error| failed("open", dir, &error))?;
    Ok(Arc::new(store.with_fsync(true)))
}

fn open_s3(url: &str, parsed: &S3Url<'_>) -> Result<Arc<dyn ObjectStore>, PackError> {
    // Whoever uses TLS in this process uses the same library; the first to say so counts.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig { retry_timeout: BACKEND_RETRY_MAX, ..RetryConfig::default() };
    let client =
        ClientOptions::new().with_timeout_disabled().with_read_timeout(BACKEND_SILENCE_MAX);
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(parsed.bucket)
        .with_retry(retry)
        .with_client_options(client);
    if let Some(region) = parsed.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = parsed.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    let store = builder.build().map_err(|error| failed("open", url, &error))?;
    Ok(match parsed.prefix {
        "" => Arc::new(store),
        prefix => Arc::new(PrefixStore::new(store, Path::from(prefix))),
    })
}

fn parse_s3<'a>(url: &str, rest: &'a str) -> Result<S3Url<'a>, PackError> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    let mut parsed =
        S3Url { bucket, prefix: prefix.trim_end_matches('/'), endpoint: None, region: None };
    if bucket.is_empty() {
        return Err(refused(url, "a bucket, as in s3://bucket/prefix"));
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("endpoint", endpoint)) => parsed.endpoint = Some(endpoint),
            Some(("region", region)) => parsed.region = Some(region),
            _ => return Err(refused(url, "endpoint and region alone behind the question mark")),
        }
    }
    Ok(parsed)
}

fn refused(url: &str, remedy: &str) -> PackError {
    PackError::Config { what: "the backend", found: url.to_owned(), remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<S3Url<'_>, PackError> {
        parse_s3(url, url.strip_prefix("s3://").unwrap())
    }

    #[test]
    fn an_s3_url_names_bucket_prefix_and_endpoint() {
        let parsed = parse("s3://b/a/c/?endpoint=http://127.0.0.1:9000&region=eu").unwrap();
        let endpoint = Some("http://127.0.0.1:9000");
        assert_eq!(parsed, S3Url { bucket: "b", prefix: "a/c", endpoint, region: Some("eu") });
        let bare = S3Url { bucket: "b", prefix: "", endpoint: None, region: None };
        assert_eq!(parse("s3://b").unwrap(), bare);
    }

    #[test]
    fn other_urls_are_refused() {
        for url in ["s3:///x", "s3://b?secret=1"] {
            assert!(matches!(parse(url), Err(PackError::Config { .. })), "{url}");
        }
        for url in ["ftp://x", "b", "file://relative", "file:///x?y"] {
            assert!(matches!(open(url), Err(PackError::Config { .. })), "{url}");
        }
    }
}
