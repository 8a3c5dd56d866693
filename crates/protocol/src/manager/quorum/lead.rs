//! The work of a leader besides replicating: it tracks when a majority last followed it, and changes the managers.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::ServerId;

use super::event::{ChangeRefused, MemberChange, ProposalEnd, QuorumEffect};
use super::raft::{members_of, node_id};
use super::state::{LeaderTerm, Led, Quorum};
use super::wire::{Position, Term};
use crate::limits::{
    HEARTBEAT_MS, LEADER_SILENT_BEATS, LEADER_SILENT_BEATS_MAX, LEADER_SILENT_MS,
    LEADER_UNSURE_BEATS, MANAGERS_MAX, PROMOTE_LAG_MAX, QUORUM_WAITING_MAX, ROUND_FIRST,
};

impl Quorum {
    /// Notes that this term has a leader, if it counts rounds as leaders do that grant short leases.
    pub(super) fn note_leader_term(&mut self, term: Term, round: u64) {
        if round >= ROUND_FIRST
            && self.leader_term.is_none_or(|leader_term| leader_term.term < term)
        {
            self.leader_term = Some(LeaderTerm { term, since_ms: self.now_ms });
        }
    }

    /// Notes that a follower answered a round of a term.
    pub(super) fn note_answer(&mut self, from: ServerId, term: Term, round: u64) {
        let (members, me) = (self.members(), self.me);
        let Some(led) = self.led.as_mut().filter(|led| led.term == term) else { return };
        let acked = led.acked.entry(from).or_default();
        *acked = round.max(*acked);
        led.answered.insert(from);
        if members.have_majority(|server| server == me || led.answered.contains(&server)) {
            led.answered.clear();
            led.silent_beats = 0;
        }
    }

    /// Has a leader step down if no majority has answered for long. This is Raft's check of the
    /// quorum (Ongaro, Consensus: Bridging Theory and Practice, 2014, section 6.2).
    pub(super) fn check_followers(&mut self) {
        let (now_ms, me, members) = (self.now_ms, self.me, self.members());
        let Some(led) = self.led.as_mut().filter(|led| now_ms >= led.checks_ms) else { return };
        led.checks_ms = now_ms + HEARTBEAT_MS;
        if members.have_majority(|server| server == me) {
            return;
        }
        led.silent_beats += 1;
        if led.silent_beats <= LEADER_SILENT_BEATS_MAX {
            return;
        }
        let Some(peer) = self.node.peers().next() else { return };
        // Only a higher term deposes a leader in `noraft`. It votes for no manager in that term. It disturbs none either: managers
        // that have elected another leader since are in that term, or a higher one.
        let term = noraft::Term::new(self.term().0 + 1);
        let higher = noraft::Message::RequestVoteReply { from: peer, term, vote_granted: false };
        let deposed = self.node.handle_message(&higher);
        assert!(deposed.is_ok(), "a higher term contradicts nothing");
    }

