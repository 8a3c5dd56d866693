//! A walk over the rows of a server's index on behalf of all PGs that it leads. It finds what their chunks lack, and
//! has what is most urgent done first.
//!
//! No row says of which PG it is without being read, so one walk serves all PGs. Copies are made in rounds: the
//! first walk makes only the most urgent ones, the next those that were the most urgent among what it left. So after a
//! double loss every object of the server has two copies before any gets its third.
//!
//! # Invariants
//!
//! 1. A PG is told that it was walked over only by a walk that has looked at every row. One may pause between two rows for
//!    any time, while no copy is under way: whatever has changed meanwhile is a reason for another.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::codec::decode;
use larder_types::{Chunk, LvId, PgId, View};

use super::{Pg, Refill};
use crate::copy_pacing::CopyPriority;
use crate::index::{Index, IndexError};
use crate::limits::{WALK_CHECK_MS, WALK_PAUSE_MS_MAX};
use crate::message::Event;
use crate::row::{chunk_in, owner};

/// The findings that a walk is to make for a PG.
#[derive(Debug)]
struct Walked {
    view: View,
    number: u64,
    unmet: BTreeSet<(LvId, usize)>,
}

/// See the module's head.
#[derive(Debug)]
pub struct Walk {
    bound: CopyPriority,
    pgs: BTreeMap<PgId, Walked>,
    /// The most urgent of the copies that were left for a later walk.
    left: Option<CopyPriority>,
    /// Chunks that lack something, by the number of copies that can be read.
    lacking: BTreeMap<usize, u64>,
    has_changed: bool,
    /// PGs with chunks of a single copy of which none was made.
    still_single: BTreeSet<PgId>,
}

impl Walk {
    /// A walk that makes copies as urgent as `bound`. PGs are added before the index is looked at.
    #[must_use]
    pub fn new(bound: CopyPriority) -> Self {
        let (pgs, lacking, still_single) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { bound, pgs, left: None, lacking, has_changed: false, still_single }
    }

    /// It makes copies that are as urgent as this.
    #[must_use]
    pub fn bound(&self) -> CopyPriority {
        self.bound
    }

    /// Walks for a PG too, if it wants to be.
    pub fn add(&mut self, pg: &Pg) {
        if let Some(number) = pg.wants_walk() {
            let walked = Walked { view: pg.view(), number, unmet: BTreeSet::new() };
            self.pgs.insert(pg.id(), walked);
        }
    }

    /// PGs for which it walks.
    pub fn pgs(&self) -> impl Iterator<Item = PgId> + use<> {
        self.pgs.keys().copied().collect::<Vec<_>>().into_iter()
    }

    /// Also examines a PG's chunks if copies may be missing, though the index may not show the last outcomes yet. This
    /// is no walk: the PG gets no notice of its end.
    pub fn look_at(&mut self, pg: &Pg) {
        if pg.has_copies_to_make() {
            let walked = Walked { view: pg.view(), number: 0, unmet: BTreeSet::new() };
            self.pgs.insert(pg.id(), walked);
        }
    }

    /// Returns true if it walks for this PG.
    #[must_use]
    pub fn is_for(&self, pg: PgId) -> bool {
        self.pgs.contains_key(&pg)
    }

