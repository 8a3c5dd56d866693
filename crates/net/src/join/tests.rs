use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use larder_identity::Validity;
use larder_identity::limits::{CERTIFICATE_VALIDITY, CLOCK_MARGIN};
use larder_identity::{
    Admission, Authority, AuthorityCell, Refusal, Roles, Subject, TokenId, TokenRecord,
};
use larder_identity::{Fingerprint, TokenError};
use larder_types::ClusterId;
use parking_lot::Mutex;

use super::*;
use crate::tests::{Log, authority, data_server, endpoint, expired, peer, socket, soon};
use crate::{Endpoint, Listener, Services};

/// The managers' book.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<BTreeMap<TokenId, TokenRecord>>>);

impl Admission for Book {
    fn token(&self, id: TokenId) -> Result<TokenRecord, Refusal> {
        self.0.lock().get(&id).cloned().ok_or(Refusal::Token)
    }

    fn renews(&self, subject: &Subject) -> Result<(), Refusal> {
        if subject.server == ServerId(66) { Err(Refusal::NotRenewed) } else { Ok(()) }
    }
}

pub(super) struct Cluster {
    pub(super) authority: Arc<Authority>,
    book: Book,
    fingerprint: Fingerprint,
    listener: Listener,
    _endpoint: Arc<Endpoint>,
}

const MANAGER: ServerId = ServerId(0);

fn cell(authority: Authority) -> AuthorityCell {
    Arc::new(OnceLock::from(authority))
}

pub(super) async fn cluster(authority: Authority, folder: &std::path::Path) -> Cluster {
    // Two that have the same key: one for the listener, one for the test.
    let path = folder.join("authority.pem");
    authority.save(&path).unwrap();
    let signing = Authority::load(authority.cluster(), &path).unwrap();
    let identity = authority.identity(MANAGER, Roles::of(&[Role::Manager])).unwrap();
    let (endpoint, book) = (endpoint(&identity), Book::default());
    let enrolment = Enrolment::new(cell(signing), book.clone(), CERTIFICATE_VALIDITY);
    let services = Services::new().with_enrolment(enrolment);
    let listener = Listener::start(&endpoint, socket().await, services).unwrap();
    let fingerprint = authority.fingerprint();
    Cluster { authority: Arc::new(authority), book, fingerprint, listener, _endpoint: endpoint }
}

impl Cluster {
    pub(super) fn token(&self, expires: Option<SystemTime>) -> JoinToken {
        let roles = Roles::of(&[Role::Data]);
        let (record, token) =
            TokenRecord::issue(self.fingerprint, ServerId(3), roles, expires).unwrap();
        self.book.0.lock().insert(record.id(), record);
        token
    }

    pub(super) fn address(&self) -> String {
        self.listener.address().to_string()
    }
}

#[tokio::test]
async fn a_server_with_a_token_becomes_the_member_that_the_token_is_for() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(authority(), folder.path()).await;
    let token: JoinToken = cluster.token(None).to_string().parse().unwrap();
    let identity = join(&cluster.address(), &token).await.unwrap();
    let roles = Roles::of(&[Role::Data]);
    let expected = Subject { cluster: ClusterId(7), server: ServerId(3), roles };
    assert_eq!(identity.subject(), expected);
    assert!(!identity.renewal_due(SystemTime::now()));

    // The saved identity says who the server is from now on.
    let path = folder.path().join("identity.pem");
    identity.save(&path).unwrap();
    let identity = Identity::load(&path).unwrap();
    let (echoing, _heard) = crate::tests::Echoing::new();
    let services = Services::new().with::<crate::tests::Echo>(Roles::all(), echoing);
    let listener = Listener::start(&endpoint(&identity), socket().await, services).unwrap();
    let to = peer(&crate::tests::caller(&cluster.authority), 3, listener.address());
    assert!(to.call(&"x".into(), Bytes::new(), soon()).await.is_ok());
    // The answer may have been lost: the token is good for the same place until it is revoked.
    assert_eq!(join(&cluster.address(), &token).await.unwrap().subject(), expected);
}

