//! Frames that no release sends, and frames with bits turned over.

use std::sync::Arc;

use bytes::Bytes;
use larder_types::codec::{decode, encode};
use larder_types::{
    Attributes, BucketId, Condition, ETag, Epoch, Extent, Grant, Holders, LvId, ObjectKey, Op,
    OpSeq, PgId, Request, SessionId, StreamId, Target, View,
};

use super::*;
use crate::{AppendCall, PutCall};

mod reasons;

const REQUEST: Request = Request { session: SessionId(1), number: 2, floor: 1 };

fn description(size: u64) -> Description {
    let attributes = Attributes::default();
    Description { size, etag: ETag::Md5([1; 16]), checksum: None, attributes }
}

fn put(content: Content, size: u64) -> Call {
    Call::Put(Box::new(PutCall {
        request: REQUEST,
        bucket: BucketId(1),
        epoch: Epoch(1),
        key: ObjectKey::new("k").unwrap(),
        target: Target::Version,
        description: description(size),
        content,
        condition: Condition::default(),
        required_copies: 0,
    }))
}

fn append(content: Content, size: u64) -> Call {
    Call::Append(Box::new(AppendCall {
        request: REQUEST,
        bucket: BucketId(1),
        epoch: Epoch(1),
        key: ObjectKey::new("k").unwrap(),
        offset: None,
        description: description(size),
        content,
        condition: Condition::default(),
    }))
}

fn inline(len: usize) -> Content {
    Content::Inline(Bytes::from(vec![7; len]))
}

fn stream(chunks: u32, chunk_bytes: u32) -> Content {
    let stream = StreamId { session: SessionId(1), number: 2 };
    Content::Stream { stream, chunks, chunk_bytes }
}

fn data(len: u32, sums: usize) -> Content {
    Content::Data { len, seed: 3, sums: vec![4; sums] }
}

#[test]
fn a_size_that_is_not_that_of_the_content_is_refused() {
    for (content, size) in [
        (inline(3), 4),
        (inline(3), u64::MAX),
        (inline(INLINE_BYTES_MAX as usize + 1), u64::from(INLINE_BYTES_MAX) + 1),
        (stream(0, 0), 0),
        (stream(0, 0), 1),
        (stream(0, 8), 1),
        (stream(3, 0), 0),
        (stream(2, 8), 8),
        (stream(2, 8), 17),
        (stream(2, u32::MAX), u64::from(u32::MAX) + 1),
        (stream(u32::MAX, u32::MAX), u64::MAX),
        (data(0, 0), 0),
        (data(7, 1), 8),
        (data(7, 2), 7),
        (data(u32::MAX, 1), u64::from(u32::MAX)),
    ] {
        assert!(check_call(&put(content.clone(), size)).is_err(), "a put of {size}: {content:?}");
        assert!(
            check_call(&append(content.clone(), size)).is_err(),
            "an append of {size}: {content:?}"
        );
    }
    assert!(check_call(&append(inline(0), 0)).is_err());
    assert!(check_call(&append(data(7, 1), 7)).is_err());
}

#[test]
fn a_request_with_a_number_that_no_floor_passes_is_refused() {
    for (number, is_sound) in [(u64::MAX - 1, true), (u64::MAX, false)] {
        let Call::Put(mut put) = put(inline(5), 5) else { unreachable!("it is a put") };
        put.request.number = number;
        assert_eq!(check_call(&Call::Put(put)).is_ok(), is_sound);
    }
}

#[test]
fn what_proxies_send_is_sound() {
    for (content, size) in [(inline(0), 0), (inline(3), 3), (data(7, 1), 7), (stream(2, 8), 16)] {
        check_call(&put(content, size)).unwrap();
    }
    check_call(&append(inline(3), 3)).unwrap();
    check_call(&append(stream(1, 8), 1)).unwrap();
}

fn id(view: u64, seq: u64) -> OpId {
    OpId { view: View(view), seq: OpSeq(seq) }
}

