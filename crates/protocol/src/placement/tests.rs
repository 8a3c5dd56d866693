//! Placement over whole clusters.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{DiskId, LvId, PgId, RegionId, ServerId};
use proptest::prelude::*;

use super::*;

const PGS: u32 = 4096;
const RULES: GroupRules = GroupRules { members: 3, min_members: 2 };
const COPIES: CopyRules = CopyRules { copies: 3, min_copies: 2 };

fn at(region: u16, rack: u32, machine: u32) -> FailureDomains {
    FailureDomains { region: RegionId(region), rack: RackId(rack), machine: MachineId(machine) }
}

fn server(id: u32, domains: FailureDomains, weight: u32) -> MetaServer {
    MetaServer {
        server: ServerId(id),
        domains,
        weight: Weight(weight),
        placement_state: PlacementState::In,
    }
}

fn one_rack(weights: &[u32]) -> Vec<MetaServer> {
    let ids = 0..weights.len() as u32;
    ids.map(|id| server(id, at(0, 0, id), weights[id as usize])).collect()
}

fn disk(id: u32, server: u32, domains: FailureDomains) -> DiskInfo {
    DiskInfo {
        disk: DiskId(id),
        server: ServerId(server),
        domains,
        weight: Weight(100),
        pv_count: 400,
        pv_free: 400,
        placement_state: PlacementState::In,
        up: true,
        room: Room::Some,
    }
}

fn targets(servers: &[MetaServer]) -> Vec<Vec<ServerId>> {
    (0..PGS)
        .map(|pg| {
            let choice = target_members(PgId(pg), servers, RULES);
            choice.picks.into_iter().map(ServerId).collect()
        })
        .collect()
}

/// Slots that changed hands, and the servers that lost and won them.
fn moved(
    before: &[Vec<ServerId>],
    after: &[Vec<ServerId>],
) -> (usize, BTreeSet<ServerId>, BTreeSet<ServerId>) {
    let (mut slots, mut lost, mut won) = (0, BTreeSet::new(), BTreeSet::new());
    for (before, after) in before.iter().zip(after) {
        lost.extend(before.iter().filter(|server| !after.contains(server)));
        won.extend(after.iter().filter(|server| !before.contains(server)));
        slots += after.iter().filter(|server| !before.contains(server)).count();
    }
    (slots, lost, won)
}

#[test]
fn draws_are_the_logarithm_and_fixed_for_ever() {
    assert_eq!(draw(u64::MAX) >> 3, 0, "almost 1 has almost no straw");
    assert_eq!(draw(1 << 63), 1 << 32);
    assert_eq!(draw(1 << 62), 2 << 32);
    assert_eq!(draw(1), 64 << 32);
    assert_eq!(draw(0), draw(1));
    for n in 1..1000u64 {
        let hash = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let exact = -(hash as f64 / 2f64.powi(64)).log2();
        let drawn = draw(hash) as f64 / 2f64.powi(32);
        assert!((exact - drawn).abs() < 1e-8, "{hash:x}: {exact} but {drawn}");
    }
    assert_eq!(draw(0x0123_4567_89AB_CDEF), GOLDEN_DRAW);
}

const GOLDEN_DRAW: u64 = 33_559_934_675;

#[test]
fn placement_of_members_and_volumes_is_fixed_for_ever() {
    let servers: Vec<MetaServer> =
        (0..12).map(|id| server(id, at(0, id / 4, id / 2), 100 + id)).collect();
    let picks: Vec<Vec<u32>> =
        (0..6).map(|pg| target_members(PgId(pg * 700), &servers, RULES).picks).collect();
    assert_eq!(picks, GOLDEN_MEMBERS);
    let disks: Vec<DiskInfo> = (0..24).map(|id| disk(id, id / 2, at(0, id / 8, id / 4))).collect();
    let picks: Vec<Vec<u32>> = (0..6)
        .map(|lv| {
            let placed = place_lv(LvId(lv), &disks, COPIES).unwrap();
            placed.disks.into_iter().map(|disk| disk.0).collect()
        })
        .collect();
    assert_eq!(picks, GOLDEN_DISKS);
}

const GOLDEN_MEMBERS: [[u32; 3]; 6] =
    [[4, 0, 11], [1, 8, 6], [2, 10, 7], [7, 8, 1], [6, 11, 2], [6, 0, 9]];
