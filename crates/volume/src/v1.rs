//! Version 1 of the disk's format: `docs/formats/volume.md` has it byte by byte.
//!
//! Superblock in two copies, a header of two slots per PV, then the data. Every structure is 4 KiB, is
//! little-endian and ends with the XXH3-64 of what comes before.

use std::collections::BTreeMap;

use larder_env::DiskError;
use larder_types::limits::{BLOCK_BYTES, REPLICAS_MAX};
use larder_types::{DiskId, Grant, GrantKey, LvId, MapVersion, OpId, OpSeq, PgId, PvId, View};
use xxhash_rust::xxh3::xxh3_64;

use crate::limits::{PV_BYTES_MAX, PV_BYTES_STEP, PV_COUNT_MAX, VOIDS_MAX};

/// Number of this version.
pub(crate) const VERSION: u32 = 1;
/// Bytes of a superblock copy and of a header slot.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Bytes of both slots of a header.
pub(crate) const HEADER_BYTES: usize = 2 * PAGE_BYTES;
/// Offsets of the superblock's copies.
pub(crate) const SUPERBLOCK_OFFSETS: [u64; 2] = [0, PAGE_BYTES as u64];

const SUPERBLOCK_MAGIC: [u8; 8] = *b"LARDDISK";
const HEADER_MAGIC: [u8; 8] = *b"LARDERPV";
const HEADERS_OFFSET: u64 = 2 * PAGE_BYTES as u64;
const SUM_OFFSET: usize = PAGE_BYTES - 8;
/// Byte of what is lost: no slot is filled with it, nor is one that is empty.
const LOST: u8 = 0xFF;
const STATE_IN_USE: u8 = 1;
const STATE_LET_GO: u8 = 2;
const VOIDS_OFFSET: usize = 72;
const VOID_BYTES: usize = 24;
const GIVEN_OFFSET: usize = VOIDS_OFFSET + VOIDS_MAX * VOID_BYTES;

const _: () = assert!(GIVEN_OFFSET == 3912, "what is stored behind the voids stays where it is");
const _: () = assert!(GIVEN_OFFSET + 8 <= SUM_OFFSET, "all fields fit a slot");
const _: () = assert!(VOIDS_MAX <= u16::MAX as usize, "voids are counted by u16");
const _: () = assert!(PAGE_BYTES == BLOCK_BYTES as usize, "a page is a block");

pub(crate) type Page = [u8; PAGE_BYTES];

/// The identity of a disk and its division; never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Id of the cluster that the disk belongs to.
    pub cluster: u64,
    pub disk: DiskId,
    /// Bytes of each PV's blocks.
    pub pv_bytes: u64,
    /// The most PVs that the disk can have.
    pub pv_count: u32,
}

/// The claim of the LV that a PV's header names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    InUse,
    /// The LV has another PV since.
    LetGo,
}

/// The durable state of a PV that was given to an LV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub pv: PvId,
    pub lv: LvId,
    pub state: State,
    pub replica: u8,
    /// Grows by one with each write; its lowest bit is the slot.
    pub generation: u64,
    pub view: View,
    pub floor: GrantKey,
    /// A report, never relied on: blocks from the start that had been reserved.
    pub provisioned_blocks: u32,
    pub voids: Vec<Grant>,
    /// The newest map under which it was given, or let go. Only a newer one may give it to another. 0 in a header of
    /// before this was stored.
    pub given: MapVersion,
}

/// The reason that a superblock copy is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadSuperblock {
    NotOne,
    Version(u32),
    Damaged,
}

/// The meaning of both slots of a header together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    Free,
    /// The second says whether but one slot names this owner.
    InUse(Header, bool),
    LetGo(Header),
    Damaged,
}

enum Slot {
    Empty,
    Valid(Header),
    Bad,
}

