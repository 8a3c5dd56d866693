//! The choice of requests to other regions, and of the times to make them.

use std::collections::BTreeMap;

use larder_types::{OpSeq, PgId, RegionId};

use super::super::entry::Id;
use super::super::journal::{Batch, Token, Void, VoidReason};
use super::queue::Lane;
use super::requests::{Query, Request};
use super::wants::{Claim, Position};
use super::{Alarm, Effect, LocalEntries, Pull, Source, Stream};
use crate::limits::{
    REGION_CLAIMS_MAX, REGION_FETCH_BYTES_MAX, REGION_FETCH_IDS_MAX, REGION_FETCHES_MAX,
    REGION_POLL_MS, REGION_REQUEST_IDS_MAX, REGION_REQUEST_PGS_MAX, REGION_STUCK_TURN,
};

/// A region's answer about each group.
type BatchReplies = Vec<(PgId, Result<Batch, Void>)>;

/// Outcomes of a group whose buckets are not known here.
type Unnamed = Vec<(OpSeq, Id)>;

impl Pull {
    pub(super) fn expire(&mut self, now_ms: u64, here: &dyn LocalEntries, out: &mut Vec<Effect>) {
        let late = self.requests.iter().filter(|(_, it)| it.until_ms <= now_ms);
        let late: Vec<u64> = late.map(|(request, _)| *request).collect();
        for request in late {
            self.unanswered(now_ms, request);
        }
        self.retry_held(now_ms, here, out);
    }

    pub(super) fn unanswered(&mut self, now_ms: u64, request: u64) {
        let Some(Request { region, what, .. }) = self.requests.remove(&request) else { return };
        self.back_off(now_ms, region);
        if let Query::Fetch(asked) = what {
            self.settle_budget(region, &asked, 0);
            asked.iter().for_each(|it| self.requeue(&it.name));
        }
    }

    pub(super) fn take_batches(
        &mut self,
        now_ms: u64,
        request: u64,
        (pgs, mut unnamed): (BatchReplies, BTreeMap<PgId, Unnamed>),
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        let Some((region, mut asked)) = self.answered(request, |what| match what {
            Query::Ids { pgs } => Some(std::mem::take(pgs)),
            _ => None,
        }) else {
            return;
        };
        for (pg, reply) in pgs {
            let source = Source { region, pg };
            // An answer about another PG does not count, nor does a second one.
            let Some(at) = asked.iter().position(|asked| *asked == pg) else { continue };
            asked.swap_remove(at);
            let Some(stream) = self.streams.get_mut(&source) else { continue };
            (stream.is_heard, stream.heard_ms) = (true, now_ms);
            let unnamed = unnamed.remove(&pg).unwrap_or_default();
            let reply = reply.and_then(|batch| match has_lost(stream, &batch, &unnamed) {
                true => Err(Void { why: VoidReason::Ahead, resume: batch.token }),
                false => Ok(batch),
            });
            match reply {
                Err(void) => {
                    self.wait_for_comparison(source, void.resume);
                    out.push(Effect::Alarm(Alarm::Void { source, void }));
                }
                Ok(batch) if !follows(stream.position, &batch, &unnamed) => {
                    out.push(Effect::Alarm(Alarm::Unsound { region }));
                }
                Ok(batch) => {
                    (stream.position, stream.left) = (batch.token, batch.left);
                    self.claim((now_ms, source), (batch.ids, unnamed), here, out);
                }
            }
        }
    }

    /// Claims what a journal has told.
    fn claim(
        &mut self,
        (now_ms, source): (u64, Source),
        (mut ids, mut unnamed): (Vec<(OpSeq, Id)>, Unnamed),
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        let stream = self.streams.get_mut(&source).expect("it was there");
        let era = stream.era;
        // Behind what was passed over all is told again, also what is claimed still.
        ids.retain(|(op, _)| !stream.open.contains_key(op));
        unnamed.retain(|(op, _)| !stream.open.contains_key(op));
        stream.open.extend(ids.iter().chain(&unnamed).map(|(op, id)| (*op, id.print)));
        let peer = self.peers.get_mut(&source.region).expect("it is known");
        peer.claims += ids.len() + unnamed.len();
        let claim = |(op, id)| Claim::new(source, Some(Position { op, era }), id);
        for id in ids {
            self.take(now_ms, claim(id), here, out);
        }
        unnamed.into_iter().for_each(|id| self.keep_unnamed(now_ms, claim(id)));
        self.streams.get_mut(&source).expect("it was there").move_token(source, out);
    }

