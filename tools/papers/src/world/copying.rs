//! Copies on their way: a data server that is to have one reads it from a holder, piece by piece, and writes it.
//!
//! ```text
//!  its turn at the maker ─▶ holder: disk, link ─▶ maker: link ─▶ all pieces there ─▶ maker: disk ─▶ durable
//! ```
//!
//! # Invariants
//!
//! 1. A data server makes [`COPIES_MAX`] copies at a time, and asks for [`COPY_READS_MAX`] pieces of each, as those that ship.
//! 2. A holder that is gone is not asked: its connection breaks at once.

use std::collections::{BTreeMap, VecDeque};

use larder_protocol::pg::Refill;
use larder_roles::limits::{COPIES_MAX, COPY_READS_MAX, READ_PIECE_BYTES};
use larder_types::{PgId, ServerId};

use super::group::number_of;
use super::{Happening, World};

#[derive(Debug)]
struct Copy {
    /// The meta server that wants it.
    wanted_by: ServerId,
    pg: PgId,
    refill: Refill,
    from: ServerId,
    to: ServerId,
    unread: u64,
    unwritten: u64,
    /// Pieces on their way.
    pieces: usize,
}

/// Copies that a data server makes, and those that wait for their turn there.
#[derive(Debug, Default)]
struct Maker {
    under_way: usize,
    waiting: VecDeque<usize>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Copying {
    copies: BTreeMap<usize, Copy>,
    next: usize,
    makers: BTreeMap<ServerId, Maker>,
}

impl World {
    /// A meta server has a copy made.
    pub(super) fn begin_copy(&mut self, wanted_by: ServerId, pg: PgId, refill: Refill) {
        let group = &self.groups[pg.0 as usize];
        let (lv, number) = (refill.chunk.lv, number_of(&refill.chunk));
        let server = |replica: usize| group.server_of(lv, replica);
        let others = refill.from.iter().filter(|replica| *replica != refill.to);
        let mut holders: Vec<ServerId> = others.filter_map(server).collect();
        let first = refill.chunk.grant.op.seq.0 as usize % holders.len().max(1);
        holders.rotate_left(first);
        let from = holders.into_iter().find(|holder| !self.is_gone(*holder));
        let to = server(refill.to).filter(|to| !self.is_gone(*to));
        self.truth.begins(self.now_us, lv, number);
        let id = self.copying.next;
        self.copying.next += 1;
        let bytes = u64::from(refill.chunk.len);
        let (Some(from), Some(to)) = (from, to) else {
            // It is found out at once, and told later than this call.
            let copy = Copy {
                wanted_by,
                pg,
                refill,
                from: wanted_by,
                to: wanted_by,
                unread: 0,
                unwritten: bytes,
                pieces: 0,
            };
            self.copying.copies.insert(id, copy);
            return self.after(2 * self.setup.hardware.message_us, Happening::Written(id));
        };
        let copy =
            Copy { wanted_by, pg, refill, from, to, unread: bytes, unwritten: bytes, pieces: 0 };
        self.copying.copies.insert(id, copy);
        let maker = self.copying.makers.entry(to).or_default();
        if maker.under_way < COPIES_MAX {
            maker.under_way += 1;
            self.ask(id);
        } else {
            maker.waiting.push_back(id);
        }
    }

    /// Asks the holder for the next pieces.
    fn ask(&mut self, id: usize) {
        let hardware = self.setup.hardware;
        loop {
            let Some(copy) = self.copying.copies.get_mut(&id) else { return };
            if copy.unread == 0 || copy.pieces >= COPY_READS_MAX {
                return;
            }
            let bytes = copy.unread.min(READ_PIECE_BYTES);
            copy.unread -= bytes;
            copy.pieces += 1;
            let from = copy.from.0 as usize;
            let asked_us = self.now_us + hardware.message_us;
            let read_us = self.machines[from].disk(asked_us, bytes, &hardware);
            self.at(read_us, Happening::Read(id, bytes));
        }
    }

    /// A piece is read at the holder.
    pub(super) fn read(&mut self, id: usize, bytes: u64) {
        let Some(from) = self.copying.copies.get(&id).map(|copy| copy.from) else { return };
        let (now_us, hardware) = (self.now_us, self.setup.hardware);
        let sent_us = self.machines[from.0 as usize].send(now_us, bytes, &hardware);
        self.at(sent_us, Happening::Sent(id, bytes));
    }

    /// It has left the holder.
    pub(super) fn sent(&mut self, id: usize, bytes: u64) {
        let Some(to) = self.copying.copies.get(&id).map(|copy| copy.to) else { return };
        let (now_us, hardware) = (self.now_us, self.setup.hardware);
        let there_us = self.machines[to.0 as usize].receive(now_us, bytes, &hardware);
        self.at(there_us, Happening::Received(id, bytes));
    }

    /// It is at the maker.
    pub(super) fn received(&mut self, id: usize, bytes: u64) {
        let Some(copy) = self.copying.copies.get_mut(&id) else { return };
        copy.pieces -= 1;
        copy.unwritten -= bytes;
        let (to, is_whole, len) = (copy.to, copy.unwritten == 0, u64::from(copy.refill.chunk.len));
        if !is_whole {
            return self.ask(id);
        }
        let (now_us, hardware) = (self.now_us, self.setup.hardware);
        let written_us = self.machines[to.0 as usize].disk(now_us, len, &hardware);
        self.at(written_us + hardware.sync_us + hardware.message_us, Happening::Written(id));
    }

    /// It is durable, or could not be made.
    pub(super) fn written(&mut self, id: usize) {
        let Some(copy) = self.copying.copies.remove(&id) else { return };
        let is_copied = copy.unwritten == 0;
        let (lv, number) = (copy.refill.chunk.lv, number_of(&copy.refill.chunk));
        let bytes = u64::from(copy.refill.chunk.len);
        self.truth.ends(self.now_us, lv, number, is_copied.then_some(bytes));
        if is_copied && let Some(maker) = self.copying.makers.get_mut(&copy.to) {
            match maker.waiting.pop_front() {
                Some(next) => self.ask(next),
                None => maker.under_way -= 1,
            }
        }
        self.copy_ended(copy.wanted_by, (copy.pg, copy.refill), is_copied);
    }
}
