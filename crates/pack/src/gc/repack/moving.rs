//! Moves what is live in one blob or bundle: versions and parts that have bytes in it get them in
//! the blob that is open then.
//!
//! # Invariant
//!
//! Bytes are verified before they are moved: rot is never given new sums.

use bytes::Bytes;
use futures::future::join_all;
use larder_objects::ObjectError;
use larder_types::{BucketId, BucketName, OpId};

use super::Repacker;
use crate::backend::Unread;
use crate::bugs::{self, Bug};
use crate::commit::command::{Command, Done, Relocate, RelocateTo};
use crate::commit::queue::ask;
use crate::counters::add;
use crate::error::PackError;
use crate::format::entry::{Container, Content, Place};
use crate::format::rows::Holder;
use crate::format::sums::{BodySums, verifies};
use crate::limits::{
    DRAIN_PASSES_MAX, MOVED_BYTES_MAX, RELOCATE_PAUSE, RELOCATE_TRIES_MAX, RELOCATED_MAX,
};

/// A run of bytes to be moved, and those that have it.
struct Extent {
    place: Place,
    holders: Vec<Holder>,
}

/// A change to be re-logged, and the name of the bucket that it is about.
pub(super) type RelocationRecord = (Option<BucketName>, Relocate);

/// One blob or bundle being emptied.
pub(super) struct Mover<'a> {
    pub(super) repacker: &'a mut Repacker,
    pub(super) container: Container,
    /// Its name in the backend.
    pub(super) name: String,
}