const GOLDEN_DISKS: [[u32; 3]; 6] =
    [[7, 21, 11], [19, 9, 5], [8, 2, 16], [18, 2, 13], [21, 10, 7], [12, 1, 22]];

#[test]
fn a_fourth_meta_server_takes_a_quarter_and_nothing_moves_between_the_old_ones() {
    let before = targets(&one_rack(&[100; 3]));
    let after = targets(&one_rack(&[100; 4]));
    let (slots, _, won) = moved(&before, &after);
    let share = slots as f64 / f64::from(PGS * 3);
    assert!((share - 0.25).abs() < 0.02, "{share}");
    assert_eq!(won, BTreeSet::from([ServerId(3)]));
}

#[test]
fn a_fourth_rack_takes_a_quarter_and_nothing_moves_between_the_old_ones() {
    let racks = |count: u32| -> Vec<MetaServer> {
        (0..count * 2).map(|id| server(id, at(0, id / 2, id), 100)).collect()
    };
    let (slots, _, won) = moved(&targets(&racks(3)), &targets(&racks(4)));
    let share = slots as f64 / f64::from(PGS * 3);
    assert!((share - 0.25).abs() < 0.02, "{share}");
    assert_eq!(won, BTreeSet::from([ServerId(6), ServerId(7)]));
}

#[test]
fn removing_a_server_moves_only_its_own_slots() {
    let mut servers = one_rack(&[100, 150, 200, 100, 120]);
    let before = targets(&servers);
    let own = before.iter().filter(|members| members.contains(&ServerId(2))).count();
    servers[2].placement_state = PlacementState::Out;
    let (slots, lost, _) = moved(&before, &targets(&servers));
    assert_eq!((slots, lost), (own, BTreeSet::from([ServerId(2)])));
}

#[test]
fn a_server_that_is_away_keeps_its_slots() {
    let mut servers = one_rack(&[100; 5]);
    let before = targets(&servers);
    servers[1].placement_state = PlacementState::Away;
    assert_eq!(before, targets(&servers));
}

#[test]
fn weights_are_respected_within_two_points() {
    let weights = [100u32, 100, 200, 150, 120, 150, 100, 200, 100, 80];
    let servers = one_rack(&weights);
    let (mut slots, mut leads) = ([0f64; 10], [0f64; 10]);
    for members in targets(&servers) {
        members.iter().for_each(|server| slots[server.0 as usize] += 1.0);
        leads[members[0].0 as usize] += 1.0;
    }
    let whole: f64 = weights.iter().map(|w| f64::from(*w)).sum();
    for (at, weight) in weights.iter().enumerate() {
        let ideal = f64::from(*weight) / whole;
        assert!((slots[at] / f64::from(PGS * 3) - ideal).abs() < 0.02, "{at}: {slots:?}");
        assert!((leads[at] / f64::from(PGS) - ideal).abs() < 0.02, "{at}: {leads:?}");
    }
}

/// A data server says of its disk what it likes.
#[test]
fn a_disk_of_any_weight_and_room_is_placed_on() {
    let mut disks: Vec<DiskInfo> = (0..3).map(|id| disk(id, id, at(0, 0, id))).collect();
    let most = u32::MAX;
    disks[1] = DiskInfo { weight: Weight(most), pv_count: most, pv_free: most, ..disks[1] };
    let rules = CopyRules { copies: 3, min_copies: 2 };
    let placed = place_lv(LvId(1), &disks, rules).expect("there is room");
    assert_eq!(placed.disks.len(), 3);
    assert!(plan_moves(&[], &disks, rules, 10).is_empty());
}

#[test]
fn lvs_are_placed_by_weight_and_free_space() {
    let mut disks: Vec<DiskInfo> = (0..8).map(|id| disk(id, id, at(0, 0, id))).collect();
    disks[0].pv_free = 200;
    disks[1].weight = Weight(200);
    let mut used = [0f64; 8];
    for lv in 0..20_000 {
        let placed = place_lv(LvId(lv), &disks, CopyRules { copies: 1, min_copies: 1 }).unwrap();
        used[placed.disks[0].0 as usize] += 1.0;
    }
    for (disk, share) in [(0, 0.5), (1, 2.0), (2, 1.0)] {
        assert!((used[disk] / 20_000.0 - share / 8.5).abs() < 0.02, "{used:?}");
    }
}

