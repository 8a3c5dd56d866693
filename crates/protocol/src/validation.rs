//! Checks of what other servers send, before a machine steps it: machines take for granted, and assert, what is checked
//! here. [`Pg::admits`](crate::Pg::admits) and its like are the doors; here is what needs no machine to be judged.
//!
//! # Invariants
//!
//! 1. Whatever decodes is judged with an answer, never with a panic.
//! 2. What any release sends is sound: a member that refused an op of its group would never catch up.

use larder_types::codec::decode;
use larder_types::limits::{
    BLOCK_BYTES, CHUNK_BYTES_MAX, INLINE_BYTES_MAX, OBJECT_BYTES_MAX, OP_BYTES_MAX,
    PART_NUMBER_MAX, PIECES_MAX, REPLICAS_MAX, SUM_BYTES,
};
use larder_types::{
    Attributes, Body, Chunk, ClockFloor, Extent, Garbage, HybridClock, JournalHead, JournalRow,
    Metax, ObjectChecksum, Op, OpId, OpSeq, Outcome, PartRef, PartRow, Passed, PgId, PieceRow, Put,
    Reaping, Target, Tombstone, UploadRow, VersionRow, VersionSlot, rows,
};

use crate::digest::Summed;
use crate::index::RowSpan;
use crate::limits::{
    CLOCK_MAX, DIGEST_TABLES_MAX, OP_DESCRIPTION_BYTES_MAX, OP_SEQ_MAX, PG_MEMBERS_MAX,
    REGION_NOTES_MAX, REPEATS_MAX, ROW_KEY_BYTES_MAX, ROW_VALUE_BYTES_MAX, STEP_ROWS_MAX,
};
use crate::lv::LvInfo;
use crate::message::{
    Call, CoalesceCall, Content, Description, LogEntry, OpenEntry, PeerMessage, Piece, Report,
    SnapshotHeader,
};
use crate::row::owner;

mod remote_change;

use self::remote_change::{
    check_append, check_coalesce, check_forgotten, check_freed, check_grow, check_remote_change,
    check_stamp, check_window,
};

/// The reason for which something is not stepped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidMessage(&'static str);

/// The judgement of something that came over a connection.
pub type Validated = Result<(), InvalidMessage>;

/// Refuses what does not hold.
///
/// # Errors
/// [`InvalidMessage`], with this reason.
pub fn check(holds: bool, unless: &'static str) -> Validated {
    if holds { Ok(()) } else { Err(InvalidMessage(unless)) }
}

/// Checks that what a call holds is as long as it says, and as it may be.
///
/// # Errors
/// [`InvalidMessage`].
pub fn check_call(call: &Call) -> Validated {
    // That number no floor passes.
    check(call.request().is_none_or(|it| it.number < u64::MAX), "a request has the last number")?;
    match call {
        Call::Put(put) => {
            let is_data = matches!(put.content, Content::Data { .. });
            check_target(&put.target, is_data)?;
            check_description(&put.description)?;
            check_content(&put.content, put.description.size)
        }
        Call::Append(append) => {
            let size = append.description.size;
            check(size > 0, "an append has no bytes")?;
            check(!matches!(append.content, Content::Data { .. }), "an append has no stream")?;
            check_description(&append.description)?;
            check_content(&append.content, size)
        }
        Call::SetTags { tags, .. } => check_pairs(tags),
        Call::CreateUpload { attributes, .. } => check_attributes(attributes),
        Call::CompleteUpload { description, parts, .. } => {
            check_description(description)?;
            check_parts(parts.iter().map(|(part, _)| part), description.size)
        }
        Call::Coalesce(coalesce) => {
            let CoalesceCall { window, content, .. } = &**coalesce;
            check_window(window, content)
        }
        Call::RemoteChange(remote) => check_remote_change(remote),
        Call::Settle(RowSpan { from, to }) => {
            check_key(from).and(to.as_deref().map_or(Ok(()), check_key))
        }
        _ => Ok(()),
    }
}

