//! One manager's part in the quorum: it takes events, has `noraft` handle them, and lets effects out. The work of a leader is
//! in `lead`; elections and snapshots are in `follow`.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use larder_types::ServerId;

use super::event::{ProposalEnd, QuorumEffect, QuorumEvent, Ticket};
use super::raft::{config_of, entries_of, entry_of, members_of, node_id, server_id};
use super::state::Quorum;
use super::wire::{
    Entries, HardState, Item, LogIndex, LogWrite, Position, QuorumMessage, Snapshot, Stored, Term,
};
use crate::limits::{
    COMMAND_BYTES_MAX, MANAGERS_MAX, QUORUM_LOG_BYTES_MAX, QUORUM_LOG_ENTRIES_MAX,
    QUORUM_UNCOMMITTED_MAX, QUORUM_WAITING_MAX,
};

impl Quorum {
    /// Founds the quorum of a new cluster, at one of its managers. The others start with an empty [`Stored`].
    ///
    /// # Panics
    /// If there are no voters, or more than [`MANAGERS_MAX`].
    pub fn found(
        me: ServerId,
        voters: &[ServerId],
        seed: u64,
        now_ms: u64,
        out: &mut Vec<QuorumEffect>,
    ) -> Self {
        assert!((1..=MANAGERS_MAX).contains(&voters.len()), "1 to {MANAGERS_MAX} managers");
        assert!(voters.contains(&me), "a founder is a manager");
        let mut quorum = Self::restore(me, Stored::default(), seed, now_ms, out);
        let voters: Vec<noraft::NodeId> = voters.iter().map(|voter| node_id(*voter)).collect();
        let founded = quorum.node.create_cluster(&voters);
        assert!(!founded.is_invalid(), "an empty node founds a cluster");
        quorum.settle(out);
        quorum
    }

    /// Starts with the content of the disk. `seed` decides election timeouts: it must differ between managers and between
    /// starts.
    ///
    /// # Panics
    /// If `stored` contradicts itself.
    pub fn restore(
        me: ServerId,
        stored: Stored,
        seed: u64,
        now_ms: u64,
        out: &mut Vec<QuorumEffect>,
    ) -> Self {
        let base = stored.base();
        let members = stored.snapshot.as_ref().map(|snapshot| snapshot.members.clone());
        let mut payloads = BTreeMap::new();
        let (mut index, mut members_at) = (base.index, base.index);
        for (_, item) in &stored.items {
            index = LogIndex(index.0 + 1);
            match item {
                Item::Command(command) => {
                    payloads.insert(index, command.clone());
                }
                Item::Members(_) => members_at = index,
                Item::Term => {}
            }
        }
        let entries = Entries { after: base, items: stored.items };
        let log = noraft::Log::new(
            config_of(&members.unwrap_or_default()),
            entries_of(&entries).expect("the log's terms are those of its entries"),
        );
        let term = noraft::Term::new(stored.hard.term.0);
        let node =
            noraft::Node::restart(node_id(me), term, stored.hard.voted_for.map(node_id), log);
        if let Some(snapshot) = &stored.snapshot {
            out.push(QuorumEffect::Restore(snapshot.at.index, snapshot.state.clone()));
        }
        let mut quorum = Self {
            me,
            seed,
            draws: 0,
            node,
            now_ms,
            timer_ms: now_ms,
            leader_heartbeat_ms: now_ms,
            led_heartbeat_ms: None,
            leader_term: None,
            pre_voting: None,
            voted_ms: 0,
            receiving: None,
            payloads,
            incoming: BTreeMap::new(),
            replying: 0,
            snapshot: stored.snapshot,
            unwritten_snapshot: false,
            snapshot_requested: false,
            applied: base.index,
            members_at,
            writes: 0,
            busy: None,
            waiting: VecDeque::new(),
            held: Vec::new(),
            tickets: BTreeMap::new(),
            led: None,
            halted: false,
        };
        quorum.settle(out);
        quorum
    }

