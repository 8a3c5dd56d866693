//! Puts in doubt: fence, then verify, then decide ("Puts in doubt" in `docs/cluster.md`), also over a restart.

use crate::support::{LV_BLOCKS, Member, abandoned, data, key, mismatch, put, unacknowledged};
use larder_protocol::limits::{GRANT_MS_MAX, LV_REOPEN_MS, RETRY_TICKS_MAX};
use larder_protocol::{Answer, Call, DataAnswer, DataRequest, Event, Refusal};
use larder_types::{Body, Condition, Grant, GrantKey, Holders, SessionId};

fn is_verify(request: &DataRequest) -> bool {
    matches!(request, DataRequest::Verify { .. })
}

#[test]
fn every_replica_is_fenced_before_any_is_verified() {
    let (mut member, grant, requests) = abandoned(2);
    assert_eq!(requests, [(0, DataRequest::Void { grant }), (1, DataRequest::Void { grant })]);
    member.answer(0, DataAnswer::Voided(grant));
    assert_eq!(member.requests(), [], "the other replica may still take a late write");
    member.answer(1, DataAnswer::Voided(grant));
    let requests = member.requests();
    assert!(requests.len() == 2 && requests.iter().all(|(_, request)| is_verify(request)));
}

#[test]
fn one_good_copy_rolls_the_put_forward() {
    let (mut member, grant, _) = abandoned(2);
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(1, DataAnswer::Voided(grant));
    member.answer(0, mismatch(grant));
    member.answer(1, DataAnswer::Verified(grant));
    member.settle();
    let Body::Chunk(chunk) = member.row("k").expect("it is there").body else { panic!() };
    assert_eq!(chunk.holders, Holders::default().with(1), "only the good copy counts");
}

#[test]
fn no_good_copy_on_any_replica_revokes_the_put() {
    let (mut member, grant, _) = abandoned(2);
    for replica in 0..2 {
        member.answer(replica, DataAnswer::Voided(grant));
    }
    member.answer(0, mismatch(grant));
    member.settle();
    assert_eq!(member.pg.gauges().open_puts, 1, "the other replica was not looked at");
    member.answer(1, mismatch(grant));
    member.settle();
    assert_eq!((member.row("k"), member.pg.gauges().open_puts), (None, 0));
    assert_eq!(member.pg.gauges().space.waiting, 2, "its blocks are freed");
}

#[test]
fn a_put_stays_in_doubt_while_a_replica_fails_and_is_asked_again() {
    let (mut member, grant, _) = abandoned(2);
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(1, DataAnswer::Voided(grant));
    member.requests();
    member.answer(1, DataAnswer::NotNow(grant));
    member.answer(0, mismatch(grant));
    assert_eq!(member.pg.gauges().in_doubt, 1);
    member.step(Event::Tick);
    let requests = member.requests();
    assert_eq!(requests, [(0, DataRequest::Void { grant }), (1, DataRequest::Void { grant })]);
}

#[test]
fn what_was_rolled_forward_is_read_only_when_its_outcome_is_applied() {
    let (mut member, grant, _) = abandoned(2);
    let early = member.read("k");
    for replica in 0..2 {
        member.answer(replica, DataAnswer::Voided(grant));
    }
    member.answer(0, DataAnswer::Verified(grant));
    member.answer(1, mismatch(grant));
    let late = member.read("k");
    assert_eq!(member.answers(early), [], "the outcome may be lost, and found otherwise then");
    assert_eq!(member.answers(late), []);
    member.settle();
    assert_eq!(member.answers(early), [Answer::AskIndex]);
    assert_eq!(member.answers(late), [Answer::AskIndex]);
    assert!(member.row("k").is_some());
}

#[test]
fn a_put_is_decided_by_the_good_copy_within_reach() {
    let (mut member, grant, _) = abandoned(2);
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(1, DataAnswer::Failed);
    let requests = member.requests();
    assert!(matches!(&requests[..], [(0, request)] if is_verify(request)), "{requests:?}");
    member.answer(0, DataAnswer::Verified(grant));
    member.settle();
    let Body::Chunk(chunk) = member.row("k").expect("it is there").body else { panic!() };
    assert_eq!(chunk.holders, Holders::default().with(0));
}

