//! Replicas that have no room, or are out of reach for a while.

use larder_protocol::limits::{LV_FAILURES_MAX, LV_REOPEN_MS, NARROW_MS, REFUSED_MS, WITHHELD_MS};
use larder_protocol::manager::state::MapVersion;
use larder_protocol::{Answer, Call, DataAnswer, DataRequest, Effect, Event, LvInfo, Refusal};
use larder_types::{Body, BootId, Condition, Holders, LvId, OpSeq, ServerId};

use crate::support::{LV, LV_BLOCKS, Member, data, info, key, put};

#[test]
fn a_put_goes_to_another_volume_when_a_disk_has_no_room() {
    let mut member = Member::alone(2);
    let grant = member.open_put("new", 20);
    member.call(Call::Abandon { op: grant.op, disk_full: true });
    member.effects.clear();
    let again = member.put_data("new", 20);
    assert!(member.effects.contains(&Effect::NeedLv));
    assert_eq!(member.answers(again), []);
    let lv = LvId(LV.0 + 1);
    member.step(Event::Lv(LvInfo { lv, ..info(1) }));
    member.step(Event::Data { lv, replica: 0, answer: DataAnswer::Floor(key(1, 0)) });
    assert!(matches!(member.answers(again)[..], [Answer::Granted { lv: of, .. }] if of == lv));
}

#[test]
fn a_grant_names_the_map_that_names_its_replicas() {
    let mut member = Member::alone(2);
    let granted = |member: &mut Member, name: &str| {
        let token = member.put_data(name, 1);
        let [Answer::Granted { grant, replicas, as_of, .. }] = member.answers(token)[..] else {
            panic!("it is granted at once")
        };
        member.settle();
        member.commit(grant, replicas.count());
        member.settle();
        as_of
    };
    assert_eq!(granted(&mut member, "a"), MapVersion(1));
    member.step(Event::Lv(LvInfo { as_of: MapVersion(5), ..info(2) }));
    assert_eq!(granted(&mut member, "b"), MapVersion(1), "they are the same");
    // Another server's volume has the second's place.
    let mut moved = LvInfo { as_of: MapVersion(9), ..info(2) };
    (moved.replicas[1].server, moved.replicas[1].boot) = (ServerId(77), BootId(77));
    let above = member.pg.applied().seq.next();
    member.step(Event::Lv(moved));
    member.answer(1, DataAnswer::Floor(key(1, above.0)));
    assert_eq!(granted(&mut member, "c"), MapVersion(9));
}

#[test]
fn while_one_of_three_disks_is_full_puts_go_to_the_others_and_it_gets_copies_later() {
    let mut member = Member::alone(3);
    let grant = member.open_put("new", 20);
    let (full, others) = (Holders::default().with(2), Holders::default().with(0).with(1));
    member.call(Call::NoRoom { op: grant.op, replicas: full });
    member.call(Call::Abandon { op: grant.op, disk_full: false });
    member.effects.clear();
    let token = member.put_data("new", 20);
    let [Answer::Granted { grant, replicas, .. }] = member.answers(token)[..] else {
        panic!("it is granted at once")
    };
    assert_eq!(replicas, others);
    assert!(!member.effects.contains(&Effect::NeedLv), "a full disk draws no volume");
    member.settle();
    member.commit(grant, 2);
    member.settle();
    let walks = member.pg.wants_walk().expect("it has a copy too few");
    member.now_ms += WITHHELD_MS;
    member.step(Event::Tick);
    assert!(member.pg.wants_walk() > Some(walks), "what it lacks is looked for");
    let token = member.put_data("last", 1);
    let [Answer::Granted { grant, replicas, .. }] = member.answers(token)[..] else { panic!() };
    assert_eq!(replicas.count(), 3);
    // Two that are full leave too few: what there is, is not given to one alone.
    let both = Holders::default().with(1).with(2);
    member.call(Call::NoRoom { op: grant.op, replicas: both });
    member.effects.clear();
    let token = member.put_data("one", 20);
    assert!(member.effects.contains(&Effect::NeedLv));
    assert_eq!(member.answers(token), []);
    member.step(Event::PoolEmpty);
    assert_eq!(member.refusal(token), Refusal::Full);
    let at_once = member.put_data("two", 20);
    assert_eq!(member.refusal(at_once), Refusal::Full);
}

