//! Joiners without a certificate, and a manager with one, whose words are not good.

use std::time::Duration;

use larder_identity::{Refusal, Roles, Subject};
use larder_types::ClusterId;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::tests::cluster;
use super::*;
use crate::hostile::{self, framed, panics, rounds};
use crate::tests::{authority, socket};

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, Vec::new()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn spoiled_joins_end_no_manager() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(authority(), folder.path()).await;
    let (token, before) = (cluster.token(None), panics());
    let due =
        Subject { cluster: ClusterId(7), server: ServerId(3), roles: Roles::of(&[Role::Data]) };
    let (mut signed, mut refused, mut unheard, mut slow) = (0, 0, 0, 0);
    for mut draw in rounds() {
        let Ok(tls) = connect_joining(&cluster.address(), &token).await else {
            slow += 1;
            continue;
        };
        let session = session_secret(tls.get_ref().1).unwrap();
        let key = IdentityRequest::new().unwrap().key();
        let proof = token.prove(&session, &key);
        let join = EnrolmentRequest::Join { token: token.id(), key, proof };
        let good = [encoded(&join), encoded(&EnrolmentRequest::Renew { key })];
        let bytes = framed(&mut draw, Kind::Request, &good);
        match hostile::ask(tls, &bytes).await.map(|frame| frame.decode().unwrap()) {
            Some(EnrolmentReply::Signed { certificate }) => {
                let subject = Subject::read(&CertificateDer::from(certificate)).unwrap();
                assert_eq!(subject, due, "what the joiner says changes nothing");
                let is_whole = bytes.windows(good[0].len()).any(|part| part == good[0]);
                assert!(is_whole, "signed without the proof: {bytes:?}");
                signed += 1;
            }
            Some(EnrolmentReply::Refused(_)) => refused += 1,
            None => unheard += 1,
        }
    }
    println!("{signed} signed, {refused} refused, {unheard} not understood, {slow} not in time");
    assert!(slow <= hostile::slow_max(signed + refused + unheard), "it is reached");
    assert!(signed > 0 && refused > 0 && unheard > 0, "all of it is reached");
    assert_eq!(join(&cluster.address(), &token).await.unwrap().subject(), due);
    assert_eq!(panics(), before, "nothing panicked");
}

#[tokio::test(flavor = "multi_thread")]
async fn spoiled_answers_of_a_manager_end_no_joiner() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(authority(), folder.path()).await;
    let (token, before) = (cluster.token(None), panics());
    let identity = cluster.authority.identity(ServerId(0), Roles::of(&[Role::Manager])).unwrap();
    let config = Credentials::new(&identity).unwrap().configs().enrolment.clone();
    let acceptor = TlsAcceptor::from(config);
    let socket: TcpListener = socket().await;
    let address = socket.local_addr().unwrap().to_string();
    let (mut joined, mut failed, mut slow) = (0, 0, 0);
    for mut draw in rounds() {
        let answering = async {
            let (tcp, _) = socket.accept().await.unwrap();
            let mut wire = Wire::new(Box::new(acceptor.accept(tcp).await.ok()?), Arc::default());
            let asked: EnrolmentRequest = wire.receive_frame().await.ok()?.decode().unwrap();
            let EnrolmentRequest::Join { key, .. } = asked else { panic!("it joins") };
            let roles = Roles::of(&[Role::Data]);
            let life = Duration::from_secs(3600);
            let certificate = cluster.authority.certify(ServerId(3), roles, &key, life).unwrap();
            let signed = encoded(&EnrolmentReply::Signed { certificate });
            let refused = encoded(&EnrolmentReply::Refused(Refusal::NotNow));
            let bytes = framed(&mut draw, Kind::Answer, &[signed.clone(), signed, refused]);
            Some(hostile::ask(wire.into_socket(), &bytes).await)
        };
        match tokio::join!(join(&address, &token), answering) {
            (Ok(_), _) => joined += 1,
            (Err(_), Some(_)) => failed += 1,
            (Err(_), None) => slow += 1,
        }
    }
    println!("{joined} joined, {failed} did not, {slow} not in time");
    assert!(slow <= hostile::slow_max(joined + failed), "it is reached");
    assert!(joined > 0 && failed > 0, "all of it is reached");
    assert_eq!(panics(), before, "nothing panicked");
}
