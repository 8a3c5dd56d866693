//! Copies that are made and given up while their objects stay where they are.

mod bounds;

use std::collections::BTreeSet;

use larder_protocol::limits::{HOT_READS, OP_ID_BYTES_MAX, OWN_BYTES_MAX, SUSPECT_TRIES_MAX};
use larder_protocol::manager::state::{MapVersion, ReplicaState};
use larder_protocol::pg::{CopyPriority, Refill, Walk, WalkSchedule, chunk_at};
use larder_protocol::{Call, DataAnswer, DataRequest, Effect, Event, Index, LvInfo};
use larder_types::{BootId, DiskId, Grant, Holders, Op, ServerId, SessionId, StreamId};

use crate::support::{BUCKET, LV, Member, info, key, mismatch};

const ALL: Holders = Holders(0b111);

/// An LV that had two replicas and is to have a third.
fn widened() -> LvInfo {
    let mut info = LvInfo { as_of: MapVersion(2), ..info(3) };
    info.replicas[2].state = ReplicaState::Rebuilding;
    info
}

impl Member {
    /// The LV's third replica comes, and answers its `Open`.
    fn widen(&mut self) {
        self.step(Event::Lv(widened()));
        let opened = self.requests();
        let [(2, DataRequest::Open { floor, .. })] = &opened[..] else {
            panic!("only the new one is opened: {opened:?}");
        };
        let floor = *floor;
        self.answer(2, DataAnswer::Floor(floor));
    }

    /// Walks over the index; returns the copies to be made, and the walk.
    fn walk(&mut self, good_max: usize) -> (Vec<Refill>, Walk) {
        self.walk_up_to(CopyPriority::new(good_max, false))
    }

    fn walk_up_to(&mut self, bound: CopyPriority) -> (Vec<Refill>, Walk) {
        let mut walk = Walk::new(bound);
        walk.add(&self.pg);
        let refills = self.consider_all(&mut walk);
        (refills, walk)
    }

    fn consider_all(&mut self, walk: &mut Walk) -> Vec<Refill> {
        let mut rows = Vec::new();
        self.table
            .scan_prefix(b"", &mut |row, value| {
                rows.push((row.to_vec(), value.to_vec()));
                std::ops::ControlFlow::Continue(())
            })
            .expect("a scan");
        let mut refills = Vec::new();
        for (row, value) in rows {
            let chunk = chunk_at(&row, &value, 1, |pg| walk.is_for(pg));
            if let Some((_, chunk)) = chunk.expect("a readable row") {
                let found = walk.consider(&mut self.pg, (&row, &chunk), &self.table);
                refills.extend(found.expect("a readable row").map(|refill| *refill));
            }
        }
        refills
    }

    fn end(&mut self, walk: &Walk) {
        let event = walk.ended(&self.pg).expect("the same view");
        self.step(event);
    }

    fn refilled(&mut self, refill: &Refill, is_copied: bool) {
        let (row, grant) = (refill.row.clone(), refill.grant);
        self.step(Event::Refilled { row, grant, is_copied });
    }

    /// Returns the words about replicas to the manager.
    fn said(&mut self) -> Vec<Effect> {
        let (said, rest) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|effect| matches!(effect, Effect::Rebuilt { .. } | Effect::Vacated { .. }));
        self.effects = rest;
        said
    }

    fn holders(&self, name: &str) -> Holders {
        match self.row(name).expect("an object").body {
            larder_types::Body::Chunk(chunk) => chunk.holders,
            other => panic!("no chunk: {other:?}"),
        }
    }
}

const REBUILT: Effect = Effect::Rebuilt { lv: LV, replica: 2, disk: DiskId(2) };

