//! The log of one PG on its members.

use clap::ValueEnum;
use larder_model::explore::explore;
use larder_model::log::{Bounds, Property, Replication, Variant};

use crate::{STATES_MAX, breaks, hold};

const SMALL: Bounds =
    Bounds { views: 3, ops: 2, restarts: 0, damages: 0, patient: false, pairs: false };
const RESTART: Bounds = Bounds { restarts: 1, ..SMALL };
/// With three servers, only one whose synced ops are lost shows what a bad choice of primary does.
const DAMAGE: Bounds = Bounds { damages: 1, ops: 1, ..SMALL };
const FOUR_VIEWS: Bounds = Bounds { views: 4, patient: true, pairs: true, ..SMALL };

/// Each weaker reading, with what is smallest to show it, the property and the steps.
const WEAKER: &[(Variant, Bounds, Property, usize)] = {
    use Property::{AnsweredStays, CommittedAgree, IssuedOnce};
    &[
        (Variant::LongestBySeqAlone, Bounds { ops: 3, ..SMALL }, CommittedAgree, 14),
        (Variant::UnlevelledJoinerLeads, DAMAGE, AnsweredStays, 13),
        (Variant::RemovedMemberLeads, DAMAGE, AnsweredStays, 13),
        (Variant::RestartKeepsView, RESTART, IssuedOnce, 4),
        (Variant::MajorityCommits, DAMAGE, AnsweredStays, 14),
        (Variant::AckBeforeSync, RESTART, AnsweredStays, 11),
        (Variant::OrdersOutliveRestart, RESTART, IssuedOnce, 7),
        (Variant::DamagedMemberLeads, DAMAGE, AnsweredStays, 13),
        (
            Variant::LevelledBeforeActive,
            Bounds { damages: 1, ops: 1, ..FOUR_VIEWS },
            AnsweredStays,
            18,
        ),
        (Variant::CommitsBeforeOwnOp, Bounds { restarts: 1, ..FOUR_VIEWS }, CommittedAgree, 17),
    ]
};

/// Rules that the design has beyond what safety needs. The second is explored with a restart, as it takes, by `.ci/run`.
const HARMLESS: &[(Variant, Bounds)] = &[
    (Variant::OwnLogAlone, Bounds { patient: true, pairs: true, ..RESTART }),
    (Variant::CommitsBeforeOwnOpWithoutJoiners, FOUR_VIEWS),
];

#[test]
fn answered_ops_stay_as_the_design_stands() {
    let ops = Bounds { ops: 3, ..SMALL };
    let restart = Bounds { patient: true, pairs: true, ..RESTART };
    hold(&[restart, ops, FOUR_VIEWS].map(|bounds| Replication { bounds, variant: Variant::Safe }));
}

#[test]
fn each_weaker_reading_loses_answered_ops() {
    for (variant, bounds, property, steps) in WEAKER {
        let model = Replication { bounds: *bounds, variant: *variant };
        breaks(&model, &format!("{variant:?}"), *property, *steps);
    }
}

#[test]
fn what_is_stricter_than_needed_breaks_nothing_when_left_out() {
    for (variant, bounds) in HARMLESS {
        let report = explore(&Replication { bounds: *bounds, variant: *variant }, STATES_MAX);
        println!("{variant:?}: {} states", report.states);
        assert!(report.exhausted, "{variant:?}: {:?}", report.violation);
    }
}

#[test]
fn no_reading_is_left_out() {
    let known = 1 + WEAKER.len() + HARMLESS.len();
    assert_eq!(Variant::value_variants().len(), known);
}