fn check_content(content: &Content, size: u64) -> Validated {
    match content {
        Content::Inline(bytes) => check_inline(bytes.len(), size),
        Content::Data { len, sums, .. } => {
            check(size == u64::from(*len), "a chunk is not as long as its object")?;
            check_sums(*len, sums.len())
        }
        Content::Stream { chunks, chunk_bytes, .. } => check_stream(*chunks, *chunk_bytes, size),
    }
}

fn check_inline(len: usize, size: u64) -> Validated {
    check(len <= INLINE_BYTES_MAX as usize, "too much lies inline")?;
    check(size == len as u64, "what lies inline is not as long as its object")
}

fn check_sums(len: u32, sums: usize) -> Validated {
    check((1..=CHUNK_BYTES_MAX).contains(&len), "a chunk is empty or too long")?;
    check(sums == len.div_ceil(SUM_BYTES) as usize, "a chunk has too many sums, or too few")
}

fn check_stream(chunks: u32, chunk_bytes: u32, size: u64) -> Validated {
    let full = u64::from(chunk_bytes);
    let before = chunks.checked_sub(1).map(|chunks| u64::from(chunks) * full);
    let last = before.and_then(|before| size.checked_sub(before));
    let holds = (1..=CHUNK_BYTES_MAX).contains(&chunk_bytes)
        && last.is_some_and(|last| (1..=full).contains(&last));
    check(holds, "a stream's chunks are not as long as its object")
}

fn check_parts<'a>(parts: impl Iterator<Item = &'a PartRef>, size: u64) -> Validated {
    let (mut before, mut sum) = (0, 0_u64);
    for part in parts {
        let is_next = part.number > before && part.number <= PART_NUMBER_MAX;
        check(is_next, "parts are not in the order of their numbers")?;
        before = part.number;
        sum = sum.checked_add(part.len).ok_or(InvalidMessage("parts are too long"))?;
    }
    check(before > 0, "an upload has no part")?;
    check(sum == size && size <= OBJECT_BYTES_MAX, "parts are not as long as their object")
}

fn check_target(target: &Target, is_data: bool) -> Validated {
    match target {
        Target::Version => Ok(()),
        Target::Chunk { .. } => check(is_data, "a chunk of a stream has no data"),
        Target::Part { number, .. } => {
            check((1..=PART_NUMBER_MAX).contains(number), "there is no part of this number")
        }
    }
}

fn check_description(description: &Description) -> Validated {
    check_checksum(description.checksum.as_ref())?;
    check_attributes(&description.attributes)
}

fn check_checksum(checksum: Option<&ObjectChecksum>) -> Validated {
    let is_short = checksum.is_none_or(|it| it.value.len() <= OP_DESCRIPTION_BYTES_MAX / 2);
    check(is_short, "a checksum is too long")
}

fn check_attributes(attributes: &Attributes) -> Validated {
    let Attributes { user, tags, .. } = attributes;
    let texts = [
        &attributes.content_type,
        &attributes.cache_control,
        &attributes.content_disposition,
        &attributes.content_encoding,
        &attributes.content_language,
        &attributes.expires,
        &attributes.website_redirect,
        &attributes.storage_class,
    ];
    let texts: usize = texts.into_iter().flatten().map(String::len).sum();
    check(texts + bytes_of(user) + bytes_of(tags) <= OP_DESCRIPTION_BYTES_MAX / 2, TOO_LONG)
}

const TOO_LONG: &str = "attributes are too long for an op";

fn check_pairs(pairs: &[(String, String)]) -> Validated {
    check(bytes_of(pairs) <= OP_DESCRIPTION_BYTES_MAX / 2, TOO_LONG)
}

fn bytes_of(pairs: &[(String, String)]) -> usize {
    // Two lengths of a byte at least go with each.
    pairs.iter().map(|(name, value)| name.len() + value.len() + 2).sum()
}