#[test]
fn a_put_that_a_replica_never_acknowledged_is_revoked_without_the_others() {
    let (mut member, grant, _) = abandoned(2);
    member.answer(1, DataAnswer::Failed);
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, unacknowledged(grant));
    member.settle();
    assert_eq!((member.row("k"), member.pg.gauges().open_puts), (None, 0));
}

#[test]
fn other_bytes_on_one_replica_decide_nothing_while_the_other_is_gone() {
    let (mut member, grant, _) = abandoned(2);
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(1, DataAnswer::Failed);
    member.answer(0, mismatch(grant));
    member.settle();
    assert_eq!(member.pg.gauges().in_doubt, 1, "the one may have rotted, the other may be good");
}

#[test]
fn a_late_commit_of_a_revoked_put_changes_nothing() {
    let (mut member, grant, _) = abandoned(1);
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, mismatch(grant));
    member.commit(grant, 1);
    member.settle();
    assert_eq!(member.row("k"), None);
}

#[test]
fn a_commit_that_overtakes_the_resolution_decides() {
    let (mut member, grant, _) = abandoned(1);
    member.commit(grant, 1);
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, mismatch(grant));
    member.settle();
    assert!(member.row("k").is_some(), "every replica had acknowledged the data");
}

#[test]
fn a_put_whose_proxy_is_silent_is_resolved_by_its_age() {
    let mut member = Member::alone(1);
    let grant = member.open_put("k", 1);
    member.settle();
    member.now_ms += GRANT_MS_MAX;
    member.step(Event::Tick);
    assert_eq!(member.requests(), []);
    member.now_ms += 1;
    member.step(Event::Tick);
    assert_eq!(member.requests(), [(0, DataRequest::Void { grant })]);
}

#[test]
fn a_reader_goes_on_when_a_pending_put_is_revoked() {
    let mut member = Member::alone(1);
    let old = member.store("k", 1, 1);
    let grant = member.pending_put("k", 1);
    let get = member.read("k");
    assert_eq!(member.answers(get), []);
    member.call(Call::Abandon { op: grant.op, disk_full: false });
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, mismatch(grant));
    assert_eq!(member.answers(get), [Answer::AskIndex]);
    assert_eq!(member.row("k").expect("the old version").op, old.op);
}

#[test]
fn a_put_open_at_a_restart_keeps_its_blocks_and_is_resolved_in_the_new_view() {
    let mut member = Member::alone(1);
    let grant = member.open_put("k", 30);
    member.settle();
    let mut member = member.restart();
    assert_eq!(member.pg.retain_from(), grant.op.seq, "its record is needed");
    member.begin(2, &[1]);
    member.serve(1);
    let free = u64::from(LV_BLOCKS) - 30;
    assert_eq!(member.pg.gauges().space.free, free);
    assert!(member.requests().iter().all(|(_, request)| !is_verify(request)), "not fenced yet");
    member.answer(0, DataAnswer::Floor(key(2, 0)));
    let requests = member.requests();
    assert!(is_verify(&requests[0].1), "the view's Open is the fence: {requests:?}");
    member.answer(0, DataAnswer::Verified(grant));
    member.settle();
    assert!(member.row("k").is_some());
}

#[test]
fn a_put_that_was_not_durable_at_the_restart_never_was() {
    let mut member = Member::alone(1);
    member.put_data("k", 30);
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(1);
    assert_eq!(member.pg.gauges().open_puts, 0);
    assert_eq!(member.pg.gauges().space.free, u64::from(LV_BLOCKS));
}

