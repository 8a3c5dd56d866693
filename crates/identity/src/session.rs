//! TLS sessions: none is resumed, so each verifies certificates anew; its two ends can export a value that no other session
//! has.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, ConnectionCommon, Error as TlsError, ServerConfig};

/// A value exported from one TLS session, which only its two ends know. Proofs are bound to it.
pub type SessionSecret = [u8; 32];

/// Exports a session's secret for one purpose, which the label names (RFC 8446, 7.5).
///
/// # Errors
/// If the handshake is not over.
pub fn secret<T>(session: &ConnectionCommon<T>, label: &[u8]) -> Result<SessionSecret, TlsError> {
    session.export_keying_material([0; 32], label, None)
}

/// A client of this protocol that resumes no session: a ticket must not outlive the certificate that it was issued for.
#[must_use]
pub fn client(mut config: ClientConfig, protocol: &[u8]) -> Arc<ClientConfig> {
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config)
}

/// A server of this protocol that lets no session be resumed.
#[must_use]
pub fn server(mut config: ServerConfig, protocol: &[u8]) -> Arc<ServerConfig> {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config)
}
