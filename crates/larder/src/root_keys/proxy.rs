//! Root's keys at a proxy of a cluster: those of its environment or its file, until the managers keep them.
//!
//! # Invariants
//!
//! 1. Keys of the environment stay as long as the process: the managers' do not count here.
//! 2. Else the managers' record counts as soon as a map with one is known, and never one of an earlier generation.
//! 3. A file of an operator's is left as it is; one of Larder's own follows, for people and for machines that join.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use larder_protocol::manager::state::{KeyPair, RootRecord, Topology};
use larder_roles::keys::{KeysTaken, PreviousTaken};
use larder_roles::managers::Managers;
use larder_s3::{Credentials, RootKeys};
use tokio::sync::watch;

use crate::credentials::{self, Root};

/// See the module's head.
pub(crate) struct ProxyKeys {
    keys: RootKeys,
    /// The file that follows the managers' record.
    file: Option<PathBuf>,
    is_fixed: bool,
    generation: AtomicU32,
    /// The latest generation that was heard of, taken or not.
    seen: AtomicU32,
    /// The pair for the file.
    to_keep: watch::Sender<Option<Credentials>>,
}

impl ProxyKeys {
    /// The keys of a start. Its file follows the managers' record if it is Larder's own.
    pub(crate) fn new(root: &Root, file: &Path, is_own: bool) -> Self {
        Self {
            keys: RootKeys::new(root.keys.clone(), None),
            file: (is_own && root.from_file).then(|| file.to_owned()),
            is_fixed: !root.from_file,
            generation: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            to_keep: watch::Sender::new(None),
        }
    }

    /// The keys that requests are checked with.
    pub(crate) fn keys(&self) -> RootKeys {
        self.keys.clone()
    }

    /// Generation of the record that is taken; 0 for keys of the environment or of a file.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Requests signed with the pair before, since both are taken.
    pub(crate) fn previous_requests(&self) -> u64 {
        self.keys.previous_use().map_or(0, |used| used.requests)
    }

    /// The keys that are taken, for a command.
    pub(crate) fn taken(&self) -> KeysTaken {
        let previous = self.keys.previous_use().map(|used| PreviousTaken {
            requests: used.requests,
            last_s: used.last.map(|last| last.as_secs()),
        });
        let (access_key, is_fixed) = (self.keys.access_key(), self.is_fixed);
        KeysTaken { generation: self.generation(), access_key, is_fixed, previous }
    }

    /// Takes the keys of a map, if it has later ones. The file follows as long as [`Self::follow`] is polled.
    pub(crate) fn take(&self, map: &Topology) {
        let Some(root) = map.root.as_ref().filter(|root| root.generation > self.seen()) else {
            return;
        };
        self.seen.store(root.generation, Ordering::Release);
        let (generation, access_key) = (root.generation, &root.current.access_key);
        if self.is_fixed {
            tracing::warn!(
                generation,
                "root's keys were rotated, but this proxy keeps using those of its environment"
            );
            return;
        }
        let current = credentials_of(&root.current);
        let replaced =
            self.keys.replace(current.clone(), root.previous.as_ref().map(credentials_of));
        if let Err(error) = replaced {
            // A manager of a later release may allow more.
            tracing::error!(%error, "root's keys were rotated, but this proxy cannot use the new ones");
            return;
        }
        self.generation.store(generation, Ordering::Release);
        let both = root.previous.is_some();
        tracing::info!(generation, %access_key, both, "root's keys were rotated: the new ones are in use");
        self.to_keep.send_replace(Some(current));
    }

    /// The latest generation that was heard of.
    fn seen(&self) -> u32 {
        self.seen.load(Ordering::Acquire)
    }