/// It would else be given one place after the other on that disk: the tightest run lies lower each time.
#[test]
fn a_put_that_a_full_disk_refused_goes_to_the_two_others_at_once() {
    let mut member = Member::alone(3);
    // Free runs of 2, 1 and of what is left, in this order.
    for (key, blocks) in [("a", 2), ("b", 1), ("c", 1), ("d", 1), ("e", 1)] {
        member.store(key, blocks, 3);
    }
    member.delete("a");
    member.delete("c");
    member.settle();
    // One that finds no room has what was freed given back.
    let large = member.put_data("large", LV_BLOCKS);
    for (replica, request) in member.requests() {
        let DataRequest::RaiseFloor { floor } = request else { panic!("{request:?}") };
        member.answer(replica, DataAnswer::Floor(floor));
    }
    member.step(Event::PoolEmpty);
    assert_eq!(member.refusal(large), Refusal::Full);
    let grant = member.open_put("new", 1);
    let full = Holders::default().with(2);
    member.call(Call::NoRoom { op: grant.op, replicas: full });
    member.call(Call::Withdraw { op: grant.op, disk_full: false });
    member.settle();
    let put = |member: &mut Member, key| {
        let token = member.put_data(key, 1);
        let [Answer::Granted { replicas, .. }] = member.answers(token)[..] else {
            panic!("it is granted at once")
        };
        replicas.count()
    };
    assert_eq!(put(&mut member, "again"), 2);
    member.now_ms += REFUSED_MS;
    assert_eq!(put(&mut member, "later"), 3, "it may take what lies lower");
}

#[test]
fn a_put_that_one_full_disk_and_one_server_away_leave_no_space_waits_for_the_server() {
    let mut member = Member::alone(3);
    let grant = member.open_put("new", 20);
    member.answer(1, DataAnswer::Failed);
    member.call(Call::NoRoom { op: grant.op, replicas: Holders::default().with(2) });
    member.call(Call::Abandon { op: grant.op, disk_full: false });
    let token = member.put_data("new", 20);
    assert_eq!(member.answers(token), [], "other disks may have room");
    member.step(Event::PoolEmpty);
    assert_eq!(member.refusal(token), Refusal::TooFewCopies);
    let at_once = member.put_data("newer", 20);
    assert_eq!(member.refusal(at_once), Refusal::TooFewCopies);
}

/// A member with an LV of which the second replica has failed.
fn closed() -> Member {
    let mut member = Member::alone(2);
    member.store("k", 1, 2);
    member.settle();
    member.answer(1, DataAnswer::Failed);
    member.effects.clear();
    let put = member.put_data("new", 1);
    assert!(member.effects.contains(&Effect::NeedLv), "the volume gives nothing");
    member.step(Event::PoolEmpty);
    assert_eq!(member.refusal(put), Refusal::TooFewCopies, "there is space once it is back");
    member.effects.clear();
    member
}

#[test]
fn a_replica_that_was_out_of_reach_is_asked_again_and_its_volume_gives_space_again() {
    let mut member = closed();
    assert!(member.pg.wants_tick());
    member.now_ms += LV_REOPEN_MS;
    member.step(Event::Tick);
    let above = member.pg.applied().seq.next();
    let [(1, DataRequest::Open { view, floor, .. })] = member.requests()[..] else {
        panic!("the one that failed is asked to open, once")
    };
    assert_eq!((view, floor), (member.pg.view(), key(1, above.0)));
    member.now_ms += LV_REOPEN_MS - 1;
    member.step(Event::Tick);
    assert_eq!(member.requests(), [], "not so soon");
    member.answer(1, DataAnswer::Floor(floor));
    let put = member.put_data("new", 1);
    member.granted(put);
}

#[test]
fn a_replica_that_fails_again_stays_closed() {
    let mut member = closed();
    member.now_ms += LV_REOPEN_MS;
    member.step(Event::Tick);
    member.answer(1, DataAnswer::Failed);
    member.put_data("new", 1);
    assert!(member.effects.contains(&Effect::NeedLv));
    member.now_ms += LV_REOPEN_MS;
    member.effects.clear();
    member.step(Event::Tick);
    assert!(matches!(member.requests()[..], [(1, DataRequest::Open { .. })]), "asked again");
}

#[test]
fn a_data_server_that_starts_again_is_opened_at_once_above_all_that_is_applied() {
    let mut member = closed();
    let mut restarted = info(2);
    restarted.replicas[1].boot = BootId(77);
    let above = member.pg.applied().seq.next();
    member.step(Event::Lv(LvInfo { as_of: MapVersion(9), ..restarted }));
    let [(1, DataRequest::Open { floor, boot, .. })] = member.requests()[..] else {
        panic!("the new run is asked to open")
    };
    assert_eq!((floor, boot), (key(1, above.0), BootId(77)));
    assert!(above > OpSeq(0));
    let put = member.put_data("new", 1);
    assert_eq!(member.answers(put), [], "it waits until the new run is open");
    member.answer(1, DataAnswer::Floor(floor));
    member.granted(put);
}

