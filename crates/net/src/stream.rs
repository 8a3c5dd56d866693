//! Streams of bytes between two servers, for a protocol that is none of this crate's. Each has a connection of its own,
//! with the TLS, the certificates and the hellos of calls.
//!
//! A call is one frame each way, and in memory at both ends. What has no bound goes as a stream: TCP holds back who sends
//! where the other reads nothing, and no call waits behind it.
//!
//! # Invariants
//!
//! 1. Both ends are known as those of calls are: cluster, server, role, version, removal.
//! 2. The stream begins behind the hellos: no byte of it was read with them.
//! 3. A stream that was accepted ends with its handler, with its listener, and with the removal of who opened it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use larder_identity::{Role, Roles, Subject};
use larder_types::ServerId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::{Broken, Duplex, Wire};
use crate::endpoint::{Dialled, Endpoint};
use crate::error::{CallError, Denied, NotSent, Refused};
use crate::handshake::in_time;
use crate::hello;
use crate::metrics::{ConnectionSide, Metrics};
use crate::service::PeerIdentity;
use crate::target::Target;

/// The service of a stream, until it ends.
pub type Streaming = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The handler of streams.
pub trait StreamHandler: Send + Sync + 'static {
    /// Serves a stream, which ends when the future is done or dropped. Called on the connection's task: it must not block.
    fn serve(&self, from: PeerIdentity, stream: Stream) -> Streaming;
}

/// Streams of one role, and the servers that may open some.
pub(crate) struct StreamOffer {
    pub(crate) role: Role,
    pub(crate) callers: Roles,
    pub(crate) handler: Arc<dyn StreamHandler>,
}

impl StreamOffer {
    /// Refuses a caller of another service, or without the role.
    pub(crate) fn admit(&self, number: u8, caller: &Subject) -> Result<(), Denied> {
        if number != self.role.number() {
            let why = format!("streams here are those of {}", self.role);
            return Err(Denied::by_us(Refused::NoService, why));
        }
        if !self.callers.meets(caller.roles) {
            let why = format!("{caller} may open no stream, only {} may", self.callers);
            return Err(Denied::by_us(Refused::WrongRole, why));
        }
        Ok(())
    }
}

/// One end of a stream.
pub struct Stream {
    socket: Box<dyn Duplex>,
    metrics: Arc<Metrics>,
    carries: (Role, ConnectionSide),
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("carries", &self.carries).finish_non_exhaustive()
    }
}

impl Stream {
    /// Takes over a connection behind the hellos.
    pub(crate) fn behind(
        wire: Wire,
        metrics: &Arc<Metrics>,
        carries: (Role, ConnectionSide),
    ) -> Result<Self, Broken> {
        let socket = wire.into_stream().map_err(Broken::Frame)?;
        metrics.open.add(1);
        Ok(Self { socket, metrics: metrics.clone(), carries })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.metrics.open.sub(1);
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        let read = buffer.filled().len() - before;
        self.metrics.traffic_of(Some(self.carries)).received.add(read as u64);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.socket).poll_write(cx, bytes))?;
        self.metrics.traffic_of(Some(self.carries)).sent.add(written as u64);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl Endpoint {
    /// Opens a stream to the server that has this id and this role, at `host:port`. Another server there is refused.
    ///
    /// # Errors
    /// [`CallError::NotSent`] or [`CallError::Denied`]: there is no stream.
    pub async fn open_stream(
        &self,
        server: ServerId,
        role: Role,
        address: impl Into<String>,
    ) -> Result<Stream, CallError> {
        let target = Target { server, role, address: address.into() };
        match in_time(self.open(&target)).await {
            Ok(stream) => {
                self.metrics().connected.add(1);
                Ok(stream)
            }
            Err(Broken::Denied(denied)) => {
                self.metrics().refuse(denied.reason);
                Err(CallError::Denied(denied))
            }
            Err(broken) => {
                self.metrics().unreachable.add(1);
                let why = broken.to_string().into();
                Err(CallError::NotSent(NotSent::Unreachable(why)))
            }
        }
    }

    async fn open(&self, target: &Target) -> Result<Stream, Broken> {
        self.admit(target.server).map_err(Broken::Denied)?;
        let dialled = self.dial(target, Dialled::Stream).await?;
        let mut wire = Wire::new(dialled, self.metrics().clone());
        hello::call(&mut wire, target.role, self.supported_versions()).await?;
        Stream::behind(wire, self.metrics(), (target.role, ConnectionSide::Asks))
    }
}

#[cfg(test)]
mod tests;
