//! The managers over the net: a task that keeps the map fresh, and the ways to speak to whoever leads.
//!
//! # Invariants
//!
//! 1. The map here never goes back to an older version.
//! 2. A manager that is cut off from the others keeps no server with its old map: after each wait without news
//!    another manager is asked.
//! 3. A proposal is repeated only if it was certainly not taken.
//! 4. A manager that stands still keeps nobody from a map of which others have told.
//! 5. Servers that the map here calls removed are refused by this process's endpoint before the map is shown.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use larder_net::{CallError, JoinToken};
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::{Applied, Command, MapVersion, NewServer, Topology};
use larder_types::ServerId;
use larder_types::codec::decode;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::{Contacts, Managers, NotProposed};
use crate::clock::since_1970_ms;
use crate::limits::{
    MANAGER_AVOIDED_MS, MANAGERS_PAUSE_MS_MAX, MANAGERS_PAUSE_MS_MIN, MAP_ANSWER_MS, MAP_TOLD_MS,
    MAP_WAIT_MS, PROPOSE_WAIT_MS, SAID_TO_MANAGERS,
};
use crate::quorum::NotIssued;
use crate::wire::{ManagerCall, ManagerMessageIn, ManagerReply};

/// See the module's head. Dropped, it asks no more.
pub struct ManagersClient {
    known: Arc<Known>,
    following: JoinHandle<()>,
}

/// What is known of the managers.
struct Known {
    contacts: Arc<Contacts>,
    map: RwLock<Arc<Topology>>,
    version: watch::Sender<MapVersion>,
    /// The latest that somebody told of.
    told: watch::Sender<MapVersion>,
    /// Who led when last it mattered.
    leader: Mutex<Option<ServerId>>,
    /// Messages said so far.
    said: AtomicUsize,
}

impl Drop for ManagersClient {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl ManagersClient {
    /// Begins to follow the managers; the map is empty until one answers.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(contacts: Arc<Contacts>) -> Self {
        let known = Arc::new(Known {
            contacts,
            map: RwLock::default(),
            version: watch::Sender::new(MapVersion(0)),
            told: watch::Sender::new(MapVersion(0)),
            leader: Mutex::new(None),
            said: AtomicUsize::new(0),
        });
        let following = tokio::spawn(follow(known.clone()));
        Self { known, following }
    }

    /// Gives a server a place in the map, and a token with which it takes it; for who has a manager's certificate.
    ///
    /// # Errors
    /// [`NotIssued`], by what to do.
    pub async fn issue_token(
        &self,
        server: NewServer,
        expires: Option<SystemTime>,
    ) -> Result<(ServerId, JoinToken), NotIssued> {
        let expires_ms = expires.map(since_1970_ms);
        let call = ManagerCall::IssueToken(Box::new(server), expires_ms);
        // As long as the manager waits for the three things that it has to wait for, and a moment.
        let wait = Duration::from_millis(3 * PROPOSE_WAIT_MS + MAP_ANSWER_MS);
        let (map, mut end) = (self.map(), NotIssued::NoAuthority);
        for manager in self.known.contacts.all(&map) {
            let deadline = Instant::now() + wait;
            match self.known.contacts.call(&map, manager, &call, deadline).await {
                Ok((ManagerReply::Issued(server), token)) => {
                    let token = String::from_utf8_lossy(&token).parse();
                    let token = token.map_err(|error| NotIssued::Told(format!("{error}")))?;
                    return Ok((server, token));
                }
                Ok((ManagerReply::NotIssued, why)) => {
                    return Err(NotIssued::Told(String::from_utf8_lossy(&why).into_owned()));
                }
                Ok((ManagerReply::NoAuthority, _)) => {}
                Err(error @ (CallError::NotSent(_) | CallError::Denied(_))) => {
                    tracing::debug!(%manager, %error, "a manager cannot be asked");
                    end = NotProposed::NoLeader.into();
                }
                Err(CallError::Busy(_)) => return Err(NotProposed::Busy.into()),
                Ok(_) | Err(_) => return Err(NotProposed::Unknown.into()),
            }
        }
        Err(end)
    }
}

