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
        log.append(PgId(pg as u32), &entry, OpSeq(0), &mut scratch);
    }
    assert!(log.is_busy(), "whoever brings more is turned away");
    log.stop();
    let mut last = [OpId::default(); 2];
    loop {
        let mut group = Group::default();
        let stopped = log.take_group(&mut group);
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
        log.state.lock().note_free_space(progress).unwrap();
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
        assert!(!log.take_group(&mut group));
        if !group.batch.is_empty() {
            log.state.lock().appender.note(writer.commit(&mut group.batch).unwrap());
        }
        log.state.lock().note_free_space(writer.prepare().unwrap()).unwrap();
        log.is_full()
    };
    let op = Op::Outcome { put: OpSeq(1), outcome: larder_types::Outcome::Revoked };
    let entry = LogEntry { id: OpId { view: View(1), seq: OpSeq(1) }, op: Arc::new(op) };
    while log.state.lock().appender.end().0 <= SEGMENT_BYTES_MIN {
        log.append(PgId(0), &entry, OpSeq(0), &mut Vec::new());
    }
    assert!(turn(0), "there is no room for another segment");
    assert!(turn(0), "nothing else is written, and it is looked at again");
    assert!(!turn(1 << 40));
}

fn append(log: &Log, seq: u64, op: Op) -> usize {
    let id = OpId { view: View(1), seq: OpSeq(seq) };
    log.append(PgId(0), &LogEntry { id, op: Arc::new(op) }, OpSeq(0), &mut Vec::new());
    log.state.lock().deferred.len()
}

fn revoked() -> Op {
    Op::Outcome { put: OpSeq(1), outcome: larder_types::Outcome::Revoked }
}

/// A turn of the log thread: the last op that is durable by it, and whether the log goes on.
fn turn(log: &Log, writer: &mut Writer) -> (Option<u64>, Result<(), LogError>) {
    log.state.lock().urgent = true;
    let mut group = Group::default();
    log.take_group(&mut group);
    if !group.batch.is_empty() {
        log.state.lock().appender.note(writer.commit(&mut group.batch).unwrap());
    }
    let room = writer.prepare().unwrap();
    let answer = log.state.lock().note_free_space(room);
    (group.last.first().map(|(_, id)| id.seq.0), answer)
}

/// A log in the last segment that its disk has room for, and the ops in it.
fn full(sim: &Arc<SimDisk>) -> (Log, Writer, LogConfig, u64) {
    let config = LogConfig { segment_bytes: SEGMENT_BYTES_MIN, ..LogConfig::new(7) };
    let (appender, mut writer, _) =
        recover(sim.clone() as Arc<dyn Disk>, "log", &config, &mut |_| {}).unwrap();
    let log = Log::new(appender, config.segment_bytes, 1, &[]);
    let mut seq = 0;
    while log.end().0 <= SEGMENT_BYTES_MIN {
        seq += 1;
        assert_eq!(append(&log, seq, revoked()), 0);
    }
    sim.set_capacity(0);
    turn(&log, &mut writer).1.unwrap();
    assert!(log.is_full());
    (log, writer, config, seq)
}

#[test]
fn nothing_passes_an_op_for_which_the_disk_has_no_room() {
    let (log, _writer, _, seq) = full(&SimDisk::new(1, 1 << 40));
    let fit = (seq + 1..).take_while(|&seq| append(&log, seq, revoked()) == 0).count() as u64;
    // There is room for ten more of these, and not for the op that comes.
    let sim = SimDisk::new(1, 1 << 40);
    let (log, mut writer, config, seq) = full(&sim);
    let small = seq + fit - 10;
    assert!((seq + 1..=small).all(|seq| append(&log, seq, revoked()) == 0));
    let large = Op::SetTags {
        request: larder_types::Request { session: larder_types::SessionId(1), number: 1, floor: 0 },
        bucket: larder_types::BucketId(1),
        key: larder_types::ObjectKey::new("k").unwrap(),
        tags: vec![("a".repeat(100), "b".repeat(2000))],
    };
    assert_eq!(append(&log, small + 1, large), 1);
    assert_eq!(append(&log, small + 2, revoked()), 2, "it would fit");
    let (durable, answer) = turn(&log, &mut writer);
    assert_eq!(durable, Some(small), "the last one before it");
    assert!(matches!(answer, Err(LogError::Full { .. })), "the process ends: {answer:?}");
    sim.set_capacity(1 << 40);
    let (durable, answer) = turn(&log, &mut writer);
    assert_eq!((durable, answer.is_ok()), (None, true), "there is room again");
    assert_eq!(turn(&log, &mut writer).0, Some(small + 2));
    drop((log, writer));
    let mut found = 0;
    recover(sim, "log", &config, &mut |recovered| {
        found += 1;
        assert_eq!(recovered.record.seq, OpSeq(found), "without a gap");
    })
    .unwrap();
    assert_eq!(found, small + 2);
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
        log.append(PgId(0), &entry, OpSeq(0), &mut Vec::new());
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
    assert!(!log.take_group(&mut group));
    outcome(&log, placed + 1);
    assert_eq!(log.state.lock().deferred.len(), 1, "no segment is ready for it");
    for progress in [writer.commit(&mut group.batch), writer.prepare()] {
        log.state.lock().appender.note(progress.unwrap());
    }
    group.last.clear();
    for _ in 0..2 {
        assert!(log.state.lock().urgent, "nobody else has the log thread go on");
        assert!(!log.take_group(&mut group));
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