/// Checks that a chunk has the sums and at least the blocks that its length needs, where blocks may be.
///
/// # Errors
/// [`InvalidMessage`].
pub fn check_chunk(chunk: &Chunk) -> Validated {
    check_sums(chunk.len, chunk.sums.len())?;
    let blocks = blocks_of(&chunk.extents).ok_or(InvalidMessage("an extent is none"))?;
    check(blocks >= u64::from(chunk.len.div_ceil(BLOCK_BYTES)), "a chunk has too few blocks")
}

/// Blocks of extents that are some, end within numbers of blocks and do not overlap.
fn blocks_of(extents: &[Extent]) -> Option<u64> {
    let mut runs = Vec::with_capacity(extents.len());
    for extent in extents.iter().filter(|extent| extent.blocks > 0) {
        runs.push((extent.first, extent.first.checked_add(extent.blocks)?));
    }
    runs.sort_unstable();
    let overlap = runs.windows(2).any(|pair| pair[1].0 < pair[0].1);
    let is_each_some = runs.len() == extents.len();
    let blocks = runs.iter().map(|(first, end)| u64::from(end - first)).sum();
    (is_each_some && !overlap).then_some(blocks)
}

/// Checks what a message says for itself.
///
/// # Errors
/// [`InvalidMessage`].
pub fn check_message(message: &PeerMessage) -> Validated {
    match message {
        PeerMessage::Append { view, prev, entries, .. } => {
            check_follow(*prev, entries)?;
            check(entries.last().is_none_or(|last| last.id.view <= *view), LATE_VIEW)
        }
        PeerMessage::Report { view, report } => {
            check(report.last.view <= *view, LATE_VIEW)?;
            check_report(report)
        }
        PeerMessage::Snapshot { view, header } => {
            check(header.at.view <= *view, "a snapshot is of a later view")?;
            check_header(header)
        }
        PeerMessage::SnapshotNext { after, .. } => check_after(after.as_deref()),
        PeerMessage::SnapshotRows { after, piece, .. } => {
            check_after(after.as_deref())?;
            check(piece.is_last || !piece.rows.is_empty(), "a piece of a snapshot is empty")
        }
        PeerMessage::Digest { sum: Summed::Sum(sum), .. } => {
            let is_short = sum.tables.len() <= DIGEST_TABLES_MAX;
            let mut rows = sum.tables.iter().map(|table| table.rows);
            let rows = rows.try_fold(0_u64, u64::checked_add);
            check(is_short && rows.is_some(), "a sum is of more tables or rows than there are")
        }
        _ => Ok(()),
    }
}

fn check_after(after: Option<&[u8]>) -> Validated {
    after.map_or(Ok(()), check_key)
}

/// Checks the key of a row before the index is asked for it.
///
/// # Errors
/// [`InvalidMessage`].
pub fn check_key(row: &[u8]) -> Validated {
    check((1..=ROW_KEY_BYTES_MAX).contains(&row.len()), "a row's key is empty or too long")
}

fn check_report(report: &Report) -> Validated {
    check_follow(report.prev, &report.entries)?;
    let end = report.entries.last().map_or(report.prev, |entry| entry.id);
    check(report.last.seq <= OP_SEQ_MAX, LATE_OP)?;
    // Of a log that is too long for one message come its first ops.
    let is_cut = end.seq < report.last.seq && end.view <= report.last.view;
    let ends = end == report.last || is_cut && !report.entries.is_empty();
    check(ends, "a report ends elsewhere than its ops")
}

/// Checks that ops follow each other without a gap, in views that never go back.
fn check_follow(prev: OpId, entries: &[LogEntry]) -> Validated {
    let mut before = prev;
    check(before.seq <= OP_SEQ_MAX, LATE_OP)?;
    for LogEntry { id, .. } in entries {
        check(before.seq.next() == id.seq, "ops have a gap")?;
        check(before.view <= id.view, "an op is of an earlier view than the one before")?;
        check(id.seq <= OP_SEQ_MAX, LATE_OP)?;
        before = *id;
    }
    Ok(())
}

const LATE_VIEW: &str = "an op is of a later view";
const LATE_OP: &str = "there are not so many ops";

