//! Taking up a log that is there, creating one that is not, and looking at one without touching it.
//!
//! # Invariants
//!
//! 1. Every file is synced and then read past the page cache: what recovery gives back, the device
//!    has, also after a process that died with a failed sync behind it.
//! 2. The tail that is cut is overwritten and synced before anything is appended.
//! 3. A log with damage is left as it is.
//! 4. Of a segment only what the file system knows to be a reservation, never written, goes unread: it
//!    would give zeros. How long the file is counts, not how much of it was read.
//! 5. A page that the device cannot read is one that does not verify. Below what is known to be synced that is damage.
//!    Behind the end it is of no account, and written over.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

use larder_env::{Disk, DiskError, DiskFile, OpenMode};

use crate::appender::Appender;
use crate::config::LogConfig;
use crate::error::{Damage, DamageKind, LogError};
use crate::limits::{SEGMENT_HEADER_BYTES, UNREADABLE_PAGES_MAX, WRITE_ALIGN_BYTES};
use crate::segments::{self, Segments, segment_path};
use crate::v1::{self, BadHeader, Layout, Lsn};
use crate::walk::{Contents, Recovered, Walk};
use crate::writer::Writer;

/// The findings of a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// There was no log; an empty one was made.
    pub created: bool,
    /// Id of the log.
    pub log_id: u64,
    /// Where its first segment begins.
    pub first: Lsn,
    /// Where it goes on.
    pub end: Lsn,
    /// Records given to the visitor.
    pub records: u64,
    /// Bytes that had been written behind the end but never synced, and were cut.
    pub torn_bytes: u64,
    /// Segments whose header did not verify, though their records did: it was written anew.
    pub bad_headers: u64,
    /// Pages of the log that the disk could not read. No record is known to be lost with them.
    pub unreadable_pages: u64,
}

impl Recovery {
    /// Returns true if the disk lost bytes of the log that no record needs, and that were written anew: it is failing.
    #[must_use]
    pub fn mended(&self) -> bool {
        self.bad_headers + self.unreadable_pages > 0
    }
}

/// The contents of a log, read without changing it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanReport {
    /// Id of the log; `None` if it has no segment, or none with a header that verifies.
    pub log_id: Option<u64>,
    /// Number of segment files.
    pub segments: u64,
    /// Where the first of them begins.
    pub first: Lsn,
    /// Where the records end that verify and follow each other.
    pub end: Lsn,
    /// Records given to the visitor.
    pub records: u64,
    /// Bytes behind the end that were written and never synced, for the next start to cut: harmless.
    pub torn_bytes: u64,
    /// Segments whose header does not verify, though their records do, for the next start to write anew: harmless.
    pub bad_headers: Vec<u64>,
    /// Pages that the disk cannot read. Where records were lost with them, damages tell.
    pub unreadable_pages: u64,
    /// Places at which durable records are lost; at most [`crate::limits::DAMAGES_NAMED_MAX`].
    pub damages: Vec<Damage>,
}

/// The ways to read a log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Change nothing.
    Look,
    /// Make durable what is read.
    Own,
}

/// The findings of reading the segments that the walk does not know.
#[derive(Debug, Default)]
struct Findings {
    /// The first segment that is missing, or has a header for which nothing stands.
    unusable: Option<u64>,
    /// Offsets of the pages that cannot be read, by segment.
    unreadable: BTreeMap<u64, Vec<u64>>,
}

impl Findings {
    fn unreadable_pages(&self) -> u64 {
        self.unreadable.values().map(|pages| pages.len() as u64).sum()
    }
}

