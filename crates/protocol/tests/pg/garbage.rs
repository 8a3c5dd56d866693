//! Large objects: what they name goes in steps of a bounded number of rows.

use larder_protocol::limits::{FREED_REST_MS, FREED_REST_MS_MAX, REAP_ROWS_MAX, REAPED_FIRST_MS};
use larder_protocol::pg::{LedgerWalk, owner};
use larder_protocol::rebuild::{SpaceScan, Stray};
use larder_protocol::{Call, Changes, Content, DataAnswer, Effect, Event, Index, Refusal, Token};
use larder_types::codec::{decode, encode};
use larder_types::{
    Body, Chunk, Condition, ETag, Extent, Garbage, Grant, Holders, HybridClock, Metax, Op, OpId,
    PartRef, PartRow, PieceRow, PiecesId, Reaping, SessionId, StreamId, UploadId, UploadRow,
    VersionRow, rows,
};
use std::ops::ControlFlow;

use crate::support::{BLOCK, BUCKET, LV, LV_BLOCKS, Member, PG, info, key, name_of, put};
use crate::views::Cluster;

const STEP: usize = REAP_ROWS_MAX as usize;
/// A stream of more rows than a step, which take no room.
const LARGE: u64 = 1000;
const NONE: [&str; 0] = [];
/// Blocks that objects here have: the last chunks of their first stream, one each.
const BLOCKS: u32 = 90;
const UPLOAD: UploadId =
    UploadId { pg: PG, op: OpId { view: larder_types::View(1), seq: larder_types::OpSeq(1) } };
const PIECES: PiecesId = PiecesId { pg: PG, op: UPLOAD.op };

fn stream(number: u64) -> StreamId {
    StreamId { session: SessionId(1), number }
}

fn stream_body(number: u64, chunks: usize) -> Body {
    Body::Stream { stream: stream(number), chunks: chunks as u32, chunk_bytes: BLOCK }
}

fn metax() -> Metax {
    Metax::new(1, HybridClock(1), ETag::Md5([1; 16]))
}

/// Rows as objects of many chunks leave them. Chunks take no room here but for the last of a stream.
#[derive(Default)]
struct Rows(Changes);

impl Rows {
    fn stream(mut self, number: u64, chunks: usize, blocks: u32) -> Self {
        for at in 0..chunks as u32 {
            let first = (at + blocks).checked_sub(chunks as u32);
            let extents = first.map(|first| Extent { first, blocks: 1 });
            let grant = Grant { pg: PG, op: OpId::default(), attempt: 0 };
            let chunk = Chunk {
                grant,
                seed: 1,
                lv: LV,
                extents: extents.into_iter().collect(),
                len: 0,
                sums: Vec::new(),
                holders: Holders(1),
            };
            self.0.put(rows::chunk(BUCKET, stream(number), at), encode(&chunk));
        }
        self
    }

    fn part(mut self, number: u16, body: Body) -> Self {
        let part = PartRow { op: OpId::default(), metax: metax(), body };
        self.0.put(rows::part(BUCKET, UPLOAD, number), encode(&part));
        self
    }

    fn object(mut self, name: &str, body: Body) -> Self {
        let row = VersionRow { op: OpId::default(), metax: metax(), body };
        self.0.put(rows::version(BUCKET, &name_of(name), rows::UNVERSIONED), encode(&row));
        self
    }

    /// The only member of a group with these rows, which serves.
    fn member(self) -> Member {
        let mut member = Member::new(1);
        member.table.write(self.0).expect("memory takes it");
        serve(&mut member, 1);
        member
    }

    /// The same after a large object was made, and has gone.
    fn in_steps(self) -> Member {
        let mut member = self.stream(LARGE, STEP + 1, 0).member();
        member.reap();
        assert_eq!(member.reaps(), 0, "there was no large object yet");
        assert!(!member.pg.wants_to_reap(true));
        member.put_large();
        member.reap();
        assert_eq!(member.reaps(), 1, "the first says the steps");
        member.delete("large");
        member.settle();
        assert_eq!(member.reap_all().len(), 1);
        member.effects.clear();
        member
    }
}

