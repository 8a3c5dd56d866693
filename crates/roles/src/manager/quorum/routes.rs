//! The routes by which the leading manager reaches servers: directly, and where that is cut, through a manager that forwards the
//! server's messages. Without it a primary that every manager but the leader reaches would count as up, and have no lease.
//!
//! # Invariants
//!
//! 1. Messages go through another manager only while it forwards the server's messages and none comes directly.
//! 2. They are sent directly as well, so any message may arrive twice.

use std::collections::BTreeMap;

use larder_types::ServerId;

use crate::limits::ROUTE_SILENT_MS;

#[derive(Debug, Default)]
struct ServerRoute {
    /// The time of the last message from the server itself.
    itself_ms: Option<u64>,
    /// The manager that forwarded a message last, and the time.
    by: Option<(ServerId, u64)>,
    /// True if the last message to the server went through another manager too.
    is_around: bool,
}

/// The routes to all servers that sent a message since this manager leads.
#[derive(Debug, Default)]
pub(super) struct ServerRoutes(BTreeMap<ServerId, ServerRoute>);

impl ServerRoutes {
    /// Notes a message of a server, from itself or forwarded by a manager (`by`).
    pub(super) fn note_route(&mut self, server: ServerId, by: Option<ServerId>, now_ms: u64) {
        let way = self.0.entry(server).or_default();
        match by {
            None => way.itself_ms = Some(now_ms),
            Some(manager) => way.by = Some((manager, now_ms)),
        }
    }

    /// The manager through which messages to a server are to go too.
    pub(super) fn around(&mut self, server: ServerId, now_ms: u64) -> Option<ServerId> {
        let way = self.0.get_mut(&server)?;
        let is_late = |ms: u64| now_ms >= ms + ROUTE_SILENT_MS;
        let by = way.by.filter(|(_, ms)| !is_late(*ms) && way.itself_ms.is_none_or(is_late));
        if by.is_some() != way.is_around {
            way.is_around = by.is_some();
            match by {
                // A cut is not the only cause: a server that does not know the leader sends to the managers in turn.
                Some((by, _)) => {
                    tracing::debug!(%server, %by, "orders to a server also go through another manager");
                }
                None => tracing::debug!(%server, "orders to a server go directly again"),
            }
        }
        by.map(|(manager, _)| manager)
    }

    /// Forgets all ways, as this manager begins to lead.
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
    fn a_responsive_server_gets_orders_directly() {
        let mut server_routes = ServerRoutes::default();
        for now_ms in (0..10 * ROUTE_SILENT_MS).step_by(ROUTE_SILENT_MS as usize / 2) {
            server_routes.note_route(SERVER, None, now_ms);
            server_routes.note_route(SERVER, Some(OTHER), now_ms);
            assert_eq!(server_routes.around(SERVER, now_ms), None);
        }
    }

    #[test]
    fn one_that_others_hear_is_told_by_them_until_it_is_heard_again() {
        let mut server_routes = ServerRoutes::default();
        server_routes.note_route(SERVER, None, 0);
        server_routes.note_route(SERVER, Some(OTHER), ROUTE_SILENT_MS - 1);
        assert_eq!(server_routes.around(SERVER, ROUTE_SILENT_MS - 1), None, "it may be late");
        assert_eq!(server_routes.around(SERVER, ROUTE_SILENT_MS), Some(OTHER));
        assert_eq!(
            server_routes.around(ServerId(6), ROUTE_SILENT_MS),
            None,
            "nobody hears this one"
        );
        server_routes.note_route(SERVER, None, ROUTE_SILENT_MS + 1);
        assert_eq!(server_routes.around(SERVER, ROUTE_SILENT_MS + 1), None);
    }

    #[test]
    fn a_manager_that_falls_silent_too_is_no_way() {
        let mut server_routes = ServerRoutes::default();
        server_routes.note_route(SERVER, Some(OTHER), 100);
        assert_eq!(server_routes.around(SERVER, 100), Some(OTHER), "it was never heard itself");
        assert_eq!(server_routes.around(SERVER, 100 + ROUTE_SILENT_MS), None);
        server_routes.note_route(SERVER, Some(OTHER), 5000);
        server_routes.clear();
        assert_eq!(server_routes.around(SERVER, 5000), None);
    }
}