/// Opens a log, or creates it if `dir` has none, and gives its records to `visit` in their order.
///
/// If this fails, the records visited mean nothing.
///
/// # Errors
/// [`LogError::Damaged`] names what is lost; the log is unchanged. [`LogError::Full`] if there is no
/// room for the first segment. [`LogError::Broken`], [`LogError::Version`],
/// [`LogError::SegmentBytes`] as they say.
pub fn recover(
    disk: Arc<dyn Disk>,
    dir: &str,
    config: &LogConfig,
    visit: &mut dyn FnMut(Recovered<'_>),
) -> Result<(Appender, Writer, Recovery), LogError> {
    config.check()?;
    disk.create_dir(dir)?;
    disk.sync_dir(dir)?;
    let listing = segments::list(&*disk, dir)?;
    let access = if config.cuts_durably() { Access::Own } else { Access::Look };
    let found = find_layout(&*disk, dir, &listing.segments)?;
    let created = listing.segments.is_empty();
    let layout = match found {
        Some(layout) => layout,
        None if created => {
            Layout { log_id: config.new_log_id, segment_bytes: config.segment_bytes }
        }
        None => return Err(LogError::Damaged(no_header(dir, listing.segments[0]))),
    };
    let first_segment = listing.segments.first().copied().unwrap_or(0);
    let mut walk = Walk::new(layout, dir, first_segment, config.checks_chains(), visit);
    let findings = read_segments(&*disk, dir, &listing.segments, access, &mut walk)?;
    if let Some(damage) = walk.damages().into_iter().next() {
        return Err(LogError::Damaged(damage));
    }
    let mut segments = Segments::open(disk, dir, layout, listing)?;
    let outcome = if created {
        segments.extend()
    } else {
        resume_at_end(&mut segments, &walk, &findings, access)
    };
    outcome.map_err(|error| full_or_broken(error, dir))?;
    let recovery = Recovery {
        created,
        log_id: layout.log_id,
        first: layout.start_of(first_segment),
        end: walk.end,
        records: walk.records,
        torn_bytes: walk.torn_bytes(),
        bad_headers: walk.bad_headers.len() as u64,
        unreadable_pages: findings.unreadable_pages(),
    };
    let mut writer = Writer::new(segments, config.clone(), walk.end)?;
    let appender = Appender::new(layout, dir, walk.chains, writer.progress());
    Ok((appender, writer, recovery))
}

/// Reads a log that nobody writes and changes nothing. Damage is part of the report.
///
/// # Errors
/// [`LogError::Broken`] if it cannot be read, [`LogError::Version`].
pub fn scan(
    disk: &dyn Disk,
    dir: &str,
    visit: &mut dyn FnMut(Recovered<'_>),
) -> Result<ScanReport, LogError> {
    let numbers = segments::list(disk, dir)?.segments;
    let Some(layout) = find_layout(disk, dir, &numbers)? else {
        return Ok(ScanReport {
            log_id: None,
            segments: numbers.len() as u64,
            first: Lsn(0),
            end: Lsn(0),
            records: 0,
            torn_bytes: 0,
            bad_headers: Vec::new(),
            unreadable_pages: 0,
            damages: numbers.first().map(|first| no_header(dir, *first)).into_iter().collect(),
        });
    };
    let mut walk = Walk::new(layout, dir, numbers[0], true, visit);
    let findings = read_segments(disk, dir, &numbers, Access::Look, &mut walk)?;
    Ok(ScanReport {
        log_id: Some(layout.log_id),
        segments: numbers.len() as u64,
        first: layout.start_of(numbers[0]),
        end: walk.end,
        records: walk.records,
        torn_bytes: walk.torn_bytes(),
        damages: walk.damages(),
        bad_headers: walk.bad_headers,
        unreadable_pages: findings.unreadable_pages(),
    })
}

/// Finds the layout of all segments, in the first header that verifies.
fn find_layout(disk: &dyn Disk, dir: &str, numbers: &[u64]) -> Result<Option<Layout>, LogError> {
    for number in numbers {
        let path = segment_path(dir, *number);
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        let read = match disk.open(&path, OpenMode::Read)?.read_at(0, &mut header) {
            Err(DiskError::Broken { .. }) => continue,
            read => read?,
        };
        match v1::decode_segment_header(&header[..read], *number) {
            Ok(layout) => return Ok(Some(layout)),
            Err(BadHeader::Version(found)) => {
                return Err(LogError::Version { file: path, found });
            }
            Err(BadHeader::Damaged) => {}
        }
    }
    Ok(None)
}

/// Reads all segments.
fn read_segments(
    disk: &dyn Disk,
    dir: &str,
    numbers: &[u64],
    access: Access,
    walk: &mut Walk<'_>,
) -> Result<Findings, LogError> {
    let layout = walk.layout();
    let mut findings = Findings::default();
    let mut buffer = vec![0; layout.segment_bytes as usize];
    let mut filled = 0;
    let mut expected = numbers.first().copied().unwrap_or(0);
    for number in numbers.iter().copied() {
        if number != expected {
            walk.missing_segment(expected);
            findings.unusable.get_or_insert(expected);
        }
        expected = number + 1;
        let path = segment_path(dir, number);
        let file = match access {
            Access::Look => disk.open(&path, OpenMode::Read)?,
            Access::Own => disk.open(&path, OpenMode::ReadWrite)?,
        };
        if access == Access::Own {
            file.sync()?;
        }
        // Behind what was written a reservation has nothing but zeros, and so has the buffer.
        let len = file.len()?.min(layout.segment_bytes) as usize;
        let zeros_from = file.zeros_from()?.min(len as u64) as usize;
        let (read, unreadable) = read_readable(&*file, &mut buffer[..zeros_from])?;
        let end = if read < zeros_from { read } else { len };
        buffer[read..filled.max(read)].fill(0);
        filled = read;
        let bytes = &buffer[..end];
        let header_verifies = v1::decode_segment_header(bytes, number) == Ok(layout);
        let contents =
            Contents { bytes, zeros_from: read, unreadable: &unreadable, header_verifies };
        if !walk.segment(number, &contents) {
            findings.unusable.get_or_insert(number);
        }
        if !unreadable.is_empty() {
            findings.unreadable.insert(number, unreadable);
        }
    }
    Ok(findings)
}

/// Reads a file from its start; returns how far it got, and the offsets of pages that the device cannot read: these are
/// zeros, which no record is.
fn read_readable(file: &dyn DiskFile, into: &mut [u8]) -> Result<(usize, Vec<u64>), DiskError> {
    match file.read_device_at(0, into) {
        Err(DiskError::Broken { .. }) => {}
        read => return Ok((read?, Vec::new())),
    }
    let (mut filled, mut unreadable) = (0, Vec::new());
    for page in into.chunks_mut(WRITE_ALIGN_BYTES as usize) {
        match file.read_device_at(filled as u64, page) {
            Err(DiskError::Broken { .. }) if unreadable.len() < UNREADABLE_PAGES_MAX => {
                page.fill(0);
                unreadable.push(filled as u64);
                filled += page.len();
            }
            read => {
                let read = read?;
                filled += read;
                if read < page.len() {
                    break;
                }
            }
        }
    }
    Ok((filled, unreadable))
}

/// Cuts what lies behind the end, durably, and makes good what can be: headers for which records stand, and pages that
/// cannot be read until they are written.
fn resume_at_end(
    segments: &mut Segments,
    walk: &Walk<'_>,
    findings: &Findings,
    access: Access,
) -> Result<(), DiskError> {
    let layout = segments.layout();
    if let Some(number) = findings.unusable {
        segments.cut_from(number)?;
    }
    if access == Access::Look {
        return Ok(());
    }
    for number in walk.bad_headers.iter().filter(|number| **number < segments.end()) {
        let file = segments.open_segment(*number)?;
        let header = v1::encode_segment_header(&layout, *number);
        file.write_at(0, &[IoSlice::new(&header)])?;
        file.sync()?;
    }
    let last_used = layout.segment_of(walk.end).min(segments.end() - 1);
    for number in last_used.max(segments.first())..segments.end() {
        let start = layout.start_of(number).0;
        let from = walk.end.0.max(start + SEGMENT_HEADER_BYTES) - start;
        let residue = walk.residue.get(&number).map(|end| end.0 - start);
        let unreadable = findings.unreadable.get(&number).into_iter().flatten();
        // If the end lies in one, what verifies of it is zeros.
        let unreadable = unreadable.filter(|page| **page + WRITE_ALIGN_BYTES > from);
        if residue.is_none() && unreadable.clone().next().is_none() {
            continue;
        }
        let file = segments.open_segment(number)?;
        for page in unreadable {
            segments::write_zeros(&*file, *page, page + WRITE_ALIGN_BYTES)?;
        }
        if let Some(to) = residue {
            segments::write_zeros(&*file, from, to.next_multiple_of(WRITE_ALIGN_BYTES))?;
        }
        file.sync()?;
    }
    Ok(())
}

fn no_header(dir: &str, segment: u64) -> Damage {
    Damage {
        file: segment_path(dir, segment),
        segment,
        offset: 0,
        kind: DamageKind::Header,
        pgs: Vec::new(),
    }
}

fn full_or_broken(error: DiskError, dir: &str) -> LogError {
    match error {
        DiskError::Full { .. } => LogError::Full { dir: dir.to_owned() },
        source => LogError::Broken { source },
    }
}
