use super::*;
use crate::identity::Fingerprint;
use crate::members::Peer;
use crate::token::TokenRecord;

fn members() -> Members {
    let own = OwnRegion {
        number: RegionId(1),
        name: "one".parse().unwrap(),
        listen: "0.0.0.0:7001".to_owned(),
        advertise: "one.example:7001".parse().unwrap(),
        fingerprint: Fingerprint([1; 32]),
        removed: false,
    };
    let peer = Peer {
        number: RegionId(2),
        name: "two".parse().unwrap(),
        address: "two.example:7001".parse().unwrap(),
        fingerprint: Fingerprint([2; 32]),
        paused: true,
        removed: false,
    };
    let tokens = vec![TokenRecord::fixed(7, None), TokenRecord::fixed(8, Some(peer.fingerprint))];
    Members::stored_as(own, vec![peer], tokens)
}

#[test]
fn the_list_has_golden_bytes() {
    let golden = include_str!("../../tests/golden/members.hex");
    let mut limited = members();
    let name = limited.peers[0].name.to_string();
    limited.set_rate(&name, Some(300)).unwrap();
    let mut compressed = limited.clone();
    compressed.set_compressed(&name, true).unwrap();
    let written = [
        ("list of regions", stored(&members())),
        ("with a rate", stored(&limited)),
        ("with a rate, compressed", stored(&compressed)),
    ];
    crate::golden::check(golden, &written);
    for members in [&mut limited, &mut compressed] {
        assert_eq!(Members::decoded(&members.encoded()).as_ref(), Ok(&*members));
        members.set_rate(&name, None).unwrap();
    }
    assert_eq!(limited, members());
    let number = compressed.peers[0].number;
    assert_eq!(Members::decoded(&compressed.encoded()).as_ref(), Ok(&compressed));
    assert!(compressed.is_compressed(number));
    compressed.remove(&name).unwrap();
    assert!(!compressed.is_compressed(number), "it goes with the region");
}

#[test]
fn a_list_that_was_changed_on_the_disk_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    files::make_folder(dir.path()).unwrap();
    assert_eq!(read(dir.path()).unwrap(), None);
    write(dir.path(), &members()).unwrap();
    assert_eq!(read(dir.path()).unwrap(), Some(members()));
    let path = files::path(dir.path(), MEMBERS);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        let refused = read(dir.path());
        assert!(matches!(refused, Err(LinkError::Damaged { .. })), "at {at}: {refused:?}");
        fs::write(&path, &whole[..at]).unwrap();
        assert!(read(dir.path()).is_err(), "cut at {at}");
    }
}

#[test]
fn changes_of_several_at_once_are_all_kept() {
    let dir = tempfile::tempdir().unwrap();
    files::make_folder(dir.path()).unwrap();
    write(dir.path(), &members()).unwrap();
    std::thread::scope(|scope| {
        for number in 3..=8 {
            let dir = dir.path();
            scope.spawn(move || {
                let known = Known {
                    number: RegionId(number),
                    name: format!("r{number}").parse().unwrap(),
                    address: "x.example:7001".parse().unwrap(),
                    fingerprint: Fingerprint([number as u8; 32]),
                    removed: false,
                };
                change(dir, |members| members.merge(&[known])).unwrap();
            });
        }
    });
    let numbers: Vec<_> =
        read(dir.path()).unwrap().unwrap().peers.iter().map(|peer| peer.number.0).collect();
    assert_eq!(numbers, [2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_change_that_fails_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let none = change(dir.path(), |_| Ok(()));
    assert!(matches!(none, Err(LinkError::Usage(Usage::NotRegion(_)))), "{none:?}");
    files::make_folder(dir.path()).unwrap();
    write(dir.path(), &members()).unwrap();
    let failed = change(dir.path(), |members| {
        members.remove("two")?;
        members.remove("there is none")
    });
    assert!(failed.is_err());
    assert_eq!(read(dir.path()).unwrap(), Some(members()));
}
