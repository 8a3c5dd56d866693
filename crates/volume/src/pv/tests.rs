use larder_types::{OpSeq, PgId};

use super::*;

const BOOT: BootId = BootId(7);

fn key(view: u64, seq: u64) -> GrantKey {
    OpId { view: View(view), seq: OpSeq(seq) }
}

fn grant(view: u64, seq: u64) -> Grant {
    Grant { pg: PgId(1), op: key(view, seq), attempt: 0 }
}

fn open(pv: &mut Pv, view: u64, floor: GrantKey) -> Result<(), Refusal> {
    pv.open(View(view), floor, (BOOT, BOOT), Planted::None)
}

fn opened(view: u64, floor: GrantKey) -> Pv {
    let mut pv = Pv::new(PvId(0), (LvId(1), 0), MapVersion(1), 0);
    open(&mut pv, view, floor).unwrap();
    pv.dirty = false;
    pv
}

#[test]
fn a_new_or_restored_pv_is_closed() {
    let pv = Pv::new(PvId(0), (LvId(1), 0), MapVersion(1), 0);
    assert_eq!(pv.admit(&grant(0, 1)), Err(Refusal::Closed));
    let restored = Pv::restored(opened(3, key(3, 1)).header, 0, false);
    assert_eq!(restored.admit(&grant(3, 1)), Err(Refusal::Closed));
}

#[test]
fn only_the_view_in_force_may_write() {
    let pv = opened(3, key(2, 9));
    assert_eq!(pv.admit(&grant(3, 1)), Ok(()));
    for view in [2, 4] {
        let refusal = Err(Refusal::WrongView { current: View(3) });
        assert_eq!(pv.admit(&grant(view, 100)), refusal);
    }
}

#[test]
fn an_open_never_lowers() {
    let mut pv = opened(3, key(3, 50));
    assert_eq!(open(&mut pv, 2, key(2, 1)), Err(Refusal::WrongView { current: View(3) }));
    assert_eq!(open(&mut pv, 3, key(3, 10)), Ok(()));
    assert_eq!(open(&mut pv, 3, key(1, 99)), Ok(()));
    assert_eq!((pv.header.view, pv.header.floor), (View(3), key(3, 50)));
    assert!(!pv.dirty, "nothing has changed");
    assert_eq!(open(&mut pv, 4, key(3, 60)), Ok(()));
    assert_eq!((pv.header.view, pv.header.floor), (View(4), key(3, 60)));
    assert!(pv.dirty);
}

/// A meta server may say it, and say it again.
#[test]
fn a_view_at_the_end_of_numbers_is_refused() {
    let mut pv = opened(3, key(3, 50));
    let refusal = Err(Refusal::WrongView { current: View(3) });
    for _ in 0..2 {
        assert_eq!(open(&mut pv, u64::MAX, key(3, 60)), refusal);
    }
    for _ in 0..2 {
        assert_eq!(open(&mut pv, u64::MAX - 1, key(3, 60)), Ok(()));
    }
}

#[test]
fn an_open_of_another_boot_changes_nothing() {
    let mut pv = Pv::new(PvId(0), (LvId(1), 0), MapVersion(1), 0);
    let refused = pv.open(View(1), key(1, 5), (BootId(6), BOOT), Planted::None);
    assert_eq!(refused, Err(Refusal::WrongBoot { current: BOOT }));
    assert_eq!((pv.header.view, pv.header.floor, pv.dirty), (View(0), key(0, 0), false));
    assert_eq!(pv.admit(&grant(1, 5)), Err(Refusal::Closed));
}

#[test]
fn a_floor_ahead_of_its_view_changes_nothing() {
    let mut pv = opened(3, key(3, 5));
    let refusal = Err(Refusal::WrongView { current: View(3) });
    assert_eq!(pv.raise_floor(key(4, 0), Planted::None), refusal);
    assert_eq!(open(&mut pv, 4, key(5, 0)), refusal);
    assert_eq!((pv.header.view, pv.header.floor, pv.dirty), (View(3), key(3, 5), false));
}