fn serve(member: &mut Member, view: u64) {
    member.begin(view, &[1]);
    member.serve(1);
    member.answer(0, DataAnswer::Floor(key(view, 0)));
    member.effects.clear();
}

impl Member {
    /// Makes an object of all chunks of the stream [`LARGE`].
    fn put_large(&mut self) {
        let mut open = Changes::default();
        open.put(rows::open_stream(BUCKET, stream(LARGE)), encode(&PG));
        self.table.write(open).expect("memory takes it");
        let token = self.put_stream("large", LARGE, STEP + 1);
        self.settle();
        assert!(self.is_done(token));
    }

    fn put_stream(&mut self, name: &str, number: u64, chunks: usize) -> Token {
        let request = self.request();
        let content =
            Content::Stream { stream: stream(number), chunks: chunks as u32, chunk_bytes: BLOCK };
        self.call(put(request, name, content, Condition::default()))
    }

    fn reap(&mut self) {
        if self.pg.wants_to_reap(true) {
            self.step(Event::Reap { may_begin: true });
            self.settle();
        }
    }

    /// Ops of its log that remove garbage.
    fn reaps(&self) -> usize {
        self.log.iter().filter(|(entry, _)| matches!(*entry.op, Op::Reap { .. })).count()
    }

    fn count(&self, table: u8) -> usize {
        let mut count = 0;
        let counted = self.table.scan_prefix(&[table], &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        });
        counted.expect("a scan");
        count
    }

    /// Rows of chunks, parts and pieces.
    fn rows_left(&self) -> usize {
        self.count(b'K') + self.count(b'P') + self.count(b'W')
    }

    /// Rows of garbage, without the one that says the steps.
    fn garbage(&self) -> usize {
        self.count(b'Q').saturating_sub(1)
    }

    /// Ticks until no garbage is left; rows that were left after each.
    fn reap_all(&mut self) -> Vec<usize> {
        let mut left = Vec::new();
        while self.garbage() > 0 {
            let before = self.rows_left();
            self.reap();
            left.push(self.rows_left());
            assert!(before - self.rows_left() <= STEP, "{before} rows, then {left:?}");
            assert_eq!(self.strays(), NONE);
        }
        let reaps = self.reaps();
        self.reap();
        assert_eq!(self.reaps(), reaps, "there is nothing left to do");
        left
    }

    fn strays(&self) -> Vec<String> {
        let mut scan = SpaceScan::new(std::iter::once(info(1)));
        let scanned = self.table.scan_prefix(b"", &mut |row, value| {
            scan.note(row, value).expect("a readable row");
            ControlFlow::Continue(())
        });
        scanned.expect("a scan");
        let derived = scan.finish();
        assert_eq!(derived.faults, []);
        derived.strays.iter().map(Stray::to_string).collect()
    }

    /// Blocks that no row names: free ones, and those that wait for a floor or rest.
    fn unnamed(&self) -> u64 {
        let space = self.pg.gauges().space;
        space.free + space.waiting + space.resting
    }
}

#[test]
fn an_object_of_many_chunks_goes_in_steps() {
    let rows = Rows::default().stream(1, 2 * STEP + 88, BLOCKS);
    let mut member = rows.object("big", stream_body(1, 2 * STEP + 88)).in_steps();
    let full = u64::from(LV_BLOCKS - BLOCKS);
    assert_eq!(member.unnamed(), full);
    member.delete("big");
    member.settle();
    assert_eq!(member.row("big"), None, "it is gone at once");
    assert_eq!((member.rows_left(), member.garbage()), (STEP + 88, 1));
    assert_eq!(member.strays(), NONE);
    assert_eq!(member.unnamed(), full, "the last chunks have its blocks");
    member.reap();
    assert_eq!((member.rows_left(), member.unnamed()), (88, full + 2));
    assert_eq!(member.reap_all(), [0]);
    assert_eq!((member.unnamed(), member.reaps()), (u64::from(LV_BLOCKS), 2 + 2));
    assert_eq!(member.pg.gauges().reaped_rows, 1 + STEP as u64 + 88);
}

