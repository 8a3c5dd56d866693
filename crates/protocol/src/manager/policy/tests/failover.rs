//! The things that a failover waits for, and those that it does not.

use larder_types::{BootId, PgId, ServerId, SessionId, View};

use super::{
    Command, Outcome, PolicyEffect, PolicyEvent, SETTINGS, ServerMessage, ServerState, Settings,
    Ticket, World,
};
use crate::limits::{
    HEARTBEAT_MS, LEASE_DRIFT_MS, LEASE_GRANTED_MS, LEASE_MS, PRESENCE_BEAT_MS, PROBATION_MS,
    SERVER_BEAT_MS, SESSION_KEPT_MS, SILENT_MS,
};

/// Milliseconds from when something may be decided to when it is: a look, and the agreement.
const LOOK_MS: u64 = 250;

#[test]
fn a_lease_of_an_earlier_view_holds_up_no_change_of_primary() {
    let (mut changes, mut longest_ms) = (0, 0);
    for (seed, died) in (0..20).flat_map(|seed| (0..3).map(move |id| (seed, ServerId(id)))) {
        let mut world = World::founded(seed, 3, Settings { pg_count: 32, ..SETTINGS });
        world.astray = 0;
        world.calm_down();
        world.stop(died.0);
        while world.map.is_up(died) {
            world.run_for(1);
        }
        let (down_ms, views) = (world.now_ms, world.views);
        // Others are to lead, for balance, before anybody has a lease in the views without the server.
        while world.views - views < 32 || !world.leads_evenly(died) {
            world.run_for(10);
        }
        changes += world.views - views - 32;
        longest_ms = longest_ms.max(world.now_ms - down_ms);
    }
    assert!(changes > 0, "every server was followed evenly");
    assert!(longest_ms < LEASE_MS, "{changes} changes, no reads for up to {longest_ms} ms");
}

#[test]
fn a_server_that_died_with_the_leader_is_not_waited_for_anew() {
    let mut world = World::new(13, 3);
    world.calm_down();
    let died = world.pg(0).members[0];
    let (next, died_ms) = (1 - world.leader.0, world.now_ms);
    world.stale = world.map.clone();
    (0..3).for_each(|id| world.policy(next, PolicyEvent::FollowerHeartbeats(ServerId(id))));
    world.stop(died.0);
    world.run_for(1000);
    assert!(world.map.is_up(died), "the leader before had no time to find out");
    let others = (0..3).filter(|id| ServerId(*id) != died);
    others.for_each(|id| world.policy(next, PolicyEvent::FollowerHeartbeats(ServerId(id))));
    world.change_leader();
    while world.map.is_up(died) {
        world.run_for(10);
    }
    let took_ms = world.now_ms - died_ms;
    let heard_ms = 1000 + 2 * PRESENCE_BEAT_MS;
    assert!((heard_ms..heard_ms + LOOK_MS).contains(&took_ms), "down after {took_ms} ms");
    let is_up = |id: &ServerId| *id == died || world.map.is_up(*id);
    assert!(world.map.servers.keys().all(is_up), "the others were heard");
}

/// Its successor commits what it proposes, and every session of every proxy would be closed.
#[test]
fn an_isolated_leader_declares_no_server_down() {
    let mut world = World::new(16, 3);
    world.calm_down();
    world.deaf = true;
    world.run_for(4 * SILENT_MS);
    assert!((0..3).all(|id| world.map.is_up(ServerId(id))), "{:?}", world.map.servers);
    world.deaf = false;
    world.stop(2);
    world.change_leader();
    world.run_for(2 * SILENT_MS);
    assert!(!world.map.is_up(ServerId(2)), "one that is followed finds it down");
}

#[test]
fn a_leader_that_the_quorum_answers_late_finds_servers_down_all_the_same() {
    let mut world = World::new(18, 3);
    world.calm_down();
    world.confirm_ms = SILENT_MS;
    world.stop(2);
    world.run_for(2 * SILENT_MS);
    assert!(!world.map.is_up(ServerId(2)));
}

