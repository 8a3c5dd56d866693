//! Keeps which versions and parts have which bytes, row by row as changes are applied. Repacking
//! and deleting go by it.
//!
//! # Invariants
//!
//! 1. There is a row in `R` for every version and part with bytes, and for nothing else.
//! 2. A blob's row in `C` counts as live the sum of the runs in it that have such a row; a run that
//!    several have counts once.
//! 3. So does a bundle's row in `O`. It is there while any of the bundle is live, and of this worker's also from
//!    its upload until it is removed.
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
use crate::format::entry::{Container, Place};
use crate::format::rows::{self, BlobContent, Holder};
use crate::format::upload_unit::{BundleContent, UploadUnit};
use crate::ids::{BlobId, ProcessId, StandaloneId};
use crate::index::EndedBundles;

/// The changes of one batch.
pub(crate) struct ExtentRefs<'a> {
    kv: &'a dyn Kv,
    ended: EndedBundles,
    pub(crate) batch: Batch,
    blobs: BTreeMap<BlobId, Option<BlobContent>>,
    bundles: BTreeMap<StandaloneId, BundleContent>,
    /// Rows of `R` that the batch puts, or removes.
    held: BTreeMap<Vec<u8>, bool>,
}

impl<'a> ExtentRefs<'a> {
    pub(super) fn new(kv: &'a dyn Kv, ended: EndedBundles) -> Self {
        let (blobs, bundles) = (BTreeMap::new(), BTreeMap::new());
        Self { kv, ended, batch: Batch::new(), blobs, bundles, held: BTreeMap::new() }
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
        let is_here = UploadUnit::of(place.container).is_some_and(|(blob, _)| blob == here);
        if let Some((end, _)) = self.counted(place.container)? {
            // Behind all that there was: nobody else can have it yet.
            let is_new = is_here && place.offset >= *end;
            let is_shared = !is_new && self.is_held(place)?;
            if let Some((end, live)) = self.counted(place.container)? {
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
        let is_forgotten = matches!(place.container, Container::Own(_))
            && crate::bugs::planted(crate::bugs::Bug::BundleNotCounted);
        if !is_forgotten
            && self.counted(place.container)?.is_some()
            && !self.is_held(place)?
            && let Some((_, live)) = self.counted(place.container)?
        {
            let left = live.checked_sub(place.len);
            *live = left.ok_or_else(|| {
                let reason = format!("{:?} has less than its objects", place.container);
                PackError::damaged("the index", reason)
            })?;
        }
        Ok(())
    }

    /// Where the last body within ends, and how many bytes are live; `None` of what is not counted: a large object,
    /// and a blob that there is not.
    fn counted(&mut self, container: Container) -> Result<Option<(&mut u64, &mut u64)>, PackError> {
        Ok(match container {
            Container::Blob(id) => {
                self.blob(id)?.as_mut().map(|content| (&mut content.end, &mut content.live))
            }
            Container::Own(id) if id.bundle().is_some() => {
                let content = self.bundle(id)?;
                Some((&mut content.end, &mut content.live))
            }
            Container::Own(_) => None,
        })
    }

    /// Returns true if anybody has these bytes, as of now and the batch.
    fn is_held(&self, place: &Place) -> Result<bool, PackError> {
        let from = rows::held_at(place.container, place.offset);
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
    fn bundle(&mut self, id: StandaloneId) -> Result<&mut BundleContent, PackError> {
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
            // Readers get the name of one that was uploaded by its row.
            let is_kept = content.live > 0
                || content.process != ProcessId::UNNUMBERED && self.ended == EndedBundles::Kept;
            match is_kept {
                true => self.batch.put(&rows::bundle(*id), &encode(content)),
                false => self.batch.delete(&rows::bundle(*id)),
            };
        }
        self.batch
    }
}

#[cfg(test)]
mod tests {
    use larder_kv::SimKv;
    use larder_types::{BucketId, ObjectKey};

    use super::*;
    use crate::ids::WorkerId;
    use crate::index::Index;

    const BLOB: BlobId = BlobId { worker: WorkerId(3), seq: 4 };
    const OTHER: StandaloneId = StandaloneId { worker: WorkerId(3), run: 0, number: 9 << 8 | 1 };

    /// Takes the only body of a bundle from an index; gives the bundle's row after that.
    fn end_bundle(index: &Index, process: ProcessId) -> Option<BundleContent> {
        let (container, sums) = (UploadUnit::numbered(1).unwrap().container(BLOB), vec![9]);
        let Container::Own(bundle) = container else { panic!("a bundle is an object of its own") };
        let place = Place { container, offset: 0, len: 5, seed: 7, sum_bytes: 65_536, sums };
        let holder = Holder::Key(BucketId(1), ObjectKey::new("k").unwrap());
        let mut ledger = index.ledger();
        ledger.hold(&place, &holder, BLOB).unwrap();
        index.commit(ledger.finish(), None).unwrap();
        index.add_bundles(BLOB, process, Batch::new(), None).unwrap();
        assert_eq!(index.bundle(bundle).unwrap(), Some(BundleContent { end: 5, live: 5, process }));
        let mut ledger = index.ledger();
        ledger.release(&place, &holder).unwrap();
        index.commit(ledger.finish(), None).unwrap();
        index.bundle(bundle).unwrap()
    }

    #[test]
    fn a_bundle_without_live_bytes_keeps_its_row_where_it_is_removed_and_nowhere_else() {
        let process = ProcessId::new(7).unwrap();
        let rows = || Box::new(SimKv::default());
        let own = Index::over(rows()).unwrap().0;
        assert_eq!(end_bundle(&own, process), Some(BundleContent { end: 5, live: 0, process }));
        let another = Index::of_another(rows()).unwrap().0;
        assert_eq!(end_bundle(&another, process), None);
        for index in [&own, &another] {
            assert_eq!(end_bundle(index, ProcessId::UNNUMBERED), None, "it was not uploaded");
        }
        // A backup of the other worker's index has its rows.
        let content = BundleContent { end: 5, live: 0, process };
        for (index, expected) in [(own, Some(content)), (another, None)] {
            let mut batch = Batch::new();
            batch.put(&rows::bundle(OTHER), &encode(&content));
            index.commit(batch, None).unwrap();
            index.forget_ended_bundles().unwrap();
            assert_eq!(index.bundle(OTHER).unwrap(), expected);
        }
    }
}
