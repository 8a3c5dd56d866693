//! Callers that are no region, and regions that are another than was meant.

use larder_protocol::limits::REGION_SERVED_ENTRIES_MAX;
use larder_types::codec::encode;
use rcgen::{CertificateParams, date_time_ymd};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::error::{Later, Refused};
use crate::identity::Identity;
use crate::limits::{
    CALL_TIME_MAX, CONNECTIONS_OF_STRANGERS_MAX, IDLE_STRANGER_MAX, REQUEST_BYTES_MAX,
};
use crate::link::{read_answer, send};
use crate::members::Peer;
use crate::message::Request;
use crate::pool::connect;
use crate::tls;
use crate::transport::RegionConnector;

/// A link of an identity to a region.
fn link(identity: &Identity, to: &Region) -> Link {
    let own = to.members().own.clone();
    let peer = Peer {
        number: own.number,
        name: own.name,
        address: own.advertise,
        fingerprint: own.fingerprint,
        paused: false,
        removed: false,
    };
    Link::to(&peer, RegionConnector::of(identity, peer.fingerprint).unwrap(), Arc::default())
}

#[tokio::test]
async fn a_stranger_may_only_join() {
    let first = Region::first().await;
    let stranger = link(&Identity::draw().unwrap(), &first);
    let answers = [
        stranger.hello().await.map(drop),
        stranger.query_ids(ask()).await.map(drop),
        stranger.members(Vec::new()).await.map(drop),
        stranger.fetch(Fetch { names: vec![(name("a"), true)] }).await.map(drop),
    ];
    for answer in answers {
        assert!(matches!(answer, Err(LinkError::Refused(Refused::Stranger))), "{answer:?}");
    }
    assert_eq!(first.region_endpoint.metrics().strangers.get(), 1, "of one connection");
}

#[tokio::test]
async fn only_the_intended_region_gets_data() {
    let (first, second) = two(How::Bytes(10)).await;
    let third = first.joined("three", How::Bytes(10)).await;
    let mut meant = first.members().peer(RegionId(2)).unwrap().clone();
    meant.address = third.members().own.advertise.clone();
    let identity = crate::registry::identity(first.path()).unwrap();
    let wrong = Link::to(
        &meant,
        RegionConnector::of(&identity, meant.fingerprint).unwrap(),
        Arc::default(),
    )
    .hello()
    .await;
    assert!(matches!(wrong, Err(LinkError::Refused(Refused::WrongKey(_)))), "{wrong:?}");
    assert_eq!(third.region_endpoint.metrics().of(RegionId(1)).answered.get(), 0);
    drop(second);
}

/// The certificate of a region, which others have seen, with another key than its own.
fn stolen(from: &Identity) -> Arc<SingleCertAndKey> {
    let key = any_supported_type(&Identity::draw().unwrap().key()).unwrap();
    Arc::new(CertifiedKey::new(vec![from.certificate()], key).into())
}

#[tokio::test]
async fn whoever_shows_a_key_that_it_does_not_have_is_not_answered() {
    let (first, second) = two(How::Bytes(10)).await;
    let shown = crate::registry::identity(second.path()).unwrap();
    let own = first.members().own.clone();
    let tls = tls::client(&shown, own.fingerprint).unwrap();
    let mut thief = ClientConfig::clone(&tls);
    thief.client_auth_cert_resolver = stolen(&shown);
    // The caller's end of a handshake is over before the other has judged it.
    if let Ok((mut sender, _)) = connect(&own.advertise, &Arc::new(thief).into()).await {
        assert!(send(&mut sender, encode(&Request::Hello).into()).await.is_err());
    }
    assert_eq!(first.region_endpoint.metrics().of(RegionId(2)).answered.get(), 0);
    let (mut sender, _) = connect(&own.advertise, &tls.into()).await.unwrap();
    assert!(send(&mut sender, encode(&Request::Hello).into()).await.is_ok(), "with the key itself");
}

#[tokio::test]
async fn whoever_answers_with_a_key_that_it_does_not_have_is_not_asked() {
    let (first, second) = two(How::Bytes(10)).await;
    let shown = crate::registry::identity(second.path()).unwrap();
    let mut thief = ServerConfig::clone(&tls::server(&shown).unwrap());
    thief.cert_resolver = stolen(&shown);
    let (socket, address) = a_socket().await;
    let acceptor = TlsAcceptor::from(Arc::new(thief));
    let answering = tokio::spawn(async move {
        let (tcp, _) = socket.accept().await.unwrap();
        drop(acceptor.accept(tcp).await);
    });
    let identity = crate::registry::identity(first.path()).unwrap();
    let tls = tls::client(&identity, shown.fingerprint()).unwrap();
    let asked = connect(&address, &tls.into()).await.map(drop);
    assert!(matches!(asked, Err(LinkError::Refused(Refused::WrongKey(_)))), "{asked:?}");
    answering.await.unwrap();
}

#[tokio::test]
async fn a_certificate_whose_time_is_over_is_a_key_as_good_as_before() {
    let first = Region::first().await;
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
    let old = Identity::with(params).unwrap();
    let (_socket, address) = a_socket().await;
    let known = crate::Known {
        number: RegionId(2),
        name: region_name("two"),
        address,
        fingerprint: old.fingerprint(),
        removed: false,
    };
    change(first.path(), |members| members.merge(std::slice::from_ref(&known))).unwrap();
    first.region_endpoint.reload_once().unwrap();
    assert_eq!(link(&old, &first).hello().await.unwrap().number, RegionId(1));
}

