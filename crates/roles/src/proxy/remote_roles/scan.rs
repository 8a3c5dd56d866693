//! One scan of all meta servers, each asked for its share.
//!
//! # Invariants
//!
//! 1. A scan ends within [`SCAN_MS_MAX`], however many puts its page waits for one after the other, and however many
//!    primaries change meanwhile.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use larder_objects::ObjectError;
use larder_protocol::manager::state::Topology;
use larder_protocol::{Answer, Refusal};
use larder_types::codec::{CodecError, decode};
use larder_types::{PgId, View};
use tokio::time::Instant;

use super::super::role_access::{FoundRow, Scan, ScanStep};
use super::super::{max_wait, refused, unavailable};
use super::counters::count;
use super::merge::{Merge, Source};
use super::primaries::Primaries;
use super::retry::{RetryState, TryError};
use super::route::{newer, primary};
use super::unavailable_pgs::{UNLED, Wait, are_led};
use super::unfitting;
use crate::limits::{LIST_WAIT_MS_MAX, ROWS_MAX, SCAN_MS_MAX, SHARE_SLACK_ROWS};
use crate::wire::{MetaCall, MetaReply, Rows};

/// Rows, and where the server goes on.
type Page = (Rows, Option<Vec<u8>>);

/// The reason why a server gave no rows.
enum Failed {
    /// Ask again, or another.
    TryError(TryError),
    /// Give up.
    For(ObjectError),
}

/// Visits rows in their order. Whatever is scanned shows everything taken before: what one primary has shown
/// already the next might not.
pub(super) async fn scan<V>(
    primaries: &Primaries,
    scan: Scan<'_>,
    visit: V,
) -> Result<(), ObjectError>
where
    V: FnMut(&[u8], &[u8]) -> ScanStep + Send,
{
    let deadline = Instant::now() + Duration::from_millis(SCAN_MS_MAX);
    scan_until(primaries, scan, deadline, visit).await
}

/// As [`scan`], until a deadline.
pub(super) async fn scan_until<V>(
    primaries: &Primaries,
    scan: Scan<'_>,
    deadline: Instant,
    mut visit: V,
) -> Result<(), ObjectError>
where
    V: FnMut(&[u8], &[u8]) -> ScanStep + Send,
{
    let pgs = match scan.pg {
        Some(pg) => vec![pg],
        None => (0..primaries.managers().map().pgs.len() as u32).map(PgId).collect(),
    };
    let map = primaries.managers().map();
    let mut wait = Wait::of_client(deadline);
    let deadline = primaries.deadline(&map, pgs.iter().copied(), &mut wait);
    let mut merge = Merge::new(pgs, scan.from, scan.to);
    loop {
        if let Some((row, value)) = merge.next() {
            match visit(&row, &value) {
                ScanStep::Next => {}
                ScanStep::Seek(to) => merge.seek(&to),
                ScanStep::Stop => return Ok(()),
            }
        } else if merge.needs_rows() {
            feed(primaries, &mut merge, (scan.to, scan.wanted), deadline).await?;
        } else {
            return Ok(());
        }
    }
}

/// The first rows of a PG between two places, without waiting for what is under way; at least one is there.
pub(super) async fn rows_from(
    primaries: &Primaries,
    pg: PgId,
    (from, to): (Vec<u8>, &[u8]),
    count: usize,
) -> Result<Vec<FoundRow>, ObjectError> {
    let mut call = MetaCall::Scan {
        pgs: vec![(pg, View(0))],
        map: primaries.managers().map().version,
        settled: false,
        from: from.clone(),
        to: Some(to.to_vec()),
        count_max: count as u32,
    };
    let said = primaries.submit(pg, &mut call, &mut Wait::of_client(max_wait())).await?;
    let mut found: Vec<FoundRow> = match said.reply {
        MetaReply::Rows(_) => {
            let rows = decode::<Rows>("rows of a scan", &said.payload).map_err(unusable)?;
            rows.into_iter().map(|(row, value)| (row, value.into())).collect()
        }
        MetaReply::Refused(refusal) | MetaReply::Answered(Answer::Refused(refusal)) => {
            return Err(refused(refusal));
        }
        other => return Err(unfitting(&other)),
    };
    if found.is_empty() {
        // A new primary's index may not show yet what the one before has shown.
        let settled = Scan { pg: Some(pg), settle: true, from, to: Some(to), wanted: count };
        let scanned = scan(primaries, settled, |row, value| {
            found.push((row.to_vec(), Bytes::copy_from_slice(value)));
            if found.len() < count { ScanStep::Next } else { ScanStep::Stop }
        });
        scanned.await?;
    }
    Ok(found)
}

