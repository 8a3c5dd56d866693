//! Parts that the tests of several modules need: a cluster, an echo service, logs that can be looked at.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use larder_identity::Validity;
use larder_identity::{Authority, Credentials, Identity, Role, Roles};
use larder_types::{ClusterId, ServerId};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing_subscriber::fmt::MakeWriter;

use crate::{Endpoint, Handler, Listener, Peer, PeerIdentity, Responder, Service, Services};

/// A data server that says what it hears.
pub(crate) struct Echo;

impl Service for Echo {
    const ROLE: Role = Role::Data;
    type Request = String;
    type Answer = String;
    type Message = u64;
}

/// The arguments of a handler that lets the test answer.
pub(crate) type Asked = (String, Bytes, Responder<Echo>);

/// Answers at once what does not begin with "wait"; hands the rest to the test.
pub(crate) struct Echoing {
    asked: mpsc::Sender<Asked>,
    recorded: mpsc::Sender<u64>,
}

/// The test's side of [`Echoing`].
pub(crate) struct RecordedCalls {
    pub(crate) asked: mpsc::Receiver<Asked>,
    pub(crate) recorded: mpsc::Receiver<u64>,
}

impl Echoing {
    pub(crate) fn new() -> (Self, RecordedCalls) {
        let (asked, asked_out) = mpsc::channel(4096);
        let (recorded, heard_out) = mpsc::channel(4096);
        (Self { asked, recorded }, RecordedCalls { asked: asked_out, recorded: heard_out })
    }
}

impl Handler<Echo> for Echoing {
    fn request(&self, _: &PeerIdentity, request: String, payload: Bytes, to: Responder<Echo>) {
        if request.starts_with("wait") {
            drop(self.asked.try_send((request, payload, to)));
        } else {
            to.answer(&request, payload);
        }
    }

    fn message(&self, _: &PeerIdentity, message: u64, _: Bytes) {
        self.recorded.try_send(message).expect("the test hears so many");
    }
}

pub(crate) fn authority() -> Authority {
    Authority::create(ClusterId(7)).unwrap()
}

pub(crate) fn expired() -> Validity {
    let now = SystemTime::now();
    let day = Duration::from_secs(24 * 3600);
    Validity { from: now - 3 * day, to: now - day }
}

pub(crate) fn endpoint(identity: &Identity) -> Arc<Endpoint> {
    Endpoint::new(Credentials::new(identity).unwrap())
}

/// A meta server, who may call.
pub(crate) fn caller(authority: &Authority) -> Arc<Endpoint> {
    endpoint(&authority.identity(ServerId(1), Roles::of(&[Role::Meta])).unwrap())
}

/// A data server with this id, which meta servers may call.
pub(crate) async fn data_server(
    authority: &Authority,
    id: u32,
) -> (Arc<Endpoint>, Listener, RecordedCalls) {
    let identity = authority.identity(ServerId(id), Roles::of(&[Role::Data])).unwrap();
    let (endpoint, (echoing, recorded)) = (endpoint(&identity), Echoing::new());
    let services = Services::new().with::<Echo>(Roles::of(&[Role::Meta]), echoing);
    let listener = Listener::start(&endpoint, socket().await, services).unwrap();
    (endpoint, listener, recorded)
}

pub(crate) async fn socket() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

pub(crate) fn peer(endpoint: &Arc<Endpoint>, server: u32, address: SocketAddr) -> Peer<Echo> {
    Peer::new(endpoint, ServerId(server), address.to_string())
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// The log of this thread since.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        // While a process has a single subscriber, a thread without one that comes to a line first turns it off for all.
        static SECOND: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
            tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish())
        });
        LazyLock::force(&SECOND);
        let log = Self::default();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
        let guard = tracing::subscriber::set_default(subscriber);
        (log, guard)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