#[test]
fn one_of_few_chunks_goes_at_once() {
    let rows = Rows::default().stream(1, STEP, BLOCKS);
    let mut member = rows.object("big", stream_body(1, STEP)).in_steps();
    member.put_inline("big", "small");
    member.settle();
    assert_eq!((member.rows_left(), member.garbage()), (0, 0));
    member.reap();
    assert_eq!(member.reaps(), 2, "there was no garbage");
}

/// A release that knows no garbage does so, and all members are to have the same rows.
#[test]
fn without_steps_all_goes_at_once() {
    let rows = Rows::default().stream(1, 3 * STEP, BLOCKS);
    let mut member = rows.object("big", stream_body(1, 3 * STEP)).member();
    member.delete("big");
    member.settle();
    assert_eq!((member.rows_left(), member.count(b'Q')), (0, 0));
}

#[test]
fn steps_begin_when_they_may_and_go_on_when_they_may_not_begin() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    for id in 1..=3 {
        let rows = Rows::default().stream(LARGE, STEP + 1, 0);
        cluster.at(id).table.write(rows.0).expect("memory takes it");
    }
    let settle = |cluster: &mut Cluster, may_begin| {
        for _ in 0..3 {
            if cluster.at(1).pg.wants_to_reap(may_begin) {
                cluster.at(1).step(Event::Reap { may_begin });
            }
            cluster.settle();
        }
    };
    cluster.at(1).put_stream("large", LARGE, STEP + 1);
    cluster.settle();
    assert!(cluster.at(1).pg.wants_to_reap(false), "it has not looked yet");
    cluster.at(1).step(Event::Reap { may_begin: false });
    assert!(!cluster.at(1).pg.wants_to_reap(false));
    cluster.settle();
    assert!(cluster.at(3).row("large").is_some());
    assert_eq!(cluster.at(1).reaps(), 0, "other servers may not know the op");
    settle(&mut cluster, true);
    cluster.at(1).delete("large");
    settle(&mut cluster, false);
    for id in 1..=3 {
        let member = cluster.at(id);
        assert_eq!(
            (member.reaps(), member.rows_left(), member.garbage()),
            (2, 0, 0),
            "member {id}"
        );
    }
}

#[test]
fn an_upload_goes_in_steps_with_the_streams_of_its_parts() {
    let mut rows = Rows::default().stream(1, STEP + 44, BLOCKS).part(1, stream_body(1, STEP + 44));
    for number in 2..=300 {
        let chunks = if number % 10 == 0 { 3 } else { 0 };
        let body = stream_body(number, chunks);
        rows = rows.stream(number, chunks, 0).part(number as u16, body);
    }
    let parts = (1..=300).map(|number| PartRef { number, len: 1 }).collect();
    let body = Body::Parts { upload: UPLOAD, parts };
    let mut member = rows.object("big", body).in_steps();
    assert_eq!(member.rows_left(), 300 + STEP + 44 + 30 * 3);
    member.delete("big");
    member.settle();
    assert_eq!(member.count(b'P'), 299, "a part goes with what it names before the next");
    assert_eq!((member.garbage(), member.strays()), (2, NONE.map(String::from).to_vec()));
    assert_eq!(member.reap_all().len(), 2);
    assert_eq!((member.rows_left(), member.unnamed()), (0, u64::from(LV_BLOCKS)));
}

