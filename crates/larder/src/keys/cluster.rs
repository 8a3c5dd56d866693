//! Root's keys of a cluster: the managers agree on them, and proxies take them from the managers' map.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use larder_net::Endpoint;
use larder_protocol::limits::{ACCESS_KEY_BYTES, SECRET_KEY_BYTES};
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

use super::{Done, KeysError, NewKeys, used};
use crate::cluster::RoleConfig;
use crate::cluster::admin_client::{connect, is_confirmed, managers, runtime};
use crate::credentials::{self, CredentialsError};
use crate::private_file;

/// Time that proxies have to take new keys, before the command says which have not.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// Time that a proxy has to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two questions.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Where new keys are kept.
pub(super) enum KeyPlace {
    /// This file of the machine, which its proxy writes once it takes them.
    ByProxy(PathBuf),
    /// This file of a development cluster.
    ByCommand(PathBuf),
    /// A file that the operator names.
    Elsewhere,
}

/// The servers of a cluster on this machine.
pub(super) struct Keeper {
    /// Of the manager here, or another server.
    pub(super) config: RoleConfig,
    pub(super) kept: KeyPlace,
    /// Directory as further commands are to name it, behind a space.
    pub(super) hint: String,
}

/// A connection to the managers, and to proxies.
struct Cluster {
    endpoint: Arc<Endpoint>,
    managers: Arc<ManagersClient>,
}

type Proxies = BTreeMap<ServerId, Proxy>;

/// A proxy of the map.
struct Proxy {
    name: String,
    is_up: bool,
    taken: Option<KeysTaken>,
}

impl Keeper {
    pub(super) fn status(&self) -> Result<Done, KeysError> {
        runtime()?.block_on(async {
            let (endpoint, managers) = connect(&self.config).await?;
            let cluster = Cluster { endpoint, managers };
            // A map that nobody calls the latest says how it was.
            let is_latest = is_confirmed(&*cluster.managers).await;
            let map = cluster.managers.map();
            let mut lines = vec![match &map.root {
                None => {
                    "root's keys were never rotated: proxies have them from their files".to_owned()
                }
                Some(root) => summary(root, &self.hint),
            }];
            if !is_latest {
                lines.push(
                    "no manager has confirmed that this is the latest state: it may be out of date"
                        .to_owned(),
                );
            }
            let proxies = cluster.proxies(&map).await;
            let generation = map.root_generation();
            lines.extend(proxies.values().map(|proxy| proxy.describe(generation)));
            let mut taken = proxies.values().filter_map(|proxy| proxy.taken.as_ref());
            let first = taken.next().map(|it| (&it.access_key, it.generation));
            let differ = taken.any(|it| Some((&it.access_key, it.generation)) != first);
            if differ {
                lines.push(
                    "PROXIES TAKE DIFFERENT KEYS: clients are refused by some of them".to_owned(),
                );
            }
            let is_whole = !differ && proxies.values().all(|proxy| proxy.takes(generation));
            Ok(Done { lines, is_whole })
        })
    }

    pub(super) fn rotate(
        &self,
        wanted: &NewKeys<'_>,
        current: Option<&Path>,
        into: Option<&Path>,
    ) -> Result<Done, KeysError> {
        let new = wanted.made()?;
        check("the new keys", &new)?;
        let file = self.target(wanted, into)?;
        runtime()?.block_on(async {
            let cluster = self.as_manager().await?;
            let map = cluster.managers.map();
            may_rotate(&map, wanted.at_once, &self.hint)?;
            let proxies = cluster.proxies(&map).await;
            if map.root.is_none() {
                refuse_if_fixed(&proxies)?;
            }
            let keep = self.kept(&map, wanted, (current, &proxies))?;
            let draft = file.map(|file| Draft::write(file, &new)).transpose()?;
            let generation = map.root_generation();
            let command = Command::RotateRoot(generation, pair_of(&new), keep.clone());
            if let Err(refusal) = cluster.agreed(command, draft.as_ref()).await? {
                if let Some(draft) = draft {
                    draft.give_up();
                }
                return Err(refused(refusal, &self.hint));
            }
            let proxies = cluster.taken(generation + 1).await;
            let (lines_of_servers, is_kept) = self.whereabouts(draft, &new).await;
            let (count, all) = (taking(&proxies, generation + 1), proxies.len());
            let mut lines = vec![format!(
                "root's keys are rotated: generation {}, access key {}; {count} of {all} proxies take them",
                generation + 1,
                new.access_key
            )];
            lines.extend(lines_of_servers);
            lines.push(match keep {
                Keep::Nothing => "all keys before are refused wherever the new ones are taken".to_owned(),
                Keep::Current | Keep::OfFiles(_) => format!(
                    "the pair before is taken, too, until `larder keys retire{}`",
                    self.hint
                ),
            });
            lines.extend(proxies.values().map(|proxy| proxy.describe(generation + 1)));
            Ok(Done { lines, is_whole: is_kept && count == all })
        })
    }

