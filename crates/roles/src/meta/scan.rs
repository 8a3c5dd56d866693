//! Answers proxies with rows: single ones, and scans over those of several PGs.
//!
//! # Invariants
//!
//! 1. A scan reads the index once, after the barriers of all PGs have passed if its rows are to be settled. The
//!    rows leave only if each PG's lease holds after that. The scan ends before the first row of which the index
//!    does not show all changes yet.
//! 2. One answer is bounded in rows, in bytes, and in rows visited.

use std::ops::ControlFlow;

use bytes::Bytes;
use larder_env::clock::uptime_ms;
use larder_kv::KvReader;
use larder_net::Responder;
use larder_protocol::manager::state::MapVersion;
use larder_protocol::pg::{Role, chunk_in, owner};
use larder_protocol::validation::check_key;
use larder_protocol::{Call, IndexError, Refusal, RowSpan};
use larder_types::codec::encode;
use larder_types::{PgId, View, rows};

use super::Meta;
use super::callers::{Scan, ScanCall, Wants, refuse};
use super::cluster::Cluster;
use super::index::index_error;
use crate::blocking;
use crate::limits::{MAP_LAG_MAX, ROWS_BYTES_MAX, ROWS_MAX, ROWS_VISITED_MAX};
use crate::wire::{MetaReply, MetaService, Rows};

/// Rows found, and the row at which to go on.
struct Found {
    rows: Rows,
    next: Option<Vec<u8>>,
}