#[test]
fn two_racks_share_three_members_although_neither_can_take_all() {
    let servers: Vec<MetaServer> = (0..8).map(|id| server(id, at(0, id / 4, id), 100)).collect();
    for pg in 0..500 {
        let choice = target_members(PgId(pg), &servers, RULES);
        assert_eq!(choice.level, Level::Machine);
        let racks: BTreeSet<u32> = choice.picks.iter().map(|id| id / 4).collect();
        assert_eq!(racks.len(), 2, "pg {pg}: {:?}", choice.picks);
    }
}

#[test]
fn a_cluster_of_three_hosts_goes_on_with_narrow_lvs_and_widens_them() {
    let mut disks: Vec<DiskInfo> = (0..6).map(|id| disk(id, id / 2, at(0, 0, id / 2))).collect();
    let full = place_lv(LvId(0), &disks, COPIES).unwrap();
    assert_eq!((full.level, full.narrow, full.disks.len()), (Level::Machine, false, 3));
    for disk in &mut disks[4..] {
        disk.placement_state = PlacementState::Away;
    }
    let narrow = place_lv(LvId(1), &disks, COPIES).unwrap();
    assert_eq!((narrow.level, narrow.narrow, narrow.disks.len()), (Level::Machine, true, 2));
    let copies: Vec<LvCopy> = narrow
        .disks
        .iter()
        .enumerate()
        .map(|(replica, disk)| LvCopy::whole(replica, *disk))
        .collect();
    let lvs = vec![(LvId(1), copies)];
    assert_eq!(plan_moves(&lvs, &disks, COPIES, 9), [], "the third host is still away");
    disks.iter_mut().for_each(|disk| disk.placement_state = PlacementState::In);
    let moves = plan_moves(&lvs, &disks, COPIES, 9);
    assert!(matches!(moves[..], [LvMove::Add(LvId(1), DiskId(4 | 5))]), "{moves:?}");
}

#[test]
fn one_machine_with_three_disks_uses_all_of_them() {
    let disks: Vec<DiskInfo> = (0..3).map(|id| disk(id, 0, at(0, 0, 0))).collect();
    let placed = place_lv(LvId(0), &disks, COPIES).unwrap();
    assert_eq!((placed.level, placed.narrow), (Level::Leaf, false));
}

#[test]
fn an_empty_pool_gives_no_lv() {
    let mut disks: Vec<DiskInfo> = (0..3).map(|id| disk(id, id, at(0, 0, id))).collect();
    disks[0].pv_free = 0;
    disks[1].placement_state = PlacementState::Out;
    assert_eq!(place_lv(LvId(0), &disks, COPIES), None);
}

#[test]
fn adding_data_servers_moves_no_replica() {
    let mut disks: Vec<DiskInfo> = (0..12).map(|id| disk(id, id, at(0, id / 4, id))).collect();
    let lvs = placed_lvs(&disks, 300);
    disks.extend((12..24).map(|id| disk(id, id, at(0, id / 4, id))));
    assert_eq!(plan_moves(&lvs, &disks, COPIES, 1000), []);
}

fn placed_lvs(disks: &[DiskInfo], count: u32) -> Vec<(LvId, Vec<LvCopy>)> {
    let copies = |lv: LvId| {
        let placed = place_lv(lv, disks, COPIES).expect("there is room");
        let disks = placed.disks.into_iter().enumerate();
        disks.map(|(replica, disk)| LvCopy::whole(replica, disk)).collect()
    };
    (0..count).map(LvId).map(|lv| (lv, copies(lv))).collect()
}