/// A first message of TLS 1.2: one cipher suite of that version, and no extensions.
const HELLO_OF_TLS_1_2: [u8; 50] = {
    let mut hello = [0; 50];
    let head = [0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3];
    let mut at = 0;
    while at < head.len() {
        hello[at] = head[at];
        at += 1;
    }
    // After 32 bytes of randomness and an empty session: ECDHE-ECDSA with AES-128-GCM, no compression.
    hello[43] = 0;
    hello[45] = 2;
    hello[46] = 0xc0;
    hello[47] = 0x2b;
    hello[48] = 1;
    hello
};

#[tokio::test]
async fn tls_1_2_is_not_spoken() {
    let first = Region::first().await;
    let mut stream = TcpStream::connect(first.listening.address()).await.unwrap();
    stream.write_all(&HELLO_OF_TLS_1_2).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    // A fatal alert: protocol version, or that it does not go on without what version 1.3 has.
    assert_eq!((answer[0], answer[5]), (0x15, 2), "{answer:02x?}");
    assert!([70, 40, 109].contains(&answer[6]), "{answer:02x?}");
}

#[tokio::test]
async fn a_request_that_is_too_long_or_no_request_is_refused() {
    let (first, second) = two(How::Bytes(10)).await;
    let identity = crate::registry::identity(second.path()).unwrap();
    let own = first.members().own.clone();
    let bodies = [vec![1; REQUEST_BYTES_MAX + 1], vec![1, 99], Vec::new(), vec![2, 0]];
    for (body, why) in bodies.into_iter().zip(["longer than", "decoded", "empty", "version 2"]) {
        let tls = tls::client(&identity, own.fingerprint).unwrap();
        let (mut sender, _) = connect(&own.advertise, &tls.into()).await.unwrap();
        let response = send(&mut sender, body.into()).await.unwrap();
        assert_eq!(response.status(), 400);
        let answer = read_answer::<Hello>(response, &own.advertise).await;
        let said = answer.unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
    let many = Fetch { names: vec![(name("a"), false); REGION_SERVED_ENTRIES_MAX + 1] };
    let answer = second.to(&first).fetch(many).await;
    assert!(matches!(answer, Err(LinkError::Unsound(_))), "{answer:?}");
}

#[tokio::test]
async fn strangers_have_few_places_and_take_none_of_a_regions() {
    let (first, second) = two(How::Bytes(10)).await;
    let own = first.members().own.clone();
    let silent = TcpStream::connect(first.listening.address()).await.unwrap();
    let mut strangers = Vec::new();
    for _ in 0..2 * CONNECTIONS_OF_STRANGERS_MAX {
        let tls = tls::client(&Identity::draw().unwrap(), own.fingerprint).unwrap();
        strangers.push(connect(&own.advertise, &tls.into()).await.unwrap().0);
    }
    let open = || strangers.iter().filter(|sender| !sender.is_closed()).count();
    // None of them has been idle for too long by then: while anything is done, time stands.
    tokio::time::pause();
    while open() > CONNECTIONS_OF_STRANGERS_MAX {
        tokio::task::yield_now().await;
    }
    tokio::time::resume();
    assert!(second.to(&first).hello().await.is_ok());
    drop(silent);
}

#[tokio::test]
async fn a_silent_region_is_not_waited_for() {
    let (first, second) = two(How::Bytes(10)).await;
    let (socket, address) = a_socket().await;
    let acceptor = TlsAcceptor::from(first.region_endpoint.answering().clone());
    let (shaken, has_shaken) = tokio::sync::oneshot::channel();
    let silent = tokio::spawn(async move {
        let (tcp, _) = socket.accept().await.unwrap();
        let stream = acceptor.accept(tcp).await.unwrap();
        shaken.send(stream).unwrap();
    });
    let mut peer = second.members().peer(RegionId(1)).unwrap().clone();
    peer.address = address;
    let identity = crate::registry::identity(second.path()).unwrap();
    let link =
        Link::to(&peer, RegionConnector::of(&identity, peer.fingerprint).unwrap(), Arc::default());
    let asking = tokio::spawn(async move { link.hello().await });
    let _open = has_shaken.await.unwrap();
    tokio::time::pause();
    let since = tokio::time::Instant::now();
    let late = asking.await.unwrap();
    assert!(matches!(late, Err(LinkError::Later(Later::Late))), "{late:?}");
    assert!(since.elapsed() <= 2 * CALL_TIME_MAX);
    silent.await.unwrap();
}

#[tokio::test]
async fn nobody_at_the_address_is_a_reason_to_try_later() {
    let (first, _second) = two(How::Bytes(10)).await;
    let address = first.listening.address();
    let link = link(&Identity::draw().unwrap(), &first);
    drop(first);
    let away = link.hello().await;
    let Err(LinkError::Later(Later::Unreachable { address: reported, .. })) = away else {
        panic!("{away:?}");
    };
    assert_eq!(reported.as_str(), address.to_string());
}

#[tokio::test]
async fn a_stranger_that_asks_nothing_more_is_cut_off() {
    let first = Region::first().await;
    let own = first.members().own.clone();
    let tls = tls::client(&Identity::draw().unwrap(), own.fingerprint).unwrap();
    let (mut sender, _) = connect(&own.advertise, &tls.into()).await.unwrap();
    // Its earlier request gives it no more time.
    let response = send(&mut sender, encode(&Request::Hello).into()).await.unwrap();
    assert!(read_answer::<Hello>(response, &own.advertise).await.is_err());
    sender.ready().await.unwrap();
    tokio::time::pause();
    tokio::time::sleep(IDLE_STRANGER_MAX + std::time::Duration::from_secs(1)).await;
    while !sender.is_closed() {
        tokio::task::yield_now().await;
    }
}