impl ManagersClient {
    /// Where managers may be.
    #[must_use]
    pub fn places(&self) -> Vec<(ServerId, String)> {
        self.known.contacts.places(&self.map())
    }

    /// The text of the authority's file, of the first other manager that gives it; for managers.
    pub(crate) async fn authority(&self, me: ServerId) -> Option<Bytes> {
        let map = self.map();
        for manager in self.known.contacts.all(&map).into_iter().filter(|it| *it != me) {
            let deadline = Instant::now() + Duration::from_millis(MAP_ANSWER_MS);
            let call = ManagerCall::Authority;
            match self.known.contacts.call(&map, manager, &call, deadline).await {
                Ok((ManagerReply::Authority, text)) => return Some(text),
                Ok((reply, _)) => tracing::debug!(%manager, ?reply, "no key of the authority"),
                // A manager of an older release does not understand the question.
                Err(error) => tracing::debug!(%manager, %error, "no key of the authority"),
            }
        }
        None
    }
}

impl Managers for ManagersClient {
    fn map(&self) -> Arc<Topology> {
        self.known.map()
    }

    fn versions(&self) -> watch::Receiver<MapVersion> {
        self.known.version.subscribe()
    }

    fn told_of(&self, version: MapVersion) {
        self.known.told.send_if_modified(|told| {
            let is_later = version > *told;
            *told = (*told).max(version);
            is_later
        });
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
        self.known.propose(ManagerCall::Propose(command)).boxed()
    }

    /// To the manager that leads as far as is known, and to others in turn, which hand it on: a leader that has lost
    /// its power keeps its connections for seconds, in which this server would be taken for silent.
    fn say(&self, message: ServerMessage) {
        let map = self.map();
        let message = ManagerMessageIn::Server(message);
        let all = self.known.contacts.all(&map);
        let turn = self.known.said.fetch_add(1, Ordering::Relaxed);
        let leader = self.known.leader.lock().filter(|leader| all.contains(leader));
        let others = (0..all.len()).map(|at| all[(turn + at) % all.len()]);
        let others = others.filter(|other| Some(*other) != leader);
        let mut sent = 0;
        for manager in leader.into_iter().chain(others) {
            match self.known.contacts.send(&map, manager, &message, &Bytes::new()) {
                Ok(()) => sent += 1,
                Err(error) => tracing::debug!(%manager, %error, "a manager was not told"),
            }
            if sent == SAID_TO_MANAGERS {
                return;
            }
        }
    }
}

impl Known {
    fn map(&self) -> Arc<Topology> {
        self.map.read().clone()
    }

    /// Shows a map, unless a newer one is shown already.
    fn show(&self, map: Topology) {
        let version = map.version;
        let mut shown = self.map.write();
        if version > shown.version {
            // Under the lock: the servers refused are those of the newest map.
            self.contacts.refuse_removed(&map);
            *shown = Arc::new(map);
            drop(shown);
            self.version.send_replace(version);
        }
    }

    /// Returns when a map later than this one was told of, and could have come since.
    async fn overdue(&self, known: MapVersion) {
        if self.told.subscribe().wait_for(|told| *told > known).await.is_err() {
            return pending().await;
        }
        sleep(Duration::from_millis(MAP_TOLD_MS)).await;
    }

    async fn propose(&self, call: ManagerCall) -> Result<Applied, NotProposed> {
        let deadline = Instant::now() + Duration::from_millis(PROPOSE_WAIT_MS);
        let mut pause = Duration::from_millis(MANAGERS_PAUSE_MS_MIN);
        loop {
            if let Some(end) = self.ask_all(&call, deadline).await {
                return end;
            }
            if Instant::now() + pause >= deadline {
                return Err(NotProposed::NoLeader);
            }
            sleep(pause).await;
            pause = longer(pause);
        }
    }