impl Superblock {
    pub(crate) fn encode(&self) -> Page {
        let mut page = Writer::new(SUPERBLOCK_MAGIC);
        page.put(&BLOCK_BYTES.to_le_bytes());
        page.put(&self.cluster.to_le_bytes());
        page.put(&self.disk.0.to_le_bytes());
        page.put(&self.pv_count.to_le_bytes());
        page.put(&self.pv_bytes.to_le_bytes());
        page.seal()
    }

    pub(crate) fn decode(page: &Page) -> Result<Self, BadSuperblock> {
        if page[..8] != SUPERBLOCK_MAGIC {
            return Err(BadSuperblock::NotOne);
        }
        let mut fields = sealed(page).ok_or(BadSuperblock::Damaged)?;
        let version = fields.u32();
        if version != VERSION {
            return Err(BadSuperblock::Version(version));
        }
        let block_bytes = fields.u32();
        let found = Self {
            cluster: fields.u64(),
            disk: DiskId(fields.u32()),
            pv_count: fields.u32(),
            pv_bytes: fields.u64(),
        };
        let sane = block_bytes == BLOCK_BYTES
            && (1..=PV_COUNT_MAX).contains(&found.pv_count)
            && (PV_BYTES_STEP..=PV_BYTES_MAX).contains(&found.pv_bytes)
            && found.pv_bytes.is_multiple_of(PV_BYTES_STEP);
        if sane { Ok(found) } else { Err(BadSuperblock::Damaged) }
    }

    pub(crate) fn pv_blocks(&self) -> u32 {
        (self.pv_bytes / u64::from(BLOCK_BYTES)) as u32
    }

    pub(crate) fn header_offset(&self, pv: PvId) -> u64 {
        assert!(pv.0 < self.pv_count, "PV {pv} is on this disk");
        HEADERS_OFFSET + u64::from(pv.0) * HEADER_BYTES as u64
    }

    pub(crate) fn data_start(&self) -> u64 {
        let headers = u64::from(self.pv_count) * HEADER_BYTES as u64;
        (HEADERS_OFFSET + headers).next_multiple_of(PV_BYTES_STEP)
    }

    pub(crate) fn pv_offset(&self, pv: PvId) -> u64 {
        assert!(pv.0 < self.pv_count, "PV {pv} is on this disk");
        self.data_start() + u64::from(pv.0) * self.pv_bytes
    }

    /// Reads all headers. `read` fills its buffer from an offset and returns how far it got. Where it fails, the headers
    /// are read page by page, and a page that cannot be read is a bad slot.
    pub(crate) fn read_headers(
        &self,
        read: impl Fn(u64, &mut [u8]) -> Result<usize, DiskError>,
    ) -> Result<Vec<Found>, DiskError> {
        const PVS_AT_ONCE: u32 = 128;
        let mut found = Vec::with_capacity(self.pv_count as usize);
        let mut bytes = vec![0; PVS_AT_ONCE.min(self.pv_count) as usize * HEADER_BYTES];
        for first in (0..self.pv_count).step_by(PVS_AT_ONCE as usize) {
            let count = PVS_AT_ONCE.min(self.pv_count - first);
            let bytes = &mut bytes[..count as usize * HEADER_BYTES];
            let offset = self.header_offset(PvId(first));
            match read_or_lose(&read, offset, bytes) {
                Err(DiskError::Broken { .. }) => {
                    for (page, at) in bytes.chunks_mut(PAGE_BYTES).zip(0u64..) {
                        let offset = offset + at * PAGE_BYTES as u64;
                        match read_or_lose(&read, offset, page) {
                            Err(DiskError::Broken { .. }) => page.fill(LOST),
                            read => read?,
                        }
                    }
                }
                read => read?,
            }
            for (index, slots) in bytes.as_chunks::<HEADER_BYTES>().0.iter().enumerate() {
                found.push(self.find(PvId(first + index as u32), slots));
            }
        }
        keep_one_of_each_lv(&mut found);
        Ok(found)
    }