#[test]
fn an_outcome_that_was_not_durable_at_the_restart_is_decided_anew() {
    let mut member = Member::alone(1);
    let grant = member.open_put("k", 1);
    member.settle();
    member.commit(grant, 1);
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(1);
    member.answer(0, DataAnswer::Floor(key(2, 0)));
    member.answer(0, DataAnswer::Verified(grant));
    member.settle();
    assert_eq!(member.row("k").expect("it was acknowledged").op, grant.op);
}

#[test]
fn streams_of_pending_chunks_are_known_after_a_restart() {
    use larder_types::{StreamId, Target};
    let mut member = Member::alone(1);
    let request = member.request();
    let stream = StreamId { session: request.session, number: 7 };
    let mut call = crate::support::put(
        request,
        "k",
        crate::support::data(1),
        larder_types::Condition::default(),
    );
    if let Call::Put(put) = &mut call {
        put.target = Target::Chunk { stream, number: 0 };
    }
    member.call(call);
    member.settle();
    let member = member.restart();
    let pending: Vec<_> = member.pg.pending_streams().collect();
    assert_eq!(pending, [(crate::support::BUCKET, stream)]);
}

#[test]
fn nothing_is_served_before_the_space_is_known() {
    let member = Member::alone(1);
    let mut member = member.restart();
    let get = member.read("k");
    assert_eq!(member.refusal(get), Refusal::NotPrimary);
    member.begin(2, &[1]);
    member.settle();
    let get = member.read("k");
    assert_eq!(member.refusal(get), Refusal::NotPrimary);
    member.serve(1);
    let get = member.read("k");
    assert_eq!(member.answers(get), [Answer::AskIndex]);
}

/// A put of which so many copies are enough, given to three replicas and abandoned; all have fenced it.
fn fenced(required_copies: u8) -> (Member, Grant) {
    let mut member = Member::alone(3);
    let request = member.request();
    let mut call = put(request, "k", data(1), Condition::default());
    if let Call::Put(put) = &mut call {
        put.required_copies = required_copies;
    }
    let token = member.call(call);
    let grant = member.granted(token);
    member.settle();
    member.call(Call::Abandon { op: grant.op, disk_full: false });
    (0..3).for_each(|replica| member.answer(replica, DataAnswer::Voided(grant)));
    (member, grant)
}

#[test]
fn a_put_is_revoked_only_when_too_few_can_have_had_it_for_its_client_to_be_told() {
    for (required_copies, never_had, is_revoked) in
        [(0, 1, true), (2, 1, false), (2, 2, true), (1, 2, false), (1, 3, true), (3, 1, true)]
    {
        let (mut member, grant) = fenced(required_copies);
        for replica in 0..3 {
            let is_unacknowledged = replica < never_had;
            // The last to be looked at cannot be reached, unless all say that they never had it.
            let answer = match is_unacknowledged {
                true => DataAnswer::Mismatch { grant, is_unacknowledged },
                false => DataAnswer::Failed,
            };
            member.answer(replica, answer);
        }
        let open = member.pg.gauges().open_puts;
        member.settle();
        let left = member.pg.gauges().open_puts;
        assert_eq!(
            (open, left == 0),
            (1, is_revoked),
            "{required_copies} of 3, {never_had} never had it"
        );
        assert!(member.row("k").is_none());
    }
}

#[test]
fn what_a_put_waits_for_survives_a_restart() {
    let (member, grant) = fenced(2);
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(3);
    (0..3).for_each(|replica| member.answer(replica, DataAnswer::Floor(key(2, 0))));
    member.answer(0, DataAnswer::Mismatch { grant, is_unacknowledged: true });
    member.answer(1, DataAnswer::Failed);
    member.answer(2, DataAnswer::Failed);
    member.settle();
    assert_eq!(member.pg.gauges().open_puts, 1, "the other two may have had it");
}

#[test]
fn a_put_that_needs_more_copies_than_a_volume_has_is_refused() {
    let mut member = Member::alone(2);
    let request = member.request();
    let mut call = put(request, "k", data(1), Condition::default());
    if let Call::Put(put) = &mut call {
        put.required_copies = 3;
    }
    let token = member.call(call);
    assert_eq!(member.refusal(token), Refusal::TooFewCopies);
}

