//! Grants, views, floors and voids, through restarts.

use crate::support::*;
use larder_types::{BootId, Grant, LvId, View};
use larder_volume::limits::VOIDS_MAX;
use larder_volume::{Answer, Refusal, Volume, describe};

#[test]
fn a_write_before_the_open_is_refused_after_a_restart() {
    let (mut disk, mut volume) = opened(1);
    let chunk = chunk_at(grant(1, 5), 0, 10_000);
    assert_eq!(one(&mut volume, write(&chunk)), Ok(Answer::Written));
    drop(volume);
    let mut volume = restart(&mut disk, 2);
    assert_eq!(one(&mut volume, write(&chunk)), Err(Refusal::Closed));
    assert_eq!(one(&mut volume, verify(&chunk)), verified(2), "verifying needs no Open");
    assert_eq!(one(&mut volume, open(2, key(1, 6), 2)), Ok(Answer::Floor(key(1, 6))));
    assert_eq!(one(&mut volume, write(&chunk)), Err(Refusal::WrongView { current: View(2) }));
}

#[test]
fn a_late_open_for_an_earlier_boot_is_refused() {
    let (mut disk, mut volume) = opened(2);
    one(&mut volume, open(2, key(2, 10), 1)).unwrap();
    drop(volume);
    let mut volume = restart(&mut disk, 2);
    let refusal = Err(Refusal::WrongBoot { current: BootId(2) });
    assert_eq!(one(&mut volume, open(2, key(2, 10), 1)), refusal);
    assert_eq!(one(&mut volume, open(1, key(1, 0), 1)), refusal);
    let refused = one(&mut volume, write(&chunk_at(grant(2, 11), 0, 1)));
    assert_eq!(refused, Err(Refusal::Closed));
}

#[test]
fn a_late_duplicate_open_never_lowers_view_or_floor() {
    let (mut disk, mut volume) = opened(3);
    one(&mut volume, open(3, key(3, 20), 1)).unwrap();
    let refusal = Err(Refusal::WrongView { current: View(3) });
    assert_eq!(one(&mut volume, open(2, key(2, 1), 1)), refusal);
    assert_eq!(one(&mut volume, open(3, key(3, 5), 1)), Ok(Answer::Floor(key(3, 20))));
    drop(volume);
    let mut volume = restart(&mut disk, 2);
    assert_eq!(one(&mut volume, open(2, key(2, 1), 2)), refusal);
    assert_eq!(one(&mut volume, open(3, key(3, 1), 2)), Ok(Answer::Floor(key(3, 20))));
    let below = chunk_at(grant(3, 19), 0, 100);
    assert_eq!(one(&mut volume, write(&below)), Err(Refusal::BelowFloor));
}

#[test]
fn a_floor_survives_the_loss_of_power() {
    let (mut disk, mut volume) = opened(4);
    for seq in [7, 9, 8, 30] {
        one(&mut volume, raise(key(1, seq))).unwrap();
    }
    drop(volume);
    let mut volume = restart(&mut disk, 2);
    assert_eq!(one(&mut volume, open(1, key(1, 0), 2)), Ok(Answer::Floor(key(1, 30))));
    let below = chunk_at(grant(1, 29), 0, 100);
    assert_eq!(one(&mut volume, write(&below)), Err(Refusal::BelowFloor));
    assert_eq!(one(&mut volume, write(&chunk_at(grant(1, 30), 0, 100))), Ok(Answer::Written));
}

#[test]
fn a_late_write_after_the_void_is_refused_also_after_a_restart() {
    let (mut disk, mut volume) = opened(5);
    let (fenced, free) = (chunk_at(grant(1, 5), 0, 5000), chunk_at(grant(1, 6), 8, 5000));
    let again = chunk_at(Grant { attempt: 1, ..grant(1, 5) }, 16, 5000);
    let group = vec![write(&fenced), void(fenced.grant), write(&fenced), write(&free)];
    let answers = all(&mut volume, group);
    assert_eq!(answers[..2], [Ok(Answer::Written), Ok(Answer::Voided)]);
    assert_eq!(answers[2..], [Err(Refusal::Voided), Ok(Answer::Written)]);
    drop(volume);
    let mut volume = restart(&mut disk, 2);
    assert_eq!(one(&mut volume, verify(&fenced)), verified(2), "what came before the void stays");
    one(&mut volume, open(1, key(1, 0), 2)).unwrap();
    assert_eq!(one(&mut volume, write(&fenced)), Err(Refusal::Voided));
    assert_eq!(one(&mut volume, write(&again)), Ok(Answer::Written));
}

