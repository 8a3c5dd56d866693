//! `DIR/node.toml`: which machine of which cluster a directory is.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use larder_protocol::manager::state::ServerRole;
use larder_roles::identity::IDENTITY_FILE;
use larder_roles::node::{Entered, ROLES, role_name};
use larder_types::ServerId;
use serde::{Deserialize, Serialize};

use super::config::RoleConfig;
use crate::kind::RECORD;
use crate::private_file;

const VERSION: u32 = 1;
const HEAD: &str =
    "# Which machine of which cluster this directory is. Written by larder server.\n";

/// Errors of the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error("{path} is not what it should be ({reason}): restore it")]
    Wrong { path: String, reason: String },
}

impl RecordError {
    fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.display().to_string(), source }
    }
}

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) version: u32,
    /// The cluster's id, 16 hexadecimal digits; for people.
    pub(crate) cluster: String,
    /// The machine's name, and where the others reach it.
    pub(crate) name: String,
    /// Managers to begin with, `ID@HOST:PORT`.
    pub(crate) managers: Vec<String>,
    /// The machine's servers: role to id.
    pub(crate) servers: BTreeMap<String, u32>,
}

impl Record {
    /// Of a machine that has come in.
    pub(crate) fn of(name: &str, entered: &Entered) -> Self {
        let servers = entered.servers.iter().map(|(role, id)| (role_name(*role).to_owned(), id.0));
        Self {
            version: VERSION,
            cluster: format!("{:016x}", entered.cluster.0),
            name: name.to_owned(),
            managers: describe_managers(&entered.managers),
            servers: servers.collect(),
        }
    }

    /// Loads the record of a directory, if there is one.
    pub(crate) fn load(dir: &Path) -> Result<Option<Self>, RecordError> {
        let path = dir.join(RECORD);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RecordError::file(&path, source)),
        };
        let wrong =
            |reason: String| RecordError::Wrong { path: path.display().to_string(), reason };
        let record: Self = toml::from_str(&text).map_err(|e| wrong(e.message().to_owned()))?;
        if record.version != VERSION {
            let version = record.version;
            return Err(wrong(format!("it has version {version}, this release knows {VERSION}")));
        }
        Ok(Some(record))
    }

    /// Keeps it, durably. Blocks.
    pub(crate) fn save(&self, dir: &Path) -> Result<(), RecordError> {
        let path = dir.join(RECORD);
        private_file::write(&path, self.text()).map_err(|source| RecordError::file(&path, source))
    }

    fn text(&self) -> String {
        let text = toml::to_string(self).expect("text, numbers and lists are TOML");
        format!("{HEAD}{text}")
    }

    /// The roles of the machine.
    pub(crate) fn roles(&self) -> impl Iterator<Item = ServerRole> {
        ROLES.into_iter().filter(|role| self.servers.contains_key(role_name(*role)))
    }

    /// The beginning of every role's configuration.
    pub(crate) fn role(&self, dir: &Path, role: ServerRole) -> RoleConfig {
        let mut config = RoleConfig::new(dir.join(role_name(role)), self.name.clone());
        config.managers.clone_from(&self.managers);
        config
    }

    /// The configuration of the role by which an operator's commands speak to the managers.
    pub(crate) fn operator_role(&self, dir: &Path) -> RoleConfig {
        let is_there = |role: &ServerRole| dir.join(role_name(*role)).join(IDENTITY_FILE).exists();
        let role = self.roles().find(is_there).or_else(|| self.roles().next());
        self.role(dir, role.unwrap_or(ServerRole::Proxy))
    }
}

/// As a configuration has them.
pub(crate) fn describe_managers(managers: &[(ServerId, String)]) -> Vec<String> {
    managers.iter().map(|(id, address)| format!("{id}@{address}")).collect()
}

#[cfg(test)]
mod tests {
    use larder_roles::node::RootKeys;
    use larder_types::ClusterId;

    use super::*;

    fn record() -> Record {
        let root = RootKeys { access_key: String::new(), secret_key: String::new() };
        let servers = vec![(ServerRole::Meta, ServerId(4)), (ServerRole::Data, ServerId(5))];
        let managers = vec![(ServerId(0), "a:1".to_owned()), (ServerId(4), "b:1".to_owned())];
        Record::of("b:1", &Entered { cluster: ClusterId(0xc0ffee), servers, managers, root })
    }

    #[test]
    fn a_record_has_golden_text_and_reads_back() {
        let expected = "# Which machine of which cluster this directory is. Written by larder server.\n\
            version = 1\ncluster = \"0000000000c0ffee\"\nname = \"b:1\"\nmanagers = [\"0@a:1\", \"4@b:1\"]\n\n\
            [servers]\ndata = 5\nmeta = 4\n";
        assert_eq!(record().text(), expected);
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), None);
        record().save(dir.path()).unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), Some(record()));
    }

    #[test]
    fn another_version_or_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for text in [record().text().replace("version = 1", "version = 2"), "name = 7".to_owned()] {
            fs::write(dir.path().join(RECORD), text).unwrap();
            let error = Record::load(dir.path()).unwrap_err();
            assert!(error.to_string().contains(RECORD), "{error}");
        }
    }

    #[test]
    fn commands_speak_as_the_first_role_that_there_is() {
        let config = record().operator_role(Path::new("/srv"));
        assert_eq!(config.dir, Path::new("/srv/meta"));
        assert_eq!((config.listen.as_str(), config.managers.len()), ("b:1", 2));
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("data")).unwrap();
        fs::write(dir.path().join("data").join(IDENTITY_FILE), "").unwrap();
        let config = record().operator_role(dir.path());
        assert_eq!(config.dir, dir.path().join("data"), "the other has lost its directory");
    }
}