fn check_header(header: &SnapshotHeader) -> Validated {
    let SnapshotHeader { at, clock, open, sessions } = header;
    check((OpSeq(1)..=OP_SEQ_MAX).contains(&at.seq), LATE_OP)?;
    check_clock(*clock)?;
    let mut before = OpId::default();
    for OpenEntry { entry: LogEntry { id, op }, .. } in open {
        let is_next = before.seq < id.seq && before.view <= id.view && is_through(*id, *at);
        check(is_next, "open puts are not in their order")?;
        before = *id;
        let is_chunk = op.put().is_some_and(|put| matches!(put.body, Body::Chunk(_)));
        check(is_chunk, "an open put has no data")?;
    }
    for memory in sessions {
        check(memory.requests.len() <= REPEATS_MAX, "a session has too many requests")?;
        for (_, known) in &memory.requests {
            check(is_through(known.op, *at), "a request became a later op")?;
            check_clock(known.clock)?;
        }
    }
    Ok(())
}

/// Returns true if an op stands in a log up to another: its place and its view, each for itself.
fn is_through(op: OpId, at: OpId) -> bool {
    op.seq <= at.seq && op.view <= at.view
}

fn check_clock(clock: HybridClock) -> Validated {
    check(clock <= CLOCK_MAX, "a clock is thousands of years ahead")
}

/// Checks an op that its group's primary has given a place in the log.
///
/// # Errors
/// [`InvalidMessage`].
pub(crate) fn check_op(pg: PgId, id: OpId, op: &Op) -> Validated {
    match op {
        Op::ViewStart { members, .. } => {
            check(members.len() <= PG_MEMBERS_MAX, "a view has too many members")
        }
        Op::Put(put) => check_put(pg, id, put),
        Op::PutEnough { put, .. } => {
            check(matches!(put.body, Body::Chunk(_)), "a put without data waits for copies")?;
            check_put(pg, id, put)
        }
        Op::Outcome { put, outcome } => {
            check(*put < id.seq, "an outcome comes before its put")?;
            // No release has issued a second attempt.
            let is_first = !matches!(outcome, Outcome::Committed { attempt: 1.., .. });
            check(is_first, "an outcome is of an attempt that there was not")
        }
        Op::Delete { clock, .. } => check_clock(*clock),
        Op::SetTags { tags, .. } => check_pairs(tags),
        Op::CreateUpload { row, .. } => {
            let upload = (row.upload.pg, row.upload.op);
            check(upload == (pg, id), "an upload has another op's id")?;
            check_clock(row.clock)?;
            check_attributes(&row.attributes)
        }
        Op::CompleteUpload { upload, metax, parts, .. } => {
            check_ancestor(pg, id, (upload.pg, upload.op))?;
            check_metax(metax)?;
            check_parts(parts.iter(), metax.size)
        }
        Op::AbortUpload { upload, .. } => check_ancestor(pg, id, (upload.pg, upload.op)),
        Op::Append(append) => check_append(id, append),
        Op::Grow(grow) => check_grow(id, grow),
        Op::Holders { changes } => changes.iter().try_for_each(|change| check_key(&change.row)),
        Op::Moved { moves } => moves.iter().try_for_each(|to| {
            check_key(&to.row)?;
            check(blocks_of(&to.extents).is_some_and(|blocks| blocks > 0), "a chunk moves nowhere")
        }),
        Op::RemoteChange(remote) => {
            check(remote.put.target == Target::Version, "what is told is no version")?;
            let at = remote.put.metax.stamp();
            check_stamp(at)?;
            check(remote.origin.region == at.region, "a version is of two regions")?;
            check_clock(remote.amended.clock())?;
            check_put(pg, id, &remote.put)
        }
        Op::Purge(purge) => check_stamp(purge.at),
        Op::Amend(amend) => {
            check_stamp(amend.put_at)?;
            check_pairs(&amend.tags)?;
            check_clock(amend.amended.clock())
        }
        Op::Noted(noted) => {
            let is_short = noted.passed.len() <= REGION_NOTES_MAX;
            check(is_short, "too many journals are noted at once")?;
            check_forgotten(noted.forgotten)
        }
        Op::Freed(freed) => check_freed(&freed.tombstones),
        Op::Renew(renew) => {
            check_stamp(renew.at)?;
            check(renew.was.seq < id.seq, LATE_OP)
        }
        Op::DropStream { .. } | Op::Digest => Ok(()),
        Op::Reap { rows_max } => check_steps(*rows_max),
        Op::Coalesce(coalesce) => check_coalesce(pg, id, coalesce),
        Op::Regrant { .. } => {
            Err(InvalidMessage("a second attempt at a put: no release issues one"))
        }
        Op::SnapshotBegin | Op::SnapshotSession(_) | Op::SnapshotEnd { .. } => {
            Err(InvalidMessage("a record that a member makes for itself"))
        }
    }
}