    /// Asks each manager once, whom another names first; `None` if none of them leads.
    async fn ask_all(
        &self,
        call: &ManagerCall,
        deadline: Instant,
    ) -> Option<Result<Applied, NotProposed>> {
        let map = self.map();
        let mut left = self.contacts.all(&map);
        let mut named = *self.leader.lock();
        while !left.is_empty() {
            let at = named.take().and_then(|named| left.iter().position(|it| *it == named));
            let manager = left.remove(at.unwrap_or(0));
            match self.contacts.call(&map, manager, call, deadline).await {
                Ok((ManagerReply::Applied(applied), _)) => {
                    *self.leader.lock() = Some(manager);
                    return Some(Ok(applied));
                }
                Ok((ManagerReply::NotLeader(leader), _)) => named = leader,
                Ok((ManagerReply::NotAllowed, _)) => return Some(Err(NotProposed::NotAllowed)),
                Ok((ManagerReply::Busy, _)) | Err(CallError::Busy(_)) => {
                    return Some(Err(NotProposed::Busy));
                }
                Err(error @ (CallError::NotSent(_) | CallError::Denied(_))) => {
                    tracing::debug!(%manager, %error, "a manager cannot be asked");
                }
                Err(error @ CallError::Rejected(_)) => {
                    tracing::error!(%manager, %error, "a proposal was not understood");
                    return Some(Err(NotProposed::Unknown));
                }
                Ok(_) | Err(CallError::Unknown(_)) => return Some(Err(NotProposed::Unknown)),
            }
        }
        None
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(Duration::from_millis(MANAGERS_PAUSE_MS_MAX))
}

/// Asks one manager after the other for newer maps.
async fn follow(known: Arc<Known>) {
    let mut avoided: BTreeMap<ServerId, Instant> = BTreeMap::new();
    let mut pause = Duration::from_millis(MANAGERS_PAUSE_MS_MIN);
    let (mut turn, mut failures) = (0_usize, 0);
    loop {
        let map = known.map();
        let all = known.contacts.all(&map);
        let now = Instant::now();
        avoided.retain(|_, until| *until > now);
        let in_turn = (0..all.len()).map(|at| all[(turn + at) % all.len()]);
        let manager = in_turn.clone().find(|it| !avoided.contains_key(it)).or(in_turn.min());
        let answer = match manager {
            Some(manager) => tokio::select! {
                answer = ask_map(&known, &map, manager) => answer,
                () = known.overdue(map.version) => Ok(false),
            },
            None => Err("no manager is known".to_owned()),
        };
        match answer {
            // This one has news: stay with it.
            Ok(true) => failures = 0,
            Ok(false) => (failures, turn) = (0, turn.wrapping_add(1)),
            Err(error) => {
                tracing::debug!(?manager, %error, "no map");
                let until = Instant::now() + Duration::from_millis(MANAGER_AVOIDED_MS);
                avoided.extend(manager.map(|manager| (manager, until)));
                (failures, turn) = (failures + 1, turn.wrapping_add(1));
            }
        }
        if failures == 0 {
            pause = Duration::from_millis(MANAGERS_PAUSE_MS_MIN);
        } else if failures >= all.len() {
            tracing::warn!(managers = all.len(), "no manager answers");
            avoided.clear();
            failures = 0;
            sleep(pause).await;
            pause = longer(pause);
        }
    }
}

/// Whether a manager had a newer map, which is shown then.
async fn ask_map(known: &Known, map: &Topology, manager: ServerId) -> Result<bool, String> {
    let deadline = Instant::now() + Duration::from_millis(MAP_WAIT_MS + MAP_ANSWER_MS);
    let call = ManagerCall::Map(map.version);
    match known.contacts.call(map, manager, &call, deadline).await {
        Ok((ManagerReply::Map, payload)) => {
            let newer = decode::<Topology>("the topology map", &payload);
            let newer = newer.map_err(|error| error.to_string())?;
            if let Some(why) = newer.contradiction() {
                return Err(format!("its map contradicts itself: {why}"));
            }
            known.show(newer);
            Ok(true)
        }
        Ok((ManagerReply::Unchanged, _)) => Ok(false),
        Ok((other, _)) => Err(format!("{other:?} is no answer")),
        Err(error) => Err(error.to_string()),
    }
}
