//! Keeps which versions and parts have which bytes, row by row as changes are applied. Repacking
//! and deleting go by it.
//!
//! # Invariants
//!
//! 1. There is a row in `R` for every version and part with bytes, and for nothing else.
//! 2. A blob's row in `C` counts as live the sum of the runs in it that have such a row; a run that
//!    several have counts once.
//! 3. So does a bundle's row in `O`. It is there while any of the bundle is live, and from its
//!    upload until it is removed.
//!
//! These rows change in the batch that changes the version or part, and survive a crash with it.
//! Whatever changes are applied, in a rebuild too, the rows fit the result.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use larder_kv::{Batch, Kv};
use larder_types::codec::{decode, encode};
use larder_types::rows::prefix_end;
use larder_types::{HybridClock, OpSeq};

use crate::error::PackError;
use crate::format::entry::{Place, Within};
use crate::format::lot::{BundleContent, Lot};
use crate::format::rows::{self, BlobContent, Holder};
use crate::ids::{BlobId, OwnId, ProcessId};

/// The changes of one batch.
pub(crate) struct Ledger<'a> {
    kv: &'a dyn Kv,
    pub(crate) batch: Batch,
    blobs: BTreeMap<BlobId, Option<BlobContent>>,
    bundles: BTreeMap<OwnId, BundleContent>,
    /// Rows of `R` that the batch puts, or removes.
    held: BTreeMap<Vec<u8>, bool>,
}

impl<'a> Ledger<'a> {
    pub(crate) fn new(kv: &'a dyn Kv) -> Self {
        let (blobs, bundles) = (BTreeMap::new(), BTreeMap::new());
        Self { kv, batch: Batch::new(), blobs, bundles, held: BTreeMap::new() }
    }

    /// Takes down that a blob has a change.
    pub(crate) fn note(
        &mut self,
        blob: BlobId,
        seq: OpSeq,
        clock: HybridClock,
    ) -> Result<(), PackError> {
        let content = self.blob(blob)?;
        let first_clock = Some(clock);
        let new = BlobContent { first: seq, first_clock, last: seq, clock, end: 0, live: 0 };
        let content = content.get_or_insert(new);
        (content.last, content.clock) = (content.last.max(seq), content.clock.max(clock));
        Ok(())
    }

    /// `holder` has these bytes from now on. `here` is the blob of the change that says so.
    pub(crate) fn hold(
        &mut self,
        place: &Place,
        holder: &Holder,
        here: BlobId,
    ) -> Result<(), PackError> {
        if place.len == 0 {
            return Ok(());
        }
        let row = rows::held(place, holder);
        let is_here = Lot::of(place.within).is_some_and(|(blob, _)| blob == here);
        if let Some((end, _)) = self.counted(place.within)? {
            // Behind all that there was: nobody else can have it yet.
            let is_new = is_here && place.offset >= *end;
            let is_shared = !is_new && self.is_held(place)?;
            if let Some((end, live)) = self.counted(place.within)? {
                *end = (*end).max(place.offset + place.len);
                *live += if is_shared { 0 } else { place.len };
            }
        }
        self.batch.put(&row, &[]);
        self.held.insert(row, true);
        Ok(())
    }

    /// `holder` has these bytes no longer.
    pub(crate) fn release(&mut self, place: &Place, holder: &Holder) -> Result<(), PackError> {
        if place.len == 0 {
            return Ok(());
        }
        let row = rows::held(place, holder);
        self.batch.delete(&row);
        self.held.insert(row, false);
        let is_forgotten = matches!(place.within, Within::Own(_))
            && crate::bugs::planted(crate::bugs::Bug::BundleNotCounted);
        if !is_forgotten
            && self.counted(place.within)?.is_some()
            && !self.is_held(place)?
            && let Some((_, live)) = self.counted(place.within)?
        {
            let left = live.checked_sub(place.len);
            *live = left.ok_or_else(|| {
                let reason = format!("{:?} has less than its objects", place.within);
                PackError::damaged("the index", reason)
            })?;
        }
        Ok(())
    }

    /// Where the last body within ends, and how many bytes are live; `None` of what is not counted: a large object,
    /// and a blob that there is not.
    fn counted(&mut self, within: Within) -> Result<Option<(&mut u64, &mut u64)>, PackError> {
        Ok(match within {
            Within::Blob(id) => {
                self.blob(id)?.as_mut().map(|content| (&mut content.end, &mut content.live))
            }
            Within::Own(id) if id.bundle().is_some() => {
                let content = self.bundle(id)?;
                Some((&mut content.end, &mut content.live))
            }
            Within::Own(_) => None,
        })
    }

    /// Returns true if anybody has these bytes, as of now and the batch.
    fn is_held(&self, place: &Place) -> Result<bool, PackError> {
        let from = rows::held_at(place.within, place.offset);
        let end = prefix_end(&from);
        let added = self.held.range(from.clone()..).take_while(|(row, _)| row.starts_with(&from));
        if added.into_iter().any(|(_, is_put)| *is_put) {
            return Ok(true);
        }
        let mut found = false;
        self.kv.scan(&from, end.as_deref(), &mut |row, _| {
            found = self.held.get(row) != Some(&false);
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(found)
    }

    /// The content of a blob; `None` if there is no such blob: its row went with it.
    fn blob(&mut self, id: BlobId) -> Result<&mut Option<BlobContent>, PackError> {
        use std::collections::btree_map::Entry;
        match self.blobs.entry(id) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let row = self.kv.get(&rows::content(id))?;
                let content = match row {
                    Some(value) => Some(BlobContent::decode(&value)?),
                    None => None,
                };
                Ok(new.insert(content))
            }
        }
    }

    /// The content of a bundle.
    fn bundle(&mut self, id: OwnId) -> Result<&mut BundleContent, PackError> {
        use std::collections::btree_map::Entry;
        let known = match self.bundles.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => match self.kv.get(&rows::bundle(id))? {
                Some(value) => new.insert(decode("what a bundle has", &value)?),
                None => new.insert(BundleContent::default()),
            },
        };
        Ok(known)
    }

    /// The batch, with the rows of all blobs that it touched.
    pub(crate) fn finish(mut self) -> Batch {
        for (id, content) in &self.blobs {
            if let Some(content) = content {
                self.batch.put(&rows::content(*id), &content.encode());
            }
        }
        for (id, content) in &self.bundles {
            // The row of one that was uploaded stays until it is removed: readers get its name by
            // it.
            match (content.live, content.process) {
                (0, ProcessId::UNNUMBERED) => self.batch.delete(&rows::bundle(*id)),
                _ => self.batch.put(&rows::bundle(*id), &encode(content)),
            };
        }
        self.batch
    }
}
