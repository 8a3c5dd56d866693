use super::*;

fn superblock() -> Superblock {
    Superblock {
        cluster: 0x0102_0304_0506_0708,
        disk: DiskId(9),
        pv_bytes: 64 * PV_BYTES_STEP,
        pv_count: 300,
    }
}

fn header(generation: u64) -> Header {
    let op = |view, seq| OpId { view: View(view), seq: OpSeq(seq) };
    Header {
        pv: PvId(5),
        lv: LvId(77),
        state: State::InUse,
        replica: 2,
        generation,
        view: View(4),
        floor: op(3, 1000),
        provisioned_blocks: 512,
        voids: vec![
            Grant { pg: PgId(8), op: op(4, 1001), attempt: 0 },
            Grant { pg: PgId(8), op: op(4, 1002), attempt: 3 },
        ],
        given: MapVersion(0),
    }
}

/// The golden file's bytes: hexadecimal, white space ignored, then zeros up to the checksum.
fn golden(text: &str) -> Page {
    let digits: String = text.split_whitespace().collect();
    let bytes: Vec<u8> = (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect();
    let (fields, sum) = bytes.split_at(bytes.len() - 8);
    let mut page = [0; PAGE_BYTES];
    page[..fields.len()].copy_from_slice(fields);
    page[SUM_OFFSET..].copy_from_slice(sum);
    page
}

fn assert_golden(page: &Page, text: &str) {
    let used = SUM_OFFSET - page[..SUM_OFFSET].iter().rev().take_while(|byte| **byte == 0).count();
    assert!(*page == golden(text), "{:02x?} {:02x?}", &page[..used], &page[SUM_OFFSET..]);
}

fn slots(slot_0: Page, slot_1: Page) -> [u8; HEADER_BYTES] {
    let mut slots = [0; HEADER_BYTES];
    slots[..PAGE_BYTES].copy_from_slice(&slot_0);
    slots[PAGE_BYTES..].copy_from_slice(&slot_1);
    slots
}

#[test]
fn superblocks_keep_their_golden_bytes() {
    let page = superblock().encode();
    assert_golden(&page, include_str!("../../tests/golden/superblock.hex"));
    assert_eq!(Superblock::decode(&page), Ok(superblock()));
}

#[test]
fn headers_keep_their_golden_bytes() {
    let page = header(6).encode(&superblock());
    assert_golden(&page, include_str!("../../tests/golden/pv_header.hex"));
    assert_eq!(Header::decode(&page, &superblock()), Some(header(6)));
}

#[test]
fn a_header_keeps_under_which_map_it_was_given_where_older_ones_have_zeros() {
    let given = Header { given: MapVersion(0x0102_0304_0506), ..header(6) };
    let mut page = header(6).encode(&superblock());
    let golden = include_str!("../../tests/golden/pv_given.hex").replace('\n', "");
    let bytes: Vec<u8> =
        (0..48).step_by(2).map(|at| u8::from_str_radix(&golden[at..at + 2], 16).unwrap()).collect();
    page[3912..3920].copy_from_slice(&bytes[..8]);
    page[SUM_OFFSET..].copy_from_slice(&bytes[8..16]);
    assert_eq!(given.encode(&superblock())[3912..], page[3912..]);
    assert_eq!(Header::decode(&page, &superblock()), Some(given.clone()));
    let let_go = Header { state: State::LetGo, ..given };
    page[28] = 2;
    page[SUM_OFFSET..].copy_from_slice(&bytes[16..]);
    assert_eq!(let_go.encode(&superblock())[SUM_OFFSET..], page[SUM_OFFSET..]);
    assert_eq!(Header::decode(&page, &superblock()), Some(let_go));
}

#[test]
fn any_flipped_byte_is_found() {
    let (good, header_page) = (superblock().encode(), header(6).encode(&superblock()));
    for at in 0..PAGE_BYTES {
        let (mut bad, mut bad_header) = (good, header_page);
        bad[at] ^= 1 << (at % 8);
        bad_header[at] ^= 1 << (at % 8);
        assert!(Superblock::decode(&bad).is_err(), "byte {at}");
        assert_eq!(Header::decode(&bad_header, &superblock()), None, "byte {at}");
    }
}

#[test]
fn a_later_version_is_distinguished_from_damage() {
    let mut page = superblock().encode();
    page[8] = 2;
    assert_eq!(Superblock::decode(&page), Err(BadSuperblock::Damaged));
    let sum = xxh3_64(&page[..SUM_OFFSET]);
    page[SUM_OFFSET..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(Superblock::decode(&page), Err(BadSuperblock::Version(2)));
    assert_eq!(Superblock::decode(&[0; PAGE_BYTES]), Err(BadSuperblock::NotOne));
}

#[test]
fn the_most_voids_fit() {
    let mut full = header(6);
    full.voids = vec![full.voids[0]; VOIDS_MAX];
    assert_eq!(Header::decode(&full.encode(&superblock()), &superblock()), Some(full));
}

#[test]
fn ranges_do_not_overlap() {
    let superblock = superblock();
    assert_eq!(superblock.header_offset(PvId(0)), 8192);
    assert_eq!(superblock.header_offset(PvId(299)) + HEADER_BYTES as u64, 8192 + 300 * 8192);
    assert_eq!(superblock.data_start(), 3 << 20);
    assert_eq!(superblock.pv_offset(PvId(2)), (3 << 20) + (128 << 20));
}

#[test]
fn the_newer_slot_counts_and_one_is_enough() {
    let superblock = superblock();
    let page = |generation| header(generation).encode(&superblock);
    let find = |slot_0, slot_1| superblock.find(PvId(5), &slots(slot_0, slot_1));
    let (empty, torn) = ([0; PAGE_BYTES], [0xAA; PAGE_BYTES]);
    assert_eq!(find(page(6), page(7)), Found::InUse(header(7), false));
    assert_eq!(find(page(8), page(7)), Found::InUse(header(8), false));
    assert_eq!(find(torn, page(7)), Found::InUse(header(7), true));
    assert_eq!(find(page(8), torn), Found::InUse(header(8), true));
    assert_eq!(find(empty, page(1)), Found::InUse(header(1), true));
    assert_eq!(find(empty, empty), Found::Free);
    assert_eq!(find(empty, torn), Found::Free, "a creation that was never answered");
    assert_eq!(find(torn, torn), Found::Damaged);
    assert_eq!(find(torn, empty), Found::Damaged);
}

#[test]
fn an_owner_counts_that_a_newer_map_has_given_the_pv() {
    let superblock = superblock();
    let of = |generation, lv, given| Header {
        lv: LvId(lv),
        given: MapVersion(given),
        ..header(generation)
    };
    let find = |a: &Header, b: &Header| {
        superblock.find(PvId(5), &slots(a.encode(&superblock), b.encode(&superblock)))
    };
    let (former, next) = (of(6, 77, 3), of(7, 78, 4));
    assert_eq!(find(&former, &next), Found::InUse(next, true));
    assert_eq!(find(&former, &of(7, 78, 3)), Found::Damaged, "one map has one owner");
    assert_eq!(find(&former, &of(7, 77, 9)), Found::InUse(of(7, 77, 9), false));
    let let_go = Header { state: State::LetGo, ..of(7, 77, 9) };
    assert_eq!(find(&former, &let_go), Found::LetGo(let_go.clone()));
    assert_eq!(find(&of(8, 80, 10), &let_go), Found::InUse(of(8, 80, 10), true));
}

#[test]
fn of_two_pvs_of_one_lv_the_one_given_later_counts() {
    let of = |given| Found::InUse(Header { given: MapVersion(given), ..header(6) }, false);
    let let_go = |given| Found::LetGo(Header { given: MapVersion(given), ..header(6) });
    let settled = |given: &[u64]| {
        let mut found: Vec<Found> = given.iter().map(|given| of(*given)).collect();
        keep_one_of_each_lv(&mut found);
        found
    };
    assert_eq!(settled(&[5, 6, 2]), [let_go(5), of(6), let_go(2)]);
    assert_eq!(settled(&[0, 0]), [of(0), Found::Damaged]);
}

#[test]
fn a_header_in_a_wrong_place_is_damage() {
    let superblock = superblock();
    let page = |generation| header(generation).encode(&superblock);
    assert_eq!(superblock.find(PvId(6), &slots(page(6), page(7))), Found::Damaged);
    assert_eq!(superblock.find(PvId(5), &slots(page(7), page(6))), Found::Damaged);
    let elsewhere = Superblock { disk: DiskId(8), ..superblock };
    assert_eq!(elsewhere.find(PvId(5), &slots(page(6), page(7))), Found::Damaged);
}
