//! A journal's answers, and its word that a token is void.

use larder_protocol::region::{Name, Slot};
use larder_types::{BucketId, HybridClock, ObjectKey, OpId, Origin, PgId, Stamp, View};

use super::*;

fn id(op: u64) -> Id {
    let at = Stamp { clock: HybridClock(op), region: RegionId(1) };
    let name = Name {
        bucket: BucketId(1),
        key: ObjectKey::new("k").expect("a key"),
        slot: Slot::Version(at),
    };
    let op = OpId { view: View(1), seq: OpSeq(op) };
    let origin = Origin { region: RegionId(1), pg: PgId(0), op };
    Id { name, at, origin, is_purged: false, bytes: 10, print: 1 }
}

fn token(op: u64) -> Token {
    Token { through: OpSeq(op) }
}

/// Outcomes of every tenth op.
fn journal(max: usize) -> Journal {
    let mut journal = Journal::new(OpSeq(0), max, false);
    (1..=5).for_each(|at| journal.record(OpSeq(10 * at), id(10 * at)));
    journal
}

fn ops(batch: &Batch) -> Vec<u64> {
    batch.ids.iter().map(|(op, _)| op.0).collect()
}

#[test]
fn a_token_gets_everything_after_it_in_batches() {
    let journal = journal(9);
    let first = journal.since(token(0), 2).unwrap();
    assert_eq!((ops(&first), first.token, first.left), (vec![10, 20], token(20), (3, 30)));
    let second = journal.since(first.token, 9).unwrap();
    assert_eq!((ops(&second), second.token, second.left), (vec![30, 40, 50], token(50), (0, 0)));
    let none = journal.since(token(50), 9).unwrap();
    assert_eq!((ops(&none), none.token), (vec![], token(50)));
    assert_eq!(ops(&journal.since(token(35), 9).unwrap()), [40, 50], "between two outcomes");
}

#[test]
fn a_token_behind_what_is_kept_is_void_and_the_journal_is_bounded() {
    let journal = journal(3);
    for behind in [0, 10, 19] {
        let void = journal.since(token(behind), 9).unwrap_err();
        assert_eq!(void, Void { why: VoidReason::Overrun, resume: token(50) });
    }
    assert_eq!(
        ops(&journal.since(token(20), 9).unwrap()),
        [30, 40, 50],
        "the last that was dropped"
    );
}

#[test]
fn a_token_ahead_of_the_journal_is_void() {
    let void = journal(9).since(token(51), 9).unwrap_err();
    assert_eq!(void, Void { why: VoidReason::Ahead, resume: token(50) });
}

#[test]
fn a_journal_that_begins_late_voids_what_began_before() {
    let journal = Journal::new(OpSeq(7), 9, false);
    assert_eq!(journal.since(token(0), 9).unwrap_err().why, VoidReason::Overrun);
    assert_eq!(journal.since(token(7), 9).unwrap().ids, []);
}

#[test]
fn what_all_have_passed_is_what_the_last_has() {
    let mut journal = journal(9);
    let regions = || [2, 3].into_iter().map(RegionId);
    assert_eq!(journal.passed_by_all(regions()), OpSeq(0), "nobody has said anything");
    journal.passed(RegionId(2), token(40));
    journal.passed(RegionId(3), token(30));
    assert_eq!(journal.passed_by_all(regions()), OpSeq(30));
    journal.passed(RegionId(3), token(20));
    assert_eq!(journal.passed_by_all(regions()), OpSeq(30), "a late word takes nothing back");
    journal.passed(RegionId(3), token(99));
    assert_eq!(journal.passed_by_all(regions()), OpSeq(40), "nobody passes what there is not");
}
