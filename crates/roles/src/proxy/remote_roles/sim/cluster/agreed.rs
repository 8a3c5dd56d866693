//! Checks that all managers give the same account of what they agreed on.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{Applied, MapVersion, Outcome, TokenId, Topology};
use larder_types::ServerId;
use larder_types::codec::encode;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::super::proxies::Findings;
use crate::managers::NotProposed;

/// The hash that identifies a token.
pub(super) type Hash = [u8; 32];

/// See the module's head.
pub(super) struct Agreed {
    findings: Arc<Findings>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    newest: Arc<Topology>,
    /// Sum of each map that was shown.
    sums: BTreeMap<MapVersion, u64>,
    /// The leader of each term.
    leaders: BTreeMap<u64, ServerId>,
    /// Terms before managers were made anew.
    terms_before: u64,
    /// Tokens whose addition was answered as applied.
    answered: BTreeMap<TokenId, Hash>,
    /// Tokens whose addition was answered as refused.
    refused: Vec<Hash>,
}

impl Agreed {
    pub(super) fn new(findings: &Arc<Findings>) -> Self {
        Self { findings: findings.clone(), state: Mutex::default() }
    }

    /// The newest map that was shown by anybody.
    pub(super) fn newest(&self) -> Arc<Topology> {
        self.state.lock().newest.clone()
    }

    /// A manager shows a map.
    pub(super) fn publish(&self, by: ServerId, map: &Topology) {
        // A refused command is in it too, and changes no version.
        let plain = Topology { applied: LogIndex(0), ..map.clone() };
        let (version, sum) = (map.version, xxh3_64(&encode(&plain)));
        let mut state = self.state.lock();
        if *state.sums.entry(version).or_insert(sum) != sum {
            self.findings.violated(format!("manager {by} shows another map {version}"));
        }
        if version > state.newest.version {
            state.newest = Arc::new(map.clone());
        }
    }

    /// A manager leads in a term.
    pub(super) fn leads(&self, manager: ServerId, term: u64) {
        let first = *self.state.lock().leaders.entry(term).or_insert(manager);
        if first != manager {
            self.findings.violated(format!("{first} and {manager} lead in term {term}"));
        }
    }

    /// Managers are made anew: they count terms from the first, and what they had agreed on may be lost as far as no server had heard
    /// of it.
    pub(super) fn recovered(&self) {
        let mut state = self.state.lock();
        state.terms_before += state.leaders.len() as u64;
        state.leaders.clear();
        state.answered.clear();
        state.refused.clear();
    }

    /// Elections that somebody won.
    pub(super) fn terms(&self) -> u64 {
        let state = self.state.lock();
        state.terms_before + state.leaders.len() as u64
    }

    /// Tokens that were answered.
    pub(super) fn tokens(&self) -> u64 {
        self.state.lock().answered.len() as u64
    }

    /// Somebody was answered what came of a new token.
    pub(super) fn answered(&self, hash: Hash, answer: &Result<Applied, NotProposed>) {
        let mut state = self.state.lock();
        match answer {
            Ok(Ok(Outcome::Token(token))) => {
                if state.answered.insert(*token, hash).is_some() {
                    self.findings.violated(format!("token {} is given twice", token.0));
                }
            }
            Ok(other) => self.findings.violated(format!("a new token is answered {other:?}")),
            Err(NotProposed::Unknown) => {}
            Err(_nothing_was_done) => state.refused.push(hash),
        }
    }

    /// Compares what was answered with the map that there is in the end.
    pub(super) fn judge(&self) {
        let state = self.state.lock();
        let tokens = &state.newest.tokens;
        for (token, hash) in &state.answered {
            if tokens.get(token).is_none_or(|record| record.hash != *hash) {
                self.findings.violated(format!("token {}, which was answered, is lost", token.0));
            }
        }
        let was_refused = |hash: &&Hash| tokens.values().any(|record| record.hash == **hash);
        for hash in state.refused.iter().filter(was_refused) {
            self.findings.violated(format!("a token is there that was not taken: {hash:?}"));
        }
    }
}
