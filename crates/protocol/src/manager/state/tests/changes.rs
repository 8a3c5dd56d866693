//! Changes of a map: a map that takes them becomes the very map that they were taken from.

use larder_types::codec::encode as encoded;
use larder_types::limits::PG_COUNT_MAX;

use super::*;
use crate::limits::RECENT_PLACES_MAX;

/// Maps that are shown one after the other, and what changed between them.
pub(super) struct Showing {
    pub(super) recent: RecentChanges,
    pub(super) shown: Topology,
}

impl Showing {
    pub(super) fn of(map: &Topology) -> Self {
        let mut showing = Self { recent: RecentChanges::default(), shown: Topology::default() };
        showing.show(map);
        showing
    }

    pub(super) fn show(&mut self, map: &Topology) {
        self.recent.take(MapStep::between(&self.shown, map));
        self.shown = map.clone();
    }

    /// Has a map of an earlier version take the changes since.
    fn changes_since(&self, map: &Topology) -> Option<MapChanges> {
        let changes = self.recent.since(map.version, &self.shown, true)?;
        Some(MapChanges::decode(&changes.encode()).unwrap())
    }
}

fn with_changes(map: &Topology, changes: MapChanges) -> Result<(Topology, u64), BadChanges> {
    map.with_changes(map.records_sum(), changes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn changes_make_the_latest_map_of_any_earlier_one(
        commands in proptest::collection::vec((any_command(), any::<bool>()), 1..80),
    ) {
        let mut log = Log::cluster(5);
        for pg in 0..4 {
            log.view(pg, 0, &[pg, (pg + 1) % 5, (pg + 2) % 5]).unwrap();
        }
        let mut showing = Showing::of(&log.0);
        let mut maps = vec![(log.0.clone(), true)];
        for (command, is_shown) in commands {
            let _ = log.apply(command);
            if log.0.version > maps.last().unwrap().0.version {
                maps.push((log.0.clone(), is_shown));
            }
            if is_shown && log.0.version > showing.shown.version {
                showing.show(&log.0);
                maps.last_mut().unwrap().1 = true;
            }
        }
        let latest = showing.shown.clone();
        for (map, was_shown) in &maps {
            let changes_since = showing.changes_since(map);
            prop_assert_eq!(changes_since.is_some(), map.version < latest.version);
            let Some(changes) = changes_since else { continue };
            match with_changes(map, changes) {
                // Something changed and changed back between two that were shown.
                Err(BadChanges::Sum) if !was_shown => {}
                applied => prop_assert_eq!(applied, Ok((latest.clone(), latest.records_sum()))),
            }
        }
    }
}

#[test]
fn a_map_from_between_two_that_were_shown_takes_their_changes_or_is_found_out() {
    let mut log = Log::cluster(2);
    let mut showing = Showing::of(&log.0);
    log.done(Command::SetWeight(ServerId(0), Weight(7)));
    let between = log.0.clone();
    log.done(Command::SetWeight(ServerId(1), Weight(8)));
    showing.show(&log.0);
    let changes = showing.changes_since(&between).unwrap();
    assert_eq!(with_changes(&between, changes).unwrap().0, log.0);
    log.done(Command::SetWeight(ServerId(0), Weight(9)));
    let between = log.0.clone();
    log.done(Command::SetWeight(ServerId(0), Weight(7)));
    showing.show(&log.0);
    let changes = showing.changes_since(&between).unwrap();
    assert_eq!(with_changes(&between, changes), Err(BadChanges::Sum));
}

/// A map of 1,000 servers of six disks with so many volumes of three copies.
fn large(lvs: u32) -> Topology {
    let (servers, disks) = (1_000, 6);
    let mut log = Log::cluster(servers);
    for server in 0..servers {
        for _ in 0..disks {
            log.done(Command::AddDisk(ServerId(server), Weight(100), lvs / 1_000));
        }
    }
    let mut map = log.0;
    // Not the disk that each has from the first.
    let all = map.servers.iter().flat_map(|(id, it)| it.disks.iter().map(|disk| (*id, disk)));
    let given: Vec<(ServerId, DiskId)> =
        all.filter(|(_, (_, it))| it.pv_count > 3).map(|(id, (disk, _))| (id, *disk)).collect();
    let lv = |id: u32| {
        let replica = |copy: u32| {
            let (server, disk) = given[((3 * id + copy) as usize) % given.len()];
            let record = map.servers.get_mut(&server).unwrap().disks.get_mut(&disk).unwrap();
            let pv = record.next_pv;
            record.next_pv = PvId(pv.0 + 1);
            ReplicaRecord { server, disk, pv, state: ReplicaState::Current }
        };
        let replicas = (0..3).map(replica).collect();
        LvRecord { pg: PgId(id % 4), blocks: 1 << 18, width: 3, replicas, state: LvState::Open }
    };
    let lvs = (0..lvs).map(lv).collect();
    map.lvs = lvs;
    map
}

#[test]
fn a_change_of_one_volume_is_short_however_large_the_cluster_is() {
    let before = large(300_000);
    let mut showing = Showing::of(&before);
    let mut log = Log(before.clone());
    let (server, disks) = before.servers.last_key_value().unwrap();
    let disk = *disks.disks.keys().last().unwrap();
    let closes = Command::SetLvReadOnly(LvId(7), true);
    let adds = Command::AddReplica(LvId(8), *server, disk);
    for (command, most) in [(closes, 128), (adds, 512)] {
        let before = log.0.clone();
        log.done(command.clone());
        showing.show(&log.0);
        let changes = showing.changes_since(&before).unwrap();
        let (short, whole) = (changes.encode().len(), log.0.encode().len());
        assert!(short < most && whole > 7 << 20, "{command:?}: {short} bytes of {whole}");
        assert_eq!(with_changes(&before, changes).unwrap().0, log.0);
    }
}

#[test]
fn changes_of_another_map_or_that_make_none_are_refused() {
    let mut log = Log::cluster(3);
    let first = log.0.clone();
    let mut showing = Showing::of(&first);
    log.lv(&[0, 1, 2]).unwrap();
    let second = log.0.clone();
    showing.show(&second);
    let changes = showing.changes_since(&first).unwrap();
    let other = with_changes(&second, changes.clone());
    assert_eq!(other, Err(BadChanges::OtherMap(first.version)));
    let old = MapChanges { rest: first.encode(), ..changes.clone() };
    assert_eq!(with_changes(&first, old), Err(BadChanges::OtherMap(first.version)));
    let wrong = MapChanges { sum: changes.sum ^ 1, ..changes.clone() };
    assert_eq!(with_changes(&first, wrong), Err(BadChanges::Sum));
    // The map that has them was another one, with the same version.
    let diverged = Topology { tokens: Default::default(), ..first.clone() };
    assert_eq!(with_changes(&diverged, changes.clone()), Err(BadChanges::Sum));
    let skips = MapChanges { lvs: vec![(LvId(1), second.lvs[0].clone())], ..changes };
    assert_eq!(with_changes(&first, skips), Err(BadChanges::Gap));
    // Two volumes with one place.
    let mut doubled = Showing::of(&first);
    let mut third = second.clone();
    third.lvs.push(third.lvs[0].clone());
    third.version = MapVersion(third.version.0 + 1);
    doubled.show(&third);
    let refused = with_changes(&first, doubled.changes_since(&first).unwrap());
    assert!(matches!(refused, Err(BadChanges::Contradiction(_))), "{refused:?}");
    // A change of a server leaves a volume that did not change without its place.
    let mut fourth = second.clone();
    fourth.servers.get_mut(&ServerId(1)).unwrap().disks.clear();
    fourth.version = MapVersion(fourth.version.0 + 1);
    showing.show(&fourth);
    let refused = with_changes(&second, showing.changes_since(&second).unwrap());
    assert!(matches!(refused, Err(BadChanges::Contradiction(_))), "{refused:?}");
    // A volume takes the place of one that did not change.
    let mut fifth = Log(second.clone());
    fifth.done(Command::LvCreated(LvId(0)));
    let before = fifth.0.clone();
    fifth.0.lvs.push(before.lvs[0].clone());
    fifth.0.version = MapVersion(before.version.0 + 1);
    let mut showing = Showing::of(&before);
    showing.show(&fifth.0);
    let refused = with_changes(&before, showing.changes_since(&before).unwrap());
    assert!(matches!(refused, Err(BadChanges::Contradiction(_))), "{refused:?}");
}

#[test]
fn what_changed_too_long_ago_is_not_known_and_what_changes_then_is() {
    let mut log = Log(Topology::default());
    log.done(Command::Found(ClusterId(9), Settings { pg_count: PG_COUNT_MAX, ..SETTINGS }));
    log.done(Command::AddToken(HASH, 1000));
    assert!(log.0.pgs.len() + 1 > RECENT_PLACES_MAX);
    let first = log.0.clone();
    let mut showing = Showing::of(&first);
    for id in 0..3 {
        let token = (id > 0).then_some((HASH, 10));
        log.done(Command::AddServer(new_server(&format!("s{id}")), token));
        showing.show(&log.0);
    }
    let changes = showing.changes_since(&first).unwrap();
    assert_eq!(with_changes(&first, changes).unwrap().0, log.0);
    assert_eq!(showing.changes_since(&Topology::default()), None);
    // All groups change.
    let before = log.0.clone();
    log.0.pgs.iter_mut().for_each(|pg| pg.target = ids(&[0]));
    log.done(Command::SetWeight(ServerId(0), Weight(3)));
    showing.show(&log.0);
    assert_eq!(showing.changes_since(&before), None);
    let after = log.0.clone();
    log.done(Command::SetWeight(ServerId(0), Weight(4)));
    showing.show(&log.0);
    let changed = with_changes(&after, showing.changes_since(&after).unwrap());
    assert_eq!(changed, Ok((log.0.clone(), log.0.records_sum())));
}

/// Has these groups change, and shows the map that has it.
fn change_groups(showing: &mut Showing, groups: std::ops::Range<usize>) -> Topology {
    let mut map = showing.shown.clone();
    for pg in &mut map.pgs[groups] {
        pg.target = if pg.target.is_empty() { ids(&[0]) } else { ids(&[]) };
    }
    map.version = MapVersion(map.version.0 + 1);
    showing.show(&map);
    map
}

#[test]
fn records_that_change_again_and_again_drive_no_others_out() {
    let (mut log, groups) = (Log(Topology::default()), 4096);
    log.done(Command::Found(ClusterId(9), Settings { pg_count: groups as u32, ..SETTINGS }));
    log.done(Command::AddServer(new_server("s0"), None));
    let first = log.0.clone();
    let mut showing = Showing::of(&first);
    log.done(Command::SetWeight(ServerId(0), Weight(3)));
    showing.show(&log.0);
    for _ in 0..RECENT_PLACES_MAX / groups + 2 {
        let before = showing.shown.clone();
        let map = change_groups(&mut showing, 0..groups);
        for known in [&first, &before] {
            let changed = with_changes(known, showing.changes_since(known).unwrap());
            assert_eq!(changed, Ok((map.clone(), map.records_sum())));
        }
    }
}

#[test]
fn the_oldest_changes_are_forgotten_first() {
    let mut log = Log(Topology::default());
    log.done(Command::Found(ClusterId(9), Settings { pg_count: PG_COUNT_MAX, ..SETTINGS }));
    log.done(Command::AddServer(new_server("s0"), None));
    let first = log.0.clone();
    let mut showing = Showing::of(&first);
    let (half, all) = (RECENT_PLACES_MAX / 2, first.pgs.len());
    let second = change_groups(&mut showing, 0..half);
    let third = change_groups(&mut showing, half..all);
    assert!(showing.changes_since(&first).is_some());
    log.0 = third.clone();
    log.done(Command::SetWeight(ServerId(0), Weight(3)));
    showing.show(&log.0);
    assert_eq!(showing.changes_since(&first), None, "one more than are remembered");
    for known in [&second, &third] {
        let changed = with_changes(known, showing.changes_since(known).unwrap());
        assert_eq!(changed, Ok((log.0.clone(), log.0.records_sum())));
    }
}

#[test]
fn changes_have_secrets_for_those_alone_that_may_know_them() {
    let mut log = Log::cluster(1);
    let before = log.0.clone();
    let mut showing = Showing::of(&before);
    log.done(Command::RotateRoot(0, root::pair("new"), Keep::Nothing));
    showing.show(&log.0);
    for has_secrets in [true, false] {
        let changes = showing.recent.since(before.version, &log.0, has_secrets).unwrap();
        let root = with_changes(&before, changes).unwrap().0.root.unwrap();
        let own = log.0.root.clone().unwrap();
        assert_eq!(root, if has_secrets { own } else { own.without_secrets() });
    }
}

#[test]
fn changes_are_encoded_as_ever() {
    let mut log = Log::cluster(2);
    let before = log.0.clone();
    let mut showing = Showing::of(&before);
    log.view(0, 0, &[0, 1]).unwrap();
    log.lv(&[0, 1]).unwrap();
    log.done(Command::CreateBucket(BucketName::new("abc").unwrap(), None, 11));
    log.done(Command::OpenSession(SessionId(300), ServerId(0), BootId(1)));
    log.done(Command::OpenSession(SessionId(301), ServerId(0), BootId(1)));
    log.done(Command::CloseSession(SessionId(301)));
    log.done(Command::RevokeToken(TokenId(0)));
    showing.show(&log.0);
    let changes = showing.changes_since(&before).unwrap();
    assert_eq!(encoded(&changes), changes.encode());
    let hex: String = changes.encode().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, include_str!("../golden_changes.hex").trim_end());
}

#[test]
fn changes_with_other_bytes_are_refused_or_make_a_sound_map() {
    let mut log = Log::cluster(3);
    let before = log.0.clone();
    let mut showing = Showing::of(&before);
    log.view(0, 0, &[0, 1, 2]).unwrap();
    log.lv(&[0, 1, 2]).unwrap();
    showing.show(&log.0);
    let bytes = showing.changes_since(&before).unwrap().encode();
    let mut taken = 0;
    for (at, bit) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut spoiled = bytes.clone();
        spoiled[at] ^= 1 << bit;
        let Ok(mut changes) = MapChanges::decode(&spoiled) else { continue };
        // As a manager in other hands would sum it up.
        for sum in [changes.sum, log.0.records_sum()] {
            changes.sum = sum;
            if let Ok((map, _)) = with_changes(&before, changes.clone()) {
                assert_eq!(map.contradiction(), None);
                taken += 1;
            }
        }
    }
    assert!(taken > 0, "the part that has no sum may differ");
}
