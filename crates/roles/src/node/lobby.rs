//! The machines that have knocked at the first of the list while there is no cluster. Pure but for the time
//! that it is told.

use std::collections::BTreeMap;
use std::time::Instant;

use super::v1::{Answer, Knock};
use crate::limits::KNOCK_FRESH;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Lobby {
    name: String,
    peers: Vec<String>,
    /// The time at which each of the others knocked last with the same list.
    seen: BTreeMap<String, Instant>,
    /// The cluster is being founded, or is.
    closed: bool,
}

impl Lobby {
    /// At the machine of this name, which is the first of the list.
    pub(super) fn new(name: &str, peers: &[String]) -> Self {
        let (name, peers) = (name.to_owned(), peers.to_vec());
        Self { name, peers, seen: BTreeMap::new(), closed: false }
    }

    /// Somebody knocks.
    pub(super) fn knocked(&mut self, now: Instant, knock: &Knock) -> Answer {
        if self.closed {
            return Answer::NotNow("the cluster is being founded".to_owned());
        }
        if knock.peers != self.peers || !self.others().any(|other| *other == knock.node) {
            self.seen.remove(&knock.node);
            return Answer::OtherList(self.peers.clone());
        }
        self.seen.insert(knock.node.clone(), now);
        Answer::Waiting(self.missing(now))
    }

    /// The machines that have not knocked lately.
    pub(super) fn missing(&self, now: Instant) -> Vec<String> {
        let is_fresh = |seen: &Instant| now.saturating_duration_since(*seen) < KNOCK_FRESH;
        let missing = self.others().filter(|other| !self.seen.get(*other).is_some_and(is_fresh));
        missing.cloned().collect()
    }

    /// From now on nobody waits here any more; false if somebody is missing.
    pub(super) fn close(&mut self, now: Instant) -> bool {
        self.closed = self.closed || self.missing(now).is_empty();
        self.closed
    }

    fn others(&self) -> impl Iterator<Item = &String> {
        self.peers.iter().filter(|peer| **peer != self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn knock(node: &str, peers: &[&str]) -> Knock {
        Knock { node: node.to_owned(), peers: list(peers), keys: Vec::new() }
    }

    const ALL: [&str; 3] = ["a:1", "b:1", "c:1"];

    #[test]
    fn it_closes_once_all_others_have_knocked_with_the_same_list() {
        let now = Instant::now();
        let mut lobby = Lobby::new("a:1", &list(&ALL));
        assert_eq!(lobby.missing(now), list(&["b:1", "c:1"]));
        assert_eq!(lobby.knocked(now, &knock("b:1", &ALL)), Answer::Waiting(list(&["c:1"])));
        assert!(!lobby.close(now), "one is missing");
        assert_eq!(lobby.knocked(now, &knock("c:1", &ALL)), Answer::Waiting(Vec::new()));
        assert!(lobby.close(now));
        assert!(matches!(lobby.knocked(now, &knock("b:1", &ALL)), Answer::NotNow(_)));
    }

    #[test]
    fn another_list_or_order_or_name_does_not_count_and_who_changes_its_mind_neither() {
        let now = Instant::now();
        let mut lobby = Lobby::new("a:1", &list(&ALL));
        let other = Answer::OtherList(list(&ALL));
        assert_eq!(lobby.knocked(now, &knock("b:1", &["b:1", "a:1", "c:1"])), other);
        assert_eq!(lobby.knocked(now, &knock("b:1", &["a:1", "b:1"])), other);
        assert_eq!(lobby.knocked(now, &knock("d:1", &ALL)), other);
        assert_eq!(lobby.knocked(now, &knock("a:1", &ALL)), other, "its own name");
        assert_eq!(lobby.missing(now).len(), 2);
        drop(lobby.knocked(now, &knock("b:1", &ALL)));
        drop(lobby.knocked(now, &knock("b:1", &["b:1"])));
        assert_eq!(lobby.missing(now).len(), 2);
    }

    #[test]
    fn who_has_not_knocked_for_long_is_missing_again() {
        let now = Instant::now();
        let mut lobby = Lobby::new("a:1", &list(&ALL));
        drop(lobby.knocked(now, &knock("b:1", &ALL)));
        let later = now + KNOCK_FRESH + Duration::from_millis(1);
        drop(lobby.knocked(later, &knock("c:1", &ALL)));
        assert_eq!(lobby.missing(later), list(&["b:1"]));
        assert!(!lobby.close(later));
    }

    #[test]
    fn one_that_is_alone_in_its_list_waits_for_nobody() {
        assert!(Lobby::new("a:1", &list(&["a:1"])).close(Instant::now()));
    }
}
