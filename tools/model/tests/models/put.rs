//! One put, from its grant to its outcome.

use clap::ValueEnum;
use larder_model::put::{Bounds, Property, Put, Variant};

use crate::{breaks, hold};

const ONE_ATTEMPT: Bounds =
    Bounds { replicas: 2, policy: 2, attempts: 1, restarts: 1, losses: 1, views: 1 };
const ATTEMPTS: Bounds =
    Bounds { replicas: 2, policy: 2, attempts: 2, restarts: 0, losses: 0, views: 1 };
const ANY_ONE: Bounds =
    Bounds { replicas: 2, policy: 1, attempts: 1, restarts: 1, losses: 0, views: 1 };

/// Each weaker reading, with what is smallest to show it, the property and the steps.
const WEAKER: &[(Variant, Bounds, Property, usize)] = {
    use Property::{AcknowledgedIsNotRevoked, AcknowledgedIsReadable, HoldersHold, SeenStays};
    &[
        (Variant::VerifyBeforeFence, ONE_ATTEMPT, AcknowledgedIsNotRevoked, 11),
        (Variant::VoidInMemory, ONE_ATTEMPT, AcknowledgedIsNotRevoked, 13),
        (Variant::VoidBeforeDrain, ONE_ATTEMPT, AcknowledgedIsNotRevoked, 12),
        (Variant::VerifyFromCache, ONE_ATTEMPT, HoldersHold, 7),
        (Variant::AckBeforeSync, ONE_ATTEMPT, AcknowledgedIsReadable, 6),
        (Variant::RevokeOnOneMismatch, ONE_ATTEMPT, AcknowledgedIsNotRevoked, 13),
        (Variant::PolicyTakenForAll, ANY_ONE, AcknowledgedIsNotRevoked, 9),
        (Variant::MismatchMeansNeverWritten, ONE_ATTEMPT, AcknowledgedIsNotRevoked, 13),
        (Variant::BootIgnored, ONE_ATTEMPT, AcknowledgedIsNotRevoked, 14),
        (Variant::MixedAttempts, ATTEMPTS, AcknowledgedIsReadable, 9),
        (Variant::EarlierAttemptCounts, ATTEMPTS, AcknowledgedIsNotRevoked, 13),
        (Variant::PersistedOfAnyAttempt, ATTEMPTS, AcknowledgedIsNotRevoked, 13),
        (Variant::AnswerWithoutPersisted, ONE_ATTEMPT, AcknowledgedIsNotRevoked, 8),
        (Variant::RegrantWhileResolving, ATTEMPTS, AcknowledgedIsNotRevoked, 13),
        (
            Variant::AttemptsNumberedAnew,
            Bounds { attempts: 3, ..ATTEMPTS },
            AcknowledgedIsReadable,
            11,
        ),
        (Variant::AnswerAfterWithdrawal, ANY_ONE, AcknowledgedIsNotRevoked, 7),
        (Variant::ReadBeforeOutcomeCommitted, ONE_ATTEMPT, SeenStays, 11),
        (Variant::ReadPending, ONE_ATTEMPT, SeenStays, 4),
    ]
};

/// Rules that the design has beyond what it needs.
const HARMLESS: &[Variant] = &[Variant::RollForwardUnpersisted];

#[test]
fn acknowledged_and_seen_puts_stay_as_the_design_stands() {
    let three = Bounds { replicas: 3, ..ONE_ATTEMPT };
    let bounds = [
        ONE_ATTEMPT,
        ANY_ONE,
        Bounds { restarts: 1, ..ATTEMPTS },
        three,
        Bounds { policy: 3, ..three },
        Bounds { policy: 1, losses: 0, ..three },
    ];
    hold(&bounds.map(|bounds| Put { bounds, variant: Variant::Safe }));
}

#[test]
fn each_weaker_reading_loses_or_revokes() {
    for (variant, bounds, property, steps) in WEAKER {
        let model = Put { bounds: *bounds, variant: *variant };
        breaks(&model, &format!("{variant:?}"), *property, *steps);
    }
}

#[test]
fn what_is_stricter_than_needed_breaks_nothing_when_left_out() {
    for variant in HARMLESS {
        hold(&[Put { bounds: ONE_ATTEMPT, variant: *variant }]);
    }
}

#[test]
fn no_reading_is_left_out() {
    let known = 1 + WEAKER.len() + HARMLESS.len();
    assert_eq!(Variant::value_variants().len(), known);
}
