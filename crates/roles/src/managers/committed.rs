//! Asks the managers for the version of the map that has every command that was answered before.
//!
//! The question changes nothing, so it is repeated until a manager answers it or the deadline comes. Nothing else bounds how
//! often callers ask: they merge their questions.

use std::time::Duration;

use larder_net::{CallError, Rejected};
use larder_protocol::manager::state::{MapVersion, Topology};
use larder_types::ServerId;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::map_sources::longer;
use super::{Contacts, NotProposed};
use crate::limits::{COMMITTED_ANSWER_MS, MANAGERS_PAUSE_MS_MIN};
use crate::wire::{ManagerCall, ManagerReply};

/// Returns the version as soon as the manager that leads tells it.
pub(super) async fn committed(
    contacts: &Contacts,
    map: &Topology,
    leader: &Mutex<Option<ServerId>>,
    deadline: Instant,
) -> Result<MapVersion, NotProposed> {
    let mut pause = Duration::from_millis(MANAGERS_PAUSE_MS_MIN);
    loop {
        let end = match ask_all(contacts, map, leader, deadline).await {
            Ok(version) => return Ok(version),
            Err(end) => end,
        };
        let is_final = matches!(end, NotProposed::NotAllowed | NotProposed::OlderManager(_));
        if is_final || Instant::now() + pause >= deadline {
            return Err(end);
        }
        sleep(pause).await;
        pause = longer(pause);
    }
}

/// Asks each manager once, first the leader that another names.
async fn ask_all(
    contacts: &Contacts,
    map: &Topology,
    leader: &Mutex<Option<ServerId>>,
    deadline: Instant,
) -> Result<MapVersion, NotProposed> {
    let mut left = contacts.all(map);
    let mut named = *leader.lock();
    let mut end = NotProposed::NoLeader;
    while !left.is_empty() {
        let at = named.take().and_then(|named| left.iter().position(|it| *it == named));
        let manager = left.remove(at.unwrap_or(0));
        let answer_by = Instant::now() + Duration::from_millis(COMMITTED_ANSWER_MS);
        let until = deadline.min(answer_by);
        match contacts.call(map, manager, &ManagerCall::Committed, until).await {
            Ok((ManagerReply::Committed(version), _)) => {
                *leader.lock() = Some(manager);
                return Ok(version);
            }
            Ok((ManagerReply::NotLeader(other), _)) => named = other,
            Ok((ManagerReply::NotAllowed, _)) => return Err(NotProposed::NotAllowed),
            Ok((ManagerReply::Busy, _)) | Err(CallError::Busy(_)) => end = NotProposed::Busy,
            // It may be the leader: then nobody of this release can tell.
            Err(CallError::Rejected(Rejected::NotUnderstood)) => {
                end = NotProposed::OlderManager(manager);
            }
            Ok((reply, _)) => {
                tracing::debug!(%manager, ?reply, "a manager cannot tell the committed map")
            }
            Err(error) => tracing::debug!(%manager, %error, "a manager was not reached"),
        }
    }
    Err(end)
}
