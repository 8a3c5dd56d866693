//! Puts in doubt of which no replica is within reach: they are asked about again, or nobody is left to ask.

use larder_protocol::manager::state::MapVersion;
use larder_protocol::{Answer, DataAnswer, DataRequest, Event, Refusal};
use larder_types::Condition;

use crate::support::{LV, Member, abandoned, data, key, put};

fn lose_both(member: &mut Member) {
    for replica in 0..2 {
        member.step(Event::Vacate {
            lv: LV,
            replica,
            order: MapVersion(7),
            is_lost: true,
            away: larder_types::Holders::default(),
        });
    }
}

#[test]
fn a_put_whose_replicas_go_while_they_are_fenced_is_asked_about_again() {
    let (mut member, grant, requests) = abandoned(2);
    assert_eq!(requests.len(), 2);
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, DataAnswer::Failed);
    member.answer(1, DataAnswer::Failed);
    assert_eq!((member.requests(), member.pg.gauges().in_doubt), (vec![], 1));
    for replica in 0..2 {
        member.answer(replica, DataAnswer::Floor(key(1, 9)));
    }
    member.step(Event::Tick);
    let voids = [0, 1].map(|replica| (replica, DataRequest::Void { grant }));
    assert_eq!(member.requests(), voids, "they are back");
}

#[test]
fn a_put_is_revoked_once_all_its_replicas_are_lost_for_good() {
    let (mut member, ..) = abandoned(2);
    lose_both(&mut member);
    member.answer(0, DataAnswer::Failed);
    assert_eq!(member.pg.gauges().in_doubt, 1, "it may have been on its way to the other");
    member.answer(1, DataAnswer::Failed);
    member.settle();
    assert_eq!((member.row("k"), member.pg.gauges().open_puts), (None, 0));
}

#[test]
fn so_is_one_of_an_earlier_view() {
    let mut member = Member::alone(2);
    let request = member.request();
    let token = member.call(put(request, "k", data(2), Condition::default()));
    member.granted(token);
    member.settle();
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(2);
    lose_both(&mut member);
    for replica in 0..2 {
        member.answer(replica, DataAnswer::Failed);
    }
    member.settle();
    assert_eq!(member.pg.gauges().open_puts, 0);
    let token = member.call(put(request, "k", data(2), Condition::default()));
    assert_eq!(member.answers(token), [Answer::Refused(Refusal::Revoked)]);
}