impl Meta {
    /// Serves a scan once this map is known here.
    pub(super) fn serve_scan_under(
        &self,
        map: MapVersion,
        cluster: &Cluster,
        call: ScanCall,
        settled: bool,
        responder: Responder<MetaService>,
    ) {
        let keys = check_key(&call.from).and(call.to.as_deref().map_or(Ok(()), check_key));
        if let Err(why) = keys {
            // Dropping the responder tells the caller that there is no answer.
            return tracing::error!(%why, "refused an invalid scan: do all servers run one release?");
        }
        if cluster.managers.map().version >= map {
            return self.serve_scan(cluster, call, settled, responder);
        }
        let (mut versions, meta) = (cluster.managers.versions(), cluster.meta());
        cluster.runtime.spawn(async move {
            let known = versions.reaches(map);
            match tokio::time::timeout(MAP_LAG_MAX, known).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return refuse(responder, Refusal::Busy),
            }
            if let Some(meta) = meta
                && let Some(cluster) = meta.cluster()
            {
                meta.serve_scan(cluster, call, settled, responder);
            }
        });
    }

    fn serve_scan(
        &self,
        cluster: &Cluster,
        call: ScanCall,
        settled: bool,
        responder: Responder<MetaService>,
    ) {
        let Some(meta) = cluster.meta.get().cloned() else { return };
        let reads = Box::new(move |scan: &Scan, responder| {
            if let Some(meta) = meta.upgrade() {
                meta.answer_scan(scan, responder);
            }
        });
        let scan = Scan::begin(call, responder, reads, cluster.runtime.clone());
        let span = RowSpan { from: scan.call.from.clone(), to: scan.call.to.clone() };
        for &(pg, view) in &scan.call.pgs {
            let member = self.member(pg).filter(|member| member.pg.view() == view);
            let Some(mut member) = member else { return scan.refuse(Refusal::NotPrimary) };
            if settled && !member.pg.shows_all(&span) {
                scan.waits_for_another();
                let call = Call::Settle(span.clone());
                self.call_machine(&mut member, Wants::Settled(scan.clone()), call);
            }
        }
        Scan::settled(&scan, None);
    }

    /// Reads the rows of a scan, and answers. Blocks.
    fn answer_scan(&self, scan: &Scan, responder: Responder<MetaService>) {
        let unsettled = scan.take_unsettled();
        let call = &scan.call;
        let reads = match (&*call.pgs, &call.to) {
            // Pieces of one object, unlike rows of other kinds, are scanned by those alone that read it.
            (&[(pg, _)], Some(to)) if call.from.first() == Some(&b'W') => Some((pg, to)),
            _ => None,
        };
        if let Some((pg, _)) = reads {
            self.note_reader(pg, &call.from);
        }
        let mut found = self.find_rows(call, unsettled);
        if !call.pgs.iter().all(|&(pg, view)| self.lock(pg).accepts_reads(view)) {
            return refuse(responder, Refusal::NotPrimary);
        }
        if let (Some((pg, to)), Ok(found)) = (reads, &mut found) {
            let count = call.count_max.min(ROWS_MAX) as usize;
            // From the next page on rows are asked for again, and an answer names none of it.
            let to = found.next.as_ref().unwrap_or(to);
            self.lock(pg).join_departed((&call.from, to), count, &mut found.rows);
        }
        match found {
            Ok(Found { rows, next: None }) if rows.is_empty() && self.is_of_deleted(&scan.call) => {
                refuse(responder, Refusal::StaleBucket);
            }
            Ok(Found { rows, next }) => {
                responder.answer(&MetaReply::Rows(next), encode(&rows).into());
            }
            Err(error) => {
                tracing::error!(%error, "rows of the index cannot be read");
                refuse(responder, Refusal::IndexDamaged);
            }
        }
    }

    /// Returns true if the bucket of the rows that are scanned is gone.
    fn is_of_deleted(&self, call: &ScanCall) -> bool {
        rows::bucket_of(&call.from).is_some_and(|bucket| self.index.is_gone(bucket))
    }

    fn find_rows(&self, call: &ScanCall, unsettled: Option<Vec<u8>>) -> Result<Found, IndexError> {
        let mut wanted = vec![false; self.pgs.len()];
        for (pg, _) in &call.pgs {
            wanted[pg.0 as usize] = true;
        }
        let count_max = call.count_max.min(ROWS_MAX) as usize;
        let (mut rows, mut next, mut failed) = (Rows::new(), None, None);
        let (mut bytes, mut visited) = (0, 0);
        let mut visit = |row: &[u8], value: &[u8]| {
            visited += 1;
            let is_wanted = match owner(row, value, self.pgs.len() as u32) {
                Ok(of) => of.and_then(|of| wanted.get(of.0 as usize)) == Some(&true),
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            };
            let is_full = rows.len() >= count_max || bytes >= ROWS_BYTES_MAX;
            if visited > ROWS_VISITED_MAX || is_wanted && is_full {
                next = Some(row.to_vec());
                return ControlFlow::Break(());
            }
            if is_wanted {
                bytes += row.len() + value.len();
                rows.push((row.to_vec(), value.to_vec()));
            }
            ControlFlow::Continue(())
        };
        let to = unsettled.as_deref().or(call.to.as_deref());
        self.index.kv.scan(&call.from, to, &mut visit).map_err(index_error)?;
        failed.map_or(Ok(Found { rows, next: next.or(unsettled) }), Err)
    }

    /// Answers with one row, as the index shows it.
    pub(super) fn serve_row(
        &self,
        cluster: &Cluster,
        (pg, view): (PgId, View),
        row: Vec<u8>,
        responder: Responder<MetaService>,
    ) {
        if let Err(why) = check_key(&row) {
            return tracing::error!(%pg, %why, "refused an invalid request for a row: do all servers run one release?");
        }
        let serves = self.member(pg).is_some_and(|mut it| {
            it.note_reader(&row);
            it.pg.role() == Role::Serving
        });
        let (true, Some(meta)) = (serves, cluster.meta()) else {
            return refuse(responder, Refusal::NotPrimary);
        };
        drop(blocking::run_on(&cluster.runtime, move || {
            let found = meta.index.kv.get(&row).map_err(index_error);
            let found = found.and_then(|value| match value {
                Some(value) => Ok(Some((owner(&row, &value, meta.pgs.len() as u32)?, value))),
                None => Ok(None),
            });
            let mut member = meta.lock(pg);
            let tells = member.accepts_reads(view);
            if let (true, Ok(Some((_, value)))) = (tells, &found)
                && let Ok(Some(chunk)) = chunk_in(&row, value)
            {
                member.pg.note_read(chunk.lv, uptime_ms());
            }
            let departed = match &found {
                Ok(None) => member.pg.departed(&row, uptime_ms()),
                _ => None,
            };
            drop(member);
            match found {
                Ok(None) if tells && departed.is_some() => {
                    responder.answer(&MetaReply::Row(true), departed.unwrap_or_default());
                }
                Ok(None) if tells => responder.answer(&MetaReply::Row(false), Bytes::new()),
                Ok(Some((of, value))) if tells && of == Some(pg) => {
                    responder.answer(&MetaReply::Row(true), value);
                }
                Ok(_) => refuse(responder, Refusal::NotPrimary),
                Err(error) => {
                    tracing::error!(%pg, %error, "a row of the index cannot be read");
                    refuse(responder, Refusal::IndexDamaged);
                }
            }
        }));
    }
}