/// Carries out the planner's moves until it has none, and returns how many there were. No LV is ever left with
/// fewer good copies than it had, or than the rules want.
fn settle_lvs(lvs: &mut [(LvId, Vec<LvCopy>)], disks: &mut [DiskInfo]) -> usize {
    let mut count = 0;
    loop {
        let moves = plan_moves(lvs, disks, COPIES, 8);
        if moves.is_empty() {
            return count;
        }
        count += moves.len();
        assert!(count < 10_000, "the planner comes to an end");
        for step in moves {
            let (LvMove::Add(lv, _) | LvMove::Drop(lv, _)) = step;
            let copies = &mut lvs[lv.0 as usize].1;
            let is_there = |copy: &LvCopy| disks.iter().any(|disk| disk.disk == copy.disk);
            let good =
                |copies: &[LvCopy]| copies.iter().filter(|c| c.current && is_there(c)).count();
            let before = good(copies);
            match step {
                LvMove::Add(_, to) => {
                    let free = (0..).find(|n| copies.iter().all(|copy| copy.replica != *n));
                    let replica = free.unwrap();
                    copies.push(LvCopy::whole(replica, to));
                    let disk = disks.iter_mut().find(|disk| disk.disk == to).unwrap();
                    assert!(disk.placement_state == PlacementState::In && disk.pv_free > 0);
                    disk.pv_free -= 1;
                }
                LvMove::Drop(_, replica) => {
                    copies.retain(|copy| copy.replica != replica);
                    assert!(good(copies) >= before.min(COPIES.copies), "lv {lv} lost a good copy");
                }
            }
        }
    }
}

#[test]
fn draining_a_data_server_moves_its_replicas_and_no_others() {
    let mut disks: Vec<DiskInfo> = (0..12).map(|id| disk(id, id / 2, at(0, 0, id / 2))).collect();
    let mut lvs = placed_lvs(&disks, 300);
    let before = lvs.clone();
    disks
        .iter_mut()
        .filter(|d| d.server == ServerId(1))
        .for_each(|d| d.placement_state = PlacementState::Out);
    let on_it = |copy: &&LvCopy| matches!(copy.disk.0, 2 | 3);
    let own: usize = before.iter().map(|(_, copies)| copies.iter().filter(on_it).count()).sum();
    let moves = settle_lvs(&mut lvs, &mut disks);
    assert_eq!(moves, own * 2, "one added and one dropped for each");
    for ((_, before), (lv, after)) in before.iter().zip(&lvs) {
        assert!(after.iter().all(|copy| !on_it(&copy)), "lv {lv}");
        let stays = before.iter().filter(|copy| !on_it(copy));
        assert!(stays.into_iter().all(|copy| after.contains(copy)), "lv {lv}");
    }
}

#[test]
fn a_replaced_disk_is_rebuilt_from_the_others_and_lvs_with_one_copy_come_first() {
    let mut disks: Vec<DiskInfo> = (0..6).map(|id| disk(id, id, at(0, 0, id))).collect();
    let mut lvs = placed_lvs(&disks, 60);
    disks.retain(|disk| disk.disk != DiskId(2) && disk.disk != DiskId(3));
    let twice =
        |copies: &[LvCopy]| copies.iter().filter(|c| matches!(c.disk.0, 2 | 3)).count() == 2;
    let doubly: BTreeSet<LvId> =
        lvs.iter().filter(|(_, copies)| twice(copies)).map(|(lv, _)| *lv).collect();
    assert!(!doubly.is_empty());
    let first: BTreeSet<LvId> = plan_moves(&lvs, &disks, COPIES, doubly.len())
        .into_iter()
        .map(|(LvMove::Add(lv, _) | LvMove::Drop(lv, _))| lv)
        .collect();
    assert_eq!(first, doubly);
    disks.push(disk(6, 2, at(0, 0, 2)));
    settle_lvs(&mut lvs, &mut disks);
    for (lv, copies) in &lvs {
        let places: BTreeSet<DiskId> = copies.iter().map(|copy| copy.disk).collect();
        assert_eq!((copies.len(), places.len()), (3, 3), "lv {lv}");
    }
}

/// A PG that carries out the steps it is told.
#[derive(Debug, Clone)]
struct Acting {
    members: Vec<ServerId>,
    learners: BTreeMap<ServerId, bool>,
}

