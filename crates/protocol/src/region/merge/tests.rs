//! The join by properties, over entries that regions could tell of one key.

use std::collections::BTreeMap;

use larder_types::{
    Attributes, BucketId, ETag, HybridClock, ObjectKey, OpId, OpSeq, Origin, PgId, RegionId, View,
};
use proptest::prelude::*;

use super::super::entry::{Name, Piece, current};
use super::*;

fn stamp(clock: u64, region: u16) -> Stamp {
    Stamp { clock: HybridClock(clock), region: RegionId(region) }
}

fn origin(at: Stamp) -> Origin {
    let op = OpId { view: View(1), seq: OpSeq(at.clock.0) };
    Origin { region: at.region, pg: PgId(0), op }
}

/// The value that a stamp set follows from the stamp in every region: each stamp is given once.
fn object(at: Stamp, amended: Amendments, pieces: &[Stamp]) -> Object {
    let tags = amended.tags_at.map(|at| ("set".to_owned(), at.to_string()));
    let attributes = Attributes { tags: tags.into_iter().collect(), ..Attributes::default() };
    let metax = Metax {
        region: at.region,
        attributes,
        ..Metax::new(at.clock.0, at.clock, ETag::Md5([at.clock.0 as u8; 16]))
    };
    let piece = |at: &Stamp| {
        let etag = ETag::Md5([at.clock.0 as u8; 16]);
        (*at, Piece { len: 10, etag, checksum: None, origin: origin(*at) })
    };
    let pieces: BTreeMap<_, _> = pieces.iter().map(piece).collect();
    Object { metax, parts: Vec::new(), pieces, amended }
}

fn purge(at: Stamp) -> Entry {
    Entry { at, origin: origin(at), what: EntryKind::Purged }
}

fn put(at: Stamp, amended: Amendments, pieces: &[Stamp]) -> Entry {
    let what = EntryKind::Object(Box::new(object(at, amended, pieces)));
    Entry { at, origin: origin(at), what }
}

fn later() -> impl Strategy<Value = Stamp> {
    (11u64..15, 1u16..4).prop_map(|(clock, region)| stamp(clock, region))
}

fn amendments() -> impl Strategy<Value = Amendments> {
    let later = || prop::option::of(later());
    (later(), later(), later(), 0u64..3).prop_map(|(tags_at, hold, governance, until)| Amendments {
        tags_at,
        legal_hold: hold.map(|at| (at.clock.0.is_multiple_of(2), at)),
        governance: governance.map(|at| (at.clock.0 * 7, at)),
        compliance_until_ms: until,
    })
}

fn put_at(at: Stamp) -> impl Strategy<Value = Entry> {
    let pieces = prop::collection::btree_set(later(), 0..4);
    (amendments(), pieces).prop_map(move |(amended, pieces)| {
        put(at, amended, &pieces.into_iter().collect::<Vec<_>>())
    })
}

/// Entries that regions could tell of one version.
fn of_a_version() -> impl Strategy<Value = Entry> {
    prop_oneof![4 => put_at(stamp(9, 2)), 1 => later().prop_map(purge)]
}

/// Entries that regions could tell of a null register. Their content follows from the stamp.
fn of_a_register() -> impl Strategy<Value = Entry> {
    let at = (5u64..8, 1u16..4).prop_map(|(clock, region)| stamp(clock, region));
    at.prop_flat_map(|at| match (at.clock.0 + u64::from(at.region.0)) % 4 {
        0 => Just(purge(at)).boxed(),
        1 => Just(Entry { at, origin: origin(at), what: EntryKind::Marker }).boxed(),
        _ => put_at(at).boxed(),
    })
}

fn entries() -> impl Strategy<Value = (Slot, Vec<Entry>)> {
    let many = 1..7;
    prop_oneof![
        prop::collection::vec(of_a_version(), many.clone())
            .prop_map(|all| (Slot::Version(stamp(9, 2)), all)),
        prop::collection::vec(of_a_register(), many).prop_map(|all| (Slot::Null, all)),
    ]
}

fn join_all<'a>(slot: Slot, mut all: impl Iterator<Item = &'a Entry>) -> Entry {
    let first = all.next().unwrap().clone();
    all.fold(first, |here, remote| join(Planted::default(), slot, &here, remote).unwrap())
}