    /// Looks at a chunk in a row; returns the copy to be made now.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn consider(
        &mut self,
        pg: &mut Pg,
        (row, chunk): (&[u8], &Chunk),
        index: &dyn Index,
    ) -> Result<Option<Box<Refill>>, IndexError> {
        let Some(walked) = self.pgs.get_mut(&pg.id()).filter(|it| it.view == pg.view()) else {
            return Ok(None);
        };
        let considered = pg.consider(row, chunk, self.bound, index)?;
        if considered.unmet.is_empty() {
            return Ok(None);
        }
        walked.unmet.extend(considered.unmet.iter().map(|replica| (chunk.lv, replica)));
        *self.lacking.entry(considered.good).or_default() += 1;
        if let Some(priority) = considered.priority.filter(|_| considered.refill.is_none()) {
            self.left = Some(self.left.map_or(priority, |left| left.min(priority)));
            if priority.is_single() {
                self.still_single.insert(pg.id());
            }
        }
        self.has_changed |= considered.gives_up;
        Ok(considered.refill)
    }

    /// A copy that it asked for was made.
    pub fn copied(&mut self) {
        self.has_changed = true;
    }

    /// A copy that it asked for, of a chunk with a single one, was not made.
    pub fn missed_single(&mut self, pg: PgId) {
        self.still_single.insert(pg);
    }

    /// PGs with chunks of a single copy that it has found, and of which no copy was made.
    pub fn still_single(&self) -> impl Iterator<Item = PgId> + use<'_> {
        self.still_single.iter().copied()
    }

    /// Returns the event for a PG when all rows were looked at and all copies were made or failed. `None` if it is in
    /// another view by now.
    #[must_use]
    pub fn ended(&self, pg: &Pg) -> Option<Event> {
        let walked = self.pgs.get(&pg.id()).filter(|walked| walked.view == pg.view())?;
        Some(Event::Walked { walk: walked.number, unmet: walked.unmet.clone() })
    }

    /// Returns true if it has found anything to do and done it, or left something for the next.
    #[must_use]
    pub fn has_effect(&self) -> bool {
        self.has_changed || self.left.is_some_and(|left| left > self.bound)
    }

    /// The most urgent of the copies that were left for a later walk.
    #[must_use]
    pub fn left(&self) -> Option<CopyPriority> {
        self.left
    }

    /// The bound of the next walk.
    #[must_use]
    pub fn next_bound(&self) -> CopyPriority {
        self.left.unwrap_or(CopyPriority::FIRST)
    }

    /// Returns the reasons to walk: the number of each PG's reasons, and the view in which they are counted.
    fn reasons(&self) -> BTreeMap<PgId, (View, u64)> {
        self.pgs.iter().map(|(pg, walked)| (*pg, (walked.view, walked.number))).collect()
    }

    /// Chunks that lacked something, by the number of copies that can be read.
    #[must_use]
    pub fn lacking(&self) -> &BTreeMap<usize, u64> {
        &self.lacking
    }
}

/// The times of walks: soon where there is a reason that no walk has dealt with, ever more seldom where one could do
/// nothing about it.
#[derive(Debug, Default)]
pub struct WalkSchedule {
    /// The reasons of the last walk.
    reasons: BTreeMap<PgId, (View, u64)>,
    pause_ms: u64,
    ended_ms: u64,
}

impl WalkSchedule {
    /// Returns true if a walk with these reasons begins now.
    #[must_use]
    pub fn is_due(&self, now_ms: u64, walk: &Walk) -> bool {
        let is_news = walk.reasons().iter().any(|(pg, why)| self.reasons.get(pg) != Some(why));
        is_news || now_ms >= self.ended_ms + self.pause_ms
    }

    /// A walk is over.
    pub fn ended(&mut self, now_ms: u64, walk: &Walk) {
        let longer = (2 * self.pause_ms).clamp(WALK_CHECK_MS, WALK_PAUSE_MS_MAX);
        // Where nothing can be done now it is not tried at once again.
        self.pause_ms = if walk.has_effect() { 0 } else { longer };
        (self.reasons, self.ended_ms) = (walk.reasons(), now_ms);
    }

    /// Nobody wants a walk.
    pub fn cancel(&mut self) {
        *self = Self::default();
    }
}

/// The chunk that a row of the index has, with the PG whose row it is. `None` if it has none, or if the PG is not one
/// of those that are wanted.
///
/// # Errors
/// [`IndexError`] if the row cannot be read.
pub fn chunk_at(
    row: &[u8],
    value: &[u8],
    pg_count: u32,
    is_wanted: impl FnOnce(PgId) -> bool,
) -> Result<Option<(PgId, Chunk)>, IndexError> {
    // Of this table alone the row does not say whose it is.
    if row.first() == Some(&b'K') {
        let chunk: Chunk = decode("chunk row", value)?;
        return Ok(is_wanted(chunk.grant.pg).then_some((chunk.grant.pg, chunk)));
    }
    let Some(pg) = owner(row, value, pg_count)?.filter(|pg| is_wanted(*pg)) else {
        return Ok(None);
    };
    Ok(chunk_in(row, value)?.map(|chunk| (pg, chunk)))
}
