//! The power of the simulator: each planted bug is found within some seeds.
#![cfg(feature = "planted-bugs")]

mod table;

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use larder_sim::planted::{Bugs, NAMES};
use larder_sim::{Options, run};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Seeds in which a bug must be found.
const SEEDS: u64 = 400;

/// Seeds that found bugs which most others miss, tried first: they spare time, and decide nothing, as they are among
/// those. Where one does not find
/// its bug any more, the test says which does.
const FOUND_LAST: &[(&str, u64)] = &[
    ("open-lowers", 10),
    ("write-acked-unexecuted", 14),
    ("no-fence", 39),
    ("managers-persist-late", 28),
    ("lease-not-waited-out", 0),
    ("lease-not-confirmed", 20),
    ("copy-under-lasting-grant", 114),
    ("vacated-with-open-puts", 5),
    ("policy-taken-for-all", 0),
    ("append-past-pending", 1),
    ("coalesced-too-soon", 136),
    ("digest-after-batch", 0),
    ("primary-is-right", 128),
    ("odd-one-follows", 39),
    ("moved-unchecked", 198),
    ("moved-reused-at-once", 12),
    ("read-unverified", 9),
    ("snapshot-of-live-rows", 0),
    ("move-counted-unwritten", 1),
    ("copy-counted-unwritten", 5),
    ("lease-from-arrival", 14),
    ("open-of-any-boot", 15),
    ("one-header-slot", 8),
    ("verify-from-cache", 65),
    ("cut-tail-not-synced", 56),
    ("marks-believed", 53),
];

/// A bug that is looked for in more seeds than this should have one in [`FOUND_LAST`].
const SEEDS_AT_EASE: u64 = 8;

/// Bugs of members that go and come, of the managers who let them, and of who waits meanwhile.
const OF_RETURNING: &[&str] = &[
    "snapshot-without-open",
    "snapshot-keeps-old-rows",
    "lease-not-waited-out",
    "lease-not-confirmed",
    "lease-from-arrival",
    "lost-member-leads",
    "ledger-takes-twice",
    "read-without-lease",
    "snapshot-of-live-rows",
    "list-ends-early",
];

/// Bugs of copies that are made while replicas come and go.
const OF_COPIES: &[&str] = &[
    "copy-under-lasting-grant",
    "vacated-with-open-puts",
    "copy-counted-unwritten",
    "policy-taken-for-all",
    "read-of-no-holder",
];

/// Bugs of comparisons of indexes.
const OF_DIGESTS: &[&str] =
    &["digest-after-batch", "primary-is-right", "odd-one-follows", "sum-of-live-rows"];

/// Bugs of starts that serve before the rows are read.
const OF_EARLY: &[&str] = &["marks-believed", "unread-given"];

/// The options with which to look for a bug. One that needs a view change while old messages are on their way takes
/// three members. One of returning members takes many that go and come. One that needs a batch which crosses from
/// one segment of the log into the next takes large ops. One that needs a copy to be late by several views takes
/// long runs.
fn options(name: &str) -> Options {
    let bugs = Bugs::named(name).expect("a planted bug's name");
    let is_of_pieces = name == "coalesced-too-soon";
    let is_of_several = OF_RETURNING.contains(&name) || OF_COPIES.contains(&name);
    let is_of_digests = OF_DIGESTS.contains(&name);
    let is_late = name == "copy-under-lasting-grant";
    Options {
        ops: if is_late { 1500 } else { Options::default().ops },
        members: if name == "open-lowers" || is_of_several || is_of_digests || is_of_pieces {
            3
        } else {
            1
        },
        restless: is_of_several,
        heavy_log: name == "cut-tail-not-synced",
        early: OF_EARLY.contains(&name),
        coalesces: is_of_pieces,
        bugs,
        ..Options::default()
    }
}

/// The first seed that finds a bug, of all in their order. Assertions that fail on the way are findings too.
fn found_by(name: &str) -> Option<u64> {
    let options = options(name);
    (0..SEEDS).find(|seed| run(*seed, options).finding.is_some())
}

/// True if some seed finds a bug.
fn is_found(name: &str) -> bool {
    let options = options(name);
    let first = FOUND_LAST.iter().find(|(of, _)| *of == name).map(|(_, seed)| *seed);
    assert!(first.is_none_or(|seed| seed < SEEDS), "{name} would be found by none else");
    let tried = first.into_iter().chain(0..SEEDS);
    let found = tried.enumerate().find(|(_, seed)| run(*seed, options).finding.is_some());
    if let Some((before, seed)) = found.filter(|(before, _)| *before as u64 >= SEEDS_AT_EASE) {
        println!("{name} is found by seed {seed}, and by none of {before} before it");
    }
    found.is_some()
}

/// The bugs, or those of a sixth, where one is asked for by its number: 0 to 5.
fn asked_for() -> Vec<&'static str> {
    let sixth = std::env::var("LARDER_PLANTED_SIXTH").ok();
    let sixth: Option<usize> = sixth.map(|sixth| sixth.parse().expect("a number"));
    let is_of_it = |at: usize| sixth.is_none_or(|sixth| at % 6 == sixth);
    NAMES.iter().enumerate().filter(|(at, _)| is_of_it(*at)).map(|(_, name)| *name).collect()
}

/// Looks for these bugs. A simulation takes one thread: there are as many as cores.
fn of_all<T: Send>(
    names: &[&'static str],
    look: impl Fn(&'static str) -> T + Sync,
) -> Vec<(&'static str, T)> {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZeroUsize::get) {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let looked = look(name);
                    found.lock().expect("no thread failed").push((*name, looked));
                }
            });
        }
    });
    std::panic::set_hook(loud);
    found.into_inner().expect("no thread failed")
}

#[test]
fn each_planted_bug_is_found() {
    if let Some(file) = std::env::var_os(table::FILE) {
        return table::write(file.as_ref(), &of_all(NAMES, found_by));
    }
    let names = asked_for();
    assert!(!names.is_empty(), "no third of the bugs has this number");
    let looked = of_all(&names, is_found).into_iter();
    let missed: Vec<&str> = looked.filter(|(_, found)| !found).map(|(name, _)| name).collect();
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
