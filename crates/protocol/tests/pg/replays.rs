//! Ops that a later view cut off the log have no effect: not when the log is replayed, and not on a member that runs.

use crate::support::{Member, PG, data, key, put};
use larder_protocol::pg::LogGap;
use larder_protocol::{Answer, Call, Changes, Event, Index, LogEntry};
use larder_types::codec::encode;
use larder_types::{
    Body, BootId, Chunk, Condition, Extent, Grant, Holders, HybridClock, Op, OpId, OpSeq, Outcome,
    Remembered, Request, ServerId, SessionId, SessionMemory, SnapshotRow, rows,
};

const COMMITTED: Outcome = Outcome::Committed { attempt: 0, holders: Holders(1) };

fn entry(view: u64, seq: u64, op: Op) -> LogEntry {
    LogEntry { id: key(view, seq), op: op.into() }
}

fn view_start(view: u64, seq: u64) -> LogEntry {
    entry(view, seq, Op::ViewStart { members: vec![ServerId(1)], boot: BootId(view) })
}

fn outcome_of(grant: Grant, outcome: Outcome) -> Op {
    Op::Outcome { put: grant.op.seq, outcome }
}

/// A member alone in view 1 with a put of one block at op 2.
fn with_open_put() -> (Member, Grant) {
    let mut member = Member::alone(1);
    let grant = member.open_put("k", 1);
    assert_eq!(grant.op, key(1, 2));
    member.settle();
    (member, grant)
}

/// The member starts again from its index, which shows everything through `applied`, and from what is in its log with
/// these entries behind it. Nothing above op 2 is known to be committed before view 2.
fn replayed(mut member: Member, applied: OpId, entries: Vec<LogEntry>) -> Result<Member, LogGap> {
    member.log.iter_mut().for_each(|(_, commit)| *commit = (*commit).min(OpSeq(2)));
    let commit =
        |entry: &LogEntry| if entry.id.view == key(1, 0).view { 2 } else { entry.id.seq.0 - 1 };
    member.log.extend(entries.into_iter().map(|entry| (entry.clone(), OpSeq(commit(&entry)))));
    member.synced = member.log.len();
    let mut changes = Changes::default();
    changes.set_position(rows::applied(PG), encode(&applied));
    member.table.write(changes).expect("a table in memory");
    member.try_restart()
}

/// As [`replayed`]; and it serves again, in view 3.
fn serving(member: Member, applied: OpId, entries: Vec<LogEntry>) -> Member {
    let mut member = replayed(member, applied, entries).expect("a log that fits");
    member.begin(3, &[1]);
    member.serve(1);
    member.answer(0, larder_protocol::DataAnswer::Floor(key(3, 0)));
    member.effects.clear();
    member
}

/// View 2, which begins at op 3 and has the put's outcome at op 5.
fn second_view(grant: Grant) -> Vec<LogEntry> {
    let outcome = entry(2, 5, outcome_of(grant, COMMITTED));
    vec![view_start(2, 3), entry(2, 4, Op::Digest), outcome]
}

#[test]
fn an_outcome_that_was_cut_closes_no_put() {
    for cut in [COMMITTED, Outcome::Revoked] {
        let (member, grant) = with_open_put();
        let mut entries = vec![entry(1, 3, outcome_of(grant, cut))];
        entries.extend(second_view(grant));
        let member = serving(member, key(2, 4), entries);
        assert!(member.row("k").is_some(), "{cut:?} never happened, the other outcome did");
        assert_eq!(member.pg.gauges().open_puts, 0);
    }
}

#[test]
fn a_delete_that_was_cut_supersedes_no_put() {
    let (mut member, grant) = with_open_put();
    member.delete("k");
    assert_eq!(member.log.last().map(|(entry, _)| entry.id), Some(key(1, 3)));
    let member = serving(member, key(2, 4), second_view(grant));
    assert!(member.row("k").is_some());
}