impl Mover<'_> {
    /// Moves everything. False if others took up bytes in it meanwhile, again and again.
    pub(super) async fn run(&mut self) -> Result<bool, PackError> {
        for _ in 0..DRAIN_PASSES_MAX {
            if self.is_empty()? {
                return Ok(true);
            }
            self.move_bodies().await?;
        }
        self.is_empty()
    }

    fn is_empty(&self) -> Result<bool, PackError> {
        Ok(self.repacker.index.holders(self.container, 0, 1)?.is_empty())
    }

    /// Moves the bodies in the order in which they are stored.
    async fn move_bodies(&mut self) -> Result<(), PackError> {
        let mut offset = 0;
        loop {
            let holders = self.repacker.index.holders(self.container, offset, RELOCATED_MAX)?;
            let Some((last, _)) = holders.last() else { return Ok(()) };
            // Those of the last run may not all be there; a run is never cut.
            let is_cut = holders.len() == RELOCATED_MAX && holders[0].0 != *last;
            let next = if is_cut { *last } else { last + 1 };
            let extents = self.extents(holders.into_iter().filter(|(at, _)| *at < next))?;
            offset = next;
            let mut from = 0;
            while from < extents.len() {
                let begin = extents[from].place.offset;
                let reach = |extent: &Extent| extent.place.offset + extent.place.len - begin;
                let rest = extents[from + 1..].iter();
                let more = rest.take_while(|extent| reach(extent) <= MOVED_BYTES_MAX).count();
                let to = from + 1 + more;
                self.move_some(&extents[from..to]).await?;
                from = to;
            }
        }
    }

    /// The extents that lie there as the index has them now, by offset.
    fn extents(
        &self,
        holders: impl Iterator<Item = (u64, Holder)>,
    ) -> Result<Vec<Extent>, PackError> {
        let mut extents: Vec<Extent> = Vec::new();
        for (offset, holder) in holders {
            let Some((_, place)) = self.place_of(&holder)? else { continue };
            if place.container != self.container || place.offset != offset {
                continue;
            }
            match extents.last_mut() {
                Some(last) if last.place == place => last.holders.push(holder),
                _ => extents.push(Extent { place, holders: vec![holder] }),
            }
        }
        Ok(extents)
    }

    /// The version or part of a holder: its op and its bytes.
    fn place_of(&self, holder: &Holder) -> Result<Option<(OpId, Place)>, PackError> {
        let index = &self.repacker.index;
        Ok(match holder {
            Holder::Key(bucket, key) => {
                index.version(*bucket, key)?.and_then(|version| match version.content {
                    Content::Run(place) => Some((version.op, place)),
                    Content::Parts { .. } => None,
                })
            }
            Holder::Part(bucket, upload, number) => {
                index.part(*bucket, *upload, *number)?.map(|part| (part.op, part.place))
            }
        })
    }

    /// Reads runs that lie close to each other with one request, and moves them.
    async fn move_some(&mut self, extents: &[Extent]) -> Result<(), PackError> {
        let begin = extents[0].place.offset;
        let last = &extents[extents.len() - 1].place;
        let bytes = self.read(begin, last.offset + last.len).await?;
        let mut moves = Vec::new();
        for extent in extents {
            let place = &extent.place;
            let from = (place.offset - begin) as usize;
            let body = bytes.slice(from..from + place.len as usize);
            if !is_sound(place, &body) {
                let at = place.offset;
                let reason = format!("bytes at {at} do not verify: it is not repacked");
                return Err(PackError::damaged(self.name.clone(), reason));
            }
            moves.push(self.move_one(extent, body));
        }
        for moved in join_all(moves).await {
            add(&self.repacker.counters.repacked_bytes, moved?);
        }
        Ok(())
    }

    /// Moves one run for all that have it; it is written once. Gives the bytes written.
    async fn move_one(&self, extent: &Extent, body: Bytes) -> Result<u64, PackError> {
        let Place { len, seed, sum_bytes, sums, .. } = extent.place.clone();
        let sums = BodySums { len, seed, sum_bytes, sums };
        let mut moved = None;
        for holder in &extent.holders {
            let to = match &moved {
                Some(place) => RelocateTo::There(Place::clone(place)),
                None => RelocateTo::Packed { pieces: vec![body.clone()], sums: sums.clone() },
            };
            let Some(reported) = self.moving(holder, &extent.place, to)? else { continue };
            if let Some(Done::Carried(Some(place))) = self.ask(reported).await? {
                moved = Some(place);
            }
        }
        Ok(moved.map_or(0, |place| place.len))
    }

    fn moving(
        &self,
        holder: &Holder,
        from: &Place,
        to: RelocateTo,
    ) -> Result<Option<RelocationRecord>, PackError> {
        let Some((op, place)) = self.place_of(holder)? else { return Ok(None) };
        if place != *from && !bugs::planted(Bug::SwapWithoutCompare) {
            return Ok(None);
        }
        let from = from.clone();
        let (bucket, carry) = match holder.clone() {
            Holder::Key(bucket, key) => {
                let from = Content::Run(from);
                (bucket, Relocate::Version { bucket, key, op, from, to })
            }
            Holder::Part(bucket, upload, number) => {
                (bucket, Relocate::Part { bucket, upload, number, op, from, to })
            }
        };
        Ok(self.name_of(bucket).map(|name| (Some(name), carry)))
    }

    pub(super) fn name_of(&self, bucket: BucketId) -> Option<BucketName> {
        self.repacker.index.bucket_by_id(bucket).map(|record| record.name)
    }

    pub(super) async fn read(&mut self, from: u64, to: u64) -> Result<Bytes, PackError> {
        self.repacker.pace.spend(to - from).await;
        let read = self.repacker.backend.read_uploaded(&self.name, from..to).await;
        read.map_err(|unread| match unread {
            Unread::Missing => PackError::damaged(self.name.clone(), "it is not there"),
            Unread::Failed(error) => error,
        })
    }

    /// Has something told; `None` if it is not so any more. While clients want more than there is room for it waits.
    pub(super) async fn ask(
        &self,
        (bucket, carry): RelocationRecord,
    ) -> Result<Option<Done>, PackError> {
        for _ in 0..RELOCATE_TRIES_MAX {
            let command = Command::Relocate { bucket: bucket.clone(), carry: carry.clone() };
            match ask(&self.repacker.queue, command).await {
                Ok((done, _)) => return Ok(Some(done)),
                Err(ObjectError::Changed) => return Ok(None),
                Err(ObjectError::SlowDown | ObjectError::Full) => {
                    tokio::time::sleep(RELOCATE_PAUSE).await;
                }
                Err(error) => return Err(PackError::Deferred { reason: error.to_string() }),
            }
        }
        let waited = RELOCATE_PAUSE * RELOCATE_TRIES_MAX;
        Err(PackError::Deferred { reason: format!("the directory had no room for {waited:?}") })
    }
}

fn is_sound(place: &Place, body: &[u8]) -> bool {
    place.sum_bytes > 0
        && body
            .chunks(place.sum_bytes as usize)
            .enumerate()
            .all(|(index, piece)| verifies(place, index as u64, piece))
}
