use bytes::Bytes;
use larder_identity::{Admission, Authority, Refusal, Subject, TokenId, TokenRecord};
use larder_identity::{AuthorityCell, Enrolment, Role, Roles};
use larder_types::{ClusterId, ServerId};

use crate::error::{CallError, NotSent};
use crate::tests::{Echo, Echoing, Log, authority, caller, endpoint, peer, socket, soon};
use crate::{Listener, Port, Refused, Services, renew};

struct Nobody;

impl Admission for Nobody {
    fn token(&self, _id: TokenId) -> Result<TokenRecord, Refusal> {
        Err(Refusal::Token)
    }

    fn renews(&self, _subject: &Subject) -> Result<(), Refusal> {
        Err(Refusal::NotRenewed)
    }
}

#[tokio::test]
async fn servers_that_share_a_port_answer_whoever_means_them() {
    let authority = authority();
    let port = Port::open(socket().await).unwrap();
    let mut kept = Vec::new();
    for id in [2, 3] {
        let identity = authority.identity(ServerId(id), Roles::of(&[Role::Data])).unwrap();
        let (endpoint, (echoing, recorded)) = (endpoint(&identity), Echoing::new());
        let services = Services::new().with::<Echo>(Roles::of(&[Role::Meta]), echoing);
        let listener = Listener::start(&endpoint, port.clone(), services).unwrap();
        kept.push((id, endpoint, listener, recorded));
    }
    let ours = caller(&authority);
    let call = async |id| {
        let to = peer(&ours, id, port.address());
        let answer = to.call(&"x".into(), Bytes::new(), soon()).await;
        (answer.map(|_| ()), to)
    };
    let (second, to_second) = call(2).await;
    second.unwrap();
    call(3).await.0.unwrap();
    assert_eq!(kept[0].1.metrics().accepted.get(), 1, "each by its own certificate");
    assert_eq!(kept[1].1.metrics().accepted.get(), 1);

    // One that is not there may come. A stranger is refused, and that is logged.
    let absent = call(4).await.0.unwrap_err();
    assert!(matches!(absent, CallError::NotSent(NotSent::Unreachable(_))), "{absent:?}");
    let (log, _guard) = Log::begin();
    let stranger = Authority::create(ClusterId(8)).unwrap();
    let theirs = caller(&stranger);
    let to = peer(&theirs, 2, port.address());
    to.call(&"x".into(), Bytes::new(), soon()).await.unwrap_err();
    while kept[0].1.metrics().refused(Refused::UnknownAuthority) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(log.text().contains("a connection was refused"), "{}", log.text());

    // One that stops ends its connections and nobody else's.
    drop(kept.remove(0));
    let broken = loop {
        match to_second.call(&"x".into(), Bytes::new(), soon()).await {
            // It may be answered still.
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    let gone = matches!(broken, CallError::NotSent(NotSent::Broken(_) | NotSent::Unreachable(_)))
        || matches!(broken, CallError::Unknown(_) | CallError::Denied(_));
    assert!(gone, "{broken:?}");
    call(3).await.0.unwrap();
}

#[tokio::test]
async fn whoever_joins_finds_the_one_who_lets_servers_join() {
    let authority = authority();
    let port = Port::open(socket().await).unwrap();
    let data = authority.identity(ServerId(2), Roles::of(&[Role::Data])).unwrap();
    let manager = authority.identity(ServerId(0), Roles::of(&[Role::Manager])).unwrap();
    let (data, manager) = (endpoint(&data), endpoint(&manager));
    let _data = Listener::start(&data, port.clone(), Services::new()).unwrap();
    let life = std::time::Duration::from_secs(3600);
    let enrolment = Enrolment::new(AuthorityCell::default(), Nobody, life);
    let services = Services::new().with_enrolment(enrolment);
    let _manager = Listener::start(&manager, port.clone(), services).unwrap();
    let (_, token) =
        TokenRecord::issue(authority.fingerprint(), ServerId(5), Roles::all(), None).unwrap();
    let refused = crate::join(&port.address().to_string(), &token).await;
    let by_manager = matches!(refused, Err(crate::JoinError::Refused(Refusal::Token)));
    assert!(by_manager, "{refused:?}");
    let member = authority.identity(ServerId(5), Roles::all()).unwrap();
    let credentials = larder_identity::Credentials::new(&member).unwrap();
    let refused = renew(&credentials, ServerId(0), &port.address().to_string()).await;
    let by_manager = matches!(refused, Err(crate::JoinError::Refused(Refusal::NotRenewed)));
    assert!(by_manager, "{refused:?}");
}

/// Opens a connection from this address, and says nothing.
async fn silent(from: [u8; 4], to: std::net::SocketAddr) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

#[tokio::test]
async fn silent_connections_keep_no_server_out() {
    let authority = authority();
    let (serving, listener, _heard) = crate::tests::data_server(&authority, 2).await;
    let mut kept = Vec::new();
    for _ in 0..2 * crate::limits::HANDSHAKES_MAX {
        kept.push(silent([127, 0, 0, 2], listener.address()).await);
    }
    let ours = caller(&authority);
    let to = peer(&ours, 2, listener.address());
    to.call(&"x".into(), Bytes::new(), soon()).await.unwrap();
    let metrics = serving.metrics();
    assert_eq!(metrics.refused(Refused::Late), 0, "it waited for none of them to end");
    assert!(metrics.refused(Refused::TooMany) > 0, "older ones made room");
}

#[test]
fn addresses_of_one_customer_count_as_one() {
    let of = |address: &str| super::network(address.parse().unwrap());
    assert_eq!(of("2001:db8:0:1::5"), of("2001:db8:0:1:ffff::9"));
    assert_ne!(of("2001:db8:0:1::5"), of("2001:db8:0:2::5"));
    assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
}