#[test]
fn an_inline_put_that_was_cut_supersedes_no_put() {
    let (mut member, grant) = with_open_put();
    member.put_inline("k", "two");
    let member = serving(member, key(2, 4), second_view(grant));
    let row = member.row("k").expect("the put with data was committed");
    assert!(matches!(row.body, Body::Chunk(_)), "{:?}", row.body);
}

#[test]
fn a_put_whose_commit_was_cut_supersedes_no_older_one() {
    let (mut member, grant) = with_open_put();
    let later = member.open_put("k", 1);
    let mut entries = vec![entry(1, 4, outcome_of(later, COMMITTED))];
    entries.extend(second_view(grant));
    let member = serving(member, key(2, 4), entries);
    assert_eq!(member.row("k").map(|row| row.op), Some(grant.op));
    assert_eq!(member.pg.gauges().open_puts, 0, "the later put was cut too");
}

#[test]
fn a_request_whose_op_was_cut_is_done_when_it_comes_again() {
    let (mut member, grant) = with_open_put();
    let request = Request { session: SessionId(1), number: 70, floor: 0 };
    let delete = |member: &mut Member| {
        let key = crate::support::name_of("k");
        let (bucket, epoch) = (crate::support::BUCKET, crate::support::EPOCH);
        let condition = Condition::default();
        member.call(Call::Delete { request, bucket, epoch, key, condition })
    };
    delete(&mut member);
    let mut member = serving(member, key(2, 4), second_view(grant));
    assert!(member.row("k").is_some());
    let again = delete(&mut member);
    member.settle();
    assert!(member.is_done(again));
    assert_eq!(member.row("k"), None, "it was done, and not only answered");
}

#[test]
fn a_request_whose_op_was_cut_does_not_get_the_grant_of_the_put_in_its_place() {
    let (mut member, _) = with_open_put();
    let request = Request { session: SessionId(1), number: 70, floor: 0 };
    let call = |name: &str, request| put(request, name, data(1), Condition::default());
    member.call(call("mine", request));
    // Another proxy's put is at the same position in view 2.
    let mut other = Member::alone(1);
    let token = other.put_data("k", 1);
    other.granted(token);
    other.settle();
    let theirs = other.call(call("theirs", Request { session: SessionId(2), ..request }));
    let place = other.granted(theirs);
    let (theirs, _) = other.log.last().cloned().expect("it was appended");
    let theirs = LogEntry { id: key(2, 3), op: theirs.op };
    let mut member = serving(member, key(2, 4), vec![theirs, entry(2, 4, Op::Digest)]);
    assert_eq!(member.pg.gauges().open_puts, 2);
    let again = member.call(call("mine", request));
    let grant = member.granted(again);
    assert!(grant.op.view == key(3, 0).view && grant.op != place.op, "{grant:?}");
}

#[test]
fn a_grant_that_was_cut_gives_the_put_no_new_place() {
    let (member, grant) = with_open_put();
    let place = member.pg.open_chunks().next().cloned().expect("an open put");
    let elsewhere = Chunk {
        grant: Grant { attempt: 1, ..grant },
        extents: vec![Extent { first: 50, blocks: 1 }],
        ..place.clone()
    };
    let regrant = Op::Regrant { put: grant.op.seq, body: Body::Chunk(elsewhere) };
    let mut entries = vec![entry(1, 3, regrant)];
    entries.extend(second_view(grant));
    let member = serving(member, key(2, 4), entries);
    let row = member.row("k").expect("it was committed");
    assert_eq!(row.body, Body::Chunk(Chunk { holders: Holders(1), ..place }));
}

