//! An inspection of what a cluster's meta server keeps: its log, its index, and the one against the other.
//!
//! How many PGs there are is in the managers' map; here only those are known of which there is a row or a record. Nothing
//! is applied: which ops of the tail stay is for the next view to decide.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

use larder_env::Disk;
use larder_identity::Subject;
use larder_kv::{KvError, KvReader, LsmKv};
use larder_protocol::rebuild::SpaceScan;
use larder_protocol::{LvInfo, Pg};
use larder_types::{Body, LvId, MapVersion, OpId, PgId, rows};

use super::{Report, content, go_on, log, scrubbed};
use crate::limits::KV_CACHE_BYTES;
use crate::meta::{KV_DIR, LOG_DIR, Replay};

/// Looks at all of it.
pub(crate) fn examine(disk: &dyn Disk, root: &Path, subject: &Subject, report: &mut Report) {
    let (log, kv) = (disk.list(LOG_DIR).is_ok(), root.join(KV_DIR).is_dir());
    if !log || !kv {
        report.section("log and index");
        if log || kv {
            let (there, gone) = if log { (LOG_DIR, KV_DIR) } else { (KV_DIR, LOG_DIR) };
            report.fault(format!("there is {there}/, but {gone}/ is missing"));
        } else {
            report.line("nothing was kept yet".to_owned());
        }
        return;
    }
    let kv = match LsmKv::open(&root.join(KV_DIR), KV_CACHE_BYTES) {
        Ok(kv) => kv,
        Err(error) => return report.fault(format!("the index cannot be opened: {error}")),
    };
    let Some(logged) = check_log(disk, report) else { return };
    let indexed = match pgs_of(&kv) {
        Ok(indexed) => indexed,
        Err(error) => return report.fault(format!("the index cannot be scanned: {error}")),
    };
    let pg_count = logged.max(indexed);
    if let Some(pgs) = replay(disk, &kv, subject, pg_count, report) {
        check_rows(&kv, &pgs, report);
    }
    scrubbed::examine(disk, report);
}

/// Chain and checksums; returns a number that every PG in the log is below. `None` if the log is not whole.
fn check_log(disk: &dyn Disk, report: &mut Report) -> Option<usize> {
    report.section("log");
    let mut pg_count = 0;
    let is_whole = log::scan(disk, report, &mut |record| {
        pg_count = pg_count.max(record.record.pg.0 as usize + 1);
    })?;
    is_whole.then_some(pg_count)
}

/// A number that every PG with a position in the index is below.
fn pgs_of(kv: &LsmKv) -> Result<usize, KvError> {
    let mut pg_count = 0;
    for (first, behind) in [(b'A', b'B'), (b'S', b'T')] {
        kv.scan(&[first], Some(&[behind]), &mut |row, _| {
            if let Some(pg) = row.get(1..5).and_then(|pg| pg.try_into().ok()) {
                pg_count = pg_count.max(u32::from_be_bytes(pg) as usize + 1);
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(pg_count)
}

/// The log against the positions that the index names, as a start reads them.
fn replay(
    disk: &dyn Disk,
    kv: &LsmKv,
    subject: &Subject,
    pg_count: usize,
    report: &mut Report,
) -> Option<Vec<Pg>> {
    report.section("placement groups");
    // No segment is given up here, so that their length does not matter.
    let replayed = Replay::new(kv, subject.server, pg_count, u64::MAX).and_then(|mut replay| {
        larder_metalog::scan(disk, LOG_DIR, &mut |record| {
            replay.record(&record.record, record.end);
        })?;
        replay.finish()
    });
    let pgs = match replayed {
        Ok(replayed) => replayed.pgs,
        Err(error) => {
            report.fault(error.to_string());
            return None;
        }
    };
    let known = pgs.iter().filter(|pg| pg.last() != OpId::default());
    let lacking: Vec<PgId> = known.clone().filter(|pg| !pg.is_whole()).map(Pg::id).collect();
    let behind = known.clone().filter(|pg| pg.applied() < pg.last()).count();
    report.line(format!(
        "{} with ops, {behind} of them with ops that the index does not show yet; {} being copied from other servers",
        known.count(),
        lacking.len()
    ));
    Some(pgs)
}

/// Reads the rows, if they can be read, and holds what they say about space against each other.
fn check_rows(kv: &LsmKv, pgs: &[Pg], report: &mut Report) {
    report.section("index");
    let mut lvs: BTreeMap<LvId, u32> = BTreeMap::new();
    let (mut objects, mut owners) = (0, BTreeMap::<LvId, BTreeSet<PgId>>::new());
    let visited = kv.scan(&[], None, &mut |row, value| {
        objects += u64::from(row.first() == Some(&b'V'));
        match content(row, value) {
            Ok(Some((Body::Chunk(chunk), _))) => {
                let end = chunk.extents.iter().map(larder_types::Extent::end).max().unwrap_or(0);
                let blocks = lvs.entry(chunk.lv).or_default();
                *blocks = end.max(*blocks);
                owners.entry(chunk.lv).or_default().insert(chunk.grant.pg);
            }
            Ok(_) => {}
            Err(error) => report.fault(format!("row {}: {error}", shown(row))),
        }
        go_on()
    });
    if let Err(error) = visited {
        return report.fault(format!("the index cannot be scanned: {error}"));
    }
    report.line(format!("{objects} objects in {} volumes", lvs.len()));
    report.count_objects(objects);
    for (lv, pgs) in owners.iter().filter(|(_, pgs)| pgs.len() > 1) {
        report.fault(format!("volume {lv} has data of placement groups {pgs:?}"));
    }
    if pgs.iter().any(|pg| !pg.is_whole()) {
        report.line("rows are not held against each other while a copy is under way".to_owned());
        return;
    }
    let info = |(lv, blocks): (&LvId, &u32)| LvInfo {
        lv: *lv,
        blocks: *blocks,
        copies: 0,
        replicas: Vec::new(),
        as_of: MapVersion(0),
    };
    let mut scan = SpaceScan::new(lvs.iter().map(info));
    let visited = kv.scan(&[], None, &mut |row, value| {
        if let Err(error) = scan.note(row, value) {
            report.fault(format!("row {}: {error}", shown(row)));
        }
        go_on()
    });
    if let Err(error) = visited {
        report.fault(format!("the index cannot be scanned: {error}"));
    }
    let derived = scan.finish();
    derived.faults.iter().for_each(|fault| report.fault(fault.to_string()));
    derived.strays.iter().for_each(|stray| report.fault(stray.to_string()));
}

fn shown(row: &[u8]) -> String {
    match rows::parse_keyed(row) {
        Some((bucket, key, _)) => format!("of {:?} in bucket {bucket}", key.as_str()),
        None => format!("{row:02x?}"),
    }
}