#[tokio::test]
async fn revoked_expired_and_unknown_tokens_are_refused_and_logged() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(authority(), folder.path()).await;
    let (log, _guard) = Log::begin();
    let refused = async |token: &JoinToken| match join(&cluster.address(), token).await {
        Err(JoinError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let revoked = cluster.token(None);
    cluster.book.0.lock().clear();
    assert_eq!(refused(&revoked).await, Refusal::Token);

    let expired = cluster.token(Some(SystemTime::now() - Duration::from_secs(1)));
    assert_eq!(refused(&expired).await, Refusal::Expired);

    // The id of one token with the secret of another.
    let (known, other) = (cluster.token(None), cluster.token(None));
    let other_record = cluster.book.token(other.id()).unwrap();
    cluster.book.0.lock().insert(known.id(), other_record);
    assert_eq!(refused(&known).await, Refusal::Token);
    let lines = log.text();
    assert_eq!(
        lines.matches("request for a certificate was refused").count(),
        2,
        "one for each reason: {lines}"
    );
    assert!(lines.contains("address=127.0.0.1:"), "{lines}");
}

#[tokio::test]
async fn a_mistyped_token_never_gets_to_the_network() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(authority(), folder.path()).await;
    let mut text = cluster.token(None).to_string();
    let last = text.pop().unwrap();
    text.push(if last == '0' { '4' } else { '0' });
    assert_eq!(text.parse::<JoinToken>(), Err(TokenError::Mistyped));
}

#[tokio::test]
async fn a_joiner_says_nothing_to_another_cluster_nor_to_one_that_is_no_manager() {
    let folder = tempfile::tempdir().unwrap();
    let ours = cluster(authority(), folder.path()).await;
    // The same id, another key.
    let other = cluster(authority(), folder.path()).await;
    let stranger = join(&other.address(), &ours.token(None)).await;
    assert!(matches!(stranger, Err(JoinError::Stranger(_))), "{stranger:?}");

    let (_data, listener, _heard) = data_server(&ours.authority, 2).await;
    let refused = join(&listener.address().to_string(), &ours.token(None)).await;
    assert!(refused.is_err());

    // A data server with an open ear for joiners is none whom the token means.
    let identity = ours.authority.identity(ServerId(2), Roles::of(&[Role::Data])).unwrap();
    let path = folder.path().join("copied.pem");
    ours.authority.save(&path).unwrap();
    let signing = Authority::load(ClusterId(7), &path).unwrap();
    let enrolment = Enrolment::new(cell(signing), ours.book.clone(), CERTIFICATE_VALIDITY);
    let services = Services::new().with_enrolment(enrolment);
    let listener = Listener::start(&endpoint(&identity), socket().await, services).unwrap();
    let stranger = join(&listener.address().to_string(), &ours.token(None)).await;
    assert!(matches!(stranger, Err(JoinError::Stranger(_))), "{stranger:?}");
}

#[tokio::test]
async fn a_proof_that_was_overheard_is_refused_in_another_session() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(authority(), folder.path()).await;
    let token = cluster.token(None);
    let first = connect_joining(&cluster.address(), &token).await.unwrap();
    let session = session_secret(first.get_ref().1).unwrap();
    let key = IdentityRequest::new().unwrap().key();
    let proof = token.prove(&session, &key);
    let asked = || EnrolmentRequest::Join { token: token.id(), key, proof };

    let second = connect_joining(&cluster.address(), &token).await.unwrap();
    assert!(matches!(ask(second, &asked()).await, Ok(EnrolmentReply::Refused(Refusal::Token))));
    // In its own session it is good.
    assert!(matches!(ask(first, &asked()).await, Ok(EnrolmentReply::Signed { .. })));
}

