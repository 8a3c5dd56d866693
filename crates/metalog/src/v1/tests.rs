use proptest::prelude::*;

use super::*;

const LAYOUT: Layout = Layout { log_id: 0x0123_4567_89AB_CDEF, segment_bytes: 2 * 1024 * 1024 };

fn op<'a>(pg: u32, view: u64, seq: u64, payload: &'a [u8]) -> Stored<'a> {
    Stored {
        kind: Kind::Op,
        chain: 0xC0C0_C0C0_0000_0001,
        synced: Lsn(4096),
        record: Record {
            pg: PgId(pg),
            view: View(view),
            seq: OpSeq(seq),
            commit: OpSeq(seq - 1),
            payload,
        },
    }
}

fn stored(at: Lsn, record: &Stored<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&LAYOUT, at, record, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn records_read_back_as_written(
        pg in 0..PG_COUNT_MAX,
        (view, seq, commit) in any::<(u64, u64, u64)>(),
        (chain, synced, at) in (any::<u64>(), any::<u64>(), 0..u64::MAX / 8),
        payload in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let record = Record {
            pg: PgId(pg), view: View(view), seq: OpSeq(seq), commit: OpSeq(commit), payload: &payload,
        };
        let stored = Stored { kind: Kind::Op, chain, synced: Lsn(synced), record };
        let at = Lsn(at * 8);
        let mut bytes = Vec::new();
        let checksum = encode(&LAYOUT, at, &stored, &mut bytes);
        prop_assert_eq!(bytes.len() as u64, stored_bytes(payload.len()));
        prop_assert_eq!(decode(&LAYOUT, at, &bytes), Some((stored, checksum)));
    }

    #[test]
    fn no_flipped_bit_verifies(payload in proptest::collection::vec(any::<u8>(), 0..300), pick in any::<usize>()) {
        let mut bytes = stored(Lsn(4096), &op(1, 2, 3, &payload));
        let covered = HEADER + payload.len();
        bytes[pick / 8 % covered] ^= 1 << (pick % 8);
        prop_assert_eq!(decode(&LAYOUT, Lsn(4096), &bytes), None);
    }

    #[test]
    fn no_bytes_at_all_make_it_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&LAYOUT, Lsn(4096), &bytes);
        let _ = decode_segment_header(&bytes, 0);
    }
}

#[test]
fn a_record_verifies_only_at_its_place_in_its_log() {
    let bytes = stored(Lsn(4096), &op(1, 2, 3, b"op"));
    assert!(decode(&LAYOUT, Lsn(4096), &bytes).is_some());
    assert!(decode(&LAYOUT, Lsn(4104), &bytes).is_none());
    assert!(decode(&LAYOUT, Lsn(4096 + LAYOUT.segment_bytes), &bytes).is_none());
    let other = Layout { log_id: LAYOUT.log_id + 1, ..LAYOUT };
    assert!(decode(&other, Lsn(4096), &bytes).is_none());
}

#[test]
fn a_record_cut_short_does_not_verify() {
    let bytes = stored(Lsn(4096), &op(1, 2, 3, b"some payload"));
    for len in 0..bytes.len() {
        assert!(decode(&LAYOUT, Lsn(4096), &bytes[..len]).is_none(), "{len}");
    }
}

#[test]
fn segment_headers_verify_only_under_their_own_number() {
    let bytes = encode_segment_header(&LAYOUT, 7);
    assert_eq!(decode_segment_header(&bytes, 7), Ok(LAYOUT));
    assert_eq!(decode_segment_header(&bytes, 8), Err(BadHeader::Damaged));
    assert_eq!(decode_segment_header(&bytes[..55], 7), Err(BadHeader::Damaged));
    for at in 0..56 {
        let mut flipped = bytes;
        flipped[at] ^= 0x10;
        assert_eq!(decode_segment_header(&flipped, 7), Err(BadHeader::Damaged), "{at}");
    }
}

#[test]
fn a_later_version_is_named() {
    let mut bytes = encode_segment_header(&LAYOUT, 0);
    bytes[8] = 2;
    let checksum = xxh3_64(&bytes[0..48]);
    bytes[48..56].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(decode_segment_header(&bytes, 0), Err(BadHeader::Version(2)));
}

/// The stored forms of `golden.txt`, in its order.
fn golden_forms() -> Vec<Vec<u8>> {
    let padding = Stored::bare(Kind::Padding, Lsn(4208));
    let mark = Stored::bare(Kind::Mark, Lsn(4208));
    vec![
        encode_segment_header(&LAYOUT, 3)[..SEGMENT_FIELDS_BYTES].to_vec(),
        stored(Lsn(4096), &op(7, 2, 9, b"larder's first op")),
        stored(Lsn(4208), &padding),
        stored(Lsn(4208), &mark),
    ]
}

#[test]
fn the_format_is_what_it_was() {
    let golden: Vec<String> = include_str!("golden.txt")
        .split("\n\n")
        .map(|form| form.lines().skip(1).collect::<String>().replace(' ', ""))
        .collect();
    let forms: Vec<String> = golden_forms()
        .iter()
        .map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    assert_eq!(forms, golden);
}