/// A group with an upload of so many parts, which nobody has completed.
fn with_upload(parts: u16) -> Member {
    let mut rows = Rows::default();
    for number in 1..=parts {
        rows = rows.part(number, Body::Inline("x".into()));
    }
    let (name, clock) = (name_of("big"), HybridClock(1));
    let upload = UploadRow {
        upload: UPLOAD,
        key: name.clone(),
        clock,
        attributes: Default::default(),
        checksum: None,
    };
    rows.0.put(rows::upload(BUCKET, &name, UPLOAD), encode(&upload));
    rows.in_steps()
}

fn abort_upload(member: &mut Member) {
    let (request, key) = (member.request(), name_of("big"));
    member.call(Call::AbortUpload { request, bucket: BUCKET, key, upload: UPLOAD });
    member.settle();
}

#[test]
fn an_upload_that_is_aborted_goes_in_steps() {
    let mut member = with_upload(2 * STEP as u16);
    abort_upload(&mut member);
    assert_eq!((member.count(b'U'), member.rows_left()), (0, STEP));
    assert_eq!(member.reap_all(), [0]);
}

#[test]
fn rows_that_no_version_names_are_not_kept_for_reads() {
    let mut member = with_upload(1);
    member.pg.note_reader(member.now_ms);
    abort_upload(&mut member);
    assert_eq!(member.rows_left(), 0);
    assert_eq!(member.pg.departed(&rows::part(BUCKET, UPLOAD, 1), member.now_ms), None);
}

#[test]
fn an_object_that_was_appended_to_goes_in_steps() {
    let mut rows = Rows::default().stream(1, STEP, BLOCKS);
    for end in 1..=(STEP as u64 + 10) {
        let body = if end == 1 { stream_body(1, STEP) } else { Body::Inline("x".into()) };
        let piece = PieceRow {
            op: OpId::default(),
            start: end - 1,
            body,
            etag: ETag::Md5([1; 16]),
            checksum: None,
        };
        rows.0.put(rows::piece(BUCKET, PIECES, end), encode(&piece));
    }
    let body = Body::Pieces { pieces: PIECES, rows: STEP as u32 + 10 };
    let mut member = rows.object("log", body).in_steps();
    member.put_inline("log", "rotated");
    member.settle();
    assert_eq!((member.count(b'W'), member.count(b'K')), (STEP + 9, 1));
    member.reap_all();
    assert_eq!((member.rows_left(), member.unnamed()), (0, u64::from(LV_BLOCKS)));
}

#[test]
fn the_next_primary_goes_on() {
    let rows = Rows::default().stream(1, 3 * STEP, BLOCKS);
    let mut member = rows.object("big", stream_body(1, 3 * STEP)).in_steps();
    member.delete("big");
    member.settle();
    member.step(Event::Reap { may_begin: true });
    member.sync();
    // The op is in the log, and its effect is not in the index.
    assert_eq!(member.rows_left(), 2 * STEP);
    let mut member = member.restart();
    serve(&mut member, 2);
    assert_eq!(member.rows_left(), STEP, "a committed op takes effect");
    assert_eq!(member.reap_all(), [0]);
}

#[test]
fn nobody_can_name_what_is_garbage() {
    let rows = Rows::default().stream(1, STEP + 1, 0);
    let mut member = rows.object("big", stream_body(1, STEP + 1)).in_steps();
    member.delete("big");
    member.settle();
    // Its first chunks came once more, and it is open again.
    let again = Rows::default().stream(1, STEP + 1, 0);
    member.table.write(again.0).expect("memory takes it");
    let mut open = Changes::default();
    open.put(rows::open_stream(BUCKET, stream(1)), encode(&PG));
    member.table.write(open).expect("memory takes it");
    let token = member.put_stream("other", 1, STEP + 1);
    assert_eq!(member.refusal(token), Refusal::StreamIncomplete);
}