#[test]
fn a_renewal_of_a_clock_that_went_back_is_granted() {
    let mut world = World::new(19, 3);
    world.astray = 0;
    world.calm_down();
    let (pg, record) = (PgId(0), world.pg(0).clone());
    let (primary, boot) = (record.members[0], world.servers[&record.members[0].0].boot);
    let renew = |world: &mut World, sent_ms| {
        let led = vec![(pg, record.view)];
        let said = ServerMessage::Renew { boot, sent_ms, led };
        let mut out = Vec::new();
        let (manager, now_ms) = (world.leader.0, world.now_ms);
        let event = PolicyEvent::From(primary, said);
        world.policies[manager].step(now_ms, event, &world.map, &mut out);
        out.iter().any(|effect| matches!(effect, PolicyEffect::Confirm(_)))
    };
    world.change_leader();
    world.now_ms += 2 * LEASE_MS;
    assert!(renew(&mut world, 1_000_000));
    let manager = world.leader.0;
    let leases = |world: &World| format!("{:?}", world.policies[manager]);
    let before = leases(&world);
    renew(&mut world, 1_000_000 - SERVER_BEAT_MS);
    assert_eq!(leases(&world), before, "one that another manager handed on late");
    renew(&mut world, 10_000);
    assert_ne!(leases(&world), before, "it waits for the quorum's answer");
}

/// The primary serves, and says no more that its view is active.
#[test]
fn a_view_whose_activation_was_lost_is_activated_when_its_primary_renews() {
    let mut world = World::new(21, 3);
    world.astray = 0;
    world.calm_down();
    let (pg, manager, now_ms) = (PgId(0), world.leader.0, world.now_ms);
    let record = &mut world.map.pgs[0];
    record.activated = View(record.view.0 - 1);
    let (primary, view) = (record.members[0], record.view);
    let (boot, sent_ms) = (world.servers[&primary.0].boot, now_ms);
    let mut say = |boot, view| {
        let said = ServerMessage::Renew { boot, sent_ms, led: vec![(pg, view)] };
        let mut out = Vec::new();
        let event = PolicyEvent::From(primary, said);
        world.policies[manager].step(now_ms, event, &world.map, &mut out);
        let proposed = out.into_iter().filter_map(|effect| match effect {
            PolicyEffect::Propose(_, command) => Some(command),
            _ => None,
        });
        proposed.collect::<Vec<_>>()
    };
    assert_eq!(say(boot, View(view.0 - 1)), [], "of an earlier view");
    assert_eq!(say(BootId(0), view), [], "of another run");
    assert_eq!(say(boot, view), [Command::ViewActivated(pg, view)]);
    assert_eq!(say(boot, view), [], "it is under way");
}

/// They are found anew when that is agreed on: servers are again what they were.
#[test]
fn a_draining_that_ends_while_its_targets_are_agreed_on_leaves_none_behind() {
    let mut world = World::new(23, 3);
    world.astray = 0;
    world.calm_down();
    let (manager, drained) = (world.leader.0, ServerId(1));
    let targets = |world: &World| -> Vec<_> {
        world.map.pgs.iter().map(|record| record.target.clone()).collect()
    };
    let before = targets(&world);
    let set_draining = |world: &mut World, draining| {
        world.map.servers.get_mut(&drained).unwrap().draining = draining;
        world.map.version.0 += 1;
    };
    let look = |world: &mut World, decided: Option<Ticket>| {
        world.now_ms += SERVER_BEAT_MS;
        let mut out = Vec::new();
        let decided = decided.map(|it| PolicyEvent::Decided(it, Some(Ok(Outcome::Done))));
        for event in decided.into_iter().chain([PolicyEvent::Tick]) {
            world.policies[manager].step(world.now_ms, event, &world.map, &mut out);
        }
        let mut proposed = out.into_iter().filter_map(|effect| match effect {
            PolicyEffect::Propose(ticket, Command::Retarget(changed)) => Some((ticket, changed)),
            _ => None,
        });
        proposed.next()
    };
    let apply = |world: &mut World, changed: Vec<(PgId, Vec<ServerId>)>| {
        for (pg, target) in changed {
            world.map.pgs[pg.0 as usize].target = target;
        }
        world.map.version.0 += 1;
    };
    assert_eq!(look(&mut world, None), None, "all is as it ought to be");
    set_draining(&mut world, true);
    let (ticket, changed) = look(&mut world, None).expect("it is to leave");
    set_draining(&mut world, false);
    assert_eq!(look(&mut world, None), None, "that is under way");
    apply(&mut world, changed);
    let (_, changed) = look(&mut world, Some(ticket)).expect("it is to stay after all");
    apply(&mut world, changed);
    assert_eq!(targets(&world), before);
}

