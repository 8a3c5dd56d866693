//! A bucket that regions have, and its deletion.

use larder_model::deletion::{Bounds, Deletions, Property, Variant};

use crate::{are_all, breaks, hold};

const SMALL: Bounds = Bounds {
    regions: 3,
    deletions: 1,
    asks: 1,
    puts: 0,
    purges: false,
    reopenings: 0,
    joins: false,
};
const TWO: Bounds = Bounds { regions: 2, deletions: 2, reopenings: 1, puts: 1, ..SMALL };
/// A bucket that is open again in one region comes back in another.
const BACK: Bounds = Bounds { deletions: 2, reopenings: 1, ..SMALL };
const PURGES: Bounds =
    Bounds { regions: 2, deletions: 2, puts: 1, purges: true, reopenings: 1, ..SMALL };
const JOINS: Bounds = Bounds { joins: true, asks: 2, ..SMALL };

/// Each weaker reading, with what is smallest to show it, the property and the steps.
const WEAKER: &[(Variant, Bounds, Property, usize)] = {
    use Property::{DeletedStays, ObjectsStay, PurgedStays};
    &[
        (Variant::DeletesOneByOne, SMALL, DeletedStays, 13),
        (Variant::AskedOnce, PURGES, PurgedStays, 9),
        (Variant::OwnIsNotConfirmed, PURGES, PurgedStays, 11),
        (Variant::DeletesByName, BACK, DeletedStays, 11),
        (Variant::OldAnswersMake, SMALL, DeletedStays, 17),
        (Variant::ClosedNamesTold, SMALL, DeletedStays, 17),
        (Variant::ClosedTakesObjects, TWO, ObjectsStay, 10),
        (Variant::AnyEpochTakes, PURGES, PurgedStays, 11),
        (Variant::ClientsMarkIsTaken, BACK, DeletedStays, 11),
        (Variant::UnknownRegionsPass, JOINS, DeletedStays, 12),
    ]
};

/// Rules that the design has beyond what these bounds need.
const HARMLESS: &[Variant] =
    &[Variant::OwnFirst, Variant::GoneIsDeleted, Variant::AbsentIsAskedOnce];

#[test]
fn what_a_client_heard_to_be_deleted_is_nowhere() {
    let putting = Bounds { puts: 1, reopenings: 1, ..SMALL };
    let all = [SMALL, putting, Bounds { asks: 0, ..BACK }, TWO, PURGES, JOINS];
    hold(&all.map(|bounds| Deletions { bounds, variant: Variant::Safe }));
}

#[test]
fn each_weaker_reading_brings_a_bucket_back_or_loses_objects() {
    for (variant, bounds, property, steps) in WEAKER {
        let model = Deletions { bounds: *bounds, variant: *variant };
        breaks(&model, &format!("{variant:?}"), *property, *steps);
    }
}

#[test]
fn what_is_stricter_than_needed_breaks_nothing_when_left_out() {
    for variant in HARMLESS {
        hold(&[TWO, SMALL, JOINS].map(|bounds| Deletions { bounds, variant: *variant }));
    }
}

#[test]
fn all_readings_are_explored() {
    let weaker = WEAKER.iter().map(|(variant, ..)| *variant);
    are_all(weaker.chain(HARMLESS.iter().copied()).chain([Variant::Safe]));
}