#[test]
fn rows_of_garbage_are_of_their_group() {
    let rows = Rows::default().stream(1, STEP + 1, 0);
    let mut member = rows.object("big", stream_body(1, STEP + 1)).in_steps();
    member.delete("big");
    member.settle();
    let steps = member.table.get(&rows::garbage(PG)).expect("a row").expect("the steps");
    let said = member.log.iter().find(|(entry, _)| matches!(*entry.op, Op::Reap { .. }));
    let op = said.expect("it was said").0.id;
    let read = decode::<Reaping>("steps", &steps).expect("a row that can be read");
    assert_eq!(read, Reaping { op, rows_max: REAP_ROWS_MAX });
    let row = rows::garbage_of(PG, &rows::stream(BUCKET, stream(1)));
    let value = member.table.get(&row).expect("a row").expect("garbage");
    assert_eq!(owner(&row, &value, 1), Ok(Some(PG)), "snapshots and sums have it");
    let read = decode::<Garbage>("garbage", &value).expect("a row that can be read");
    let through = (STEP as u32 - 1).to_be_bytes().to_vec();
    assert_eq!(read, Garbage { op: member.pg.applied(), through }, "so far it went");
}

/// No op of this run made it: the rows say so when they are read for the ledger.
#[test]
fn a_large_object_from_before_is_found_when_the_rows_are_read() {
    let large = Rows::default().stream(1, STEP + 1, 0);
    let part = Rows::default().part(STEP as u16 + 1, Body::Inline("x".into()));
    let few = Rows::default().stream(1, STEP, 0).part(STEP as u16 - 1, Body::Inline("x".into()));
    for (rows, is_large) in [(large, true), (part, true), (few, false)] {
        let mut member = rows.member();
        member.reap();
        assert_eq!(member.reaps(), 0, "nobody has read them");
        let mut walk = LedgerWalk::new(1);
        walk.add(&mut member.pg);
        assert!(member.read_rows(&mut walk, usize::MAX));
        member.reap();
        assert_eq!(member.reaps(), usize::from(is_large));
    }
}

/// A group with an object of more chunks than two steps, which somebody reads when it is deleted; and its first row.
fn deleted_under_a_reader() -> (Member, Vec<u8>) {
    let rows = Rows::default().stream(1, 2 * STEP + 88, BLOCKS);
    let mut member = rows.object("big", stream_body(1, 2 * STEP + 88)).in_steps();
    let first = rows::chunk(BUCKET, stream(1), 0);
    let value = member.table.get(&first).expect("a row");
    member.pg.note_reader(member.now_ms);
    member.delete("big");
    member.settle();
    assert_eq!(member.table.get(&first), Ok(None));
    assert_eq!(member.pg.departed(&first, member.now_ms), value);
    member.reap();
    assert_eq!((member.rows_left(), member.garbage()), (STEP + 88, 1), "it may be read as well");
    (member, first)
}

#[test]
fn rows_of_an_object_that_is_read_can_be_read_for_a_while_after_it_has_gone() {
    let (mut member, first) = deleted_under_a_reader();
    let behind = rows::chunk(BUCKET, stream(1), 3);
    let found = member.pg.departed_from((&first, &behind), 2, member.now_ms);
    assert_eq!(found.len(), 2);
    assert_eq!(member.pg.departed_from((&first, &behind), 9, member.now_ms).len(), 3);
    assert!(member.pg.wants_tick());
    member.now_ms += FREED_REST_MS;
    member.step(Event::Tick);
    assert_eq!(member.pg.departed(&first, member.now_ms), None);
    assert_eq!(member.reap_all(), [88, 0]);
}

