//! Reading the log from end to end: what verifies, where it stops, and what lies behind.
//!
//! # Invariants
//!
//! 1. Records are returned in the order of the log, up to the first place that does not verify.
//! 2. Behind that place the search goes on through all that is left, at every place where a record could begin: only so
//!    can damage be distinguished from a torn tail.
//! 3. A segment's header has nothing that its name, the log's other headers and its records do not have: where its
//!    first record verifies, a bad header is no damage.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::PgId;

use crate::Record;
use crate::appender::Chains;
use crate::error::{Damage, DamageKind};
use crate::limits::{
    DAMAGES_NAMED_MAX, RECORD_ALIGN_BYTES, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES,
    WRITE_ALIGN_BYTES,
};
use crate::segments::segment_path;
use crate::v1::{self, Kind, Layout, Lsn, Stored};

/// Bytes that are skipped at once where the search finds nothing but zeros.
const ZERO_STRIDE: usize = 4096;
static ZEROS: [u8; ZERO_STRIDE] = [0; ZERO_STRIDE];

/// A record read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered<'a> {
    /// Where it begins.
    pub start: Lsn,
    /// Where it ends: what `append` returned for it.
    pub end: Lsn,
    /// The record.
    pub record: Record<'a>,
}

/// A segment as it was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contents<'a> {
    /// Its file, which may have been cut short.
    pub(crate) bytes: &'a [u8],
    /// From here on the file has nothing but zeros.
    pub(crate) zeros_from: usize,
    /// Offsets of the pages that the device cannot read, which are zeros here.
    pub(crate) unreadable: &'a [u64],
    pub(crate) header_verifies: bool,
}

/// A place that does not verify, or does not follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fault {
    at: Lsn,
    kind: DamageKind,
}

