use larder_types::MapVersion;

use super::*;
use crate::limits::TIMELINES_MAX;

#[test]
fn a_map_reaches_the_marks_of_all_before_it_and_none_of_those_after_it() {
    let mut log = Log::cluster(2);
    let mut maps = vec![log.0.clone()];
    let name = BucketName::new("abc").unwrap();
    log.done(Command::CreateBucket(name, None, 11));
    maps.push(log.0.clone());
    log.view(0, 0, &[0, 1]).unwrap();
    maps.push(log.0.clone());
    log.lv(&[0, 1]).unwrap();
    maps.push(log.0.clone());
    log.done(Command::ServerStarted(ServerId(0), BootId(77), Vec::new(), Vec::new()));
    maps.push(log.0.clone());
    for (at, map) in maps.iter().enumerate() {
        for (before, other) in maps.iter().enumerate() {
            let is_reached = other.map_mark().unwrap().is_reached_by(map);
            assert_eq!(is_reached, before <= at, "mark {before} by map {at}");
        }
    }
}

#[test]
fn a_map_of_an_older_copy_that_went_on_reaches_no_mark_of_what_it_lacks() {
    let mut log = Log::cluster(2);
    let started = |run| Command::ServerStarted(ServerId(0), BootId(run), Vec::new(), Vec::new());
    let create = |name: &str, at| Command::CreateBucket(BucketName::new(name).unwrap(), None, at);
    let go_on = |copy: &mut Log, run: u64| {
        // Numbers grow past those of the mark.
        copy.done(create("first", 12));
        for number in 0..20 {
            copy.done(create(&format!("bucket-{number}"), 13));
        }
        copy.done(started(run));
        copy.view(0, 0, &[0, 1]).unwrap();
        copy.lv(&[0, 1]).unwrap();
    };
    let mut copies = [Log(log.0.clone()), Log(log.0.clone())];
    log.done(create("photos", 11));
    let of_bucket = log.0.map_mark().unwrap();
    go_on(&mut copies[0], 5);
    assert!(!of_bucket.is_reached_by(&copies[0].0), "another bucket has its id");
    log.done(Command::BeginDeletion(BucketName::new("photos").unwrap()));
    log.done(Command::EndDeletion(BucketName::new("photos").unwrap(), Epoch(2), true));
    assert!(of_bucket.is_reached_by(&log.0), "it may be deleted");
    log.done(started(6));
    let of_run = log.0.map_mark().unwrap();
    go_on(&mut copies[1], 7);
    assert!(!of_run.is_reached_by(&copies[1].0), "a run is missing");
    for run in 8..12 {
        log.done(started(run));
        assert!(of_run.is_reached_by(&log.0), "it is among those that ended");
    }
    log.done(Command::RemoveServer(ServerId(1)));
    assert!(of_run.is_reached_by(&log.0), "a server was removed");
    let of_another = MapMark { cluster: ClusterId(99), ..of_run.clone() };
    assert!(!of_another.is_reached_by(&log.0));
    assert!(!of_run.is_reached_by(&Topology::default()), "it is not founded");
}

#[test]
fn a_mark_of_an_earlier_release_is_read() {
    let next =
        NextIds { server: ServerId(2), disk: DiskId(3), bucket: BucketId(300), token: TokenId(4) };
    let mark = MapMark {
        cluster: ClusterId(5),
        version: MapVersion(300),
        next,
        volumes: 6,
        view: View(7),
        runs: vec![(ServerId(1), BootId(300))],
        last_bucket: Some((BucketId(8), 9)),
        timeline: None,
    };
    let bytes = [1, 5, 0xac, 2, 2, 3, 0xac, 2, 4, 6, 7, 1, 1, 0xac, 2, 1, 8, 9];
    assert_eq!(MapMark::decode(&bytes), Ok(mark));
    assert!(MapMark::decode(&bytes[..5]).is_err());
}

#[test]
fn a_map_of_another_timeline_reaches_no_mark_however_far_it_goes() {
    let mut log = Log::cluster(2);
    log.done(Command::BeginTimeline(1));
    let mut copy = Log(log.0.clone());
    for run in 0..=ENDED_RUNS_MAX as u64 {
        let started =
            |run| Command::ServerStarted(ServerId(0), BootId(run), Vec::new(), Vec::new());
        log.done(started(100 + run));
        copy.done(started(200 + run));
    }
    let of_runs = log.0.map_mark().unwrap();
    assert!(!of_runs.is_reached_by(&copy.0) || copy.0.version == log.0.version);
    log.done(Command::BeginTimeline(2));
    let mark = log.0.map_mark().unwrap();
    let older = MapMark { timeline: None, ..mark.clone() };
    copy.done(Command::BeginTimeline(3));
    for run in 0..5 {
        copy.done(Command::ServerStarted(ServerId(0), BootId(300 + run), Vec::new(), Vec::new()));
    }
    assert!(older.is_reached_by(&copy.0), "runs are forgotten on both sides");
    assert!(!mark.is_reached_by(&copy.0), "the timeline is not");
    for id in 4..400 {
        copy.done(Command::BeginTimeline(id));
    }
    assert_eq!(copy.0.timelines.len(), TIMELINES_MAX);
    assert!(mark.is_reached_by(&copy.0), "so long after nothing is known");
    assert!(mark.is_reached_by(&log.0));
    log.done(Command::BeginTimeline(1000));
    log.done(Command::ServerStarted(ServerId(0), BootId(9), Vec::new(), Vec::new()));
    assert!(mark.is_reached_by(&log.0), "one began since");
    let mut without = Log::cluster(2);
    for run in 0..60 {
        let started = BootId(1000 + run);
        without.done(Command::ServerStarted(ServerId(0), started, Vec::new(), Vec::new()));
    }
    assert!(!mark.is_reached_by(&without.0), "a copy from before there were any");
}

#[test]
fn a_map_with_timelines_is_of_version_7_and_has_all_that_there_is() {
    let mut log = Log::cluster(2);
    log.done(Command::BeginTimeline(300));
    assert_eq!(log.apply(Command::BeginTimeline(300)), Ok(Outcome::Already));
    let since = log.0.version;
    let bytes = log.0.encode();
    let beginning = [7, 1, 0xac, 2, since.0 as u8, 0, 0];
    assert_eq!(bytes[..7], beginning, "one timeline, no root keys, no cluster's version");
    assert_eq!(Topology::decode(&bytes), Ok(log.0.clone()));
    log.done(root::rotation(0, 0));
    log.done(Command::RaiseClusterVersion(21));
    log.done(Command::PauseBalance(Some(300)));
    log.done(Command::SetRegion(region::record(3, 0xab)));
    log.done(region::claim((3, 0xab), (0, 1)));
    log.done(Command::BeginTimeline(301));
    assert_eq!(Topology::decode(&log.0.encode()), Ok(log.0.clone()));
    let at = |version| log.0.timeline_at(MapVersion(version)).map(|timeline| timeline.id);
    assert_eq!(at(since.0 - 1), None);
    assert_eq!(
        (at(since.0), at(log.0.version.0 - 1), at(u64::MAX)),
        (Some(300), Some(300), Some(301))
    );
}