#[test]
fn nobody_is_admitted_to_a_view_that_no_member_may_lead() {
    let mut world = World::new(20, 4);
    world.astray = 0;
    world.calm_down();
    let (pg, manager, now_ms) = (PgId(0), world.leader.0, world.now_ms);
    let record = &mut world.map.pgs[0];
    let learner = record.members.pop().unwrap();
    let (primary, away) = (record.members[0], record.members[1]);
    record.learners.insert(learner);
    record.qualified = [away].into();
    record.lacking = [primary].into();
    let (view, caught_up) = (record.view, ServerMessage::CaughtUp(pg, record.view, learner));
    world.map.servers.get_mut(&away).unwrap().state = ServerState::Down;
    let mut out = Vec::new();
    let event = PolicyEvent::From(primary, caught_up.clone());
    world.policies[manager].step(now_ms, event, &world.map, &mut out);
    assert_eq!(out, [], "the one that may lead is awaited");
    // It is there again, and leads those that are.
    world.map.servers.get_mut(&away).unwrap().state = ServerState::Up;
    world.map.pgs[0].qualified.insert(primary);
    world.map.pgs[0].lacking.clear();
    let event = PolicyEvent::From(primary, caught_up);
    world.policies[manager].step(now_ms, event, &world.map, &mut out);
    let admits = vec![primary, away, learner];
    let begins = Command::BeginView(pg, view, admits);
    assert!(
        matches!(&out[..], [PolicyEffect::Propose(_, command)] if *command == begins),
        "{out:?}"
    );
}

#[test]
fn a_proxy_that_stood_still_for_a_moment_finds_its_session_again() {
    let mut world = World::new(17, 3);
    world.astray = 0;
    world.calm_down();
    let (proxy, session) = (ServerId(1), SessionId(70));
    let boot = world.servers[&1].boot;
    world.say(1, ServerMessage::SessionBegun(boot, session));
    world.run_for(SERVER_BEAT_MS);
    for (down_ms, stays) in [(SESSION_KEPT_MS - LOOK_MS, true), (SESSION_KEPT_MS + LOOK_MS, false)]
    {
        world.servers.get_mut(&1).unwrap().cut = true;
        while world.map.is_up(proxy) {
            world.run_for(10);
        }
        world.run_for(down_ms);
        world.servers.get_mut(&1).unwrap().cut = false;
        world.calm_down();
        assert_eq!(world.map.sessions.contains_key(&session), stays, "down for {down_ms} ms");
    }
}

#[test]
fn one_that_nobody_hears_is_let_in_again_as_soon_as_it_is_back() {
    let mut world = World::new(14, 3);
    world.calm_down();
    let pg = world.pg(0).clone();
    let (primary, died) = (pg.members[0], pg.members[1]);
    world.stop(died.0);
    world.run_for(1000);
    // Its primary misses it before the managers do.
    let boot = world.servers[&primary.0].boot;
    for _ in 0..5 {
        world.say(primary.0, ServerMessage::Unheard(boot, PgId(0), pg.view, vec![died]));
    }
    world.run_for(SILENT_MS);
    assert!(!world.pg(0).members.contains(&died));
    world.start(died.0);
    world.run_for(PROBATION_MS / 2);
    assert!(world.pg(0).members.contains(&died), "{:?}", world.pg(0));
}

#[test]
fn a_primary_whose_two_followers_died_is_in_the_view_with_the_first_that_is_back() {
    let mut world = World::new(15, 3);
    world.astray = 0;
    world.calm_down();
    let pg = world.pg(0).clone();
    let (primary, followers) = (pg.members[0], &pg.members[1..]);
    followers.iter().for_each(|follower| world.stop(follower.0));
    // A manager that is not sure that it leads takes nobody for down, while the primary misses them.
    world.unconfirmed = true;
    world.run_for(2 * PRESENCE_BEAT_MS);
    let boot = world.servers[&primary.0].boot;
    for _ in 0..30 {
        world.say(primary.0, ServerMessage::Unheard(boot, PgId(0), pg.view, followers.to_vec()));
        world.run_for(SERVER_BEAT_MS / 2);
    }
    assert!(world.pg(0).members.contains(&primary), "{:?}", world.pg(0));
    world.unconfirmed = false;
    world.start(followers[0].0);
    world.run_for(2 * SILENT_MS);
    let record = world.pg(0);
    assert!(record.is_active() && !record.members.contains(&followers[1]), "{record:?}");
}