/// Steps every PG until none has a step left; checks each step. Returns the members that were added.
fn settle_pgs(pgs: &mut [Acting], servers: &[MetaServer]) -> usize {
    let placement_state = |id: ServerId| {
        servers
            .iter()
            .find(|s| s.server == id)
            .map_or(PlacementState::Out, |server| server.placement_state)
    };
    let mut added = 0;
    for (id, pg) in pgs.iter_mut().enumerate() {
        let target = target_members(PgId(id as u32), servers, RULES).picks;
        let target: Vec<ServerId> = target.into_iter().map(ServerId).collect();
        for step in 0.. {
            assert!(step < 50, "pg {id} comes to rest: {pg:?}, target {target:?}");
            let qualified: BTreeSet<ServerId> = pg.members.iter().copied().collect();
            let acting =
                ActingPg { members: &pg.members, qualified: &qualified, learners: &pg.learners };
            let Some(step) = next_step(acting, &target, placement_state, RULES) else { break };
            let before = pg.members.len();
            match step {
                PgStep::AddLearner(server) => {
                    assert_eq!(placement_state(server), PlacementState::In);
                    assert!(!pg.members.contains(&server) && pg.learners.is_empty());
                    pg.learners.insert(server, true);
                    added += 1;
                }
                PgStep::DropLearner(server) => assert!(pg.learners.remove(&server).is_some()),
                PgStep::Admit(server) => {
                    assert!(pg.learners.remove(&server).is_some());
                    pg.members.push(server);
                }
                PgStep::Remove(server) => {
                    assert_ne!(pg.members[0], server, "a primary is followed by another first");
                    pg.members.retain(|member| *member != server);
                    assert!(pg.members.len() >= RULES.members.min(before));
                }
                PgStep::Lead(server) => {
                    let at = pg.members.iter().position(|member| *member == server).unwrap();
                    pg.members.swap(0, at);
                }
            }
        }
    }
    added
}

fn acting_as_wanted(servers: &[MetaServer], pgs: u32) -> Vec<Acting> {
    let target = |pg| target_members(PgId(pg), servers, RULES).picks;
    let members = |pg| target(pg).into_iter().map(ServerId).collect();
    (0..pgs).map(|pg| Acting { members: members(pg), learners: BTreeMap::new() }).collect()
}

#[test]
fn draining_a_meta_server_empties_it_step_by_step() {
    let mut servers = one_rack(&[100; 5]);
    let mut pgs = acting_as_wanted(&servers, 256);
    servers[0].placement_state = PlacementState::Out;
    let own = pgs.iter().filter(|pg| pg.members.contains(&ServerId(0))).count();
    assert_eq!(settle_pgs(&mut pgs, &servers), own);
    for pg in &pgs {
        assert!(pg.members.len() == 3 && !pg.members.contains(&ServerId(0)), "{pg:?}");
    }
}

#[test]
fn a_member_with_no_replacement_stays() {
    let mut servers = one_rack(&[100; 3]);
    let mut pgs = acting_as_wanted(&servers, 16);
    servers[0].placement_state = PlacementState::Out;
    assert_eq!(settle_pgs(&mut pgs, &servers), 0);
    assert!(pgs.iter().all(|pg| pg.members.len() == 3));
}

#[test]
fn a_view_that_is_not_activated_holds_the_next_step_back() {
    let members = [ServerId(0), ServerId(1), ServerId(2), ServerId(3)];
    let qualified = BTreeSet::from([ServerId(0), ServerId(1), ServerId(2)]);
    let learners = BTreeMap::new();
    let acting = ActingPg { members: &members, qualified: &qualified, learners: &learners };
    let target = [ServerId(1), ServerId(2), ServerId(3)];
    assert_eq!(next_step(acting, &target, |_| PlacementState::In, RULES), None);
    let qualified: BTreeSet<ServerId> = members.into_iter().collect();
    let acting = ActingPg { qualified: &qualified, ..acting };
    // The surplus member leads: another takes over before it goes.
    let step = next_step(acting, &target, |_| PlacementState::In, RULES);
    assert_eq!(step, Some(PgStep::Lead(ServerId(1))));
}

