//! Copies that are verified although nobody reads them.

use larder_protocol::manager::state::MapVersion;
use larder_protocol::pg::{CopyPriority, chunk_at};
use larder_protocol::{Call, Event};
use larder_types::{Body, Chunk, Holders, PgId, ServerId, rows};

use crate::support::{BUCKET, LV, LV_BLOCKS, Member, name_of};

impl Member {
    fn at(&self, name: &str) -> (Vec<u8>, Chunk) {
        let row = rows::version(BUCKET, &name_of(name), rows::UNVERSIONED);
        match self.row(name).expect("an object").body {
            Body::Chunk(chunk) => (row, chunk),
            other => panic!("no chunk: {other:?}"),
        }
    }

    fn servers(&self, name: &str) -> Option<Vec<(usize, ServerId)>> {
        let (row, chunk) = self.at(name);
        self.pg.copies_of(&row, &chunk)
    }

    fn is_damaged(&self, row: &[u8], chunk: &Chunk, replica: usize) -> Option<bool> {
        self.pg.is_damaged(row, chunk, replica, &self.table).expect("a readable row")
    }
}

#[test]
fn the_copies_of_a_chunk_are_its_holders_that_are_there() {
    let mut pg = Member::alone(3);
    pg.store("a", 2, 2);
    assert_eq!(pg.servers("a"), Some(vec![(0, ServerId(0)), (1, ServerId(1))]));
    assert_eq!(pg.pg.copied_bytes(), 3 * 2 * 4096);
    let lost = Event::Vacate {
        lv: LV,
        replica: 1,
        order: MapVersion(2),
        is_lost: true,
        away: Holders::default(),
    };
    pg.step(lost);
    assert_eq!(pg.servers("a"), Some(vec![(0, ServerId(0))]), "that disk is gone for good");
    let (row, chunk) = pg.at("a");
    pg.begin(2, &[2, 1]);
    assert_eq!(pg.pg.copies_of(&row, &chunk), None, "another leads");
    assert_eq!(pg.is_damaged(&row, &chunk, 0), None);
    assert_eq!(pg.pg.copied_bytes(), 0);
}

#[test]
fn a_copy_is_damaged_only_as_long_as_its_chunk_is_there() {
    let mut pg = Member::alone(3);
    pg.store("a", 1, 2);
    let (row, chunk) = pg.at("a");
    assert_eq!(pg.is_damaged(&row, &chunk, 0), Some(true));
    assert_eq!(pg.is_damaged(&row, &chunk, 2), Some(false), "it never had one");
    pg.store("a", 1, 3);
    assert_eq!(pg.is_damaged(&row, &chunk, 0), Some(false), "another object lies there now");
    let (row, chunk) = pg.at("a");
    pg.delete("a");
    pg.settle();
    assert_eq!(pg.is_damaged(&row, &chunk, 0), Some(false));
}

#[test]
fn a_copy_that_is_being_mended_is_not_judged() {
    let mut pg = Member::alone(2);
    let grant = pg.store("a", 1, 2);
    let (row, chunk) = pg.at("a");
    pg.call(Call::Suspect { grant, server: ServerId(1) });
    assert_eq!(pg.is_damaged(&row, &chunk, 1), Some(true));
    let considered =
        pg.pg.consider(&row, &chunk, CopyPriority::LAST, &pg.table).expect("a readable row");
    let refill = considered.refill.expect("a copy to be made");
    assert_eq!((refill.from, refill.to), (Holders(0b01), 1));
    assert_eq!(pg.servers("a"), Some(vec![(0, ServerId(0))]));
    assert_eq!(pg.is_damaged(&row, &chunk, 1), Some(false));
}

#[test]
fn the_chunk_of_a_row_is_given_to_those_who_want_its_group() {
    let mut pg = Member::alone(2);
    pg.store("a", 1, 2);
    pg.put_inline("b", "text");
    pg.sync();
    pg.settle();
    let (row, chunk) = pg.at("a");
    let value = |name: &str| {
        let row = rows::version(BUCKET, &name_of(name), rows::UNVERSIONED);
        larder_protocol::Index::get(&pg.table, &row).expect("readable").expect("there")
    };
    let found = |row: &[u8], value: &[u8], is_wanted: bool| {
        chunk_at(row, value, 1, |pg| is_wanted && pg == PgId(0)).expect("a readable row")
    };
    assert_eq!(found(&row, &value("a"), true), Some((PgId(0), chunk.clone())));
    assert_eq!(found(&row, &value("a"), false), None);
    assert_eq!(found(&row, &value("b"), true), None, "it has none");
    let encoded = larder_types::codec::encode(&chunk);
    assert_eq!(found(b"Kx", &encoded, true), Some((PgId(0), chunk)), "whose it is says the value");
    assert_eq!(found(b"Kx", &encoded, false), None);
    assert!(chunk_at(b"Kx", b"", 1, |_| true).is_err());
}

#[test]
fn floors_are_reported_with_their_waiters() {
    let mut pg = Member::alone(2);
    pg.store("a", 1, 2);
    pg.delete("a");
    pg.settle();
    let reported: Vec<_> = pg.pg.floors().collect();
    let [floor] = &reported[..] else { panic!("one volume: {reported:?}") };
    assert_eq!((floor.lv, floor.waiting_blocks), (LV, 1));
    let last = pg.pg.last().seq;
    assert_eq!(floor.lag_ops, last.0 - floor.lowest.expect("all have opened").0);
    assert!(LV_BLOCKS > floor.waiting_blocks);
}