fn entries(ids: &[OpId]) -> Vec<LogEntry> {
    ids.iter().map(|&id| LogEntry { id, op: Arc::new(Op::Digest) }).collect()
}

fn append_of(prev: OpId, ids: &[OpId]) -> PeerMessage {
    PeerMessage::Append { view: View(3), prev, entries: entries(ids), commit: OpSeq(0) }
}

#[test]
fn a_log_with_a_gap_is_refused() {
    for ids in [
        &[id(2, 7)][..],
        &[id(2, 6), id(2, 8)],
        &[id(2, 5)],
        &[id(1, 6)],
        &[id(2, 6), id(1, 7)],
        &[id(4, 6)],
        &[id(2, u64::MAX)],
    ] {
        assert!(check_message(&append_of(id(2, 5), ids)).is_err(), "{ids:?}");
    }
    assert!(check_message(&append_of(id(2, u64::MAX), &[id(2, 0)])).is_err());
    check_message(&append_of(id(2, 5), &[id(2, 6), id(3, 7)])).unwrap();
    check_message(&append_of(id(2, 5), &[])).unwrap();
}

#[test]
fn a_report_that_ends_elsewhere_than_its_ops_is_refused() {
    let report = |last, ids: &[OpId]| {
        let report = Report { is_whole: true, last, prev: id(2, 5), entries: entries(ids) };
        check_message(&PeerMessage::Report { view: View(4), report }).is_ok()
    };
    let two = [id(2, 6), id(2, 7)];
    assert!(report(id(2, 7), &two) && report(id(2, 5), &[]));
    assert!(report(id(2, 9), &two) && report(id(3, 8), &two), "more ops follow");
    for last in [id(2, 6), id(3, 7), id(1, 7), id(1, 9), id(2, u64::MAX)] {
        assert!(!report(last, &two), "{last:?}");
    }
    assert!(!report(id(2, 9), &[]), "a log that is cut off has some ops");
}

#[test]
fn a_chunk_without_its_sums_or_blocks_is_refused() {
    let chunk = |len, sums: usize, blocks| Chunk {
        grant: Grant { pg: PgId(0), op: id(1, 1), attempt: 0 },
        seed: 0,
        lv: LvId(0),
        extents: vec![Extent { first: 7, blocks }],
        len,
        sums: vec![0; sums],
        holders: Holders::default(),
    };
    check_chunk(&chunk(SUM_BYTES + 1, 2, u32::MAX - 7)).unwrap();
    let ends_nowhere = chunk(1, 1, u32::MAX);
    for wrong in [chunk(0, 0, 1), chunk(1, 0, 1), chunk(1, 1, 0), ends_nowhere] {
        assert!(check_chunk(&wrong).is_err(), "{wrong:?}");
    }
}

/// Every decoded frame gets a judgement. The same frames at each run.
#[test]
fn turned_bits_are_judged_without_a_panic() {
    let calls = [put(inline(3), 3), put(stream(2, 8), 16), append(data(7, 1), 7)];
    let messages = [append_of(id(2, 5), &[id(2, 6), id(3, 7)])];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % below
    };
    let mut judged = 0;
    for round in 0..20_000 {
        let is_call = round % 2 == 0;
        let mut frame = match is_call {
            true => encode(&calls[draw(calls.len())]),
            false => encode(&messages[draw(messages.len())]),
        };
        for _ in 0..=draw(3) {
            let at = draw(frame.len());
            frame[at] ^= 1 << draw(8);
        }
        if is_call {
            judged += decode::<Call>("call", &frame).map(|call| check_call(&call)).is_ok() as u32;
        } else {
            let message = decode::<PeerMessage>("message", &frame);
            judged += message.map(|message| check_message(&message)).is_ok() as u32;
        }
    }
    assert!(judged > 1_000, "most turned bits still decode: {judged}");
}