    pub(super) fn retire(&self, yes: bool) -> Result<Done, KeysError> {
        runtime()?.block_on(async {
            let cluster = self.as_manager().await?;
            let map = cluster.managers.map();
            let generation = map.root_generation();
            if !yes {
                let proxies = cluster.proxies(&map).await;
                let mut lines = describe(&proxies, generation);
                let has_previous = map.root.as_ref().is_some_and(|root| root.previous.is_some());
                lines.push(match has_previous {
                    true => "requests signed with the pair before would be refused. Nothing was changed: to do it, \
                             add --yes"
                        .to_owned(),
                    false => "nothing to do: one pair of keys is taken".to_owned(),
                });
                let is_whole = taking(&proxies, generation) == proxies.len();
                return Ok(Done { lines, is_whole });
            }
            let (generation, was_done) =
                match cluster.agreed(Command::RetireRoot(generation), None).await? {
                    Ok(Outcome::Already) => (generation, true),
                    Ok(_) => (generation + 1, false),
                    Err(refusal) => return Err(refused(refusal, &self.hint)),
                };
            let proxies = cluster.taken(generation).await;
            let (count, all) = (taking(&proxies, generation), proxies.len());
            let mut lines = vec![match was_done {
                true => format!(
                    "nothing to do: one pair of keys is taken; {count} of {all} proxies are known to refuse others"
                ),
                false => format!(
                    "the pair before is retired: generation {generation}; {count} of {all} proxies refuse it"
                ),
            }];
            lines.extend(describe(&proxies, generation));
            Ok(Done { lines, is_whole: count == all })
        })
    }

    async fn as_manager(&self) -> Result<Cluster, KeysError> {
        // Nobody else may change them.
        let managers = managers(&self.config).await?;
        let (endpoint, _) = connect(&self.config).await?;
        Ok(Cluster { endpoint, managers })
    }

    /// The file that new keys are for; `None` where the operator has them in one.
    fn target(
        &self,
        wanted: &NewKeys<'_>,
        into: Option<&Path>,
    ) -> Result<Option<PathBuf>, KeysError> {
        match (into, &self.kept) {
            (Some(into), _) if into.exists() => Err(KeysError::Usage(format!(
                "{} exists: name a file for the new keys that does not",
                into.display()
            ))),
            (Some(into), _) => Ok(Some(into.to_owned())),
            (None, KeyPlace::ByCommand(file)) => Ok(Some(file.clone())),
            (None, _) if wanted.keys.is_some() => Ok(None),
            (None, KeyPlace::ByProxy(file)) if file.is_symlink() => {
                Err(KeysError::NotDone(format!(
                    "{} is a link, whose file somebody else keeps: name a file for the new keys with --into FILE, or give \
                 them with --keys FILE. Nothing was changed",
                    file.display()
                )))
            }
            (None, KeyPlace::ByProxy(file)) => Ok(Some(file.clone())),
            (None, KeyPlace::Elsewhere) => Err(KeysError::Usage(
                "name a file for the new keys with --into FILE, or give them with --keys FILE"
                    .to_owned(),
            )),
        }
    }

    /// The pair that goes on being taken.
    fn kept(
        &self,
        map: &Topology,
        wanted: &NewKeys<'_>,
        (current, proxies): (Option<&Path>, &Proxies),
    ) -> Result<Keep, KeysError> {
        if map.root.is_some() && current.is_some() {
            return Err(KeysError::Usage(
                "the managers have the present keys: leave --current out".to_owned(),
            ));
        }
        if wanted.at_once {
            return Ok(Keep::Nothing);
        }
        if map.root.is_some() {
            return Ok(Keep::Current);
        }
        let file = match (current, &self.kept) {
            (Some(file), _) => file,
            (None, KeyPlace::ByProxy(file) | KeyPlace::ByCommand(file)) => file.as_path(),
            (None, KeyPlace::Elsewhere) => {
                return Err(KeysError::Usage(
                    "the managers do not know the present keys yet: name the file with --current FILE \
                     (credentials.toml of a proxy), or have them refused with --at-once"
                        .to_owned(),
                ));
            }
        };
        let present = credentials::read_given(file)?;
        check("the present keys", &present)?;
        // Else the keys that clients have would be refused.
        for proxy in proxies.values().filter(|proxy| proxy.is_up) {
            let takes = proxy.taken.as_ref().map(|taken| &taken.access_key);
            if takes != Some(&present.access_key) {
                let takes = takes.map_or("does not say what it takes", |key| key);
                return Err(KeysError::NotDone(format!(
                    "{} has access key {}, and {}: {takes}. Nothing was changed: name the file with the keys that \
                     proxies take with --current FILE, or have all keys before refused with --at-once",
                    file.display(),
                    present.access_key,
                    proxy.name
                )));
            }
        }
        Ok(Keep::OfFiles(pair_of(&present)))
    }