    /// Asks each region for as much as it may be asked for.
    pub(super) fn send_requests(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
        let regions: Vec<RegionId> = self.peers.keys().copied().collect();
        for region in regions {
            if self.peers[&region].quiet_until_ms > now_ms {
                continue;
            }
            self.look_for_room(now_ms, region);
            self.look_for_buckets(now_ms, region, out);
            self.request_ids(now_ms, region, out);
            self.request_runs(now_ms, region, out);
            self.request_entries(now_ms, region, out);
        }
    }

    /// The journals of a region.
    pub(super) fn streams_of(&self, region: RegionId) -> impl Iterator<Item = (&Source, &Stream)> {
        let of_region = self.streams.range(Source { region, pg: PgId(0) }..);
        of_region.take_while(move |(source, _)| source.region == region)
    }

    pub(super) fn has_room(&self, region: RegionId) -> bool {
        self.claims_of(region) + REGION_REQUEST_IDS_MAX <= REGION_CLAIMS_MAX
    }

    /// Claims of a region that may be taken now, and those that answers on their way may make.
    fn claims_of(&self, region: RegionId) -> usize {
        let peer = &self.peers[&region];
        let requests = self.requests.values().filter(|request| request.region == region);
        let coming = requests.map(|request| match request.what {
            Query::Ids { .. } | Query::List => REGION_REQUEST_IDS_MAX,
            Query::Walk | Query::Buckets(_) | Query::Fetch(_) => 0,
        });
        peer.claims - peer.stuck - peer.unnamed.len() + coming.sum::<usize>()
    }

    fn request_ids(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) {
        let is_asked = |it: &Request| it.region == region && matches!(it.what, Query::Ids { .. });
        if self.requests.values().any(is_asked) {
            return;
        }
        self.go_back(region);
        if !self.has_room(region) {
            return;
        }
        let is_due = self.peers[&region].poll_ms <= now_ms;
        let streams = self
            .streams_of(region)
            .filter(|(_, stream)| !stream.is_void() && (is_due || stream.left.0 > 0));
        let mut streams: Vec<_> = streams.collect();
        // Those that lag first, then those that were not asked for the longest time.
        streams.sort_by_key(|(source, stream)| (stream.left.0 == 0, stream.requested_ms, **source));
        streams.truncate(REGION_REQUEST_PGS_MAX);
        let pgs: Vec<_> = streams
            .iter()
            .map(|(source, stream)| (source.pg, stream.position, stream.settled))
            .collect();
        if pgs.is_empty() {
            return;
        }
        for (pg, ..) in &pgs {
            let stream = self.streams.get_mut(&Source { region, pg: *pg }).expect("it was there");
            stream.requested_ms = now_ms;
        }
        let is_last = self
            .streams_of(region)
            .all(|(_, stream)| stream.is_void() || stream.requested_ms == now_ms);
        if is_due && is_last {
            self.peers.get_mut(&region).expect("it is known").poll_ms = now_ms + REGION_POLL_MS;
        }
        let asked = pgs.iter().map(|(pg, ..)| *pg).collect();
        let request = self.begin(now_ms, region, Query::Ids { pgs: asked });
        out.push(Effect::Ask { region, request, pgs, ids_max: REGION_REQUEST_IDS_MAX });
    }

    fn request_entries(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) {
        let of_region = self.requests.values().filter(|it| it.region == region);
        let fetches = of_region.filter_map(|it| match &it.what {
            Query::Fetch(asked) => asked.first().map(|asked| (asked.lane, asked.is_large)),
            _ => None,
        });
        let mut fetches: Vec<(Lane, bool)> = fetches.collect();
        while fetches.len() < REGION_FETCHES_MAX {
            let large = fetches.iter().filter(|(_, is_large)| *is_large).count();
            let may_be_large = large + 1 < REGION_FETCHES_MAX;
            let may_be_stuck = fetches.iter().all(|(lane, _)| *lane == Lane::Fresh);
            let peer = &self.peers[&region];
            let is_stuck_turn = may_be_stuck && peer.turns >= REGION_STUCK_TURN;
            let lanes = match is_stuck_turn {
                true => [Lane::Stuck, Lane::Fresh],
                false => [Lane::Fresh, Lane::Stuck],
            };
            let lanes = lanes.into_iter().filter(|lane| may_be_stuck || *lane == Lane::Fresh);
            let mut fetched = None;
            for lane in lanes {
                let is_large = self.fetch_of(lane, may_be_large, (now_ms, region), out);
                fetched = is_large.map(|is_large| (lane, is_large));
                if fetched.is_some() {
                    break;
                }
            }
            let Some((lane, is_large)) = fetched else { return };
            let peer = self.peers.get_mut(&region).expect("it is known");
            peer.had_part = is_large;
            peer.turns = if lane == Lane::Stuck { 0 } else { peer.turns.saturating_add(1) };
            fetches.push((lane, is_large));
        }
    }

