//! The parts that a user gives: the types of requests, answers and messages, and the handler that answers.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;

use bytes::Bytes;
use larder_identity::{Role, Subject};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{Frame, FrameError, Kind, Outgoing, Status};
use crate::limits::PROTOCOL_TOO_LONG;
use crate::reply_queue::Reply;

/// The protocol of one role. Enums among these types grow by variants at their end; no variant is changed or
/// removed while a release that sends it is in use.
pub trait Service: Send + Sync + 'static {
    /// The role that answers.
    const ROLE: Role;
    /// A message that is answered.
    type Request: Serialize + DeserializeOwned + Send + 'static;
    /// The answers.
    type Answer: Serialize + DeserializeOwned + Send + 'static;
    /// A message that is not answered.
    type Message: Serialize + DeserializeOwned + Send + 'static;
}

/// The server at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The server that its certificate names.
    pub subject: Subject,
    /// The address that it calls from.
    pub address: SocketAddr,
    /// Version of the protocol that is spoken with it.
    pub version: u8,
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.subject, self.address)
    }
}

/// Answers requests, and takes messages. It is called on the connection's task, which does nothing else meanwhile. So it
/// must not block: a request that takes time is answered later, from another task or thread.
pub trait Handler<S: Service>: Send + Sync + 'static {
    /// Takes a request, and answers it through the responder.
    fn request(
        &self,
        from: &PeerIdentity,
        request: S::Request,
        payload: Bytes,
        responder: Responder<S>,
    );

    /// Takes a message. Those of one connection come in the order in which they were sent; the last ones before a
    /// connection's end may be lost.
    fn message(&self, from: &PeerIdentity, message: S::Message, payload: Bytes);
}

/// The right to answer one request. If it is dropped instead, the caller gets [`NoAnswer`](crate::Unknown::NoAnswer).
pub struct Responder<S: Service> {
    reply: Reply,
    service: PhantomData<fn() -> S>,
}

impl<S: Service> fmt::Debug for Responder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").field("number", &self.reply.number()).finish_non_exhaustive()
    }
}

impl<S: Service> Responder<S> {
    /// Version of the protocol that is spoken with the caller.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.reply.version()
    }

    /// Runs `then` on the connection's task when the caller cancels the request or the connection ends, unless it was
    /// answered before. If the connection has ended already, `then` runs at once on this thread. It must not block. A
    /// cancel that came before this call runs nothing.
    pub fn when_unwanted(&self, then: impl FnOnce() + Send + 'static) {
        self.reply.when_unwanted(Box::new(then));
    }

    /// Refuses the request, which is not executed, because too much is under way.
    pub fn busy(mut self) {
        self.reply.send(Outgoing::bare(Kind::Answer, Status::Busy));
    }

    /// Sends the response. It is dropped if the connection has ended. If it is longer than a frame may be, the caller
    /// gets an error that says so.
    pub fn answer(mut self, answer: &S::Answer, payload: Bytes) {
        match Outgoing::new(Kind::Answer, answer, payload) {
            Ok(frame) => self.reply.send(frame),
            Err(error) => {
                tracing::error!(role = %S::ROLE, %error, "an answer cannot be sent");
                let is_told = matches!(error, FrameError::TooLong { .. })
                    && self.reply.version() >= PROTOCOL_TOO_LONG;
                let status = if is_told { Status::TooLong } else { Status::NoAnswer };
                self.reply.send(Outgoing::bare(Kind::Answer, status));
            }
        }
    }
}

/// A service with its handler, of any types.
pub(crate) trait Serve: Send + Sync {
    fn request(&self, from: &PeerIdentity, frame: Frame, reply: Reply);
    fn message(&self, from: &PeerIdentity, frame: Frame) -> Result<(), FrameError>;
}

pub(crate) struct Served<S, H> {
    handler: H,
    service: PhantomData<fn() -> S>,
}

impl<S: Service, H: Handler<S>> Served<S, H> {
    pub(crate) fn new(handler: H) -> Self {
        Self { handler, service: PhantomData }
    }
}

impl<S: Service, H: Handler<S>> Serve for Served<S, H> {
    fn request(&self, from: &PeerIdentity, frame: Frame, mut reply: Reply) {
        match frame.decode() {
            Ok(request) => {
                let responder = Responder { reply, service: PhantomData };
                self.handler.request(from, request, frame.into_payload(), responder);
            }
            Err(_) => reply.send(Outgoing::bare(Kind::Answer, Status::NotUnderstood)),
        }
    }

    fn message(&self, from: &PeerIdentity, frame: Frame) -> Result<(), FrameError> {
        self.handler.message(from, frame.decode()?, frame.into_payload());
        Ok(())
    }
}
