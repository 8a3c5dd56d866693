//! The configuration file of one role's process.

use std::path::{Path, PathBuf};

use larder_protocol::scheduler::Policy;
use larder_s3::GatewayOptions;
use serde::Deserialize;

use crate::access_log::Setting;
use crate::config::{
    BACKGROUND_MIB_PER_S, ConfigError, Life, LogFormat, Notice, Period, check_background,
    check_data, check_new_cluster, read,
};

/// Settings of `larder manager|meta|data|proxy`, as in `docs/configuration.md`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RoleConfig {
    /// Directory of the process: its identity and what it keeps.
    pub(crate) dir: PathBuf,
    /// Address at which the other servers reach this one. Loopback unless it is told.
    #[serde(default = "loopback")]
    pub(crate) listen: String,
    /// Managers to begin with, `ID@HOST:PORT`; the map names the others. None for the first manager.
    #[serde(default)]
    pub(crate) managers: Vec<String>,
    /// Token of the first start, by which the server becomes a member.
    #[serde(default)]
    pub(crate) join: Option<String>,
    /// A new cluster, if the directory of a manager is empty.
    #[serde(default)]
    pub(crate) found: Option<Found>,
    /// The time for which the certificates that a manager signs are valid.
    #[serde(default)]
    pub(crate) certificate_life: Life,
    /// A data server's file in its directory, or absolute path of a block device.
    #[serde(default = "data_file")]
    pub(crate) data: String,
    /// A meta server's MiB of a log segment.
    #[serde(default = "log_segment_mib")]
    pub(crate) log_segment_mib: u64,
    /// MiB a second that a meta server's background work may take while no clients queue.
    #[serde(default = "background_mib_per_s")]
    pub(crate) background_mib_per_s: u64,
    /// Within which time a meta server has every copy verified.
    #[serde(default = "scrub_within")]
    pub(crate) scrub_within: Period,
    /// Policy by which the proxy chooses a replica to read.
    #[serde(default)]
    pub(crate) read_policy: Policy,
    /// Time after which a proxy aborts an upload in parts that nobody ended.
    #[serde(default = "upload_life")]
    pub(crate) upload_life: Period,
    /// A proxy's address for S3.
    #[serde(default = "s3_listen")]
    pub(crate) s3_listen: String,
    /// A proxy's file of root credentials, the same for all proxies; drawn if it is missing.
    #[serde(default)]
    pub(crate) credentials: Option<PathBuf>,
    /// Address for /metrics; `off` for none.
    #[serde(default = "off")]
    pub(crate) metrics_listen: String,
    /// Region that a proxy says buckets are in.
    #[serde(default)]
    pub(crate) region: Option<String>,
    /// Domains below which bucket names may stand.
    #[serde(default)]
    pub(crate) domains: Vec<String>,
    /// Has a proxy take uploads by HTML forms.
    #[serde(default = "yes")]
    pub(crate) html_forms: bool,
    /// Has a proxy take URLs that are presigned by version 2.
    #[serde(default)]
    pub(crate) presigned_v2: bool,
    /// File of a proxy's access log.
    #[serde(default)]
    pub(crate) access_log: Setting,
    /// Time for which a proxy's `/readyz` answers 503 before it stops.
    #[serde(default)]
    pub(crate) stop_notice: Notice,
    /// Log lines as `text` or `json`.
    #[serde(default = "text")]
    pub(crate) log_format: LogFormat,
    /// The directory with `region`, if it is not the process's own.
    #[serde(skip)]
    pub(crate) region_home: Option<PathBuf>,
}

/// The settings that a cluster is founded with, for ever.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Found {
    /// The first manager's name.
    pub(crate) name: String,
    /// PGs, a power of two.
    #[serde(default = "pg_count")]
    pub(crate) pg_count: u32,
    /// Members of a PG, and replicas of its data.
    #[serde(default = "copies")]
    pub(crate) copies: u8,
    /// MiB of a volume.
    #[serde(default = "volume_mib")]
    pub(crate) volume_mib: u64,
}

fn loopback() -> String {
    "127.0.0.1:7000".to_owned()
}

fn data_file() -> String {
    larder_roles::store::DATA_FILE.to_owned()
}

fn log_segment_mib() -> u64 {
    64
}

fn background_mib_per_s() -> u64 {
    BACKGROUND_MIB_PER_S
}

fn scrub_within() -> Period {
    Period::TWO_WEEKS
}

fn upload_life() -> Period {
    Period::A_WEEK
}

fn s3_listen() -> String {
    "127.0.0.1:9000".to_owned()
}

fn off() -> String {
    "off".to_owned()
}

fn yes() -> bool {
    true
}

fn text() -> LogFormat {
    LogFormat::Text
}