    /// Where the new keys are, for people; false if they are not where they belong.
    async fn whereabouts(&self, draft: Option<Draft>, new: &Credentials) -> (Option<String>, bool) {
        let Some(draft) = draft else { return (None, true) };
        let both_in = |file: &Path| Some(format!("both of its keys are in {}", file.display()));
        let file = draft.file.clone();
        let is_by_proxy = matches!(&self.kept, KeyPlace::ByProxy(own) if *own == file);
        if !is_by_proxy {
            return match draft.keep() {
                Ok(file) => (both_in(&file), true),
                Err(why) => (Some(why), false),
            };
        }
        let is_there = |kept: Credentials| {
            kept.access_key == new.access_key && kept.secret_key == new.secret_key
        };
        // The proxy says that it takes them before it has written the file.
        let until = Instant::now() + TAKEN_WITHIN;
        loop {
            if credentials::read_given(&file).is_ok_and(is_there) {
                draft.give_up();
                return (both_in(&file), true);
            }
            if Instant::now() >= until {
                break;
            }
            sleep(POLL_INTERVAL).await;
        }
        let lines_of_servers = format!(
            "BOTH OF ITS KEYS ARE IN {}: this machine's proxy has not written {}",
            draft.draft.display(),
            file.display()
        );
        (Some(lines_of_servers), false)
    }
}