/// Checks the id of something that an earlier op of the group has made.
fn check_ancestor(pg: PgId, id: OpId, (of, op): (PgId, OpId)) -> Validated {
    check(of == pg && op < id, "an upload is of another group or a later op")
}

fn check_put(pg: PgId, id: OpId, put: &Put) -> Validated {
    check_metax(&put.metax)?;
    check_target(&put.target, matches!(put.body, Body::Chunk(_)))?;
    if let Target::Part { upload, .. } = put.target {
        check_ancestor(pg, id, (upload.pg, upload.op))?;
    }
    if let Body::Chunk(chunk) = &put.body {
        let grant = &chunk.grant;
        let is_first = (grant.pg, grant.op, grant.attempt) == (pg, id, 0);
        check(is_first, "a put's data has another put's grant")?;
    }
    let is_put = !matches!(put.body, Body::Parts { .. } | Body::Pieces { .. });
    check(is_put, "a put lies where no put does")?;
    check_body(&put.body, put.metax.size)
}

fn check_metax(metax: &Metax) -> Validated {
    check_clock(metax.clock)?;
    check_checksum(metax.checksum.as_ref())?;
    check_attributes(&metax.attributes)
}

fn check_body(body: &Body, size: u64) -> Validated {
    match body {
        Body::Inline(bytes) => check_inline(bytes.len(), size),
        Body::Chunk(chunk) => {
            check(size == u64::from(chunk.len), "a chunk is not as long as its object")?;
            check_chunk(chunk)
        }
        Body::Stream { chunks, chunk_bytes, .. } => check_stream(*chunks, *chunk_bytes, size),
        Body::Parts { parts, .. } => check_parts(parts.iter(), size),
        Body::Pieces { rows, .. } => {
            check(*rows > 0 && size > 0, "an object has no pieces")?;
            check(*rows <= PIECES_MAX, "an object has too many pieces")
        }
    }
}

/// Checks rows of a snapshot: in order from `after` on, of the group alone, and of no later op than the snapshot's.
///
/// # Errors
/// [`InvalidMessage`].
pub(crate) fn check_piece(
    (pg, pg_count): (PgId, u32),
    at: OpId,
    after: Option<&[u8]>,
    piece: &Piece,
) -> Validated {
    let mut before = after;
    for (row, value) in &piece.rows {
        check(before.is_none_or(|before| before < &row[..]), "rows are not in their order")?;
        before = Some(row);
        check_key(row)?;
        check(value.len() <= ROW_VALUE_BYTES_MAX, "a row is too long for the index")?;
        let of = owner(row, value, pg_count).map_err(|_| InvalidMessage("a row cannot be read"))?;
        check(of == Some(pg), "a row is of another group")?;
        check_row(at, row, value)?;
    }
    Ok(())
}

