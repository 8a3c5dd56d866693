//! Requesters and responders whose words are not good.

use parking_lot::Mutex;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::Port;
use crate::hostile::{self, framed, panics, rounds};
use crate::tests::socket;

const SAID: &[u8] = b"knock";

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, Vec::new()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn spoiled_requests_are_not_heard_and_end_no_responder() {
    let (secret, before) = (PeerSecret::draw().unwrap(), panics());
    let port = Port::open(socket().await).unwrap();
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let hears = recorded.clone();
    let decide = move |_, said: Vec<u8>| -> Reply {
        hears.lock().push(said.clone());
        Box::pin(async move { said })
    };
    port.answer(DiscoveryResponder::new(secret.clone(), decide).unwrap());
    let address = port.address().to_string();
    let (mut answered, mut refused, mut unheard, mut slow) = (0, 0, 0, 0);
    for mut draw in rounds() {
        let Ok(tls) = connect_for_discovery(&address).await else {
            slow += 1;
            continue;
        };
        let session = session_secret(tls.get_ref().1).unwrap();
        let proof = secret.prove(Prover::DiscoveryRequester, &session, SAID);
        let good = encoded(&RequestBody::DiscoveryRequest { said: SAID.to_vec(), proof });
        let bytes = framed(&mut draw, Kind::Request, &[good]);
        match hostile::ask(tls, &bytes).await.map(|frame| frame.decode().unwrap()) {
            Some(ReplyBody::Answer { .. }) => answered += 1,
            Some(ReplyBody::OtherSecret) => refused += 1,
            None => unheard += 1,
        }
    }
    println!(
        "{answered} answered, {refused} refused, {unheard} not understood, {slow} not in time"
    );
    assert!(slow <= hostile::slow_max(answered + refused + unheard), "it is reached");
    assert!(answered > 0 && refused > 0 && unheard > 0, "all of it is reached");
    assert_eq!(discover(&address, &secret, SAID).await.unwrap(), SAID);
    let recorded = recorded.lock();
    assert!(recorded.iter().all(|said| said == SAID), "only what is proved is handed on");
    assert_eq!(panics(), before, "nothing panicked");
}

#[tokio::test(flavor = "multi_thread")]
async fn spoiled_answers_are_not_believed_and_end_no_requester() {
    let (secret, before) = (PeerSecret::draw().unwrap(), panics());
    let keeper =
        DiscoveryResponder::new(secret.clone(), |_, said| Box::pin(async { said })).unwrap();
    let acceptor = TlsAcceptor::from(keeper.config);
    let socket = socket().await;
    let address = socket.local_addr().unwrap().to_string();
    let (mut believed, mut others, mut unreachable, mut slow) = (0, 0, 0, 0);
    for mut draw in rounds() {
        let answering = async {
            let (tcp, _) = socket.accept().await.unwrap();
            let tls = acceptor.accept(tcp).await.ok()?;
            let session = session_secret(tls.get_ref().1).unwrap();
            let mut wire = Wire::new(Box::new(tls), Arc::default());
            let _knock: RequestBody = wire.receive_frame().await.ok()?.decode().unwrap();
            let proof = secret.prove(Prover::DiscoveryResponder, &session, SAID);
            let good = encoded(&ReplyBody::Answer { said: SAID.to_vec(), proof });
            let bytes = framed(&mut draw, Kind::Answer, &[good, encoded(&ReplyBody::OtherSecret)]);
            Some(hostile::ask(wire.into_socket(), &bytes).await)
        };
        match tokio::join!(discover(&address, &secret, b"who is there?"), answering) {
            (Ok(reported), _) => {
                assert_eq!(reported, SAID, "only what is proved is believed");
                believed += 1;
            }
            (Err(DiscoveryError::OtherSecret), _) => others += 1,
            (Err(DiscoveryError::Unreachable(_)), Some(_)) => unreachable += 1,
            (Err(DiscoveryError::Unreachable(_)), None) => slow += 1,
        }
    }
    println!(
        "{believed} believed, {others} of another secret, {unreachable} not understood, {slow} not in time"
    );
    assert!(slow <= hostile::slow_max(believed + others + unreachable), "it is reached");
    assert!(believed > 0 && others > 0 && unreachable > 0, "all of it is reached");
    assert_eq!(panics(), before, "nothing panicked");
}