/// State of the reading.
pub(crate) struct Walk<'a> {
    layout: Layout,
    dir: &'a str,
    first_segment: u64,
    checks_chains: bool,
    visit: &'a mut dyn FnMut(Recovered<'_>),
    /// Of the records given out.
    pub(crate) chains: Chains,
    /// Checksums of all PGs' last records, including records behind the end.
    chains_behind: Chains,
    /// Records given out.
    pub(crate) records: u64,
    /// End of what verifies without a fault.
    pub(crate) end: Lsn,
    /// Last bytes, by segment, of records that verify behind the end: to be cut.
    pub(crate) residue: BTreeMap<u64, Lsn>,
    /// Segments whose records stand for a header that does not verify.
    pub(crate) bad_headers: Vec<u64>,
    /// The first place that does not verify.
    stopped: Option<Lsn>,
    /// True if a record of this log begins there.
    torn_record: bool,
    /// True if the place read last did not verify.
    searching: bool,
    faults: Vec<Fault>,
    /// The farthest position that any record knows to be synced.
    synced: Lsn,
    broken_pgs: BTreeSet<PgId>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        layout: Layout,
        dir: &'a str,
        first_segment: u64,
        checks_chains: bool,
        visit: &'a mut dyn FnMut(Recovered<'_>),
    ) -> Self {
        Self {
            layout,
            dir,
            first_segment,
            checks_chains,
            visit,
            chains: Chains::default(),
            chains_behind: Chains::default(),
            records: 0,
            end: Lsn(layout.start_of(first_segment).0 + SEGMENT_HEADER_BYTES),
            residue: BTreeMap::new(),
            bad_headers: Vec::new(),
            stopped: None,
            torn_record: false,
            searching: false,
            faults: Vec::new(),
            synced: Lsn(0),
            broken_pgs: BTreeSet::new(),
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Reads one segment. Returns false if nothing stands for its header.
    pub(crate) fn segment(&mut self, number: u64, contents: &Contents<'_>) -> bool {
        let start = self.layout.start_of(number).0;
        let whole = self.layout.segment_bytes as usize;
        let bytes = &contents.bytes[..contents.bytes.len().min(whole)];
        assert!(contents.zeros_from <= bytes.len(), "what was read is a part of the file");
        let begins = || {
            let first = SEGMENT_HEADER_BYTES as usize;
            let rest = bytes.get(first..)?;
            v1::decode(&self.layout, Lsn(start + first as u64), rest)
        };
        let is_usable = contents.header_verifies || begins().is_some();
        if !is_usable {
            self.miss(Lsn(start), DamageKind::Header);
        } else if !contents.header_verifies {
            self.bad_headers.push(number);
        }
        self.read_records(number, &Contents { bytes, ..*contents });
        if bytes.len() < whole {
            self.fault(Lsn(start + bytes.len() as u64), DamageKind::Short);
        }
        is_usable
    }

    fn read_records(&mut self, number: u64, contents: &Contents<'_>) {
        let Contents { bytes, zeros_from, unreadable, .. } = *contents;
        let start = self.layout.start_of(number).0;
        let place = |at: usize| Lsn(start + at as u64);
        let whole = self.layout.segment_bytes as usize;
        let mut at = SEGMENT_HEADER_BYTES as usize;
        while whole - at >= RECORD_HEADER_BYTES as usize {
            let found = bytes.get(at..).and_then(|rest| v1::decode(&self.layout, place(at), rest));
            let Some((stored, checksum)) = found else {
                let rest = bytes.get(at..).unwrap_or(&[]);
                if self.stopped.is_none() {
                    self.torn_record = v1::begins(&self.layout, place(at), rest);
                }
                if !self.searching {
                    let end = at as u64 + v1::extent(&self.layout, place(at), rest);
                    let lies_in = |page: &u64| *page < end && page + WRITE_ALIGN_BYTES > at as u64;
                    let kind = match unreadable.iter().any(lies_in) {
                        true => DamageKind::Unreadable,
                        false => DamageKind::Record,
                    };
                    self.miss(place(at), kind);
                }
                match next_candidate(bytes, at, zeros_from) {
                    Some(next) => at = next,
                    None => return,
                }
                continue;
            };
            let size = v1::stored_bytes(stored.record.payload.len()) as usize;
            self.meet(place(at), place(at + size), &stored, checksum);
            if stored.kind == Kind::Padding {
                break;
            }
            at += size;
        }
        if !self.searching && self.stopped.is_none() {
            self.end = self.layout.start_of(number + 1);
        }
    }

    /// A segment between others is not there.
    pub(crate) fn missing_segment(&mut self, number: u64) {
        self.miss(self.layout.start_of(number), DamageKind::Missing);
    }

    /// Bytes behind the end that were written and never synced.
    pub(crate) fn torn_bytes(&self) -> u64 {
        let record = if self.torn_record { RECORD_HEADER_BYTES } else { 0 };
        let residue = self.residue.values().next_back().map_or(0, |last| last.0 - self.end.0);
        residue.max(record)
    }

    /// Damage found, in the order of the log. Where nothing counts as damage, what does not verify
    /// is a torn tail.
    pub(crate) fn damages(&self) -> Vec<Damage> {
        if !self.checks_chains {
            return Vec::new();
        }
        let counts = |fault: &&Fault| match fault.kind {
            // A segment has its name only at its full size: no crash makes it shorter.
            DamageKind::Chain | DamageKind::Short => true,
            // Without it there is nothing to go on with.
            DamageKind::Header if self.layout.segment_of(fault.at) == self.first_segment => true,
            _ => fault.at < self.synced,
        };
        self.faults.iter().filter(counts).map(|fault| self.damage(fault)).collect()
    }

    fn damage(&self, fault: &Fault) -> Damage {
        let segment = self.layout.segment_of(fault.at);
        Damage {
            file: segment_path(self.dir, segment),
            segment,
            offset: self.layout.offset_of(fault.at),
            kind: fault.kind,
            pgs: self.broken_pgs.iter().copied().collect(),
        }
    }

    fn meet(&mut self, start: Lsn, end: Lsn, stored: &Stored<'_>, checksum: u64) {
        self.searching = false;
        self.synced = self.synced.max(stored.synced);
        let follows = stored.kind != Kind::Op || self.follows(stored, checksum);
        if !follows && self.stopped.is_none() {
            self.fault(start, DamageKind::Chain);
            self.stop(start);
        }
        if self.stopped.is_some() {
            self.residue.insert(self.layout.segment_of(start), end);
            return;
        }
        self.end = end;
        if stored.kind == Kind::Op {
            self.records += 1;
            (self.visit)(Recovered { start, end, record: stored.record });
        }
    }

    /// True if an op is the next of its PG as far as that is known. Behind a fault a PG's first
    /// record must be known to follow.
    fn follows(&mut self, stored: &Stored<'_>, checksum: u64) -> bool {
        let pg = stored.record.pg;
        let chains = match self.stopped {
            None => &mut self.chains,
            Some(_) => &mut self.chains_behind,
        };
        let known = chains.last(pg);
        chains.set_last(pg, checksum);
        let follows = stored.chain == known || (known == 0 && self.stopped.is_none());
        if !follows {
            self.broken_pgs.insert(pg);
        }
        follows || !self.checks_chains
    }

    fn miss(&mut self, at: Lsn, kind: DamageKind) {
        if !self.searching {
            self.fault(at, kind);
        }
        self.searching = true;
        if self.checks_chains && self.stopped.is_none() {
            self.stop(at);
        }
    }

    /// Ends what is given out.
    fn stop(&mut self, at: Lsn) {
        self.stopped = Some(at);
        self.chains_behind = self.chains.clone();
    }

    fn fault(&mut self, at: Lsn, kind: DamageKind) {
        if self.faults.len() < DAMAGES_NAMED_MAX {
            self.faults.push(Fault { at, kind });
        }
    }
}

/// The next place after `at` where a record could begin; `None` if no whole one can, nor any among the
/// zeros from `zeros_from` on.
fn next_candidate(bytes: &[u8], at: usize, zeros_from: usize) -> Option<usize> {
    let mut next = at + RECORD_ALIGN_BYTES as usize;
    // A record has zeros neither in its tag nor in its kind, which follow its checksum.
    while next.is_multiple_of(ZERO_STRIDE) && bytes.get(next..next + ZERO_STRIDE) == Some(&ZEROS) {
        next += ZERO_STRIDE - RECORD_ALIGN_BYTES as usize;
    }
    let whole = bytes.len().saturating_sub(next) >= RECORD_HEADER_BYTES as usize;
    (next < zeros_from && whole).then_some(next)
}
