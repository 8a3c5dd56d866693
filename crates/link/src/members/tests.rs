use super::*;

fn own(number: u16) -> OwnRegion {
    OwnRegion {
        number: RegionId(number),
        name: "here".parse().unwrap(),
        listen: "0.0.0.0:7001".to_owned(),
        advertise: "here.example:7001".parse().unwrap(),
        fingerprint: Fingerprint([number as u8; 32]),
        removed: false,
    }
}

fn known(number: u16, name: &str) -> Known {
    Known {
        number: RegionId(number),
        name: name.parse().unwrap(),
        address: format!("{name}.example:7001").parse().unwrap(),
        fingerprint: Fingerprint([number as u8; 32]),
        removed: false,
    }
}

#[test]
fn what_two_know_is_joined_and_a_removal_wins() {
    let mut members = Members::first(own(1));
    members.merge(&[known(3, "c"), known(2, "b")]).unwrap();
    assert_eq!(members.live().map(|peer| peer.number.0).collect::<Vec<_>>(), [2, 3]);
    members.pause("b", true).unwrap();
    members.remove("c").unwrap();
    members.merge(&[known(2, "b"), known(3, "c")]).unwrap();
    assert!(members.peer(RegionId(2)).unwrap().paused, "others do not say what is paused here");
    assert!(members.peer(RegionId(3)).is_none(), "what was removed stays so");
    let reported = members.exchanged();
    assert_eq!(
        reported.iter().map(|it| (it.number.0, it.removed)).collect::<Vec<_>>(),
        [(1, false), (2, false), (3, true)]
    );
    let gone = Known { removed: true, ..known(1, "here") };
    members.merge(&[gone]).unwrap();
    assert!(members.own.removed);
}

#[test]
fn nothing_is_taken_of_what_contradicts_what_is_known() {
    let mut members = Members::first(own(1));
    members.merge(&[known(2, "b")]).unwrap();
    let before = members.clone();
    let key = |number: u16| Fingerprint([number as u8; 32]);
    let wrong = [
        ("another key", Known { fingerprint: key(9), ..known(2, "b") }),
        ("this region's number", Known { fingerprint: key(9), ..known(1, "x") }),
        ("a key twice", Known { fingerprint: key(2), ..known(4, "d") }),
        ("this region's key", Known { fingerprint: key(1), ..known(4, "d") }),
        ("a name twice", known(4, "b")),
        ("this region's name", known(4, "here")),
        ("number 0", known(0, "z")),
        ("a number too large", Known { number: RegionId(NUMBERS_MAX + 1), ..known(5, "z") }),
    ];
    for (what, wrong) in wrong {
        let merged = members.merge(&[known(3, "c"), wrong]);
        assert!(matches!(merged, Err(LinkError::Unsound(_))), "{what}: {merged:?}");
        assert_eq!(members, before, "{what}");
    }
    let many: Vec<_> = (2..=9).map(|number| known(number, &format!("r{number}"))).collect();
    assert!(members.merge(&many[1..]).is_err(), "more than may be");
    assert!(members.merge(&many[1..7]).is_ok());
}

#[test]
fn the_name_of_a_region_that_is_not_there_names_those_that_are() {
    let mut members = Members::first(own(1));
    let said = |members: &mut Members| members.remove("x").unwrap_err().to_string();
    assert_eq!(said(&mut members), "no other region is named \"x\"; there is none");
    members.merge(&[known(2, "b"), known(3, "c")]).unwrap();
    assert_eq!(said(&mut members), "no other region is named \"x\"; there are b, c");
}

#[test]
fn no_more_tokens_are_open_than_may_be() {
    let mut members = Members::first(own(1));
    for _ in 0..TOKENS_MAX {
        members.issue(5).unwrap();
    }
    let more = members.issue(5).map(drop);
    assert!(matches!(more, Err(LinkError::Usage(Usage::TooManyTokens))), "{more:?}");
    let later = 5 + crate::limits::TOKEN_LIFE.as_millis() as u64 + 1;
    assert!(members.issue(later).is_ok(), "those that expired are forgotten");
}