#[test]
fn a_snapshot_that_remembers_an_op_that_was_cut_answers_no_repeat() {
    let (member, _) = with_open_put();
    let request = Request { session: SessionId(1), number: 70, floor: 0 };
    let call = put(request, "mine", data(1), Condition::default());
    let theirs = member.log.last().map(|(entry, _)| entry.op.clone()).expect("a put");
    let (op, clock) = (key(1, 3), HybridClock(5));
    let memory = SessionMemory {
        session: SessionId(1),
        floor: 0,
        requests: vec![(70, Remembered { op, clock, revoked: false })],
    };
    let at = key(2, 4);
    let row = SnapshotRow { at, is_whole: true };
    let mut changes = Changes::default();
    changes.put(rows::snapshot(PG), encode(&row));
    member.table.write(changes).expect("a table in memory");
    let entries = vec![
        LogEntry { id: at, op: Op::SnapshotBegin.into() },
        LogEntry { id: at, op: Op::SnapshotSession(memory).into() },
        LogEntry { id: key(2, 3), op: theirs },
        LogEntry { id: at, op: Op::SnapshotEnd { superseded: Vec::new() }.into() },
    ];
    let mut member = serving(member, at, entries);
    let again = member.call(call);
    assert_eq!(member.granted(again).op.view, key(3, 0).view, "a grant of its own");
}

#[test]
fn a_floor_that_came_with_an_op_that_was_cut_still_holds() {
    let (mut member, grant) = with_open_put();
    let request = Request { session: SessionId(1), number: 70, floor: 69 };
    member.call(put(request, "other", data(1), Condition::default()));
    let mut member = serving(member, key(2, 4), second_view(grant));
    let late = Request { session: SessionId(1), number: 68, floor: 0 };
    let late = member.call(put(late, "late", data(1), Condition::default()));
    assert_eq!(member.refusal(late), larder_protocol::Refusal::Finished);
}

#[test]
fn a_restart_does_not_set_the_clock_back() {
    let (mut member, grant) = with_open_put();
    let before = member.log.last().and_then(|(entry, _)| entry.op.put()).map(|put| put.metax.clock);
    member.wall_ms = 1;
    let mut member = serving(member, key(2, 4), second_view(grant));
    let put = member.put_inline("k", "two");
    member.settle();
    match &member.answers(put)[..] {
        [Answer::Done { clock, .. }] => assert!(Some(*clock) > before, "{clock:?} {before:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_log_that_truncates_committed_entries_is_refused() {
    let (member, grant) = with_open_put();
    let entries = vec![
        entry(1, 3, outcome_of(grant, COMMITTED)),
        view_start(2, 4),
        entry(2, 5, Op::Digest),
        view_start(3, 3),
    ];
    let refused = replayed(member, key(2, 5), entries).map(|_| ());
    assert!(matches!(refused, Err(LogGap::Back { found: OpSeq(3), .. })), "{refused:?}");
}

#[test]
fn a_follower_that_cuts_a_grant_has_the_place_of_before() {
    let (member, grant) = with_open_put();
    let place = member.pg.open_chunks().next().cloned().expect("an open put");
    let elsewhere = |first, attempt| Chunk {
        grant: Grant { attempt, ..grant },
        extents: vec![Extent { first, blocks: 1 }],
        ..place.clone()
    };
    let regrant = |chunk| Op::Regrant { put: grant.op.seq, body: Body::Chunk(chunk) };
    let second = elsewhere(50, 1);
    let entries = vec![
        entry(1, 3, regrant(second.clone())),
        view_start(2, 4),
        entry(2, 5, regrant(elsewhere(60, 2))),
    ];
    let mut member = replayed(member, key(1, 2), entries).expect("a log that fits");
    follow(&mut member, key(2, 4), vec![view_start(3, 5)]);
    assert_eq!(member.pg.open_chunks().collect::<Vec<_>>(), [&second]);
}

/// A backup in view 3 hears of what follows `prev`.
fn follow(member: &mut Member, prev: OpId, entries: Vec<LogEntry>) {
    member.begin(3, &[2, 1]);
    let message = larder_protocol::PeerMessage::Append {
        view: key(3, 0).view,
        prev,
        entries,
        commit: OpSeq(0),
    };
    member.step(Event::Peer { from: ServerId(2), message });
}
