//! Requests: what is asked of whom, and when.

use std::collections::VecDeque;

use larder_types::{PgId, RegionId};

use super::super::compare::{Listed, Range, Summed};
use super::super::entry::Name;
use super::super::journal::{Batch, Token, Void};
use super::wants::Claim;
use super::{Alarm, Effect, Holdings, Pull, Source};
use crate::limits::{
    REGION_ANSWER_MS, REGION_ASK_IDS_MAX, REGION_ASK_PGS_MAX, REGION_CLAIMS_MAX,
    REGION_FETCH_BYTES_MAX, REGION_FETCH_IDS_MAX, REGION_FETCHES_MAX, REGION_POLL_MS,
};

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Request {
    region: RegionId,
    until_ms: u64,
    what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Ids(Vec<PgId>),
    Walk(PgId, Range),
    List(PgId, Range),
    /// The entries, and how many claims each had.
    Fetch(Vec<(Name, usize)>),
}

/// All keys of a PG are compared.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Where the journal is gone on from afterwards.
    pub(super) resume: Token,
    /// Entries that are listed and not here yet.
    pub(super) claims: usize,
    /// What was not walked over yet.
    rest: Option<Range>,
    /// Runs that differ.
    differing: VecDeque<Range>,
    /// A request is under way.
    is_asked: bool,
}

impl Comparison {
    fn new(resume: Token) -> Self {
        let (rest, differing) = (Some(Range::default()), VecDeque::new());
        Self { resume, claims: 0, rest, differing, is_asked: false }
    }

    pub(super) fn is_over(&self) -> bool {
        self.rest.is_none() && self.differing.is_empty() && !self.is_asked && self.claims == 0
    }
}

impl Pull {
    pub(super) fn look_at_time(&mut self, now_ms: u64, here: &dyn Holdings, out: &mut Vec<Effect>) {
        let late = self.requests.iter().filter(|(_, it)| it.until_ms <= now_ms);
        let late: Vec<u64> = late.map(|(request, _)| *request).collect();
        for request in late {
            self.unanswered(now_ms, request);
        }
        self.look_at_held(now_ms, here, out);
    }

    pub(super) fn unanswered(&mut self, now_ms: u64, request: u64) {
        let Some(Request { region, what, .. }) = self.requests.remove(&request) else { return };
        if let Some(peer) = self.peers.get_mut(&region) {
            peer.quiet_until_ms = now_ms + REGION_POLL_MS;
        }
        match what {
            What::Ids(_) => {}
            What::Walk(pg, _) | What::List(pg, _) => {
                let Some(comparison) = self.comparison(Source { region, pg }) else { return };
                comparison.is_asked = false;
                if let What::List(_, range) = what {
                    comparison.differing.push_front(range);
                }
            }
            What::Fetch(asked) => asked.iter().for_each(|(name, _)| self.wait_again(name)),
        }
    }

    /// The answer to a request is on its way: it is waited for.
    pub(super) fn is_coming(&mut self, now_ms: u64, request: u64) {
        if let Some(asked) = self.requests.get_mut(&request) {
            asked.until_ms = asked.until_ms.max(now_ms + REGION_ANSWER_MS);
        }
    }

    /// The request that an answer is to, if it is one of this kind that is under way.
    pub(super) fn answered<T>(
        &mut self,
        request: u64,
        of_kind: impl FnOnce(&mut What) -> Option<T>,
    ) -> Option<(RegionId, T)> {
        let asked = self.requests.get_mut(&request)?;
        let (region, what) = (asked.region, of_kind(&mut asked.what)?);
        self.requests.remove(&request);
        Some((region, what))
    }

    fn comparison(&mut self, source: Source) -> Option<&mut Comparison> {
        self.streams.get_mut(&source)?.comparison.as_mut()
    }

    pub(super) fn told(
        &mut self,
        now_ms: u64,
        request: u64,
        pgs: Vec<(PgId, Result<Batch, Void>)>,
        here: &dyn Holdings,
        out: &mut Vec<Effect>,
    ) {
        let Some((region, asked)) = self.answered(request, |what| match what {
            What::Ids(pgs) => Some(std::mem::take(pgs)),
            _ => None,
        }) else {
            return;
        };
        for (pg, told) in pgs {
            let source = Source { region, pg };
            if !asked.contains(&pg) {
                continue;
            }
            let Some(stream) = self.streams.get_mut(&source) else { continue };
            stream.is_heard = true;
            match told {
                Err(void) => {
                    stream.comparison = Some(Comparison::new(void.resume));
                    stream.left = (0, 0);
                    out.push(Effect::Alarm(Alarm::Resync { source, void }));
                }
                Ok(batch) if !follows(stream.told, &batch) => {
                    out.push(Effect::Alarm(Alarm::Unsound { region }));
                }
                Ok(batch) => {
                    (stream.told, stream.left) = (batch.token, batch.left);
                    stream.open.extend(batch.ids.iter().map(|(op, _)| *op));
                    for (op, id) in batch.ids {
                        self.take(now_ms, Claim { source, at: Some(op), id }, here, out);
                    }
                    let stream = self.streams.get_mut(&source).expect("it was there");
                    stream.move_token(source, out);
                }
            }
        }
    }

    pub(super) fn walked(
        &mut self,
        request: u64,
        summed: Summed,
        here: &dyn Holdings,
        out: &mut Vec<Effect>,
    ) {
        let Some((region, (pg, range))) = self.answered(request, |what| match what {
            What::Walk(pg, range) => Some((*pg, std::mem::take(range))),
            _ => None,
        }) else {
            return;
        };
        let source = Source { region, pg };
        let Some(stream) = self.streams.get_mut(&source) else { return };
        let Some(comparison) = &mut stream.comparison else { return };
        comparison.is_asked = false;
        if !summed.covers(&range) {
            return out.push(Effect::Alarm(Alarm::Unsound { region }));
        }
        let differs = |(range, sum): &(Range, _)| here.sum(source, range) != *sum;
        let differing = summed.runs.into_iter().filter(differs).map(|(range, _)| range);
        comparison.differing.extend(differing);
        comparison.rest = summed.rest;
        stream.move_token(source, out);
    }

