//! Forgets outcomes that all other regions have, and the oldest where there are too many.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use larder_types::{OpSeq, PgId, RegionId, rows};
use tokio::time::{MissedTickBehavior, interval};

use super::Shared;
use super::shown::Unreadable;
use super::source::Desk;
use crate::limits::{
    REGION_FORGET_PAUSE_MS, REGION_JOURNAL_OPS_MAX, REGION_JOURNAL_OPS_MIN, REGION_KEEP_SHORT_MS,
};

/// Looks at the journals from time to time. Does not end.
pub(super) async fn keep_short(shared: Arc<Shared>, desk: Arc<Desk>) {
    let mut times = interval(Duration::from_millis(REGION_KEEP_SHORT_MS));
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        let others: Vec<RegionId> =
            shared.site.members().borrow().live().map(|peer| peer.number).collect();
        let looked = {
            let (shared, desk) = (shared.clone(), desk.clone());
            tokio::task::spawn_blocking(move || what_may_go(&shared, &desk, &others)).await
        };
        match looked {
            // There may be more of it: an op forgets a few.
            Ok(Ok(may_go)) if !may_go.is_empty() => {
                forget(&shared, may_go).await;
                times.reset_after(Duration::from_millis(REGION_FORGET_PAUSE_MS));
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::error!(%error, "the journals of outcomes cannot be read"),
            Err(_panicked) => {}
        }
    }
}

/// Outcomes that may be forgotten: those of a PG from one op to another.
struct MayGo {
    pg: PgId,
    ops: (OpSeq, OpSeq),
}

async fn forget(shared: &Shared, may_go: Vec<MayGo>) {
    for MayGo { pg, ops } in may_go {
        if let Err(error) = shared.proxy.note(pg, Vec::new(), Some(ops)).await {
            tracing::debug!(%pg, %error, "a journal stays as it is for now");
        }
    }
}

fn what_may_go(
    shared: &Shared,
    desk: &Desk,
    others: &[RegionId],
) -> Result<Vec<MayGo>, Unreadable> {
    let mut may_go = Vec::new();
    let of_pg = |ops: u64| ops / u64::from(shared.shown.pg_count());
    let (most, least) = (of_pg(REGION_JOURNAL_OPS_MAX), of_pg(REGION_JOURNAL_OPS_MIN));
    for pg in (0..shared.shown.pg_count()).map(PgId) {
        let applied = shared.shown.applied(pg).0;
        let passed = desk.passed_by_all(others.iter().copied(), pg).map_or(0, |it| it.0);
        // What a region said is durable with it may be noted there a little later.
        let passed = passed.min(applied.saturating_sub(least));
        let upto = OpSeq(passed.max(applied.saturating_sub(most)));
        let forgotten = desk.forgotten(pg)?;
        if upto <= forgotten {
            continue;
        }
        let (from, end) = (rows::outcome(pg, forgotten.next()), rows::outcome(pg, upto.next()));
        let mut first = None;
        shared.shown.scan(&from, Some(&end), |row, _| {
            first = rows::parse_outcome(row);
            Ok(ControlFlow::Break(()))
        })?;
        may_go.extend(first.map(|(_, first)| MayGo { pg, ops: (first, upto) }));
    }
    Ok(may_go)
}