#[test]
fn while_one_of_three_replicas_is_away_puts_go_to_the_others_and_it_gets_copies_later() {
    let mut member = Member::alone(3);
    member.store("old", 1, 3);
    member.settle();
    member.answer(2, DataAnswer::Failed);
    member.effects.clear();
    let token = member.put_data("new", 1);
    let [Answer::Granted { grant, replicas, .. }] = member.answers(token)[..] else {
        panic!("it is granted at once")
    };
    assert_eq!(replicas, Holders::default().with(0).with(1));
    assert!(!member.effects.contains(&Effect::NeedLv), "a restart draws no volume");
    assert!(member.pg.has_most());
    member.settle();
    member.commit(grant, 2);
    member.settle();
    let Body::Chunk(chunk) = member.row("new").expect("it is there").body else { panic!() };
    assert_eq!(chunk.holders, replicas);
    member.now_ms += NARROW_MS;
    member.put_data("newer", 1);
    assert!(member.effects.contains(&Effect::NeedLv), "one with all its replicas would be better");
    member.effects.clear();
    member.step(Event::PoolEmpty);
    let token = member.put_data("newest", 1);
    member.granted(token);
    assert!(!member.effects.contains(&Effect::NeedLv), "it was just asked for");
    assert_eq!(member.pg.gauges().grants_on_most, 3);
    let Call::Put(mut wants_all) = put(member.request(), "all", data(1), Condition::default())
    else {
        panic!()
    };
    wants_all.required_copies = 3;
    let token = member.call(Call::Put(wants_all));
    assert!(member.effects.contains(&Effect::NeedLv), "another may have as many");
    member.step(Event::PoolEmpty);
    assert_eq!(member.refusal(token), Refusal::TooFewCopies);
    member.now_ms += LV_REOPEN_MS;
    member.effects.clear();
    member.step(Event::Tick);
    let walks = member.pg.wants_walk();
    let opens = member.requests();
    let floor = opens.iter().find_map(|(replica, request)| match request {
        DataRequest::Open { floor, .. } if *replica == 2 => Some(*floor),
        _ => None,
    });
    member.answer(2, DataAnswer::Floor(floor.expect("it is asked to open")));
    assert_ne!(member.pg.wants_walk(), walks, "what it lacks is looked for");
    let token = member.put_data("last", 1);
    let [Answer::Granted { replicas, .. }] = member.answers(token)[..] else { panic!() };
    assert_eq!(replicas.count(), 3);
}

/// Another volume comes, of which a replica is out of reach.
fn fails(member: &mut Member, number: u32) {
    let lv = LvId(LV.0 + number);
    member.step(Event::Lv(LvInfo { lv, ..info(2) }));
    member.step(Event::Data { lv, replica: 1, answer: DataAnswer::Failed });
}

#[test]
fn puts_are_refused_when_too_many_replicas_fail_at_once_and_wait_again_after_a_tick() {
    let mut member = Member::alone(2);
    member.answer(1, DataAnswer::Failed);
    let waits = member.put_data("waits", 1);
    for number in 1..LV_FAILURES_MAX {
        fails(&mut member, number);
        assert_eq!(member.answers(waits), [], "another volume may be within reach");
    }
    fails(&mut member, LV_FAILURES_MAX);
    assert_eq!(member.refusal(waits), Refusal::DiskFailed);
    let at_once = member.put_data("at once", 1);
    fails(&mut member, LV_FAILURES_MAX + 1);
    assert_eq!(member.refusal(at_once), Refusal::DiskFailed);
    member.step(Event::Tick);
    let later = member.put_data("later", 1);
    fails(&mut member, LV_FAILURES_MAX + 2);
    assert_eq!(member.answers(later), [], "failures are counted anew");
    let lv = LvId(LV.0 + LV_FAILURES_MAX + 3);
    member.step(Event::Lv(LvInfo { lv, ..info(2) }));
    for replica in 0..2 {
        member.step(Event::Data { lv, replica, answer: DataAnswer::Floor(key(1, 0)) });
    }
    assert!(matches!(member.answers(later)[..], [Answer::Granted { lv: of, .. }] if of == lv));
}