    pub(super) fn listed(
        &mut self,
        now_ms: u64,
        request: u64,
        listed: Listed,
        here: &dyn Holdings,
        out: &mut Vec<Effect>,
    ) {
        let Some((region, (pg, range))) = self.answered(request, |what| match what {
            What::List(pg, range) => Some((*pg, std::mem::take(range))),
            _ => None,
        }) else {
            return;
        };
        let source = Source { region, pg };
        let Some(comparison) = self.comparison(source) else { return };
        comparison.is_asked = false;
        if !listed.covers(&range) {
            comparison.differing.push_back(range);
            return out.push(Effect::Alarm(Alarm::Unsound { region }));
        }
        comparison.claims += listed.ids.len();
        comparison.differing.extend(listed.rest);
        for id in listed.ids {
            self.take(now_ms, Claim { source, at: None, id }, here, out);
        }
        let stream = self.streams.get_mut(&source).expect("it was there");
        stream.move_token(source, out);
    }

    /// Asks for what may be asked for.
    pub(super) fn go_on(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
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

    fn has_room(&self, region: RegionId) -> bool {
        let of_region = self.streams.range(Source { region, pg: PgId(0) }..);
        let of_region = of_region.take_while(|(source, _)| source.region == region);
        let claims = of_region.map(|(_, stream)| {
            stream.open.len() + stream.comparison.as_ref().map_or(0, |it| it.claims)
        });
        let requests = self.requests.values().filter(|request| request.region == region);
        let coming = requests.map(|request| match request.what {
            What::Ids(_) | What::List(..) => REGION_ASK_IDS_MAX,
            What::Walk(..) | What::Fetch(_) => 0,
        });
        claims.chain(coming).sum::<usize>() + REGION_ASK_IDS_MAX <= REGION_CLAIMS_MAX
    }

    fn ask_for_ids(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) {
        let is_asked = |it: &Request| it.region == region && matches!(it.what, What::Ids(_));
        if self.requests.values().any(is_asked) || !self.has_room(region) {
            return;
        }
        let is_due = self.peers[&region].poll_ms <= now_ms;
        let streams = self.streams.iter().filter(|(source, stream)| {
            let is_behind = stream.left.0 > 0;
            source.region == region && stream.comparison.is_none() && (is_due || is_behind)
        });
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
        let is_last = self.streams.iter().all(|(source, stream)| {
            source.region != region || stream.comparison.is_some() || stream.asked_ms == now_ms
        });
        if is_due && is_last {
            self.peers.get_mut(&region).expect("it is known").poll_ms = now_ms + REGION_POLL_MS;
        }
        let asked = pgs.iter().map(|(pg, ..)| *pg).collect();
        let request = self.begin(now_ms, region, What::Ids(asked));
        out.push(Effect::Ask { region, request, pgs, ids_max: REGION_ASK_IDS_MAX });
    }

    fn ask_for_runs(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) {
        let is_asked = |it: &Request| {
            it.region == region && matches!(it.what, What::Walk(..) | What::List(..))
        };
        if self.requests.values().any(is_asked) || !self.has_room(region) {
            return;
        }
        let of_region = self.streams.iter_mut().filter(|(source, _)| source.region == region);
        for (source, stream) in of_region {
            let Some(comparison) = &mut stream.comparison else { continue };
            let (source, differing) = (*source, comparison.differing.pop_front());
            if let Some(range) = differing {
                comparison.is_asked = true;
                let request = self.begin(now_ms, region, What::List(source.pg, range.clone()));
                return out.push(Effect::List { source, request, range });
            }
            if let Some(range) = comparison.rest.clone() {
                comparison.is_asked = true;
                let request = self.begin(now_ms, region, What::Walk(source.pg, range.clone()));
                return out.push(Effect::Walk { source, request, range });
            }
        }
    }

    fn ask_for_entries(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) {
        let is_asked = |it: &&Request| it.region == region && matches!(it.what, What::Fetch(_));
        let mut under_way = self.requests.values().filter(is_asked).count();
        while under_way < REGION_FETCHES_MAX && !self.queue.is_empty() {
            let budget = &mut self.peers.get_mut(&region).expect("it is known").budget;
            if !budget.has_any(now_ms) {
                return;
            }
            let chosen = self.choose(region, REGION_FETCH_IDS_MAX, REGION_FETCH_BYTES_MAX);
            if chosen.names.is_empty() {
                return;
            }
            self.peers.get_mut(&region).expect("it is known").budget.take(chosen.bytes);
            let request = self.begin(now_ms, region, What::Fetch(chosen.claims));
            out.push(Effect::Fetch { region, request, names: chosen.names });
            under_way += 1;
        }
    }

    fn begin(&mut self, now_ms: u64, region: RegionId, what: What) -> u64 {
        let request = self.next_request;
        self.next_request += 1;
        let until_ms = now_ms + REGION_ANSWER_MS;
        self.requests.insert(request, Request { region, until_ms, what });
        request
    }
}

/// Whether a batch goes on from a token: its outcomes in their order, up to its own token.
fn follows(token: Token, batch: &Batch) -> bool {
    let mut before = token.through;
    let in_order = batch.ids.iter().all(|(op, _)| std::mem::replace(&mut before, *op) < *op);
    in_order && before <= batch.token.through && batch.ids.len() <= REGION_ASK_IDS_MAX
}
