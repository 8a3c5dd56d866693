use std::time::SystemTime;

use bytes::Bytes;
use larder_identity::Validity;
use larder_identity::ciphers::provider;
use larder_identity::limits::CLOCK_MARGIN;
use larder_identity::server_name;
use larder_identity::tls::CALLS;
use larder_identity::{Authority, Identity, Role, Roles};
use larder_types::{ClusterId, ServerId};
use rustls::client::WebPkiServerVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::*;
use crate::error::{CallError, Denied, Refused, RefusingSide};
use crate::tests::{Log, authority, caller, data_server, endpoint, expired, peer, soon};

/// The refusal that a caller with this identity hears from server 2, and what is logged.
async fn heard_by(authority: &Authority, identity: &Identity) -> (Denied, Refused, String) {
    let (log, _guard) = Log::begin();
    let (theirs, listener, _heard) = data_server(authority, 2).await;
    let ours = endpoint(identity);
    let error = peer(&ours, 2, listener.address())
        .call(&"x".into(), Bytes::new(), soon())
        .await
        .unwrap_err();
    let CallError::Denied(denied) = error else { panic!("{error}") };
    let refused = loop {
        let mut all = Refused::ALL.into_iter();
        if let Some(why) = all.find(|why| theirs.metrics().refused(*why) > 0) {
            break why;
        }
        tokio::task::yield_now().await;
    };
    (denied, refused, log.text())
}

#[tokio::test]
async fn a_caller_with_an_expired_certificate_is_refused() {
    let authority = authority();
    let roles = Roles::of(&[Role::Meta]);
    let old = authority.identity_valid(ServerId(1), roles, expired()).unwrap();
    let (denied, refused, log) = heard_by(&authority, &old).await;
    assert_eq!((denied.by, denied.reason), (RefusingSide::Peer, Refused::Expired));
    assert_eq!(refused, Refused::Expired);
    let line = log.lines().find(|l| l.contains("reason=\"expired\"")).expect("it is logged");
    assert!(line.contains("WARN") && line.contains("address=127.0.0.1:"), "{line}");
}

#[tokio::test]
async fn a_caller_whose_certificate_begins_tomorrow_is_refused() {
    let authority = authority();
    let from = SystemTime::now() + CLOCK_MARGIN;
    let valid = Validity { from, to: from + CLOCK_MARGIN };
    let early = authority.identity_valid(ServerId(1), Roles::of(&[Role::Meta]), valid).unwrap();
    let (_, refused, log) = heard_by(&authority, &early).await;
    assert_eq!(refused, Refused::NotYetValid, "{log}");
}

#[tokio::test]
async fn a_caller_of_another_cluster_is_refused_even_if_the_cluster_has_the_same_id() {
    for cluster in [7, 8] {
        let ours = authority();
        let foreign = Authority::create(ClusterId(cluster)).unwrap();
        let roles = Roles::of(&[Role::Meta]);
        // It trusts our servers, so that its own certificate is what decides.
        let stranger = foreign.identity(ServerId(1), roles).unwrap();
        let (_theirs, listener, _heard) = data_server(&ours, 2).await;
        let (log, _guard) = Log::begin();
        let config = client_config(&ours, Some(&stranger));
        assert!(greet(config, &listener).await.is_err());
        let log = log.text();
        assert!(log.contains("reason=\"unknown_authority\""), "{log}");
    }
}

#[tokio::test]
async fn a_caller_without_a_certificate_is_refused() {
    let authority = authority();
    let (theirs, listener, _heard) = data_server(&authority, 2).await;
    let (log, _guard) = Log::begin();
    assert!(greet(client_config(&authority, None), &listener).await.is_err());
    assert_eq!(theirs.metrics().refused(Refused::NoCertificate), 1);
    assert!(log.text().contains("reason=\"no_certificate\""), "{}", log.text());
}

