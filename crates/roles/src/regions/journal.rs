//! Forgets outcomes that all other regions have. The PGs themselves bound the number of outcomes.

use std::sync::Arc;
use std::time::Duration;

use larder_objects::ObjectError;
use larder_protocol::region::Token;
use larder_types::{OpSeq, PgId, RegionId};
use tokio::time::{MissedTickBehavior, interval};

use super::Shared;
use super::source::SourceState;
use crate::limits::{REGION_FORGET_PAUSE_MS, REGION_JOURNAL_OPS_MIN, REGION_KEEP_SHORT_MS};
use crate::proxy::{JournalRequest, RegionAccess};
use crate::wire::JournalShown;

/// Shortens the journals from time to time. Does not end.
pub(super) async fn shorten<R: RegionAccess>(shared: Arc<Shared<R>>, state: Arc<SourceState<R>>) {
    let mut times = interval(Duration::from_millis(REGION_KEEP_SHORT_MS));
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        let others = match shared.others().await {
            Ok(Some(others)) => others,
            Ok(None) => continue,
            Err(error) => {
                tracing::debug!(%error, "the journals of outcomes will be checked later");
                continue;
            }
        };
        match forgettable(&shared, &state, &others).await {
            // There may be more: an op forgets a few.
            Ok(removable) if !removable.is_empty() => {
                forget(&shared, removable).await;
                times.reset_after(Duration::from_millis(REGION_FORGET_PAUSE_MS));
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the journals of outcomes cannot be checked now"),
        }
    }
}

/// Outcomes that may be forgotten: a PG's, from one op to another.
struct TrimPoint {
    pg: PgId,
    ops: (OpSeq, OpSeq),
}

async fn forget<R: RegionAccess>(shared: &Shared<R>, removable: Vec<TrimPoint>) {
    for TrimPoint { pg, ops } in removable {
        if let Err(error) = shared.proxy.note(pg, Vec::new(), Some(ops)).await {
            tracing::debug!(%pg, %error, "a journal was not trimmed: will retry");
        }
    }
}

async fn forgettable<R: RegionAccess>(
    shared: &Shared<R>,
    state: &SourceState<R>,
    others: &[RegionId],
) -> Result<Vec<TrimPoint>, ObjectError> {
    let mut removable = Vec::new();
    let pgs = (0..shared.shown.pg_count()).map(|pg| (PgId(pg), Token::default())).collect();
    let ask = JournalRequest { pgs, ids_max: 0, settled: false };
    for (pg, JournalShown { applied, forgotten, .. }) in shared.shown.journals(&ask).await? {
        let passed = state.passed_by_all(others.iter().copied(), pg).map_or(0, |it| it.0);
        // A region may note a little later what it has reported as durable.
        let upto = OpSeq(passed.min(applied.0.saturating_sub(REGION_JOURNAL_OPS_MIN)));
        if upto <= forgotten {
            continue;
        }
        let first = shared.shown.first_outcome(pg, (forgotten.next(), upto)).await?;
        removable.extend(first.map(|first| TrimPoint { pg, ops: (first, upto) }));
    }
    Ok(removable)
}
