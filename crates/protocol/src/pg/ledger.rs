//! Members learn blocks and counts from their index: from one walk over it, for as many PGs as want to know. The walk goes in
//! stretches, each over a snapshot of its own: none is kept for as long as a walk takes.

use std::collections::BTreeMap;

use larder_types::rows::{self, SPACE_TABLES};
use larder_types::{Chunk, OpId, PgId};

use super::Pg;
use super::walk::chunk_at;
use crate::high_water::HighWater;
use crate::index::IndexError;
use crate::ledger::{BucketCounts, CountFault, NamedBlocks, Stretch};
use crate::limits::REAP_ROWS_MAX;
use crate::lv::LvInfo;
use crate::row::{contents_of, owner};
use crate::space::{Space, SpaceFault};

/// The findings of one walk about a PG.
#[derive(Debug)]
struct Found {
    /// The number under which the PG waits for it.
    walk: u64,
    /// The last op that the snapshot shows.
    at: OpId,
    stretch: Stretch,
    /// Something has more rows than one op removes.
    has_large: bool,
}

/// A walk over an index for the ledgers of some PGs. First add the PGs. Then for each stretch take a snapshot of the index,
/// and say how far it shows each PG. Feed it rows in their order from [`LedgerWalk::from`] on, end the stretch at each PG,
/// and go on.
#[derive(Debug)]
pub struct LedgerWalk {
    pg_count: u32,
    found: BTreeMap<PgId, Found>,
    from: Vec<u8>,
}

impl LedgerWalk {
    /// A walk in a cluster of so many PGs.
    #[must_use]
    pub fn new(pg_count: u32) -> Self {
        Self { pg_count, found: BTreeMap::new(), from: vec![SPACE_TABLES[0]] }
    }

    /// Adds a PG, unless its ledger is known already, with its counts, or its rows are yet to come ([`Pg::is_whole`]).
    pub fn add(&mut self, pg: &mut Pg) {
        if pg.is_whole && (pg.ledger.known().is_none() || pg.ledger.counts().is_none()) {
            let (walk, stretch) = (pg.ledger.begin_walk(), Stretch::default());
            let found = Found { walk, at: OpId::default(), stretch, has_large: false };
            self.found.insert(pg.id, found);
        }
    }

    /// The row with which the stretch begins.
    #[must_use]
    pub fn from(&self) -> &[u8] {
        &self.from
    }

    /// Returns true if a row lies behind all that name blocks.
    #[must_use]
    pub fn is_behind_all(row: &[u8]) -> bool {
        row.first() > SPACE_TABLES.last()
    }

    /// PGs that were added.
    pub fn pgs(&self) -> impl Iterator<Item = PgId> {
        self.found.keys().copied()
    }

    /// The last op that the snapshot shows of a PG.
    pub fn shows(&mut self, pg: PgId, at: OpId) {
        if let Some(found) = self.found.get_mut(&pg) {
            found.at = at;
        }
    }

    /// Takes a row of the snapshot; rows that name no blocks, or are of other PGs, are passed over.
    ///
    /// # Errors
    /// [`IndexError`] if the row cannot be read.
    pub fn note(&mut self, row: &[u8], value: &[u8]) -> Result<(), IndexError> {
        if row.first() == Some(&b'P') {
            let of = rows::parse_part(row).map(|upload| upload.pg);
            self.note_number(of, rows::part_number(row).map(u32::from));
        }
        if row.first() == Some(&b'V') {
            return self.note_version(row, value);
        }
        let is_for = |pg| self.found.contains_key(&pg);
        let Some((pg, chunk)) = chunk_at(row, value, self.pg_count, is_for)? else { return Ok(()) };
        if row.first() == Some(&b'K') {
            self.note_number(Some(pg), rows::chunk_number(row));
        }
        self.note_chunk(pg, &chunk);
        Ok(())
    }

    fn note_version(&mut self, row: &[u8], value: &[u8]) -> Result<(), IndexError> {
        let pg = owner(row, value, self.pg_count)?;
        let Some(found) = pg.and_then(|pg| self.found.get_mut(&pg)) else { return Ok(()) };
        let (chunk, object) = contents_of(row, value)?;
        if let Some((bucket, size)) = object {
            found.stretch.note_object(bucket, size);
        }
        if let Some(chunk) = chunk {
            found.stretch.note_chunk(&chunk);
        }
        Ok(())
    }