#[test]
fn a_joining_replica_is_filled_and_then_reported_rebuilt() {
    let mut pg = Member::alone(2);
    pg.store("a", 1, 2);
    pg.store("b", 2, 2);
    assert_eq!(pg.pg.wants_walk(), None);
    pg.widen();
    let (refills, walk) = pg.walk(2);
    assert_eq!(refills.len(), 2);
    for refill in &refills {
        assert_eq!((refill.from, refill.to), (Holders(0b11), 2));
    }
    pg.refilled(&refills[0], true);
    pg.refilled(&refills[1], false);
    pg.end(&walk);
    assert!(pg.said().is_empty(), "one copy failed");
    pg.step(Event::Tick);
    pg.settle();
    assert_eq!((pg.holders("a"), pg.holders("b")), (ALL, Holders(0b11)));
    let (refills, walk) = pg.walk(2);
    assert_eq!(refills.len(), 1);
    pg.refilled(&refills[0], true);
    pg.end(&walk);
    pg.step(Event::Tick);
    pg.settle();
    assert_eq!(pg.holders("b"), ALL);
    let (refills, walk) = pg.walk(2);
    assert!(refills.is_empty());
    pg.end(&walk);
    assert_eq!(pg.said(), [REBUILT]);
    pg.step(Event::Lv(LvInfo { as_of: MapVersion(3), ..info(3) }));
    pg.step(Event::Lv(info(2)));
    assert!(pg.requests().is_empty(), "the manager said that before");
    assert!(pg.pg.wants_walk().is_some(), "its replicas have changed");
    let (_, walk) = pg.walk(2);
    pg.end(&walk);
    assert_eq!(pg.pg.wants_walk(), None);
}

#[test]
fn a_put_that_was_granted_before_the_replica_came_is_waited_for_and_copied() {
    let mut pg = Member::alone(2);
    let grant = pg.open_put("a", 1);
    pg.widen();
    let (refills, walk) = pg.walk(2);
    assert!(refills.is_empty(), "it is not in the index yet");
    pg.end(&walk);
    assert!(pg.said().is_empty(), "the put will have two copies");
    pg.sync();
    pg.commit(grant, 2);
    pg.settle();
    let (refills, walk) = pg.walk(2);
    assert_eq!(refills.len(), 1);
    pg.refilled(&refills[0], true);
    pg.step(Event::Tick);
    pg.settle();
    pg.end(&walk);
    let (_, walk) = pg.walk(2);
    pg.end(&walk);
    assert_eq!((pg.holders("a"), pg.said()), (ALL, vec![REBUILT]));
}

#[test]
fn a_replica_that_came_later_says_nothing_about_a_put_in_doubt() {
    let mut pg = Member::alone(2);
    let grant = pg.pending_put("a", 1);
    pg.widen();
    pg.call(larder_protocol::Call::Abandon { op: grant.op, disk_full: false });
    let asked: Vec<usize> = pg.requests().iter().map(|(replica, _)| *replica).collect();
    assert_eq!(asked, [0, 1], "only those that were to be given it are fenced");
    for replica in [0, 1] {
        pg.answer(replica, DataAnswer::Voided(grant));
    }
    pg.answer(0, DataAnswer::Verified(grant));
    pg.answer(1, DataAnswer::Verified(grant));
    pg.settle();
    assert_eq!(pg.holders("a"), Holders(0b11));
    assert!(pg.pg.wants_walk().is_some(), "it is to be copied");
}

#[test]
fn chunks_with_the_fewest_copies_come_first() {
    let mut pg = Member::alone(3);
    let two = pg.store("two", 1, 2);
    let one = pg.store("one", 1, 1);
    let (first, walk) = pg.walk(1);
    assert_eq!(first.iter().map(|it| it.chunk.grant).collect::<Vec<Grant>>(), [one]);
    assert_eq!(walk.next_bound(), CopyPriority::new(2, false));
    assert_eq!(walk.lacking().iter().collect::<Vec<_>>(), [(&1, &1), (&2, &1)]);
    pg.refilled(&first[0], true);
    pg.end(&walk);
    pg.step(Event::Tick);
    pg.settle();
    assert_eq!((pg.holders("one").count(), pg.holders("two").count()), (2, 2));
    let (second, walk) = pg.walk(2);
    let grants: BTreeSet<Grant> = second.iter().map(|it| it.chunk.grant).collect();
    assert_eq!(grants, BTreeSet::from([one, two]));
    assert_eq!(walk.next_bound(), CopyPriority::FIRST, "nothing was left");
}

