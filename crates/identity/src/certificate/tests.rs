use larder_types::{ClusterId, ServerId};

use super::*;
use crate::authority::Authority;
use crate::subject::Roles;

fn authority() -> Authority {
    Authority::create(ClusterId(7)).unwrap()
}

#[test]
fn a_new_certificate_is_valid_for_clocks_that_are_behind_by_the_margin() {
    let identity = authority().identity(ServerId(1), Roles::all()).unwrap();
    let roots = roots(&identity.chain().authority).unwrap();
    let at = |behind: Duration| {
        let then = (SystemTime::now() - behind).duration_since(UNIX_EPOCH).unwrap();
        verify(&identity.chain().certificate, &roots, UnixTime::since_unix_epoch(then))
    };
    let minute = Duration::from_secs(60);
    at(CLOCK_MARGIN - minute).unwrap();
    assert!(at(CLOCK_MARGIN + minute).is_err());
}

#[test]
fn keys_that_do_not_belong_together_are_refused() {
    let authority = authority();
    let identity = authority.identity(ServerId(3), Roles::all()).unwrap();
    let mixed = Identity::new(ServerKey::new().unwrap(), identity.chain().clone());
    assert!(mixed.is_err(), "another key");
    let foreign = Authority::create(ClusterId(7)).unwrap();
    let foreign = foreign.identity(ServerId(3), Roles::all()).unwrap();
    let chain = Chain {
        certificate: identity.chain().certificate.clone(),
        authority: foreign.chain().authority.clone(),
    };
    let key = PrivatePkcs8KeyDer::from(identity.key.secret_pkcs8_der().to_vec());
    assert!(Identity::together(key, chain).is_err(), "another authority");
    let text = authority.to_pem();
    assert!(Authority::from_pem(ClusterId(7), text.as_bytes()).is_ok());
    assert!(Authority::from_pem(ClusterId(8), text.as_bytes()).is_err(), "another cluster's");
}
