//! Comparisons: walks over a region's keys where tokens of its journals are void, or an earlier one passed over entries.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use larder_types::{PgId, RegionId};

use super::super::compare::{Listed, Range, Summed};
use super::super::entry::Id;
use super::super::journal::Token;
use super::lack::{Lack, Lacks};
use super::requests::{Query, Request};
use super::wants::Claim;
use super::{Alarm, Effect, JournalState, LocalEntries, Pull, Source, Stream};
use crate::limits::REGION_REQUEST_IDS_MAX;

/// A comparison of all keys of a region. A range that is asked for stays first in line until it is answered.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Journals that were void when it began.
    covers: BTreeSet<PgId>,
    /// The range that was not walked over yet.
    rest: Option<Range>,
    /// Runs that differ, and were not listed yet.
    differing: VecDeque<Range>,
    /// Journals of which claims were passed over since it began, and the reasons: it may not find them again.
    missed: BTreeMap<PgId, Lacks>,
    began_ms: u64,
}

impl Comparison {
    fn is_over(&self) -> bool {
        self.rest.is_none() && self.differing.is_empty()
    }

    pub(super) fn has_missed(&mut self, pg: PgId, lack: Lack) {
        self.missed.entry(pg).or_default().add(lack);
    }
}

impl Pull {
    /// Marks a journal's token as void. A comparison that is under way began too early to count for it.
    pub(super) fn wait_for_comparison(&mut self, source: Source, resume: Token) {
        let stream = self.streams.get_mut(&source).expect("it was asked for ids");
        stream.become_void(resume);
    }

    pub(super) fn request_runs(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) {
        let is_asked =
            |it: &Request| it.region == region && matches!(it.what, Query::Walk | Query::List);
        if self.requests.values().any(is_asked) || !self.has_room(region) {
            return;
        }
        self.begin_comparison(now_ms, region, out);
        let Some(comparison) = &self.peers[&region].comparison else { return };
        let (differing, rest) = (comparison.differing.front().cloned(), comparison.rest.clone());
        if let Some(range) = differing {
            let request = self.begin(now_ms, region, Query::List);
            return out.push(Effect::List { region, request, range });
        }
        let range = rest.expect("a comparison that is over is under way no more");
        let request = self.begin(now_ms, region, Query::Walk);
        out.push(Effect::Walk { region, request, range });
    }

    fn begin_comparison(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) {
        if self.peers[&region].comparison.is_some() {
            return;
        }
        let void = self.streams_of(region).filter(|(_, stream)| stream.is_void());
        let covers: BTreeSet<PgId> = void.map(|(source, _)| source.pg).collect();
        // Those that the last one passed over are found once that may be of use.
        let is_again = |stream: &Stream| stream.incomplete.any() && !stream.is_void();
        let again = self.streams_of(region).filter(|(_, stream)| is_again(stream)).count();
        let is_due = self.streams_of(region).any(|(_, stream)| stream.incomplete.is_due);
        if covers.is_empty() && (!is_due || self.peers[&region].again.is_backing_off(now_ms)) {
            return;
        }
        self.drop_found_again(region);
        let streams = self.streams.range_mut(Source { region, pg: PgId(0) }..);
        for (_, stream) in streams.take_while(|(source, _)| source.region == region) {
            stream.incomplete.is_due = false;
        }
        out.push(Effect::Alarm(Alarm::Resync { region, journals: covers.len() + again }));
        let (rest, differing, missed) = (Some(Range::default()), VecDeque::new(), BTreeMap::new());
        let peer = self.peers.get_mut(&region).expect("it is known");
        peer.comparison = Some(Comparison { covers, rest, differing, missed, began_ms: now_ms });
    }

