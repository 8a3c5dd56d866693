use std::sync::Arc;

use larder_env::{Disk, RealDisk, SimDisk};
use larder_metalog::limits::SEGMENT_BYTES_MIN;
use larder_metalog::{LogConfig, recover};
use larder_types::View;

use super::*;

#[test]
fn ops_that_come_while_the_disk_stalls_wait_and_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).unwrap());
    let config = LogConfig::new(7);
    let (appender, mut writer, _) = recover(disk.clone(), "log", &config, &mut |_| {}).unwrap();
    let log = Log::new(appender, config.segment_bytes, 2, &[]);
    let mut scratch = Vec::new();
    let tags = vec![("a".repeat(100), "b".repeat(2800))];
    let mut sent = [0, 0];
    // 9 MiB while nothing is taken: more than the appender's buffer has room for.
    while sent[0] + sent[1] < 9 * 1024 * 1024 / 2900 {
        let pg = (sent[0] + sent[1]) % 2;
        sent[pg] += 1;
        let (session, number) = (larder_types::SessionId(1), sent[pg] as u64);
        let op = Op::SetTags {
            request: larder_types::Request { session, number, floor: 0 },
            bucket: larder_types::BucketId(1),
            key: larder_types::ObjectKey::new("k").unwrap(),
            tags: tags.clone(),
        };
        let id = OpId { view: View(1), seq: OpSeq(number) };
        let entry = LogEntry { id, op: Arc::new(op) };
        log.append(PgId(pg as u32), &entry, OpSeq(0), &mut scratch).unwrap();
    }
    assert!(log.is_busy(), "whoever brings more is turned away");
    log.stop();
    let mut last = [OpId::default(); 2];
    loop {
        let mut group = Group::default();
        let stopped = log.take_group(&mut group).unwrap();
        for (pg, id) in group.last.drain(..) {
            last[pg.0 as usize] = id;
        }
        if !group.batch.is_empty() {
            let progress = writer.commit(&mut group.batch).unwrap();
            log.state.lock().appender.note(progress);
        } else if stopped {
            break;
        }
        let progress = writer.prepare().unwrap();
        log.state.lock().appender.note(progress);
    }
    assert!(!log.is_busy());
    assert_eq!(last.map(|id| id.seq.0 as usize), sent, "all are said to be durable");
    drop((log, writer));
    let mut found = [0, 0];
    recover(disk, "log", &config, &mut |recovered| {
        let at = &mut found[recovered.record.pg.0 as usize];
        *at += 1;
        assert_eq!(recovered.record.seq.0 as usize, *at, "in order");
    })
    .unwrap();
    assert_eq!(found, sent);
}

#[test]
fn an_idle_log_whose_disk_has_room_again_is_full_no_longer() {
    let config = LogConfig { segment_bytes: SEGMENT_BYTES_MIN, ..LogConfig::new(7) };
    let sim = SimDisk::new(1, 1 << 40);
    let disk: Arc<dyn Disk> = sim.clone();
    let (appender, mut writer, _) = recover(disk, "log", &config, &mut |_| {}).unwrap();
    let log = Log::new(appender, config.segment_bytes, 1, &[]);
    let mut turn = |capacity| {
        sim.set_capacity(capacity);
        log.tick().unwrap();
        assert!(log.state.lock().urgent, "the log thread is woken");
        let mut group = Group::default();
        assert!(!log.take_group(&mut group).unwrap());
        if !group.batch.is_empty() {
            log.state.lock().appender.note(writer.commit(&mut group.batch).unwrap());
        }
        log.state.lock().appender.note(writer.prepare().unwrap());
        log.is_full()
    };
    let op = Op::Outcome { put: OpSeq(1), outcome: larder_types::Outcome::Revoked };
    let entry = LogEntry { id: OpId { view: View(1), seq: OpSeq(1) }, op: Arc::new(op) };
    while log.state.lock().appender.end().0 <= SEGMENT_BYTES_MIN {
        log.append(PgId(0), &entry, OpSeq(0), &mut Vec::new()).unwrap();
    }
    assert!(turn(0), "there is no room for another segment");
    assert!(turn(0), "nothing else is written, and it is looked at again");
    assert!(!turn(1 << 40));
}

#[test]
fn an_outcome_that_finds_no_room_does_not_wait_for_the_next_op() {
    let begin = || {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).unwrap());
        let config = LogConfig { segment_bytes: SEGMENT_BYTES_MIN, ..LogConfig::new(7) };
        let (appender, writer, _) = recover(disk, "log", &config, &mut |_| {}).unwrap();
        (Log::new(appender, config.segment_bytes, 1, &[]), writer, dir)
    };
    let outcome = |log: &Log, seq| {
        let op = Op::Outcome { put: OpSeq(1), outcome: larder_types::Outcome::Revoked };
        let id = OpId { view: View(1), seq: OpSeq(seq) };
        let entry = LogEntry { id, op: Arc::new(op) };
        log.append(PgId(0), &entry, OpSeq(0), &mut Vec::new()).unwrap();
    };
    let (log, _writer, _dir) = begin();
    let placed = (1..).take_while(|&seq| {
        outcome(&log, seq);
        log.state.lock().deferred.is_empty()
    });
    let placed = placed.count() as u64;
    // So many are being written when the next comes.
    let (log, mut writer, _dir) = begin();
    (1..=placed).for_each(|seq| outcome(&log, seq));
    log.tick().unwrap();
    let mut group = Group::default();
    assert!(!log.take_group(&mut group).unwrap());
    outcome(&log, placed + 1);
    assert_eq!(log.state.lock().deferred.len(), 1, "no segment is ready for it");
    for progress in [writer.commit(&mut group.batch), writer.prepare()] {
        log.state.lock().appender.note(progress.unwrap());
    }
    group.last.clear();
    for _ in 0..2 {
        assert!(log.state.lock().urgent, "nobody else has the log thread go on");
        assert!(!log.take_group(&mut group).unwrap());
    }
    assert_eq!(group.last[0].1.seq, OpSeq(placed + 1));
    assert!(!group.batch.is_empty());
}

#[test]
fn the_oldest_segment_is_kept_for_whoever_needs_something_of_it() {
    let segment = |start, highest: [u64; 2]| Segment {
        start: Lsn(start),
        highest: highest.map(OpSeq).to_vec(),
    };
    let segments = [segment(0, [10, 20]), segment(100, [11, 25])];
    let kept = |first, second| {
        kept(&segments, &[(OpSeq(first), Retained::Request), (OpSeq(second), Retained::OpenPut)])
    };
    assert_eq!(kept(11, 20), LogKept::OpenPut { pg: 1, op: 20 });
    assert_eq!(kept(10, 20), LogKept::Request { pg: 0, op: 10 });
    assert_eq!(kept(11, 21), LogKept::ToBeFlushed);
    assert_eq!(super::kept(&segments[..1], &[]), LogKept::BeingWritten);
}
