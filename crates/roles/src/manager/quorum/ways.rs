//! The ways by which the leading manager reaches servers: its own, and where that is cut, the manager that hands on what
//! the server says. Without it a primary that all but the leader hear would be up, and have no lease.
//!
//! # Invariants
//!
//! 1. Another manager is a way only while it hands on what the server says, and the server is silent on its own way.
//! 2. What is sent by way of another is sent directly as well: all messages may come twice.

use std::collections::BTreeMap;

use larder_types::ServerId;

use crate::limits::WAY_SILENT_MS;

#[derive(Debug, Default)]
struct Way {
    /// The time at which the server itself was heard, if it was.
    itself_ms: Option<u64>,
    /// The manager that handed something on last, and when.
    by: Option<(ServerId, u64)>,
    /// True if the other manager was the way when last it mattered.
    is_around: bool,
}

/// Ways to all servers that were heard since this manager leads.
#[derive(Debug, Default)]
pub(super) struct Ways(BTreeMap<ServerId, Way>);

impl Ways {
    /// A server was heard: itself, or as another manager handed it on.
    pub(super) fn heard(&mut self, server: ServerId, by: Option<ServerId>, now_ms: u64) {
        let way = self.0.entry(server).or_default();
        match by {
            None => way.itself_ms = Some(now_ms),
            Some(manager) => way.by = Some((manager, now_ms)),
        }
    }

    /// The manager by way of which a server is to be told too.
    pub(super) fn around(&mut self, server: ServerId, now_ms: u64) -> Option<ServerId> {
        let way = self.0.get_mut(&server)?;
        let is_late = |ms: u64| now_ms >= ms + WAY_SILENT_MS;
        let by = way.by.filter(|(_, ms)| !is_late(*ms) && way.itself_ms.is_none_or(is_late));
        if by.is_some() != way.is_around {
            way.is_around = by.is_some();
            match by {
                // Not only where the way is cut: one that does not know who leads speaks to the managers in turn.
                Some((by, _)) => {
                    tracing::debug!(%server, %by, "a server is told by way of another manager too");
                }
                None => tracing::debug!(%server, "a server is told directly alone"),
            }
        }
        by.map(|(manager, _)| manager)
    }

    /// This manager did not lead before.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId(5);
    const OTHER: ServerId = ServerId(1);

    #[test]
    fn a_server_that_is_heard_is_told_on_its_own_way() {
        let mut ways = Ways::default();
        for now_ms in (0..10 * WAY_SILENT_MS).step_by(WAY_SILENT_MS as usize / 2) {
            ways.heard(SERVER, None, now_ms);
            ways.heard(SERVER, Some(OTHER), now_ms);
            assert_eq!(ways.around(SERVER, now_ms), None);
        }
    }

    #[test]
    fn one_that_others_hear_is_told_by_them_until_it_is_heard_again() {
        let mut ways = Ways::default();
        ways.heard(SERVER, None, 0);
        ways.heard(SERVER, Some(OTHER), WAY_SILENT_MS - 1);
        assert_eq!(ways.around(SERVER, WAY_SILENT_MS - 1), None, "it may be late");
        assert_eq!(ways.around(SERVER, WAY_SILENT_MS), Some(OTHER));
        assert_eq!(ways.around(ServerId(6), WAY_SILENT_MS), None, "nobody hears this one");
        ways.heard(SERVER, None, WAY_SILENT_MS + 1);
        assert_eq!(ways.around(SERVER, WAY_SILENT_MS + 1), None);
    }

    #[test]
    fn a_manager_that_falls_silent_too_is_no_way() {
        let mut ways = Ways::default();
        ways.heard(SERVER, Some(OTHER), 100);
        assert_eq!(ways.around(SERVER, 100), Some(OTHER), "it was never heard itself");
        assert_eq!(ways.around(SERVER, 100 + WAY_SILENT_MS), None);
        ways.heard(SERVER, Some(OTHER), 5000);
        ways.clear();
        assert_eq!(ways.around(SERVER, 5000), None);
    }
}
