//! The models show no violation of the design as it stands within small bounds, all of them
//! exhausted. They show a shortest counter-example for every weaker reading.

use std::fmt::Debug;

use clap::ValueEnum;
use larder_model::explore::{Model, explore};

mod copies;
mod deletion;
mod explore;
mod home;
mod log;
mod put;
mod space;

/// States after which an exploration of these bounds has gone wrong.
const STATES_MAX: usize = 5_000_000;

/// Explores all of each model: nothing is broken, and what should happen somewhere does.
fn hold<M: Model>(models: &[M]) {
    let mut reached = vec![false; M::SOMETIMES.len()];
    for model in models {
        let report = explore(model, STATES_MAX);
        println!("{} states, depth {}, {:?}", report.states, report.depth, report.took);
        assert!(report.violation.is_none(), "{:?}", report.violation);
        assert!(report.exhausted, "{} states are not all", report.states);
        for (reached, (_, now)) in reached.iter_mut().zip(report.reached) {
            *reached |= now;
        }
    }
    for (reached, (name, _)) in reached.into_iter().zip(M::SOMETIMES) {
        assert!(reached, "never happened: {name}");
    }
}

/// Checks that these are all variants that there are.
fn are_all<V: ValueEnum + Debug + PartialEq>(explored: impl Iterator<Item = V>) {
    let explored: Vec<_> = explored.collect();
    for variant in V::value_variants() {
        assert!(explored.contains(variant), "{variant:?} is not explored");
    }
}

/// The shortest way to a violation, which must be one of this property and have so many steps.
fn breaks<M: Model>(model: &M, name: &str, property: M::Property, steps: usize) {
    let report = explore(model, STATES_MAX);
    let Some((broken, way)) = report.violation else {
        panic!("{name}: nothing is broken in {} states", report.states);
    };
    println!("{name}: {broken:?} after {} steps, {} states", way.len(), report.states);
    assert_eq!((broken, way.len()), (property, steps), "{name}: {way:#?}");
}
