//! Checking a stopped store without changing it.
//!
//! The store is brought, in memory, to the state that its next start would bring it to. The log is
//! replayed, and what the index does not show yet is applied to an overlay of it. Then everything that
//! names something is held against what it names.
//!
//! # Invariants
//!
//! 1. Nothing of the store is written: not even a torn tail is cut. Only the index's engine may remove
//!    files that a crash left behind and that belong to no state of it.
//! 2. Every fault found is reported; what could not be looked at is a fault as well.

mod expect;
mod log;
mod marks;
mod member;
mod overlay;
mod quorum;
mod report;
mod role;
mod scrubbed;

use std::ops::ControlFlow;
use std::sync::Arc;

use larder_env::{Disk, RealDisk};
use larder_kv::LsmKv;
use larder_protocol::pg::Role;
use larder_protocol::rebuild::SpaceScan;
use larder_protocol::{Event, EventTime, Pg};
use larder_types::codec::{CodecError, decode};
use larder_types::{
    Body, BootId, Chunk, ObjectKey, PartRow, PieceRow, ServerId, VersionRow, View, rows,
};
use larder_volume::{VolumeReader, verify_range};

use crate::directory::LOCK_FILE;
use crate::manager::{self, Map};
use crate::meta::{KV_DIR, Replay};
use crate::store::check_map_is_not_lost;
use crate::{StoreConfig, StoreError};
use expect::Expectations;
use marks::Marks;
#[cfg(test)]
pub(crate) use member::examine as look_at_member;
use overlay::Overlay;
#[cfg(test)]
pub(crate) use quorum::examine as look_at_quorum;
pub use report::Report;
#[cfg(test)]
pub(crate) use role::check_disk;
pub use role::inspect_role;

/// Checks the store in a directory.
///
/// # Errors
/// [`StoreError`] if it cannot be looked at at all: in use, or no store.
pub fn inspect(config: &StoreConfig, read_data: bool) -> Result<Report, StoreError> {
    let disk = RealDisk::open(&config.root)?;
    let not_a_store = || StoreError::Config {
        field: "DIR",
        found: config.root.display().to_string(),
        remedy: "a directory in which a server has run".to_owned(),
    };
    // Before anything is locked: what is no store is left as it is.
    if manager::load(&disk)?.is_none() {
        check_map_is_not_lost(&disk, config)?;
        return Err(not_a_store());
    }
    let _lock = disk.lock(LOCK_FILE).map_err(|error| StoreError::of_lock(&config.root, error))?;
    let map = manager::load(&disk)?.ok_or_else(not_a_store)?;
    Ok(examine(&(Arc::new(disk) as Arc<dyn Disk>), config, &map, read_data))
}

/// Checks a store that nobody else uses.
pub(crate) fn examine(
    disk: &Arc<dyn Disk>,
    config: &StoreConfig,
    map: &Map,
    read_data: bool,
) -> Report {
    let mut report = Report::default();
    report.section("map");
    report.line(format!(
        "version {}, {} placement groups, {} volumes, {} buckets",
        map.version,
        map.pgs.len(),
        map.lvs.len(),
        map.buckets.len()
    ));
    let reader = check_volume(disk, config, map, &mut report);
    let kv = match LsmKv::open(&config.root.join(KV_DIR), crate::limits::KV_CACHE_BYTES) {
        Ok(kv) => kv,
        Err(error) => {
            report.fault(format!("the index cannot be opened: {error}"));
            return report;
        }
    };
    let Some((pgs, expected)) = check_log(disk, &kv, map, config, &mut report) else {
        return report;
    };
    let overlay = Overlay::new(&kv, map);
    let open = apply_in_memory(pgs, map, &overlay, &mut report);
    expected.check(&overlay, &mut report);
    check_space(map, &overlay, &open, &mut report);
    check_objects(&overlay, reader.as_ref().filter(|_| read_data), &mut report);
    scrubbed::examine(&**disk, &mut report);
    report
}