#[test]
fn voids_that_do_not_fit_are_refused_until_the_floor_rises() {
    let (mut disk, mut volume) = opened(6);
    let voids = (0..VOIDS_MAX as u64).map(|seq| void(grant(1, seq))).collect();
    assert!(all(&mut volume, voids).iter().all(|answer| *answer == Ok(Answer::Voided)));
    assert_eq!(one(&mut volume, void(grant(1, 999))), Err(Refusal::Busy));
    assert_eq!(one(&mut volume, void(grant(1, 3))), Ok(Answer::Voided), "a repeat");
    assert_eq!(one(&mut volume, raise(key(1, 10))), Ok(Answer::Floor(key(1, 10))));
    assert_eq!(one(&mut volume, void(grant(1, 999))), Ok(Answer::Voided));
    drop(volume);
    let _volume = restart(&mut disk, 2);
    let described = describe(&*disk, NAME).unwrap();
    assert_eq!(described.pvs[0].voids.len(), VOIDS_MAX - 9);
    assert_eq!(described.pvs[0].floor, key(1, 10));
}

#[test]
fn a_repeated_void_is_durable_before_it_is_answered_again() {
    let (mut disk, mut volume) = opened(7);
    disk.fail_next_sync();
    assert_eq!(one(&mut volume, void(grant(1, 5))), Err(Refusal::Broken));
    drop(volume);
    // The process starts again on the same machine: the page cache may show what the device lost.
    disk.kill();
    disk = disk.reopen();
    let mut volume = Volume::open(&*disk, NAME, BootId(2)).unwrap();
    assert_eq!(one(&mut volume, void(grant(1, 5))), Ok(Answer::Voided));
    drop(volume);
    let mut volume = restart(&mut disk, 3);
    one(&mut volume, open(1, key(1, 0), 3)).unwrap();
    let late = one(&mut volume, write(&chunk_at(grant(1, 5), 0, 100)));
    assert_eq!(late, Err(Refusal::Voided));
}

#[test]
fn commands_of_one_group_are_judged_in_order() {
    let (_disk, mut volume) = opened(8);
    let (old, new) = (chunk_at(grant(1, 5), 0, 9000), chunk_at(grant(2, 6), 0, 9000));
    let answers = all(
        &mut volume,
        vec![
            write(&old),
            write(&new),
            open(2, key(1, 6), 1),
            write(&old),
            write(&new),
            raise(key(2, 7)),
            write(&new),
            verify(&new),
            verify(&old),
        ],
    );
    assert_eq!(
        answers,
        [
            Ok(Answer::Written),
            Err(Refusal::WrongView { current: View(1) }),
            Ok(Answer::Floor(key(1, 6))),
            Err(Refusal::WrongView { current: View(2) }),
            Ok(Answer::Written),
            Ok(Answer::Floor(key(2, 7))),
            Err(Refusal::BelowFloor),
            verified(1),
            Ok(Answer::Mismatch { boot: BootId(1), first_bad_sum: 0, is_unacknowledged: false }),
        ]
    );
}

#[test]
fn control_of_an_unknown_lv_is_refused() {
    let (_disk, mut volume) = opened(9);
    let mut elsewhere = chunk_at(grant(1, 5), 0, 100);
    elsewhere.lv = LvId(41);
    assert_eq!(one(&mut volume, write(&elsewhere)), Err(Refusal::UnknownLv));
    assert_eq!(one(&mut volume, verify(&elsewhere)), Err(Refusal::UnknownLv));
}
