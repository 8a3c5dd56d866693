//! Reports this region's positions to other regions as soon as they advance: puts there may wait for them.
//!
//! Each request for changes carries the same tokens. One may wait two seconds for changes, so a put that waits cannot
//! depend on the next one.
//!
//! # Invariants
//!
//! 1. One report to each region is under way at a time. What moves meanwhile goes with the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use larder_link::{LinkError, Report};
use larder_protocol::limits::REGION_REQUEST_PGS_MAX;
use larder_protocol::region::Token;
use larder_protocol::region::pull::Source;
use larder_types::{PgId, RegionId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::Shared;
use crate::limits::{REGION_REPORT_PAUSE_MS, REGION_REPORT_UNKNOWN_MS};
use crate::proxy::RegionAccess;

/// Tokens that have moved since each region was told.
#[derive(Debug, Default)]
pub(super) struct Reports {
    moved: Mutex<BTreeMap<RegionId, BTreeMap<PgId, Token>>>,
    more: Notify,
}

impl Reports {
    /// All up to this token is durable here.
    pub(super) fn add(&self, source: Source, token: Token) {
        self.moved.lock().entry(source.region).or_default().insert(source.pg, token);
        self.more.notify_one();
    }

    /// Takes reports for regions that are not being told.
    fn take(&self, busy: &BTreeSet<RegionId>) -> Vec<(RegionId, Report)> {
        let mut moved = self.moved.lock();
        let mut reports = Vec::new();
        for (region, tokens) in moved.iter_mut().filter(|(region, _)| !busy.contains(region)) {
            let pgs: Vec<_> =
                tokens.iter().take(REGION_REQUEST_PGS_MAX).map(|(pg, it)| (*pg, *it)).collect();
            tokens.retain(|pg, _| pgs.last().is_some_and(|(last, _)| pg > last));
            if !pgs.is_empty() {
                reports.push((*region, Report { pgs }));
            }
        }
        reports
    }
}

/// Sends reports. Does not end.
pub(super) async fn send<R: RegionAccess>(shared: Arc<Shared<R>>) {
    let (mut busy, mut under_way) = (BTreeSet::new(), FuturesUnordered::new());
    loop {
        for (region, report) in shared.reports.take(&busy) {
            busy.insert(region);
            let shared = shared.clone();
            under_way.push(async move {
                let mut pause_ms = REGION_REPORT_PAUSE_MS;
                if let Err(error) = send_to(&shared, region, report).await {
                    // The next ask says it, too.
                    tracing::debug!(%region, %error, "this region's positions will be reported later");
                    if matches!(error, LinkError::Unsound(_)) {
                        pause_ms = REGION_REPORT_UNKNOWN_MS;
                    }
                }
                sleep(Duration::from_millis(pause_ms)).await;
                region
            });
        }
        tokio::select! {
            biased;
            Some(region) = under_way.next() => {
                busy.remove(&region);
            }
            () = shared.reports.more.notified() => {}
        }
    }
}

async fn send_to<R: RegionAccess>(
    shared: &Shared<R>,
    region: RegionId,
    report: Report,
) -> Result<(), LinkError> {
    shared.link_to(region)?.report(report).await
}

#[cfg(test)]
mod tests {
    use larder_types::OpSeq;

    use super::*;

    #[test]
    fn the_last_token_of_each_journal_goes_once_and_to_nobody_who_is_being_told() {
        let reports = Reports::default();
        let token = |through| Token { through: OpSeq(through) };
        let source = |region, pg| Source { region: RegionId(region), pg: PgId(pg) };
        for (region, pg, through) in [(2, 7, 1), (2, 7, 3), (2, 8, 2), (3, 7, 9)] {
            reports.add(source(region, pg), token(through));
        }
        let busy = BTreeSet::from([RegionId(3)]);
        let pgs = vec![(PgId(7), token(3)), (PgId(8), token(2))];
        assert_eq!(reports.take(&busy), [(RegionId(2), Report { pgs })]);
        let pgs = vec![(PgId(7), token(9))];
        assert_eq!(reports.take(&BTreeSet::new()), [(RegionId(3), Report { pgs })]);
        assert_eq!(reports.take(&BTreeSet::new()), []);
    }
}
