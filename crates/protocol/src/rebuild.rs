//! The content of METAX about space and streams, collected row by row. `larder inspect` checks a store with it, and the
//! simulator the ledgers (`ledger.rs`), which are the allocators' source.
//!
//! # Invariants
//!
//! 1. A block that any row or open put names is not free; a block that none names is.
//! 2. Nothing is decided here: contradictions are listed, and the caller refuses to serve on a
//!    [`SpaceFault`].
//!
//! Feed it one consistent state of the index, through the applied position of the PGs whose open
//! puts are claimed as well.

use std::collections::BTreeMap;

use larder_types::codec::decode;
use larder_types::{
    Body, BucketId, Chunk, LvId, PartRow, PgId, PieceRow, PiecesId, StreamId, UploadId, UploadRow,
    VersionRow, rows,
};

use crate::index::IndexError;
use crate::lv::LvInfo;
use crate::space::FreeRuns;
pub use crate::space::{Space, SpaceFault};

/// Rows that do not fit each other: space that nobody will ever free, or an object that lacks bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stray {
    /// Chunks of a stream that is neither open nor named by an object or part.
    #[error("bucket {bucket}: chunks of stream {stream:?} belong to nothing")]
    ChunksOfNothing {
        /// Bucket.
        bucket: BucketId,
        /// Stream.
        stream: StreamId,
    },
    /// An object or part names more chunks than there are.
    #[error("bucket {bucket}: an object lacks chunks of stream {stream:?}")]
    ChunksMissing {
        /// Bucket.
        bucket: BucketId,
        /// Stream.
        stream: StreamId,
    },
    /// Parts of an upload that is neither open nor named by an object.
    #[error("bucket {bucket}: parts of upload {upload} belong to nothing")]
    PartsOfNothing {
        /// Bucket.
        bucket: BucketId,
        /// Upload.
        upload: UploadId,
    },
    /// An object names what is about to be removed.
    #[error("bucket {bucket}: an object names rows that are to be removed")]
    NamedGarbage {
        /// Bucket.
        bucket: BucketId,
    },
    /// An object names parts that are not there.
    #[error("bucket {bucket}: an object lacks parts of upload {upload}")]
    PartsMissing {
        /// Bucket.
        bucket: BucketId,
        /// Upload.
        upload: UploadId,
    },
    /// Pieces of an object that is not there.
    #[error("bucket {bucket}: pieces {pieces} belong to nothing")]
    PiecesOfNothing {
        /// Bucket.
        bucket: BucketId,
        /// Pieces.
        pieces: PiecesId,
    },
    /// An object that was appended to names more pieces than there are.
    #[error("bucket {bucket}: an object lacks some of its pieces {pieces}")]
    PiecesMissing {
        /// Bucket.
        bucket: BucketId,
        /// Pieces.
        pieces: PiecesId,
    },
}

/// The findings.
#[derive(Debug)]
pub struct Derived {
    /// The space that a PG allocates from.
    pub space: Space,
    /// Contradictions of space: serve nothing if there is one.
    pub faults: Vec<SpaceFault>,
    /// Rows that do not fit each other.
    pub strays: Vec<Stray>,
    /// Streams without a parent, with their PG: those of dead sessions are to be dropped.
    pub open_streams: Vec<(BucketId, StreamId, PgId)>,
    /// Beginnings of rows that are to go in steps.
    pub garbage: usize,
}

/// Rows of one stream, of one upload or of the pieces of one object, and what names them.
#[derive(Debug, Clone, Copy, Default)]
struct Family {
    rows: u32,
    /// Rows that its parent names.
    named: Option<u32>,
    is_open: bool,
    is_garbage: bool,
}

impl Family {
    fn belongs_to_nothing(&self) -> bool {
        self.rows > 0 && self.named.is_none() && !self.is_open && !self.is_garbage
    }

    fn is_named_garbage(&self) -> bool {
        self.is_garbage && self.named.is_some()
    }