#[test]
fn floors_only_rise_and_refuse_what_is_below() {
    let mut pv = opened(3, key(3, 5));
    pv.raise_floor(key(3, 4), Planted::None).unwrap();
    assert!(!pv.dirty);
    pv.raise_floor(key(3, 8), Planted::None).unwrap();
    assert!(pv.dirty);
    assert_eq!(pv.admit(&grant(3, 7)), Err(Refusal::BelowFloor));
    assert_eq!(pv.admit(&grant(3, 8)), Ok(()));
}

#[test]
fn a_void_is_for_one_attempt() {
    let mut pv = opened(3, key(3, 5));
    pv.void(grant(3, 6), Planted::None).unwrap();
    assert!(pv.dirty);
    assert_eq!(pv.admit(&grant(3, 6)), Err(Refusal::Voided));
    assert_eq!(pv.admit(&Grant { attempt: 1, ..grant(3, 6) }), Ok(()));
    open(&mut pv, 3, key(3, 5)).unwrap();
    assert_eq!(pv.admit(&grant(3, 6)), Err(Refusal::Voided));
}

#[test]
fn voids_are_bounded_and_forgotten_when_floor_or_view_pass_them() {
    let mut pv = opened(3, key(3, 0));
    for seq in 0..VOIDS_MAX as u64 {
        pv.void(grant(3, seq), Planted::None).unwrap();
    }
    pv.dirty = false;
    assert_eq!(pv.void(grant(3, 1000), Planted::None), Err(Refusal::Busy));
    assert_eq!(pv.void(grant(3, 7), Planted::None), Ok(()), "known already");
    assert!(!pv.dirty);
    pv.raise_floor(key(3, 100), Planted::None).unwrap();
    assert_eq!(pv.header.voids.len(), VOIDS_MAX - 100);
    assert_eq!(pv.void(grant(3, 50), Planted::None), Ok(()), "below the floor");
    assert_eq!(pv.header.voids.len(), VOIDS_MAX - 100);
    pv.void(grant(4, 1), Planted::None).unwrap();
    open(&mut pv, 4, key(3, 100)).unwrap();
    assert_eq!(pv.header.voids, [grant(4, 1)]);
    assert_eq!(pv.admit(&grant(4, 1)), Err(Refusal::Voided));
}

#[test]
fn a_grant_was_never_written_only_if_this_run_saw_all_of_it() {
    let void = |pv: &mut Pv, grant| pv.void(grant, Planted::None).unwrap();
    let mut pv = opened(3, key(3, 1));
    let (written, late, older) = (grant(3, 5), grant(3, 6), grant(2, 90));
    pv.note_write(written);
    assert!(!pv.never_wrote(&late), "it may still be written");
    void(&mut pv, late);
    void(&mut pv, written);
    assert!(pv.never_wrote(&late));
    assert!(!pv.never_wrote(&written));
    assert!(!pv.never_wrote(&older), "it was issued to an earlier run");
    open(&mut pv, 4, key(4, 0)).unwrap();
    assert!(pv.never_wrote(&late), "a view that follows fences it, in the same run");
    let restarted = {
        let mut pv = Pv::restored(pv.header.clone(), 0, false);
        open(&mut pv, 5, key(5, 0)).unwrap();
        pv
    };
    assert!(!restarted.never_wrote(&late), "an earlier run may have acknowledged it");
    let again = {
        let mut pv = Pv::restored(pv.header, 0, false);
        open(&mut pv, 4, key(4, 0)).unwrap();
        let new = grant(4, 7);
        void(&mut pv, new);
        assert!(!pv.never_wrote(&new), "the run before was open in this view, too");
        open(&mut pv, 5, key(5, 0)).unwrap();
        pv
    };
    assert!(!again.never_wrote(&grant(4, 7)), "and is not forgotten in the next");
}

#[test]
fn a_grant_before_those_remembered_may_have_been_written() {
    let mut pv = opened(3, key(3, 1));
    for seq in 0..=WRITTEN_GRANTS_MAX as u64 {
        pv.note_write(grant(3, 10 + seq));
    }
    for fenced in [grant(3, 9), grant(3, 10), grant(3, 5000)] {
        pv.void(fenced, Planted::None).unwrap();
    }
    assert!(!pv.never_wrote(&grant(3, 10)), "it was written and is forgotten");
    assert!(!pv.never_wrote(&grant(3, 9)), "so may this be");
    assert!(pv.never_wrote(&grant(3, 5000)));
}
