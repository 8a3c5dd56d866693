//! URLs of backends.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::HttpConnector;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::failed;
use super::http::GatedConnector;
use super::request_scheduler::RequestScheduler;
use super::streamed::{Signs, Streams};
use super::uplink::Uplink;
use super::upload::Numbered;
use crate::error::PackError;
use crate::limits::{
    AZURE_PUT_BYTES_MAX, BACKEND_RETRY_MAX, GOOGLE_PUT_BYTES_MAX, S3_PUT_BYTES_MAX,
};

const KNOWN: &str = "file:///DIRECTORY, s3://BUCKET/PREFIX?endpoint=URL&region=NAME, \
     gs://BUCKET/PREFIX?endpoint=URL or az://CONTAINER/PREFIX?account=NAME&endpoint=URL";

/// The kind of a cloud's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cloud {
    S3,
    Google,
    Azure,
}

impl Cloud {
    const ALL: [Self; 3] = [Self::S3, Self::Google, Self::Azure];

    fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3://",
            Self::Google => "gs://",
            Self::Azure => "az://",
        }
    }

    /// Names of the options that may stand behind the question mark.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::S3 => &["endpoint", "region"],
            Self::Google => &["endpoint"],
            Self::Azure => &["account", "endpoint"],
        }
    }
}

/// The fields of the URL of a cloud's store.
#[derive(Debug, PartialEq, Eq)]
struct CloudUrl<'a> {
    cloud: Cloud,
    /// Of Azure, a container.
    bucket: &'a str,
    prefix: &'a str,
    endpoint: Option<&'a str>,
    region: Option<&'a str>,
    account: Option<&'a str>,
}

/// A store that a URL named.
pub(super) struct Opened {
    pub(super) store: Arc<dyn ObjectStore>,
    /// A cloud's.
    pub(super) numbered: Option<Numbered>,
    /// The way it takes requests whose bodies are read from files, if it does.
    pub(super) streams: Option<Streams>,
    /// Where it is, if it is a directory.
    pub(super) dir: Option<PathBuf>,
}

/// The store that a URL names. One that is no directory is asked over HTTP through the request scheduler.
pub(super) fn open(url: &str, scheduler: &Arc<RequestScheduler>) -> Result<Opened, PackError> {
    if let Some(dir) = dir_of(url)? {
        let store = open_dir(dir)?;
        return Ok(Opened { store, numbered: None, streams: None, dir: Some(dir.into()) });
    }
    open_cloud(url, Uplink::default(), scheduler)
}

/// The directory that a URL names, if it names one.
pub(super) fn dir_of(url: &str) -> Result<Option<&str>, PackError> {
    match url.strip_prefix("file://") {
        Some(dir) if !dir.starts_with('/') || dir.contains('?') => {
            Err(refused(url, "an absolute path, as in file:///var/blobs"))
        }
        dir => Ok(dir),
    }
}

/// Refuses what is there and is no directory, and what can be none.
pub(super) fn check_dir(url: &str, dir: &str) -> Result<(), PackError> {
    match std::fs::metadata(dir) {
        Ok(found) if !found.is_dir() => Err(refused(url, "a directory, or a path that is free")),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            Err(refused(url, "a path below directories"))
        }
        _ => Ok(()),
    }
}

fn open_dir(dir: &str) -> Result<Arc<dyn ObjectStore>, PackError> {
    larder_env::RealDisk::create(dir)?;
    let store = LocalFileSystem::new_with_prefix(dir);
    let store = store.map_err(|error| failed("open", dir, &error))?;
    Ok(Arc::new(store.with_fsync(true)))
}

/// A cloud's store, asked through what connects to it.
pub(super) fn open_cloud(
    url: &str,
    inner: impl HttpConnector,
    scheduler: &Arc<RequestScheduler>,
) -> Result<Opened, PackError> {
    let parsed = parse(url)?;
    let connector = GatedConnector { inner, scheduler: scheduler.clone() };
    let retry = RetryConfig { retry_timeout: BACKEND_RETRY_MAX, ..RetryConfig::default() };
    let plain = parsed.endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    // The connector bounds the time that a request takes.
    let client = ClientOptions::new().with_timeout_disabled().with_allow_http(plain);
    let store = match parsed.cloud {
        Cloud::S3 => s3(&parsed, connector, retry, client),
        Cloud::Google => google(&parsed, connector, retry, client),
        Cloud::Azure => azure(&parsed, connector, retry, client),
    };
    let Built { store, parts, streams } = store.map_err(|error| failed("open", url, &error))?;
    let prefix = Path::from(parsed.prefix);
    let numbered = Numbered { store: parts, prefix: prefix.clone() };
    let store: Arc<dyn ObjectStore> = match parsed.prefix {
        "" => store,
        _ => Arc::new(PrefixStore::new(store, prefix)),
    };
    Ok(Opened { store, numbered: Some(numbered), streams, dir: None })
}

/// A cloud's store, by its two faces, and the way it takes bodies from files.
struct Built {
    store: Arc<dyn ObjectStore>,
    parts: Arc<dyn MultipartStore>,
    streams: Option<Streams>,
}

