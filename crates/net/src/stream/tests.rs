use std::time::Duration;

use larder_identity::{Authority, Identity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::*;
use crate::error::RefusingSide;
use crate::tests::{Echo, Echoing, Log, authority, caller, endpoint, peer, socket, soon};
use crate::{Listener, Services};

const MANY: usize = 3 * 1024 * 1024;

/// Gives back what comes, until it ends.
struct GivesBack;

impl StreamHandler for GivesBack {
    fn serve(&self, _from: PeerIdentity, mut stream: Stream) -> Streaming {
        Box::pin(async move {
            let mut bytes = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                if stream.write_all(&bytes[..read]).await.is_err() || stream.flush().await.is_err()
                {
                    return;
                }
            }
        })
    }
}

fn data(authority: &Authority) -> Identity {
    authority.identity(ServerId(2), Roles::of(&[Role::Data])).unwrap()
}

/// Server 2, which has streams of data servers for meta servers, and calls.
async fn server(authority: &Authority) -> (Arc<Endpoint>, Listener) {
    let theirs = endpoint(&data(authority));
    let (echoing, _heard) = Echoing::new();
    let callers = Roles::of(&[Role::Meta]);
    let services =
        Services::new().with::<Echo>(callers, echoing).with_streams(Role::Data, callers, GivesBack);
    let listener = Listener::start(&theirs, socket().await, services).unwrap();
    (theirs, listener)
}

async fn open(ours: &Endpoint, server: u32, listener: &Listener) -> Result<Stream, CallError> {
    ours.open_stream(ServerId(server), Role::Data, listener.address().to_string()).await
}

async fn refusal(ours: &Endpoint, server: u32, listener: &Listener) -> Denied {
    match open(ours, server, listener).await {
        Err(CallError::Denied(denied)) => denied,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_carries_all_bytes_both_ways_beside_calls() {
    let authority = authority();
    let (theirs, listener) = server(&authority).await;
    let ours = caller(&authority);
    let stream = open(&ours, 2, &listener).await.unwrap();
    let sent: Vec<u8> = (0..MANY).map(|at| (at * 7 % 251) as u8).collect();
    let (mut reading, mut writing) = tokio::io::split(stream);
    let written = sent.clone();
    let writer = tokio::spawn(async move {
        writing.write_all(&written).await.unwrap();
        writing.flush().await.unwrap();
        writing
    });
    let mut back = vec![0; MANY];
    reading.read_exact(&mut back).await.unwrap();
    assert!(back == sent, "what came back is what was sent");
    let called = peer(&ours, 2, listener.address());
    called.call(&"x".into(), bytes::Bytes::new(), soon()).await.unwrap();
    for (metrics, stands) in
        [(ours.metrics(), ConnectionSide::Asks), (theirs.metrics(), ConnectionSide::Serves)]
    {
        let of = metrics.traffic(Role::Data, stands);
        assert!(of.sent.get() >= MANY as u64 && of.received.get() >= MANY as u64, "{stands:?}");
        assert_eq!(metrics.open.get(), 2, "the stream, and the calls: {stands:?}");
    }
    drop((reading, writer.await.unwrap()));
    timeout(Duration::from_secs(60), async {
        while theirs.metrics().open.get() > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("its other end went with it");
}

#[tokio::test]
async fn who_reads_nothing_holds_back_who_sends() {
    let authority = authority();
    let (_theirs, listener) = server(&authority).await;
    let mut stream = open(&caller(&authority), 2, &listener).await.unwrap();
    // It gives back, nobody reads, and so it takes no more at some point.
    let piece = vec![1; 1024 * 1024];
    let held_back = timeout(Duration::from_secs(60), async {
        for _ in 0..64 {
            if timeout(Duration::from_secs(1), stream.write_all(&piece)).await.is_err() {
                return true;
            }
        }
        false
    });
    assert!(held_back.await.unwrap(), "64 MiB went into a stream that nobody reads");
}

#[tokio::test]
async fn streams_are_refused_for_the_reasons_of_calls() {
    let authority = authority();
    let (theirs, listener) = server(&authority).await;
    let (log, _guard) = Log::begin();
    let denied = refusal(&caller(&authority), 3, &listener).await;
    assert_eq!((denied.by, denied.reason), (RefusingSide::Us, Refused::WrongServer));
    let proxy = authority.identity(ServerId(1), Roles::of(&[Role::Proxy])).unwrap();
    let denied = refusal(&endpoint(&proxy), 2, &listener).await;
    assert_eq!((denied.by, denied.reason), (RefusingSide::Peer, Refused::WrongRole));
    assert!(log.text().contains("reason=\"wrong_role\""), "{}", log.text());
    let ours = caller(&authority);
    let other = ours.open_stream(ServerId(2), Role::Meta, listener.address().to_string()).await;
    assert!(matches!(other, Err(CallError::Denied(Denied { reason: Refused::WrongRole, .. }))));
    theirs.refuse_removed([ServerId(1)].into());
    assert_eq!(refusal(&ours, 2, &listener).await.reason, Refused::Removed);
}

#[tokio::test]
async fn a_server_without_streams_refuses_them() {
    let authority = authority();
    let (_theirs, listener, _heard) = crate::tests::data_server(&authority, 2).await;
    let denied = refusal(&caller(&authority), 2, &listener).await;
    assert_eq!(denied.reason, Refused::NoService);
}

#[tokio::test]
async fn a_stream_ends_with_its_listener_and_with_its_caller_s_removal() {
    let authority = authority();
    for is_removed in [true, false] {
        let (theirs, listener) = server(&authority).await;
        let mut stream = open(&caller(&authority), 2, &listener).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
        match is_removed {
            true => theirs.refuse_removed([ServerId(1)].into()),
            false => drop(listener),
        }
        let end = timeout(Duration::from_secs(60), stream.read_u8()).await;
        assert!(end.expect("it ends").is_err());
    }
}
