//! The managers over the net: a task that keeps the map fresh, and calls to the leading manager.
//!
//! # Invariants
//!
//! 1. The map here never goes back to an older version.
//! 2. A manager that is cut off from the others keeps no server with its old map: after each wait without news
//!    another manager is asked.
//! 3. A proposal is repeated only if it was certainly not taken.
//! 4. A manager that stands still or is cut off keeps nobody from a map for long, and not at all from one of which others
//!    have told.
//! 5. With a [`MapStore`] a map that lacks something of the one that is kept is not shown.
//! 6. What a manager says counts as heard only if its map is the latest that is shown here, or becomes it.
//! 7. Servers that the map here calls removed are refused by this process's endpoint before the map is shown.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use larder_identity::JoinToken;
use larder_net::CallError;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::{Applied, Command, MapVersion, NewServer, Topology};
use larder_types::ServerId;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::committed::committed;
use super::fetch::{Fetch, FetchReply, FetchState, Held, Progress};
use super::map_sources::{MapQuery, MapSources, longer};
use super::{
    Colocated, Contacts, Managers, MapStore, NotIssued, NotProposed, OlderMap, VersionWatch,
    Versions,
};
use crate::clock::since_1970_ms;
use crate::limits::{
    AUTHORITY_WAIT_MS, ISSUE_MS_MAX, MANAGERS_PAUSE_MS_MIN, MANAGERS_PER_MESSAGE, MAP_ANSWER_MS,
    MAP_NOTIFY_MS, OLDER_MAP_LOG_MS, PROPOSE_WAIT_MS, PROTOCOL_BEATS,
};
use crate::planted::{Bug, has};
use crate::wire::{Beat, ManagerCall, ManagerMessageIn, ManagerReply};

/// See the module's head. Dropping it ends its requests.
pub struct ManagersClient {
    known: Arc<State>,
    following: JoinHandle<()>,
    keeping: Option<JoinHandle<()>>,
    colocated: Option<Arc<Colocated>>,
}

/// The client's state.
struct State {
    contacts: Arc<Contacts>,
    held: RwLock<Held>,
    version: Versions,
    map_store: Option<Arc<MapStore>>,
    /// The last map received, if it lacks something of the stored one.
    older: watch::Sender<Option<OlderMap>>,
    /// The time since when only such maps arrived, and true once that was logged.
    older_since: Mutex<Option<(Instant, bool)>>,
    /// The state of the fetches of maps.
    fetches: FetchState,
    /// The manager that led when last it mattered.
    leader: Mutex<Option<ServerId>>,
    /// Messages sent so far.
    said: AtomicUsize,
    /// Beats sent so far. It chooses the manager of the next one, independently of other messages.
    beats: AtomicUsize,
    /// The last time that a manager sent a later map, or confirmed that there is none.
    replied: Mutex<Instant>,
}

impl Drop for ManagersClient {
    fn drop(&mut self) {
        self.following.abort();
        self.keeping.iter().for_each(JoinHandle::abort);
    }
}