#[test]
fn of_chunks_with_as_many_copies_those_in_volumes_that_are_read_come_first() {
    let mut pg = Member::alone(3);
    pg.store("a", 1, 1);
    let (refills, walk) = pg.walk_up_to(CopyPriority::FIRST);
    assert!(refills.is_empty() && !pg.pg.has_hot(pg.now_ms), "nobody reads it");
    assert_eq!(walk.next_bound(), CopyPriority::new(1, false));
    assert!(walk.has_effect(), "the next walk begins at once");
    let now_ms = pg.now_ms;
    (0..HOT_READS).for_each(|_| pg.pg.note_read(LV, now_ms));
    assert!(pg.pg.has_hot(now_ms));
    let (refills, walk) = pg.walk_up_to(CopyPriority::FIRST);
    assert_eq!(refills[0].priority, CopyPriority::FIRST);
    assert_eq!(walk.left(), None);
}

#[test]
fn a_replica_that_leaves_or_opens_is_reported_once() {
    let mut pg = Member::alone(2);
    pg.store("a", 1, 2);
    let (before, order) = (pg.pg.replica_changes(), MapVersion(5));
    pg.widen();
    let opened = pg.pg.replica_changes();
    assert_eq!(opened, before + 1, "copies can be made there");
    for _ in 0..2 {
        pg.answer(2, DataAnswer::Failed);
        assert_eq!(pg.pg.replica_changes(), opened + 1, "it was out of reach before");
    }
    let (lv, replica, away) = (LV, 1, Holders::default());
    for _ in 0..2 {
        pg.step(Event::Vacate { lv, replica, order, is_lost: true, away });
        assert_eq!(pg.pg.replica_changes(), opened + 2);
    }
}

#[test]
fn a_copy_that_one_replica_does_not_get_is_made_for_another() {
    let mut pg = Member::alone(3);
    pg.store("a", 1, 1);
    let (refills, mut walk) = pg.walk(1);
    let first = refills[0].to;
    pg.refilled(&refills[0], false);
    walk.missed_single(refills[0].chunk.grant.pg);
    assert_eq!(walk.still_single().count(), 1, "it is looked for again");
    pg.end(&walk);
    let (refills, _walk) = pg.walk(1);
    assert_ne!(refills[0].to, first);
    pg.refilled(&refills[0], true);
}

#[test]
fn a_check_counts_copies_not_yet_visible_and_sends_nothing() {
    let mut pg = Member::alone(3);
    pg.store("a", 1, 1);
    pg.store("b", 2, 1);
    let (refills, _walk) = pg.walk(1);
    pg.refilled(&refills[0], true);
    pg.refilled(&refills[1], false);
    assert_eq!(pg.pg.wants_walk(), None, "what was decided last shows first");
    let mut look = Walk::new(CopyPriority::new(1, false));
    look.look_at(&pg.pg);
    let again = pg.consider_all(&mut look);
    let rows: Vec<_> = again.iter().map(|refill| &refill.row).collect();
    assert_eq!(rows, [&refills[1].row], "the first has its copy");
    pg.refilled(&again[0], false);
    pg.end(&look);
    assert!(pg.said().is_empty());
}

#[test]
fn a_copys_grant_is_below_every_op_that_can_free_its_chunk() {
    let mut pg = Member::alone(3);
    pg.store("a", 1, 2);
    let applied = pg.pg.applied().seq;
    // The delete has its place in the log, and the index shows the object still.
    pg.delete("a");
    let (refills, _walk) = pg.walk(2);
    let grant = refills[0].grant;
    assert_eq!(grant.op, key(1, applied.0 + 1), "where the delete is: a floor above it voids it");
    pg.settle();
    assert!(pg.row("a").is_none());
    // While the copy is under way no floor passes it, though no put is open.
    pg.effects.clear();
    pg.put_data("big", 99);
    let raised = |pg: &mut Member| {
        let raises = pg.requests().into_iter().filter_map(|(_, request)| match request {
            DataRequest::RaiseFloor { floor } => Some(floor),
            _ => None,
        });
        raises.collect::<Vec<_>>()
    };
    assert_eq!(raised(&mut pg), [], "it would not free what the delete freed");
    pg.refilled(&refills[0], true);
    pg.put_data("bigger", 98);
    let raises = raised(&mut pg);
    assert!(raises.iter().all(|floor| *floor > grant.op) && !raises.is_empty(), "{raises:?}");
    pg.step(Event::Tick);
    pg.settle();
    assert!(pg.row("a").is_none(), "a copy of what is gone changes nothing");
}

/// The LV with a third replica in place of one that is to go.
fn two_are_wanted() -> LvInfo {
    LvInfo { copies: 2, ..info(3) }
}

