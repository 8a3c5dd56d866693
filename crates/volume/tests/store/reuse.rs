//! PVs that go from one LV to another, and LVs from one PV to another.

use std::sync::Arc;

use crate::support::*;
use larder_env::SimDisk;
use larder_types::{BootId, Chunk, LvId, MapVersion, PvId};
use larder_volume::{Action, Answer, ReadError, Refusal, Volume, describe};

const NEXT: LvId = LvId(41);

/// As [`chunk_at`], of the LV that has the PV next.
fn of_next(seq: u64, first: u32) -> Chunk {
    Chunk { lv: NEXT, ..chunk_at(grant(1, seq), first, 5000) }
}

fn open_next(boot: u64) -> Action {
    let Action::Open { view, floor, boot, .. } = open(1, key(1, 0), boot) else { unreachable!() };
    Action::Open { lv: NEXT, view, floor, boot }
}

fn owners(volume: &Volume) -> Vec<(LvId, PvId)> {
    volume.lvs().collect()
}

#[test]
fn a_pv_that_a_newer_map_gives_to_another_is_its_former_owners_no_more() {
    let (mut disk, mut volume) = opened(40);
    let before = chunk_at(grant(1, 1), 0, 5000);
    one(&mut volume, write(&before)).unwrap();
    assert_eq!(one(&mut volume, create_under(2, 0, NEXT)), Ok(Answer::Created));
    let after = chunk_at(grant(1, 2), 8, 100);
    let late = vec![write(&after), raise(key(1, 5)), void(grant(1, 2)), verify(&before)];
    assert_eq!(all(&mut volume, late), [Err(Refusal::UnknownLv); 4]);
    let read = volume.reader().read(LV, &before.extents, 0, 5000);
    assert_eq!(read, Err(ReadError::UnknownLv { lv: LV }));
    let new = of_next(1, 0);
    assert_eq!(one(&mut volume, write(&new)), Err(Refusal::Closed), "it begins closed");
    one(&mut volume, open_next(1)).unwrap();
    let verdicts = all(&mut volume, vec![write(&new), verify(&new)]);
    assert_eq!(verdicts, [Ok(Answer::Written), verified(1)]);
    drop(volume);
    let volume = restart(&mut disk, 2);
    assert_eq!(owners(&volume), [(NEXT, PvId(0))]);
}

#[test]
fn what_was_queued_before_is_done_and_what_comes_after_is_refused() {
    let (_disk, mut volume) = opened(41);
    let (before, after) = (chunk_at(grant(1, 1), 0, 5000), chunk_at(grant(1, 2), 2, 5000));
    let new = of_next(1, 4);
    let group = vec![
        write(&before),
        verify(&before),
        raise(key(1, 2)),
        create_under(2, 0, NEXT),
        write(&after),
        open_next(1),
        write(&new),
        verify(&new),
    ];
    let verdicts = all(&mut volume, group);
    assert_eq!(verdicts[..2], [Ok(Answer::Written), verified(1)]);
    assert_eq!(
        verdicts[2..5],
        [Ok(Answer::Floor(key(1, 2))), Ok(Answer::Created), Err(Refusal::UnknownLv)]
    );
    assert_eq!(verdicts[6..], [Ok(Answer::Written), verified(1)]);
}

#[test]
fn a_late_command_for_a_former_owner_takes_nothing_back() {
    let (mut disk, mut volume) = opened(42);
    one(&mut volume, create_under(7, 0, NEXT)).unwrap();
    one(&mut volume, create_under(8, 1, LV)).unwrap();
    let mut boot = 1;
    for _run in 0..2 {
        for map in [1, 6, 7] {
            assert_eq!(one(&mut volume, create_under(map, 0, LV)), Err(Refusal::Outdated));
            assert_eq!(one(&mut volume, create_under(map, 2, NEXT)), Err(Refusal::Outdated));
        }
        assert_eq!(one(&mut volume, create_under(7, 0, NEXT)), Ok(Answer::Created), "a repeat");
        drop(volume);
        boot += 1;
        volume = restart(&mut disk, boot);
        assert_eq!(owners(&volume), [(LV, PvId(1)), (NEXT, PvId(0))]);
    }
}

#[test]
fn what_was_given_again_under_a_newer_map_is_not_taken_under_one_between() {
    let (mut disk, mut volume) = opened(43);
    // The map gave it to LV 40, to 41 and to 40 again, and what it said in between comes last.
    one(&mut volume, create_under(9, 0, LV)).unwrap();
    drop(volume);
    let mut volume = restart(&mut disk, 2);
    assert_eq!(one(&mut volume, create_under(5, 0, NEXT)), Err(Refusal::Outdated));
    let found = describe(&*disk, NAME).unwrap();
    assert_eq!((found.pvs[0].lv, found.pvs[0].given), (LV, MapVersion(9)));
}

