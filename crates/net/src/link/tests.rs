use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use larder_identity::Authority;
use larder_identity::{Role, Roles};
use larder_types::ServerId;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::endpoint::Security;
use crate::handshake::buffered;
use crate::limits::{PAYLOAD_BYTES_MAX, PING_INTERVAL, PROTOCOL_MAX, REQUESTS_MAX, SILENCE_MAX};
use crate::metrics::ConnectionSide;
use crate::tests::{RecordedCalls, authority, caller, data_server, endpoint, peer, socket, soon};
use crate::{Peer, Rejected, hello};

/// A server that the test plays: it says hello and then what the test wants.
struct Played {
    socket: TcpListener,
    endpoint: Arc<Endpoint>,
}

impl Played {
    async fn new(authority: &Authority) -> Self {
        let identity = authority.identity(ServerId(2), Roles::of(&[Role::Data])).unwrap();
        Self { socket: socket().await, endpoint: endpoint(&identity) }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    async fn accept(&self) -> Wire {
        let (tcp, _) = self.socket.accept().await.unwrap();
        let configs = match self.endpoint.security() {
            Security::Tls(credentials) => credentials.configs(),
            #[cfg(any(feature = "plain-for-measurement", feature = "simulated"))]
            _ => unreachable!("tests speak TLS"),
        };
        let tls = TlsAcceptor::from(configs.calls.clone()).accept(buffered(tcp)).await.unwrap();
        let mut wire = Wire::new(Box::new(tls), Arc::default());
        let (version, service) =
            hello::asked(&mut wire, self.endpoint.supported_versions()).await.unwrap();
        hello::welcome(&mut wire, version, service).await.unwrap();
        wire
    }
}

fn calls(
    tasks: &mut JoinSet<(u64, CallError)>,
    to: &Peer<crate::tests::Echo>,
    number: u64,
    payload: usize,
) {
    let to = to.clone();
    tasks.spawn(async move {
        let payload = Bytes::from(vec![1; payload]);
        (number, to.call(&"wait".into(), payload, soon()).await.unwrap_err())
    });
}

#[tokio::test]
async fn a_broken_connection_reports_which_calls_had_been_sent() {
    let authority = authority();
    let (ours, played) = (caller(&authority), Played::new(&authority).await);
    let to = peer(&ours, 2, played.address());
    let mut tasks = JoinSet::new();
    calls(&mut tasks, &to, 0, 10);
    let mut wire = played.accept().await;
    assert_eq!(wire.receive_frame().await.unwrap().header.kind, Kind::Request);
    // More than the system buffers between the two.
    for number in 1..=6 {
        calls(&mut tasks, &to, number, PAYLOAD_BYTES_MAX);
    }
    while ours.metrics().in_flight.get() < 7 {
        tokio::task::yield_now().await;
    }
    drop((wire, played));
    let mut last_is_not_sent = false;
    while let Some(reported) = tasks.join_next().await {
        match reported.unwrap() {
            (0, error) => assert!(matches!(error, CallError::Unknown(Unknown::Broken(_)))),
            (6, error) => {
                last_is_not_sent = matches!(error, CallError::NotSent(NotSent::Broken(_)));
            }
            _ => {}
        }
    }
    assert!(last_is_not_sent);
    assert_eq!(ours.metrics().in_flight.get(), 0);
    assert_eq!(ours.metrics().broken.get(), 1);
}

#[tokio::test]
async fn a_full_queue_answers_busy_at_once() {
    let authority = authority();
    let (ours, played) = (caller(&authority), Played::new(&authority).await);
    let to = peer(&ours, 2, played.address());
    let mut tasks = JoinSet::new();
    for number in 0..REQUESTS_MAX as u64 {
        calls(&mut tasks, &to, number, 0);
    }
    while ours.metrics().in_flight.get() < REQUESTS_MAX as u64 {
        tokio::task::yield_now().await;
    }
    let one_more = to.call(&"more".into(), Bytes::new(), soon()).await;
    assert!(matches!(one_more, Err(CallError::Busy(Side::Here))));
    assert_eq!(ours.metrics().busy.get(), 1);

    let big = Bytes::from(vec![0; PAYLOAD_BYTES_MAX]);
    let mut taken = 0;
    while to.send(&1, big.clone()).is_ok() {
        taken += 1;
        assert!(taken * PAYLOAD_BYTES_MAX <= QUEUE_BYTES_MAX, "the queue has a bound in bytes");
    }
    assert!(matches!(to.send(&1, big), Err(SendError::Busy)));
}

#[tokio::test]
async fn a_missed_deadline_reports_whether_the_call_was_sent() {
    let authority = authority();
    let (ours, played) = (caller(&authority), Played::new(&authority).await);
    let to = peer(&ours, 2, played.address());
    tokio::time::pause();
    let past = Instant::now() + 2 * TICK;
    // Nobody says hello: it cannot have left.
    let error = to.call(&"x".into(), Bytes::new(), past).await.unwrap_err();
    tokio::time::resume();
    assert!(matches!(error, CallError::NotSent(NotSent::Late)), "{error}");

    let mut tasks = JoinSet::new();
    calls(&mut tasks, &to, 0, 10);
    let mut wire = played.accept().await;
    let frame = wire.receive_frame().await.unwrap();
    assert_eq!(frame.decode::<String>().unwrap(), "wait", "what nobody waits for does not leave");
    tokio::time::pause();
    let past = Instant::now() + 2 * TICK;
    let error = to.call(&"y".into(), Bytes::new(), past).await.unwrap_err();
    assert!(matches!(error, CallError::Unknown(Unknown::Late)), "{error}");
    assert!(past.elapsed() <= 2 * TICK);
}

#[tokio::test]
async fn a_peer_that_is_gone_without_a_word_is_given_up() {
    let authority = authority();
    let (ours, played) = (caller(&authority), Played::new(&authority).await);
    let to = peer(&ours, 2, played.address());
    let call = tokio::spawn(async move { to.call(&"x".into(), Bytes::new(), soon()).await });
    let mut wire = played.accept().await;
    assert_eq!(wire.receive_frame().await.unwrap().header.kind, Kind::Request);
    // From here on only the clock can tell.
    tokio::time::pause();
    let since = Instant::now();
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Unknown(Unknown::Broken(_))), "{error}");
    assert!(error.to_string().contains("silent"), "{error}");
    assert!(since.elapsed() <= SILENCE_MAX + PING_INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn connections_of_an_endpoint_are_pinged_together_but_for_those_that_are_lively() {
    let ours = caller(&authority());
    let target = || Target { server: ServerId(2), role: Role::Data, address: String::new() };
    let (one, other) = (Link::new(ours.clone(), target()), Link::new(ours.clone(), target()));
    let begun = ours.ping_schedule().next(Instant::now());
    tokio::time::advance(begun - Instant::now()).await;
    let (mut first, mut batch) = (Calling::new(&one, PROTOCOL_MAX), Batch::default());
    tokio::time::advance(PING_INTERVAL * 7 / 10).await;
    let mut second = Calling::new(&other, PROTOCOL_MAX);
    let old = LastSeen { is_local: false, received: begun, wrote: begun };
    for calling in [&mut first, &mut second] {
        let next = calling.tick(Instant::now(), old, &mut batch).unwrap();
        assert_eq!((next - begun, batch.bytes()), (PING_INTERVAL, 0));
    }
    tokio::time::advance(PING_INTERVAL * 3 / 10).await;
    let now = Instant::now();
    let lately = LastSeen { is_local: false, received: now, wrote: now };
    assert_eq!(first.tick(now, lately, &mut batch).unwrap() - now, PING_INTERVAL);
    assert_eq!(batch.bytes(), 0, "both ends know that the other lives");
    let (says_nothing, hears_nothing) =
        (LastSeen { wrote: begun, ..lately }, LastSeen { wrote: now, ..old });
    for (calling, seen) in [(&mut first, says_nothing), (&mut second, hears_nothing)] {
        calling.ping_at = now;
        let mut batch = Batch::default();
        assert_eq!(calling.tick(now, seen, &mut batch).unwrap() - now, PING_INTERVAL);
        assert!(batch.bytes() > 0, "it is pinged");
    }
}

#[tokio::test]
async fn an_unreachable_server_is_reported_at_once_and_retried_after_a_pause() {
    let authority = authority();
    let ours = caller(&authority);
    // It has the port, so that no other test listens there, and does not listen.
    let held = TcpSocket::new_v4().unwrap();
    held.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let to = peer(&ours, 2, held.local_addr().unwrap());
    loop {
        let error = to.call(&"x".into(), Bytes::new(), soon()).await.unwrap_err();
        assert!(matches!(error, CallError::NotSent(NotSent::Unreachable(_))), "{error}");
        if ours.metrics().unreachable.get() >= 3 {
            break;
        }
    }
    let attempts = ours.metrics().unreachable.get();
    assert!(to.call(&"x".into(), Bytes::new(), soon()).await.is_err());
    assert!(matches!(to.send(&1, Bytes::new()), Err(SendError::Unreachable(_))));
    assert_eq!(ours.metrics().unreachable.get(), attempts, "it is not yet time");
}

#[tokio::test]
async fn a_server_that_comes_back_is_connected_again() {
    let authority = authority();
    let ours = caller(&authority);
    let (theirs, listener, _heard) = data_server(&authority, 2).await;
    let address = listener.address();
    let to = peer(&ours, 2, address);
    let said = to.call(&"first".into(), Bytes::new(), soon()).await.unwrap();
    assert_eq!(said.0, "first");
    drop((listener, theirs));
    let lost = to.call(&"second".into(), Bytes::new(), soon()).await;
    assert!(lost.is_err());

    let identity = authority.identity(ServerId(2), Roles::of(&[Role::Data])).unwrap();
    let (echoing, _heard): (_, RecordedCalls) = crate::tests::Echoing::new();
    let services =
        crate::Services::new().with::<crate::tests::Echo>(Roles::of(&[Role::Meta]), echoing);
    let again = TcpListener::bind(address).await.unwrap();
    let _listener = crate::Listener::start(&endpoint(&identity), again, services).unwrap();
    let said = loop {
        if let Ok(said) = to.call(&"third".into(), Bytes::new(), soon()).await {
            break said;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(said.0, "third");
    assert_eq!(ours.metrics().connected.get(), 2);
}

#[tokio::test]
async fn messages_arrive_in_the_order_in_which_they_were_sent() {
    let authority = authority();
    let ours = caller(&authority);
    let (_theirs, listener, mut recorded) = data_server(&authority, 2).await;
    let to = peer(&ours, 2, listener.address());
    for number in 0..1000 {
        to.send(&number, Bytes::from(vec![0; number as usize])).unwrap();
    }
    for number in 0..1000 {
        assert_eq!(recorded.recorded.recv().await, Some(number));
    }
}

#[tokio::test]
async fn a_connection_is_closed_when_nobody_holds_the_peer() {
    let authority = authority();
    let ours = caller(&authority);
    let (theirs, listener, _heard) = data_server(&authority, 2).await;
    let to = peer(&ours, 2, listener.address());
    to.call(&"x".into(), Bytes::new(), soon()).await.unwrap();
    assert_eq!(theirs.metrics().open.get(), 1);
    drop(to);
    while theirs.metrics().open.get() + ours.metrics().open.get() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_can_never_be_sent_is_rejected() {
    let authority = authority();
    let ours = caller(&authority);
    let to = peer(&ours, 2, "127.0.0.1:1".parse().unwrap());
    let long = Bytes::from(vec![0; PAYLOAD_BYTES_MAX + 1]);
    let error = to.call(&"x".into(), long.clone(), soon()).await.unwrap_err();
    assert!(matches!(error, CallError::Rejected(Rejected::TooLong)));
    assert!(matches!(to.send(&1, long), Err(SendError::TooLong)));
}

#[tokio::test]
async fn sixty_four_calls_in_flight_each_get_their_own_answer() {
    let authority = authority();
    let ours = caller(&authority);
    let (theirs, listener, _heard) = data_server(&authority, 2).await;
    let to = peer(&ours, 2, listener.address());
    let mut tasks = JoinSet::new();
    for caller in 0..64_u64 {
        let to = to.clone();
        tasks.spawn(async move {
            for n in 0..20 {
                let said = format!("{caller}-{n}");
                let payload = Bytes::from(vec![caller as u8; (caller as usize * 997) % 20_000]);
                let answer = to.call(&said, payload.clone(), soon()).await.unwrap();
                assert_eq!(answer, (said, payload));
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(ours.metrics().in_flight.get(), 0);
    let answered = |service| -> u64 {
        ours.metrics().round_trips(service).buckets().map(|(_, count)| count).sum()
    };
    assert_eq!(Role::ALL.map(answered), [0, 0, 64 * 20, 0, 0], "data servers are the third");
    for (endpoint, stands) in [(&ours, ConnectionSide::Asks), (&theirs, ConnectionSide::Serves)] {
        for service in Role::ALL {
            for end in ConnectionSide::ALL {
                let of = endpoint.metrics().traffic(service, end);
                let is_some = of.received.get() > 1000 && of.sent.get() > 1000;
                assert_eq!(is_some, (service, end) == (Role::Data, stands), "{service} {end:?}");
            }
        }
    }
}

#[test]
fn pauses_grow_up_to_a_bound_and_differ() {
    let pause = |failures, drawn| pause(failures, || Some(drawn));
    assert_eq!(pause(0, 0), Duration::ZERO);
    let drawn: Vec<Duration> = (0..20).map(|part| pause(1, part * 3000)).collect();
    assert!(drawn.iter().all(|p| *p >= BACKOFF_MIN / 2 && *p <= BACKOFF_MIN));
    assert!(drawn.iter().any(|p| *p != drawn[0]));
    assert!(pause(u32::MAX, 0) >= BACKOFF_MAX / 2 && pause(u32::MAX, u16::MAX) <= BACKOFF_MAX);
}

/// Waits for an event that comes, but not for ever.
async fn comes<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), event).await.expect("it comes within seconds")
}

/// A call that nobody waits for any more, once the other end has it.
async fn given_up(ours: &Arc<Endpoint>, to: &Peer<crate::tests::Echo>, asked: impl Future) {
    let request = "wait".to_owned();
    let call = to.call_while_wanted(&request, Bytes::new(), soon());
    tokio::select! {
        answered = call => panic!("nobody answers: {answered:?}"),
        _ = asked => {}
    }
    assert_eq!(ours.metrics().in_flight.get(), 1, "it is owed an answer still");
}

#[tokio::test]
async fn who_answers_hears_that_nobody_waits_any_more() {
    let authority = authority();
    let ours = caller(&authority);
    let (_theirs, listener, mut recorded) = data_server(&authority, 2).await;
    let to = peer(&ours, 2, listener.address());
    let (reported, hears) = oneshot::channel();
    let mut asked = None;
    given_up(&ours, &to, async {
        let (_, _, responder) = recorded.asked.recv().await.unwrap();
        assert_eq!(responder.version(), PROTOCOL_MAX);
        responder.when_unwanted(move || reported.send(()).unwrap_or_default());
        asked = Some(responder);
    })
    .await;
    comes(hears).await.expect("it is told");
    // The room that it held is free when the other end says that there is no answer.
    drop(asked);
    to.call(&"next".into(), Bytes::new(), soon()).await.unwrap();
    assert_eq!(ours.metrics().in_flight.get(), 0);
}

#[tokio::test]
async fn one_that_was_answered_is_not_told_later() {
    let authority = authority();
    let ours = caller(&authority);
    let (_theirs, listener, mut recorded) = data_server(&authority, 2).await;
    let to = peer(&ours, 2, listener.address());
    let (reported, hears) = oneshot::channel::<()>();
    let answers = async {
        let (said, payload, responder) = recorded.asked.recv().await.unwrap();
        responder.when_unwanted(move || reported.send(()).unwrap_or_default());
        responder.answer(&said, payload);
    };
    let request = "wait".to_owned();
    let call = to.call_while_wanted(&request, Bytes::new(), soon());
    let (answered, ()) = tokio::join!(call, answers);
    answered.unwrap();
    comes(hears).await.expect_err("what was to be done is forgotten");
}

#[tokio::test]
async fn whoever_is_gone_waits_for_nothing() {
    let authority = authority();
    let ours = caller(&authority);
    let (_theirs, listener, mut recorded) = data_server(&authority, 2).await;
    let to = peer(&ours, 2, listener.address());
    let mut tasks = JoinSet::new();
    calls(&mut tasks, &to, 0, 0);
    let (_, _, responder) = recorded.asked.recv().await.unwrap();
    let (reported, hears) = oneshot::channel();
    responder.when_unwanted(move || reported.send(()).unwrap_or_default());
    tasks.abort_all();
    drop((tasks, to));
    comes(hears).await.expect("the connection ended");
    let (reported, hears) = oneshot::channel();
    responder.when_unwanted(move || reported.send(()).unwrap_or_default());
    comes(hears).await.expect("it has ended already");
}

#[tokio::test]
async fn an_older_release_gets_only_what_it_supports() {
    let authority = authority();
    let ours = caller(&authority);
    let identity = authority.identity(ServerId(2), Roles::of(&[Role::Data])).unwrap();
    let (socket, credentials) =
        (socket().await, larder_identity::Credentials::new(&identity).unwrap());
    let played = Played { socket, endpoint: Endpoint::as_of(credentials, PROTOCOL_CANCELS - 1) };
    let to = peer(&ours, 2, played.address());
    let mut wire = None;
    given_up(&ours, &to, async {
        let mut accepted = played.accept().await;
        assert_eq!(accepted.version(), PROTOCOL_CANCELS - 1);
        assert_eq!(accepted.receive_frame().await.unwrap().header.kind, Kind::Request);
        wire = Some(accepted);
    })
    .await;
    to.send(&7, Bytes::new()).unwrap();
    let next = wire.unwrap().receive_frame().await.unwrap();
    assert_eq!(next.header.kind, Kind::Message, "nothing was said in between");
}

#[tokio::test]
async fn an_older_caller_is_served_in_its_version() {
    let authority = authority();
    let identity = authority.identity(ServerId(1), Roles::of(&[Role::Meta])).unwrap();
    let credentials = larder_identity::Credentials::new(&identity).unwrap();
    let ours = Endpoint::as_of(credentials, PROTOCOL_CANCELS - 1);
    let (_theirs, listener, mut recorded) = data_server(&authority, 2).await;
    let to = peer(&ours, 2, listener.address());
    let mut asked = None;
    given_up(&ours, &to, async {
        let (_, _, responder) = recorded.asked.recv().await.unwrap();
        assert_eq!(responder.version(), PROTOCOL_CANCELS - 1);
        asked = Some(responder);
    })
    .await;
    // A cancel would end the connection, and the call with it.
    drop(asked);
    to.call(&"next".into(), Bytes::new(), soon()).await.unwrap();
    assert_eq!(ours.metrics().broken.get(), 0);
}

#[tokio::test]
async fn a_cancelled_call_is_not_sent() {
    let authority = authority();
    let (ours, played) = (caller(&authority), Played::new(&authority).await);
    let to = peer(&ours, 2, played.address());
    // It waits for the connection, which is not accepted yet.
    let request = "wait".to_owned();
    let call = to.call_while_wanted(&request, Bytes::new(), soon());
    assert!(polled_once(call).await.is_none());
    assert_eq!(ours.metrics().in_flight.get(), 0, "it has ended");
    to.send(&7, Bytes::new()).unwrap();
    let next = played.accept().await.receive_frame().await.unwrap();
    assert_eq!(next.header.kind, Kind::Message);
}

/// Polls a future once; its output if it is ready.
async fn polled_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