#[test]
fn a_drained_replica_is_vacated_once_all_others_have_a_copy() {
    let mut pg = Member::alone_in(two_are_wanted());
    pg.store("a", 1, 2);
    let order = MapVersion(5);
    pg.step(Event::Vacate { lv: LV, replica: 0, order, is_lost: false, away: Holders::default() });
    let (refills, walk) = pg.walk(1);
    assert!(refills.is_empty(), "two copies can be read");
    pg.end(&walk);
    let (refills, walk) = pg.walk(walk.next_bound().good.into());
    assert_eq!(refills[0].to, 2);
    pg.refilled(&refills[0], true);
    pg.end(&walk);
    pg.step(Event::Tick);
    pg.settle();
    assert_eq!(pg.holders("a"), ALL, "nothing is given up before");
    let (_, walk) = pg.walk(1);
    pg.end(&walk);
    assert!(pg.said().is_empty());
    pg.step(Event::Tick);
    pg.settle();
    assert_eq!(pg.holders("a"), Holders(0b110));
    let (_, walk) = pg.walk(1);
    pg.end(&walk);
    assert_eq!(pg.said(), [Effect::Vacated { lv: LV, replica: 0, order }]);
    // Gone, it is asked for nothing more.
    let mut without = LvInfo { as_of: MapVersion(6), ..two_are_wanted() };
    without.replicas[0].state = ReplicaState::Gone;
    pg.step(Event::Lv(without));
    pg.store("b", 1, 3);
    pg.delete("b");
    pg.settle();
    pg.effects.clear();
    pg.put_data("large", 99);
    let asked: BTreeSet<usize> = pg.requests().iter().map(|(replica, _)| *replica).collect();
    assert_eq!(asked, BTreeSet::from([1, 2]));
}

/// Holders of `a` after a walk that may give copies up.
fn walked(pg: &mut Member) -> Holders {
    let (_, walk) = pg.walk(3);
    pg.end(&walk);
    pg.step(Event::Tick);
    pg.settle();
    pg.holders("a")
}

#[test]
fn a_drained_replica_keeps_its_copy_as_soon_as_the_map_says_that_others_are_away() {
    let mut pg = Member::alone_in(two_are_wanted());
    pg.store("a", 1, 3);
    let order = MapVersion(5);
    pg.step(Event::Vacate { lv: LV, replica: 0, order, is_lost: false, away: Holders::default() });
    assert_eq!(pg.pg.lvs_changing(), BTreeSet::from([LV]));
    pg.step(Event::Away { lv: LV, away: Holders::default().with(2) });
    assert_eq!(walked(&mut pg), ALL, "one of two that stay is up");
    pg.step(Event::Away { lv: LV, away: Holders::default() });
    assert_eq!(walked(&mut pg), Holders(0b110));
}

/// A PG with an object on three replicas and a fourth that is filled, which is open.
fn one_is_filled() -> Member {
    let mut pg = Member::alone(3);
    pg.store("a", 1, 3);
    let mut wider = LvInfo { as_of: MapVersion(2), ..info(4) };
    wider.copies = 3;
    wider.replicas[3].state = ReplicaState::Rebuilding;
    pg.step(Event::Lv(wider));
    pg.answer(3, DataAnswer::Floor(key(1, 100)));
    assert_eq!(pg.pg.lvs_changing(), BTreeSet::from([LV]));
    pg
}

#[test]
fn copies_whose_servers_are_away_do_not_count_where_a_replica_is_filled() {
    let mut pg = one_is_filled();
    let before = pg.pg.replica_changes();
    pg.step(Event::Away { lv: LV, away: Holders(0b110) });
    assert_eq!(pg.pg.replica_changes(), before + 1, "single copies are looked for again");
    let (refills, walk) = pg.walk(1);
    let [refill] = &refills[..] else { panic!("a single copy comes first: {refills:?}") };
    assert_eq!((refill.from, refill.to), (Holders(0b1), 3));
    assert!(refill.priority.is_single());
    pg.refilled(refill, false);
    pg.end(&walk);
    pg.step(Event::Away { lv: LV, away: Holders::default() });
    assert!(pg.walk(1).0.is_empty(), "three are within reach");
    assert_eq!(pg.walk(3).0.len(), 1);
}

