//! The configuration file. Each setting has a default that is right for one machine.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Settings, as in `docs/configuration.md`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Address for S3. Loopback, so that nothing is open by accident.
    pub(crate) listen: String,
    /// Address for /metrics; `off` for none. `None`: 127.0.0.1:9001, or any free port.
    pub(crate) metrics_listen: Option<String>,
    /// Region that buckets are said to be in.
    pub(crate) region: String,
    /// Domains below which bucket names may stand.
    pub(crate) domains: Vec<String>,
    /// File in the store's directory, or absolute path of a block device, for the data.
    pub(crate) data: String,
    /// PGs of a store that is new. More spread load over more locks and, in a cluster, more servers.
    pub(crate) pg_count: Option<u32>,
    /// MiB of a log segment: the step in which the log takes and frees space.
    pub(crate) log_segment_mib: u64,
    /// Log lines as `text` or `json`.
    pub(crate) log_format: LogFormat,
}

/// How log lines look.
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
            region: "us-east-1".to_owned(),
            domains: Vec::new(),
            data: larder_roles::store::DATA_FILE.to_owned(),
            pg_count: None,
            log_segment_mib: 64,
            log_format: LogFormat::Text,
        }
    }
}

/// Why the configuration cannot be used; names the field and the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("the configuration file {path} cannot be read: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("the configuration file {path} is wrong: {source}")]
    Parse { path: String, source: Box<toml::de::Error> },
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
    /// Reads a file, or gives the defaults.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let config: Self = read(path)?;
        config.check()?;
        Ok(config)
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
        let plain = !self.data.is_empty() && !self.data.contains('/');
        if !plain && !Path::new(&self.data).is_absolute() {
            let remedy = "a file name, or the absolute path of a block device";
            return Err(value("data", self.data.clone(), remedy));
        }
        Ok(())
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
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn mistakes_name_the_field() {
        for (text, field) in [
            ("listenn = \"x\"", "listenn"),
            ("pg_count = 100", "pg_count"),
            ("log_segment_mib = 1", "log_segment_mib"),
            ("data = \"a/b\"", "data"),
            ("region = 7", "region"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
    }
}
