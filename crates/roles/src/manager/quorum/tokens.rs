//! Join tokens: one for each server that the operator names, kept by the manager that made it.
//!
//! A token is in the map, as 32 random bytes and a time of expiry, so that it can be revoked there. Its secret is not: it
//! is in a file of its own beside the authority's key (`docs/formats/quorum.md`), so the token is valid at that manager
//! alone. If that manager is lost, another one issues a new token.
//!
//! # Invariants
//!
//! 1. A token is for one server, whose id and roles are in the map before the token is handed out.
//! 2. It is void once that server has begun its first run: a process that finds it later cannot join.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use larder_env::disk::{read_file, replace_file};
use larder_env::rng::fill_secret;
use larder_env::{Disk, DiskError};
use larder_identity::{
    Admission, AuthorityCell, Fingerprint, JoinToken, Refusal, Roles, Subject, TokenId, TokenRecord,
};
use larder_protocol::manager::state::{
    self, Applied, Command, NewServer, Outcome, ServerState, Topology,
};
use larder_types::ServerId;
use larder_types::codec::{decode, encode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64;

use super::error::ManagerError;
use super::maps::Maps;
use crate::clock::{now_ms, since_1970_ms};
use crate::identity::roles_of;
use crate::limits::{CLOCK_AHEAD_MS, PROPOSE_WAIT_MS};
use crate::managers::{Managers, ManagersClient, NotIssued, NotProposed};

/// The file of the tokens, within the manager's directory.
pub(super) const FILE: &str = "tokens";
const MAGIC: &[u8; 8] = b"LARDRTOK";
const SUM_END: usize = 16;

/// One token.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Kept {
    /// Its id in the map.
    place: state::TokenId,
    /// The record that a joiner's proof is verified with.
    record: TokenRecord,
}

/// The tokens that may still be used.
pub(super) struct TokenBook {
    disk: Arc<dyn Disk>,
    kept: Mutex<BTreeMap<TokenId, Kept>>,
}

impl TokenBook {
    /// An empty book. [`TokenBook::save`] replaces any file that there is.
    pub(super) fn begin(disk: Arc<dyn Disk>) -> Self {
        Self { disk, kept: Mutex::default() }
    }

    /// Reads the book; it is empty if there is none.
    pub(super) fn open(disk: Arc<dyn Disk>) -> Result<Self, ManagerError> {
        let bytes = match read_file(&*disk, FILE) {
            Ok(bytes) => bytes,
            Err(DiskError::NotFound { .. }) => return Ok(Self::begin(disk)),
            Err(error) => return Err(error.into()),
        };
        let unusable = |why: &str| ManagerError::Unusable { file: FILE, why: why.to_owned() };
        let sum = |value| xxh3_64(value).to_le_bytes();
        let (Some(head), Some(value)) = (bytes.get(..SUM_END), bytes.get(SUM_END..)) else {
            return Err(unusable("it is too short"));
        };
        if head[..8] != *MAGIC || head[8..] != sum(value) {
            return Err(unusable("it is damaged"));
        }
        let kept: Vec<Kept> =
            decode("the join tokens", value).map_err(|error| unusable(&error.to_string()))?;
        let kept = kept.into_iter().map(|kept| (kept.record.id(), kept)).collect();
        Ok(Self { disk, kept: Mutex::new(kept) })
    }

    /// Makes a token for a server that is in the map. It is valid once the book is saved.
    pub(super) fn add(
        &self,
        authority: Fingerprint,
        (server, roles): (ServerId, Roles),
        place: state::TokenId,
        expires: Option<SystemTime>,
    ) -> Result<JoinToken, ManagerError> {
        let (record, token) = TokenRecord::issue(authority, server, roles, expires)?;
        self.kept.lock().insert(record.id(), Kept { place, record });
        Ok(token)
    }

    /// Writes the book, without the tokens that the map makes void. Blocks.
    pub(super) fn save(&self, map: &Topology) -> Result<(), ManagerError> {
        // Locked until it is written, so that the later one of two concurrent saves has the tokens of both.
        let mut kept = self.kept.lock();
        kept.retain(|_, kept| is_good(map, kept));
        let value = encode(&kept.values().cloned().collect::<Vec<_>>());
        let mut bytes = MAGIC.to_vec();
        bytes.extend(xxh3_64(&value).to_le_bytes());
        bytes.extend(value);
        Ok(replace_file(&*self.disk, "", FILE, &bytes)?)
    }

    /// The token's record, if it is valid by the map.
    pub(super) fn find(&self, id: TokenId, map: &Topology) -> Result<TokenRecord, Refusal> {
        let kept = self.kept.lock().get(&id).cloned().ok_or(Refusal::Token)?;
        // A token is handed out after its server was agreed on: the map here is older.
        if !map.servers.contains_key(&kept.record.server()) {
            return Err(Refusal::NotNow);
        }
        if is_good(map, &kept) { Ok(kept.record) } else { Err(Refusal::Token) }
    }
}

