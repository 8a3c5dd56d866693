//! Bootstrap of a cluster: the machines that have contacted the first of the list while there is none. Pure: time is a
//! parameter.

use std::collections::BTreeMap;
use std::time::Instant;

use super::v1::{Answer, DiscoveryRequest};
use crate::limits::DISCOVERY_FRESH;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Bootstrap {
    name: String,
    peers: Vec<String>,
    /// The time at which each of the others asked last with the same list.
    seen: BTreeMap<String, Instant>,
    /// The cluster is being founded, or is.
    closed: bool,
}

impl Bootstrap {
    /// At the machine of this name, which is the first of the list.
    pub(super) fn new(name: &str, peers: &[String]) -> Self {
        let (name, peers) = (name.to_owned(), peers.to_vec());
        Self { name, peers, seen: BTreeMap::new(), closed: false }
    }

    /// A discovery request came.
    pub(super) fn requested(&mut self, now: Instant, request: &DiscoveryRequest) -> Answer {
        if self.closed {
            return Answer::NotNow("the cluster is being founded".to_owned());
        }
        if request.peers != self.peers || !self.others().any(|other| *other == request.node) {
            self.seen.remove(&request.node);
            return Answer::OtherList(self.peers.clone());
        }
        self.seen.insert(request.node.clone(), now);
        Answer::Waiting(self.missing(now))
    }

    /// The machines that have not asked lately.
    pub(super) fn missing(&self, now: Instant) -> Vec<String> {
        let is_fresh = |seen: &Instant| now.saturating_duration_since(*seen) < DISCOVERY_FRESH;
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

    fn request(node: &str, peers: &[&str]) -> DiscoveryRequest {
        DiscoveryRequest { node: node.to_owned(), peers: list(peers), keys: Vec::new() }
    }

    const ALL: [&str; 3] = ["a:1", "b:1", "c:1"];

    #[test]
    fn discovery_closes_once_all_peers_sent_the_same_list() {
        let now = Instant::now();
        let mut bootstrap = Bootstrap::new("a:1", &list(&ALL));
        assert_eq!(bootstrap.missing(now), list(&["b:1", "c:1"]));
        assert_eq!(
            bootstrap.requested(now, &request("b:1", &ALL)),
            Answer::Waiting(list(&["c:1"]))
        );
        assert!(!bootstrap.close(now), "one is missing");
        assert_eq!(bootstrap.requested(now, &request("c:1", &ALL)), Answer::Waiting(Vec::new()));
        assert!(bootstrap.close(now));
        assert!(matches!(bootstrap.requested(now, &request("b:1", &ALL)), Answer::NotNow(_)));
    }

    #[test]
    fn another_list_or_order_or_name_does_not_count_and_who_changes_its_mind_neither() {
        let now = Instant::now();
        let mut bootstrap = Bootstrap::new("a:1", &list(&ALL));
        let other = Answer::OtherList(list(&ALL));
        assert_eq!(bootstrap.requested(now, &request("b:1", &["b:1", "a:1", "c:1"])), other);
        assert_eq!(bootstrap.requested(now, &request("b:1", &["a:1", "b:1"])), other);
        assert_eq!(bootstrap.requested(now, &request("d:1", &ALL)), other);
        assert_eq!(bootstrap.requested(now, &request("a:1", &ALL)), other, "its own name");
        assert_eq!(bootstrap.missing(now).len(), 2);
        drop(bootstrap.requested(now, &request("b:1", &ALL)));
        drop(bootstrap.requested(now, &request("b:1", &["b:1"])));
        assert_eq!(bootstrap.missing(now).len(), 2);
    }

    #[test]
    fn who_has_not_asked_for_long_is_missing_again() {
        let now = Instant::now();
        let mut bootstrap = Bootstrap::new("a:1", &list(&ALL));
        drop(bootstrap.requested(now, &request("b:1", &ALL)));
        let later = now + DISCOVERY_FRESH + Duration::from_millis(1);
        drop(bootstrap.requested(later, &request("c:1", &ALL)));
        assert_eq!(bootstrap.missing(later), list(&["b:1"]));
        assert!(!bootstrap.close(later));
    }

    #[test]
    fn one_that_is_alone_in_its_list_waits_for_nobody() {
        assert!(Bootstrap::new("a:1", &list(&["a:1"])).close(Instant::now()));
    }
}