    pub(super) fn walked(
        &mut self,
        now_ms: u64,
        request: u64,
        summed: Summed,
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        let is_walk = |what: &mut Query| matches!(what, Query::Walk).then_some(());
        let Some((region, ())) = self.answered(request, is_walk) else { return };
        let comparison = self.comparison(region);
        let range = comparison.rest.as_ref().expect("what is asked for was not walked over yet");
        if !summed.covers(range) {
            self.back_off(now_ms, region);
            return out.push(Effect::Alarm(Alarm::Unsound { region }));
        }
        let differs = |(range, sum): &(Range, _)| here.sum(region, range) != *sum;
        let differing = summed.runs.into_iter().filter(differs).map(|(range, _)| range);
        comparison.differing.extend(differing);
        comparison.rest = summed.rest;
        self.end_if_listed(now_ms, region, out);
    }

    pub(super) fn listed(
        &mut self,
        now_ms: u64,
        request: u64,
        (listed, groups, unnamed): (Listed, Vec<PgId>, Vec<(PgId, Id)>),
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        let is_list = |what: &mut Query| matches!(what, Query::List).then_some(());
        let Some((region, ())) = self.answered(request, is_list) else { return };
        let range = self.comparison(region).differing.pop_front();
        let range = range.expect("what is asked for was not listed yet");
        let is_journal = |pg: &PgId| self.streams.contains_key(&Source { region, pg: *pg });
        let have_groups = listed.ids.len() == groups.len()
            && groups.iter().chain(unnamed.iter().map(|(pg, _)| pg)).all(is_journal);
        let is_bounded = listed.ids.len() + unnamed.len() <= REGION_REQUEST_IDS_MAX;
        if !have_groups || !is_bounded || !listed.covers(&range) {
            self.comparison(region).differing.push_front(range);
            self.back_off(now_ms, region);
            return out.push(Effect::Alarm(Alarm::Unsound { region }));
        }
        self.comparison(region).differing.extend(listed.rest);
        for pg in groups.iter().chain(unnamed.iter().map(|(pg, _)| pg)) {
            let source = Source { region, pg: *pg };
            self.streams.get_mut(&source).expect("it was there").listed += 1;
        }
        let count = groups.len() + unnamed.len();
        self.peers.get_mut(&region).expect("it is known").claims += count;
        let claim = |(pg, id)| Claim::new(Source { region, pg }, None, id);
        for listed in groups.into_iter().zip(listed.ids) {
            self.take(now_ms, claim(listed), here, out);
        }
        unnamed.into_iter().for_each(|listed| self.keep_unnamed(now_ms, claim(listed)));
        self.end_if_listed(now_ms, region, out);
    }

    fn comparison(&mut self, region: RegionId) -> &mut Comparison {
        let peer = self.peers.get_mut(&region).expect("who is asked is known");
        peer.comparison.as_mut().expect("runs are asked for by a comparison")
    }

    /// Ends a comparison that has listed all. Its journals are asked again: what cannot be taken yet holds up their tokens
    /// alone.
    fn end_if_listed(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) {
        let peer = self.peers.get_mut(&region).expect("who is asked is known");
        let Some(over) = peer.comparison.take_if(|it| it.is_over()) else { return };
        if over.missed.values().any(|missed| missed.waits_for_time()) {
            peer.again.begin(now_ms);
        }
        peer.again.rest(now_ms, now_ms - over.began_ms);
        let streams = self.streams.range_mut(Source { region, pg: PgId(0) }..);
        for (source, stream) in streams.take_while(|(source, _)| source.region == region) {
            if over.covers.contains(&source.pg) {
                let JournalState::Void(resume) = stream.course else {
                    unreachable!("a journal is void until its comparison is over")
                };
                (stream.course, stream.position) = (JournalState::Compared, resume);
            }
            // All keys were walked over, so it listed what earlier ones had passed over.
            let mut missed = over.missed.get(&source.pg).copied().unwrap_or_default();
            missed.is_due = stream.incomplete.is_due && missed.any();
            stream.incomplete = missed;
            stream.move_compared_token(*source, out);
        }
    }
}