fn is_good(map: &Topology, kept: &Kept) -> bool {
    let server = map.servers.get(&kept.record.server());
    let token = map.tokens.get(&kept.place);
    server.is_some_and(|server| server.state == ServerState::Joining)
        && token.is_some_and(|token| !token.revoked)
}

/// The register of servers that may join and renew, made of book and map.
pub(super) struct Admitted {
    pub(super) book: Arc<TokenBook>,
    pub(super) maps: Maps,
}

impl Admission for Admitted {
    fn token(&self, id: TokenId) -> Result<TokenRecord, Refusal> {
        let newest = self.maps.newest();
        self.book.find(id, &newest.map)
    }

    fn renews(&self, subject: &Subject) -> Result<(), Refusal> {
        let newest = self.maps.newest();
        match newest.map.servers.get(&subject.server).map(|server| server.state) {
            None => Err(Refusal::NotNow),
            Some(ServerState::Removed) => Err(Refusal::NotRenewed),
            Some(_) => Ok(()),
        }
    }
}

/// Issues tokens at a running manager.
pub(super) struct Issuer {
    pub(super) authority: AuthorityCell,
    pub(super) book: Arc<TokenBook>,
    pub(super) managers: Arc<ManagersClient>,
    pub(super) maps: Maps,
}

impl Issuer {
    /// Adds a server to the map, and returns its id and a token with which it joins.
    pub(super) async fn issue(
        &self,
        server: NewServer,
        expires: Option<SystemTime>,
    ) -> Result<(ServerId, JoinToken), NotIssued> {
        let authority = self.authority.get().ok_or(NotIssued::NoAuthority)?.fingerprint();
        let roles = roles_of(&server.roles);
        let admission = admission_of(server, expires);
        let (place, server) = admit(&*self.managers, admission, self.maps.clone()).await?;
        let newest = self.maps.newest();
        let token = self.book.add(authority, (server, roles), place, expires)?;
        let book = self.book.clone();
        let saved = tokio::task::spawn_blocking(move || book.save(&newest.map));
        saved.await.map_err(|ended| ManagerError::System(ended.into()))??;
        Ok((server, token))
    }
}

/// Has a token and its server agreed on, and waits until this manager's map has the server, as joiners are checked against
/// it. Takes [`ISSUE_MS_MAX`](crate::limits::ISSUE_MS_MAX) at most.
pub(super) async fn admit(
    managers: &impl Managers,
    [token, add_server]: [Command; 2],
    mut maps: Maps,
) -> Result<(state::TokenId, ServerId), NotIssued> {
    let Outcome::Token(place) = add_token(managers, token).await?? else {
        return Err(NotProposed::Unknown.into());
    };
    let Outcome::Server(server) = managers.propose(add_server).await?? else {
        return Err(NotProposed::Unknown.into());
    };
    let named = maps.wait_for(|map| map.servers.contains_key(&server));
    match timeout(Duration::from_millis(PROPOSE_WAIT_MS), named).await {
        Ok(Ok(_)) => Ok((place, server)),
        Ok(Err(_)) | Err(_) => Err(NotProposed::Unknown.into()),
    }
}

/// Has a token agreed on. If the map has as many as it may, first has void ones removed.
pub(crate) async fn add_token(
    managers: &impl Managers,
    token: Command,
) -> Result<Applied, NotProposed> {
    let applied = managers.propose(token.clone()).await?;
    if applied != Err(state::Refusal::TooMany) {
        return Ok(applied);
    }
    match managers.propose(forget_tokens(&managers.map(), now_ms())).await? {
        Ok(_) => managers.propose(token).await,
        Err(refusal) => Ok(Err(refusal)),
    }
}

/// The command that removes tokens which were revoked or have expired. This clock may be ahead of that of another manager, by
/// which a token that has expired here is valid. So if there are any that expired long ago, only those are removed.
fn forget_tokens(map: &Topology, now_ms: u64) -> Command {
    let times = CLOCK_AHEAD_MS.map(|ahead| now_ms.saturating_sub(ahead));
    let frees = |time: &u64| {
        let mut tokens = map.tokens.values();
        tokens.any(|token| token.revoked || token.expires_ms <= *time)
    };
    Command::ForgetTokens(times.into_iter().find(frees).unwrap_or(now_ms))
}

/// The commands for a server's token: one adds the token, the other the server that it is for.
pub(crate) fn admission_of(server: NewServer, expires: Option<SystemTime>) -> [Command; 2] {
    let mut hash = [0; 32];
    fill_secret(&mut hash);
    let expires_ms = expires.map_or(u64::MAX, since_1970_ms);
    [Command::AddToken(hash, expires_ms), Command::AddServer(server, Some((hash, now_ms())))]
}