#[test]
fn primaries_come_to_be_spread_evenly() {
    let servers = one_rack(&[100, 100, 200]);
    let mut pgs = acting_as_wanted(&servers, 256);
    for pg in &mut pgs {
        pg.members.sort_unstable();
    }
    let learners = BTreeMap::new();
    for _ in 0..200 {
        let qualified: Vec<BTreeSet<ServerId>> =
            pgs.iter().map(|pg| pg.members.iter().copied().collect()).collect();
        let groups: Vec<(PgId, ActingPg<'_>)> = pgs
            .iter()
            .zip(&qualified)
            .enumerate()
            .map(|(id, (pg, qualified))| {
                let acting = ActingPg { members: &pg.members, qualified, learners: &learners };
                (PgId(id as u32), acting)
            })
            .collect();
        let moves = balance_primaries(&groups, &servers, 4);
        if moves.is_empty() {
            break;
        }
        for (pg, to) in moves {
            let members = &mut pgs[pg.0 as usize].members;
            let at = members.iter().position(|member| *member == to).unwrap();
            members.swap(0, at);
        }
    }
    let led = |id| pgs.iter().filter(|pg| pg.members[0] == ServerId(id)).count();
    assert_eq!((led(0), led(1), led(2)), (64, 64, 128));
}

fn any_cluster() -> impl Strategy<Value = Vec<MetaServer>> {
    let one = (0..2u16, 0..4u32, 0..4u32, 0..400u32, 0..10u32);
    proptest::collection::vec(one, 1..16).prop_map(|drawn| {
        let with_id = drawn.into_iter().enumerate();
        with_id
            .map(|(id, (region, rack, machine, weight, placement_state))| MetaServer {
                placement_state: match placement_state {
                    0 => PlacementState::Out,
                    1 => PlacementState::Away,
                    _ => PlacementState::In,
                },
                ..server(id as u32, at(region, rack, machine), weight)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn picks_share_no_domain_that_they_need_not_share(
        servers in any_cluster(), pg in 0..PGS, wanted in 1..5usize,
    ) {
        let rules = GroupRules { members: wanted, min_members: 1 };
        let choice = target_members(PgId(pg), &servers, rules);
        let can = |s: &&MetaServer| s.placement_state != PlacementState::Out && s.weight > Weight(0);
        let able: Vec<&MetaServer> = servers.iter().filter(can).collect();
        prop_assert_eq!(choice.picks.len(), wanted.min(able.len()));
        let domain = |s: &MetaServer, level: Level| {
            let d = s.domains;
            match level {
                Level::Region => (d.region, RackId(0), MachineId(0), 0),
                Level::Rack => (d.region, d.rack, MachineId(0), 0),
                Level::Machine => (d.region, d.rack, d.machine, 0),
                Level::Leaf => (d.region, d.rack, d.machine, s.server.0),
            }
        };
        for level in Level::ALL {
            let there: BTreeSet<_> = able.iter().map(|s| domain(s, level)).collect();
            let used: BTreeSet<_> =
                choice.picks.iter().map(|id| domain(&servers[*id as usize], level)).collect();
            if there.len() >= wanted {
                prop_assert_eq!(used.len(), wanted, "level {:?}", level);
                prop_assert!(choice.level <= level);
            }
        }
    }

    #[test]
    fn any_change_of_a_cluster_is_settled_in_safe_steps(
        before in any_cluster(), after in any_cluster(),
    ) {
        let mut pgs = acting_as_wanted(&before, 16);
        pgs.retain(|pg| pg.members.len() >= RULES.min_members);
        settle_pgs(&mut pgs, &after);
    }

    #[test]
    fn a_new_server_only_attracts(before in any_cluster(), domains in (0..2u16, 0..4u32, 0..4u32)) {
        let mut after = before.clone();
        let new = ServerId(before.len() as u32);
        after.push(server(new.0, at(domains.0, domains.1, domains.2), 100));
        for pg in (0..32).map(PgId) {
            let old = target_members(pg, &before, RULES);
            let next = target_members(pg, &after, RULES);
            // A wider level, or shares of the wider domains, may change with the domains there are.
            let same = |level| domains_at(&before, level) == domains_at(&after, level);
            if old.level == next.level && Level::ALL[..3].iter().all(|level| same(*level)) {
                let strange = next.picks.iter().find(|id| **id != new.0 && !old.picks.contains(id));
                prop_assert_eq!(strange, None, "{:?} {:?}", old, next);
            }
        }
    }
}

fn domains_at(servers: &[MetaServer], level: Level) -> usize {
    let counted = servers.iter().filter(|s| s.placement_state != PlacementState::Out);
    let leaves: Vec<Leaf> =
        counted.map(|s| Leaf { id: s.server.0, domains: s.domains, weight: s.weight }).collect();
    domains::domain_count(&leaves, level, usize::MAX)
}
