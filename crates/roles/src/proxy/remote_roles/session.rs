//! The proxy's session: the managers know it before anything is asked under it, and meta servers learn which of its
//! requests are finished.
//!
//! # Invariants
//!
//! 1. Every meta server gets the session's beats: the puts of a silent session are resolved.
//! 2. A request is finished only when all reports of its put were sent before, or will be within
//!    [`STRAGGLER_MAX`](crate::limits::STRAGGLER_MAX). A put of a finished request that has no outcome is resolved a
//!    little later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::{ServerRole, ServerState, Topology};
use larder_types::{BootId, SessionId};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::counters::count;
use super::primaries::Primaries;
use super::route::found;
use crate::limits::SESSION_BEAT_MS;
use crate::managers::Managers;
use crate::wire::MetaMessage;

const BEAT: Duration = Duration::from_millis(SESSION_BEAT_MS);

/// Tells the managers of a session until their map names it. Whether it is open; one that was closed before this proxy saw
/// it is never open again.
pub(super) async fn opened(managers: &dyn Managers, boot: BootId, session: SessionId) -> bool {
    let is_up = |map: &Topology| {
        map.servers.values().any(|it| it.boot == boot && it.state == ServerState::Up)
    };
    // Before that managers do not listen.
    let mut was_up = is_up(&managers.map());
    loop {
        managers.send_message(ServerMessage::SessionBegun(boot, session));
        let seen = found(managers, Instant::now() + BEAT, |map| {
            if map.closed.iter().any(|(_, closed)| *closed == session) {
                Some(Seen::Closed)
            } else if map.sessions.contains_key(&session) {
                Some(Seen::Open)
            } else {
                (!was_up && is_up(map)).then_some(Seen::Up)
            }
        });
        match seen.await {
            Some(Seen::Open) => return true,
            Some(Seen::Closed) => return false,
            Some(Seen::Up) => was_up = true,
            None => {}
        }
    }
}

/// The state in the map of a session that was told of.
enum Seen {
    Open,
    Closed,
    /// Nothing yet, and the run of its proxy for the first time.
    Up,
}

/// Begins a session that the managers' map names.
pub(super) async fn begun(managers: &dyn Managers, boot: BootId) -> SessionId {
    loop {
        let session = SessionId(larder_env::rng::unique_u64());
        if opened(managers, boot, session).await {
            return session;
        }
    }
}

/// Keeps a session as long as it is not dropped.
pub(super) struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Keeper {
    pub(super) fn start(primaries: Arc<Primaries>, boot: BootId, is_open: Arc<AtomicBool>) -> Self {
        Self(tokio::spawn(async move {
            loop {
                let (managers, session) = (primaries.managers(), primaries.requests().session());
                let closed = found(managers, Instant::now() + BEAT, |map| {
                    (!map.sessions.contains_key(&session)).then_some(())
                });
                if closed.await.is_none() {
                    send_session_floor(&primaries, session);
                    continue;
                }
                tracing::warn!("the managers closed this proxy's session: starting another");
                count(&primaries.counters().lost_sessions);
                is_open.store(false, Ordering::Relaxed);
                let next = begun(managers, boot).await;
                primaries.requests().begin_session(next);
                is_open.store(true, Ordering::Relaxed);
            }
        }))
    }
}

/// Tells every meta server which requests are finished: they need not be remembered.
fn send_session_floor(primaries: &Primaries, session: SessionId) {
    let (map, (below, open)) = (primaries.managers().map(), primaries.requests().finished());
    let floor = open.first().copied().unwrap_or(below);
    let mut messages = vec![MetaMessage::Floor { session, floor }];
    if !open.is_empty() {
        messages.push(MetaMessage::Finished { session, below, open });
    }
    let is_meta = |state, roles: &std::collections::BTreeSet<ServerRole>| {
        state == ServerState::Up && roles.contains(&ServerRole::Meta)
    };
    for (&server, record) in &map.servers {
        if is_meta(record.state, &record.roles)
            && let Some(peer) = primaries.peer(&map, server)
        {
            for message in &messages {
                if let Err(error) = peer.send(message, Bytes::new()) {
                    tracing::trace!(%server, %error, "a report of finished requests was not sent to a meta server");
                }
            }
        }
    }
}
