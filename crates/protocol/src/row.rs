//! The meaning of a row of the index: the PG that it belongs to, and the chunk or the object that it has.

use larder_types::codec::{decode, encode};
use larder_types::{Body, BucketId, Chunk, ObjectEntry, PartRow, PgId, PieceRow, VersionRow, rows};

use crate::index::IndexError;
use crate::placement::pg_of;

/// The PG that a row belongs to; `None` for rows that each member has of its own.
///
/// # Errors
/// [`IndexError`] if it cannot be read.
pub fn owner(row: &[u8], value: &[u8], pg_count: u32) -> Result<Option<PgId>, IndexError> {
    let unreadable = || IndexError(format!("row {} has no such form", row.escape_ascii()));
    Ok(match row.first() {
        Some(b'K') => Some(decode::<Chunk>("chunk row", value)?.grant.pg),
        Some(b'O') => Some(decode::<PgId>("open stream row", value)?),
        Some(b'P') => Some(rows::parse_part(row).ok_or_else(unreadable)?.pg),
        Some(b'W') => Some(rows::parse_piece(row).ok_or_else(unreadable)?.1.pg),
        Some(b'Q') => Some(rows::parse_garbage(row).ok_or_else(unreadable)?.0),
        Some(b'F') => Some(rows::parse_clock_floor(row).ok_or_else(unreadable)?),
        Some(b'J') => Some(rows::parse_outcome(row).ok_or_else(unreadable)?.0),
        Some(b'R') => Some(rows::parse_passed(row).ok_or_else(unreadable)?),
        Some(b'T' | b'U' | b'V') => {
            let (bucket, key, _) = rows::parse_keyed(row).ok_or_else(unreadable)?;
            Some(pg_of(bucket, &key, pg_count))
        }
        _ => None,
    })
}

/// The chunk that a row of the index has; `None` if its body lies in METAX or in other rows, or if it is a row of
/// another kind.
///
/// # Errors
/// [`IndexError`] if the row cannot be read.
pub fn chunk_in(row: &[u8], value: &[u8]) -> Result<Option<Chunk>, IndexError> {
    let body = match row.first() {
        Some(b'K') => return Ok(Some(decode::<Chunk>("chunk row", value)?)),
        Some(b'P') => decode::<PartRow>("part row", value)?.body,
        Some(b'V') => VersionRow::read(value)?.body,
        Some(b'W') => PieceRow::read(value)?.body,
        _ => return Ok(None),
    };
    Ok(if let Body::Chunk(chunk) = body { Some(chunk) } else { None })
}

/// The chunk that a row names, and the object of a key's row: its bucket and its size.
type Contents = (Option<Chunk>, Option<(BucketId, u64)>);

/// The content of an index row, read once.
pub(crate) fn contents_of(row: &[u8], value: &[u8]) -> Result<Contents, IndexError> {
    if row.first() != Some(&b'V') {
        return Ok((chunk_in(row, value)?, None));
    }
    // Only a key's null version can be read so: no key has another row with an object.
    let VersionRow { metax, body, .. } = VersionRow::read(value)?;
    let chunk = if let Body::Chunk(chunk) = body { Some(chunk) } else { None };
    Ok((chunk, rows::bucket_of(row).map(|bucket| (bucket, metax.size))))
}

/// The row's value with its chunk changed; `None` if it has none.
pub(crate) fn with_chunk(
    row: &[u8],
    value: &[u8],
    change: &mut dyn FnMut(&mut Chunk),
) -> Result<Option<Vec<u8>>, IndexError> {
    let mut in_body = |body: &mut Body| match body {
        Body::Chunk(chunk) => {
            change(chunk);
            true
        }
        _ => false,
    };
    Ok(match row.first() {
        Some(b'K') => {
            let mut chunk: Chunk = decode("chunk row", value)?;
            change(&mut chunk);
            Some(encode(&chunk))
        }
        Some(b'P') => {
            let mut part: PartRow = decode("part row", value)?;
            in_body(&mut part.body).then(|| encode(&part))
        }
        Some(b'V') => {
            let mut version = ObjectEntry::read(value)?;
            in_body(&mut version.row.body).then(|| version.write())
        }
        Some(b'W') => PieceRow::rewrite(value, in_body)?,
        _ => None,
    })
}