fn check_volume(
    disk: &Arc<dyn Disk>,
    config: &StoreConfig,
    map: &Map,
    report: &mut Report,
) -> Option<VolumeReader> {
    report.section("data");
    let description = match larder_volume::describe(&**disk, &config.data) {
        Ok(description) => description,
        Err(error) => {
            report.fault(format!("the data file {}: {error}", config.data));
            return None;
        }
    };
    report.line(format!(
        "{} physical volumes of {} MiB in use, {} of 2 superblocks good",
        description.pvs.len(),
        description.pv_bytes / (1024 * 1024),
        description.superblock_copies
    ));
    if description.superblock_copies < 2 {
        report.fault("a copy of the data file's superblock is damaged".to_owned());
    }
    if description.cluster != map.cluster {
        report.fault("the data file belongs to another store".to_owned());
    }
    for pv in &description.damaged {
        report.fault(format!("the header of physical volume {pv} is damaged"));
    }
    for record in &map.lvs {
        for place in &record.replicas {
            let found = description.pvs.iter().find(|pv| pv.lv == record.lv);
            let newest = map.pgs.get(record.pg.0 as usize).map_or(View(0), |pg| pg.view);
            match found {
                Some(pv) if pv.pv != place.pv => {
                    report
                        .fault(format!("volume {} lies in another place than the map says", pv.lv));
                }
                Some(pv) if pv.view > newest => {
                    report.fault(format!("volume {} has a later view than the map", pv.lv));
                }
                _ => {}
            }
        }
    }
    match larder_volume::reader(&**disk, &config.data) {
        Ok(reader) => Some(reader),
        Err(error) => {
            report.fault(format!("the data file cannot be opened: {error}"));
            None
        }
    }
}

fn check_log(
    disk: &Arc<dyn Disk>,
    kv: &LsmKv,
    map: &Map,
    config: &StoreConfig,
    report: &mut Report,
) -> Option<(Vec<Pg>, Expectations)> {
    report.section("log");
    let replay = Replay::new(kv, ServerId(0), map.pgs.len(), config.log_segment_bytes);
    let mut replay = match replay {
        Ok(replay) => replay,
        Err(error) => {
            report.fault(error.to_string());
            return None;
        }
    };
    let mut expected = Expectations::default();
    let is_whole = log::scan(&**disk, report, &mut |record| {
        replay.record(&record.record, record.end);
        expected.record(&record.record);
    })?;
    match replay.finish() {
        Ok(replayed) if is_whole => Some((replayed.pgs, expected)),
        Ok(_) => None,
        Err(error) => {
            report.fault(error.to_string());
            None
        }
    }
}

/// Does in memory what a start does: begins a view, takes everything as durable, applies it. Returns
/// the chunks of puts that the start would have to resolve.
fn apply_in_memory(
    pgs: Vec<Pg>,
    map: &Map,
    overlay: &Overlay<'_>,
    report: &mut Report,
) -> Vec<Chunk> {
    report.section("index");
    let mut open = Vec::new();
    for (mut pg, record) in pgs.into_iter().zip(&map.pgs) {
        let mut out = Vec::new();
        let view = View(record.view.0 + 1);
        let (members, boot) = (record.members.clone(), BootId(0));
        pg.step(EventTime::default(), Event::NewView { view, members, boot }, overlay, &mut out);
        let last = out.iter().rev().find_map(|effect| match effect {
            larder_protocol::Effect::Append(entry) => Some(entry.id),
            _ => None,
        });
        if let Some(last) = last {
            pg.step(EventTime::default(), Event::Durable(last), overlay, &mut out);
        }
        while pg.apply(EventTime::default(), overlay, &mut out) > 0 {}
        for effect in out {
            if let larder_protocol::Effect::Halt(reason) = effect {
                report.fault(reason);
            }
        }
        if pg.role() == Role::Active {
            open.extend(pg.open_chunks().cloned());
        } else {
            report.fault(format!("pg {} could not begin a view", pg.id()));
        }
    }
    report.line(format!(
        "{} rows to be applied at the next start, {} puts to be resolved",
        overlay.changed_rows(),
        open.len()
    ));
    open
}