/// Managers that do not hear a server cannot tell that nobody reads from it.
#[test]
fn copies_whose_servers_are_away_are_read_where_there_are_no_others() {
    let mut pg = one_is_filled();
    pg.step(Event::Away { lv: LV, away: ALL });
    let (refills, _) = pg.walk(1);
    let [refill] = &refills[..] else { panic!("it is made: {refills:?}") };
    assert_eq!((refill.from, refill.to), (ALL, 3));
}

#[test]
fn a_walk_under_way_counts_though_servers_go_away_and_return() {
    let mut pg = one_is_filled();
    let (refills, walk) = pg.walk(3);
    pg.refilled(&refills[0], true);
    pg.end(&walk);
    pg.step(Event::Tick);
    pg.settle();
    let (refills, walk) = pg.walk(3);
    assert!(refills.is_empty());
    pg.step(Event::Away { lv: LV, away: Holders(0b1) });
    pg.end(&walk);
    assert!(matches!(pg.said()[..], [Effect::Rebuilt { lv: LV, replica: 3, .. }]));
}

#[test]
fn a_changed_number_of_copies_counts_as_a_change() {
    let mut pg = Member::alone(3);
    pg.store("a", 1, 3);
    let order = MapVersion(5);
    pg.step(Event::Vacate { lv: LV, replica: 0, order, is_lost: false, away: Holders::default() });
    assert_eq!(walked(&mut pg), ALL, "three are wanted");
    pg.step(Event::Lv(LvInfo { as_of: MapVersion(6), ..two_are_wanted() }));
    assert_eq!(walked(&mut pg), Holders(0b110));
}

/// That it was vacated may be on its way to be decided: what is put meanwhile must not name it.
#[test]
fn a_drained_replica_that_restarts_leaves_as_before() {
    let mut pg = Member::alone(3);
    let order = MapVersion(5);
    pg.step(Event::Vacate { lv: LV, replica: 0, order, is_lost: false, away: Holders::default() });
    let (_, walk) = pg.walk(1);
    pg.end(&walk);
    assert_eq!(pg.said(), [Effect::Vacated { lv: LV, replica: 0, order }]);
    let opened = |pg: &mut Member| {
        let opens = pg.requests().into_iter().filter_map(|(replica, request)| match request {
            DataRequest::Open { floor, .. } => Some((replica, floor)),
            _ => None,
        });
        let [(0, floor)] = opens.collect::<Vec<_>>()[..] else { panic!("it is opened") };
        for replica in 0..3 {
            pg.answer(replica, DataAnswer::Floor(floor));
        }
    };
    let mut restarted = LvInfo { as_of: MapVersion(6), ..info(3) };
    restarted.replicas[0].boot = BootId(77);
    pg.step(Event::Lv(restarted.clone()));
    opened(&mut pg);
    let token = pg.put_data("a", 1);
    assert_eq!(pg.answers(token), [], "no space is given while one of the replicas leaves");
    // Another server's in its place stays.
    let mut another = LvInfo { as_of: MapVersion(7), ..restarted };
    another.replicas[0].server = ServerId(99);
    pg.step(Event::Lv(another));
    opened(&mut pg);
    pg.granted(token);
}

#[test]
fn no_replica_is_vacated_while_a_put_is_open_that_will_name_it() {
    let mut pg = Member::alone_in(two_are_wanted());
    let grant = pg.open_put("a", 1);
    let order = MapVersion(5);
    pg.step(Event::Vacate { lv: LV, replica: 0, order, is_lost: false, away: Holders::default() });
    let (_, walk) = pg.walk(1);
    pg.end(&walk);
    assert!(pg.said().is_empty());
    pg.sync();
    pg.commit(grant, 3);
    pg.settle();
    pg.end(&walk);
    assert!(pg.said().is_empty(), "the walk began before the put was in the index");
    for _ in 0..2 {
        let (_, walk) = pg.walk(1);
        pg.end(&walk);
        pg.step(Event::Tick);
        pg.settle();
    }
    assert_eq!(pg.holders("a"), Holders(0b110));
    assert_eq!(pg.said(), [Effect::Vacated { lv: LV, replica: 0, order }]);
}