    /// Reads the two slots of a PV's header. A header is first written to slot 1 and synced before slot 0 is
    /// touched, so that only `slot 0 empty, slot 1 torn` is a creation never answered.
    pub(crate) fn find(&self, pv: PvId, slots: &[u8; HEADER_BYTES]) -> Found {
        let (pages, _) = slots.as_chunks::<PAGE_BYTES>();
        match (self.slot(pv, 0, &pages[0]), self.slot(pv, 1, &pages[1])) {
            (Slot::Valid(a), Slot::Valid(b)) => {
                let (older, newer) = if a.generation < b.generation { (a, b) } else { (b, a) };
                // A PV that was assigned to another LV, when power failed before both slots recorded it.
                if newer.lv != older.lv && newer.given <= older.given {
                    return Found::Damaged;
                }
                let is_alone = newer.lv != older.lv || older.state == State::LetGo;
                Found::of(newer, is_alone)
            }
            (Slot::Valid(header), _) | (_, Slot::Valid(header)) => Found::of(header, true),
            (Slot::Empty, Slot::Empty | Slot::Bad) => Found::Free,
            (Slot::Bad, _) => Found::Damaged,
        }
    }

    fn slot(&self, pv: PvId, index: u64, page: &Page) -> Slot {
        if page.iter().all(|byte| *byte == 0) {
            return Slot::Empty;
        }
        match Header::decode(page, self) {
            Some(header) if header.pv == pv && header.generation % 2 == index => {
                Slot::Valid(header)
            }
            _ => Slot::Bad,
        }
    }
}

impl Found {
    fn of(header: Header, is_alone: bool) -> Self {
        match header.state {
            State::InUse => Self::InUse(header, is_alone),
            State::LetGo => Self::LetGo(header),
        }
    }
}

/// Fills a buffer. A file cut short inside its headers has lost them, which is not the same as empty.
fn read_or_lose(
    read: impl Fn(u64, &mut [u8]) -> Result<usize, DiskError>,
    offset: u64,
    into: &mut [u8],
) -> Result<(), DiskError> {
    let filled = read(offset, into)?;
    into[filled..].fill(LOST);
    Ok(())
}

/// Of two PVs of one LV the one counts that was given under the newer map: the power went before the other's header
/// said that it was let go. If neither is newer, which one was answered for is not known: the first is kept, and
/// its content is judged as any.
fn keep_one_of_each_lv(found: &mut [Found]) {
    let mut kept: BTreeMap<LvId, (usize, MapVersion)> = BTreeMap::new();
    for at in 0..found.len() {
        let Found::InUse(header, _) = &found[at] else { continue };
        let (lv, given) = (header.lv, header.given);
        let (loses, other_given) = match kept.get(&lv) {
            Some(&(other, other_given)) if other_given < given => (other, other_given),
            Some(&(_, other_given)) => (at, other_given),
            None => {
                kept.insert(lv, (at, given));
                continue;
            }
        };
        if loses != at {
            kept.insert(lv, (at, given));
        }
        let lost = std::mem::replace(&mut found[loses], Found::Damaged);
        if let Found::InUse(header, _) = lost
            && given != other_given
        {
            found[loses] = Found::LetGo(header);
        }
    }
}

impl Header {
    /// Offset of the slot to which this generation belongs.
    pub(crate) fn slot_offset(&self, superblock: &Superblock) -> u64 {
        superblock.header_offset(self.pv) + self.generation % 2 * PAGE_BYTES as u64
    }

