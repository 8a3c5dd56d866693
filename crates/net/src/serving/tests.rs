use std::time::Duration;

use bytes::Bytes;
use larder_identity::{Roles, Subject};
use larder_types::{ClusterId, ServerId};
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use super::*;
use crate::connection::{Wire, run};
use crate::limits::{
    HELD_BYTES_MAX, PAYLOAD_BYTES_MAX, PING_INTERVAL, PROTOCOL_TOO_LONG, REQUESTS_MAX,
};
use crate::service::Served;
use crate::tests::{Echo, Echoing, RecordedCalls};

struct Side {
    wire: Wire,
    recorded: RecordedCalls,
    metrics: Arc<Metrics>,
    ended: JoinHandle<Broken>,
}

/// A connection through memory: the hellos are said.
fn connected() -> Side {
    connected_in(1)
}

/// The same, in this version of the protocol.
fn connected_in(version: u8) -> Side {
    let (ours, theirs) = duplex(64 * 1024);
    let (echoing, recorded) = Echoing::new();
    let metrics = Arc::new(Metrics::default());
    let ended = tokio::spawn(served(theirs, echoing, metrics.clone(), version));
    let mut wire = Wire::new(Box::new(ours), Arc::default());
    wire.agreed(version);
    Side { wire, recorded, metrics, ended }
}

async fn served(
    socket: DuplexStream,
    echoing: Echoing,
    metrics: Arc<Metrics>,
    version: u8,
) -> Broken {
    let roles = Roles::all();
    let subject = Subject { cluster: ClusterId(7), server: ServerId(1), roles };
    let from = PeerIdentity { subject, address: "127.0.0.1:1".parse().unwrap(), version };
    let serve = Arc::new(Served::<Echo, _>::new(echoing));
    let mut serving = Serving::new((from, None), serve, (metrics.clone(), PingSchedule::begin()));
    let mut wire = Wire::new(Box::new(socket), metrics);
    wire.agreed(version);
    run(&mut wire, &mut serving).await
}

fn request(number: u64, body: &str, payload: usize) -> Outgoing {
    request_in(1, number, body, payload)
}

fn request_in(version: u8, number: u64, body: &str, payload: usize) -> Outgoing {
    let payload = Bytes::from(vec![7; payload]);
    let mut frame = Outgoing::new(Kind::Request, &body, payload).unwrap().numbered(number);
    frame.address(version);
    frame
}

fn cancel(version: u8, number: u64) -> Outgoing {
    let mut frame = Outgoing::bare(Kind::Cancel, Status::Done).numbered(number);
    frame.address(version);
    frame
}

#[tokio::test]
async fn requests_beyond_the_bound_are_answered_busy_at_once() {
    let mut side = connected();
    for number in 0..REQUESTS_MAX as u64 {
        side.wire.send_frame(request(number, "wait", 0)).await.unwrap();
    }
    side.wire.send_frame(request(9999, "one more", 0)).await.unwrap();
    let busy = side.wire.receive_frame().await.unwrap();
    assert_eq!((busy.header.number, busy.header.status), (9999, Status::Busy));
    assert_eq!(side.metrics.busy.get(), 1);

    let (body, _, responder) = side.recorded.asked.recv().await.unwrap();
    responder.answer(&body, Bytes::new());
    assert_eq!(side.wire.receive_frame().await.unwrap().header.number, 0);
    side.recorded.asked.recv().await.unwrap().2.busy();
    let busy = side.wire.receive_frame().await.unwrap();
    assert_eq!((busy.header.number, busy.header.status), (1, Status::Busy), "a handler may say so");
    side.wire.send_frame(request(10_000, "again", 0)).await.unwrap();
    assert_eq!(side.wire.receive_frame().await.unwrap().header.status, Status::Done);
}

#[tokio::test]
async fn payloads_that_handlers_hold_are_bounded_too() {
    let mut side = connected();
    let held = HELD_BYTES_MAX / PAYLOAD_BYTES_MAX;
    for number in 0..=held as u64 {
        side.wire.send_frame(request(number, "wait", PAYLOAD_BYTES_MAX)).await.unwrap();
    }
    let busy = side.wire.receive_frame().await.unwrap();
    assert_eq!((busy.header.number, busy.header.status), (held as u64, Status::Busy));
}

#[tokio::test]
async fn a_request_that_is_dropped_or_unknown_is_answered_as_such() {
    let mut side = connected();
    side.wire.send_frame(request(1, "wait", 0)).await.unwrap();
    drop(side.recorded.asked.recv().await.unwrap());
    assert_eq!(side.wire.receive_frame().await.unwrap().header.status, Status::NoAnswer);

    let mut unknown = Outgoing::new(Kind::Request, &9_u8, Bytes::new()).unwrap().numbered(2);
    unknown.address(1);
    side.wire.send_frame(unknown).await.unwrap();
    assert_eq!(side.wire.receive_frame().await.unwrap().header.status, Status::NotUnderstood);
    assert_eq!(side.metrics.handling.get(), 0);
}

#[tokio::test]
async fn a_caller_of_a_supporting_version_learns_that_a_reply_is_too_long() {
    for (version, recorded) in
        [(PROTOCOL_TOO_LONG, Status::TooLong), (PROTOCOL_TOO_LONG - 1, Status::NoAnswer)]
    {
        let (mut side, long) = (connected_in(version), vec![7; PAYLOAD_BYTES_MAX + 1]);
        side.wire.send_frame(request_in(version, 1, "wait", 0)).await.unwrap();
        let (body, _, responder) = side.recorded.asked.recv().await.unwrap();
        responder.answer(&body, long.into());
        let answer = side.wire.receive_frame().await.unwrap().header;
        assert_eq!((answer.status, answer.body_len, answer.payload_len), (recorded, 0, 0));
        assert_eq!(side.metrics.handling.get(), 0);
        side.wire.send_frame(request_in(version, 2, "again", 0)).await.unwrap();
        assert_eq!(side.wire.receive_frame().await.unwrap().header.status, Status::Done);
    }
}