    /// Fetches of a line; returns true if that is of an entry of many bytes, and `None` if nothing may be fetched.
    fn fetch_of(
        &mut self,
        lane: Lane,
        may_be_large: bool,
        (now_ms, region): (u64, RegionId),
        out: &mut Vec<Effect>,
    ) -> Option<bool> {
        let peer = self.peers.get_mut(&region).expect("it is known");
        let bytes_max = peer.budget.left(now_ms).min(REGION_FETCH_BYTES_MAX);
        if bytes_max == 0 {
            return None;
        }
        // By turns: neither waits for the other, whether it is time or bytes that are short.
        let is_turn = !peer.had_part;
        if is_turn && may_be_large && self.fetch_large(now_ms, (region, lane), out) {
            return Some(true);
        }
        if self.fetch_small(now_ms, (region, lane), bytes_max, out) {
            return Some(false);
        }
        (may_be_large && self.fetch_large(now_ms, (region, lane), out)).then_some(true)
    }

    /// Fetches entries of few bytes; false if none waits.
    fn fetch_small(
        &mut self,
        now_ms: u64,
        (region, lane): (RegionId, Lane),
        bytes_max: u64,
        out: &mut Vec<Effect>,
    ) -> bool {
        let chosen = self.choose((region, lane), REGION_FETCH_IDS_MAX, bytes_max);
        if chosen.names.is_empty() {
            return false;
        }
        self.peers.get_mut(&region).expect("it is known").budget.take(chosen.bytes);
        let request = self.begin(now_ms, region, Query::Fetch(chosen.asked));
        out.push(Effect::Fetch { region, request, names: chosen.names });
        true
    }

    /// Fetches an entry of many bytes, or a part of it; false if none waits, or one of few is older.
    fn fetch_large(
        &mut self,
        now_ms: u64,
        (region, lane): (RegionId, Lane),
        out: &mut Vec<Effect>,
    ) -> bool {
        let peer = self.peers.get_mut(&region).expect("it is known");
        let part_bytes = peer.budget.part_bytes(self.part_bytes);
        let Some(asked) = self.choose_large((region, lane), part_bytes) else { return false };
        let (name, need, is_part) = (asked.name.clone(), asked.need, asked.is_part);
        let bytes_max = asked.bytes;
        self.peers.get_mut(&region).expect("it is known").budget.take(bytes_max);
        let request = self.begin(now_ms, region, Query::Fetch(vec![asked]));
        out.push(match is_part {
            true => Effect::FetchPart { region, request, name, bytes_max },
            false => Effect::Fetch { region, request, names: vec![(name, need)] },
        });
        true
    }
}

/// True if a batch goes on from a token: its outcomes are in order, up to its own token, and so are those whose buckets are not
/// known here.
fn follows(token: Token, batch: &Batch, unnamed: &Unnamed) -> bool {
    let in_order = |ids: &[(OpSeq, Id)]| ids.is_sorted_by(|(one, _), (two, _)| one < two);
    let mut ops: Vec<OpSeq> = batch.ids.iter().chain(unnamed).map(|(op, _)| *op).collect();
    ops.sort_unstable();
    in_order(&batch.ids)
        && in_order(unnamed)
        && ops.is_sorted_by(|one, two| one < two)
        && ops.first().is_none_or(|first| token.through < *first)
        && ops.last().copied().unwrap_or(token.through) <= batch.token.through
        && ops.len() <= REGION_REQUEST_IDS_MAX
}

/// True if a journal tells something else at a position than it did before: it has lost what it told, and gives positions
/// anew.
fn has_lost(stream: &Stream, batch: &Batch, unnamed: &Unnamed) -> bool {
    let is_other = |(op, id): &(OpSeq, Id)| stream.open.get(op).is_some_and(|it| *it != id.print);
    batch.ids.iter().chain(unnamed).any(is_other)
}
