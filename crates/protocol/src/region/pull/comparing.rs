//! Comparisons: walks over a region's keys where tokens of its journals are void, or an earlier one passed over entries.

use std::collections::{BTreeSet, VecDeque};

use larder_types::{PgId, RegionId};

use super::super::compare::{Listed, Range, Summed};
use super::super::journal::Token;
use super::requests::{Query, Request};
use super::wants::Claim;
use super::{Alarm, Effect, JournalState, LocalEntries, Pull, Source, Stream};

/// A comparison of all keys of a region. A range that is asked for stays first in line until it is answered.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Journals that were void when it began.
    covers: BTreeSet<PgId>,
    /// The range that was not walked over yet.
    rest: Option<Range>,
    /// Runs that differ, and were not listed yet.
    differing: VecDeque<Range>,
    /// Journals of which claims were dropped since it began: it may not find them again.
    missed: BTreeSet<PgId>,
}

impl Comparison {
    fn is_over(&self) -> bool {
        self.rest.is_none() && self.differing.is_empty()
    }

    pub(super) fn has_missed(&mut self, pg: PgId) {
        self.missed.insert(pg);
    }
}

impl Pull {
    /// Marks a journal's token as void. A comparison that is under way began too early to count for it.
    pub(super) fn wait_for_comparison(&mut self, source: Source, resume: Token) {
        let stream = self.streams.get_mut(&source).expect("it was asked for ids");
        stream.become_void(resume);
    }

    pub(super) fn ask_for_runs(&mut self, now_ms: u64, region: RegionId, out: &mut Vec<Effect>) {
        let is_asked =
            |it: &Request| it.region == region && matches!(it.what, Query::Walk | Query::List);
        if self.requests.values().any(is_asked) || !self.has_room(region) {
            return;
        }
        self.begin_comparison(region, out);
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

    fn begin_comparison(&mut self, region: RegionId, out: &mut Vec<Effect>) {
        if self.peers[&region].comparison.is_some() {
            return;
        }
        let void = self.streams_of(region).filter(|(_, stream)| stream.is_void());
        let covers: BTreeSet<PgId> = void.map(|(source, _)| source.pg).collect();
        // Those that the last one passed over are found once others can be taken.
        let is_again = |stream: &Stream| stream.is_incomplete && !stream.is_void();
        let again = self.streams_of(region).filter(|(_, stream)| is_again(stream)).count();
        if covers.is_empty() && (again == 0 || !self.may_go_back(region)) {
            return;
        }
        self.drop_found_again(region);
        out.push(Effect::Alarm(Alarm::Resync { region, journals: covers.len() + again }));
        let (rest, differing, missed) = (Some(Range::default()), VecDeque::new(), BTreeSet::new());
        let peer = self.peers.get_mut(&region).expect("it is known");
        peer.comparison = Some(Comparison { covers, rest, differing, missed });
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
        self.end_if_listed(region, out);
    }

    pub(super) fn listed(
        &mut self,
        now_ms: u64,
        request: u64,
        (listed, groups): (Listed, Vec<PgId>),
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        let is_list = |what: &mut Query| matches!(what, Query::List).then_some(());
        let Some((region, ())) = self.answered(request, is_list) else { return };
        let range = self.comparison(region).differing.pop_front();
        let range = range.expect("what is asked for was not listed yet");
        let is_journal = |pg: &PgId| self.streams.contains_key(&Source { region, pg: *pg });
        let have_groups = listed.ids.len() == groups.len() && groups.iter().all(is_journal);
        if !have_groups || !listed.covers(&range) {
            self.comparison(region).differing.push_front(range);
            self.back_off(now_ms, region);
            return out.push(Effect::Alarm(Alarm::Unsound { region }));
        }
        self.comparison(region).differing.extend(listed.rest);
        let sources: Vec<_> = groups.into_iter().map(|pg| Source { region, pg }).collect();
        for source in &sources {
            self.streams.get_mut(source).expect("it was there").listed += 1;
        }
        self.peers.get_mut(&region).expect("it is known").claims += sources.len();
        for (source, id) in sources.into_iter().zip(listed.ids) {
            self.take(now_ms, Claim::new(source, None, id), here, out);
        }
        self.end_if_listed(region, out);
    }

    fn comparison(&mut self, region: RegionId) -> &mut Comparison {
        let peer = self.peers.get_mut(&region).expect("who is asked is known");
        peer.comparison.as_mut().expect("runs are asked for by a comparison")
    }

    /// Ends a comparison that has listed all. Its journals are asked again: what cannot be taken yet holds up their tokens
    /// alone.
    fn end_if_listed(&mut self, region: RegionId, out: &mut Vec<Effect>) {
        let peer = self.peers.get_mut(&region).expect("who is asked is known");
        let Some(over) = peer.comparison.take_if(|it| it.is_over()) else { return };
        let streams = self.streams.range_mut(Source { region, pg: PgId(0) }..);
        for (source, stream) in streams.take_while(|(source, _)| source.region == region) {
            if over.covers.contains(&source.pg) {
                let JournalState::Void(resume) = stream.course else {
                    unreachable!("a journal is void until its comparison is over")
                };
                (stream.course, stream.told) = (JournalState::Compared, resume);
            }
            // All keys were walked over, so it listed what earlier ones had passed over.
            stream.is_incomplete &= over.missed.contains(&source.pg);
            stream.move_compared_token(*source, out);
        }
    }
}
