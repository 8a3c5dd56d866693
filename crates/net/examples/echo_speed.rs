//! The cost of a call: the CPU of both sides for an echo, with TLS and without.
//!
//! ```console
//! $ cargo run --release -p larder-net --features plain-for-measurement --example echo_speed
//! ```
//!
//! Caller and server have one thread each; what is printed is the CPU time of each thread, as the kernel
//! counts it, for one call. 64 calls are in flight.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_identity::{Authority, Credentials, Identity, Role, Roles};
use larder_net::{Endpoint, Handler, Listener, Peer, PeerIdentity, Responder, Service, Services};
use larder_types::{ClusterId, ServerId};
use mimalloc::MiMalloc;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::oneshot;

const IN_FLIGHT: u64 = 64;
const CALLS: u64 = 128_000;
const WARM_UP_CALLS: u64 = 12_800;

/// As the program has it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

struct Echo;

impl Service for Echo {
    const ROLE: Role = Role::Data;
    type Request = (u64, u64);
    type Answer = u64;
    type Message = ();
}

struct Echoing;

impl Handler<Echo> for Echoing {
    fn request(&self, _: &PeerIdentity, asked: (u64, u64), payload: Bytes, to: Responder<Echo>) {
        to.answer(&asked.0, payload);
    }

    fn message(&self, _: &PeerIdentity, _: (), _: Bytes) {}
}

fn main() {
    println!("payload  transport  caller µs  server µs  calls/s");
    let authority = Authority::create(ClusterId(1)).expect("randomness");
    for payload in [0, 8 * 1024] {
        for tls in [false, true] {
            let identity =
                |id, role| authority.identity(ServerId(id), Roles::of(&[role])).expect("signed");
            measure(payload, tls, identity(1, Role::Meta), identity(2, Role::Data));
        }
    }
}

fn measure(payload: usize, tls: bool, caller: Identity, server: Identity) {
    let (address, listening) = mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = thread::spawn(move || {
        runtime().block_on(async {
            let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let endpoint = endpoint(tls, &server);
            let services = Services::new().with::<Echo>(Roles::all(), Echoing);
            let listener = Listener::start(&endpoint, socket, services).expect("a socket");
            address.send(listener.address()).expect("the caller waits");
            let before = thread_cpu();
            stopped.await.expect("the caller ends");
            thread_cpu() - before
        })
    });
    let address = listening.recv().expect("the server runs");
    let (caller_cpu, time) =
        runtime().block_on(load(address, payload, endpoint_later(tls, &caller)));
    stop.send(()).expect("the server runs");
    let server_cpu = serving.join().expect("the server ends");
    let calls = CALLS as f64;
    println!(
        "{payload:>7}  {:>9}  {:>9.2}  {:>9.2}  {:>7.0}",
        if tls { "TLS 1.3" } else { "plain" },
        caller_cpu.as_secs_f64() * 1e6 / calls,
        // The server's clock runs through the warm-up as well.
        server_cpu.as_secs_f64() * 1e6 / (calls + WARM_UP_CALLS as f64),
        calls / time.as_secs_f64(),
    );
}

fn runtime() -> runtime::Runtime {
    runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn endpoint(tls: bool, identity: &Identity) -> Arc<Endpoint> {
    if tls {
        Endpoint::new(Credentials::new(identity).expect("an identity"))
    } else {
        Endpoint::plain(identity.subject())
    }
}

/// An endpoint takes the runtime in which it is made.
fn endpoint_later(tls: bool, identity: &Identity) -> impl FnOnce() -> Arc<Endpoint> {
    move || endpoint(tls, identity)
}

async fn load(
    address: SocketAddr,
    payload: usize,
    endpoint: impl FnOnce() -> Arc<Endpoint>,
) -> (Duration, Duration) {
    let peer = Peer::<Echo>::new(&endpoint(), ServerId(2), address.to_string());
    let payload = Bytes::from(vec![7; payload]);
    call(&peer, &payload, WARM_UP_CALLS).await;
    let (cpu, since) = (thread_cpu(), Instant::now());
    call(&peer, &payload, CALLS).await;
    (thread_cpu() - cpu, since.elapsed())
}

async fn call(peer: &Peer<Echo>, payload: &Bytes, calls: u64) {
    let mut callers = Vec::new();
    for caller in 0..IN_FLIGHT {
        let (peer, payload) = (peer.clone(), payload.clone());
        callers.push(tokio::spawn(async move {
            for n in 0..calls / IN_FLIGHT {
                let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
                let (answer, echoed) =
                    peer.call(&(n, caller), payload.clone(), deadline).await.expect("an answer");
                assert_eq!((answer, echoed.len()), (n, payload.len()));
            }
        }));
    }
    for caller in callers {
        caller.await.expect("a caller ends");
    }
}

/// CPU time of this thread: the first number of its schedstat, in nanoseconds.
fn thread_cpu() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.expect("a number"))
}