/// A data server with room for so many voids: as a PV, it forgets those that its floor refuses as well.
struct Voids {
    room: usize,
    voids: Vec<Grant>,
    floor: GrantKey,
    /// Voids that it was asked for.
    asked: usize,
}

impl Voids {
    fn with_free_space(room: usize) -> Self {
        Self { room, voids: Vec::new(), floor: key(1, 0), asked: 0 }
    }

    fn answer(&mut self, request: &DataRequest) -> DataAnswer {
        match request {
            DataRequest::RaiseFloor { floor } => {
                self.floor = self.floor.max(*floor);
                self.voids.retain(|grant| grant.op >= self.floor);
                DataAnswer::Floor(self.floor)
            }
            DataRequest::Void { grant } => {
                self.asked += 1;
                let is_known = grant.op < self.floor || self.voids.contains(grant);
                if !is_known && self.voids.len() == self.room {
                    return DataAnswer::NotNow(*grant);
                }
                if !is_known {
                    self.voids.push(*grant);
                }
                DataAnswer::Voided(*grant)
            }
            DataRequest::Verify { chunk } => DataAnswer::Verified(chunk.grant),
            DataRequest::Open { .. } => panic!("it is open"),
        }
    }

    /// Answers all that is asked, and has the member settle.
    fn serve(&mut self, member: &mut Member) {
        loop {
            let requests = member.requests();
            if requests.is_empty() && member.synced == member.log.len() {
                return;
            }
            for (replica, request) in requests {
                let answer = self.answer(&request);
                member.answer(replica, answer);
            }
            member.settle();
        }
    }
}

#[test]
fn puts_are_resolved_though_a_replica_remembers_no_more_voids() {
    let mut member = Member::alone(1);
    let mut server = Voids::with_free_space(2);
    for n in 0..9 {
        let grant = member.open_put(&format!("k{n}"), 1);
        member.settle();
        member.call(Call::Abandon { op: grant.op, disk_full: false });
    }
    server.serve(&mut member);
    assert_eq!(member.pg.gauges().open_puts, 7, "the others wait for the floor");
    member.step(Event::Tick);
    server.serve(&mut member);
    assert_eq!(member.pg.gauges().open_puts, 0);
    assert!((0..9).all(|n| member.row(&format!("k{n}")).is_some()), "each has a good copy");
}

/// A put, of which its proxy may say that it gives it up.
fn put_by(member: &mut Member, name: &str, is_abandoned: bool) -> Grant {
    let grant = member.open_put(name, 1);
    member.settle();
    if is_abandoned {
        member.call(Call::Abandon { op: grant.op, disk_full: false });
    }
    grant
}

#[test]
fn a_void_without_room_behind_a_live_put_is_asked_for_ever_more_seldom() {
    let mut member = Member::alone(1);
    let mut server = Voids::with_free_space(0);
    let live = put_by(&mut member, "live", false);
    put_by(&mut member, "given up", true);
    server.serve(&mut member);
    let mut requested_at = Vec::new();
    for tick in 0..10 * RETRY_TICKS_MAX {
        // The proxy of the live put is there.
        member.step(Event::Floor { session: SessionId(1), floor: 0 });
        member.step(Event::Tick);
        let before = server.asked;
        server.serve(&mut member);
        requested_at.extend((server.asked > before).then_some(tick));
    }
    assert!(requested_at.len() <= 16, "{requested_at:?}");
    assert!(
        requested_at.windows(2).all(|two| two[1] - two[0] <= RETRY_TICKS_MAX),
        "{requested_at:?}"
    );
    assert!(requested_at.last() > Some(&(9 * RETRY_TICKS_MAX - 1)), "it is never given up");
    member.commit(live, 1);
    member.settle();
    for _ in 0..2 {
        member.step(Event::Tick);
        server.serve(&mut member);
    }
    assert_eq!(member.pg.gauges().open_puts, 0, "the floor that made room is an event");
}

