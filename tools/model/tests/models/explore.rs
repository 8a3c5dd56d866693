//! The search itself.

use std::collections::HashSet;

use larder_model::explore::{Model, Sometimes, explore};
use larder_model::put::{Bounds, Put, Variant};

/// Three dials of ten positions, each of which can be turned up.
struct Dials {
    forbidden: Option<[u8; 3]>,
}

impl Model for Dials {
    type State = [u8; 3];
    type Action = usize;
    type Property = ();

    const SOMETIMES: &'static [Sometimes<[u8; 3]>] =
        &[("all up", |dials| *dials == [9; 3]), ("one beyond", |dials| dials.contains(&10))];

    fn initial(&self) -> [u8; 3] {
        [0; 3]
    }

    fn actions(&self, state: &[u8; 3], out: &mut Vec<usize>) {
        out.extend((0..3).filter(|dial| state[*dial] < 9));
    }

    fn apply(&self, state: &mut [u8; 3], dial: usize) {
        state[dial] += 1;
    }

    fn broken(&self, state: &[u8; 3]) -> Option<()> {
        (Some(*state) == self.forbidden).then_some(())
    }
}

#[test]
fn every_state_is_looked_at_once() {
    let report = explore(&Dials { forbidden: None }, 10_000);
    assert_eq!((report.states, report.depth, report.steps), (1000, 27, 2700));
    assert!(report.exhausted);
    assert_eq!(report.reached, [("all up", true), ("one beyond", false)]);
}

#[test]
fn a_violation_is_reported_with_a_shortest_way() {
    let report = explore(&Dials { forbidden: Some([2, 0, 1]) }, 10_000);
    assert!(!report.exhausted);
    let (_, mut way) = report.violation.expect("the state can be reached");
    way.sort_unstable();
    assert_eq!(way, [0, 0, 2]);
}

#[test]
fn what_is_cut_off_is_not_exhausted() {
    let report = explore(&Dials { forbidden: None }, 100);
    assert!(!report.exhausted && report.violation.is_none());
}

#[test]
fn fingerprints_distinguish_a_models_states() {
    let bounds = Bounds { replicas: 2, policy: 2, attempts: 1, restarts: 1, losses: 1, views: 1 };
    let model = Put { bounds, variant: Variant::Safe };
    let mut seen = HashSet::from([model.initial()]);
    let (mut left, mut actions) = (vec![model.initial()], Vec::new());
    while let Some(state) = left.pop() {
        model.actions(&state, &mut actions);
        for action in actions.drain(..) {
            let mut after = state.clone();
            model.apply(&mut after, action);
            if seen.insert(after.clone()) {
                left.push(after);
            }
        }
    }
    assert_eq!(explore(&model, 1_000_000).states, seen.len());
}
