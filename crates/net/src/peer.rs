//! A handle to call one service of another server.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use larder_types::ServerId;
use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::Instant;

use crate::calls::Outcome;
use crate::endpoint::Endpoint;
use crate::error::{CallError, Rejected, SendError, Side, Unknown};
use crate::frame::{Kind, Outgoing, Status};
use crate::link::Link;
use crate::service::Service;
use crate::target::Target;

/// One service of another server. Clones share one connection, which is made when it is needed, and closed when the
/// last clone is dropped.
pub struct Peer<S: Service> {
    held: Arc<Held>,
    service: PhantomData<fn() -> S>,
}

struct Held(Arc<Link>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.unused();
    }
}

impl<S: Service> Clone for Peer<S> {
    fn clone(&self) -> Self {
        Self { held: self.held.clone(), service: PhantomData }
    }
}

impl<S: Service> fmt::Debug for Peer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(self.held.0.target()).finish()
    }
}

/// A call whose caller waits; dropping this cancels it.
struct Wanted<'a> {
    link: &'a Link,
    number: u64,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.link.cancel(self.number);
    }
}

impl<S: Service> Peer<S> {
    /// A handle for the server with this id, at `host:port`. Another server at that address is refused.
    #[must_use]
    pub fn new(endpoint: &Arc<Endpoint>, server: ServerId, address: impl Into<String>) -> Self {
        let target = Target { server, role: S::ROLE, address: address.into() };
        let held = Arc::new(Held(Link::new(endpoint.clone(), target)));
        Self { held, service: PhantomData }
    }

    /// Sends a request and waits for the answer until the deadline, which is precise to [`TICK`](crate::limits::TICK).
    /// If the future is dropped, the request may be executed or not.
    ///
    /// # Errors
    /// [`CallError`], by what to do.
    pub async fn call(
        &self,
        request: &S::Request,
        payload: Bytes,
        deadline: Instant,
    ) -> Result<(S::Answer, Bytes), CallError> {
        let (_, answer) = self.begin(request, payload, deadline)?;
        Self::answer(answer.await)
    }

    /// As [`call`](Self::call), but dropping the future cancels the call. If it is still queued it is never sent, else the
    /// server is told. The server may still execute it.
    ///
    /// # Errors
    /// [`CallError`], by what to do.
    pub async fn call_while_wanted(
        &self,
        request: &S::Request,
        payload: Bytes,
        deadline: Instant,
    ) -> Result<(S::Answer, Bytes), CallError> {
        let (number, mut answer) = self.begin(request, payload, deadline)?;
        // Dropped before the receiver, so that the link knows the call until it is cancelled.
        let wanted = Wanted { link: &self.held.0, number };
        let outcome = (&mut answer).await;
        std::mem::forget(wanted);
        Self::answer(outcome)
    }

    fn begin(
        &self,
        request: &S::Request,
        payload: Bytes,
        deadline: Instant,
    ) -> Result<(u64, Receiver<Outcome>), CallError> {
        let frame = Outgoing::new(Kind::Request, request, payload)
            .map_err(|_too_long| CallError::Rejected(Rejected::TooLong))?;
        self.held.0.call(frame, deadline)
    }

    fn answer(outcome: Result<Outcome, RecvError>) -> Result<(S::Answer, Bytes), CallError> {
        let frame = match outcome {
            Ok(outcome) => outcome?,
            Err(_runtime_ended) => {
                return Err(CallError::Unknown(Unknown::Broken("the runtime ended".into())));
            }
        };
        match frame.header.status {
            Status::Done => match frame.decode() {
                Ok(answer) => Ok((answer, frame.into_payload())),
                Err(_) => Err(CallError::Unknown(Unknown::Unreadable)),
            },
            Status::Busy => Err(CallError::Busy(Side::There)),
            Status::NotUnderstood => Err(CallError::Rejected(Rejected::NotUnderstood)),
            Status::NoAnswer => Err(CallError::Unknown(Unknown::NoAnswer)),
            Status::TooLong => Err(CallError::Unknown(Unknown::TooLong)),
        }
    }

    /// Sends a message, which is not answered. Messages arrive in the order in which all clones sent them; some may be
    /// lost.
    ///
    /// # Errors
    /// [`SendError`], if it was not queued.
    pub fn send(&self, message: &S::Message, payload: Bytes) -> Result<(), SendError> {
        let frame = Outgoing::new(Kind::Message, message, payload)
            .map_err(|_too_long| SendError::TooLong)?;
        self.held.0.send(frame)
    }
}
