//! Parts of all handshakes: the time limit, the client's first message, the server that a certificate names, and the
//! reason of a refusal.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use larder_identity::Subject;
use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError, Error as TlsError};
use tokio::io::{BufReader, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::StartHandshake;

use crate::connection::Broken;
use crate::error::{Denied, Refused, RefusingSide};
use crate::limits::{CONNECT_TIME_MAX, READ_BYTES};
use crate::metrics::Metrics;
#[cfg(feature = "simulated")]
use crate::simulated::Pipe;

/// Buffers the socket below TLS, which reads 4 KiB at a time: one read of the socket takes up to [`READ_BYTES`].
pub(crate) fn buffered(tcp: TcpStream) -> BufReader<TcpStream> {
    BufReader::with_capacity(READ_BYTES, tcp)
}

/// Bounds a handshake in time, and turns the other side's or our refusal into [`Broken::Denied`].
pub(crate) async fn in_time<T>(
    handshake: impl Future<Output = Result<T, Broken>>,
) -> Result<T, Broken> {
    match timeout(CONNECT_TIME_MAX, handshake).await {
        Ok(Err(Broken::Io(error))) => match denied(&error) {
            Some(denied) => Err(Broken::Denied(denied)),
            None => Err(Broken::Io(error)),
        },
        Ok(done) => done,
        Err(_elapsed) => Err(Broken::Io(io::ErrorKind::TimedOut.into())),
    }
}

/// The server that the verified certificate of a chain names.
pub(crate) fn subject_of(chain: Option<&[CertificateDer<'_>]>) -> Result<Subject, Broken> {
    let Some([certificate, ..]) = chain else {
        let why = "the peer has no certificate".to_owned();
        return Err(Broken::Denied(Denied::by_us(Refused::NoCertificate, why)));
    };
    Subject::read(certificate)
        .map_err(|error| Broken::Denied(Denied::by_us(Refused::BadCertificate, error.to_string())))
}

/// A handshake of which the client's hello has arrived.
pub(crate) type Handshake = StartHandshake<BufReader<TcpStream>>;

/// An accepted connection, before one of the servers behind the port takes it.
pub(crate) enum AcceptedConnection {
    Tls(Box<Handshake>),
    #[cfg(feature = "plain-for-measurement")]
    Plain(TcpStream),
    #[cfg(feature = "simulated")]
    Simulated(Box<Pipe>, Subject),
    /// From this server of the same process.
    Local(DuplexStream, Subject),
}

/// Returns true if the client offers this protocol.
pub(crate) fn offers_protocol(begun: &Handshake, protocol: &[u8]) -> bool {
    let hello = begun.client_hello();
    hello.alpn().is_some_and(|mut protocols| protocols.any(|offered| offered == protocol))
}

/// Counts a refused connection, and logs it unless a refusal for the same reason was logged just before.
pub(crate) fn refused(metrics: &Metrics, address: SocketAddr, denied: &Denied) {
    let Some(without_line) = metrics.refuse_stranger(denied.reason) else { return };
    let reason = denied.reason.name();
    tracing::warn!(%address, reason, without_line, %denied, "a connection was refused");
}

/// The reason why a handshake failed, if one side refused the other; `None` if it merely broke.
fn denied(error: &io::Error) -> Option<Denied> {
    let tls = error.get_ref()?.downcast_ref::<TlsError>()?;
    let (by, reason) = match tls {
        TlsError::AlertReceived(alert) => (RefusingSide::Peer, alerted(*alert)),
        TlsError::NoCertificatesPresented => (RefusingSide::Us, Refused::NoCertificate),
        TlsError::InvalidCertificate(fault) => (RefusingSide::Us, faulty(fault)),
        TlsError::PeerIncompatible(_) => (RefusingSide::Us, Refused::Version),
        TlsError::NoApplicationProtocol => (RefusingSide::Us, Refused::NoService),
        _ => (RefusingSide::Us, Refused::Garbage),
    };
    Some(Denied { by, reason, why: tls.to_string().into() })
}

fn faulty(fault: &CertificateError) -> Refused {
    match fault {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Refused::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Refused::NotYetValid
        }
        // Another cluster's authority may have the same name, but never the same key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            Refused::UnknownAuthority
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Refused::WrongServer
        }
        _ => Refused::BadCertificate,
    }
}

fn alerted(alert: AlertDescription) -> Refused {
    match alert {
        AlertDescription::CertificateRequired => Refused::NoCertificate,
        AlertDescription::CertificateExpired => Refused::Expired,
        AlertDescription::UnknownCA => Refused::UnknownAuthority,
        AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure => Refused::Version,
        AlertDescription::NoApplicationProtocol => Refused::NoService,
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::DecryptError
        | AlertDescription::AccessDenied => Refused::BadCertificate,
        _ => Refused::Garbage,
    }
}
