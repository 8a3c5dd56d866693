use super::*;

pub(super) fn pair(name: &str) -> KeyPair {
    KeyPair { access_key: format!("{name}-access"), secret_key: format!("{name}-secret") }
}

/// A rotation that follows some generation, to one of a few pairs, in one of the three ways.
pub(super) fn rotation(after: u32, key: u8) -> Command {
    let keep = match key {
        0 => Keep::Nothing,
        1 => Keep::OfFiles(pair("of-files")),
        _ => Keep::Current,
    };
    Command::RotateRoot(after, pair(&format!("key{key}")), keep)
}

fn record(generation: u32, current: &str, previous: Option<&str>) -> Option<RootRecord> {
    Some(RootRecord { generation, current: pair(current), previous: previous.map(pair) })
}

#[test]
fn keys_are_taken_beside_those_before_until_these_are_retired() {
    let mut log = Log::cluster(1);
    assert_eq!(log.done(Command::RetireRoot(0)), Outcome::Already, "there are none");
    log.done(Command::RotateRoot(0, pair("b"), Keep::OfFiles(pair("a"))));
    assert_eq!(log.0.root, record(1, "b", Some("a")));
    let third = |after| Command::RotateRoot(after, pair("c"), Keep::Current);
    assert_eq!(log.apply(third(1)), Err(Refusal::RootNotRetired), "clients may sign with a's");
    assert_eq!(log.done(Command::RetireRoot(1)), Outcome::Done);
    assert_eq!(log.0.root, record(2, "b", None));
    assert_eq!(log.done(Command::RetireRoot(2)), Outcome::Already);
    log.done(third(2));
    assert_eq!(log.0.root, record(3, "c", Some("b")));
    log.done(Command::RotateRoot(3, pair("d"), Keep::Nothing));
    assert_eq!(log.0.root, record(4, "d", None), "all keys before are refused at once");
}

#[test]
fn of_two_changes_at_once_the_second_is_refused() {
    let mut log = Log::cluster(1);
    log.done(Command::RotateRoot(0, pair("b"), Keep::Nothing));
    let other = |keep| Command::RotateRoot(0, pair("c"), keep);
    for keep in [Keep::Nothing, Keep::Current, Keep::OfFiles(pair("a"))] {
        assert_eq!(log.apply(other(keep)), Err(Refusal::RootChanged));
    }
    assert_eq!(log.apply(Command::RetireRoot(2)), Err(Refusal::RootChanged));
    assert_eq!(log.0.root, record(1, "b", None));
}

#[test]
fn keys_that_no_request_could_be_signed_with_are_refused() {
    let mut log = Log::cluster(1);
    let with = |access_key: &str, secret_key: &str| KeyPair {
        access_key: access_key.to_owned(),
        secret_key: secret_key.to_owned(),
    };
    let (long, longest) = ("a".repeat(129), "s".repeat(257));
    for (access, secret) in [
        ("ab", "12345678"),
        (&*long, "12345678"),
        ("a/b", "12345678"),
        ("a key", "12345678"),
        ("abc", "1234567"),
        ("abc", "12345678\n"),
        ("abc", &*longest),
    ] {
        let refused = log.apply(Command::RotateRoot(0, with(access, secret), Keep::Nothing));
        assert_eq!(refused, Err(Refusal::BadKeys), "{access} {secret}");
    }
    let same = Command::RotateRoot(0, pair("a"), Keep::OfFiles(pair("a")));
    assert_eq!(log.apply(same), Err(Refusal::BadKeys), "which one does a request mean?");
    let none = Command::RotateRoot(0, pair("a"), Keep::Current);
    assert_eq!(log.apply(none), Err(Refusal::BadKeys), "the managers have none to keep");
    log.done(Command::RotateRoot(0, pair("a"), Keep::Nothing));
    for keep in [Keep::Current, Keep::Nothing] {
        let same = Command::RotateRoot(1, pair("a"), keep);
        assert_eq!(log.apply(same), Err(Refusal::BadKeys));
    }
    log.done(Command::RotateRoot(1, pair("z"), Keep::Current));
    for taken in ["a", "z"] {
        let same = Command::RotateRoot(2, pair(taken), Keep::Nothing);
        assert_eq!(log.apply(same), Err(Refusal::BadKeys), "{taken}");
    }
    log.done(Command::RetireRoot(2));
    let twice = Command::RotateRoot(3, pair("b"), Keep::OfFiles(pair("c")));
    assert_eq!(log.apply(twice), Err(Refusal::BadKeys), "the managers have them");
}

#[test]
fn a_map_with_rotated_keys_is_of_version_6_and_prints_no_secret() {
    let mut log = Log::cluster(2);
    log.done(Command::RotateRoot(0, pair("b"), Keep::OfFiles(pair("a"))));
    let bytes = log.0.encode();
    let beginning: Vec<u8> = [&[6, 1, 8][..], b"b-access", &[8], b"b-secret", &[1, 8]].concat();
    assert!(bytes.starts_with(&beginning), "the generation, the pair, and one before");
    assert_eq!(Topology::decode(&bytes), Ok(log.0.clone()));
    log.done(Command::RaiseClusterVersion(20));
    log.done(Command::PauseBalance(Some(300)));
    log.done(Command::SetRegion(region::record(3, 0xab)));
    assert_eq!(Topology::decode(&log.0.encode()), Ok(log.0.clone()), "with all that there is");
    let command = Command::RotateRoot(1, pair("c"), Keep::OfFiles(pair("d")));
    for text in [format!("{:?}", log.0), format!("{command:?}")] {
        assert!(text.contains("-access") && !text.contains("-secret"), "{text}");
    }
    let bare = log.0.root.as_ref().unwrap().without_secrets();
    let secrets = [&bare.current, bare.previous.as_ref().unwrap()].map(|pair| &*pair.secret_key);
    assert_eq!((bare.generation, secrets), (1, ["", ""]));
}
