//! Copies of a directory, and which of their blobs count.

use clap::ValueEnum;
use larder_model::copies::{Bounds, Copies, Property, Variant};

use crate::{breaks, hold};

const SMALL: Bounds =
    Bounds { directories: 2, numbers: 2, blobs: 1, kills: 0, losses: 0, heir: false };

/// Three processes.
const THREE: Bounds = Bounds { numbers: 3, ..SMALL };

const SUCCESSOR_CLAIM: Bounds = Bounds { heir: true, ..SMALL };

/// Each weaker reading, with what is smallest to show it, the property and the steps.
const WEAKER: &[(Variant, Bounds, Property, usize)] = {
    use Property::{AcceptedCounts, OwnerKnows, ReadersHaveAll, SomeMayStart, UploadedCounts};
    &[
        (Variant::NumbersNotClosed, THREE, UploadedCounts, 40),
        (Variant::AdoptsVoid, THREE, UploadedCounts, 40),
        (Variant::AdoptsFromTheLastOnly, Bounds { kills: 1, ..THREE }, AcceptedCounts, 36),
        (Variant::KnowsFromTheLastOnly, SMALL, SomeMayStart, 21),
        (Variant::NoLookAfterUpload, SMALL, UploadedCounts, 29),
        (Variant::DecidesBeforeNumbered, SMALL, UploadedCounts, 27),
        (Variant::DrawnByDirectory, SMALL, OwnerKnows, 25),
        (Variant::ReaderIgnoresNumbers, SMALL, AcceptedCounts, 29),
        (Variant::ReaderListsLast, SMALL, AcceptedCounts, 29),
        (Variant::ReaderDoubtsEachLast, Bounds { blobs: 2, ..THREE }, ReadersHaveAll, 41),
        (Variant::ReaderIgnoresClaims, SUCCESSOR_CLAIM, AcceptedCounts, 24),
        (Variant::ReaderDoubtsTakeoverFence, SUCCESSOR_CLAIM, ReadersHaveAll, 26),
        (Variant::HeirDoesNotClose, SUCCESSOR_CLAIM, AcceptedCounts, 36),
        (Variant::HeirListsFirst, SUCCESSOR_CLAIM, AcceptedCounts, 34),
        (Variant::RecordsUnasked, SUCCESSOR_CLAIM, UploadedCounts, 35),
        (Variant::NoOwnerAfterUpload, SUCCESSOR_CLAIM, UploadedCounts, 24),
    ]
};

#[test]
fn what_counts_counts_for_good_as_the_design_stands() {
    let killed = Bounds { blobs: 2, kills: 1, ..SMALL };
    let three = Bounds { blobs: 2, ..THREE };
    let heir = Bounds { kills: 1, ..SUCCESSOR_CLAIM };
    let lossy = Bounds { directories: 1, blobs: 2, losses: 1, kills: 1, heir: true, ..THREE };
    hold(&[killed, three, heir, lossy].map(|bounds| Copies { bounds, variant: Variant::Safe }));
}

#[test]
fn each_weaker_reading_judges_wrong() {
    for (variant, bounds, property, steps) in WEAKER {
        let model = Copies { bounds: *bounds, variant: *variant };
        breaks(&model, &format!("{variant:?}"), *property, *steps);
    }
}

#[test]
fn no_reading_is_left_out() {
    assert_eq!(Variant::value_variants().len(), 1 + WEAKER.len());
}