    fn note_chunk(&mut self, pg: PgId, chunk: &Chunk) {
        if let Some(found) = self.found.get_mut(&pg) {
            found.stretch.note_chunk(chunk);
        }
    }

    /// A stream or an upload that has more rows than a step was made before this member began, its row with this number says.
    fn note_number(&mut self, pg: Option<PgId>, number: Option<u32>) {
        let is_large = number.is_some_and(|number| number >= REAP_ROWS_MAX);
        if is_large && let Some(found) = pg.and_then(|pg| self.found.get_mut(&pg)) {
            found.has_large = true;
        }
    }

    /// Tells a PG what the stretch was found to have, if it still waits for it. `until` is the first row that was not read;
    /// `None` if all were.
    pub fn end_stretch(&mut self, pg: &mut Pg, until: Option<&[u8]>) {
        let Some(Found { walk, at, stretch, has_large }) = self.found.get_mut(&pg.id) else {
            return;
        };
        if std::mem::take(has_large) {
            pg.note_large();
        }
        let at = if pg.planted.takes_changes_twice() { OpId::default() } else { *at };
        let were_known = pg.ledger.known().is_some();
        pg.ledger.end_stretch(*walk, std::mem::take(stretch), at, until);
        // A walk that counts says nothing new of blocks: marks that were made void stay so.
        if !were_known {
            pg.seed_high_water();
        }
    }

    /// The next stretch begins with this row.
    pub fn go_on(&mut self, from: Vec<u8>) {
        assert!(from > self.from, "a walk goes forward");
        self.from = from;
    }
}

impl Pg {
    /// Keeps marks from now on where the rows end, if it is known what they name. A follower that took a snapshot, or whose
    /// marks were void, has none otherwise until it leads, and those of one that never leads would only rise. Those of a
    /// primary have to lie above what it grants.
    pub(super) fn seed_high_water(&mut self) {
        if let Some(named) = self.ledger.known()
            && self.is_whole
            && !self.serves()
        {
            self.high_water = Some(HighWater::known(named.tops()));
        }
    }

    /// Returns the blocks that the index's rows name, if they are known.
    #[must_use]
    pub fn ledger(&self) -> Option<&NamedBlocks> {
        self.ledger.known()
    }

    /// Returns the reason for which the ledger is void: rows name what they cannot, or an op freed it.
    #[must_use]
    pub fn ledger_fault(&self) -> Option<SpaceFault> {
        self.ledger.fault()
    }

    /// Objects of each bucket in the index's rows at the applied position, and their bytes; `None` while they are not counted.
    #[must_use]
    pub fn counts(&self) -> Option<&BucketCounts> {
        self.ledger.counts().filter(|_| self.is_whole)
    }

    /// Returns the reason for which the counts are void: an op changed what was not counted, or there is more than can
    /// be.
    #[must_use]
    pub fn count_fault(&self) -> Option<CountFault> {
        self.ledger.count_fault()
    }

    /// Returns true if the rows are here, and are to be read so that they are counted.
    #[must_use]
    pub fn wants_count(&self) -> bool {
        self.is_whole && self.ledger.counts().is_none() && self.ledger.count_fault().is_none()
    }

    /// Drops the ledger of blocks once it is not needed any more. Counts stay.
    pub fn forget_ledger(&mut self) {
        self.ledger.forget();
    }

    /// Returns the space that the group may allocate from in these LVs once everything in its log is applied; `None` if
    /// the ledger does not know.
    ///
    /// # Errors
    /// [`SpaceFault`] if METAX contradicts itself or the map: nothing may be served then.
    #[must_use]
    pub fn derive_space(
        &self,
        lvs: impl Iterator<Item = LvInfo>,
    ) -> Option<Result<Space, SpaceFault>> {
        let named = self.ledger.known()?;
        Some(named.space(lvs, self.open_chunks()))
    }
}