fn id(slot: Slot, entry: &Entry) -> Id {
    let (bucket, key) = (BucketId(1), ObjectKey::new("k").unwrap());
    entry.id(Name { bucket, key, slot })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_order_and_any_repeats_of_changes_give_the_same_entry(
        (slot, all) in entries(),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = join_all(slot, all.iter());
        let repeated: Vec<_> = order.iter().map(|at| at.get(&all)).chain(all.iter().rev()).collect();
        prop_assert_eq!(&join_all(slot, repeated.iter().copied()), &whole);
        // Grouped: two regions that each had some of it tell each other all that they have.
        let cut = cut.index(repeated.len());
        let (one, other) = repeated.split_at(cut);
        if !one.is_empty() {
            let (one, other) = (join_all(slot, one.iter().copied()), join_all(slot, other.iter().copied()));
            prop_assert_eq!(&join(Planted::default(), slot, &one, &other), &Ok(whole.clone()));
            prop_assert_eq!(&join(Planted::default(), slot, &other, &one), &Ok(whole.clone()));
            prop_assert_eq!(one.print() == other.print(), one == other);
        }
        prop_assert!(whole.is_sound(slot), "{:?}", whole);
    }

    #[test]
    fn purged_stays_purged_and_compliance_is_not_shortened((slot, all) in entries()) {
        let whole = join_all(slot, all.iter());
        if let Slot::Version(_) = slot {
            prop_assert_eq!(whole.is_purged(), all.iter().any(Entry::is_purged));
        }
        for entry in all.iter().filter(|entry| entry.at == whole.at) {
            if let (EntryKind::Object(of_all), EntryKind::Object(one)) = (&whole.what, &entry.what) {
                let of_all = of_all.amended.compliance_until_ms;
                prop_assert!(of_all >= one.amended.compliance_until_ms);
            }
        }
    }

    /// The filter leaves out only what would change nothing, and asks for bytes that are not here.
    #[test]
    fn what_is_not_taken_would_have_changed_nothing((slot, all) in entries()) {
        let (remote, here) = all.split_last().unwrap();
        let here = (!here.is_empty()).then(|| join_all(slot, here.iter()));
        let held = holding(here.as_ref(), &id(slot, remote), false);
        let Some(here) = here else {
            prop_assert_eq!(held, LocalPart::Nothing);
            return Ok(());
        };
        let joined = join(Planted::default(), slot, &here, remote).unwrap();
        match held {
            LocalPart::All => prop_assert_eq!(&joined, &here),
            LocalPart::Bytes => prop_assert!(joined.at == here.at || remote.bytes() == 0),
            LocalPart::Nothing => prop_assert_eq!(&joined, remote),
        }
    }
}

#[test]
fn what_an_origin_that_was_passed_told_is_not_taken_again() {
    let remote = id(Slot::Null, &put(stamp(5, 1), Amendments::default(), &[]));
    assert_eq!(holding(None, &remote, true), LocalPart::All);
    assert_eq!(holding(None, &remote, false), LocalPart::Nothing);
}

#[test]
fn pieces_stand_in_the_order_of_their_stamps() {
    let (first, second) = (stamp(11, 3), stamp(12, 1));
    let entry = put(stamp(9, 2), Amendments::default(), &[second, first]);
    let EntryKind::Object(object) = &entry.what else { unreachable!() };
    let shown = object.shown();
    let etag = |clock: u8| ETag::Md5([clock; 16]);
    assert_eq!(shown.etag, etag(9).followed_by(&etag(11)).followed_by(&etag(12)));
    assert_eq!((shown.size, shown.clock, object.bytes()), (29, HybridClock(12), 29));
}

#[test]
fn two_contents_of_one_stamp_are_not_joined() {
    let one = put(stamp(9, 2), Amendments::default(), &[]);
    let mut other = one.clone();
    let EntryKind::Object(object) = &mut other.what else { unreachable!() };
    object.metax.size += 1;
    for slot in [Slot::Null, Slot::Version(stamp(9, 2))] {
        let joined = join(Planted::default(), slot, &one, &other);
        assert_eq!(joined, Err(Contradiction { at: stamp(9, 2), what: "contents" }));
    }
}

#[test]
fn the_current_version_is_the_newest_that_is_there_whatever_its_slot() {
    let marker = |at| Entry { at, origin: origin(at), what: EntryKind::Marker };
    let (old, null) = (
        put(stamp(3, 1), Amendments::default(), &[]),
        put(stamp(4, 2), Amendments::default(), &[]),
    );
    assert_eq!(current([&old, &null].into_iter()), Some(&null));
    assert_eq!(current([&null, &old, &purge(stamp(9, 1))].into_iter()), Some(&null));
    assert_eq!(current([&null, &old, &marker(stamp(5, 1))].into_iter()), None);
    assert_eq!(current([&marker(stamp(2, 1)), &old].into_iter()), Some(&old));
}

#[test]
fn what_no_region_tells_is_unsound() {
    let at = stamp(9, 2);
    let sound = put(at, Amendments::default(), &[stamp(11, 1)]);
    assert!(sound.is_sound(Slot::Null) && sound.is_sound(Slot::Version(at)));
    assert!(!sound.is_sound(Slot::Version(stamp(9, 1))), "another version's name");
    assert!(!purge(at).is_sound(Slot::Version(at)), "purged before it was put");
    let own = put(stamp(9, 0), Amendments::default(), &[]);
    assert!(!own.is_sound(Slot::Null), "nobody's region");
    let early = put(at, Amendments::default(), &[stamp(8, 1)]);
    assert!(!early.is_sound(Slot::Null), "appended to before it was put");
    let foreign = Entry { origin: origin(stamp(9, 3)), ..sound };
    assert!(!foreign.is_sound(Slot::Null), "another region's op");
}

/// Regions of several releases compare prints: another encoding would have them compare everything for ever.
#[test]
fn prints_keep_their_golden_values() {
    let amended = Amendments {
        tags_at: Some(stamp(12, 1)),
        legal_hold: Some((true, stamp(13, 2))),
        governance: Some((7, stamp(14, 3))),
        compliance_until_ms: 5,
    };
    let print = |entry: &Entry| format!("{:032x}", entry.print());
    let prints = (print(&put(stamp(9, 2), amended, &[stamp(11, 1)])), print(&purge(stamp(9, 2))));
    let golden = (
        "50593ab12a40d412cb24c5d5fe2e17fa".to_owned(),
        "0b181ebe650705be575f9bf17bec43cb".to_owned(),
    );
    assert_eq!(prints, golden);
}