    /// Takes the keys of each later map. A disk that hangs keeps none from being taken.
    pub(crate) async fn follow(&self, managers: &dyn Managers) -> Infallible {
        let take = async {
            let mut versions = managers.versions();
            loop {
                self.take(&managers.map());
                if versions.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            never = take => never,
            never = self.keep() => never,
        }
    }

    /// Has the file follow what is taken.
    async fn keep(&self) -> Infallible {
        let mut to_keep = self.to_keep.subscribe();
        to_keep.mark_changed();
        loop {
            if to_keep.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            let current = to_keep.borrow_and_update().clone();
            let (Some(current), Some(file)) = (current, self.file.clone()) else { continue };
            let kept = tokio::task::spawn_blocking(move || {
                credentials::keep(&file, &current).map_err(|error| (file, error))
            });
            if let Ok(Err((file, error))) = kept.await {
                tracing::warn!(
                    file = %file.display(), %error,
                    "root's keys were rotated, but the credentials file still has the earlier ones: `larder keys status` shows which are valid"
                );
            }
        }
    }
}

/// Has a missing file of Larder's own written with the managers' keys: else the start would draw others.
pub(crate) fn restore(file: &Path, root: Option<&RootRecord>) -> std::io::Result<()> {
    match root {
        Some(root) if fs::symlink_metadata(file).is_err() => {
            credentials::keep(file, &credentials_of(&root.current))
        }
        _ => Ok(()),
    }
}

/// Root's keys as the managers have them.
pub(crate) fn root_of(record: &RootRecord) -> Root {
    let keys = credentials_of(&record.current);
    Root { keys, previous: None, from_file: true, unseen: false, drawn: false }
}

/// True if a file is Larder's own: no link, which would be an operator's.
pub(crate) fn is_own(file: &Path) -> bool {
    fs::symlink_metadata(file).is_ok_and(|about| about.is_file())
}

fn credentials_of(pair: &KeyPair) -> Credentials {
    let KeyPair { access_key, secret_key } = pair.clone();
    Credentials { access_key, secret_key }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str) -> KeyPair {
        KeyPair { access_key: format!("{name}-access"), secret_key: format!("{name}-secret") }
    }

    fn map(generation: u32, current: &str, previous: Option<&str>) -> Topology {
        let (current, previous) = (pair(current), previous.map(pair));
        Topology { root: Some(RootRecord { generation, current, previous }), ..Topology::default() }
    }

    fn access_key(file: &Path) -> String {
        credentials::load_file(file).unwrap().keys.access_key
    }

    /// Waits until the file has this access key.
    async fn kept(keys: &ProxyKeys, expected: &str) {
        let file = keys.file.clone().unwrap();
        let has_it = async {
            while access_key(&file) != expected {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            never = keys.keep() => match never {},
            () = has_it => {}
        }
    }

    #[tokio::test]
    async fn later_generations_are_taken_and_the_file_follows_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(credentials::FILE);
        let root = credentials::load_file(&file).unwrap();
        let keys = ProxyKeys::new(&root, &file, is_own(&file));
        keys.take(&Topology::default());
        assert_eq!((keys.taken().access_key, keys.generation()), (root.keys.access_key, 0));
        keys.take(&map(2, "b", Some("a")));
        keys.take(&map(1, "z", None));
        let reported = keys.taken();
        assert_eq!((reported.generation, &*reported.access_key), (2, "b-access"));
        assert_eq!(reported.previous, Some(PreviousTaken { requests: 0, last_s: None }));
        kept(&keys, "b-access").await;
        keys.take(&map(3, "b", None));
        assert_eq!((keys.generation(), keys.taken().previous), (3, None));
    }

    #[test]
    fn a_file_of_an_operators_and_keys_of_the_environment_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join(credentials::FILE), dir.path().join("link.toml"));
        let root = credentials::load_file(&file).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(!is_own(&link) && is_own(&file));
        let named = ProxyKeys::new(&root, &file, false);
        named.take(&map(1, "b", None));
        assert_eq!(named.taken().access_key, "b-access");
        assert_eq!(access_key(&file), root.keys.access_key, "another keeps it");
        let given = Root { from_file: false, ..root };
        let fixed = ProxyKeys::new(&given, &file, true);
        fixed.take(&map(1, "b", None));
        let reported = fixed.taken();
        assert_eq!((reported.access_key, reported.is_fixed), (given.keys.access_key, true));
        assert_eq!(reported.generation, 0, "those of the managers are not in force");
        assert_eq!(access_key(&file), fixed.taken().access_key);
    }

    #[test]
    fn a_missing_file_is_restored_from_the_managers_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(credentials::FILE);
        restore(&file, None).unwrap();
        assert!(!file.exists());
        let root = map(1, "b", None).root;
        restore(&file, root.as_ref()).unwrap();
        assert_eq!(access_key(&file), "b-access");
        let other = map(2, "c", None).root;
        restore(&file, other.as_ref()).unwrap();
        assert_eq!(access_key(&file), "b-access", "it is there");
    }
}