/// A client that trusts our servers and shows whatever certificate.
fn client_config(servers: &Authority, shown: Option<&Identity>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(servers.certificate().to_vec().into()).unwrap();
    let provider = Arc::new(provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone())
        .build()
        .unwrap();
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_webpki_verifier(verifier)
        .with_no_client_auth();
    if let Some(identity) = shown {
        let own = larder_identity::Credentials::new(identity).unwrap().configs();
        config.client_auth_cert_resolver = own.client.client_auth_cert_resolver.clone();
    }
    config.alpn_protocols = vec![CALLS.to_vec()];
    config
}

/// The end of a handshake, as the client hears it.
async fn greet(config: ClientConfig, listener: &Listener) -> io::Result<u8> {
    let tcp = TcpStream::connect(listener.address()).await?;
    let name = server_name(ClusterId(7), ServerId(2));
    let mut tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    tls.read_u8().await
}

#[tokio::test]
async fn a_caller_of_the_wrong_role_is_refused_with_the_reason() {
    let authority = authority();
    let proxy = authority.identity(ServerId(1), Roles::of(&[Role::Proxy])).unwrap();
    let (denied, refused, log) = heard_by(&authority, &proxy).await;
    assert_eq!((denied.by, denied.reason), (RefusingSide::Peer, Refused::WrongRole));
    assert!(denied.why.contains("may not call data"), "{denied}");
    assert_eq!(refused, Refused::WrongRole);
    assert!(log.contains("reason=\"wrong_role\""), "{log}");
}

#[tokio::test]
async fn a_server_that_is_another_than_was_meant_is_not_spoken_to() {
    let authority = authority();
    let (_theirs, listener, _heard) = data_server(&authority, 2).await;
    let (log, _guard) = Log::begin();
    let ours = caller(&authority);
    let to = peer(&ours, 3, listener.address());
    let error = to.call(&"x".into(), Bytes::new(), soon()).await.unwrap_err();
    let CallError::Denied(denied) = error else { panic!("{error}") };
    assert_eq!((denied.by, denied.reason), (RefusingSide::Us, Refused::WrongServer));
    assert_eq!(ours.metrics().refused(Refused::WrongServer), 1);
    assert!(log.text().contains("a connection was refused"), "{}", log.text());
}

#[tokio::test]
async fn a_refusal_that_repeats_has_one_line_and_is_counted_each_time() {
    let authority = authority();
    let (_theirs, listener, _heard) = data_server(&authority, 2).await;
    let (log, _guard) = Log::begin();
    let ours = caller(&authority);
    let to = peer(&ours, 3, listener.address());
    while ours.metrics().refused(Refused::WrongServer) < 3 {
        let error = to.call(&"x".into(), Bytes::new(), soon()).await.unwrap_err();
        assert!(matches!(error, CallError::Denied(_)), "{error}");
        tokio::task::yield_now().await;
    }
    let log = log.text();
    let lines = log.lines().filter(|line| line.contains("a connection was refused"));
    assert_eq!(lines.filter(|line| line.contains("role=data")).count(), 1, "{log}");
}

#[tokio::test]
async fn a_server_without_the_role_that_is_called_is_not_spoken_to() {
    let authority = authority();
    // It serves data, but its certificate does not say so.
    let identity = authority.identity(ServerId(2), Roles::of(&[Role::Proxy])).unwrap();
    let (echoing, _heard) = crate::tests::Echoing::new();
    let services = Services::new().with::<crate::tests::Echo>(Roles::all(), echoing);
    let socket = crate::tests::socket().await;
    let listener = Listener::start(&endpoint(&identity), socket, services).unwrap();
    let to = peer(&caller(&authority), 2, listener.address());
    let error = to.call(&"x".into(), Bytes::new(), soon()).await.unwrap_err();
    let CallError::Denied(denied) = error else { panic!("{error}") };
    assert_eq!((denied.by, denied.reason), (RefusingSide::Us, Refused::WrongRole));
}

