//! The work that a leading manager leaves undone when it has too much under way, and that it does it later.

use super::*;
use crate::limits::{GRANTS_WAITING_MAX, HEARTBEAT_MS, MARK_KEPT_MS, POLICY_PROPOSALS_MAX};

impl World {
    /// Steps the leader, and returns what it wants done at once.
    fn effects(&mut self, event: PolicyEvent) -> Vec<PolicyEffect> {
        let mut out = Vec::new();
        self.policies[self.leader.0].step(self.now_ms, event, &self.map, &mut out);
        out
    }
}

#[test]
fn what_is_one_proposal_too_many_is_proposed_when_another_is_through() {
    let mut world = World::new(12, 3);
    world.calm_down();
    let boot = world.servers[&1].boot;
    let begun = |number: u64| {
        let begun = ServerMessage::SessionBegun(boot, SessionId(number));
        PolicyEvent::From(ServerId(1), begun)
    };
    let proposed = |effects: &[PolicyEffect]| match effects {
        [PolicyEffect::Propose(ticket, Command::OpenSession(session, ..))] => {
            Some((*ticket, *session))
        }
        [] => None,
        other => panic!("{other:?}"),
    };
    let last = POLICY_PROPOSALS_MAX as u64;
    let first = proposed(&world.effects(begun(0)));
    for number in 1..last {
        let (_, session) = proposed(&world.effects(begun(number))).expect("there is room");
        assert_eq!(session, SessionId(number));
    }
    assert_eq!(world.effects(begun(last)), [], "too much is under way");
    let (ticket, session) = first.expect("there is room");
    let command = Command::OpenSession(session, ServerId(1), boot);
    let applied = world.apply(command);
    world.effects(PolicyEvent::Decided(ticket, Some(applied)));
    let (ticket, session) = proposed(&world.effects(begun(last))).expect("there is room again");
    assert_eq!(session, SessionId(last));
    assert_eq!(world.effects(begun(last + 1)), [], "for one");
    // One that the quorum did not take makes room as well.
    world.effects(PolicyEvent::Decided(ticket, None));
    assert!(proposed(&world.effects(begun(last + 1))).is_some());
}

#[test]
fn after_a_renewal_too_many_the_next_one_is_granted_after_a_confirmation() {
    let mut world = World::new(13, 3);
    world.calm_down();
    let (pg, record) = (PgId(0), world.pg(0).clone());
    let (server, view) = (record.members[0], record.view);
    let boot = world.servers[&server.0].boot;
    let renew = |sent_ms| {
        let renew = ServerMessage::Renew { boot, sent_ms, led: vec![(pg, view)] };
        PolicyEvent::From(server, renew)
    };
    let question = |effects: &[PolicyEffect]| {
        effects.iter().find_map(|effect| match effect {
            PolicyEffect::Confirm(ticket) => Some(*ticket),
            _ => None,
        })
    };
    let granted = |effects: &[PolicyEffect]| -> Vec<u64> {
        let reported = effects.iter().filter_map(|effect| match effect {
            PolicyEffect::Tell(to, ManagerMessage::Leases { sent_ms, granted, .. }) => {
                assert_eq!((*to, &granted[..]), (server, &[(pg, view)][..]));
                Some(*sent_ms)
            }
            _ => None,
        });
        reported.collect()
    };
    // The world's own questions may be open.
    world.elect(0);
    world.now_ms += 2 * (LEASE_MS + LEASE_DRIFT_MS);
    let sent = |number: u64| LEASE_MS + number;
    let from = |number: u64| sent(number) - (LEASE_MS - LEASE_GRANTED_MS);
    let first = question(&world.effects(renew(sent(0)))).expect("the first is asked about");
    let last = GRANTS_WAITING_MAX as u64 + 1;
    for number in 1..=last {
        let effects = world.effects(renew(sent(number)));
        assert_eq!(effects, [], "it waits for the answer to the first");
    }
    world.now_ms += HEARTBEAT_MS;
    let effects = world.effects(PolicyEvent::Confirmed(first));
    assert_eq!(granted(&effects), [from(0)]);
    let next = question(&effects).expect("those that wait are asked about");
    assert_eq!(world.effects(renew(sent(last + 1))), [], "there is room for the next one");
    world.now_ms += HEARTBEAT_MS;
    let effects = world.effects(PolicyEvent::Confirmed(next));
    assert_eq!(granted(&effects), (1..last).map(from).collect::<Vec<_>>(), "all but one too many");
    let next = question(&effects).expect("it is asked about");
    assert_eq!(granted(&world.effects(PolicyEvent::Confirmed(next))), [from(last + 1)]);
}

