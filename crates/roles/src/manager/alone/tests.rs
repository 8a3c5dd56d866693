use super::*;

fn map() -> Map {
    let bucket = |id, name: &str, epoch, state, location: Option<&str>| {
        let name = BucketName::new(name).unwrap();
        let (created_ms, location) = (1_795_000_000_000, location.map(str::to_owned));
        let new = BucketRecord::new(id, name, created_ms);
        let record = BucketRecord { epoch, state, location, ..new };
        (record.name.clone(), record)
    };
    let place = |server, disk, pv| ReplicaPlace {
        server: ServerId(server),
        disk: DiskId(disk),
        pv: PvId(pv),
    };
    Map {
        cluster: 0x0102_0304_0506_0708,
        version: 300,
        pgs: vec![
            PgRecord { view: View(7), members: vec![ServerId(0)] },
            PgRecord { view: View(130), members: vec![ServerId(1), ServerId(0)] },
        ],
        lv_blocks: 16_384,
        pv_count_max: 512,
        lvs: vec![LvRecord {
            lv: LvId(0),
            pg: PgId(1),
            blocks: 16_384,
            replicas: vec![place(1, 2, 3), place(4, 5, 6)],
        }],
        buckets: BTreeMap::from([
            bucket(BucketId(1), "photos", Epoch(1), BucketState::Live, Some("eu-north-1")),
            bucket(BucketId(2), "attic", Epoch(9), BucketState::Deleting, None),
        ]),
        next_bucket: BucketId(3),
    }
}

fn golden() -> Vec<u8> {
    let text = include_str!("../../../tests/golden/map.hex");
    let digits = text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
    digits.map(|digits| u8::from_str_radix(digits, 16).unwrap()).collect()
}

/// A disk that holds a map file of these bytes.
fn disk_with(bytes: &[u8]) -> Arc<dyn Disk> {
    let disk = larder_env::SimDisk::new(1, 1 << 20);
    disk.create_dir(MANAGER_DIR).unwrap();
    replace_file(&*disk, MANAGER_DIR, MAP_FILE, bytes).unwrap();
    disk
}

#[test]
fn the_map_keeps_its_golden_bytes() {
    let bytes = map_bytes(&map());
    assert!(
        bytes == golden(),
        "the encoding of the topology map has changed: stores would become unreadable. Keep \
         version 1 as it was and write a new version beside it. It is now:\n{bytes:02x?}"
    );
    assert_eq!(load(&*disk_with(&bytes)).unwrap(), Some(map()));
}

#[test]
fn a_flipped_bit_anywhere_makes_the_map_unusable() {
    let bytes = golden();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        let loaded = load(&*disk_with(&flipped));
        assert!(matches!(loaded, Err(LocalManagerError::Unusable(_))), "byte {at}: {loaded:?}");
    }
    for end in 0..bytes.len() {
        let loaded = load(&*disk_with(&bytes[..end]));
        assert!(matches!(loaded, Err(LocalManagerError::Unusable(_))), "cut at {end}: {loaded:?}");
    }
}

#[test]
fn a_map_of_a_later_release_is_refused_with_the_reason() {
    let mut bytes = golden();
    bytes[16] = 2;
    let sum = xxh3_64(&bytes[16..]).to_le_bytes();
    bytes[8..16].copy_from_slice(&sum);
    let error = load(&*disk_with(&bytes)).unwrap_err().to_string();
    assert!(error.contains("format version 2") && error.contains("newer release"), "{error}");
}

fn manager() -> (LocalManager, BucketName) {
    let disk = larder_env::SimDisk::new(1, 1 << 20);
    let genesis = Genesis { pg_count: 2, lv_blocks: 16_384, pv_count_max: 2 };
    let manager =
        LocalManager::open(disk, RegionId::OWN, || Ok::<_, LocalManagerError>(genesis)).unwrap();
    let name = BucketName::new("photos").unwrap();
    manager.create_bucket(&name, (None, None), 1).unwrap();
    (manager, name)
}