#[test]
fn a_put_in_doubt_is_verified_at_once_when_the_replica_returns() {
    let (mut member, grant, _) = abandoned(2);
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(1, DataAnswer::Failed);
    member.answer(0, mismatch(grant));
    let mut asked = 0;
    for _ in 0..4 * RETRY_TICKS_MAX {
        member.step(Event::Tick);
        for (replica, request) in member.requests() {
            asked += usize::from(request == DataRequest::Void { grant });
            match request {
                _ if replica == 1 => member.answer(1, DataAnswer::Failed),
                DataRequest::Void { .. } => member.answer(0, DataAnswer::Voided(grant)),
                _ => member.answer(0, mismatch(grant)),
            }
        }
    }
    assert!((3..=2 * 9).contains(&asked), "{asked}");
    member.answer(1, DataAnswer::Floor(key(1, 0)));
    member.requests();
    member.step(Event::Tick);
    let requests = member.requests();
    assert_eq!(requests, [(0, DataRequest::Void { grant }), (1, DataRequest::Void { grant })]);
}

/// Of an earlier view nobody has to be fenced anew: who is within reach is asked at once, and that may be nobody.
#[test]
fn a_put_of_an_earlier_view_is_asked_about_again_though_nobody_was_within_reach() {
    let mut member = Member::alone(1);
    let grant = member.open_put("k", 1);
    member.settle();
    member.begin(2, &[1]);
    member.serve(1);
    member.requests();
    member.answer(0, DataAnswer::Floor(key(2, 0)));
    let asks = |member: &mut Member| member.requests().iter().any(|(_, it)| is_verify(it));
    assert!(asks(&mut member));
    member.answer(0, DataAnswer::Failed);
    for _ in 0..4 {
        member.step(Event::Tick);
        assert!(!asks(&mut member), "it is out of reach");
    }
    member.now_ms += LV_REOPEN_MS;
    member.step(Event::Tick);
    member.answer(0, DataAnswer::Floor(key(2, grant.op.seq.0 + 1)));
    member.step(Event::Tick);
    assert!(asks(&mut member), "it is back");
    member.answer(0, DataAnswer::Verified(grant));
    member.settle();
    assert!(member.row("k").is_some());
}

#[test]
fn a_floor_raised_for_voids_refuses_no_put_that_its_proxy_may_still_write() {
    let mut member = Member::alone(1);
    let mut server = Voids::with_free_space(1);
    put_by(&mut member, "first", true);
    let live = put_by(&mut member, "live", false);
    for name in ["second", "third"] {
        put_by(&mut member, name, true);
    }
    server.serve(&mut member);
    for _ in 0..3 {
        member.step(Event::Tick);
        server.serve(&mut member);
        assert_eq!(server.floor, live.op, "the oldest grant that is not given up");
    }
    assert_eq!(member.pg.gauges().open_puts, 2, "live, and one that waits for it");
    // Its proxy says nothing more: it is resolved, and the floor passes it.
    member.now_ms += GRANT_MS_MAX + 1;
    for _ in 0..3 {
        member.step(Event::Tick);
        server.serve(&mut member);
    }
    assert_eq!(member.pg.gauges().open_puts, 0);
    assert!(server.floor > live.op);
}

#[test]
fn a_wall_clock_that_is_set_back_puts_nothing_off_and_dates_go_on() {
    let mut member = Member::alone(1);
    let before = member.put_inline("a", "one");
    let grant = member.open_put("k", 1);
    member.settle();
    member.wall_ms -= 900;
    let after = member.put_inline("a", "two");
    member.settle();
    let mut clock_of = |put| match &member.answers(put)[..] {
        [Answer::Done { clock, .. }] => *clock,
        other => panic!("{other:?}"),
    };
    assert!(clock_of(before) < clock_of(after));
    member.now_ms += GRANT_MS_MAX + 1;
    member.step(Event::Tick);
    assert_eq!(member.requests(), [(0, DataRequest::Void { grant })], "its proxy says nothing");
}
