//! A seed that fails is shortened to what it fails by.
#![cfg(feature = "planted-bugs")]

use larder_sim::minimise::minimise;
use larder_sim::planted::Bugs;
use larder_sim::reduction::Reduction;
use larder_sim::verdict::Finding;
use larder_sim::{Options, run, run_less};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs that are tried.
const TRIES_MAX: u32 = 40;

#[test]
fn a_seed_that_fails_is_shortened_and_fails_in_the_same_way() {
    let bugs = Bugs::named("read-unverified").expect("a planted bug's name");
    let options = Options { members: 3, bugs, ..Options::default() };
    let failed = (0..).map(|seed| run(seed, options)).find(|report| report.finding.is_some());
    let failed = failed.expect("a seed finds it");
    let kind = |finding: &Finding| Finding::kind(&finding.to_string()).to_owned();
    let wanted = failed.finding.as_ref().map(kind);
    let mut fails = |less: &Reduction| {
        let report = run_less(failed.seed, options, less);
        (report.finding.as_ref().map(kind) == wanted).then_some(report.ops as u32)
    };
    let less = minimise((failed.ops as u32, failed.faults as usize), TRIES_MAX, &mut fails);
    let shorter = run_less(failed.seed, options, &less);
    assert_eq!(shorter.finding.as_ref().map(kind), wanted);
    let made =
        shorter.ops - less.skipped.iter().filter(|at| u64::from(**at) < shorter.ops).count() as u64;
    assert!(2 * made < failed.ops, "{made} of {} calls are left: {less}", failed.ops);
    let read = less.to_string().parse::<Reduction>().expect("it is read as it is written");
    assert_eq!(run_less(failed.seed, options, &read).trace_hash, shorter.trace_hash);
}