#[tokio::test]
async fn a_message_that_is_not_understood_is_counted_and_the_rest_goes_on() {
    let mut side = connected();
    let unknown = [
        Outgoing::new(Kind::Message, &"no number", Bytes::new()).unwrap(),
        Outgoing::new(Kind::Message, &(5_u64, "more"), Bytes::new()).unwrap(),
    ];
    for mut frame in unknown {
        frame.address(1);
        side.wire.send_frame(frame).await.unwrap();
    }
    let mut number = Outgoing::new(Kind::Message, &6_u64, Bytes::new()).unwrap();
    number.address(1);
    side.wire.send_frame(number).await.unwrap();
    assert_eq!(side.recorded.recorded.recv().await, Some(6));
    assert_eq!(side.metrics.dropped.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_reads_nothing_is_not_read_and_then_dropped() {
    let mut side = connected();
    let payload = 1024 * 1024;
    let mut said = 0;
    // Not even the virtual clock lets it take more: the answers have nowhere to go.
    while tokio::time::timeout(
        Duration::from_millis(100),
        side.wire.send_frame(request(said, "echo", payload)),
    )
    .await
    .is_ok()
    {
        said += 1;
        assert!(said < 64, "it takes what it cannot answer");
    }
    assert!(said as usize * payload <= ANSWER_BYTES_MAX + 2 * payload, "{said}");
    assert!(matches!(side.ended.await.unwrap(), Broken::Stalled));
}

#[tokio::test(start_paused = true)]
async fn a_silent_caller_is_dropped_and_one_that_pings_is_not() {
    let mut side = connected();
    let since = Instant::now();
    for number in 0..10 {
        tokio::time::advance(PING_INTERVAL).await;
        let mut ping = Outgoing::bare(Kind::Ping, Status::Done).numbered(number);
        ping.address(1);
        side.wire.send_frame(ping).await.unwrap();
        let pong = side.wire.receive_frame().await.unwrap();
        assert_eq!((pong.header.kind, pong.header.number), (Kind::Pong, number));
    }
    assert!(matches!(side.ended.await.unwrap(), Broken::Silent));
    assert!(since.elapsed() >= 10 * PING_INTERVAL + SILENCE_MAX);
}

#[tokio::test]
async fn garbage_ends_the_connection() {
    let (mut ours, theirs) = duplex(1024);
    let (echoing, _heard) = Echoing::new();
    let ended = tokio::spawn(served(theirs, echoing, Arc::default(), 1));
    ours.write_all(&[0xff; 100]).await.unwrap();
    assert!(matches!(ended.await.unwrap(), Broken::Frame(FrameError::Magic)));
}

#[tokio::test]
async fn answers_overtake_each_other() {
    let mut side = connected();
    side.wire.send_frame(request(1, "wait 1", 10)).await.unwrap();
    side.wire.send_frame(request(2, "wait 2", 20)).await.unwrap();
    let first = side.recorded.asked.recv().await.unwrap();
    let second = side.recorded.asked.recv().await.unwrap();
    for (body, payload, responder) in [second, first] {
        responder.answer(&body, payload);
    }
    for number in [2, 1] {
        let frame = side.wire.receive_frame().await.unwrap();
        assert_eq!(frame.header.number, number);
        assert_eq!(frame.into_payload().len(), number as usize * 10);
    }
}

#[tokio::test]
async fn a_cancel_concerns_the_request_that_it_names_and_no_other() {
    let version = PROTOCOL_CANCELS;
    let mut side = connected_in(version);
    let (reported, mut hears) = tokio::sync::mpsc::channel(4);
    let mut asked = Vec::new();
    for number in [1_u64, 2] {
        side.wire.send_frame(request_in(version, number, "wait", 0)).await.unwrap();
        let (body, _, responder) = side.recorded.asked.recv().await.unwrap();
        let reported = reported.clone();
        responder.when_unwanted(move || reported.try_send(number).unwrap_or_default());
        asked.push((body, responder));
    }
    for number in [9999, 2, 2] {
        side.wire.send_frame(cancel(version, number)).await.unwrap();
    }
    assert_eq!(hears.recv().await, Some(2));
    let (body, responder) = asked.remove(0);
    responder.answer(&body, Bytes::new());
    assert_eq!(side.wire.receive_frame().await.unwrap().header.number, 1, "the connection goes on");
    side.wire.send_frame(cancel(version, 1)).await.unwrap();
    side.wire.send_frame(request_in(version, 3, "echo", 0)).await.unwrap();
    assert_eq!(side.wire.receive_frame().await.unwrap().header.number, 3);
    assert!(hears.try_recv().is_err(), "neither twice, nor after the answer");
}

#[tokio::test]
async fn a_cancel_in_a_version_that_has_none_ends_the_connection() {
    let version = PROTOCOL_CANCELS - 1;
    let mut side = connected_in(version);
    side.wire.send_frame(cancel(version, 1)).await.unwrap();
    assert!(matches!(side.ended.await.unwrap(), Broken::Frame(FrameError::NotDue)));
}