impl ManagersClient {
    /// Begins to follow the managers; the map is empty until one responds.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(contacts: Arc<Contacts>) -> Self {
        Self::begin(contacts, None)
    }

    /// The same for a server that keeps the map.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start_keeping(contacts: Arc<Contacts>, map_store: Arc<MapStore>) -> Self {
        Self::begin(contacts, Some(map_store))
    }

    fn begin(contacts: Arc<Contacts>, map_store: Option<Arc<MapStore>>) -> Self {
        let known = Arc::new(State {
            contacts,
            held: RwLock::default(),
            version: Versions::new(MapVersion(0)),
            map_store,
            older: watch::Sender::new(None),
            older_since: Mutex::new(None),
            fetches: FetchState::default(),
            leader: Mutex::new(None),
            said: AtomicUsize::new(0),
            beats: AtomicUsize::new(0),
            replied: Mutex::new(Instant::now()),
        });
        let following = tokio::spawn(follow(known.clone()));
        let keeping = known.map_store.clone().map(|map_store| {
            let known = known.clone();
            tokio::spawn(async move {
                match map_store.keep(known.version.subscribe(), || known.map()).await {}
            })
        });
        Self { known, following, keeping, colocated: None }
    }

    /// The time at which a start that began then gives up, unless there is a map. The wait begins anew with each page of it,
    /// and while a manager that has sent some is busy with others.
    #[must_use]
    pub fn start_gives_up(&self, begun: Instant, max_wait: Duration) -> Instant {
        self.known.fetches.signs().give_up(begun, max_wait)
    }

    /// Returns once managers have said for longer than an election takes that they have no quorum, and none has told a map.
    pub async fn without_quorum(&self) {
        self.known.fetches.without_quorum().await;
    }

    /// Returns true if a manager that was asked lately said that it has no quorum, and none has told a map since.
    #[must_use]
    pub fn lacks_quorum(&self) -> bool {
        self.known.fetches.signs().without_quorum().is_some()
    }

    /// The same for a server beside others in its process.
    #[must_use]
    pub fn with_colocated(mut self, colocated: Option<Arc<Colocated>>) -> Self {
        self.colocated = colocated;
        self
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
        // As long as the manager may take, and a moment.
        let wait = Duration::from_millis(ISSUE_MS_MAX + MAP_ANSWER_MS);
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
                    tracing::debug!(%manager, %error, "a manager cannot be reached");
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

    /// The last map from managers, if it lacks something that the stored map has, and so is not published. While a
    /// server runs such a map comes from managers of an older copy; at a start a manager may be behind for a moment.
    #[must_use]
    pub fn older(&self) -> watch::Receiver<Option<OlderMap>> {
        self.known.older.subscribe()
    }

    /// The text of the authority's file, of the first other manager that gives it; for managers.
    pub(crate) async fn authority(&self, me: ServerId) -> Option<Bytes> {
        let map = self.map();
        for manager in self.known.contacts.all(&map).into_iter().filter(|it| *it != me) {
            let deadline = Instant::now() + Duration::from_millis(AUTHORITY_WAIT_MS);
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

    fn versions(&self) -> VersionWatch {
        self.known.version.subscribe()
    }

    fn kept(&self) -> MapVersion {
        match &self.known.map_store {
            Some(map_store) if !has(Bug::ActsUnkept) => map_store.version(),
            _ => self.known.map().version,
        }
    }

    fn kept_versions(&self) -> VersionWatch {
        match &self.known.map_store {
            Some(map_store) if !has(Bug::ActsUnkept) => map_store.versions(),
            _ => self.versions(),
        }
    }

    fn silent(&self) -> Duration {
        self.known.replied.lock().elapsed()
    }

    fn note_newer_map(&self, version: MapVersion) {
        self.known.fetches.note_newer_map(version);
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
        self.known.propose(ManagerCall::Propose(command)).boxed()
    }

    fn committed(&self, deadline: Instant) -> BoxFuture<'_, Result<MapVersion, NotProposed>> {
        async move {
            let known = &self.known;
            committed(&known.contacts, &known.map(), &known.leader, deadline).await
        }
        .boxed()
    }

    /// Sends to the presumed leader, and to others in turn, which forward it. A leader that has lost power keeps its
    /// connections for seconds, in which this server would count as silent.
    fn send_message(&self, message: ServerMessage) {
        let turn = self.known.said.fetch_add(1, Ordering::Relaxed);
        self.deliver(&ManagerMessageIn::Server(message), turn);
    }

    fn beat(&self, beat: Beat) {
        let mut beat = beat;
        if self.map().cluster_version < PROTOCOL_BEATS {
            let Beat { boot, sent_ms, led, .. } = beat;
            return self.send_message(ServerMessage::Renew { boot, sent_ms, led });
        }
        // Managers that do not grant its leases may not hear it.
        let colocated = self.colocated.as_ref().filter(|_| beat.heard_by.is_some());
        beat.beside = colocated.map(|it| it.beats_to_send()).unwrap_or_default();
        let turn = self.known.beats.fetch_add(1, Ordering::Relaxed);
        self.deliver(&ManagerMessageIn::Beat(beat), turn);
    }

    fn colocated(&self) -> Option<Arc<Colocated>> {
        self.colocated.clone()
    }

    fn led_by(&self, manager: ServerId) {
        *self.known.leader.lock() = Some(manager);
    }
}

impl ManagersClient {
    /// Sends to the presumed leader, and to others in turn.
    fn deliver(&self, message: &ManagerMessageIn, turn: usize) {
        let map = self.map();
        let mut others = self.known.contacts.all(&map);
        let leader = self.known.leader.lock().filter(|leader| others.contains(leader));
        others.retain(|other| Some(*other) != leader);
        let turn = turn % others.len().max(1);
        others.rotate_left(turn);
        let is_sent = |manager: &ServerId| {
            let sent = self.known.contacts.send(&map, *manager, message, &Bytes::new());
            sent.inspect_err(|error| tracing::debug!(%manager, %error, "a manager was not reached"))
                .is_ok()
        };
        leader.into_iter().chain(others).filter(is_sent).take(MANAGERS_PER_MESSAGE).for_each(drop);
    }
}

impl State {
    fn map(&self) -> Arc<Topology> {
        self.held.read().map.clone()
    }

    /// Returns true if a map may be shown; where maps are kept, one that is no later one may not.
    fn accept(&self, map: &Topology) -> Result<bool, OlderMap> {
        let Some(map_store) = &self.map_store else { return Ok(true) };
        let accepted = map_store.accept(map);
        let mut since = self.older_since.lock();
        match accepted {
            Ok(true) => {
                if let Some((_, true)) = since.take() {
                    tracing::info!("the managers' map has caught up with this server");
                }
            }
            Ok(false) => return Ok(false),
            Err(older) => {
                let (since, is_logged) = since.get_or_insert((Instant::now(), false));
                if since.elapsed() >= Duration::from_millis(OLDER_MAP_LOG_MS)
                    && !std::mem::replace(is_logged, true)
                {
                    tracing::error!(%older, "the managers' map is behind what this server has seen: serving nothing until it catches up");
                }
            }
        }
        drop(since);
        let older = accepted.err();
        self.older.send_if_modified(|last| std::mem::replace(last, older) != older);
        accepted
    }

    /// Shows a map; `false` if one that is as late is shown already.
    fn show(&self, held: Held) -> bool {
        let version = held.map.version;
        let mut shown = self.held.write();
        if version <= shown.map.version {
            return false;
        }
        // Under the lock: the servers refused are those of the newest map. Before it is published: by the cluster's
        // version in it, servers that do not support that version are refused from here on.
        self.contacts.refuse_by(&held.map);
        *self.replied.lock() = Instant::now();
        let before = std::mem::replace(&mut *shown, held);
        drop(shown);
        // Readers wait for that lock, and not for a map to be freed.
        drop(before);
        self.version.show(version);
        true
    }

    /// Notes that a manager has no later map than the one of this version.
    fn note_silence(&self, known: MapVersion) {
        // Held on to: no other map is shown meanwhile.
        let shown = self.held.read();
        if shown.map.version == known {
            *self.replied.lock() = Instant::now();
        }
    }

    /// Returns once a later map has been announced, and has had time to arrive.
    async fn overdue(&self, known: MapVersion) {
        if self.fetches.newest().wait_for(|newest| *newest > known).await.is_err() {
            return pending().await;
        }
        sleep(Duration::from_millis(MAP_NOTIFY_MS)).await;
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

    /// Asks each manager once, first the leader that another names; `None` if none of them leads.
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
                Ok((ManagerReply::OlderManager(older), _)) => {
                    return Some(Err(NotProposed::OlderManager(older)));
                }
                Ok((ManagerReply::Busy, _)) | Err(CallError::Busy(_)) => {
                    return Some(Err(NotProposed::Busy));
                }
                Err(error @ (CallError::NotSent(_) | CallError::Denied(_))) => {
                    tracing::debug!(%manager, %error, "a manager cannot be reached");
                }
                Err(error @ CallError::Rejected(_)) => {
                    tracing::warn!(%manager, %error, "a manager could not decode a proposal");
                    return Some(Err(NotProposed::OlderManager(manager)));
                }
                Ok(_) | Err(CallError::Unknown(_)) if has(Bug::RepeatsUnknown) => {}
                Ok(_) | Err(CallError::Unknown(_)) => return Some(Err(NotProposed::Unknown)),
            }
        }
        None
    }
}

