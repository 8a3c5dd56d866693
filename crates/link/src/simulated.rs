//! Streams in place of TLS over TCP, for simulations. Only with the feature `simulated`, which no release has.
//!
//! HTTP, pools, deadlines and limits above them are those of production. Who is at the other end the simulation knows, and
//! its key is compared as that of a certificate would be.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;

use larder_identity::session::SessionSecret;
use rustls::{CertificateError, Error as TlsError};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::LinkError;
use crate::files;
use crate::identity::Fingerprint;
use crate::members::{Known, Members, OwnRegion};
use crate::name::Address;
use crate::registry::write;

/// The session secret of a simulated connection, to which a proof is bound.
pub(crate) const SESSION: SessionSecret = [0; 32];

/// Bytes in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A stream of some kind.
pub type BoxedStream = Box<dyn Stream>;

/// A future of some kind.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A region's ways to the others.
pub trait SimulatedLinks: Debug + Send + Sync + 'static {
    /// Opens a stream to the listener at an address, and returns its key.
    fn open<'a>(&'a self, to: &'a Address) -> Boxed<'a, io::Result<(BoxedStream, Fingerprint)>>;
}

/// Where streams come to a region.
pub trait SimulatedListener: Debug + Send + 'static {
    /// Its address.
    fn address(&self) -> SocketAddr;

    /// The next one, with the key and the address of who opened it.
    fn next(&mut self) -> Boxed<'_, (BoxedStream, Fingerprint, SocketAddr)>;
}

/// The error of a handshake with another region than was meant.
pub(crate) fn wrong_key() -> io::Error {
    let why = CertificateError::ApplicationVerificationFailure;
    io::Error::other(TlsError::InvalidCertificate(why))
}

/// Makes a store in a directory a region that knows all of these, as if each had joined and heard of the others.
///
/// # Errors
/// If a file cannot be written.
pub fn settle(dir: &Path, own: OwnRegion, all: &[OwnRegion]) -> Result<(), LinkError> {
    let known = |it: &OwnRegion| Known {
        number: it.number,
        name: it.name.clone(),
        address: it.advertise.clone(),
        fingerprint: it.fingerprint,
        removed: false,
    };
    let known: Vec<Known> = all.iter().map(known).collect();
    files::make_folder(dir)?;
    write(dir, &Members::joined(own, &known)?)
}