    /// Takes one event.
    pub fn step(&mut self, now_ms: u64, event: QuorumEvent, out: &mut Vec<QuorumEffect>) {
        self.now_ms = self.now_ms.max(now_ms);
        if let Some(led) = &mut self.led {
            led.is_fresh = false;
        }
        match event {
            QuorumEvent::Persisted(write) => {
                if self.busy == Some(write) {
                    self.busy = None;
                    self.release(out);
                }
            }
            // The timer stays due until the write is done.
            QuorumEvent::Tick if self.busy.is_some() => {}
            QuorumEvent::Propose(ticket, _) | QuorumEvent::ChangeMembers(ticket, _)
                if self.waiting.len() >= QUORUM_WAITING_MAX =>
            {
                out.push(QuorumEffect::Decided(ticket, ProposalEnd::Busy));
            }
            // Messages may be lost.
            QuorumEvent::Peer(..) if self.waiting.len() >= QUORUM_WAITING_MAX => {}
            event => self.waiting.push_back(event),
        }
        while self.busy.is_none() && !self.halted {
            let Some(event) = self.waiting.pop_front() else { break };
            let shares = |event: &QuorumEvent| matches!(event, QuorumEvent::Propose(..));
            let shared = shares(&event) && self.waiting.front().is_some_and(shares);
            self.handle(event, out);
            // Proposals that wait together share a write.
            if !shared {
                self.settle(out);
            }
        }
        assert!(self.applied.0 <= self.node.commit_index().get(), "applied above the commit point");
    }

    fn handle(&mut self, event: QuorumEvent, out: &mut Vec<QuorumEffect>) {
        match event {
            QuorumEvent::Tick => self.tick(),
            QuorumEvent::Peer(from, message) => self.peer(from, message, out),
            QuorumEvent::Propose(ticket, command) => self.propose(ticket, command, out),
            QuorumEvent::ChangeMembers(ticket, change) => match self.change(change) {
                Ok(at) => self.expect_end(ticket, at),
                Err(end) => out.push(QuorumEffect::Decided(ticket, end)),
            },
            QuorumEvent::Confirm(ticket) => {
                if let Some(led) = &mut self.led {
                    led.questions.entry(led.round + 1).or_default().push(ticket);
                    self.begin_round();
                }
            }
            QuorumEvent::Snapshot(index, state) => self.compact(index, state),
            QuorumEvent::Persisted(_) => unreachable!("handled when it came"),
        }
    }

    fn tick(&mut self) {
        self.check_followers();
        if self.now_ms < self.timer_ms {
            return;
        }
        match self.node.role() {
            noraft::Role::Leader => self.begin_round(),
            _ => self.begin_pre_vote(),
        }
    }

    fn peer(&mut self, from: ServerId, message: QuorumMessage, out: &mut Vec<QuorumEffect>) {
        let sender = node_id(from);
        let message = match message {
            QuorumMessage::Vote { term, last } => noraft::Message::RequestVoteCall {
                from: sender,
                term: noraft::Term::new(term.0),
                last_position: last.into(),
            },
            QuorumMessage::Voted { term, granted } => noraft::Message::RequestVoteReply {
                from: sender,
                term: noraft::Term::new(term.0),
                vote_granted: granted,
            },
            QuorumMessage::Append { term, round, commit, entries } => {
                let Some(log) = entries_of(&entries) else { return };
                if term >= self.term() {
                    self.note_leader_heartbeat();
                    self.pre_voting = None;
                    self.note_leader_term(term, round);
                }
                // A manager that led in several terms counted rounds anew in each. A late round of an earlier term is answered in
                // this term, and must not count in it.
                self.replying = if term >= self.term() { round } else { 0 };
                let first = entries.after.index.0 + 1;
                let items = (first..).map(LogIndex).zip(entries.items);
                self.incoming = items
                    .filter_map(|(index, (_, item))| match item {
                        Item::Command(command) => Some((index, command)),
                        _ => None,
                    })
                    .collect();
                noraft::Message::AppendEntriesCall {
                    from: sender,
                    term: noraft::Term::new(term.0),
                    commit_index: noraft::LogIndex::new(commit.0),
                    entries: log,
                }
            }
            QuorumMessage::Appended { term, round, last } => {
                self.note_answer(from, term, round);
                noraft::Message::AppendEntriesReply {
                    from: sender,
                    term: noraft::Term::new(term.0),
                    last_position: last.into(),
                }
            }
            other => return self.follow(from, other),
        };
        if let Err(error) = self.node.handle_message(&message) {
            self.halted = true;
            out.push(QuorumEffect::Halt(format!("manager {}: {error}", self.me)));
        }
    }

