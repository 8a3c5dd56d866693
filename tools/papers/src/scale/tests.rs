//! The shape of what comes out: never a time.

use super::measure::run;
use super::show;
use crate::Options;

fn options(seed: u64) -> Options {
    Options { docs: ".".into(), seed, quick: true }
}

#[test]
fn a_rack_takes_one_copy_at_most_and_growth_moves_hardly_more_than_it_must() {
    let found = run(&options(1));
    assert!(found.rack.volumes > 0 && found.rack.worse == 0, "{:?}", found.rack);
    assert!(found.rack.groups > 0 && found.rack.worse_groups == 0, "{:?}", found.rack);
    let growth = &found.growth;
    assert!(
        growth.copies > 0 && growth.copies as f64 <= 1.2 * growth.copies_least as f64,
        "{growth:?}"
    );
    assert!(growth.members > 0 && growth.members < 3 * growth.members_least, "{growth:?}");
    let text = show::page(&found, &options(1));
    assert!(text.contains("larder-papers scale --seed 1 --quick"), "{text}");
    assert!(text.contains("a group needs a volume") && !text.contains("NaN"), "{text}");
}

#[test]
fn counts_are_the_same_each_time() {
    let counts = || {
        let found = run(&options(1));
        (found.map_bytes, found.volumes_bytes, found.commands, found.rack, found.growth)
    };
    assert_eq!(counts(), counts());
}