impl Cluster {
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
    async fn proxies(&self, map: &Topology) -> Proxies {
        let (peers, mut asked) = (Peers::<ProxyService>::new(&self.endpoint), JoinSet::new());
        for (&id, record) in &map.servers {
            // An entry of a server that never started does not count.
            let is_one = matches!(record.state, ServerState::Up | ServerState::Down);
            if !is_one || !record.roles.contains(&ServerRole::Proxy) {
                continue;
            }
            let is_up = record.state == ServerState::Up;
            let peer = peers.of(map, id).filter(|_| is_up);
            let name = record.name.clone();
            asked.spawn(async move {
                let deadline = Instant::now() + TIMEOUT;
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

    /// All proxies, once those that are up take this generation, or some do not in time.
    async fn taken(&self, generation: u32) -> Proxies {
        let until = Instant::now() + TAKEN_WITHIN;
        loop {
            let proxies = self.proxies(&self.managers.map()).await;
            let waits = |proxy: &Proxy| proxy.is_up && !proxy.takes(generation);
            if !proxies.values().any(waits) || Instant::now() >= until {
                return proxies;
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

fn describe(proxies: &Proxies, generation: u32) -> Vec<String> {
    proxies.values().map(|proxy| proxy.describe(generation)).collect()
}

/// Number of proxies that take this generation.
fn taking(proxies: &Proxies, generation: u32) -> usize {
    proxies.values().filter(|proxy| proxy.takes(generation)).count()
}

/// Refuses where what the managers keep would not count.
fn refuse_if_fixed(proxies: &Proxies) -> Result<(), KeysError> {
    let is_fixed = |proxy: &&Proxy| proxy.taken.as_ref().is_some_and(|taken| taken.is_fixed);
    let fixed: Vec<&str> =
        proxies.values().filter(is_fixed).map(|proxy| proxy.name.as_str()).collect();
    if fixed.is_empty() {
        return Ok(());
    }
    Err(KeysError::NotDone(format!(
        "these have root's keys from their environment, which the managers do not change: {}. Change {} and {} there, and \
         restart them. Nothing was changed",
        fixed.join(", "),
        credentials::ACCESS_VARIABLE,
        credentials::SECRET_VARIABLE
    )))
}

impl Proxy {
    /// True if it is known to take this generation.
    fn takes(&self, generation: u32) -> bool {
        let takes = |taken: &KeysTaken| {
            // Before the first rotation each has its own.
            generation == 0 || !taken.is_fixed && taken.generation >= generation
        };
        self.taken.as_ref().is_some_and(takes)
    }

    fn describe(&self, generation: u32) -> String {
        let what = match &self.taken {
            None => {
                let what = if self.is_up { "DOES NOT ANSWER" } else { "is not reached" };
                format!(
                    "{what}: if it runs, it takes the keys before until it hears from a manager"
                )
            }
            Some(taken) if taken.is_fixed => format!(
                "TAKES KEYS OF ITS ENVIRONMENT, access key {}: the managers' do not count there",
                taken.access_key
            ),
            Some(taken) if taken.generation < generation => format!(
                "IS BEHIND: it takes generation {}, access key {}, until it hears from a manager",
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
        let is_in_place = || {
            let pairs = (credentials::read_given(&draft), credentials::read_given(&file));
            matches!(pairs, (Ok(draft), Ok(kept))
                if (&draft.access_key, &draft.secret_key) == (&kept.access_key, &kept.secret_key))
        };
        // The keys of a rotation with an unknown outcome.
        if fs::symlink_metadata(&draft).is_ok() && !is_in_place() {
            return Err(KeysError::NotDone(format!(
                "{0} is left of an earlier rotation: if `larder keys status` shows its access key, these keys count, and \
                 the file is to be moved to {1}; else remove it. Nothing was changed",
                draft.display(),
                file.display()
            )));
        }
        credentials::write(&draft, keys, None).map_err(|error| failed(&draft, error))?;
        Ok(Self { draft, file })
    }

    /// Puts it in place; else the reason, for people.
    fn keep(self) -> Result<PathBuf, String> {
        if let Err(error) = fs::rename(&self.draft, &self.file) {
            return Err(format!(
                "BOTH OF ITS KEYS ARE IN {}, which could not be moved to {}: {error}",
                self.draft.display(),
                self.file.display()
            ));
        }
        if let Err(error) = private_file::sync_above(&self.file) {
            return Err(format!(
                "both of its keys are in {}, which a power cut may take back: {error}",
                self.file.display()
            ));
        }
        Ok(self.file)
    }

    fn give_up(self) {
        // One that stays has keys that nobody takes, or that are in their place.
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

/// Refuses keys that managers would refuse, and says which.
fn check(what: &str, keys: &Credentials) -> Result<(), KeysError> {
    match pair_of(keys).is_sound() {
        true => Ok(()),
        false => Err(KeysError::Usage(format!(
            "{what} do not do: an access key has {} to {} letters, digits, '_', '-' or '.', a secret key {} to {} bytes \
             without control characters",
            ACCESS_KEY_BYTES.start(),
            ACCESS_KEY_BYTES.end(),
            SECRET_KEY_BYTES.start(),
            SECRET_KEY_BYTES.end()
        ))),
    }
}

fn summary(root: &RootRecord, hint: &str) -> String {
    let RootRecord { generation, current, previous } = root;
    let both = previous.as_ref().map(|previous| {
        format!(
            "; access key {} is taken, too, until `larder keys retire{hint}`",
            previous.access_key
        )
    });
    let access_key = &current.access_key;
    format!("generation {generation}, access key {access_key}{}", both.unwrap_or_default())
}

/// Refuses a rotation that some server would not learn, or that would end keys still in use.
fn may_rotate(map: &Topology, at_once: bool, hint: &str) -> Result<(), KeysError> {
    if map.cluster_version < PROTOCOL_ROOT_KEYS {
        return Err(KeysError::NotDone(format!(
            "the cluster's version is {}, and proxies take keys from the managers from {PROTOCOL_ROOT_KEYS} on: upgrade \
             all servers, or start those that are down, and see `larder status --json`",
            map.cluster_version
        )));
    }
    match &map.root {
        Some(root) if root.previous.is_some() && !at_once => {
            Err(refused(Refusal::RootNotRetired, hint))
        }
        _ => Ok(()),
    }
}

fn refused(refusal: Refusal, hint: &str) -> KeysError {
    match refusal {
        Refusal::BadKeys => KeysError::Usage(refusal.to_string()),
        Refusal::RootNotRetired => {
            KeysError::NotDone(format!("{refusal} (larder keys retire{hint})"))
        }
        Refusal::RootChanged => KeysError::NotDone(format!(
            "{refusal}, by somebody else, or this machine has not heard of it yet. Nothing was changed: see `larder keys \
             status{hint}`, and run it again"
        )),
        refusal => KeysError::NotDone(refusal.to_string()),
    }
}
