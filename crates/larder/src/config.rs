//! The configuration file. Each setting has a default that is right for one machine.

use std::ops::RangeInclusive;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use larder_protocol::scheduler::Policy;
use larder_roles::{BackgroundConfig, StoreConfig};
use larder_s3::GatewayOptions;
use larder_types::RegionId;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::access_log::Setting;

/// Settings, as in `docs/configuration.md`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Address for S3. Loopback, so that nothing is open by accident.
    pub(crate) listen: String,
    /// Address for /metrics; `off` for none. `None`: 127.0.0.1:9001.
    pub(crate) metrics_listen: Option<String>,
    /// Region that buckets are said to be in. `None`: `us-east-1`, or what the client that makes a bucket names.
    pub(crate) region: Option<String>,
    /// Domains below which bucket names may stand.
    pub(crate) domains: Vec<String>,
    /// Takes uploads by HTML forms.
    pub(crate) html_forms: bool,
    /// Takes URLs that are presigned by version 2.
    pub(crate) presigned_v2: bool,
    /// File in the store's directory, or absolute path of a block device, for the data.
    pub(crate) data: String,
    /// PGs of a store that is new. More spread load over more locks and, in a cluster, more servers.
    pub(crate) pg_count: Option<u32>,
    /// MiB of a log segment: the step in which the log takes and frees space.
    pub(crate) log_segment_mib: u64,
    /// MiB a second that background work may take while no clients queue.
    pub(crate) background_mib_per_s: u64,
    /// Within which time every copy is verified.
    pub(crate) scrub_within: Period,
    /// Time after which an upload in parts that nobody ended is aborted.
    pub(crate) upload_life: Period,
    /// Policy by which a proxy of the cluster chooses a replica to read.
    pub(crate) read_policy: Policy,
    /// File of the access log.
    pub(crate) access_log: Setting,
    /// Time for which `/readyz` answers 503 before a stop.
    pub(crate) stop_notice: Notice,
    /// Log lines as `text` or `json`.
    pub(crate) log_format: LogFormat,
    /// All machines of a cluster of equal ones, `HOST:PORT`; none for a node of its own.
    pub(crate) peers: Vec<String>,
    /// The peer that this machine is, if it cannot find out.
    pub(crate) me: Option<String>,
    /// File with the secret that they share.
    pub(crate) secret_file: Option<PathBuf>,
    /// Members of a PG, and replicas of its data, of a cluster that is new.
    pub(crate) copies: u8,
    /// MiB of a volume of a cluster that is new.
    pub(crate) volume_mib: u64,
    /// The time for which certificates of a cluster's servers are valid.
    pub(crate) certificate_life: Life,
    /// The file that this was read from.
    #[serde(skip)]
    pub(crate) file: Option<PathBuf>,
}

/// The time for which a certificate is valid: `90d`, `12h`, `30s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Life(pub(crate) Duration);

impl Default for Life {
    fn default() -> Self {
        Self(larder_identity::limits::CERTIFICATE_VALIDITY)
    }
}

impl TryFrom<String> for Life {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match Period::try_from(text) {
            Ok(Period(Some(life))) => Ok(Self(life)),
            _ => Err("use a time from 4s to 366d, such as 90d or 12h"),
        }
    }
}

/// A time within which something is done over and over, or after which something ends: `14d`, `12h`, `30s`; or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Period(Option<Duration>);

/// Seconds of the shortest and of the longest.
const WITHIN_SECONDS: RangeInclusive<u64> = 4..=366 * 86_400;

impl Period {
    /// The default of every scrub: it finds a disk that goes bad while the other copies are good.
    pub(crate) const TWO_WEEKS: Self = Self(Some(Duration::from_secs(14 * 86_400)));
    /// The default life of an unfinished upload: longer than a client resumes one.
    pub(crate) const A_WEEK: Self = Self(Some(Duration::from_secs(7 * 86_400)));

    /// The time; `None` for off.
    pub(crate) fn time(self) -> Option<Duration> {
        self.0
    }
}

impl TryFrom<String> for Period {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const REMEDY: &str = "use a time from 4s to 366d, such as 14d or 12h, or off";
        if text == "off" {
            return Ok(Self(None));
        }
        let unit = match text.chars().last() {
            Some('s') => 1,
            Some('h') => 3600,
            Some('d') => 86_400,
            _ => return Err(REMEDY),
        };
        let number: u64 = text[..text.len() - 1].parse().map_err(|_| REMEDY)?;
        let seconds = number.checked_mul(unit).filter(|it| WITHIN_SECONDS.contains(it));
        seconds.map(|it| Self(Some(Duration::from_secs(it)))).ok_or(REMEDY)
    }
}