#[test]
fn an_lv_that_is_given_another_pv_has_the_former_one_no_more() {
    let (mut disk, mut volume) = opened(44);
    let old = chunk_at(grant(1, 1), 0, 5000);
    one(&mut volume, write(&old)).unwrap();
    assert_eq!(one(&mut volume, create_under(4, 2, LV)), Ok(Answer::Created));
    assert_eq!(owners(&volume), [(LV, PvId(2))]);
    assert_eq!(volume.free_pvs().collect::<Vec<_>>(), [PvId(0), PvId(1), PvId(3)]);
    one(&mut volume, open(1, key(1, 0), 1)).unwrap();
    assert!(matches!(one(&mut volume, verify(&old)), Ok(Answer::Mismatch { .. })));
    drop(volume);
    let mut volume = restart(&mut disk, 2);
    assert_eq!(owners(&volume), [(LV, PvId(2))]);
    assert_eq!(describe(&*disk, NAME).unwrap().let_go, [(PvId(0), MapVersion(4))]);
    assert_eq!(one(&mut volume, create_under(4, 0, NEXT)), Err(Refusal::Outdated));
    assert_eq!(one(&mut volume, create_under(5, 0, NEXT)), Ok(Answer::Created));
}

#[test]
fn what_was_acknowledged_in_a_former_pv_is_never_called_unacknowledged_in_the_next() {
    for by_way_of_another in [false, true] {
        let (_disk, mut volume) = opened(45);
        let (written, never) = (chunk_at(grant(1, 5), 0, 5000), chunk_at(grant(1, 6), 8, 5000));
        one(&mut volume, write(&written)).unwrap();
        if by_way_of_another {
            one(&mut volume, create_under(2, 0, NEXT)).unwrap();
        }
        one(&mut volume, create_under(3, 1, LV)).unwrap();
        one(&mut volume, open(1, key(1, 0), 1)).unwrap();
        all(&mut volume, vec![void(written.grant), void(never.grant)]);
        let mut acknowledged = |chunk| match one(&mut volume, verify(chunk)) {
            Ok(Answer::Mismatch { is_unacknowledged, .. }) => !is_unacknowledged,
            other => panic!("{other:?}"),
        };
        assert!(acknowledged(&written), "it was, in the PV that the LV had");
        assert!(!acknowledged(&never));
    }
}

#[test]
fn a_replica_that_comes_back_under_another_index_begins_closed() {
    let (mut disk, mut volume) = opened(46);
    let again = |map, replica| Action::CreatePv { pv: PvId(0), lv: LV, replica, map };
    assert_eq!(one(&mut volume, again(MapVersion(1), 3)), Err(Refusal::Outdated));
    assert_eq!(one(&mut volume, again(MapVersion(2), 3)), Ok(Answer::Created));
    let early = chunk_at(grant(1, 9), 0, 100);
    assert_eq!(one(&mut volume, write(&early)), Err(Refusal::Closed));
    one(&mut volume, open(1, key(1, 0), 1)).unwrap();
    assert_eq!(one(&mut volume, again(MapVersion(3), 3)), Ok(Answer::Created), "a repeat");
    assert_eq!(one(&mut volume, write(&early)), Ok(Answer::Written), "closes nothing");
    assert_eq!(one(&mut volume, again(MapVersion(2), 0)), Err(Refusal::Outdated));
    drop(volume);
    drop(restart(&mut disk, 2));
    assert_eq!(describe(&*disk, NAME).unwrap().pvs[0].replica, 3);
}

/// Cuts the power at each operation of a hand-over and shows what came of it to `judge`, with whether it was answered.
fn at_every_operation(action: &Action, judge: impl Fn(&mut Arc<SimDisk>, Volume, bool)) {
    let (mut unanswered, mut answered) = (0, 0);
    for seed in 0..20 {
        for operation in 1.. {
            let (mut disk, mut volume) = opened(seed);
            one(&mut volume, raise(key(1, 7))).unwrap();
            disk.power_off_after(operation);
            let answer = one(&mut volume, action.clone());
            let went = !disk.is_up();
            drop(volume);
            let volume = restart(&mut disk, 2);
            assert_eq!(volume.damaged_pvs().collect::<Vec<PvId>>(), [], "operation {operation}");
            judge(&mut disk, volume, answer == Ok(Answer::Created));
            if !went {
                answered += 1;
                break;
            }
            unanswered += 1;
        }
    }
    assert!(unanswered > 60 && answered == 20, "{unanswered} and {answered}");
}

