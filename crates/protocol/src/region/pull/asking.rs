//! The choice of requests to other regions, and of the times to make them.

use std::collections::BTreeMap;

use larder_types::{OpSeq, PgId, RegionId};

use super::super::journal::{Batch, Token, Void};
use super::requests::{Query, Request};
use super::wants::{Claim, Position};
use super::{Alarm, Effect, LocalEntries, Pull, Skipped, Source, Stream};
use crate::limits::{
    REGION_ASK_IDS_MAX, REGION_ASK_PGS_MAX, REGION_CLAIMS_MAX, REGION_FETCH_BYTES_MAX,
    REGION_FETCH_IDS_MAX, REGION_FETCHES_MAX, REGION_POLL_MS,
};

/// A region's answer about each group.
type Told = Vec<(PgId, Result<Batch, Void>)>;

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

    pub(super) fn told(
        &mut self,
        now_ms: u64,
        request: u64,
        (pgs, unnamed): (Told, &BTreeMap<PgId, Skipped>),
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        let Some((region, mut asked)) = self.answered(request, |what| match what {
            Query::Ids { pgs } => Some(std::mem::take(pgs)),
            _ => None,
        }) else {
            return;
        };
        for (pg, told) in pgs {
            let source = Source { region, pg };
            // An answer about another PG does not count, nor does a second one.
            let Some(at) = asked.iter().position(|asked| *asked == pg) else { continue };
            asked.swap_remove(at);
            let Some(stream) = self.streams.get_mut(&source) else { continue };
            (stream.is_heard, stream.heard_ms) = (true, now_ms);
            match told {
                Err(void) => {
                    self.wait_for_comparison(source, void.resume);
                    out.push(Effect::Alarm(Alarm::Void { source, void }));
                }
                Ok(batch) if !follows(stream.told, &batch, unnamed.get(&pg)) => {
                    out.push(Effect::Alarm(Alarm::Unsound { region }));
                }
                Ok(batch) => {
                    (stream.told, stream.left) = (batch.token, batch.left);
                    if let Some(unnamed) = unnamed.get(&pg) {
                        stream.pass_over(*unnamed);
                        self.go_back_later(now_ms, region);
                    }
                    let stream = self.streams.get_mut(&source).expect("it was there");
                    let (mut ids, era) = (batch.ids, stream.era);
                    // Behind what was passed over all is told again, also what is claimed still.
                    ids.retain(|(op, _)| !stream.open.contains(op));
                    stream.open.extend(ids.iter().map(|(op, _)| *op));
                    self.peers.get_mut(&region).expect("it is known").claims += ids.len();
                    for (op, id) in ids {
                        let at = Some(Position { op, era });
                        self.take(now_ms, Claim::new(source, at, id), here, out);
                    }
                    let stream = self.streams.get_mut(&source).expect("it was there");
                    stream.move_token(source, out);
                }
            }
        }
    }

    /// Asks each region for as much as it may be asked for.
    pub(super) fn send_requests(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
        let regions: Vec<RegionId> = self.peers.keys().copied().collect();
        for region in regions {
            if self.peers[&region].quiet_until_ms > now_ms {
                continue;
            }
            self.ask_for_ids(now_ms, region, out);
            self.ask_for_runs(now_ms, region, out);
            self.ask_for_entries(now_ms, region, out);
        }
    }

    /// The journals of a region.
    pub(super) fn streams_of(&self, region: RegionId) -> impl Iterator<Item = (&Source, &Stream)> {
        let of_region = self.streams.range(Source { region, pg: PgId(0) }..);
        of_region.take_while(move |(source, _)| source.region == region)
    }

    pub(super) fn has_room(&self, region: RegionId) -> bool {
        self.claims_of(region) + REGION_ASK_IDS_MAX <= REGION_CLAIMS_MAX
    }

    /// Claims of a region that are not stuck, and those that answers on their way may make.
    fn claims_of(&self, region: RegionId) -> usize {
        let peer = &self.peers[&region];
        let requests = self.requests.values().filter(|request| request.region == region);
        let coming = requests.map(|request| match request.what {
            Query::Ids { .. } | Query::List => REGION_ASK_IDS_MAX,
            Query::Walk | Query::Fetch(_) => 0,
        });
        peer.claims - peer.stuck + coming.sum::<usize>()
    }

    fn ask_for_ids(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) {
        let is_asked = |it: &Request| it.region == region && matches!(it.what, Query::Ids { .. });
        if self.requests.values().any(is_asked) {
            return;
        }
        self.go_back(now_ms, region);
        if !self.has_room(region) {
            return;
        }
        let is_due = self.peers[&region].poll_ms <= now_ms;
        let streams = self
            .streams_of(region)
            .filter(|(_, stream)| !stream.is_void() && (is_due || stream.left.0 > 0));
        let mut streams: Vec<_> = streams.collect();
        // Those that lag first, then those that were not asked for the longest time.
        streams.sort_by_key(|(source, stream)| (stream.left.0 == 0, stream.asked_ms, **source));
        streams.truncate(REGION_ASK_PGS_MAX);
        let pgs: Vec<_> = streams
            .iter()
            .map(|(source, stream)| (source.pg, stream.told, stream.settled))
            .collect();
        if pgs.is_empty() {
            return;
        }
        for (pg, ..) in &pgs {
            let stream = self.streams.get_mut(&Source { region, pg: *pg }).expect("it was there");
            stream.asked_ms = now_ms;
        }
        let is_last = self
            .streams_of(region)
            .all(|(_, stream)| stream.is_void() || stream.asked_ms == now_ms);
        if is_due && is_last {
            self.peers.get_mut(&region).expect("it is known").poll_ms = now_ms + REGION_POLL_MS;
        }
        let asked = pgs.iter().map(|(pg, ..)| *pg).collect();
        let request = self.begin(now_ms, region, Query::Ids { pgs: asked });
        out.push(Effect::Ask { region, request, pgs, ids_max: REGION_ASK_IDS_MAX });
    }

    fn ask_for_entries(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) {
        let of_region = self.requests.values().filter(|it| it.region == region);
        let fetches = of_region.filter_map(|it| match &it.what {
            Query::Fetch(asked) => Some(asked.first().is_some_and(|asked| asked.is_large)),
            _ => None,
        });
        let fetches: Vec<bool> = fetches.collect();
        let (mut under_way, mut large) = (fetches.len(), fetches.iter().filter(|it| **it).count());
        while under_way < REGION_FETCHES_MAX {
            let peer = self.peers.get_mut(&region).expect("it is known");
            let bytes_max = peer.budget.left(now_ms).min(REGION_FETCH_BYTES_MAX);
            if bytes_max == 0 {
                return;
            }
            // By turns: neither waits for the other, whether it is time or bytes that are short.
            let (is_turn, may_be_large) = (!peer.had_part, large + 1 < REGION_FETCHES_MAX);
            let mut is_large = is_turn && may_be_large && self.fetch_large(now_ms, region, out);
            if !is_large && !self.fetch_small(now_ms, region, bytes_max, out) {
                is_large = may_be_large && self.fetch_large(now_ms, region, out);
                if !is_large {
                    return;
                }
            }
            self.peers.get_mut(&region).expect("it is known").had_part = is_large;
            large += usize::from(is_large);
            under_way += 1;
        }
    }

    /// Fetches entries of few bytes; false if none waits.
    fn fetch_small(
        &mut self,
        now_ms: u64,
        region: RegionId,
        bytes_max: u64,
        out: &mut Vec<Effect>,
    ) -> bool {
        let chosen = self.choose(region, REGION_FETCH_IDS_MAX, bytes_max);
        if chosen.names.is_empty() {
            return false;
        }
        self.peers.get_mut(&region).expect("it is known").budget.take(chosen.bytes);
        let request = self.begin(now_ms, region, Query::Fetch(chosen.asked));
        out.push(Effect::Fetch { region, request, names: chosen.names });
        true
    }

    /// Fetches an entry of many bytes, or a part of it; false if none waits, or one of few is older.
    fn fetch_large(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) -> bool {
        let peer = self.peers.get_mut(&region).expect("it is known");
        let part_bytes = peer.budget.part_bytes(self.part_bytes);
        let Some(asked) = self.choose_large(region, part_bytes) else { return false };
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

/// True if a batch goes on from a token: its outcomes are in order, up to its own token, and so are those that it lacks.
fn follows(token: Token, batch: &Batch, unnamed: Option<&Skipped>) -> bool {
    let has = |op: OpSeq| token.through < op && op <= batch.token.through;
    if unnamed.is_some_and(|it| !has(it.first)) {
        return false;
    }
    let mut before = token.through;
    let in_order = batch.ids.iter().all(|(op, _)| std::mem::replace(&mut before, *op) < *op);
    in_order && before <= batch.token.through && batch.ids.len() <= REGION_ASK_IDS_MAX
}