#[tokio::test]
async fn a_member_renews_its_certificate_and_one_that_was_removed_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(authority(), folder.path()).await;
    let roles = Roles::of(&[Role::Meta, Role::Proxy]);
    let ending = Validity {
        from: SystemTime::now() - CLOCK_MARGIN - Duration::from_secs(3 * 3600),
        to: SystemTime::now() + Duration::from_secs(3600),
    };
    let renewing = async |server, valid| {
        let old = cluster.authority.identity_valid(ServerId(server), roles, valid).unwrap();
        assert!(old.renewal_due(SystemTime::now()));
        let credentials = Credentials::new(&old).unwrap();
        (renew(&credentials, MANAGER, &cluster.address()).await, old.subject(), credentials)
    };
    let (renewed, subject, credentials) = renewing(3, ending).await;
    let renewed = renewed.unwrap();
    assert_eq!(renewed.subject(), subject);
    assert!(!renewed.renewal_due(SystemTime::now()));
    credentials.replace(&renewed).unwrap();

    let (removed, ..) = renewing(66, ending).await;
    assert!(matches!(removed, Err(JoinError::Refused(Refusal::NotRenewed))), "{removed:?}");
    // Ended, it is of use for nothing but this: a machine that was off for long comes back.
    let (late, subject, _) = renewing(3, expired()).await;
    assert_eq!(late.unwrap().subject(), subject);
    let (removed, ..) = renewing(66, expired()).await;
    assert!(matches!(removed, Err(JoinError::Refused(Refusal::NotRenewed))), "{removed:?}");
    let foreign = Authority::create(ClusterId(7)).unwrap();
    let foreign = foreign.identity_valid(ServerId(3), roles, expired()).unwrap();
    let stranger = renew(&Credentials::new(&foreign).unwrap(), MANAGER, &cluster.address()).await;
    assert!(stranger.is_err(), "of another authority");
}

#[tokio::test]
async fn a_manager_without_the_key_puts_servers_off_until_it_has_it() {
    let authority = authority();
    let identity = authority.identity(MANAGER, Roles::of(&[Role::Manager])).unwrap();
    let (endpoint, book, key) = (endpoint(&identity), Book::default(), AuthorityCell::default());
    let enrolment = Enrolment::new(key.clone(), book.clone(), Duration::from_secs(3600));
    let services = Services::new().with_enrolment(enrolment);
    let listener = Listener::start(&endpoint, socket().await, services).unwrap();
    let member = authority.identity(ServerId(3), Roles::all()).unwrap();
    let credentials = Credentials::new(&member).unwrap();
    let address = listener.address().to_string();
    let put_off = renew(&credentials, MANAGER, &address).await;
    assert!(matches!(put_off, Err(JoinError::Refused(Refusal::NotNow))), "{put_off:?}");

    let text = authority.to_pem();
    drop(key.set(Authority::from_pem(ClusterId(7), text.as_bytes()).unwrap()));
    let renewed = renew(&credentials, MANAGER, &address).await.unwrap();
    let left = renewed.valid_until().duration_since(SystemTime::now()).unwrap();
    assert!(left <= Duration::from_secs(3600), "as long as the manager says: {left:?}");
    let until_renewal = renewed.renewal_at().duration_since(SystemTime::now()).unwrap();
    let expected = Duration::from_secs(2400);
    assert!(until_renewal.abs_diff(expected) < Duration::from_secs(60), "{until_renewal:?}");
}

#[tokio::test]
async fn a_joiner_cannot_renew() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(authority(), folder.path()).await;
    let token = cluster.token(None);
    let tls = connect_joining(&cluster.address(), &token).await.unwrap();
    let asked = EnrolmentRequest::Renew { key: IdentityRequest::new().unwrap().key() };
    assert!(matches!(ask(tls, &asked).await, Ok(EnrolmentReply::Refused(Refusal::NotRenewed))));
}
