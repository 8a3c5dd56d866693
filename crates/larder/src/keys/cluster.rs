//! Root's keys of a cluster: the managers agree on them, and proxies take them from the managers' map.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use larder_net::Endpoint;
use larder_protocol::manager::state::{
    Command, Keep, KeyPair, Outcome, Refusal, RootRecord, ServerRole, ServerState, Topology,
};
use larder_roles::keys::KeysTaken;
use larder_roles::limits::PROTOCOL_ROOT_KEYS;
use larder_roles::managers::{Managers, ManagersClient};
use larder_roles::peers::Peers;
use larder_roles::wire::{ProxyCall, ProxyReply, ProxyService};
use larder_s3::Credentials;
use larder_types::ServerId;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep};

use super::{KeysError, Wanted, used};
use crate::cluster::operate::{managers, runtime};
use crate::cluster::status::is_confirmed;
use crate::cluster::{RoleConfig, RoleError, beside};
use crate::credentials::{self, CredentialsError};
use crate::private;

/// Time that proxies have to take new keys, before the command says which have not.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// Time that a proxy has to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two questions.
const LOOK: Duration = Duration::from_millis(100);

/// The servers of a cluster on this machine.
pub(super) struct Keeper {
    /// Of the manager here, or another server.
    pub(super) config: RoleConfig,
    /// The file that proxies have had their keys from, if it is known.
    pub(super) file: Option<PathBuf>,
    /// True if proxies write that file themselves.
    pub(super) is_own: bool,
}

/// A connection to the managers, and to proxies.
struct Cluster {
    endpoint: Arc<Endpoint>,
    managers: Arc<ManagersClient>,
}

/// A proxy of the map.
struct Proxy {
    name: String,
    is_up: bool,
    taken: Option<KeysTaken>,
}

impl Keeper {
    pub(super) fn status(&self) -> Result<Vec<String>, KeysError> {
        runtime()?.block_on(async {
            let (endpoint, managers) = beside(&self.config).await?;
            let cluster = Cluster { endpoint, managers };
            let map = cluster.latest().await?;
            let mut lines = vec![match &map.root {
                None => {
                    "root's keys were never rotated: proxies have them from their files".to_owned()
                }
                Some(root) => summary(root),
            }];
            let proxies = cluster.proxies(&map).await;
            lines.extend(proxies.values().map(|proxy| proxy.told(map.root_generation())));
            let differ = |of: &dyn Fn(&KeysTaken) -> bool| {
                proxies.values().filter_map(|proxy| proxy.taken.as_ref()).any(of)
            };
            let first = proxies.values().find_map(|proxy| proxy.taken.clone());
            if first.is_some_and(|first| differ(&|it| it.access_key != first.access_key)) {
                lines.push(
                    "PROXIES TAKE DIFFERENT KEYS: clients are refused by some of them".to_owned(),
                );
            }
            Ok(lines)
        })
    }

    pub(super) fn rotate(
        &self,
        wanted: &Wanted<'_>,
        current: Option<&Path>,
        into: Option<&Path>,
    ) -> Result<Vec<String>, KeysError> {
        let new = wanted.made()?;
        let into = self.target(wanted, into)?;
        runtime()?.block_on(async {
            let cluster = self.as_manager().await?;
            let map = cluster.latest().await?;
            may_rotate(&map)?;
            let keep = self.kept(&map, wanted, current)?;
            let draft = into.map(|into| Draft::write(into, &new)).transpose()?;
            let generation = map.root_generation();
            let command = Command::RotateRoot(generation, pair_of(&new), keep.clone());
            match cluster.agreed(command, draft.as_ref()).await? {
                Ok(_) => {}
                Err(refusal) => {
                    if let Some(draft) = draft {
                        draft.give_up();
                    }
                    return Err(refused(refusal));
                }
            }
            let kept_in = draft.map(Draft::keep).transpose()?;
            let mut lines = vec![format!(
                "root's keys are rotated: generation {}, access key {}",
                generation + 1,
                new.access_key
            )];
            lines.extend(self.whereabouts(kept_in.as_deref()));
            lines.push(match keep {
                Keep::Nothing => {
                    "the pair before is refused wherever the new one is taken".to_owned()
                }
                Keep::Current | Keep::OfFiles(_) => {
                    "the pair before is taken, too, until `larder keys retire`".to_owned()
                }
            });
            lines.extend(cluster.taken(generation + 1).await);
            Ok(lines)
        })
    }