    fn propose(&mut self, ticket: Ticket, command: Bytes, out: &mut Vec<QuorumEffect>) {
        let uncommitted = self.last().index.0 - self.node.commit_index().get();
        // The commands that a leader proposes on its election come first.
        if !self.led.as_ref().is_some_and(|led| led.announced && !led.is_fresh) {
            out.push(QuorumEffect::Decided(ticket, ProposalEnd::NotLeader));
        } else if uncommitted >= QUORUM_UNCOMMITTED_MAX || command.len() > COMMAND_BYTES_MAX {
            out.push(QuorumEffect::Decided(ticket, ProposalEnd::Busy));
        } else {
            let at = self.node.propose_command();
            assert!(!at.is_invalid(), "a leader may propose");
            self.payloads.insert(LogIndex(at.index.get()), command);
            self.expect_end(ticket, at.into());
        }
    }

    fn expect_end(&mut self, ticket: Ticket, at: Position) {
        self.tickets.insert(at.index, (at.term, ticket));
    }

    /// Carries out `noraft`'s actions: first the write, if there is one; the other effects are held until it is durable.
    pub(super) fn settle(&mut self, out: &mut Vec<QuorumEffect>) {
        let actions = std::mem::take(self.node.actions_mut());
        self.note_leadership(out);
        if actions.set_election_timeout {
            self.set_timer();
        }
        let entries = actions.append_log_entries.as_ref().map(|entries| self.take_entries(entries));
        for peer in self.node.peers().collect::<Vec<_>>() {
            if let Some(message) = &actions.broadcast_message {
                self.send(server_id(peer), message);
            }
        }
        for (peer, message) in &actions.send_messages {
            self.send(server_id(*peer), message);
        }
        for peer in &actions.install_snapshots {
            self.send_piece(server_id(*peer));
        }
        self.incoming.clear();
        let hard_changed = actions.save_current_term || actions.save_voted_for;
        if !hard_changed && entries.is_none() && !self.unwritten_snapshot {
            self.release(out);
            return;
        }
        let hard = HardState { term: self.term(), voted_for: self.node.voted_for().map(server_id) };
        let snapshot = if self.unwritten_snapshot { self.snapshot.clone() } else { None };
        self.unwritten_snapshot = false;
        self.writes += 1;
        self.busy = Some(self.writes);
        out.push(QuorumEffect::Persist(self.writes, LogWrite { hard, snapshot, entries }));
    }

    /// Entries for the disk, with the commands that belong to them.
    fn take_entries(&mut self, entries: &noraft::LogEntries) -> Entries {
        let after: Position = entries.prev_position().into();
        let mut before = self.payloads.split_off(&LogIndex(after.index.0 + 1));
        self.members_at = self.members_at.min(after.index);
        let mut items = Vec::with_capacity(entries.len());
        for (at, entry) in entries.iter_with_positions() {
            let at = Position::from(at);
            let item = match entry {
                noraft::LogEntry::Term(_) => Item::Term,
                noraft::LogEntry::ClusterConfig(config) => {
                    self.members_at = at.index;
                    Item::Members(members_of(&config))
                }
                noraft::LogEntry::Command => {
                    let command =
                        self.incoming.remove(&at.index).or_else(|| before.remove(&at.index));
                    let command = command.expect("a command came with its entry");
                    self.payloads.insert(at.index, command.clone());
                    Item::Command(command)
                }
            };
            items.push((at.term, item));
        }
        Entries { after, items }
    }

