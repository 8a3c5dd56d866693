//! Validates appends and changes from other regions.

use std::ops::Range;

use larder_types::limits::OBJECT_BYTES_MAX;
use larder_types::{
    Append, Appended, Body, Coalesce, FreedTombstone, Grow, OpId, OpSeq, PgId, Stamp, Target,
};

use super::{
    InvalidMessage, LATE_OP, Validated, check, check_attributes, check_body, check_checksum,
    check_clock, check_content, check_description, check_pairs, check_parts,
};
use crate::limits::{OP_SEQ_MAX, REGION_FREED_MAX, REGION_NOTES_MAX, STEP_ROWS_MAX};
use crate::message::{Content, RemoteAppend, RemoteChange, RemotePutCall};

/// Checks what another region tells, as a proxy hands it on.
pub(super) fn check_remote_change(change: &RemoteChange) -> Validated {
    match change {
        RemoteChange::Put(version) => {
            let RemotePutCall { put, at, origin, parts, amended } = &**version;
            check(put.target == Target::Version, "what is told is no version")?;
            check(put.condition.is_none(), "what is told has a condition")?;
            check_description(&put.description)?;
            check_content(&put.content, put.description.size)?;
            check_stamp(*at)?;
            check(origin.region == at.region, "a version is of two regions")?;
            if !parts.is_empty() {
                check_parts(parts.iter(), put.description.size)?;
            }
            check_clock(amended.clock())
        }
        RemoteChange::Purge { at, origin, .. } => {
            check_stamp(*at)?;
            check(origin.region == at.region, "a purge is of two regions")
        }
        RemoteChange::Amend { at, tags, amended, .. } => {
            check_stamp(*at)?;
            check_pairs(tags)?;
            check_clock(amended.clock())
        }
        RemoteChange::Note { passed, forgotten, .. } => {
            let is_short = passed.len() <= REGION_NOTES_MAX;
            check(is_short, "too many journals are noted at once")?;
            check_forgotten(*forgotten)
        }
        RemoteChange::Free { tombstones, .. } => check_freed(tombstones),
        RemoteChange::Append(append) => check_remote_append(append),
        RemoteChange::Renew { was, .. } => check(was.seq <= OP_SEQ_MAX, LATE_OP),
    }
}

pub(super) fn check_freed(tombstones: &[FreedTombstone]) -> Validated {
    let is_bounded = (1..=REGION_FREED_MAX).contains(&tombstones.len());
    check(is_bounded, "no tombstones are freed, or too many at once")?;
    tombstones.iter().try_for_each(|it| check_stamp(it.at))
}

pub(super) fn check_forgotten(forgotten: Option<(OpSeq, OpSeq)>) -> Validated {
    check(forgotten.is_none_or(|(_, upto)| upto <= OP_SEQ_MAX), LATE_OP)
}

pub(super) fn check_stamp(at: Stamp) -> Validated {
    check(at.is_qualified(), "a stamp is of no region, or has no clock")?;
    check_clock(at.clock)
}

fn check_remote_append(append: &RemoteAppend) -> Validated {
    let RemoteAppend { onto, made, attributes, content, at, origin, .. } = append;
    check_stamp(*onto)?;
    check_stamp(*at)?;
    check(onto < at, "an append is older than what it goes on")?;
    check(origin.region == at.region, "an append is of two regions")?;
    check_checksum(made.checksum.as_ref())?;
    check_attributes(attributes)?;
    check(!matches!(content, Content::Data { .. }), "an append has no stream")?;
    check_content(content, bytes_of(made)?)
}

/// Bytes that an append adds.
fn bytes_of(made: &Appended) -> Result<u64, InvalidMessage> {
    check(made.size <= OBJECT_BYTES_MAX, "an object is too long")?;
    let len = made.size.checked_sub(made.offset).filter(|len| *len > 0);
    len.ok_or(InvalidMessage("an append has no bytes"))
}

/// Checks an append in a store of several regions.
pub(super) fn check_grow(id: OpId, grow: &Grow) -> Validated {
    let Grow { append, at, origin, checksum, .. } = grow;
    check_stamp(*at)?;
    check(at.clock == append.clock, "an append has two clocks")?;
    let is_of_one = origin.is_none_or(|origin| origin.region == at.region);
    check(is_of_one, "an append is of two regions")?;
    check_checksum(checksum.as_ref())?;
    check_append(id, append)
}

/// Checks an append.
pub(super) fn check_append(id: OpId, append: &Append) -> Validated {
    let made = &append.made;
    check(append.onto.is_none_or(|onto| onto < id), "an append goes on a later op")?;
    check_clock(append.clock)?;
    check_checksum(made.checksum.as_ref())?;
    append.attributes.as_deref().map_or(Ok(()), check_attributes)?;
    let len = bytes_of(made)?;
    let lies_in_rows = matches!(append.body, Body::Inline(_) | Body::Stream { .. });
    check(lies_in_rows, "an append lies where no append does")?;
    check_body(&append.body, len)
}

/// Checks a call that coalesces pieces.
pub(super) fn check_window(window: &Range<u64>, content: &Content) -> Validated {
    check(window.end <= OBJECT_BYTES_MAX, "an object is too long")?;
    check(window.start < window.end, "a window has no bytes")?;
    check(!matches!(content, Content::Data { .. }), "a window has no stream")?;
    check_content(content, window.end - window.start)
}

/// Checks pieces that become one.
pub(super) fn check_coalesce(pg: PgId, id: OpId, coalesce: &Coalesce) -> Validated {
    let Coalesce { pieces, start, end, count, body, .. } = coalesce;
    check(pieces.pg == pg && pieces.op < id, "pieces are of another group or a later op")?;
    check((2..=STEP_ROWS_MAX).contains(count), "so many pieces are not coalesced")?;
    check(*end <= OBJECT_BYTES_MAX, "an object is too long")?;
    let len = end.checked_sub(*start).filter(|len| *len > 0);
    let lies_in_rows = matches!(body, Body::Inline(_) | Body::Stream { .. });
    check(lies_in_rows, "a piece lies where no piece does")?;
    check_body(body, len.ok_or(InvalidMessage("a window has no bytes"))?)
}