/// Asks every source that has nothing, all at once, until a row can be given out or there is none.
async fn feed(
    primaries: &Primaries,
    merge: &mut Merge,
    (to, wanted): (Option<&[u8]>, usize),
    scan_ends: Instant,
) -> Result<(), ObjectError> {
    let deadline = scan_ends.min(Instant::now() + Duration::from_millis(LIST_WAIT_MS_MAX));
    let mut tries = RetryState::default();
    while merge.needs_rows() {
        if Instant::now() >= scan_ends {
            return Err(took_too_long(primaries));
        }
        let map = primaries.managers().map();
        merge.regroup(|pg| primary(&map, pg).map(|at| at.server));
        let share = share(wanted, merge.sources_to_query().count());
        let ask = async |(index, source)| {
            (index, submit(primaries, &map, source, to, share, deadline).await)
        };
        let asked: FuturesUnordered<_> = merge.sources_to_query().map(ask).collect();
        let pages: Vec<(usize, Result<Page, Failed>)> = asked.collect().await;
        let mut trouble = None;
        for (index, page) in pages {
            match page {
                Ok((rows, next)) => merge
                    .fill(index, share, rows, next)
                    .map_err(|unordered| unfitting(&unordered))?,
                Err(Failed::TryError(why)) => trouble = Some(why),
                Err(Failed::For(error)) => return Err(error),
            }
        }
        let Some(trouble) = trouble else { continue };
        match tries.pause_after(&trouble) {
            Some(pause) if Instant::now() < deadline => {
                count(&primaries.counters().retries);
                newer(primaries.managers(), map.version, pause).await;
            }
            _ if Instant::now() >= scan_ends => return Err(took_too_long(primaries)),
            _ => return Err(trouble.final_error()),
        }
    }
    Ok(())
}

fn took_too_long(primaries: &Primaries) -> ObjectError {
    if !are_led(primaries.managers()) {
        return unavailable(UNLED);
    }
    unavailable("rows were not listed in time: the list waited for puts under way or for primaries")
}

/// Rows that one of so many servers is asked for.
fn share(wanted: usize, servers: usize) -> u32 {
    let share = match servers {
        0 | 1 => wanted,
        _ => wanted.div_ceil(servers) + SHARE_SLACK_ROWS,
    };
    share.clamp(1, ROWS_MAX as usize) as u32
}

async fn submit(
    primaries: &Primaries,
    map: &Topology,
    source: &Source,
    to: Option<&[u8]>,
    count_max: u32,
    deadline: Instant,
) -> Result<Page, Failed> {
    let server = source.server.ok_or(Failed::TryError(TryError::NoPrimary))?;
    let peer = primaries.peer(map, server).ok_or(Failed::TryError(TryError::NoPrimary))?;
    let pgs = source.pgs.iter().filter_map(|&pg| Some((pg, primary(map, pg)?.view)));
    let call = MetaCall::Scan {
        pgs: pgs.collect(),
        map: map.version,
        settled: true,
        from: source.next_row_needed().unwrap_or_default().to_vec(),
        to: to.map(<[u8]>::to_vec),
        count_max,
    };
    let answered = peer.call(&call, Bytes::new(), deadline).await;
    let (reply, payload) = answered.map_err(|error| Failed::TryError(error.into()))?;
    match reply {
        MetaReply::Rows(next) => match decode("rows of a scan", &payload) {
            Ok(rows) => Ok((rows, next)),
            Err(error) => Err(Failed::For(unusable(error))),
        },
        MetaReply::Refused(refusal) | MetaReply::Answered(Answer::Refused(refusal)) => {
            Err(match refusal {
                Refusal::NotPrimary => Failed::TryError(TryError::NotPrimary),
                // Its map is behind.
                Refusal::Busy => Failed::TryError(TryError::Busy),
                refusal => Failed::For(refused(refusal)),
            })
        }
        other => Err(Failed::For(unfitting(&other))),
    }
}

fn unusable(error: CodecError) -> ObjectError {
    tracing::error!(%error, "rows of a scan cannot be used");
    unavailable("a meta server sent rows that cannot be used")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_asked_for_its_share_and_a_little_more() {
        assert_eq!(share(1, 1), 1);
        assert_eq!(share(0, 1), 1);
        assert_eq!(share(1001, 1), 1001);
        assert_eq!(share(1001, 10), 101 + SHARE_SLACK_ROWS as u32);
        assert_eq!(share(10_000, 1), ROWS_MAX);
    }
}