#[test]
fn a_pv_is_one_lvs_or_the_others_at_every_loss_of_power() {
    let give = create_under(2, 0, NEXT);
    at_every_operation(&give, |disk, mut volume, answered| {
        match owners(&volume)[..] {
            [(LV, PvId(0))] if !answered => {
                let opened = one(&mut volume, open(1, key(1, 0), 2));
                assert_eq!(opened, Ok(Answer::Floor(key(1, 7))), "it has lost nothing");
            }
            [(NEXT, PvId(0))] => {
                let late = one(&mut volume, create_under(1, 0, LV));
                assert_eq!(late, Err(Refusal::Outdated));
            }
            ref other => panic!("{other:?}, answered: {answered}"),
        }
        // Repeated, it is done as if nothing had been, and no bad slot takes it back.
        assert_eq!(one(&mut volume, give.clone()), Ok(Answer::Created));
        drop(volume);
        for slot in [8192, 12288] {
            disk.flip_bit(NAME, slot + 40).unwrap();
            let volume = restart(disk, 3);
            assert_eq!(owners(&volume), [(NEXT, PvId(0))]);
            disk.flip_bit(NAME, slot + 40).unwrap();
        }
    });
}

#[test]
fn an_lv_has_one_pv_or_none_at_every_loss_of_power_while_it_moves() {
    let give = create_under(2, 1, LV);
    at_every_operation(&give, |disk, mut volume, answered| {
        let found = owners(&volume);
        let moved = found == [(LV, PvId(1))];
        assert!(moved || !answered && (found == [(LV, PvId(0))] || found.is_empty()), "{found:?}");
        assert_eq!(describe(&**disk, NAME).unwrap().pvs.len(), found.len());
        assert_eq!(one(&mut volume, give.clone()), Ok(Answer::Created));
        assert_eq!(one(&mut volume, create_under(1, 0, LV)), Err(Refusal::Outdated));
        drop(volume);
        let volume = Volume::open(&**disk, NAME, BootId(3)).unwrap();
        assert_eq!(owners(&volume), [(LV, PvId(1))]);
    });
}

#[test]
fn a_creation_whose_second_header_was_lost_is_answered_with_both() {
    for seed in 0..20 {
        for operation in 1.. {
            let (mut disk, mut volume) = opened(seed);
            disk.power_off_after(operation);
            let _unheard = one(&mut volume, create(1, NEXT));
            if disk.is_up() {
                break;
            }
            drop(volume);
            let mut volume = restart(&mut disk, 2);
            assert_eq!(one(&mut volume, create(1, NEXT)), Ok(Answer::Created));
            drop(volume);
            for slot in [16384, 20480] {
                disk.flip_bit(NAME, slot + 40).unwrap();
                let volume = restart(&mut disk, 3);
                assert!(owners(&volume).contains(&(NEXT, PvId(1))), "operation {operation}");
                disk.flip_bit(NAME, slot + 40).unwrap();
            }
        }
    }
}

/// The first PVs of several LVs, and a write into one of them, in one group.
fn first_gives() -> Vec<Action> {
    let mut group: Vec<Action> = (1..4).map(|pv| create(pv, LvId(50 + pv))).collect();
    let (lv, floor) = (LvId(51), key(1, 0));
    group.push(Action::Open { lv, view: floor.view, floor, boot: BootId(1) });
    group.push(write(&Chunk { lv, ..chunk_at(grant(1, 1), 0, 5000) }));
    group
}

#[test]
fn first_gives_share_their_syncs() {
    let (_disk, mut volume) = opened(1);
    let before = volume.counters();
    let answers = all(&mut volume, first_gives());
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let after = volume.counters();
    assert_eq!(after.syncs - before.syncs, 2, "one for the first slots, one for all else");
    assert_eq!(after.headers_written - before.headers_written, 6);
}

#[test]
fn a_loss_of_power_among_first_gives_damages_none() {
    for seed in 0..20 {
        for operation in 1.. {
            let (mut disk, mut volume) = opened(seed);
            disk.power_off_after(operation);
            let answers = all(&mut volume, first_gives());
            let (is_up, answered) = (disk.is_up(), answers.iter().all(Result::is_ok));
            drop(volume);
            let volume = restart(&mut disk, 2);
            assert_eq!(volume.damaged_pvs().count(), 0, "seed {seed}, operation {operation}");
            if answered {
                let given = (1..4).map(|pv| (LvId(50 + pv), PvId(pv)));
                let expected: Vec<_> = std::iter::once((LV, PvId(0))).chain(given).collect();
                assert_eq!(owners(&volume), expected);
            }
            drop(volume);
            if is_up {
                break;
            }
        }
    }
}