fn pg_count() -> u32 {
    larder_roles::store::PG_COUNT
}

fn copies() -> u8 {
    3
}

fn volume_mib() -> u64 {
    1024
}

impl RoleConfig {
    /// Options of a proxy's S3.
    pub(crate) fn face(&self) -> GatewayOptions {
        GatewayOptions {
            region: self.region.clone(),
            domains: self.domains.clone(),
            version_2: self.presigned_v2,
            forms: self.html_forms,
        }
    }

    /// Reads a file.
    pub(crate) fn load(path: &Path) -> Result<Self, ConfigError> {
        let config: Self = read(path)?;
        config.check()?;
        crate::kind::allow(&config.dir, crate::kind::Kind::is_role)?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let value = |field, found: String, remedy| ConfigError::Value { field, found, remedy };
        if !(4..=1024).contains(&self.log_segment_mib) {
            let found = self.log_segment_mib.to_string();
            return Err(value("log_segment_mib", found, "4 to 1024"));
        }
        check_background(self.background_mib_per_s)?;
        if !self.data.is_empty() {
            check_data(&self.data)?;
        }
        for manager in &self.managers {
            if parse_manager(manager).is_none() {
                return Err(value(
                    "managers",
                    manager.clone(),
                    "ID@HOST:PORT, such as 0@10.0.0.1:7000",
                ));
            }
        }
        let Some(found) = &self.found else { return Ok(()) };
        if !found.pg_count.is_power_of_two() || found.pg_count > 65_536 {
            let remedy = "a power of two from 1 to 65536";
            return Err(value("found.pg_count", found.pg_count.to_string(), remedy));
        }
        let fields = ["found.copies", "found.volume_mib"];
        check_new_cluster(fields, found.copies, found.volume_mib)
    }

    /// The configuration of one role of a machine, with defaults.
    pub(crate) fn new(dir: PathBuf, listen: String) -> Self {
        Self {
            dir,
            listen,
            managers: Vec::new(),
            join: None,
            found: None,
            certificate_life: Life::default(),
            data: data_file(),
            log_segment_mib: log_segment_mib(),
            background_mib_per_s: background_mib_per_s(),
            scrub_within: scrub_within(),
            read_policy: Policy::default(),
            upload_life: upload_life(),
            s3_listen: s3_listen(),
            credentials: None,
            metrics_listen: off(),
            region: None,
            domains: Vec::new(),
            html_forms: yes(),
            presigned_v2: false,
            access_log: Setting::default(),
            stop_notice: Notice::default(),
            log_format: text(),
            region_home: None,
        }
    }
}

/// Id and address of a manager.
pub(crate) fn parse_manager(text: &str) -> Option<(larder_types::ServerId, String)> {
    let (id, address) = text.split_once('@')?;
    let id = id.parse().ok().map(larder_types::ServerId)?;
    address.contains(':').then(|| (id, address.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RoleConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("role.toml");
        std::fs::write(&path, text).unwrap();
        RoleConfig::load(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_directory_is_enough() {
        let config = parse("dir = \"/srv/larder\"").unwrap();
        assert_eq!(config.listen, "127.0.0.1:7000", "nothing beyond loopback unless told");
        assert_eq!(config.found, None);
        assert_eq!(config.read_policy, Policy::EarliestFinish);
        let config = parse("dir = \"/srv/larder\"\nread_policy = \"round-robin\"").unwrap();
        assert_eq!(config.read_policy, Policy::RoundRobin);
    }

    #[test]
    fn no_configuration_makes_a_server_worse() {
        let error = parse("dir = \"d\"\n[ablation]\nordered = true").unwrap_err();
        assert!(error.contains("ablation"), "{error}");
    }

    #[test]
    fn mistakes_name_the_field() {
        for (text, field) in [
            ("listen = \"x\"", "dir"),
            ("dir = \"d\"\njoinn = \"x\"", "joinn"),
            ("dir = \"d\"\nlog_segment_mib = 1", "log_segment_mib"),
            ("dir = \"d\"\nscrub_within = \"often\"", "scrub_within"),
            ("dir = \"d\"\nread_policy = \"fastest\"", "read_policy"),
            ("dir = \"d\"\naccess_log = \"access.log\"", "access_log"),
            ("dir = \"d\"\nmanagers = [\"10.0.0.1:7000\"]", "managers"),
            ("dir = \"d\"\n[found]\nname = \"m\"\npg_count = 3", "found.pg_count"),
            ("dir = \"d\"\n[found]\nname = \"m\"\ncopies = 9", "found.copies"),
            ("dir = \"d\"\n[found]\nname = \"m\"\nvolume_mib = 100", "found.volume_mib"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(field), "{error} should name {field}");
        }
    }
}
