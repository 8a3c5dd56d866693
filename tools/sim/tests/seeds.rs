//! A short slice of seeds, each run twice: what CI runs at every change. `larder-sim` runs more.

use larder_sim::verdict::Covered;
use larder_sim::{Options, Report, run};

/// Runs each seed twice: nothing may be found, and both runs must be the same.
fn slice(members: usize, seeds: std::ops::Range<u64>) -> Vec<Report> {
    slice_of(Options { members, ..Options::default() }, seeds)
}

fn slice_of(options: Options, seeds: std::ops::Range<u64>) -> Vec<Report> {
    let members = options.members;
    let check = |seed| {
        let report = run(seed, options);
        if let Some(finding) = &report.finding {
            panic!("seed {seed}, {members} members: {finding}");
        }
        assert_eq!(
            report.trace_hash,
            run(seed, options).trace_hash,
            "two runs of seed {seed} differ"
        );
        report
    };
    seeds.map(check).collect()
}

#[test]
fn one_member_keeps_its_promises_under_any_fault() {
    slice(1, 0..15);
}

#[test]
fn one_member_keeps_its_promises_under_other_faults() {
    slice(1, 75..90);
}

#[test]
fn three_members_keep_their_promises_under_any_fault() {
    let mut answers = Covered::default();
    slice(3, 0..8).iter().for_each(|report| answers.merge(&report.answers));
    let hedged = answers.iter().find(|(what, _)| *what == "a hedged read");
    assert!(
        hedged.is_some_and(|(_, times)| times > 0),
        "replicas that take long are not waited for"
    );
}

#[test]
fn three_members_keep_their_promises_under_other_faults() {
    slice(3, 25..31);
}

#[test]
fn primaries_that_serve_before_their_rows_are_read_give_no_block_twice() {
    for (members, seeds) in [(1, 3000..3015), (3, 3000..3006)] {
        let options = Options { members, early: true, ..Options::default() };
        let mut kinds = Covered::default();
        slice_of(options, seeds).iter().for_each(|report| kinds.merge(&report.faults_by_kind));
        let early = kinds.iter().find(|(what, _)| *what == "views served before the rows are read");
        assert!(early.is_some_and(|(_, times)| times > 15), "{members} members: {early:?}");
    }
}

#[test]
fn every_run_has_its_operations_and_faults() {
    for report in slice(1, 1000..1005) {
        assert!(report.ops >= 500 && report.faults >= 5, "seed {}: {report:?}", report.seed);
    }
}

#[test]
fn another_seed_is_another_run() {
    let options = Options::default();
    assert_ne!(run(1, options).trace_hash, run(2, options).trace_hash);
}