    pub(super) fn retire(&self, yes: bool) -> Result<Vec<String>, KeysError> {
        runtime()?.block_on(async {
            let cluster = self.as_manager().await?;
            let map = cluster.latest().await?;
            let Some(root) = map.root.as_ref().filter(|root| root.previous.is_some()) else {
                return Ok(vec!["nothing to do: one pair of keys is taken".to_owned()]);
            };
            if !yes {
                let proxies = cluster.proxies(&map).await;
                let mut lines: Vec<String> =
                    proxies.values().map(|proxy| proxy.told(root.generation)).collect();
                lines.push(
                    "requests signed with the pair before would be refused. Nothing was changed: to do it, add --yes"
                        .to_owned(),
                );
                return Ok(lines);
            }
            let generation = root.generation;
            let agreed = cluster.agreed(Command::RetireRoot(generation), None).await?;
            match agreed {
                Ok(Outcome::Already) => Ok(vec!["nothing to do: they are retired".to_owned()]),
                Ok(_) => {
                    let mut lines = vec![format!(
                        "the pair before is retired: generation {}. Proxies refuse it",
                        generation + 1
                    )];
                    lines.extend(cluster.taken(generation + 1).await);
                    Ok(lines)
                }
                Err(refusal) => Err(refused(refusal)),
            }
        })
    }

    async fn as_manager(&self) -> Result<Cluster, KeysError> {
        // Nobody else may change them.
        let managers = managers(&self.config).await?;
        let (endpoint, _) = beside(&self.config).await?;
        Ok(Cluster { endpoint, managers })
    }

    /// The file to which new keys go before they are agreed on; `None` where proxies write it, or the operator has them.
    fn target(
        &self,
        wanted: &Wanted<'_>,
        into: Option<&Path>,
    ) -> Result<Option<PathBuf>, KeysError> {
        match (into, &self.file) {
            (Some(into), _) if into.exists() => Err(KeysError::Usage(format!(
                "{} exists: name a file for the new keys that does not",
                into.display()
            ))),
            (Some(into), _) => Ok(Some(into.to_owned())),
            (None, Some(file)) => Ok((!self.is_own).then(|| file.clone())),
            (None, None) if wanted.keys.is_some() => Ok(None),
            (None, None) => Err(KeysError::Usage(
                "name a file for the new keys with --into FILE, or give them with --keys FILE"
                    .to_owned(),
            )),
        }
    }

    /// The pair that goes on being taken.
    fn kept(
        &self,
        map: &Topology,
        wanted: &Wanted<'_>,
        current: Option<&Path>,
    ) -> Result<Keep, KeysError> {
        if wanted.at_once {
            return Ok(Keep::Nothing);
        }
        if map.root.is_some() {
            return Ok(Keep::Current);
        }
        let Some(file) = current.or(self.file.as_deref()) else {
            return Err(KeysError::Usage(
                "the managers do not know the present keys yet: name the file with --current FILE (credentials.toml of \
                 a proxy), or have them refused with --at-once"
                    .to_owned(),
            ));
        };
        Ok(Keep::OfFiles(pair_of(&credentials::read_given(file)?)))
    }

    fn whereabouts(&self, kept_in: Option<&Path>) -> Option<String> {
        let file = match (kept_in, &self.file) {
            (Some(file), _) => file,
            (None, Some(file)) => file,
            (None, None) => return None,
        };
        Some(format!("both of its keys are in {}", file.display()))
    }
}

impl Cluster {
    /// The map, once a manager has said that it is the latest.
    async fn latest(&self) -> Result<Arc<Topology>, KeysError> {
        match is_confirmed(&*self.managers).await {
            true => Ok(self.managers.map()),
            false => Err(KeysError::NotDone(
                "no manager leads, or no leader is reachable: nothing was changed".to_owned(),
            )),
        }
    }

    async fn agreed(
        &self,
        command: Command,
        draft: Option<&Draft>,
    ) -> Result<Result<Outcome, Refusal>, KeysError> {
        let agreed = self.managers.propose(command).await;
        agreed.map_err(|error| {
            let kept = draft.map_or(String::new(), |draft| {
                format!("; the new keys are in {}", draft.draft.display())
            });
            KeysError::NotDone(format!(
                "{error}; `larder keys status` shows whether it was done{kept}"
            ))
        })
    }

    /// All proxies, and what those say that are up.
    async fn proxies(&self, map: &Topology) -> BTreeMap<ServerId, Proxy> {
        let (peers, mut asked) = (Peers::<ProxyService>::new(&self.endpoint), JoinSet::new());
        for (&id, record) in &map.servers {
            if record.state == ServerState::Removed || !record.roles.contains(&ServerRole::Proxy) {
                continue;
            }
            let is_up = record.state == ServerState::Up;
            let peer = peers.of(map, id).filter(|_| is_up);
            let name = record.name.clone();
            asked.spawn(async move {
                let deadline = Instant::now() + PATIENCE;
                let taken = match &peer {
                    Some(peer) => peer.call(&ProxyCall::Keys, Bytes::new(), deadline).await.ok(),
                    None => None,
                };
                let taken = taken.and_then(|(reply, _)| match reply {
                    ProxyReply::Keys(taken) => Some(taken),
                    _ => None,
                });
                (id, Proxy { name, is_up, taken })
            });
        }
        asked.join_all().await.into_iter().collect()
    }