    fn lacks_rows(&self) -> bool {
        self.named.is_some_and(|named| named > self.rows)
    }
}

/// Collects rows; see the module's head.
#[derive(Debug)]
pub struct SpaceScan {
    lvs: BTreeMap<LvId, (LvInfo, FreeRuns)>,
    faults: Vec<SpaceFault>,
    streams: BTreeMap<(BucketId, StreamId), Family>,
    uploads: BTreeMap<(BucketId, UploadId), Family>,
    pieces: BTreeMap<(BucketId, PiecesId), Family>,
    open_streams: Vec<(BucketId, StreamId, PgId)>,
    garbage: usize,
    is_as_wanted: bool,
}

impl SpaceScan {
    /// Begins with every LV wholly free.
    #[must_use]
    pub fn new(lvs: impl Iterator<Item = LvInfo>) -> Self {
        let whole = |info: LvInfo| (info.lv, (info.clone(), FreeRuns::whole(info.blocks)));
        Self {
            lvs: lvs.map(whole).collect(),
            faults: Vec::new(),
            streams: BTreeMap::new(),
            uploads: BTreeMap::new(),
            pieces: BTreeMap::new(),
            open_streams: Vec::new(),
            garbage: 0,
            is_as_wanted: true,
        }
    }

    /// Takes a row of the index; rows that say nothing about space or streams are passed over.
    ///
    /// # Errors
    /// [`IndexError`] if the row cannot be read.
    pub fn note(&mut self, row: &[u8], value: &[u8]) -> Result<(), IndexError> {
        match row.first() {
            Some(b'K') => {
                let (bucket, stream) = stream_of_chunk(row).ok_or_else(|| unreadable(row))?;
                self.streams.entry((bucket, stream)).or_default().rows += 1;
                self.note_chunk(&decode::<Chunk>("chunk row", value)?);
            }
            Some(b'O') => {
                let (bucket, stream) =
                    rows::parse_open_stream(row).ok_or_else(|| unreadable(row))?;
                self.streams.entry((bucket, stream)).or_default().is_open = true;
                self.open_streams.push((bucket, stream, decode("open stream row", value)?));
            }
            Some(b'P') => {
                let (bucket, upload) = upload_of_part(row).ok_or_else(|| unreadable(row))?;
                self.uploads.entry((bucket, upload)).or_default().rows += 1;
                self.note_body(bucket, &decode::<PartRow>("part row", value)?.body);
            }
            Some(b'U') => {
                let (bucket, ..) = rows::parse_keyed(row).ok_or_else(|| unreadable(row))?;
                let open = decode::<UploadRow>("upload row", value)?;
                self.uploads.entry((bucket, open.upload)).or_default().is_open = true;
            }
            Some(b'V') => {
                let (bucket, ..) = rows::parse_keyed(row).ok_or_else(|| unreadable(row))?;
                self.note_body(bucket, &VersionRow::read(value)?.body);
            }
            Some(b'Q') => self.note_garbage(row)?,
            Some(b'W') => {
                let (bucket, pieces, _) = rows::parse_piece(row).ok_or_else(|| unreadable(row))?;
                self.pieces.entry((bucket, pieces)).or_default().rows += 1;
                self.note_body(bucket, &PieceRow::read(value)?.body);
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes a row of garbage: what it calls garbage will go, and nothing may name it.
    fn note_garbage(&mut self, row: &[u8]) -> Result<(), IndexError> {
        let (_, beginning) = rows::parse_garbage(row).ok_or_else(|| unreadable(row))?;
        let last = |bytes: usize| [beginning, &vec![0; bytes]].concat();
        let family = match beginning.first() {
            Some(b'K') => stream_of_chunk(&last(4)).map(|it| self.streams.entry(it).or_default()),
            Some(b'P') => upload_of_part(&last(2)).map(|it| self.uploads.entry(it).or_default()),
            Some(b'W') => rows::parse_piece(&last(8))
                .map(|(bucket, pieces, _)| self.pieces.entry((bucket, pieces)).or_default()),
            _ => return Ok(()),
        };
        family.ok_or_else(|| unreadable(row))?.is_garbage = true;
        self.garbage += 1;
        Ok(())
    }

    fn note_body(&mut self, bucket: BucketId, body: &Body) {
        match body {
            Body::Inline(_) => {}
            Body::Chunk(chunk) => self.note_chunk(chunk),
            Body::Stream { stream, chunks, .. } => {
                self.streams.entry((bucket, *stream)).or_default().named = Some(*chunks);
            }
            Body::Parts { upload, parts } => {
                let named = Some(parts.len() as u32);
                self.uploads.entry((bucket, *upload)).or_default().named = named;
            }
            Body::Pieces { pieces, rows } => {
                self.pieces.entry((bucket, *pieces)).or_default().named = Some(*rows);
            }
        }
    }

    fn note_chunk(&mut self, chunk: &Chunk) {
        let wanted = self.lvs.get(&chunk.lv).map(|(info, _)| info.present());
        self.is_as_wanted &= wanted == Some(chunk.holders);
        self.claim(chunk);
    }

    /// Takes the blocks of a chunk out of what is free; also those of a put that is still open.
    pub fn claim(&mut self, chunk: &Chunk) {
        let lv = chunk.lv;
        let Some((_, runs)) = self.lvs.get_mut(&lv) else {
            self.faults.push(SpaceFault::UnknownLv { lv });
            return;
        };
        for &extent in &chunk.extents {
            if runs.claim(extent).is_err() {
                self.faults.push(SpaceFault::Overlap { lv, extent });
            }
        }
    }

    /// Returns the findings, once every row was taken.
    #[must_use]
    pub fn finish(self) -> Derived {
        let mut strays = Vec::new();
        let families = self.streams.iter().map(|((bucket, _), family)| (bucket, family));
        let families =
            families.chain(self.uploads.iter().map(|((bucket, _), family)| (bucket, family)));
        let families =
            families.chain(self.pieces.iter().map(|((bucket, _), family)| (bucket, family)));
        let named = families.filter(|(_, family)| family.is_named_garbage());
        strays.extend(named.map(|(bucket, _)| Stray::NamedGarbage { bucket: *bucket }));
        for ((bucket, stream), family) in self.streams {
            if family.belongs_to_nothing() {
                strays.push(Stray::ChunksOfNothing { bucket, stream });
            }
            if family.lacks_rows() {
                strays.push(Stray::ChunksMissing { bucket, stream });
            }
        }
        for ((bucket, upload), family) in self.uploads {
            if family.belongs_to_nothing() {
                strays.push(Stray::PartsOfNothing { bucket, upload });
            }
            if family.lacks_rows() {
                strays.push(Stray::PartsMissing { bucket, upload });
            }
        }
        for ((bucket, pieces), family) in self.pieces {
            if family.belongs_to_nothing() {
                strays.push(Stray::PiecesOfNothing { bucket, pieces });
            }
            if family.lacks_rows() {
                strays.push(Stray::PiecesMissing { bucket, pieces });
            }
        }
        let space =
            Space { lvs: self.lvs.into_values().collect(), is_as_wanted: self.is_as_wanted };
        let Self { faults, open_streams, garbage, .. } = self;
        Derived { space, faults, strays, open_streams, garbage }
    }
}

fn stream_of_chunk(row: &[u8]) -> Option<(BucketId, StreamId)> {
    let (stream, _number) = row.split_last_chunk::<4>()?;
    let mut open = stream.to_vec();
    *open.first_mut()? = b'O';
    rows::parse_open_stream(&open)
}

fn upload_of_part(row: &[u8]) -> Option<(BucketId, UploadId)> {
    let (upload, _number) = row.split_last_chunk::<2>()?;
    let (bucket, upload) = upload.get(1..)?.split_first_chunk::<8>()?;
    Some((BucketId(u64::from_be_bytes(*bucket)), rows::parse_upload_tail(upload)?))
}

fn unreadable(row: &[u8]) -> IndexError {
    IndexError(format!("row {} has no such form", row.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use larder_types::codec::encode;
    use larder_types::{Extent, Grant, Holders, OpId, OpSeq, SessionId, View};

    use super::*;

    const BUCKET: BucketId = BucketId(3);

    fn chunk(first: u32, blocks: u32) -> Chunk {
        let op = OpId { view: View(1), seq: OpSeq(u64::from(first) + 1) };
        Chunk {
            grant: Grant { pg: PgId(0), op, attempt: 0 },
            seed: 1,
            lv: LvId(1),
            extents: vec![Extent { first, blocks }],
            len: blocks * 4096,
            sums: vec![0],
            holders: Holders(1),
        }
    }

    fn scan() -> SpaceScan {
        let info = LvInfo {
            lv: LvId(1),
            blocks: 100,
            copies: 3,
            replicas: Vec::new(),
            as_of: larder_types::MapVersion(1),
        };
        SpaceScan::new(std::iter::once(info))
    }

    fn stream(number: u64) -> StreamId {
        StreamId { session: SessionId(7), number }
    }

    #[test]
    fn what_rows_and_open_puts_name_is_not_free() {
        let mut scan = scan();
        let row = rows::chunk(BUCKET, stream(1), 0);
        scan.note(&row, &encode(&chunk(10, 5))).unwrap();
        scan.note(&rows::open_stream(BUCKET, stream(1)), &encode(&PgId(2))).unwrap();
        scan.claim(&chunk(0, 10));
        let derived = scan.finish();
        assert_eq!(derived.space.lvs[0].1.blocks(), 85);
        assert_eq!(derived.open_streams, [(BUCKET, stream(1), PgId(2))]);
        assert!(derived.faults.is_empty() && derived.strays.is_empty());
    }

    #[test]
    fn a_block_claimed_twice_and_an_unknown_volume_are_faults() {
        let mut scan = scan();
        scan.claim(&chunk(0, 10));
        scan.claim(&chunk(9, 2));
        scan.claim(&Chunk { lv: LvId(2), ..chunk(50, 1) });
        let extent = Extent { first: 9, blocks: 2 };
        let overlap = SpaceFault::Overlap { lv: LvId(1), extent };
        assert_eq!(scan.finish().faults, [overlap, SpaceFault::UnknownLv { lv: LvId(2) }]);
    }

    #[test]
    fn rows_without_a_parent_and_parents_without_rows_are_strays() {
        let mut scan = scan();
        scan.note(&rows::chunk(BUCKET, stream(1), 0), &encode(&chunk(0, 1))).unwrap();
        let body = Body::Stream { stream: stream(2), chunks: 2, chunk_bytes: 4096 };
        scan.note_body(BUCKET, &body);
        scan.note(&rows::chunk(BUCKET, stream(2), 0), &encode(&chunk(1, 1))).unwrap();
        let op = OpId { view: View(1), seq: OpSeq(4) };
        let upload = UploadId { pg: PgId(0), op };
        let part = PartRow { op, metax: metax(), body: Body::Chunk(chunk(2, 1)) };
        scan.note(&rows::part(BUCKET, upload, 3), &encode(&part)).unwrap();
        assert!(scan.note(b"K", b"").is_err(), "a row of no form");
        scan.note(&rows::applied(PgId(1)), b"").unwrap();
        let (bucket, derived) = (BUCKET, scan.finish());
        assert_eq!(
            derived.strays,
            [
                Stray::ChunksOfNothing { bucket, stream: stream(1) },
                Stray::ChunksMissing { bucket, stream: stream(2) },
                Stray::PartsOfNothing { bucket, upload },
            ]
        );
    }

    fn metax() -> larder_types::Metax {
        larder_types::Metax::new(
            4096,
            larder_types::HybridClock(1),
            larder_types::ETag::Md5([0; 16]),
        )
    }
}