impl Built {
    fn of(store: impl ObjectStore + MultipartStore, streams: Option<Streams>) -> Self {
        let store = Arc::new(store);
        Self { store: store.clone(), parts: store, streams }
    }
}

fn s3(
    url: &CloudUrl<'_>,
    http: impl HttpConnector,
    retry: RetryConfig,
    client: ClientOptions,
) -> object_store::Result<Built> {
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(url.bucket)
        .with_retry(retry)
        .with_client_options(client)
        .with_http_connector(http);
    if let Some(region) = url.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = url.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    // A session of S3 Express signs otherwise, and a sum of another kind is the library's to make.
    let says = |key| builder.get_config_value(&key).filter(|value| value != "false");
    let is_other = [AmazonS3ConfigKey::S3Express, AmazonS3ConfigKey::Checksum].map(says);
    let store = builder.build()?;
    let signs = Signs::S3(store.credentials().clone());
    let streams = Streams { signs, put_bytes_max: S3_PUT_BYTES_MAX };
    Ok(Built::of(store, is_other.iter().all(Option::is_none).then_some(streams)))
}

fn google(
    url: &CloudUrl<'_>,
    http: impl HttpConnector,
    retry: RetryConfig,
    client: ClientOptions,
) -> object_store::Result<Built> {
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(url.bucket)
        .with_retry(retry)
        .with_client_options(client)
        .with_http_connector(http);
    if let Some(endpoint) = url.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    let streams = Streams { signs: Signs::Google, put_bytes_max: GOOGLE_PUT_BYTES_MAX };
    Ok(Built::of(builder.build()?, Some(streams)))
}

fn azure(
    url: &CloudUrl<'_>,
    http: impl HttpConnector,
    retry: RetryConfig,
    client: ClientOptions,
) -> object_store::Result<Built> {
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(url.bucket)
        .with_retry(retry)
        .with_client_options(client)
        .with_http_connector(http);
    if let Some(account) = url.account {
        builder = builder.with_account(account);
    }
    if let Some(endpoint) = url.endpoint {
        builder = builder.with_endpoint(endpoint.to_owned());
    }
    let account = builder.get_config_value(&AzureConfigKey::AccountName);
    let store = builder.build()?;
    let streams = account.map(|account| {
        let signs = Signs::Azure { credentials: store.credentials().clone(), account };
        Streams { signs, put_bytes_max: AZURE_PUT_BYTES_MAX }
    });
    Ok(Built::of(store, streams))
}

fn parse(url: &str) -> Result<CloudUrl<'_>, PackError> {
    let known =
        Cloud::ALL.into_iter().find_map(|cloud| Some((cloud, url.strip_prefix(cloud.scheme())?)));
    let (cloud, rest) = known.ok_or_else(|| refused(url, KNOWN))?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    let prefix = prefix.trim_end_matches('/');
    let mut parsed =
        CloudUrl { cloud, bucket, prefix, endpoint: None, region: None, account: None };
    if bucket.is_empty() {
        return Err(refused(url, &format!("a name behind {}", cloud.scheme())));
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let field = match name {
            "endpoint" => &mut parsed.endpoint,
            "region" => &mut parsed.region,
            _ => &mut parsed.account,
        };
        if !cloud.options().contains(&name) || value.is_empty() || field.replace(value).is_some() {
            let options = cloud.options().join(" and ");
            return Err(refused(
                url,
                &format!("{options} alone behind the question mark, once each"),
            ));
        }
    }
    Ok(parsed)
}

fn refused(url: &str, remedy: &str) -> PackError {
    PackError::Config { what: "--backend", found: url.to_owned(), remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_bucket_prefix_and_endpoint() {
        let parsed = parse("s3://b/a/c/?endpoint=http://127.0.0.1:9000&region=eu").unwrap();
        let endpoint = Some("http://127.0.0.1:9000");
        let (region, account) = (Some("eu"), None);
        let bare = CloudUrl {
            cloud: Cloud::S3,
            bucket: "b",
            prefix: "",
            endpoint: None,
            region: None,
            account,
        };
        assert_eq!(parsed, CloudUrl { prefix: "a/c", endpoint, region, ..bare });
        assert_eq!(parse("s3://b").unwrap(), bare);
        assert_eq!(parse("gs://b").unwrap(), CloudUrl { cloud: Cloud::Google, ..bare });
        let account = Some("me");
        let azure = CloudUrl { cloud: Cloud::Azure, prefix: "p", account, ..bare };
        assert_eq!(parse("az://b/p?account=me").unwrap(), azure);
    }

    #[test]
    fn other_urls_are_refused() {
        let scheduler = Arc::new(RequestScheduler::new(Arc::default()));
        for url in [
            "s3:///x",
            "s3://b?secret=1",
            "s3://b?region",
            "s3://b?region=a&region=b",
            "gs://b?region=eu",
            "az://?account=a",
            "ftp://x",
            "b",
            "file://relative",
            "file:///x?y",
        ] {
            let Err(refusal) = open(url, &scheduler) else { panic!("{url} is taken") };
            assert!(
                matches!(refusal, PackError::Config { what: "--backend", .. }),
                "{url}: {refusal}"
            );
        }
    }
}
