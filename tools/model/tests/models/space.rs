//! Floors and the reuse of space.

use clap::ValueEnum;
use larder_model::space::{Bounds, Property, Space, Variant};

use crate::{breaks, hold};

const SMALL: Bounds = Bounds { replicas: 1, puts: 3, views: 2, restarts: 1, repairs: 0 };

/// Each weaker reading, with what is smallest to show it, the property and the steps.
const WEAKER: &[(Variant, Bounds, Property, usize)] = {
    use Property::{AcknowledgedStays, OneOwner};
    &[
        (Variant::FloorInMemory, SMALL, AcknowledgedStays, 15),
        (Variant::OpenAnsweredBeforeDrain, SMALL, AcknowledgedStays, 13),
        (Variant::RaiseAnsweredBeforeDrain, SMALL, AcknowledgedStays, 16),
        (Variant::OpenLowers, SMALL, AcknowledgedStays, 14),
        (
            Variant::ReuseAfterOneFloor,
            Bounds { replicas: 2, puts: 2, views: 1, restarts: 0, repairs: 0 },
            AcknowledgedStays,
            20,
        ),
        (Variant::ReuseAfterOutcome, SMALL, AcknowledgedStays, 13),
        (Variant::UncommittedOutcomeFrees, SMALL, OneOwner, 17),
        (Variant::GrantsBeforeOpened, SMALL, AcknowledgedStays, 11),
        (Variant::ForgetsPending, SMALL, OneOwner, 7),
        (Variant::OpenAfterRestart, SMALL, AcknowledgedStays, 17),
        (
            Variant::RepairsHoldNoGrant,
            Bounds { repairs: 1, restarts: 0, ..SMALL },
            AcknowledgedStays,
            19,
        ),
    ]
};

/// Rules that the design has beyond what space needs.
const HARMLESS: &[Variant] =
    &[Variant::FloorAtTheFreeingOp, Variant::OpenOfAnyBoot, Variant::RaisesOverOpen];

#[test]
fn acknowledged_bytes_stay_as_the_design_stands() {
    let two = Bounds { replicas: 2, puts: 2, views: 2, restarts: 0, repairs: 0 };
    let repair = Bounds { puts: 2, repairs: 1, ..SMALL };
    hold(&[SMALL, two, repair].map(|bounds| Space { bounds, variant: Variant::Safe }));
}

#[test]
fn each_weaker_reading_loses_acknowledged_bytes() {
    for (variant, bounds, property, steps) in WEAKER {
        let model = Space { bounds: *bounds, variant: *variant };
        breaks(&model, &format!("{variant:?}"), *property, *steps);
    }
}

#[test]
fn what_is_stricter_than_needed_breaks_nothing_when_left_out() {
    for variant in HARMLESS {
        hold(&[Space { bounds: SMALL, variant: *variant }]);
    }
}

#[test]
fn no_reading_is_left_out() {
    let known = 1 + WEAKER.len() + HARMLESS.len();
    assert_eq!(Variant::value_variants().len(), known);
}
