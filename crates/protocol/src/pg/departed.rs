//! Rows that were removed while a read may still need them (ADR 76). A proxy that reads a large object looks its rows
//! up chunk by chunk. If the object is replaced meanwhile, the read finds its rows here.
//!
//! ```text
//!                                    somebody reads objects chunk by chunk
//!  an object ends ──▶ its first rows go ──────────▶ kept here as long as their blocks rest
//!                 └─▶ the others are garbage ─────▶ stay in the index meanwhile (`garbage.rs`)
//! ```
//! Rows and blocks rest on for as long as rows are found here.
//!
//! # Invariants
//!
//! 1. A row here begins with the name of a stream, of an upload's parts, or of a version's pieces, and none of these names is
//!    given twice. So what it tells is true of the version that was opened, for ever. It is no evidence that this version is
//!    there: nothing but a read of one that was opened asks for it.
//! 2. A row is here only while its blocks rest, or have been given up because space was short. Then what is read does not
//!    verify, and the read breaks off.
//! 3. They are of one view, and no more bytes than [`DEPARTED_BYTES_MAX`].

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::Pg;
use crate::index::Row;
use crate::limits::{
    DEPARTED_BYTES_MAX, DEPARTED_ROW_BYTES, FREED_REST_MS, FREED_REST_MS_MAX, REAPED_FIRST_MS,
    SHORT_MS,
};
use crate::space::VolumeGroup;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Departed {
    /// Freed blocks rest for so long.
    rest_ms: u64,
    /// The time at which a read last looked up a row of an object.
    read_ms: Option<u64>,
    /// The time at which one was last found here.
    found_ms: Option<u64>,
    /// The time at which space was short last.
    short_ms: Option<u64>,
    /// Until then puts that found no space wait for garbage that was spared before.
    reaped_by_ms: Option<u64>,
    rows: BTreeMap<Vec<u8>, Bytes>,
    /// The rows by the time at which they went; ascending.
    order: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
}

/// Rows that the ops of a batch remove, if they are to be kept.
#[derive(Debug, Default)]
pub(super) struct BatchDeparted {
    /// Reads may ask for them: `None` where nothing is kept.
    rows: Option<Vec<Row>>,
    bytes: usize,
}

impl BatchDeparted {
    pub(super) fn new(keeps: bool) -> Self {
        Self { rows: keeps.then(Vec::new), bytes: 0 }
    }

    /// Takes a row that goes. One batch may remove many times what is kept of all: of that it takes the first.
    pub(super) fn push(&mut self, row: &[u8], value: &[u8]) {
        let Some(rows) = self.rows.as_mut().filter(|_| self.bytes < DEPARTED_BYTES_MAX) else {
            return;
        };
        self.bytes += bytes_of(row, value);
        rows.push((row.to_vec(), value.to_vec()));
    }
}

/// Memory for a row, whose name is kept twice.
fn bytes_of(row: &[u8], value: &[u8]) -> usize {
    2 * row.len() + value.len() + DEPARTED_ROW_BYTES
}