#[test]
fn a_lost_replica_is_given_up_at_once_but_never_the_last_that_is_named() {
    let mut pg = Member::alone(3);
    pg.store("all", 1, 3);
    pg.store("only", 1, 1);
    let lose = |replica| Event::Vacate {
        lv: LV,
        replica,
        order: MapVersion(5),
        is_lost: true,
        away: Holders::default(),
    };
    pg.step(lose(0));
    let (refills, walk) = pg.walk(3);
    assert!(refills.is_empty(), "the only copy cannot be read any more");
    pg.end(&walk);
    pg.step(Event::Tick);
    pg.settle();
    assert_eq!((pg.holders("all"), pg.holders("only")), (Holders(0b110), Holders(0b1)));
    let (_, walk) = pg.walk(3);
    pg.end(&walk);
    assert!(pg.said().is_empty(), "what was lost stays named");
    pg.delete("only");
    pg.settle();
    let (_, walk) = pg.walk(3);
    pg.end(&walk);
    assert!(matches!(pg.said()[..], [Effect::Vacated { replica: 0, .. }]));
}

#[test]
fn a_put_in_doubt_is_revoked_when_all_that_could_have_it_are_lost_or_have_other_bytes() {
    let mut pg = Member::alone(2);
    let grant = pg.pending_put("a", 1);
    pg.call(larder_protocol::Call::Abandon { op: grant.op, disk_full: false });
    pg.answer(0, DataAnswer::Failed);
    pg.answer(1, DataAnswer::Voided(grant));
    pg.answer(1, mismatch(grant));
    pg.settle();
    assert_eq!(pg.pg.gauges().in_doubt, 1, "the other may come back with it");
    pg.step(Event::Vacate {
        lv: LV,
        replica: 0,
        order: MapVersion(5),
        is_lost: true,
        away: Holders::default(),
    });
    pg.step(Event::Tick);
    pg.answer(1, DataAnswer::Voided(grant));
    pg.answer(0, DataAnswer::Failed);
    pg.answer(1, mismatch(grant));
    pg.settle();
    assert_eq!(pg.pg.gauges().open_puts, 0);
    assert!(pg.row("a").is_none());
}

#[test]
fn late_answers_of_another_view_change_no_holders() {
    let mut pg = Member::alone(3);
    pg.store("a", 1, 2);
    let (refills, walk) = pg.walk(2);
    pg.begin(2, &[1]);
    pg.serve(3);
    pg.refilled(&refills[0], true);
    assert!(walk.ended(&pg.pg).is_none());
    pg.step(Event::Tick);
    pg.settle();
    assert_eq!(pg.holders("a"), Holders(0b11));
    assert!(pg.pg.wants_walk().is_some(), "the new view has seen what is missing");
    assert!(!pg.log.iter().any(|(entry, _)| matches!(*entry.op, Op::Holders { .. })));
}

#[test]
fn a_copy_that_a_reader_found_damaged_is_made_anew_from_another() {
    let mut pg = Member::alone(3);
    let grant = pg.store("a", 1, 3);
    pg.store("b", 1, 3);
    let suspect = |grant| larder_protocol::Call::Suspect { grant, server: ServerId(1) };
    pg.call(suspect(grant));
    pg.call(suspect(Grant { attempt: 7, ..grant }));
    let (refills, walk) = pg.walk(2);
    let [refill] = &refills[..] else { panic!("one copy is to be mended: {refills:?}") };
    assert_eq!((refill.chunk.grant, refill.from, refill.to), (grant, Holders(0b101), 1));
    pg.refilled(refill, true);
    pg.end(&walk);
    pg.step(Event::Tick);
    pg.settle();
    assert_eq!(pg.holders("a"), ALL);
    let (refills, walk) = pg.walk(3);
    assert!(refills.is_empty());
    pg.end(&walk);
    assert_eq!(pg.pg.wants_walk(), None, "what is not there is not looked for again");
    // Of a chunk whose other copies are damaged too none can be made.
    (0..3).for_each(|server| {
        pg.call(larder_protocol::Call::Suspect { grant, server: ServerId(server) });
    });
    let (refills, walk) = pg.walk(3);
    assert!(refills.is_empty());
    pg.end(&walk);
    assert_eq!(pg.holders("a"), ALL, "and none is given up");
}