#[test]
fn a_slow_reader_finds_its_rows_for_as_long_as_it_reads_but_not_for_ever() {
    let (mut member, first) = deleted_under_a_reader();
    let begun_ms = member.now_ms;
    while member.now_ms + FREED_REST_MS / 2 < begun_ms + FREED_REST_MS_MAX {
        member.now_ms += FREED_REST_MS / 2;
        member.pg.note_reader(member.now_ms);
        assert!(member.pg.departed(&first, member.now_ms).is_some());
        member.step(Event::Tick);
        assert!(!member.pg.wants_to_reap(true));
    }
    member.now_ms = begun_ms + FREED_REST_MS_MAX;
    member.pg.note_reader(member.now_ms);
    member.step(Event::Tick);
    assert_eq!(member.pg.departed(&first, member.now_ms), None);
    assert_eq!(member.reap_all(), [88, 0]);
}

#[test]
fn nothing_is_kept_where_nobody_reads() {
    let rows = Rows::default().stream(1, STEP, BLOCKS);
    let mut member = rows.object("big", stream_body(1, STEP)).in_steps();
    member.delete("big");
    member.settle();
    let first = rows::chunk(BUCKET, stream(1), 0);
    assert_eq!(member.pg.departed(&first, member.now_ms), None);
}

#[test]
fn a_put_that_lacks_space_is_given_that_of_an_object_that_is_read() {
    let (mut member, _) = deleted_under_a_reader();
    let put = member.put_data("small", 20);
    assert_eq!(member.answers(put), []);
    member.step(Event::PoolEmpty);
    assert_eq!(member.answers(put), [], "it waits for what is read");
    assert_eq!(member.reap_all(), [88, 0]);
    member.answer(0, DataAnswer::Floor(key(1, member.pg.last().seq.0 + 1)));
    member.granted(put);
}

#[test]
fn no_volume_is_asked_for_while_garbage_that_was_spared_gives_space() {
    let (mut member, _) = deleted_under_a_reader();
    let put = member.put_data("small", 20);
    assert_eq!(member.reap_all(), [88, 0]);
    assert_eq!(member.answers(put), [], "it waits for the floor");
    member.answer(0, DataAnswer::Floor(key(1, member.pg.last().seq.0 + 1)));
    member.granted(put);
    assert!(!member.effects.contains(&Effect::NeedLv), "the pool is for groups that lack space");
}

#[test]
fn a_volume_is_asked_for_where_garbage_that_was_spared_does_not_go_soon() {
    let (mut member, _) = deleted_under_a_reader();
    let put = member.put_data("small", 20);
    member.now_ms += REAPED_FIRST_MS - 1;
    member.step(Event::Tick);
    assert!(!member.effects.contains(&Effect::NeedLv));
    member.now_ms += 1;
    member.step(Event::Tick);
    assert!(member.effects.contains(&Effect::NeedLv));
    assert_eq!(member.answers(put), []);
}

#[test]
fn a_volume_is_asked_for_as_soon_as_no_garbage_is_left_that_frees_blocks() {
    let rows = Rows::default().stream(1, STEP + 1, 0);
    let mut member = rows.object("big", stream_body(1, STEP + 1)).in_steps();
    member.pg.note_reader(member.now_ms);
    member.delete("big");
    member.settle();
    assert!(!member.pg.wants_to_reap(true), "it may be read");
    member.open_put("all", LV_BLOCKS);
    let put = member.put_data("small", 1);
    assert!(!member.effects.contains(&Effect::NeedLv));
    assert_eq!(member.reap_all(), [0]);
    assert!(member.effects.contains(&Effect::NeedLv));
    assert_eq!(member.answers(put), []);
}

#[test]
fn freed_blocks_rest_until_a_put_needs_them() {
    let mut member = Member::alone(1);
    member.store("one", 50, 1);
    member.delete("one");
    member.settle();
    let freed_by = member.pg.applied().seq.0;
    member.open_put("other", 30);
    member.answer(0, DataAnswer::Floor(key(1, freed_by + 1)));
    assert_eq!(member.pg.gauges().space.resting, 50);
    member.open_put("third", 30);
    assert_eq!(member.pg.gauges().space.resting, 0, "there were 20 blocks besides");
    assert_eq!(member.pg.gauges().unrested, 50);
}
