//! The home of a bucket, among regions.

use larder_model::home::{Bounds, Homes, Property, Variant};

use crate::{are_all, breaks, hold};

const SMALL: Bounds = Bounds {
    regions: 3,
    begun: 1,
    resumed: 1,
    ended: 0,
    lost: 0,
    reported: 0,
    changes: 1,
    given: false,
    removes: false,
    joins: false,
};
const GIVEN: Bounds = Bounds { given: true, ..SMALL };
const TWO: Bounds = Bounds { regions: 2, begun: 2, ended: 1, lost: 1, reported: 1, ..SMALL };
const JOINS: Bounds = Bounds { joins: true, resumed: 0, ..SMALL };
const REMOVES: Bounds =
    Bounds { begun: 2, lost: 1, reported: 1, removes: true, given: true, ..SMALL };

/// Each weaker reading, with what is smallest to show it, the property and the steps.
const WEAKER: &[(Variant, Bounds, Property, usize)] = {
    use Property::{NothingMissed, OthersAsk};
    &[
        (Variant::SilenceAccepts, Bounds { begun: 2, lost: 1, ..SMALL }, OthersAsk, 10),
        (Variant::GivesUnwritten, Bounds { begun: 2, ended: 1, ..GIVEN }, OthersAsk, 5),
        (Variant::LevelsNever, SMALL, NothingMissed, 13),
        (Variant::DecidesLate, SMALL, NothingMissed, 13),
        (Variant::OwnTermIsHeard, REMOVES, NothingMissed, 18),
        (Variant::UnknownRegionsPass, Bounds { removes: true, ..GIVEN }, NothingMissed, 11),
        (Variant::JoinedIsIgnored, JOINS, OthersAsk, 10),
        (Variant::MadeWithoutHome, JOINS, OthersAsk, 10),
    ]
};

/// Rules that the design has beyond what these bounds need.
const HARMLESS: &[Variant] =
    &[Variant::HomeAcceptsClaims, Variant::AnyoneGives, Variant::HomeHears];

#[test]
fn no_two_regions_have_the_home() {
    let all = [
        SMALL,
        TWO,
        Bounds { given: true, ..TWO },
        Bounds { begun: 2, ..SMALL },
        Bounds { begun: 2, ended: 1, lost: 1, ..GIVEN },
        Bounds { lost: 1, reported: 1, ..GIVEN },
        REMOVES,
        JOINS,
        Bounds { given: true, ..JOINS },
    ];
    hold(&all.map(|bounds| Homes { bounds, variant: Variant::Safe }));
}

#[test]
fn each_weaker_reading_makes_two_regions_decide_or_loses_changes() {
    for (variant, bounds, property, steps) in WEAKER {
        let model = Homes { bounds: *bounds, variant: *variant };
        breaks(&model, &format!("{variant:?}"), *property, *steps);
    }
}

#[test]
fn what_is_stricter_than_needed_breaks_nothing_when_left_out() {
    for variant in HARMLESS {
        let all = [TWO, Bounds { begun: 2, lost: 1, reported: 1, ..GIVEN }];
        for bounds in all {
            let model = Homes { bounds, variant: *variant };
            let report = larder_model::explore::explore(&model, crate::STATES_MAX);
            assert!(report.exhausted, "{variant:?}: {:?}", report.violation);
        }
    }
}

#[test]
fn all_readings_are_explored() {
    let weaker = WEAKER.iter().map(|(variant, ..)| *variant);
    are_all(weaker.chain(HARMLESS.iter().copied()).chain([Variant::Safe]));
}
