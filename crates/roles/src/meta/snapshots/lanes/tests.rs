use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use larder_kv::{Batch, Kv, SimKv};
use larder_types::codec::encode;
use larder_types::{BucketId, OpSeq, SessionId, StreamId, rows};

use super::*;

const PG_COUNT: u32 = 4;
/// Of each group: some pieces.
const ROWS: u64 = 15_000;
const ROW_BYTES_MAX: usize = 64;
const FOREVER: Duration = Duration::from_secs(3600);
type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn follower(pg: PgId) -> Follower {
    let at = OpId { view: View(2), seq: OpSeq(u64::from(pg.0)) };
    Follower { to: ServerId(10 + pg.0), view: View(3), at }
}

/// Rows of several groups by turns, among some that each member has of its own.
fn index() -> (SimKv, BTreeMap<PgId, Rows>) {
    let (kv, mut all) = (SimKv::new(), BTreeMap::<PgId, Rows>::new());
    let mut batch = Batch::new();
    for number in 0..ROWS * u64::from(PG_COUNT) {
        let pg = PgId((number % u64::from(PG_COUNT)) as u32);
        let stream = StreamId { session: SessionId(1), number };
        let row = rows::open_stream(BucketId(1), stream);
        let value = encode(&pg);
        batch.put(&row, &value);
        all.entry(pg).or_default().push((row, value));
    }
    batch.put(&rows::snapshot(PgId(1)), b"this member's own");
    kv.apply(&batch).unwrap();
    (kv, all)
}

/// A walk over that index in a thread of its own, with what it sends; the receiver ends with it.
fn start(walk: &Arc<SharedWalk>) -> (Receiver<Sending>, BTreeMap<PgId, Rows>) {
    let ((kv, all), walk) = (index(), walk.clone());
    let (sender, sent) = channel();
    thread::spawn(move || walk.run(&kv, PG_COUNT, &|sending| sender.send(sending).unwrap()));
    (sent, all)
}

/// Asks for what comes behind a row, once it is there; `None` if it is elsewhere.
fn ask(lane: &LaneOf, after: Option<&[u8]>, sent: &Receiver<Sending>) -> Option<Piece> {
    match lane.take(after) {
        PieceTaken::Here(piece) => Some(piece),
        PieceTaken::Elsewhere => None,
        PieceTaken::Later => {
            let Sending { pg, to, message } = sent.recv().unwrap();
            let PeerMessage::SnapshotRows { view, at, after: behind, piece } = message else {
                panic!("a walk sends rows");
            };
            let Follower { to: its, view: in_view, at: op } = follower(pg);
            assert_eq!((to, view, at, behind.as_deref()), (its, in_view, op, after));
            Some(piece)
        }
    }
}

/// All that is left for a follower; `None` if it is left behind.
fn take_all(lane: &LaneOf, sent: &Receiver<Sending>) -> Option<Rows> {
    take_behind(lane, None, sent)
}

fn take_behind(
    lane: &LaneOf,
    mut after: Option<Vec<u8>>,
    sent: &Receiver<Sending>,
) -> Option<Rows> {
    let mut taken: Rows = Vec::new();
    loop {
        let piece = ask(lane, after.as_deref(), sent)?;
        taken.extend(piece.rows);
        after = taken.last().map(|(row, _)| row.clone());
        if piece.is_last {
            return Some(taken);
        }
    }
}

#[test]
fn each_follower_gets_the_rows_of_its_group_by_one_walk() {
    let walk = Arc::new(SharedWalk::new(FOREVER));
    let pgs: BTreeSet<PgId> = (1..PG_COUNT).map(PgId).collect();
    let mut lanes: BTreeMap<PgId, (LaneOf, Rows)> =
        pgs.iter().map(|&pg| (pg, (walk.join(pg, follower(pg)), Vec::new()))).collect();
    assert_eq!(walk.groups(), pgs.iter().copied().collect::<Vec<_>>());
    let (sent, all) = start(&walk);
    let mut whole = BTreeSet::new();
    while whole.len() < pgs.len() {
        for (pg, (lane, taken)) in &mut lanes {
            if whole.contains(pg) {
                continue;
            }
            let after = taken.last().map(|(row, _)| row.clone());
            let piece = ask(lane, after.as_deref(), &sent).unwrap();
            let again = ask(lane, after.as_deref(), &sent).unwrap();
            assert_eq!(piece, again, "what was lost on the way is asked for again");
            let bytes: usize = piece.rows.iter().map(|(row, value)| row.len() + value.len()).sum();
            assert!(bytes < WALK_PIECE_BYTES + ROW_BYTES_MAX, "{bytes} bytes in one piece");
            taken.extend(piece.rows);
            if piece.is_last {
                whole.insert(*pg);
            }
        }
    }
    assert!(sent.recv().is_err(), "the walk is over");
    for (pg, (lane, taken)) in &lanes {
        assert!(*taken == all[pg], "pg {pg}: its rows, each once");
        assert!(matches!(lane.take(None), PieceTaken::Elsewhere), "no more than one piece is kept");
    }
    drop(lanes);
    assert!(walk.groups().is_empty());
}

#[test]
fn a_group_without_rows_has_one_piece_that_is_empty() {
    let walk = Arc::new(SharedWalk::new(FOREVER));
    let lane = walk.join(PgId(PG_COUNT), follower(PgId(PG_COUNT)));
    let (sent, _) = start(&walk);
    assert_eq!(take_all(&lane, &sent), Some(Vec::new()));
}

#[test]
fn who_asks_for_something_else_is_told_so_and_keeps_its_lane() {
    let walk = Arc::new(SharedWalk::new(FOREVER));
    let lane = walk.join(PgId(1), follower(PgId(1)));
    assert!(matches!(lane.take(Some(b"elsewhere")), PieceTaken::Elsewhere));
    let (sent, all) = start(&walk);
    assert!(take_all(&lane, &sent) == Some(all[&PgId(1)].clone()));
}

#[test]
fn a_follower_that_takes_nothing_is_left_behind() {
    let walk = Arc::new(SharedWalk::new(Duration::ZERO));
    let gone = walk.join(PgId(1), follower(PgId(1)));
    let (sent, _) = start(&walk);
    assert!(sent.recv().is_err(), "the walk does not wait for it");
    assert!(matches!(gone.take(None), PieceTaken::Elsewhere), "it is read for it alone");
}

#[test]
fn a_follower_that_is_let_go_does_not_hold_the_others() {
    let walk = Arc::new(SharedWalk::new(FOREVER));
    let gone = walk.join(PgId(1), follower(PgId(1)));
    let stays = walk.join(PgId(2), follower(PgId(2)));
    let (sent, all) = start(&walk);
    // Its lane takes no more than a piece: the walk is held by the other at the latest when this one is through.
    let first = ask(&stays, None, &sent).unwrap();
    drop(gone);
    let after = first.rows.last().map(|(row, _)| row.clone());
    let mut taken = first.rows;
    taken.extend(take_behind(&stays, after, &sent).unwrap());
    assert!(taken == all[&PgId(2)]);
}

#[test]
fn a_walk_that_is_stopped_waits_for_nobody() {
    let walk = Arc::new(SharedWalk::new(FOREVER));
    let lanes: Vec<LaneOf> =
        (0..PG_COUNT).map(PgId).map(|pg| walk.join(pg, follower(pg))).collect();
    let (sent, _) = start(&walk);
    walk.stop();
    assert!(sent.recv().is_err(), "it is over");
    assert!(lanes.iter().all(|lane| matches!(lane.take(None), PieceTaken::Elsewhere)));
}