fn check_row(at: OpId, row: &[u8], value: &[u8]) -> Validated {
    fn read<T: serde::de::DeserializeOwned>(value: &[u8]) -> Result<T, InvalidMessage> {
        decode("row", value).map_err(|_| InvalidMessage("a row cannot be read"))
    }
    match row.first() {
        Some(b'K') => check_chunk(&read(value)?),
        Some(b'P') => {
            let part: PartRow = read(value)?;
            check_made(at, part.op)?;
            check_body(&part.body, part.metax.size)
        }
        Some(b'W') => {
            let piece =
                PieceRow::read(value).map_err(|_| InvalidMessage("a row cannot be read"))?;
            check_made(at, piece.op)?;
            let end = rows::parse_piece(row).map(|(_, _, end)| end);
            let len = end.and_then(|end| end.checked_sub(piece.start));
            check_body(&piece.body, len.ok_or(InvalidMessage("a piece ends before it begins"))?)
        }
        Some(b'V') => {
            let version =
                VersionRow::read(value).map_err(|_| InvalidMessage("a row cannot be read"))?;
            check_made(at, version.op)?;
            check_body(&version.body, version.metax.size)
        }
        Some(b'T') => {
            let slot = rows::parse_version(row).ok_or(InvalidMessage("a row has no such form"))?.2;
            check_tombstone(at, slot, &read(value)?)
        }
        Some(b'J') => match rows::parse_outcome(row) {
            Some((_, OpSeq(0))) => read::<JournalHead>(value).and_then(|it| check_made(at, it.op)),
            Some((_, op)) => {
                check(op <= at.seq, "a row is of a later op than its snapshot")?;
                read::<JournalRow>(value).and_then(|it| check_stamp(it.at))
            }
            None => Err(InvalidMessage("a row has no such form")),
        },
        Some(b'F') => {
            let floor: ClockFloor = read(value)?;
            check_made(at, floor.op)?;
            check_clock(floor.clock)
        }
        Some(b'Q') => match rows::parse_garbage(row) {
            Some((_, [])) => read::<Reaping>(value).and_then(|it| {
                check_steps(it.rows_max)?;
                check_made(at, it.op)
            }),
            Some(_) => read::<Garbage>(value).and_then(|it| {
                check(it.through.len() <= size_of::<u64>(), "no row of garbage is as long")?;
                check_made(at, it.op)
            }),
            None => Err(InvalidMessage("a row has no such form")),
        },
        Some(b'R') => read::<Passed>(value).map(drop),
        Some(b'U') => read::<UploadRow>(value).and_then(|row| check_made(at, row.upload.op)),
        _ => Ok(()),
    }
}

fn check_steps(rows_max: u32) -> Validated {
    check((1..=STEP_ROWS_MAX).contains(&rows_max), "garbage goes in steps that no release takes")
}

fn check_tombstone(at: OpId, slot: VersionSlot, tombstone: &Tombstone) -> Validated {
    check_made(at, tombstone.op)?;
    check_clock(tombstone.at.clock)?;
    let VersionSlot::At(purged) = slot else { return Ok(()) };
    check_clock(purged.clock)
}

fn check_made(at: OpId, op: OpId) -> Validated {
    check(is_through(op, at), "a row is of a later op than its snapshot")
}

/// Checks that ops fit records of the log; `message_bytes` is the length of the message that they came in.
pub(crate) fn check_lengths<'a>(
    ops: impl Iterator<Item = &'a Op>,
    message_bytes: usize,
) -> Validated {
    if message_bytes <= OP_BYTES_MAX {
        return Ok(());
    }
    for op in ops {
        let bytes = larder_types::codec::encode(op).len();
        check(bytes <= OP_BYTES_MAX, "an op is too long for the log")?;
    }
    Ok(())
}

/// Checks an LV as managers describe it; `known` is how it was described before.
pub(crate) fn check_lv(info: &LvInfo, known: Option<&LvInfo>) -> Validated {
    check(info.replicas.len() <= REPLICAS_MAX, "a volume has too many replicas")?;
    let Some(known) = known else { return Ok(()) };
    check(info.blocks == known.blocks, "a volume has another size than before")?;
    // An older map, which came late, may well name fewer replicas; what it says changes nothing.
    let is_older = info.as_of < known.as_of;
    let has_all = info.replicas.len() >= known.replicas.len();
    check(is_older || has_all, "a volume has forgotten replicas")
}

#[cfg(test)]
mod tests;