    /// A line for each proxy, once all that are up take this generation, or some do not in time.
    async fn taken(&self, generation: u32) -> Vec<String> {
        let until = Instant::now() + TAKEN_WITHIN;
        loop {
            let proxies = self.proxies(&self.managers.map()).await;
            let is_behind = |proxy: &Proxy| {
                proxy.is_up && proxy.taken.as_ref().is_none_or(|it| it.generation < generation)
            };
            if !proxies.values().any(is_behind) || Instant::now() >= until {
                return proxies.values().map(|proxy| proxy.told(generation)).collect();
            }
            sleep(LOOK).await;
        }
    }
}

impl Proxy {
    fn told(&self, generation: u32) -> String {
        let what = match &self.taken {
            None if !self.is_up => {
                "is down: it takes the keys that count when it is back".to_owned()
            }
            None => "DOES NOT ANSWER: whether it takes the keys that count is not known".to_owned(),
            Some(taken) if taken.is_fixed => format!(
                "TAKES KEYS OF ITS ENVIRONMENT, access key {}: change {} and {} there, or unset them, and restart it",
                taken.access_key,
                credentials::ACCESS_VARIABLE,
                credentials::SECRET_VARIABLE
            ),
            Some(taken) if taken.generation < generation => format!(
                "is behind: it takes generation {}, access key {}, until it hears from the managers",
                taken.generation, taken.access_key
            ),
            Some(taken) => {
                let used = taken.previous.map(|it| format!("; {}", used(it.requests, it.last_s)));
                format!("takes access key {}{}", taken.access_key, used.unwrap_or_default())
            }
        };
        format!("  {}  {what}", self.name)
    }
}

/// A file with new keys that nobody has agreed on yet, beside the one that they are for.
struct Draft {
    draft: PathBuf,
    file: PathBuf,
}

impl Draft {
    fn write(file: PathBuf, keys: &Credentials) -> Result<Self, KeysError> {
        let draft = PathBuf::from(format!("{}.new", file.display()));
        credentials::write(&draft, keys, None).map_err(|error| failed(&draft, error))?;
        Ok(Self { draft, file })
    }

    /// Puts it in place.
    fn keep(self) -> Result<PathBuf, KeysError> {
        let renamed = fs::rename(&self.draft, &self.file);
        let kept = renamed.and_then(|()| private::sync_above(&self.file));
        kept.map_err(|error| {
            let told = failed(&self.file, error);
            KeysError::NotDone(format!(
                "root's keys are rotated, and the new ones are in {}: {told}",
                self.draft.display()
            ))
        })?;
        Ok(self.file)
    }

    fn give_up(self) {
        // One that stays has keys that nobody takes.
        let _gone = fs::remove_file(&self.draft);
    }
}

fn failed(path: &Path, source: std::io::Error) -> KeysError {
    CredentialsError::File { path: path.display().to_string(), source }.into()
}

fn pair_of(keys: &Credentials) -> KeyPair {
    let Credentials { access_key, secret_key } = keys.clone();
    KeyPair { access_key, secret_key }
}

fn summary(root: &RootRecord) -> String {
    let RootRecord { generation, current, previous } = root;
    let both = previous.as_ref().map(|previous| {
        format!("; access key {} is taken, too, until `larder keys retire`", previous.access_key)
    });
    let access_key = &current.access_key;
    format!("generation {generation}, access key {access_key}{}", both.unwrap_or_default())
}

/// Refuses a rotation that some server would not hear of, or that would end keys still in use.
fn may_rotate(map: &Topology) -> Result<(), KeysError> {
    if map.cluster_version < PROTOCOL_ROOT_KEYS {
        return Err(KeysError::NotDone(format!(
            "the cluster's version is {}, and proxies take keys from the managers from {PROTOCOL_ROOT_KEYS} on: upgrade \
             all servers, or start those that are down, and see `larder status --json`",
            map.cluster_version
        )));
    }
    match &map.root {
        Some(root) if root.previous.is_some() => Err(refused(Refusal::RootNotRetired)),
        _ => Ok(()),
    }
}

fn refused(refusal: Refusal) -> KeysError {
    match refusal {
        Refusal::BadKeys => KeysError::Usage(refusal.to_string()),
        Refusal::RootNotRetired => KeysError::NotDone(format!("{refusal} (larder keys retire)")),
        refusal => KeysError::Role(RoleError::NotDone(refusal.to_string())),
    }
}