#[test]
fn a_session_that_its_proxy_begins_before_it_is_up_again_stays_open() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3);
        world.astray = 0;
        world.calm_down();
        let (proxy, session) = (ServerId(1), SessionId(70));
        let boot = world.servers[&1].boot;
        world.servers.get_mut(&1).unwrap().cut = true;
        // Beats and looks come at any time after that.
        world.run_for(2 * SILENT_MS + 17 * seed);
        assert!(!world.map.is_up(proxy));
        world.servers.get_mut(&1).unwrap().cut = false;
        // It says so until the map names the session.
        for _ in 0..20 {
            world.say(1, ServerMessage::SessionBegun(boot, session));
            world.run_for(SERVER_BEAT_MS);
        }
        assert!(world.map.sessions.contains_key(&session), "seed {seed}: closed for good");
    }
}

/// Milliseconds from an election to the view without a primary that the elected does not hear and that holds a lease. What
/// happens before may change leaders.
fn waited_ms(before: impl Fn(&mut World)) -> u64 {
    let mut world = World::new(3, 3);
    world.calm_down();
    before(&mut world);
    let (primary, view) = (world.pg(0).members[0], world.pg(0).view);
    let next = 1 - world.leader.0;
    world.policy(next, PolicyEvent::Deposed);
    world.stale = world.map.clone();
    let begun_ms = world.now_ms;
    world.run_for(SILENT_MS);
    // It is down before its lease has run out.
    world.policy(next, PolicyEvent::FollowerHeartbeats(primary));
    world.run_for(SILENT_MS - 10);
    world.servers.get_mut(&primary.0).unwrap().cut = true;
    let others = (0..3).map(ServerId).filter(|id| *id != primary);
    others.for_each(|id| world.policy(next, PolicyEvent::FollowerHeartbeats(id)));
    assert!(world.now_ms > begun_ms + SILENT_MS && world.pg(0).view == view);
    world.change_leader();
    let elected_ms = world.now_ms;
    while world.pg(0).view == view {
        world.run_for(1);
    }
    assert_ne!(world.pg(0).members[0], primary);
    world.now_ms - elected_ms
}

#[test]
fn a_new_leader_waits_out_a_lease_before_another_leads() {
    let least_ms = LEASE_GRANTED_MS + LEASE_DRIFT_MS;
    let waited_ms = waited_ms(|_| {});
    assert!((least_ms..least_ms + LOOK_MS).contains(&waited_ms), "{waited_ms} ms");
}

#[test]
fn a_new_leader_waits_out_leases_that_a_leader_of_an_earlier_release_granted() {
    let least_ms = LEASE_MS + LEASE_DRIFT_MS;
    let waited_ms = waited_ms(|world| world.grants_long = true);
    assert!((least_ms..least_ms + LOOK_MS).contains(&waited_ms), "{waited_ms} ms");
}

#[test]
fn a_renewal_that_comes_by_way_of_another_manager_too_is_granted_once() {
    let mut world = World::new(15, 3);
    world.calm_down();
    let (primary, view) = (world.pg(0).members[0], world.pg(0).view);
    let boot = world.servers[&primary.0].boot;
    let mut renew = |(sent_ms, after_ms)| {
        let led = vec![(PgId(0), view)];
        world.now_ms += after_ms;
        let renewal = ServerMessage::Renew { boot, sent_ms, led };
        let mut out = Vec::new();
        let event = PolicyEvent::From(primary, renewal);
        world.policies[world.leader.0].step(world.now_ms, event, &world.map, &mut out);
        let asked = out.into_iter().find_map(|effect| match effect {
            PolicyEffect::Confirm(ticket) => Some(ticket),
            _ => None,
        });
        if let Some(ticket) = asked {
            world.policy(world.leader.0, PolicyEvent::Confirmed(ticket));
        }
        asked.is_some()
    };
    let sent_ms = 5_000_000;
    let times = [(sent_ms, 0), (sent_ms, HEARTBEAT_MS), (sent_ms + 1, 0)];
    assert_eq!(times.map(&mut renew), [true, false, true]);
}