impl Departed {
    pub(super) fn new() -> Self {
        Self {
            rest_ms: FREED_REST_MS,
            read_ms: None,
            found_ms: None,
            short_ms: None,
            reaped_by_ms: None,
            rows: BTreeMap::new(),
            order: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Nobody finds rows of the view before.
    pub(super) fn begin_view(&mut self) {
        let rest_ms = self.rest_ms;
        *self = Self { rest_ms, ..Self::new() };
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns true if an object is being read chunk by chunk.
    pub(super) fn is_read(&self, now_ms: u64) -> bool {
        self.read_ms.is_some_and(|read_ms| now_ms.saturating_sub(read_ms) < self.rest_ms)
    }

    fn note_found(&mut self, is_found: bool, now_ms: u64) {
        if is_found {
            self.found_ms = self.found_ms.max(Some(now_ms));
        }
    }

    fn note_short(&mut self, is_spared: bool, now_ms: u64) {
        self.short_ms = Some(now_ms);
        if is_spared {
            self.reaped_by_ms = Some(now_ms.saturating_add(REAPED_FIRST_MS));
        }
    }

    fn is_short(&self, now_ms: u64) -> bool {
        self.short_ms.is_some_and(|short_ms| now_ms.saturating_sub(short_ms) < SHORT_MS)
    }

    fn push(&mut self, (row, value): Row, now_ms: u64) {
        // Another put of the same bytes may have come late, and gone as well.
        if self.rows.contains_key(&row) {
            return;
        }
        self.bytes += bytes_of(&row, &value);
        self.rows.insert(row.clone(), value.into());
        self.order.push_back((now_ms, row));
        while self.bytes > DEPARTED_BYTES_MAX {
            self.pop();
        }
    }

    fn pop(&mut self) {
        let Some((_, row)) = self.order.pop_front() else { return };
        let value = self.rows.remove(&row).expect("each row is in both");
        self.bytes -= bytes_of(&row, &value);
    }

    fn end_rests(&mut self, now_ms: u64, rest_ms: u64) {
        let is_over = |(since_ms, _): &(u64, Vec<u8>)| now_ms.saturating_sub(*since_ms) >= rest_ms;
        while self.order.front().is_some_and(is_over) {
            self.pop();
        }
    }
}

impl Pg {
    /// Little room is left on the disk, or again more: while it is little nothing rests.
    pub fn note_free_space(&mut self, is_little: bool) {
        if let Some(space) = &mut self.space {
            space.note_free_space(is_little);
        }
    }

    /// Has what is freed rest for another time than [`FREED_REST_MS`]; nothing rests for none. For simulations, whose space is to be
    /// given again soon.
    pub fn rest_for(&mut self, ms: u64) {
        self.departed.rest_ms = ms;
        if let Some(space) = &mut self.space {
            space.rest_for(ms);
        }
    }

    /// The time that freed blocks rest.
    pub(super) fn rest_ms(&self) -> u64 {
        self.departed.rest_ms
    }

    /// A row of an object is about to be looked up by a read: what goes of it from now on can still be read.
    pub fn note_reader(&mut self, now_ms: u64) {
        self.departed.read_ms = self.departed.read_ms.max(Some(now_ms));
    }

    /// The value of a row that went while objects were read.
    pub fn departed(&mut self, row: &[u8], now_ms: u64) -> Option<Bytes> {
        let found = self.departed.rows.get(row).cloned();
        self.departed.note_found(found.is_some(), now_ms);
        found
    }

    /// Rows that went while objects were read, from one on and before another: the first of them.
    pub fn departed_from(
        &mut self,
        (from, to): (&[u8], &[u8]),
        count: usize,
        now_ms: u64,
    ) -> Vec<(Vec<u8>, Bytes)> {
        let rows = self.departed.rows.range(from.to_vec()..);
        let rows = rows.take_while(|(row, _)| row.as_slice() < to).take(count);
        let found: Vec<_> = rows.map(|(row, value)| (row.clone(), value.clone())).collect();
        self.departed.note_found(!found.is_empty(), now_ms);
        found
    }

    /// Returns true if rows that go are to be kept for reads under way.
    pub(super) fn keeps_departed(&self) -> bool {
        self.serves() && self.rest_ms() > 0 && self.departed.is_read(self.now_ms)
    }

    /// Keeps rows that a batch removed.
    pub(super) fn depart(&mut self, removed: BatchDeparted) {
        let now_ms = self.now_ms;
        let rows = removed.rows.unwrap_or_default();
        rows.into_iter().for_each(|row| self.departed.push(row, now_ms));
    }

    /// Space is short: what can be given again is not kept for reads under way.
    pub(super) fn note_short(&mut self) {
        let is_spared = self.is_garbage_spared();
        self.departed.note_short(is_spared, self.now_ms);
    }

    /// Returns true if puts that found no space wait for garbage that was spared, before another LV is asked for. An LV stays
    /// with its group, and garbage is no reason for one more.
    pub(super) fn reaps_first(&self) -> bool {
        let is_soon = self.departed.reaped_by_ms.is_some_and(|by_ms| self.now_ms < by_ms);
        let regains = || self.space.as_ref().is_some_and(VolumeGroup::regains);
        is_soon && (self.reaper.has_garbage() || regains())
    }

    /// Returns true once puts have waited for spared garbage for as long as they may.
    pub(super) fn ends_reaping_first(&mut self) -> bool {
        let now_ms = self.now_ms;
        self.departed.reaped_by_ms.take_if(|by_ms| now_ms >= *by_ms).is_some()
    }

    /// Returns true if garbage since then is to wait, as somebody may be reading it.
    pub(super) fn spares_garbage(&self, since_ms: u64) -> bool {
        let now_ms = self.now_ms;
        self.rest_ms() > 0
            && self.departed.is_read(now_ms)
            && !self.departed.is_short(now_ms)
            && now_ms.saturating_sub(since_ms) < FREED_REST_MS_MAX
    }

    /// Blocks that have rested are free, and the rows that named them are forgotten. Both rest on for longer while they are read.
    pub(super) fn end_rests(&mut self) {
        let (now_ms, rest_ms) = (self.now_ms, self.rest_ms());
        let is_found = |found_ms: u64| now_ms.saturating_sub(found_ms) < rest_ms;
        let is_read = self.departed.found_ms.is_some_and(is_found);
        let rest_ms = if is_read { rest_ms.max(FREED_REST_MS_MAX) } else { rest_ms };
        self.departed.end_rests(now_ms, rest_ms);
        if let Some(space) = &mut self.space {
            space.set_now(now_ms);
            space.end_rests(rest_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_keeps_no_more_rows_than_its_group_does() {
        let value = vec![1; DEPARTED_BYTES_MAX / 4];
        let mut batch = BatchDeparted::new(true);
        (0..100).for_each(|row: u8| batch.push(&[row], &value));
        let kept = batch.rows.as_deref().expect("it keeps rows");
        assert_eq!(kept.iter().map(|(row, _)| row[0]).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let mut none = BatchDeparted::new(false);
        none.push(&[1], &value);
        assert_eq!(none.rows, None);
    }

    #[test]
    fn rows_take_no_more_memory_than_they_may() {
        let mut departed = Departed::new();
        let (name, value) = ([1; 100], vec![1; 10]);
        for at in 0..20_000_u32 {
            let row = [&name[..], &at.to_be_bytes()].concat();
            departed.push((row, value.clone()), at.into());
        }
        let count = departed.rows.len();
        // Each name is there twice, and lies with its value in memory of its own.
        assert!(count * (2 * 104 + 10 + 3 * 16) <= DEPARTED_BYTES_MAX, "{count} rows");
        assert!((count + 1) * (2 * 104 + 10 + DEPARTED_ROW_BYTES) > DEPARTED_BYTES_MAX);
        assert_eq!(departed.order.len(), count);
    }
}
