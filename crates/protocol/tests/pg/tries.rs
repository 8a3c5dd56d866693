//! Puts that are tried more than once: one of the tries counts, and what the others took is freed.

use larder_protocol::limits::APPLY_BYTES_MAX;
use larder_protocol::{Answer, Call, Changes, DataAnswer, DataRequest, Index, Refusal};
use larder_types::codec::encode;
use larder_types::{
    BootId, Chunk, Condition, Extent, Grant, Holders, OpId, OpSeq, Request, SessionId, StreamId,
    View, rows,
};

use crate::support::{BUCKET, LV, Member, PG, data, key, put};

const STREAM: StreamId = StreamId { session: SessionId(1), number: 9 };

fn put_chunk(member: &mut Member, number: u32, blocks: u32) -> Grant {
    member.open_chunk("k", (STREAM, number), blocks)
}

/// A put whose METAX is durable, and how it was asked for.
fn begun(member: &mut Member) -> (Request, Grant) {
    let request = member.request();
    let token = member.call(put(request, "k", data(2), Condition::default()));
    let grant = member.granted(token);
    member.settle();
    member.effects.clear();
    (request, grant)
}

fn repeated(member: &mut Member, request: Request) -> Vec<Answer> {
    let token = member.call(put(request, "k", data(2), Condition::default()));
    member.answers(token)
}

#[test]
fn the_blocks_of_a_chunk_that_another_try_replaces_are_freed() {
    let mut member = Member::alone(1);
    let (first, second) = (put_chunk(&mut member, 0, 3), put_chunk(&mut member, 0, 3));
    member.sync();
    for grant in [first, second] {
        member.commit(grant, 1);
    }
    member.settle();
    let space = member.pg.gauges().space;
    assert_eq!(space.waiting, 3, "the row names one of the two");
    let stream = STREAM;
    member.call(Call::DropStream { bucket: BUCKET, stream });
    member.settle();
    assert_eq!(member.pg.gauges().space.waiting, 6, "each is freed once");
}

#[test]
fn a_put_that_is_taken_back_is_revoked_whatever_its_replicas_have() {
    let mut member = Member::alone(2);
    let (request, grant) = begun(&mut member);
    member.call(Call::Withdraw { op: grant.op, disk_full: false });
    // One that has begun another run since takes no writes, and says so to this alone.
    let open = DataRequest::Open { view: View(1), floor: key(1, 0), boot: BootId(1) };
    let probes = [(0, open.clone()), (1, open)];
    assert_eq!(
        member.requests(),
        probes,
        "they are asked whether they take writes, none for a void"
    );
    let answers = repeated(&mut member, request);
    assert!(
        !answers.contains(&Answer::Refused(Refusal::Revoked)),
        "the outcome is not durable, and may be lost: {answers:?}"
    );
    member.settle();
    assert_eq!(repeated(&mut member, request), [Answer::Refused(Refusal::Revoked)]);
    assert_eq!((member.row("k"), member.pg.gauges().open_puts), (None, 0));
    assert_eq!(member.pg.gauges().space.waiting, 2, "its blocks are freed");
}

#[test]
fn a_put_that_is_tried_again_goes_where_every_replica_answers() {
    let mut member = Member::alone(3);
    let (_, first) = begun(&mut member);
    let (_, second) = begun(&mut member);
    member.call(Call::Withdraw { op: first.op, disk_full: false });
    assert_eq!(member.requests().len(), 3);
    member.call(Call::Withdraw { op: second.op, disk_full: false });
    assert_eq!(member.requests(), [], "each was asked, and has not answered");
    member.answer(2, DataAnswer::Failed);
    let token = member.put_data("other", 1);
    let others = Holders::default().with(0).with(1);
    assert!(
        matches!(member.answers(token)[..], [Answer::Granted { replicas, .. }] if replicas == others),
        "one is out of reach"
    );
}

#[test]
fn a_put_that_was_rolled_forward_is_not_taken_back() {
    let mut member = Member::alone(1);
    let (request, grant) = begun(&mut member);
    member.call(Call::Abandon { op: grant.op, disk_full: false });
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, DataAnswer::Verified(grant));
    member.call(Call::Withdraw { op: grant.op, disk_full: false });
    member.settle();
    assert!(
        matches!(repeated(&mut member, request)[..], [Answer::Done { op, .. }] if op == grant.op)
    );
    assert!(member.row("k").is_some());
}

#[test]
fn what_is_taken_back_is_not_committed_by_a_word_that_comes_late() {
    let mut member = Member::alone(1);
    let (_, grant) = begun(&mut member);
    member.call(Call::Withdraw { op: grant.op, disk_full: false });
    member.commit(grant, 1);
    member.settle();
    assert_eq!(member.row("k"), None);
    assert_eq!(member.pg.gauges().space.waiting, 2);
}

#[test]
fn an_answer_about_copies_of_a_put_that_was_taken_back_changes_nothing() {
    let mut member = Member::alone(1);
    let (request, grant) = begun(&mut member);
    member.call(Call::Abandon { op: grant.op, disk_full: false });
    member.answer(0, DataAnswer::Voided(grant));
    member.call(Call::Withdraw { op: grant.op, disk_full: false });
    member.answer(0, DataAnswer::Verified(grant));
    member.settle();
    assert_eq!(repeated(&mut member, request), [Answer::Refused(Refusal::Revoked)]);
    assert_eq!(member.row("k"), None);
}

#[test]
fn ops_that_change_many_rows_share_no_batch() {
    let mut member = Member::alone(1);
    let chunk = Chunk {
        grant: Grant { pg: PG, op: OpId { view: View(1), seq: OpSeq(1) }, attempt: 0 },
        seed: 1,
        lv: LV,
        extents: Vec::<Extent>::new(),
        len: 1,
        sums: Vec::new(),
        holders: Holders::default(),
    };
    let stream = |number| StreamId { session: SessionId(1), number };
    let row_bytes = rows::chunk(BUCKET, stream(0), 0).len();
    let chunks = (APPLY_BYTES_MAX / row_bytes * 2 / 3) as u32;
    let mut changes = Changes::default();
    for of in 0..3 {
        changes.put(rows::open_stream(BUCKET, stream(of)), encode(&PG));
        for number in 0..chunks {
            changes.put(rows::chunk(BUCKET, stream(of), number), encode(&chunk));
        }
    }
    member.table.write(changes).unwrap();
    for of in 0..3 {
        member.call(Call::DropStream { bucket: BUCKET, stream: stream(of) });
    }
    member.sync();
    let now = member.now();
    let mut batches = Vec::new();
    loop {
        let applied = member.pg.apply(now, &member.table, &mut member.effects);
        if applied == 0 {
            break;
        }
        batches.push(applied);
    }
    assert_eq!(batches, [2, 1], "the second op fills the batch");
    let left = member.table.get(&rows::chunk(BUCKET, stream(2), chunks - 1)).unwrap();
    assert_eq!(left, None);
}
