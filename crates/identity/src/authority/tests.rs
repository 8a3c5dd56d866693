use super::*;
use crate::certificate::{roots, verify};
use crate::subject::Role;
use rustls::pki_types::UnixTime;

/// All releases of workers that share a bucket must derive the same.
#[test]
fn an_authority_follows_from_its_secret_as_ever() {
    let authority = Authority::from_secret(&Secret::of([7; 32])).unwrap();
    let key: String =
        authority.issuer.key().public_key_raw().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(format!("{:016x}", authority.cluster().0), "c4744d84c4b50cf0");
    assert_eq!(key, "b1427b9c4c39e49fa971ab28fc51ecd5adb512937ada43900167877a4fc795f3");
}

#[test]
fn servers_that_know_one_secret_verify_each_other_and_no_others() {
    let of = |secret: [u8; 32]| Authority::from_secret(&Secret::of(secret)).unwrap();
    let server = |authority: &Authority| {
        authority.identity(ServerId(1), Roles::of(&[Role::Worker])).unwrap()
    };
    let (one, same, other) = (of([1; 32]), of([1; 32]), of([2; 32]));
    assert_ne!(one.cluster(), other.cluster());
    let found = roots(&one.certificate).unwrap();
    let accepts = |authority: &Authority| {
        verify(&server(authority).chain().certificate, &found, UnixTime::now()).is_ok()
    };
    assert!(accepts(&one) && accepts(&same));
    assert!(!accepts(&other));
    // Of the same id, with a key of its own.
    assert!(!accepts(&Authority::create(one.cluster()).unwrap()));
}
