//! Elections that do not disturb a leader, and snapshots for managers that are far behind.

use std::collections::BTreeSet;

use bytes::Bytes;
use larder_types::ServerId;

use super::event::QuorumEffect;
use super::raft::config_of;
use super::state::{PreVoting, Quorum, Receiving};
use super::wire::{Members, Position, QuorumMessage, Snapshot};
use crate::limits::{
    ELECTION_JITTER_MS, ELECTION_MS_MIN, ELECTION_YIELD_MS, HEARTBEAT_MS, MAP_BYTES_MAX,
    MAP_PIECE_BYTES,
};

impl Quorum {
    pub(super) fn set_timer(&mut self) {
        let patience = match self.node.role() {
            noraft::Role::Leader => HEARTBEAT_MS,
            _ => ELECTION_MS_MIN + self.draw(ELECTION_JITTER_MS),
        };
        self.timer_ms = self.now_ms + patience;
    }

    /// Asks the voters for pre-votes before it raises its term. So a manager that cannot win, because it was cut off or
    /// removed, never disturbs managers that have a leader.
    pub(super) fn begin_pre_vote(&mut self) {
        self.set_timer();
        let members = self.members();
        if !members.voters.contains(&self.me) && !members.next_voters.contains(&self.me) {
            return;
        }
        let round = self.draw(u64::MAX);
        self.pre_voting =
            Some(PreVoting { round, begun_ms: self.now_ms, granted: BTreeSet::new() });
        let last = self.last();
        for &peer in members.voters.union(&members.next_voters).filter(|peer| **peer != self.me) {
            self.held.push(QuorumEffect::Send(peer, QuorumMessage::PreVote { round, last }));
        }
        self.pre_vote_granted(self.me, round);
    }

    fn pre_vote_granted(&mut self, by: ServerId, round: u64) {
        let members = self.members();
        let Some(voting) = self.pre_voting.as_mut().filter(|voting| voting.round == round) else {
            return;
        };
        voting.granted.insert(by);
        if members.have_majority(|server| voting.granted.contains(&server)) {
            self.pre_voting = None;
            self.voted_ms = self.now_ms;
            assert_ne!(self.node.role(), noraft::Role::Leader, "a leader asks for no votes");
            self.node.handle_election_timeout();
        }
    }

    pub(super) fn note_leader_heartbeat(&mut self) {
        (self.leader_heartbeat_ms, self.led_heartbeat_ms) = (self.now_ms, Some(self.now_ms));
    }

    /// Returns true if, within the shortest election timeout, a leader sent a message or a majority followed this leader.
    fn has_leader(&self) -> bool {
        let since_ms = self.led.as_ref().map_or(self.leader_heartbeat_ms, |led| led.confirmed_ms);
        self.now_ms < since_ms + ELECTION_MS_MIN
    }

    /// Returns true if this manager would vote for another. Of two candidates at once, with equal logs, the one with
    /// the higher id yields: else each would vote for itself, and none would win. It yields for [`ELECTION_YIELD_MS`]
    /// only, since the other may not get its pre-vote.
    fn yields_to(&self, to: ServerId, last: Position) -> bool {
        let asks = |own: &PreVoting| self.now_ms < own.begun_ms + ELECTION_YIELD_MS;
        match &self.pre_voting {
            Some(own) if last == self.last() && asks(own) => to < self.me,
            // A candidate must not vote for another, and so end its own candidacy, just as it wins.
            None if self.node.role() == noraft::Role::Candidate => {
                self.now_ms >= self.voted_ms + ELECTION_YIELD_MS && last >= self.last()
            }
            _ => last >= self.last(),
        }
    }

    /// Handles the messages that `noraft` does not have.
    pub(super) fn follow(&mut self, from: ServerId, message: QuorumMessage) {
        match message {
            QuorumMessage::PreVote { round, last } => {
                if !self.has_leader() && self.yields_to(from, last) {
                    let granted = QuorumMessage::PreVoteGranted { round };
                    self.held.push(QuorumEffect::Send(from, granted));
                    if self.led.is_none() {
                        self.pre_voting = None;
                        self.timer_ms = self.timer_ms.max(self.now_ms + ELECTION_YIELD_MS);
                    }
                }
            }
            QuorumMessage::PreVoteGranted { round } => self.pre_vote_granted(from, round),
            QuorumMessage::SnapshotPiece { term, at, members, offset, total, piece } => {
                if term == self.term() && self.led.is_none() {
                    self.note_leader_heartbeat();
                    self.set_timer();
                    self.take_piece(from, at, members, (offset, total), &piece);
                }
            }
            QuorumMessage::SnapshotReceived { at, offset } => self.piece_received(from, at, offset),
            other => unreachable!("{other:?} is noraft's"),
        }
    }

    pub(super) fn send_piece(&mut self, to: ServerId) {
        let term = self.term();
        let (Some(snapshot), Some(led)) = (&self.snapshot, &mut self.led) else { return };
        let sent = led.sending.entry(to).or_insert((snapshot.at.index, 0));
        if sent.0 != snapshot.at.index {
            *sent = (snapshot.at.index, 0);
        }
        let total = snapshot.state.len();
        let start = usize::try_from(sent.1).unwrap_or(total).min(total);
        let piece = snapshot.state.slice(start..total.min(start + MAP_PIECE_BYTES));
        let message = QuorumMessage::SnapshotPiece {
            term,
            at: snapshot.at,
            members: snapshot.members.clone(),
            offset: start as u64,
            total: total as u64,
            piece,
        };
        self.held.push(QuorumEffect::Send(to, message));
    }

    fn piece_received(&mut self, from: ServerId, at: Position, offset: u64) {
        let Some(snapshot) = self.snapshot.as_ref().filter(|snapshot| snapshot.at == at) else {
            return;
        };
        let total = snapshot.state.len() as u64;
        let Some(led) = &mut self.led else { return };
        let Some(sent) = led.sending.get_mut(&from) else { return };
        let goes_on = offset > sent.1 && offset < total;
        *sent = (at.index, offset.min(total));
        if goes_on {
            self.send_piece(from);
        } else if offset >= total {
            led.sending.remove(&from);
        }
    }

    fn take_piece(
        &mut self,
        from: ServerId,
        at: Position,
        members: Members,
        (offset, total): (u64, u64),
        piece: &Bytes,
    ) {
        if at.index.0 <= self.node.commit_index().get() || total > MAP_BYTES_MAX {
            return;
        }
        let same = self.receiving.take().filter(|receiving| receiving.at == at);
        let mut receiving = same.unwrap_or(Receiving { at, state: Vec::new() });
        if receiving.state.len() as u64 == offset {
            receiving.state.extend_from_slice(piece);
        }
        let have = receiving.state.len() as u64;
        if have < total {
            self.receiving = Some(receiving);
        } else {
            self.install(Snapshot { at, members, state: receiving.state.into() });
        }
        let message = QuorumMessage::SnapshotReceived { at, offset: have };
        self.held.push(QuorumEffect::Send(from, message));
    }

    fn install(&mut self, snapshot: Snapshot) {
        let installed =
            self.node.handle_snapshot_installed(snapshot.at.into(), config_of(&snapshot.members));
        assert!(installed, "a follower takes a snapshot of its term above its commit point");
        let log = self.node.log().entries();
        self.payloads.retain(|index, _| log.contains_index(noraft::LogIndex::new(index.0)));
        self.applied = snapshot.at.index;
        self.held.push(QuorumEffect::Restore(snapshot.at.index, snapshot.state.clone()));
        self.snapshot = Some(snapshot);
        self.unwritten_snapshot = true;
    }
}