    fn send(&mut self, to: ServerId, message: &noraft::Message) {
        let message = match message {
            noraft::Message::RequestVoteCall { term, last_position, .. } => {
                QuorumMessage::Vote { term: Term(term.get()), last: (*last_position).into() }
            }
            noraft::Message::RequestVoteReply { term, vote_granted, .. } => {
                if *vote_granted {
                    self.pre_voting = None;
                }
                QuorumMessage::Voted { term: Term(term.get()), granted: *vote_granted }
            }
            noraft::Message::AppendEntriesCall { term, commit_index, entries, .. } => {
                QuorumMessage::Append {
                    term: Term(term.get()),
                    round: self.led.as_ref().map_or(0, |led| led.round),
                    commit: LogIndex(commit_index.get()),
                    entries: self.entries_for(entries),
                }
            }
            noraft::Message::AppendEntriesReply { term, last_position, .. } => {
                QuorumMessage::Appended {
                    term: Term(term.get()),
                    round: self.replying,
                    last: (*last_position).into(),
                }
            }
        };
        self.held.push(QuorumEffect::Send(to, message));
    }

    /// As many of the entries as fit one message.
    fn entries_for(&self, entries: &noraft::LogEntries) -> Entries {
        let mut bytes = 0;
        let mut items = Vec::new();
        for (at, entry) in entries.iter_with_positions() {
            let at = Position::from(at);
            let item = entry_of(&entry, self.payloads.get(&at.index));
            bytes += if let Item::Command(command) = &item { command.len() } else { 0 };
            if bytes > COMMAND_BYTES_MAX && !items.is_empty() {
                break;
            }
            items.push((at.term, item));
        }
        Entries { after: entries.prev_position().into(), items }
    }

    /// Lets held effects out and applies committed entries, as everything decided so far is durable.
    fn release(&mut self, out: &mut Vec<QuorumEffect>) {
        out.append(&mut self.held);
        let (before, commit) = (self.applied, self.node.commit_index().get());
        while self.applied.0 < commit {
            self.applied = LogIndex(self.applied.0 + 1);
            let index = noraft::LogIndex::new(self.applied.0);
            let log = self.node.log().entries();
            if log.get_entry(index) == Some(noraft::LogEntry::Command) {
                let command = self.payloads.get(&self.applied).cloned();
                let command = command.expect("a command is kept until a snapshot has it");
                out.push(QuorumEffect::Apply(self.applied, command));
            }
            if let Some((term, ticket)) = self.tickets.remove(&self.applied) {
                let is_it = log.get_term(index).is_some_and(|t| t.get() == term.0);
                let end =
                    if is_it { ProposalEnd::Applied(self.applied) } else { ProposalEnd::Lost };
                out.push(QuorumEffect::Decided(ticket, end));
            }
        }
        if let Some(led) = &mut self.led
            && !led.announced
            && led.first <= self.applied
        {
            (led.announced, led.is_fresh) = (true, true);
            let (term, shortened_since_ms) = (led.term, led.shortened_since_ms);
            out.push(QuorumEffect::Elected { term, shortened_since_ms });
        }
        self.confirm(out);
        if self.applied > before {
            self.check_log(out);
        }
    }

    /// Asks for a snapshot once applied entries have made the log long. It adds up all entries, so it runs only when more were
    /// applied.
    fn check_log(&mut self, out: &mut Vec<QuorumEffect>) {
        let kept =
            self.applied.0 - self.snapshot.as_ref().map_or(0, |snapshot| snapshot.at.index.0);
        let bytes: usize = self.payloads.values().map(Bytes::len).sum();
        let long = kept >= QUORUM_LOG_ENTRIES_MAX || kept > 0 && bytes >= QUORUM_LOG_BYTES_MAX;
        if long && !self.snapshot_requested {
            self.snapshot_requested = true;
            out.push(QuorumEffect::TakeSnapshot);
        }
    }

    fn compact(&mut self, index: LogIndex, state: Bytes) {
        self.snapshot_requested = false;
        assert!(index <= self.applied, "a snapshot holds what is applied");
        if self.snapshot.as_ref().is_some_and(|snapshot| snapshot.at.index >= index) {
            return;
        }
        let at = self.node.log().get_position_and_config(noraft::LogIndex::new(index.0));
        let Some((at, config)) = at.map(|(at, config)| (at, config.clone())) else { return };
        let members = members_of(&config);
        assert!(self.node.handle_snapshot_installed(at, config), "an applied entry is in the log");
        self.payloads = self.payloads.split_off(&LogIndex(index.0 + 1));
        self.snapshot = Some(Snapshot { at: at.into(), members, state });
        self.unwritten_snapshot = true;
    }
}