/// Asks one manager after the other for newer maps; one that is late goes on being asked, and another beside it.
async fn follow(known: Arc<State>) {
    let mut turns = MapSources::new();
    let mut asking = FuturesUnordered::new();
    let mut asked_now: BTreeMap<ServerId, MapQuery> = BTreeMap::new();
    // The manager that was asked last, and is not late yet; nobody else is asked meanwhile.
    let mut last: Option<MapQuery> = None;
    // Nobody is asked before that.
    let mut paused: Option<Instant> = None;
    let mut questions = 0;
    loop {
        let held = known.held.read().clone();
        let all = known.contacts.all(&held.map);
        // One that was late with its first page, and whose pages come by now, is waited for.
        last = last.or_else(|| asked_now.values().find(|it| it.progress.is_gathering()).cloned());
        if last.is_none()
            && paused.is_none()
            && let Some(manager) = turns.next(&all, &asked_now)
        {
            questions += 1;
            let progress = Arc::new(Progress::begin());
            let asked = MapQuery { question: questions, manager, progress };
            asking.push(answer(known.clone(), held.clone(), asked.clone()));
            asked_now.insert(manager, asked.clone());
            last = Some(asked);
        }
        let pause = tokio::select! {
            // In a simulation nothing may be drawn.
            biased;
            Some((asked, answer)) = asking.next() => {
                asked_now.remove(&asked.manager);
                last = last.filter(|last| last.question != asked.question);
                match answer {
                    Ok(has_updates) => {
                        turns.answered(has_updates);
                        None
                    }
                    Err(error) => {
                        tracing::debug!(manager = %asked.manager, %error, "the map could not be fetched");
                        turns.failed(Some(asked.manager), all.len())
                    }
                }
            }
            manager = late(last.as_ref()) => {
                tracing::debug!(%manager, "a manager's map is behind");
                last = None;
                turns.late(manager);
                None
            }
            () = known.overdue(held.map.version), if last.is_some() => {
                // That map, or a later one, is coming page by page; a manager whose pages are of an earlier one is left.
                if !last.as_ref().is_some_and(|last| last.progress.is_gathering()) {
                    last = None;
                    turns.answered(false);
                }
                None
            }
            () = passed(paused) => {
                paused = None;
                None
            }
            () = std::future::ready(()), if all.is_empty() && paused.is_none() => {
                tracing::debug!("no manager's address is known");
                turns.failed(None, 0)
            }
        };
        // An earlier question may be answered during a pause.
        paused = pause.map(|pause| Instant::now() + pause).or(paused);
    }
}