#[test]
fn a_renewal_waits_for_the_next_question_unless_its_lease_runs_out_or_is_of_a_new_view() {
    let mut world = World::new(13, 3);
    world.calm_down();
    let server = world.pg(0).members[0];
    let led = |world: &World| {
        let all = (0..world.map.pgs.len() as u32).map(PgId).map(|pg| (pg, world.pg(pg.0).view));
        all.filter(|(pg, _)| world.pg(pg.0).members[0] == server).collect::<Vec<_>>()
    };
    let (boot, led) = (world.servers[&server.0].boot, led(&world));
    assert!(led.len() > 1, "it leads several");
    let renew = |sent_ms, led: &[(PgId, View)]| {
        let led = led.to_vec();
        PolicyEvent::From(server, ServerMessage::Renew { boot, sent_ms, led })
    };
    let question = |effects: &[PolicyEffect]| {
        effects.iter().find_map(|effect| match effect {
            PolicyEffect::Confirm(ticket) => Some(*ticket),
            _ => None,
        })
    };
    world.elect(0);
    world.now_ms += 2 * (LEASE_MS + LEASE_DRIFT_MS);
    let mut sent_ms = 10 * LEASE_MS;
    let ticket = question(&world.effects(renew(sent_ms, &led[1..]))).expect("they have no lease");
    world.effects(PolicyEvent::Confirmed(ticket));
    // Steadily: the renewal joins the question that is due anyway.
    sent_ms += 1;
    world.now_ms += 1;
    assert_eq!(question(&world.effects(renew(sent_ms, &led[1..]))), None);
    let ticket = question(&world.effects(renew(sent_ms + 1, &led))).expect("one has no lease");
    let reported = world.effects(PolicyEvent::Confirmed(ticket));
    let leases = |effect: &&PolicyEffect| {
        matches!(effect, PolicyEffect::Tell(_, ManagerMessage::Leases { .. }))
    };
    assert_eq!(reported.iter().filter(leases).count(), 2, "and the one that waited goes with it");
    world.now_ms += 1;
    assert_eq!(question(&world.effects(renew(sent_ms + 2, &led))), None);
    world.now_ms += HEARTBEAT_MS;
    let ticket = question(&world.effects(PolicyEvent::Tick)).expect("it is due");
    let reported = world.effects(PolicyEvent::Confirmed(ticket));
    assert_eq!(reported.iter().filter(leases).count(), 1);
    // The grant was lost on its way, as the server says.
    world.now_ms += 1;
    assert_eq!(world.effects(PolicyEvent::NotGranted), []);
    let ticket = question(&world.effects(renew(sent_ms + 3, &led))).expect("it does not wait");
    let reported = world.effects(PolicyEvent::Confirmed(ticket));
    assert_eq!(reported.iter().filter(leases).count(), 1);
}

#[test]
fn an_expired_mark_is_lifted_and_a_younger_one_of_its_bucket_is_not() {
    let mut world = World::new(15, 3);
    world.calm_down();
    let name = |name: &str| larder_types::BucketName::new(name).unwrap();
    for bucket in ["left", "again", "live"] {
        world.apply(Command::CreateBucket(name(bucket), None, 0)).unwrap();
    }
    world.apply(Command::BeginDeletion(name("left"))).unwrap();
    world.apply(Command::BeginDeletion(name("again"))).unwrap();
    let marked = |world: &World, bucket: &str| {
        let record = &world.map.buckets[&name(bucket)];
        (record.state == larder_types::bucket::BucketState::Deleting, record.epoch.0)
    };
    world.run_for(MARK_KEPT_MS - LV_PLAN_MS);
    assert_eq!((marked(&world, "left"), marked(&world, "again")), ((true, 2), (true, 2)));
    world.apply(Command::BeginDeletion(name("again"))).unwrap();
    world.run_for(3 * LV_PLAN_MS);
    assert_eq!(marked(&world, "left"), (false, 3), "whoever marked it has given up");
    assert_eq!(marked(&world, "again"), (true, 3), "its deletion has just begun");
    assert_eq!(marked(&world, "live"), (false, 1));
}