fn check_space(map: &Map, overlay: &Overlay<'_>, open: &[Chunk], report: &mut Report) {
    report.section("space");
    let lvs = map.lvs.iter().map(|record| record.info(BootId(0)));
    let mut scan = SpaceScan::new(lvs);
    let mut marks = Marks::default();
    let visited = overlay.visit(&mut |row, value| {
        if let Err(error) = marks.note(row, value) {
            report.fault(error.to_string());
        }
        if let Err(error) = scan.note(row, value) {
            report.fault(error.to_string());
        }
    });
    if let Err(error) = visited {
        report.fault(format!("the index cannot be scanned: {error}"));
    }
    open.iter().for_each(|chunk| scan.claim(chunk));
    let derived = scan.finish();
    let total: u64 = derived.space.lvs.iter().map(|(info, _)| u64::from(info.blocks)).sum();
    let free: u64 = derived.space.lvs.iter().map(|(_, runs)| u64::from(runs.blocks())).sum();
    report.line(format!("{} blocks used, {free} free", total - free));
    if derived.garbage > 0 {
        let count = derived.garbage;
        report.line(format!(
            "{count} streams, uploads or appended objects are being removed in steps"
        ));
    }
    for fault in derived.faults {
        report.fault(fault.to_string());
    }
    for stray in derived.strays {
        report.fault(stray.to_string());
    }
    marks.check(map, overlay, report);
}

/// Reads every chunk that a row names and holds it against its checksums.
fn check_objects(overlay: &Overlay<'_>, reader: Option<&VolumeReader>, report: &mut Report) {
    report.section("objects");
    let (mut objects, mut bytes, mut chunks) = (0u64, 0u64, 0u64);
    let visited = overlay.visit(&mut |row, value| {
        let name = || match rows::parse_keyed(row) {
            Some((bucket, key, _)) => format!("object {:?} of bucket {bucket}", key.as_str()),
            None => format!("row {row:02x?}"),
        };
        objects += u64::from(row.first() == Some(&b'V'));
        match content(row, value) {
            Ok(Some((Body::Chunk(chunk), size))) => {
                (chunks, bytes) = (chunks + 1, bytes + size);
                if let Some(reader) = reader
                    && let Err(reason) = verify(reader, &chunk)
                {
                    report.fault(format!("{}: {reason}", name()));
                }
            }
            Ok(content) => bytes += content.map_or(0, |(_, size)| size),
            Err(error) => report.fault(format!("{}: {error}", name())),
        }
    });
    if let Err(error) = visited {
        report.fault(format!("the index cannot be scanned: {error}"));
    }
    let read = if reader.is_some() { "read and verified" } else { "not read" };
    report.line(format!("{objects} objects of {bytes} bytes; {chunks} chunks {read}"));
    report.count_objects(objects);
}

/// The bytes that a row names: where they are, and of how many its object is. Parts, pieces and chunks are
/// no objects.
fn content(row: &[u8], value: &[u8]) -> Result<Option<(Body, u64)>, CodecError> {
    Ok(match row.first() {
        Some(b'V') => {
            let VersionRow { body, metax, .. } = VersionRow::read(value)?;
            Some((body, metax.size))
        }
        Some(b'P') => Some((decode::<PartRow>("part row", value)?.body, 0)),
        Some(b'K') => Some((Body::Chunk(decode("chunk row", value)?), 0)),
        Some(b'W') => Some((PieceRow::read(value)?.body, 0)),
        _ => None,
    })
}

fn verify(reader: &VolumeReader, chunk: &Chunk) -> Result<(), String> {
    let bytes =
        reader.read(chunk.lv, &chunk.extents, 0, chunk.len).map_err(|error| error.to_string())?;
    verify_range(chunk, 0, &bytes).map_err(|error| error.to_string())
}

/// A key as it is shown in reports.
fn shown(key: &ObjectKey) -> String {
    format!("{:?}", key.as_str())
}

/// For the visits of tables that need no early end.
fn go_on() -> ControlFlow<()> {
    ControlFlow::Continue(())
}