/// Returns when a pause is over, if there is one.
async fn passed(paused: Option<Instant>) {
    match paused {
        Some(until) => sleep_until(until).await,
        None => pending().await,
    }
}

/// Returns when the manager that was asked is late, if one was.
async fn late(asked: Option<&MapQuery>) -> ServerId {
    let Some(asked) = asked else { return pending().await };
    asked.progress.late().await;
    asked.manager
}

async fn answer(known: Arc<State>, held: Held, of: MapQuery) -> (MapQuery, Result<bool, String>) {
    let answered = fetch_map(&known, &held, &of).await;
    (of, answered)
}

/// Returns true if a manager had a newer map, which is shown then.
async fn fetch_map(known: &State, held: &Held, asked: &MapQuery) -> Result<bool, String> {
    let fetch = Fetch {
        contacts: &known.contacts,
        held,
        shown: known.version.subscribe(),
        manager: asked.manager,
        progress: &asked.progress,
        fetches: &known.fetches,
    };
    let reply = fetch.later().await?;
    known.fetches.has_quorum();
    match reply {
        FetchReply::Later(newer) => {
            let accepted = known.accept(&newer.map).map_err(|older| older.to_string())?;
            Ok(accepted && known.show(newer))
        }
        FetchReply::Nothing => {
            known.note_silence(held.map.version);
            Ok(false)
        }
        FetchReply::Overtaken => Ok(false),
    }
}