/// Seconds of the shortest and of the longest notice.
const NOTICE_SECONDS: RangeInclusive<u64> = 1..=60;

/// The time for which a process gives notice before it stops: `4s`, or `off`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Notice(Option<Duration>);

impl Notice {
    /// The time; `None` for off.
    pub(crate) fn time(self) -> Option<Duration> {
        self.0
    }
}

impl TryFrom<String> for Notice {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text == "off" {
            return Ok(Self(None));
        }
        let seconds = text.strip_suffix('s').and_then(|number| number.parse().ok());
        let seconds = seconds.filter(|it| NOTICE_SECONDS.contains(it));
        seconds
            .map(|it| Self(Some(Duration::from_secs(it))))
            .ok_or("use a time from 1s to 60s, or off")
    }
}

/// The settings of a single node's store, which is no region.
pub(crate) fn store_config(dir: &Path, config: &Config) -> StoreConfig {
    StoreConfig {
        root: dir.to_owned(),
        data: config.data.clone(),
        pg_count: config.pg_count,
        lv_bytes: None,
        log_segment_bytes: config.log_segment_mib * 1024 * 1024,
        region: RegionId::OWN,
    }
}

/// The settings of background work.
pub(crate) fn background(mib_per_s: u64, scrub_within: Period) -> BackgroundConfig {
    BackgroundConfig { bytes_per_s: mib_per_s * 1024 * 1024, scrub_period: scrub_within.0 }
}

/// MiB a second of background work: half of what a slow disk writes in sequence.
pub(crate) const BACKGROUND_MIB_PER_S: u64 = 64;

/// Checks `background_mib_per_s`.
pub(crate) fn check_background(mib_per_s: u64) -> Result<(), ConfigError> {
    if (1..=65_536).contains(&mib_per_s) {
        return Ok(());
    }
    let (field, found) = ("background_mib_per_s", mib_per_s.to_string());
    Err(ConfigError::Value { field, found, remedy: "1 to 65536" })
}

/// Checks what a cluster is founded with.
pub(crate) fn check_new_cluster(
    fields: [&'static str; 2],
    copies: u8,
    volume_mib: u64,
) -> Result<(), ConfigError> {
    let value = |field, found: String, remedy| ConfigError::Value { field, found, remedy };
    if !(1..=5).contains(&copies) {
        return Err(value(fields[0], copies.to_string(), "1 to 5"));
    }
    if !volume_mib.is_power_of_two() || !(64..=16_384).contains(&volume_mib) {
        let remedy = "a power of two from 64 to 16384";
        return Err(value(fields[1], volume_mib.to_string(), remedy));
    }
    Ok(())
}

/// Names of a server's own files and directories: data under such a name would overwrite them.
const DATA_TAKEN: [&str; 9] = [
    "credentials.toml",
    "identity.pem",
    crate::kind::MARKER,
    "kv",
    "lock",
    "log",
    "manager",
    "map-mark",
    "scrub",
];

/// Checks the name of the data's file or device.
pub(crate) fn check_data(data: &str) -> Result<(), ConfigError> {
    let is_plain = !data.is_empty() && !data.contains(['/', '\0']) && !matches!(data, "." | "..");
    let is_free = !DATA_TAKEN.contains(&data) && !data.ends_with(".draft");
    if (is_plain && is_free) || Path::new(data).is_absolute() {
        return Ok(());
    }
    let remedy = "a file name that is not taken, or the absolute path of a block device";
    Err(ConfigError::Value { field: "data", found: data.to_owned(), remedy })
}

/// Checks that the device of a store that is new is there, if its data is to lie on one.
pub(crate) fn check_device(data: &str) -> Result<(), ConfigError> {
    let path = Path::new(data);
    let is_device = std::fs::metadata(path).is_ok_and(|it| it.file_type().is_block_device());
    if !path.is_absolute() || is_device {
        return Ok(());
    }
    let remedy = "a file name, or the absolute path of a block device that is there";
    Err(ConfigError::Value { field: "data", found: data.to_owned(), remedy })
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9000".to_owned(),
            metrics_listen: None,
            region: None,
            domains: Vec::new(),
            html_forms: true,
            presigned_v2: false,
            data: larder_roles::store::DATA_FILE.to_owned(),
            pg_count: None,
            log_segment_mib: 64,
            background_mib_per_s: BACKGROUND_MIB_PER_S,
            scrub_within: Period::TWO_WEEKS,
            upload_life: Period::A_WEEK,
            read_policy: Policy::default(),
            access_log: Setting::default(),
            stop_notice: Notice::default(),
            log_format: LogFormat::Text,
            peers: Vec::new(),
            me: None,
            secret_file: None,
            copies: 3,
            volume_mib: 1024,
            certificate_life: Life::default(),
            file: None,
        }
    }
}