    /// True if a majority has answered this leader within some heartbeats.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.led.as_ref().is_some_and(|led| led.silent_beats <= LEADER_UNSURE_BEATS)
    }

    /// True if this manager leads and is answered, or a leader has sent it a message within [`LEADER_SILENT_MS`].
    #[must_use]
    pub fn is_led(&self) -> bool {
        match &self.led {
            Some(led) => led.announced && led.silent_beats <= LEADER_SILENT_BEATS,
            None => self.led_heartbeat_ms.is_some_and(|at| self.now_ms < at + LEADER_SILENT_MS),
        }
    }

    pub(super) fn begin_round(&mut self) {
        let Some(led) = &mut self.led else { return };
        led.round += 1;
        led.began_ms.insert(led.round, self.now_ms);
        self.node.heartbeat();
    }

    pub(super) fn note_leadership(&mut self, out: &mut Vec<QuorumEffect>) {
        let leads = self.node.role() == noraft::Role::Leader;
        let term = self.term();
        if let Some(led) = self.led.take_if(|led| !leads || led.term != term) {
            let lost = std::mem::take(&mut self.tickets).into_values();
            out.extend(lost.map(|(_, t)| QuorumEffect::Decided(t, ProposalEnd::Unknown)));
            if led.announced {
                out.push(QuorumEffect::Deposed(led.term));
            }
        }
        if leads && self.led.is_none() {
            self.pre_voting = None;
            let before = self.leader_term.filter(|before| before.term.0 + 1 == term.0);
            self.note_leader_term(term, ROUND_FIRST);
            self.led = Some(Led {
                term,
                first: self.last().index,
                announced: false,
                is_fresh: false,
                shortened_since_ms: before.map(|before| before.since_ms),
                round: ROUND_FIRST,
                began_ms: BTreeMap::new(),
                acked: BTreeMap::new(),
                questions: BTreeMap::new(),
                confirmed_ms: self.now_ms,
                answered: BTreeSet::new(),
                silent_beats: 0,
                checks_ms: self.now_ms + HEARTBEAT_MS,
                sending: BTreeMap::new(),
            });
        }
    }

    pub(super) fn confirm(&mut self, out: &mut Vec<QuorumEffect>) {
        let members = members_of(self.node.config());
        let me = self.me;
        let Some(led) = &mut self.led else { return };
        let Led { acked, began_ms, questions, .. } = led;
        let follow = |round: u64| {
            members.have_majority(|s| s == me || acked.get(&s).is_some_and(|r| *r >= round))
        };
        while let Some((&round, &began)) = began_ms.first_key_value()
            && follow(round)
        {
            began_ms.pop_first();
            led.confirmed_ms = began;
            let passed = questions.remove(&round).into_iter().flatten();
            out.extend(passed.map(QuorumEffect::Confirmed));
        }
        // The questions of a round that is dropped are confirmed with the next round that a majority answers.
        if began_ms.len() > QUORUM_WAITING_MAX
            && let Some((oldest, _)) = began_ms.pop_first()
            && let Some(asked) = questions.remove(&oldest)
            && let Some((&next, _)) = began_ms.first_key_value()
        {
            questions.entry(next).or_default().extend(asked);
        }
    }

    pub(super) fn change(&mut self, change: MemberChange) -> Result<Position, ProposalEnd> {
        let refuse = |why| Err(ProposalEnd::Refused(why));
        let Some(led) = &self.led else { return Err(ProposalEnd::NotLeader) };
        let config = self.node.config();
        let through = self.members_at.0 <= self.node.commit_index().get();
        if !led.announced || config.is_joint_consensus() || !through {
            return refuse(ChangeRefused::InProgress);
        }
        let (MemberChange::AddLearner(who)
        | MemberChange::Promote(who)
        | MemberChange::Remove(who)) = change;
        let id = node_id(who);
        let (votes, learns) = (config.voters.contains(&id), config.non_voters.contains(&id));
        let voters = config.voters.len();
        let next = match change {
            MemberChange::AddLearner(_) if votes || learns => {
                return refuse(ChangeRefused::Pointless);
            }
            MemberChange::AddLearner(_) => {
                let mut next = config.clone();
                next.non_voters.insert(id);
                next
            }
            MemberChange::Promote(_) if !learns => return refuse(ChangeRefused::Pointless),
            MemberChange::Promote(_) if voters >= MANAGERS_MAX => {
                return refuse(ChangeRefused::Count);
            }
            MemberChange::Promote(_) => {
                let matched = self.node.follower_match_index(id).map_or(0, noraft::LogIndex::get);
                if matched + PROMOTE_LAG_MAX < self.node.commit_index().get() || matched == 0 {
                    return refuse(ChangeRefused::Behind);
                }
                config.to_joint_consensus(&[id], &[])
            }
            MemberChange::Remove(_) if learns => {
                let mut next = config.clone();
                next.non_voters.remove(&id);
                next
            }
            MemberChange::Remove(_) if !votes => return refuse(ChangeRefused::Pointless),
            MemberChange::Remove(_) if voters == 1 => return refuse(ChangeRefused::Count),
            MemberChange::Remove(_) => config.to_joint_consensus(&[], &[id]),
        };
        let at = self.node.propose_config(next);
        assert!(!at.is_invalid(), "the change was checked");
        Ok(at.into())
    }
}
