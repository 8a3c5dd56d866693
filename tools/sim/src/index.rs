//! The index as a PG sees it, over the simulated KV; and what a primary reads from it for proxies.

use std::ops::ControlFlow;

use bytes::Bytes;
use larder_kv::{Batch, Kv, KvError, KvReader, SimKv};
use larder_protocol::index::{Row, Visit};
use larder_protocol::pg::chunk_in;
use larder_protocol::placement::pg_of;
use larder_protocol::{Changes, Index, IndexError, RowSpan};
use larder_types::codec::decode;
use larder_types::{
    Body, BucketId, Chunk, Epoch, Metax, ObjectKey, PartRow, PgId, PieceRow, StreamId, UploadId,
    VersionRow, rows,
};

use crate::event::{Located, Piece};

/// The only bucket.
pub(crate) const BUCKET: BucketId = BucketId(1);
/// Its epoch.
pub(crate) const EPOCH: Epoch = Epoch(1);

/// The port that the machines read and write through.
pub(crate) struct Port<'a>(pub(crate) &'a SimKv);

fn failed(error: KvError) -> IndexError {
    IndexError(error.to_string())
}

impl Index for Port<'_> {
    fn get(&self, row: &[u8]) -> Result<Option<Bytes>, IndexError> {
        self.0.get(row).map_err(failed)
    }

    fn scan(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), IndexError> {
        self.0.scan(from, to, visit).map_err(failed)
    }

    fn write(&self, changes: Changes) -> Result<(), IndexError> {
        let (rows, positions) = changes.into_parts();
        let mut batch = Batch::new();
        for (row, value) in positions {
            batch.position(&row, &value);
        }
        for (row, value) in rows {
            match value {
                Some(value) => batch.put(&row, &value),
                None => batch.delete(&row),
            }
        }
        self.0.apply(&batch).map_err(failed)
    }

    fn bucket_epoch(&self, bucket: BucketId) -> Option<Epoch> {
        (bucket == BUCKET).then_some(EPOCH)
    }
}

impl Port<'_> {
    /// The key's version with the places of its bytes.
    pub(crate) fn locate(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<Option<Located>, IndexError> {
        let Some(row) = self.get(&rows::version(bucket, key, rows::UNVERSIONED))? else {
            return Ok(None);
        };
        self.located(bucket, decode("version row", &row)?).map(Some)
    }

    /// A version with the places of its bytes.
    pub(crate) fn located(
        &self,
        bucket: BucketId,
        version: VersionRow,
    ) -> Result<Located, IndexError> {
        let mut pieces = Vec::new();
        self.add_pieces(bucket, &version.body, &mut pieces)?;
        let appended = match version.body {
            Body::Pieces { pieces, .. } => Some(pieces),
            _ => None,
        };
        Ok(Located {
            op: version.op,
            etag: version.metax.etag,
            tags: version.metax.attributes.tags,
            size: version.metax.size,
            pieces,
            appended,
        })
    }

    fn add_pieces(
        &self,
        bucket: BucketId,
        body: &Body,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), IndexError> {
        match body {
            Body::Inline(bytes) => pieces.push(Piece::Inline(bytes.clone())),
            Body::Chunk(chunk) => pieces.push(Piece::Chunk(chunk.clone())),
            Body::Stream { stream, chunks, .. } => {
                for number in 0..*chunks {
                    let chunk = self.must(&rows::chunk(bucket, *stream, number))?;
                    pieces.push(Piece::Chunk(decode::<Chunk>("chunk row", &chunk)?));
                }
            }
            Body::Parts { upload, parts } => {
                for part in parts {
                    let row = self.must(&rows::part(bucket, *upload, part.number))?;
                    let part: PartRow = decode("part row", &row)?;
                    self.add_pieces(bucket, &part.body, pieces)?;
                }
            }
            Body::Pieces { pieces: id, .. } => {
                for (_, value) in self.collect(&rows::pieces(bucket, *id))? {
                    let piece = PieceRow::read(&value)?;
                    self.add_pieces(bucket, &piece.body, pieces)?;
                }
            }
        }
        Ok(())
    }

    fn must(&self, row: &[u8]) -> Result<Bytes, IndexError> {
        let missing = || IndexError(format!("an object lacks row {}", row.escape_ascii()));
        self.get(row)?.ok_or_else(missing)
    }

    /// Every key of a PG whose row is among these, with what a list shows of it.
    pub(crate) fn list(
        &self,
        bucket: BucketId,
        span: &RowSpan,
        (pg, pg_count): (PgId, u32),
    ) -> Result<Vec<crate::event::Listed>, IndexError> {
        let mut found = Vec::new();
        for (row, value) in self.collect(&rows::bucket(b'V', bucket))? {
            if !span.has(&row) {
                continue;
            }
            let (_, key, _) = rows::parse_keyed(&row)
                .ok_or_else(|| IndexError(format!("version row {}", row.escape_ascii())))?;
            if pg_of(bucket, &key, pg_count) == pg {
                let version: VersionRow = decode("version row", &value)?;
                let Metax { etag, attributes, size, .. } = version.metax;
                found.push((key, etag, attributes.tags, size));
            }
        }
        Ok(found)
    }

    /// The parts of an upload.
    pub(crate) fn parts(
        &self,
        bucket: BucketId,
        upload: UploadId,
    ) -> Result<Vec<(u16, PartRow)>, IndexError> {
        let mut found = Vec::new();
        for (row, value) in self.collect(&rows::parts(bucket, upload))? {
            let number = rows::part_number(&row)
                .ok_or_else(|| IndexError(format!("part row {}", row.escape_ascii())))?;
            found.push((number, decode("part row", &value)?));
        }
        Ok(found)
    }

    /// Streams of a PG without a parent.
    pub(crate) fn open_streams(
        &self,
        wanted: PgId,
    ) -> Result<Vec<(BucketId, StreamId)>, IndexError> {
        let mut found = Vec::new();
        for (row, value) in self.collect(b"O")? {
            if decode::<PgId>("open stream row", &value)? == wanted {
                found.extend(rows::parse_open_stream(&row));
            }
        }
        Ok(found)
    }

    /// Every chunk that a row names.
    pub(crate) fn chunks(&self) -> Result<Vec<Chunk>, IndexError> {
        let mut chunks = Vec::new();
        for table in rows::SPACE_TABLES {
            for (row, value) in self.collect(&[table])? {
                chunks.extend(chunk_in(&row, &value)?);
            }
        }
        Ok(chunks)
    }

    /// Every key's object: its PG, its bucket and its size.
    pub(crate) fn objects(&self, pgs: u32) -> Result<Vec<(PgId, BucketId, u64)>, IndexError> {
        let unreadable = |row: &[u8]| IndexError(format!("no key: {}", row.escape_ascii()));
        let mut objects = Vec::new();
        for (row, value) in self.collect(b"V")? {
            let (bucket, key, _) = rows::parse_keyed(&row).ok_or_else(|| unreadable(&row))?;
            let size = VersionRow::read(&value)?.metax.size;
            objects.push((pg_of(bucket, &key, pgs), bucket, size));
        }
        Ok(objects)
    }

    /// All rows that begin with `prefix`.
    pub(crate) fn collect(&self, prefix: &[u8]) -> Result<Vec<Row>, IndexError> {
        let mut rows = Vec::new();
        self.scan_prefix(prefix, &mut |row, value| {
            rows.push((row.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })?;
        Ok(rows)
    }
}
