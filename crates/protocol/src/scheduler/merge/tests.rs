//! The requests that are one, and those that are not.

use larder_types::{HybridClock, RegionId, Stamp};

use super::*;
use crate::scheduler::counter_rng::CounterRng;

const LOOK_UP: Kind = Kind::LookUp { version: None };

/// The groups of a window in which these came, by their places.
fn groups(asked: &[(u8, QueuedRequest)]) -> Vec<Vec<usize>> {
    let mut merge = Merge::default();
    for (at, (key, asked)) in asked.iter().enumerate() {
        merge.arrived(*key, at, *asked);
    }
    merge.close().into_iter().map(|group| group.members).collect()
}

/// Of one key.
fn of_one(kinds: &[Kind]) -> Vec<Vec<usize>> {
    groups(&kinds.iter().map(|kind| (0, QueuedRequest::plain(*kind))).collect::<Vec<_>>())
}

#[test]
fn equal_look_ups_of_a_window_are_one() {
    assert_eq!(of_one(&[LOOK_UP, LOOK_UP, LOOK_UP]), [vec![0, 1, 2]]);
}

#[test]
fn look_ups_of_different_keys_or_versions_are_not() {
    let two_keys = [(0, QueuedRequest::plain(LOOK_UP)), (1, QueuedRequest::plain(LOOK_UP))];
    assert_eq!(groups(&two_keys), [vec![0], vec![1]]);
    let of_version = |version| Kind::LookUp { version };
    let at = |region| {
        let (clock, region) = (HybridClock(7), RegionId(region));
        Some(VersionSlot::At(Stamp { clock, region }))
    };
    let null = Some(VersionSlot::Unversioned);
    let kinds = [None, at(1), at(2), null, None, at(1)].map(of_version);
    assert_eq!(of_one(&kinds), [vec![0, 4], vec![1, 5], vec![2], vec![3]]);
}

#[test]
fn a_change_between_them_keeps_look_ups_apart() {
    for change in [Kind::InlinePut, Kind::Delete, Kind::OtherChange] {
        assert_eq!(of_one(&[LOOK_UP, change, LOOK_UP]), [[0], [1], [2]], "{change:?}");
    }
    let of_another = [(0, LOOK_UP), (1, Kind::InlinePut), (0, LOOK_UP)];
    assert_eq!(
        groups(&of_another.map(|(key, kind)| (key, QueuedRequest::plain(kind)))),
        [vec![0, 2], vec![1]]
    );
}

#[test]
fn a_condition_on_a_look_up_does_not_matter() {
    let bars = Bars { is_conditional: true, has_versions: true, ..Bars::default() };
    let asked = [QueuedRequest::plain(LOOK_UP), QueuedRequest { kind: LOOK_UP, bars }];
    assert_eq!(groups(&asked.map(|asked| (0, asked))), [[0, 1]]);
}

#[test]
fn adjacent_inline_puts_are_one_and_the_last_acts() {
    let mut merge = Merge::default();
    for token in [7, 8, 9] {
        merge.arrived(0, token, QueuedRequest::plain(Kind::InlinePut));
    }
    let groups = merge.close();
    assert_eq!((groups.len(), groups[0].acting()), (1, 9));
    assert_eq!(groups[0].members, [7, 8, 9], "and all are answered");
}

#[test]
fn deletes_are_one_and_the_first_acts() {
    let mut merge = Merge::default();
    for token in [7, 8] {
        merge.arrived(0, token, QueuedRequest::plain(Kind::Delete));
    }
    let groups = merge.close();
    assert_eq!((groups.len(), groups[0].acting()), (1, 7));
}

#[test]
fn changes_with_another_request_between_them_are_not_one() {
    for change in [Kind::InlinePut, Kind::Delete] {
        for between in [LOOK_UP, Kind::OtherChange] {
            assert_eq!(of_one(&[change, between, change]), [[0], [1], [2]], "{change:?}");
        }
    }
    assert_eq!(of_one(&[Kind::InlinePut, Kind::Delete, Kind::InlinePut]), [[0], [1], [2]]);
}