#[test]
fn a_damaged_copy_is_mended_also_when_the_first_try_fails() {
    let mut pg = Member::alone(3);
    let grant = pg.store("a", 1, 3);
    pg.call(larder_protocol::Call::Suspect { grant, server: ServerId(1) });
    for _ in 0..3 {
        let (refills, walk) = pg.walk(2);
        assert_eq!(refills.len(), 1);
        pg.refilled(&refills[0], false);
        pg.end(&walk);
        assert!(pg.pg.wants_walk().is_some() && pg.pg.is_suspected(grant, ServerId(1)));
    }
    pg.delete("a");
    pg.settle();
    let (refills, walk) = pg.walk(2);
    assert!(refills.is_empty());
    pg.end(&walk);
    assert!(!pg.pg.is_suspected(grant, ServerId(1)), "its object was deleted");
    assert_eq!(pg.pg.wants_walk(), None);
    let grant = pg.store("b", 1, 3);
    pg.call(larder_protocol::Call::Suspect { grant, server: ServerId(1) });
    let mut walks = 0;
    while pg.pg.wants_walk().is_some() {
        let (refills, walk) = pg.walk(2);
        refills.iter().for_each(|refill| pg.refilled(refill, false));
        pg.end(&walk);
        walks += 1;
        assert!(walks <= SUSPECT_TRIES_MAX + 1, "it is looked for without end");
    }
    assert!(walks >= SUSPECT_TRIES_MAX && !pg.pg.is_suspected(grant, ServerId(1)));
}

/// A walk that found nothing that it could do.
fn in_vain(pg: &Member) -> Walk {
    let mut walk = Walk::new(CopyPriority::FIRST);
    walk.add(&pg.pg);
    walk
}

#[test]
fn a_new_reason_to_walk_is_not_kept_waiting_by_walks_that_could_do_nothing() {
    let mut pg = Member::alone(2);
    let grant = pg.store("a", 1, 2);
    pg.widen();
    let (mut walk_schedule, mut walks, hour_ms) = (WalkSchedule::default(), Vec::new(), 3_600_000);
    for now_ms in (1000..hour_ms).step_by(1000) {
        if walk_schedule.is_due(now_ms, &in_vain(&pg)) {
            walk_schedule.ended(now_ms, &in_vain(&pg));
            walks.push(now_ms);
        }
    }
    assert_eq!(walks[..4], [1000, 2000, 4000, 8000], "ever more seldom");
    let pauses = walks.windows(2).map(|pair| pair[1] - pair[0]);
    assert_eq!(pauses.max(), Some(120_000), "and never given up");
    walk_schedule.ended(hour_ms, &in_vain(&pg));
    assert!(!walk_schedule.is_due(hour_ms + 1000, &in_vain(&pg)), "nothing has changed");
    pg.call(larder_protocol::Call::Suspect { grant, server: ServerId(0) });
    assert!(walk_schedule.is_due(hour_ms + 1000, &in_vain(&pg)), "a copy was found damaged");
}

#[test]
fn a_walk_whose_copies_all_failed_is_not_repeated_at_once() {
    let mut pg = Member::alone(2);
    pg.store("a", 1, 2);
    pg.widen();
    let (refills, mut walk) = pg.walk(2);
    pg.refilled(&refills[0], false);
    let mut walk_schedule = WalkSchedule::default();
    walk_schedule.ended(0, &walk);
    assert!(!walk_schedule.is_due(500, &walk));
    walk.copied();
    walk_schedule.ended(0, &walk);
    assert!(walk_schedule.is_due(500, &walk), "what one copy has changed may let another be made");
}

#[test]
fn copies_that_were_made_are_noted_when_there_is_room_for_that() {
    let noted = |pg: &Member| pg.log.iter().any(|(it, _)| matches!(*it.op, Op::Holders { .. }));
    let mut pg = Member::alone(2);
    pg.store("a", 1, 2);
    pg.widen();
    let (refills, _) = pg.walk(2);
    // The ops that a primary makes of itself have taken all the room of that.
    let drop = |number| {
        let stream = StreamId { session: SessionId(9), number };
        Call::DropStream { bucket: BUCKET, stream }
    };
    (0..(OWN_BYTES_MAX / OP_ID_BYTES_MAX) as u64).for_each(|number| {
        pg.call(drop(1 << 62 | number));
    });
    pg.refilled(&refills[0], true);
    pg.step(Event::Tick);
    assert!(!noted(&pg), "there is no room");
    pg.settle();
    pg.step(Event::Tick);
    assert!(noted(&pg), "there is some");
    pg.settle();
    assert_eq!(pg.holders("a"), ALL);
}
