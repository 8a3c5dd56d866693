use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::Port;
use crate::tests::{Log, socket};

/// A port where discovery requests are answered with what was said and a little more.
async fn port(secret: &PeerSecret) -> (Arc<Port>, String) {
    let port = Port::open(socket().await).unwrap();
    let decide = |_, said: Vec<u8>| -> Reply {
        Box::pin(async move { [said.as_slice(), b", who is there?"].concat() })
    };
    port.answer(DiscoveryResponder::new(secret.clone(), decide).unwrap());
    let address = port.address().to_string();
    (port, address)
}

#[tokio::test]
async fn who_has_the_secret_is_answered_and_nobody_else() {
    let secret = PeerSecret::draw().unwrap();
    let (_port, address) = port(&secret).await;
    assert_eq!(discover(&address, &secret, b"knock").await.unwrap(), b"knock, who is there?");

    let (log, _guard) = Log::begin();
    let refused = discover(&address, &PeerSecret::draw().unwrap(), b"knock").await;
    assert!(matches!(refused, Err(DiscoveryError::OtherSecret)), "{refused:?}");
    // The answer may be here before the line is.
    while !log.text().contains("used another secret") {
        tokio::task::yield_now().await;
    }
    assert!(log.text().contains("address=127.0.0.1:"), "{}", log.text());
}

#[tokio::test]
async fn a_responder_without_the_secret_is_not_believed() {
    let secret = PeerSecret::draw().unwrap();
    let (_port, address) = port(&PeerSecret::draw().unwrap()).await;
    let refused = discover(&address, &secret, b"knock").await;
    assert!(matches!(refused, Err(DiscoveryError::OtherSecret)), "{refused:?}");

    // Nor one that reflects the requester's own proof.
    let impostor =
        DiscoveryResponder::new(PeerSecret::draw().unwrap(), |_, said| Box::pin(async { said }));
    let config = impostor.unwrap().config;
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (tcp, _) = socket.accept().await.unwrap();
        let tls = tokio_rustls::TlsAcceptor::from(config).accept(tcp).await.unwrap();
        let mut wire = Wire::new(Box::new(tls), Arc::default());
        let RequestBody::DiscoveryRequest { said, proof } =
            wire.receive_frame().await.unwrap().decode().unwrap();
        let answer = frame_of(Kind::Answer, &ReplyBody::Answer { said, proof }).unwrap();
        wire.send_frame(answer).await.unwrap();
    });
    let refused = discover(&address, &secret, b"knock").await;
    assert!(matches!(refused, Err(DiscoveryError::OtherSecret)), "{refused:?}");
}

#[tokio::test]
async fn whoever_stands_between_is_found_out() {
    let secret = PeerSecret::draw().unwrap();
    let (_port, address) = port(&secret).await;
    // Takes the requester's session as a responder of its own, and says the same, with the same proof, in another.
    let between =
        DiscoveryResponder::new(secret.clone(), |_, said| Box::pin(async { said })).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = socket.local_addr().unwrap().to_string();
    let relay = tokio::spawn(async move {
        let (tcp, _) = socket.accept().await.unwrap();
        let tls = tokio_rustls::TlsAcceptor::from(between.config).accept(tcp).await.unwrap();
        let mut near = Wire::new(Box::new(tls), Arc::default());
        let asked: RequestBody = near.receive_frame().await.unwrap().decode().unwrap();
        let tls = connect_for_discovery(&address).await.unwrap();
        let mut far = Wire::new(Box::new(tls), Arc::default());
        far.send_frame(frame_of(Kind::Request, &asked).unwrap()).await.unwrap();
        let reported: ReplyBody = far.receive_frame().await.unwrap().decode().unwrap();
        assert!(
            matches!(reported, ReplyBody::OtherSecret),
            "the proof is of another session: {reported:?}"
        );
    });
    drop(discover(&at, &secret, b"knock").await.unwrap_err());
    relay.await.unwrap();
}

#[tokio::test]
async fn a_port_without_discovery_does_not_answer_strangers() {
    let (_port, address) = port(&PeerSecret::draw().unwrap()).await;
    let mut tcp = TcpStream::connect(&address).await.unwrap();
    tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    drop(tcp.read_to_end(&mut answer).await);
    assert!(answer.len() < 16, "an alert of TLS at most: {answer:?}");
}

#[test]
fn discovery_has_golden_bytes() {
    let asked = RequestBody::DiscoveryRequest { said: b"said".to_vec(), proof: [1; 32] };
    let reported = ReplyBody::Answer { said: b"told".to_vec(), proof: [2; 32] };
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let asked = hex(postcard::to_extend(&asked, Vec::new()).unwrap());
    assert_eq!(asked, format!("000473616964{}", "01".repeat(32)));
    let reported = hex(postcard::to_extend(&reported, Vec::new()).unwrap());
    assert_eq!(reported, format!("0004746f6c64{}", "02".repeat(32)));
    assert_eq!(hex(postcard::to_extend(&ReplyBody::OtherSecret, Vec::new()).unwrap()), "01");
}