/// Errors of the configuration; each names the field and the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("the configuration file {path} cannot be read: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("the configuration file {path} is wrong: {source}")]
    Parse { path: String, source: Box<toml::de::Error> },
    #[error(transparent)]
    Kind(#[from] crate::kind::KindError),
    #[error("{dir} is not the directory of a machine of a cluster: {reason}")]
    Directory { dir: String, reason: String },
    #[error("{field} = {found:?} in the configuration is not allowed; use {remedy}")]
    Value { field: &'static str, found: String, remedy: &'static str },
}

/// Reads a configuration file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: name.clone(), source })?;
    toml::from_str(&text)
        .map_err(|source| ConfigError::Parse { path: name, source: Box::new(source) })
}

impl Config {
    /// Options of S3.
    pub(crate) fn face(&self) -> GatewayOptions {
        GatewayOptions {
            region: self.region.clone(),
            domains: self.domains.clone(),
            version_2: self.presigned_v2,
            forms: self.html_forms,
        }
    }

    /// Reads a file, or gives the defaults.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let config: Self = read(path)?;
        config.check()?;
        Ok(Self { file: Some(path.to_owned()), ..config })
    }

    /// Reads anew where the access log goes, if there is a file to read.
    pub(crate) fn access_log_again(
        &self,
    ) -> Option<impl Fn() -> Result<Setting, ConfigError> + use<>> {
        let file = self.file.clone()?;
        Some(move || Ok(Self::load(Some(&file))?.access_log))
    }

    fn check(&self) -> Result<(), ConfigError> {
        let value = |field, found: String, remedy| ConfigError::Value { field, found, remedy };
        if let Some(pg_count) = self.pg_count
            && (!pg_count.is_power_of_two() || pg_count > 65_536)
        {
            let remedy = "a power of two from 1 to 65536";
            return Err(value("pg_count", pg_count.to_string(), remedy));
        }
        if !(4..=1024).contains(&self.log_segment_mib) {
            let found = self.log_segment_mib.to_string();
            return Err(value("log_segment_mib", found, "4 to 1024"));
        }
        check_background(self.background_mib_per_s)?;
        check_new_cluster(["copies", "volume_mib"], self.copies, self.volume_mib)?;
        check_data(&self.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("larder.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(Some(&path)).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Config { file: None, ..parse("").unwrap() }, Config::default());
    }

    #[test]
    fn forms_are_taken_and_version_2_is_not_unless_set_otherwise() {
        let face = |text: &str| parse(text).unwrap().face();
        assert!(face("").forms && !face("").version_2);
        let other = face("html_forms = false\npresigned_v2 = true");
        assert!(!other.forms && other.version_2);
    }

    #[test]
    fn times_have_a_unit() {
        let within = |text: &str| parse(&format!("scrub_within = {text:?}")).unwrap().scrub_within;
        assert_eq!(within("14d"), Period::TWO_WEEKS);
        assert_eq!(within("336h"), Period::TWO_WEEKS);
        assert_eq!(within("4s"), Period(Some(Duration::from_secs(4))));
        assert_eq!(within("off"), Period(None));
    }

    #[test]
    fn mistakes_name_the_field() {
        for (text, field) in [
            ("listenn = \"x\"", "listenn"),
            ("pg_count = 100", "pg_count"),
            ("log_segment_mib = 1", "log_segment_mib"),
            ("data = \"a/b\"", "data"),
            ("data = \"..\"", "data"),
            ("data = \"log\"", "data"),
            ("data = \"larder-dir.toml\"", "data"),
            ("background_mib_per_s = 0", "background_mib_per_s"),
            ("scrub_within = \"14\"", "scrub_within"),
            ("scrub_within = \"1s\"", "scrub_within"),
            ("scrub_within = \"367d\"", "scrub_within"),
            ("certificate_life = \"off\"", "certificate_life"),
            ("copies = 6", "copies"),
            ("volume_mib = 100", "volume_mib"),
            ("region = 7", "region"),
            ("html_forms = \"off\"", "html_forms"),
            ("presigned_v2 = 1", "presigned_v2"),
            ("access_log = \"access.log\"", "access_log"),
            ("stop_notice = \"0s\"", "stop_notice"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn a_notice_has_a_unit_and_an_end() {
        for text in ["4", "0s", "61s", "1h", "", "-1s"] {
            assert!(Notice::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