#[tokio::test]
async fn a_service_that_is_not_there_is_named() {
    let authority = authority();
    let identity = authority.identity(ServerId(2), Roles::all()).unwrap();
    let socket = crate::tests::socket().await;
    let listener = Listener::start(&endpoint(&identity), socket, Services::new()).unwrap();
    let to = peer(&caller(&authority), 2, listener.address());
    let error = to.call(&"x".into(), Bytes::new(), soon()).await.unwrap_err();
    let CallError::Denied(denied) = error else { panic!("{error}") };
    assert_eq!((denied.by, denied.reason), (RefusingSide::Peer, Refused::NoService));
}

/// Anybody who reaches the port can be refused as often as they like.
#[tokio::test]
async fn many_refusals_get_one_line_and_are_all_counted() {
    let authority = authority();
    let (theirs, listener, _heard) = data_server(&authority, 2).await;
    let (log, _guard) = Log::begin();
    for _ in 0..100 {
        let mut tcp = TcpStream::connect(listener.address()).await.unwrap();
        tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        drop(tcp.read_to_end(&mut Vec::new()).await);
    }
    assert_eq!(theirs.metrics().refused(Refused::Garbage), 100);
    let lines = log.text().lines().filter(|line| line.contains("a connection was refused")).count();
    assert_eq!(lines, 1, "{}", log.text());
    // Another reason has a line of its own.
    let stranger = Authority::create(ClusterId(8)).unwrap();
    let to = peer(&caller(&stranger), 2, listener.address());
    to.call(&"x".into(), Bytes::new(), soon()).await.unwrap_err();
    while theirs.metrics().refused(Refused::UnknownAuthority) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(log.text().contains("reason=\"unknown_authority\""), "{}", log.text());
}

#[tokio::test]
async fn a_stranger_that_speaks_no_tls_is_refused_and_logged() {
    let authority = authority();
    let (theirs, listener, _heard) = data_server(&authority, 2).await;
    let (log, _guard) = Log::begin();
    let mut tcp = TcpStream::connect(listener.address()).await.unwrap();
    tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // An alert, or a reset: not an answer in any case.
    drop(tcp.read_to_end(&mut answer).await);
    assert!(!answer.starts_with(b"HTTP"));
    assert_eq!(theirs.metrics().refused(Refused::Garbage), 1);
    assert!(log.text().contains("reason=\"garbage\""), "{}", log.text());
}

#[tokio::test]
async fn a_renewed_certificate_is_used_for_the_next_connection() {
    let authority = authority();
    let roles = Roles::of(&[Role::Meta]);
    let old = authority.identity_valid(ServerId(1), roles, expired()).unwrap();
    let credentials = larder_identity::Credentials::new(&old).unwrap();
    let ours = Endpoint::new(credentials.clone());
    let (_theirs, listener, _heard) = data_server(&authority, 2).await;
    let to = peer(&ours, 2, listener.address());
    assert!(to.call(&"x".into(), Bytes::new(), soon()).await.is_err());
    credentials.replace(&authority.identity(ServerId(1), roles).unwrap()).unwrap();
    while to.call(&"x".into(), Bytes::new(), soon()).await.is_err() {
        tokio::task::yield_now().await;
    }
    let another = authority.identity(ServerId(5), roles).unwrap();
    assert!(credentials.replace(&another).is_err(), "it is another server's");
}

#[tokio::test]
async fn a_listener_that_is_dropped_closes_its_connections() {
    let authority = authority();
    let (theirs, listener, _heard) = data_server(&authority, 2).await;
    let ours = caller(&authority);
    let to = peer(&ours, 2, listener.address());
    to.call(&"x".into(), Bytes::new(), soon()).await.unwrap();
    assert_eq!(theirs.metrics().open.get(), 1);
    drop(listener);
    while theirs.metrics().open.get() + ours.metrics().open.get() > 0 {
        tokio::task::yield_now().await;
    }
}
