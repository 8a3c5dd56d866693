//! The part of a group that one sync covers: its writes are handed to the disk, then its headers, then all of it is
//! synced.

use larder_env::DiskError;
use larder_types::{GrantKey, LvId};

use crate::command::{Answer, Completion, Refusal};
use crate::pv::Pv;
use crate::run::Run;
use crate::volume::Volume;

/// The part of a group that the next sync will cover.
pub(crate) struct Part<'a, 'd> {
    pub run: Run<'a>,
    pub done: &'d mut Vec<Completion>,
    /// The first completion that is not durable yet.
    pub first: usize,
}

/// The space that the disk had for the write in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Enough,
    Full,
}

impl Volume {
    /// Writes the current run. If the disk turns out to be full, refuses the writes in it that are
    /// completed already, and says so if the write in hand is one of them.
    pub(crate) fn write_run(&mut self, part: &mut Part<'_, '_>) -> Result<Space, DiskError> {
        let in_hand = part.done.len();
        let written = part.run.write(&*self.file)?;
        match written {
            Ok(0) => Ok(Space::Enough),
            Ok(bytes) => {
                self.counters.writes += 1;
                self.counters.bytes_written += bytes;
                self.unsynced = true;
                Ok(Space::Enough)
            }
            Err(full) => {
                self.unsynced = true;
                for completion in &mut part.done[full.owners.start..full.owners.end.min(in_hand)] {
                    if completion.result == Ok(Answer::Written) {
                        completion.result = Err(Refusal::Full);
                    }
                }
                Ok(if full.owners.contains(&in_hand) { Space::Full } else { Space::Enough })
            }
        }
    }

    /// Changes a PV's state and remembers to write its header. Returns the floor in force.
    pub(crate) fn change(
        &mut self,
        lv: LvId,
        change: impl FnOnce(&mut Pv) -> Result<(), Refusal>,
    ) -> Result<GrantKey, Refusal> {
        let pv = self.pvs.get_mut(&lv).ok_or(Refusal::UnknownLv)?;
        let was_dirty = pv.dirty;
        let changed = change(pv);
        if pv.dirty && !was_dirty {
            self.dirty.push(lv);
        }
        changed.map(|()| pv.header.floor)
    }

    /// Makes what was done so far durable.
    pub(crate) fn commit(&mut self, part: &mut Part<'_, '_>) -> Result<(), DiskError> {
        // The completions of those whom a full disk concerns are in the part already.
        self.write_run(part)?;
        if std::mem::take(&mut self.twins_wait) {
            // A header's first slot is durable before the second is touched, so that a crash in between can
            // be told from the loss of a header that was answered for.
            self.sync()?;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for lv in dirty.drain(..) {
            let pv = self.pvs.get_mut(&lv).expect("a dirty PV is there");
            pv.write_header(&*self.file, &self.superblock, self.planted)?;
            self.counters.headers_written += 1;
            self.unsynced = true;
        }
        self.dirty = dirty;
        self.sync()?;
        part.first = part.done.len();
        Ok(())
    }

    pub(crate) fn sync(&mut self) -> Result<(), DiskError> {
        if self.unsynced && !self.planted.acks_before_sync() {
            self.file.sync()?;
            self.counters.syncs += 1;
            self.unsynced = false;
        }
        Ok(())
    }
}