    pub(crate) fn encode(&self, superblock: &Superblock) -> Page {
        assert!(self.voids.len() <= VOIDS_MAX, "voids are bounded");
        assert!(self.floor.view <= self.view, "a floor is not ahead of its view");
        let mut page = Writer::new(HEADER_MAGIC);
        page.put(&self.pv.0.to_le_bytes());
        page.put(&superblock.cluster.to_le_bytes());
        page.put(&superblock.disk.0.to_le_bytes());
        let state = match self.state {
            State::InUse => STATE_IN_USE,
            State::LetGo => STATE_LET_GO,
        };
        page.put(&[state, self.replica]);
        page.put(&(self.voids.len() as u16).to_le_bytes());
        page.put(&self.generation.to_le_bytes());
        page.put(&self.lv.0.to_le_bytes());
        page.put(&self.provisioned_blocks.to_le_bytes());
        page.put(&self.view.0.to_le_bytes());
        page.put(&self.floor.view.0.to_le_bytes());
        page.put(&self.floor.seq.0.to_le_bytes());
        assert_eq!(page.at, VOIDS_OFFSET, "voids begin at their place");
        for grant in &self.voids {
            page.put(&grant.op.view.0.to_le_bytes());
            page.put(&grant.op.seq.0.to_le_bytes());
            page.put(&grant.attempt.to_le_bytes());
            page.put(&grant.pg.0.to_le_bytes());
        }
        page.at = GIVEN_OFFSET;
        page.put(&self.given.0.to_le_bytes());
        page.seal()
    }

    fn decode(page: &Page, superblock: &Superblock) -> Option<Self> {
        if page[..8] != HEADER_MAGIC {
            return None;
        }
        let mut fields = sealed(page)?;
        let version = fields.u32();
        let pv = PvId(fields.u32());
        let (cluster, disk) = (fields.u64(), fields.u32());
        let [state, replica] = fields.take::<2>();
        let void_count = usize::from(fields.u16());
        let mut header = Self {
            pv,
            state: if state == STATE_LET_GO { State::LetGo } else { State::InUse },
            replica,
            generation: fields.u64(),
            lv: LvId(fields.u32()),
            provisioned_blocks: fields.u32(),
            view: View(fields.u64()),
            floor: OpId { view: View(fields.u64()), seq: OpSeq(fields.u64()) },
            voids: Vec::with_capacity(void_count.min(VOIDS_MAX)),
            given: MapVersion(Fields(&page[GIVEN_OFFSET..]).u64()),
        };
        let sane = version == VERSION
            && (cluster, disk) == (superblock.cluster, superblock.disk.0)
            && [STATE_IN_USE, STATE_LET_GO].contains(&state)
            && usize::from(replica) < REPLICAS_MAX
            && void_count <= VOIDS_MAX
            && header.generation > 0
            && header.floor.view <= header.view;
        if !sane {
            return None;
        }
        for _ in 0..void_count {
            let op = OpId { view: View(fields.u64()), seq: OpSeq(fields.u64()) };
            let attempt = fields.u32();
            header.voids.push(Grant { pg: PgId(fields.u32()), op, attempt });
        }
        Some(header)
    }
}

/// Fills a page from its start: magic, version, then fields.
struct Writer {
    page: Page,
    at: usize,
}

impl Writer {
    fn new(magic: [u8; 8]) -> Self {
        let mut writer = Self { page: [0; PAGE_BYTES], at: 0 };
        writer.put(&magic);
        writer.put(&VERSION.to_le_bytes());
        writer
    }

    fn put(&mut self, bytes: &[u8]) {
        assert!(self.at + bytes.len() <= SUM_OFFSET, "fields end before the checksum");
        self.page[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn seal(mut self) -> Page {
        let sum = xxh3_64(&self.page[..SUM_OFFSET]);
        self.page[SUM_OFFSET..].copy_from_slice(&sum.to_le_bytes());
        self.page
    }
}

/// Reads fields from behind the magic, in order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk::<N>().expect("fields end before the page");
        self.0 = rest;
        *field
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// The fields of a page whose checksum is right.
fn sealed(page: &Page) -> Option<Fields<'_>> {
    let (body, sum) = page.split_at(SUM_OFFSET);
    (xxh3_64(body).to_le_bytes() == sum).then(|| Fields(&body[8..]))
}

#[cfg(test)]
mod tests;