#[test]
fn puts_with_data_in_extents_are_one_with_none() {
    assert_eq!(of_one(&[Kind::OtherChange, Kind::OtherChange]), [[0], [1]]);
}

/// Neither the first nor the second of two may have the bar.
fn excludes(bars: Bars) {
    for kind in [Kind::InlinePut, Kind::Delete] {
        let (plain, barred) = (QueuedRequest::plain(kind), QueuedRequest { kind, bars });
        for pair in [[plain, barred], [barred, plain], [barred, barred]] {
            assert_eq!(groups(&pair.map(|asked| (0, asked))), [[0], [1]], "{pair:?}");
        }
    }
}

#[test]
fn a_condition_excludes() {
    excludes(Bars { is_conditional: true, ..Bars::default() });
}

#[test]
fn versions_exclude() {
    excludes(Bars { has_versions: true, ..Bars::default() });
}

#[test]
fn a_hold_excludes() {
    excludes(Bars { is_held: true, ..Bars::default() });
}

#[test]
fn another_regions_op_excludes() {
    excludes(Bars { is_foreign: true, ..Bars::default() });
}

#[test]
fn nothing_joins_what_has_left() {
    let mut merge = Merge::default();
    merge.arrived(0, 1, QueuedRequest::plain(LOOK_UP));
    assert_eq!(merge.close().len(), 1);
    assert!(merge.is_empty());
    merge.arrived(0, 2, QueuedRequest::plain(LOOK_UP));
    assert_eq!(merge.close()[0].members, [2]);
}

#[test]
fn a_window_has_room_for_so_many() {
    let mut merge = Merge::default();
    for token in 0..WINDOW_REQUESTS_MAX {
        assert!(!merge.is_full());
        merge.arrived(0, token, QueuedRequest::plain(LOOK_UP));
    }
    assert!(merge.is_full());
    merge.close();
    assert!(!merge.is_full());
}

/// One after the other, without merging: what each look-up finds, and what is there in the end.
fn sequentially(requests: &[(u8, Kind)]) -> (Vec<Option<Option<usize>>>, BTreeMap<u8, usize>) {
    let mut store = BTreeMap::new();
    let found = requests.iter().enumerate().map(|(at, (key, kind))| match kind {
        Kind::LookUp { .. } => Some(store.get(key).copied()),
        Kind::Delete => {
            store.remove(key);
            None
        }
        Kind::InlinePut | Kind::OtherChange => {
            store.insert(*key, at);
            None
        }
    });
    (found.collect(), store)
}

#[test]
fn merged_requests_find_and_leave_what_single_ones_do() {
    for seed in 0..2000 {
        let mut rng = CounterRng(seed, 0);
        let kinds = [LOOK_UP, LOOK_UP, Kind::InlinePut, Kind::Delete, Kind::OtherChange];
        let requests: Vec<(u8, Kind)> =
            (0..30).map(|_| (rng.below(3) as u8, kinds[rng.below(5) as usize])).collect();
        let (found, left) = sequentially(&requests);
        let mut merge = Merge::default();
        for (at, (key, kind)) in requests.iter().enumerate() {
            merge.arrived(*key, at, QueuedRequest::plain(*kind));
        }
        let groups = merge.close();
        let merged: Vec<(u8, Kind)> = groups.iter().map(|group| (group.key, group.kind)).collect();
        let (merged_found, merged_left) = sequentially(&merged);
        // The places of groups, told as the places of the requests that act in them.
        let acting = |at: usize| groups[at].acting();
        let merged_left = merged_left.into_iter().map(|(key, at)| (key, acting(at))).collect();
        assert_eq!(left, merged_left, "seed {seed}: {requests:?}");
        for (group, merged) in groups.iter().zip(merged_found) {
            for member in &group.members {
                assert_eq!(found[*member], merged.map(|it| it.map(acting)), "seed {seed}");
            }
        }
    }
}
