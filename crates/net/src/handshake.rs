//! The parts that the handshakes of all connections have: their end in time, who was met, and why not.

use std::future::Future;
use std::io;

use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError, Error as TlsError};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connection::Broken;
use crate::error::{Decider, Denied, Refused};
use crate::identity::Subject;
use crate::limits::{CONNECT_TIME_MAX, READ_BYTES};

/// TLS reads 4 KiB at a time: below it a read of the socket takes what is there.
pub(crate) fn buffered(tcp: TcpStream) -> BufReader<TcpStream> {
    BufReader::with_capacity(READ_BYTES, tcp)
}

/// Bounds a handshake in time, and tells a refusal by its reason.
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

/// The server whose verified certificate this is.
pub(crate) fn subject_of(chain: Option<&[CertificateDer<'_>]>) -> Result<Subject, Broken> {
    let Some([certificate, ..]) = chain else {
        let why = "the peer has no certificate".to_owned();
        return Err(Broken::Denied(Denied::by_us(Refused::NoCertificate, why)));
    };
    Subject::read(certificate)
        .map_err(|error| Broken::Denied(Denied::by_us(Refused::BadCertificate, error.to_string())))
}

/// The reason why a handshake failed, if one side refused the other; `None` if it merely broke.
fn denied(error: &io::Error) -> Option<Denied> {
    let tls = error.get_ref()?.downcast_ref::<TlsError>()?;
    let (by, reason) = match tls {
        TlsError::AlertReceived(alert) => (Decider::Peer, alerted(*alert)),
        TlsError::NoCertificatesPresented => (Decider::Us, Refused::NoCertificate),
        TlsError::InvalidCertificate(fault) => (Decider::Us, faulty(fault)),
        TlsError::PeerIncompatible(_) => (Decider::Us, Refused::Version),
        TlsError::NoApplicationProtocol => (Decider::Us, Refused::NoService),
        _ => (Decider::Us, Refused::Garbage),
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
