//! A group whose index has lost a row.

use crate::support::{BUCKET, Member, name_of, put};
use bytes::Bytes;
use larder_protocol::pg::Role;
use larder_protocol::{Call, Content, Refusal};
use larder_types::{Condition, EtagList, SessionId, rows};

/// Loses the row of a key to the disk: a read of it fails.
fn lose(member: &Member, name: &str) {
    let row = rows::version(BUCKET, &name_of(name), rows::UNVERSIONED);
    let lost = member.table.replace(row, Bytes::from_static(b"rot"));
    assert!(lost.is_some(), "the row was there");
}

#[test]
fn a_put_whose_outcome_was_not_written_keeps_its_log() {
    let mut member = Member::alone(1);
    member.put_inline("lost", "one");
    member.settle();
    let grant = member.pending_put("k", 2);
    // Its METAX is applied, and its outcome is not.
    member.put_inline("other", "x");
    member.settle();
    member.pg.end_sessions();
    assert_eq!(member.pg.retain_from(), grant.op.seq);
    lose(&member, "lost");
    member.commit(grant, 1);
    // By the proxy of this run.
    member.request_of(SessionId(2), "lost");
    member.sync();
    member.apply();
    assert_eq!(member.pg.role(), Role::Halted);
    assert_eq!(member.row("k"), None, "the batch was not written");
    member.pg.end_sessions();
    assert_eq!(member.pg.retain_from(), grant.op.seq, "the next start needs its METAX");
}

#[test]
fn a_call_that_cannot_be_decided_is_refused_and_its_group_goes_on() {
    let mut member = Member::alone(1);
    member.put_inline("lost", "one");
    member.settle();
    lose(&member, "lost");
    let request = member.request();
    let if_absent = Condition { if_none_match: Some(EtagList::Any), ..Condition::default() };
    let content = Content::Inline(Bytes::from_static(b"two"));
    let end = member.pg.last();
    let undecided = member.call(put(request, "lost", content, if_absent));
    assert_eq!(member.refusal(undecided), Refusal::IndexDamaged);
    assert_eq!(member.pg.last(), end, "nothing was appended");
    assert_eq!(member.pg.role(), Role::Serving);
    let other = member.put_inline("other", "x");
    member.sync();
    while member.pg.apply(member.now(), &member.table, &mut member.effects) > 0 {}
    assert!(member.is_done(other));
}

#[test]
fn a_call_that_waited_for_its_key_is_answered_too() {
    let mut member = Member::alone(1);
    member.put_inline("k", "one");
    member.settle();
    let grant = member.pending_put("k", 2);
    let request = member.request();
    let if_absent = Condition { if_none_match: Some(EtagList::Any), ..Condition::default() };
    let content = Content::Inline(Bytes::from_static(b"two"));
    let waits = member.call(put(request, "k", content, if_absent));
    assert_eq!(member.answers(waits), [], "the put of its key is under way");
    lose(&member, "k");
    member.call(Call::Withdraw { op: grant.op, disk_full: false });
    member.sync();
    while member.pg.apply(member.now(), &member.table, &mut member.effects) > 0 {}
    assert_eq!(member.refusal(waits), Refusal::IndexDamaged);
    assert_eq!(member.pg.role(), Role::Serving);
}