#[test]
fn a_deletion_ends_only_what_it_began() {
    let (manager, name) = manager();
    let first = manager.begin_deletion(&name).unwrap();
    let second = manager.begin_deletion(&name).unwrap();
    assert!(manager.end_deletion(&first, true).is_err(), "the second has taken over");
    manager.end_deletion(&second, true).unwrap();
    let successor = manager.create_bucket(&name, (None, None), 2).unwrap();
    assert!(manager.end_deletion(&second, true).is_err());
    assert_eq!(manager.map().bucket(&name), Some(&successor), "a successor is another bucket");
    assert_ne!(successor.id, second.id);
}

#[test]
fn a_deletion_does_not_outlive_its_server() {
    let (manager, name) = manager();
    let marked = manager.begin_deletion(&name).unwrap();
    assert_eq!(manager.map().live_epoch(marked.id), None);
    let map = manager.begin_views().unwrap();
    assert!(map.live_epoch(marked.id) > Some(marked.epoch));
    assert!(map.map.pgs.iter().all(|pg| pg.view == View(1)));
}

#[test]
fn the_pool_ends() {
    let (manager, _) = manager();
    assert_eq!(manager.draw_lvs(&[PgId(1)]).unwrap().len(), 1);
    let before = manager.map().map.version;
    let drawn = manager.draw_lvs(&[PgId(1), PgId(0)]).unwrap();
    assert_eq!(drawn.len(), 1, "one was left");
    assert_eq!(drawn[0].pg, PgId(1));
    assert_eq!(manager.draw_lvs(&[PgId(0)]).unwrap(), []);
    assert_eq!(manager.map().map.version, before + 1, "nothing was drawn by the last");
}

#[test]
fn lvs_for_many_groups_are_drawn_by_one_change() {
    let (manager, _) = manager();
    let before = manager.map().map.version;
    let drawn = manager.draw_lvs(&[PgId(1), PgId(0)]).unwrap();
    let given: Vec<_> = drawn.iter().map(|record| (record.lv, record.pg)).collect();
    assert_eq!(given, [(LvId(0), PgId(1)), (LvId(1), PgId(0))]);
    let map = manager.map();
    assert_eq!((map.map.version, &map.map.lvs), (before + 1, &drawn));
}

/// One rule that takes about so many bytes.
fn rules(bytes: usize) -> CorsRules {
    let rule = larder_types::CorsRule {
        id: None,
        methods: vec![larder_types::CorsMethod::Get],
        origins: vec!["o".repeat(bytes)],
        headers: Vec::new(),
        exposed: Vec::new(),
        max_age_s: None,
    };
    CorsRules::new(vec![rule]).unwrap()
}

#[test]
fn cors_rules_are_in_the_file_until_they_are_removed_and_leave_the_epoch() {
    let (manager, name) = manager();
    let record = || manager.map().bucket(&name).cloned().unwrap();
    manager.set_cors(&name, Some(rules(9))).unwrap();
    assert_eq!((record().cors, record().epoch), (Some(rules(9)), Epoch(1)));
    assert_eq!(load(&*manager.disk).unwrap().unwrap(), manager.map().map);
    manager.set_cors(&name, None).unwrap();
    assert_eq!(load(&*manager.disk).unwrap().unwrap().buckets[&name].cors, None);
    let other = BucketName::new("none").unwrap();
    assert!(matches!(manager.set_cors(&other, None), Err(LocalManagerError::NoSuchBucket)));
}

#[test]
fn the_cors_rules_of_all_buckets_of_a_node_are_bounded() {
    let disk = larder_env::SimDisk::new(1, 1 << 24);
    let genesis = Genesis { pg_count: 2, lv_blocks: 16_384, pv_count_max: 2 };
    let manager =
        LocalManager::open(disk, RegionId::OWN, || Ok::<_, LocalManagerError>(genesis)).unwrap();
    let longest = || rules(larder_types::limits::CORS_BYTES_MAX - 16);
    let fitting = CORS_ALL_BYTES_MAX / longest().bytes();
    let set = |number| {
        let name = BucketName::new(&format!("bucket-{number}")).unwrap();
        manager.create_bucket(&name, (None, None), 1).unwrap();
        manager.set_cors(&name, Some(longest()))
    };
    (0..fitting).for_each(|number| set(number).unwrap());
    assert!(matches!(set(fitting), Err(LocalManagerError::TooMuchCors)));
}
