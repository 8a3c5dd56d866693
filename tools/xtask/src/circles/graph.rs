//! Circles of a graph: its strongly connected components of more than one node.

use std::collections::BTreeSet;

use super::Edges;

/// Each circle, with all that are in it.
pub(super) fn circles(edges: &Edges) -> Vec<BTreeSet<String>> {
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for node in edges.keys() {
        if circles.iter().any(|circle| circle.contains(node)) {
            continue;
        }
        let reached = reached(edges, node);
        let circle: BTreeSet<String> = reached
            .into_iter()
            .filter(|other| self::reached(edges, other).contains(node))
            .collect();
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles
}

/// The nodes that are reached from a node; that node is among them if it is in a circle.
fn reached(edges: &Edges, from: &str) -> BTreeSet<String> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(node) = next.pop() {
        for to in edges.get(node).into_iter().flat_map(|to| to.keys()) {
            if reached.insert(to.clone()) {
                next.push(to);
            }
        }
    }
    reached
}
