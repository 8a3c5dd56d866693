//! Root's keys at the process that serves a single node.

use std::path::PathBuf;

use larder_s3::RootKeys;
use serde::{Deserialize, Serialize};

use crate::credentials::{self, Root};

/// The keys of a running store, and where they come from.
pub(crate) struct StoreKeys {
    keys: RootKeys,
    file: PathBuf,
    is_fixed: bool,
}

/// The keys that are taken, as the socket tells them.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeysStatus {
    pub(crate) access_key: String,
    /// Access key of the pair before, if that is taken, too.
    pub(crate) previous_access_key: Option<String>,
    /// True if these are what the file has; of keys of the environment false.
    pub(crate) are_of_file: bool,
    /// True for keys of the environment: the file does not count.
    pub(crate) is_fixed: bool,
    /// Requests signed with the pair before since both are taken.
    pub(crate) previous_requests: u64,
    /// Seconds since the last of them.
    pub(crate) previous_last_s: Option<u64>,
}

impl StoreKeys {
    /// Takes the keys that the process started with.
    pub(crate) fn new(root: &Root, file: PathBuf) -> Self {
        let keys = RootKeys::new(root.keys.clone(), root.previous.clone());
        Self { keys, file, is_fixed: !root.from_file }
    }

    /// The keys that requests are checked with.
    pub(crate) fn keys(&self) -> RootKeys {
        self.keys.clone()
    }

    pub(crate) fn now(&self) -> KeysStatus {
        let used = self.keys.previous_use();
        let is_taken = |root: Root| self.keys.are(&root.keys, root.previous.as_ref());
        let are_of_file = !self.is_fixed && credentials::read_kept(&self.file).is_ok_and(is_taken);
        KeysStatus {
            are_of_file,
            access_key: self.keys.access_key(),
            is_fixed: self.is_fixed,
            previous_access_key: self.keys.previous_access_key(),
            previous_requests: used.map_or(0, |used| used.requests),
            previous_last_s: used.and_then(|used| used.last).map(|last| last.as_secs()),
        }
    }

    /// Takes the keys that the file has now, if it has others than at the start.
    pub(crate) fn settle(&self) {
        if !self.is_fixed
            && let Err(reason) = self.reload()
        {
            tracing::warn!(%reason, "root's keys cannot be read again: those read at the start stay in use");
        }
    }

    /// Takes the keys that the file has now; those before stay in force if it cannot be read.
    ///
    /// # Errors
    /// The reason, for people.
    pub(crate) fn reload(&self) -> Result<KeysStatus, String> {
        if self.is_fixed {
            return Err("the server has keys of its environment, and reads no file".to_owned());
        }
        let root = credentials::read_kept(&self.file).map_err(|error| error.to_string())?;
        if !self.keys.are(&root.keys, root.previous.as_ref()) {
            let both = root.previous.is_some();
            let replaced = self.keys.replace(root.keys, root.previous);
            replaced.map_err(|error| format!("{}: {error}", self.file.display()))?;
            let access_key = self.keys.access_key();
            tracing::info!(%access_key, both, "root's keys were read again: the new ones are in use");
        }
        Ok(self.now())
    }
}

#[cfg(test)]
mod tests {
    use larder_s3::Credentials;

    use super::*;

    fn pair(name: &str) -> Credentials {
        Credentials { access_key: format!("{name}-key"), secret_key: format!("{name}-secret") }
    }

    #[test]
    fn the_file_is_read_anew_and_keys_before_stay_where_it_cannot_be() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(credentials::FILE);
        credentials::write(&file, &pair("a"), None).unwrap();
        let root = credentials::load_file(&file).unwrap();
        let keys = StoreKeys::new(&root, file.clone());
        credentials::write(&file, &pair("b"), Some(&pair("a"))).unwrap();
        let now = keys.reload().unwrap();
        let previous = now.previous_access_key.as_deref();
        assert_eq!((&*now.access_key, previous), ("b-key", Some("a-key")));
        std::fs::write(&file, "secret_key = \"hush").unwrap();
        let refused = keys.reload().unwrap_err();
        assert!(refused.contains("credentials.toml") && !refused.contains("hush"), "{refused}");
        std::fs::remove_file(&file).unwrap();
        assert!(keys.reload().is_err() && !file.exists(), "none are drawn");
        assert_eq!(keys.now().access_key, "b-key");
        let given = StoreKeys::new(&Root { from_file: false, ..root }, file);
        assert!(given.reload().unwrap_err().contains("environment"));
    }
}
