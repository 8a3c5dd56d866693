//! Stored bytes that others may have written: a bucket has more writers than its workers. Such
//! bytes are refused with an error, never with a panic, and a read of them asks for no more memory
//! than there are bytes.
//!
//! Sums are made right after bits were turned, so that what is behind them is read. `LARDER_FUZZ_SECONDS` sets how long
//! it runs, `LARDER_FUZZ_SEED` where it begins.

use std::time::Instant;

use bytes::Bytes;
use larder_env::SeededRng;
use larder_env::hostile::{rounds, spoiled};
use larder_types::codec::decode;
use larder_types::{BucketRecord, PartRow, UploadRow, VersionRow, rows};
use xxhash_rust::xxh3::xxh3_64;

use crate::backup::{Head, SegmentSum, read_segment};
use crate::commit::log::LogRecord;
use crate::format::blob::{BlobName, FooterReader, TRAILER_BYTES, Trailer};
use crate::format::entry::{Change, Content};
use crate::format::rows::{
    BlobContent, BlobRow, PackedPart, PackedVersion, RetiredRow, parse_blob,
};
use crate::format::upload_unit::BundleContent;
use crate::ids::{BackupId, StandaloneId};
use crate::owner::announce::Announcement;
use crate::owner::counting::Record;
use crate::owner::identity::{Claim, Identity};
use crate::owner::numbering::{Number, Numbered};
use crate::packer::status::Status;
use crate::peers::feed::FeedUpdate;
use crate::peers::feed::wire::{FeedReply, FeedRequest};

const GOLDEN: &str = include_str!("../tests/golden/pack.hex");
const STATUS: &[u8] = include_bytes!("packer/status/v1.json");
/// Rounds of a short run.
const ROUNDS: u64 = 20_000;

/// Golden values: what releases have stored.
fn corpus() -> Vec<Vec<u8>> {
    let value = |text: &str| {
        let bytes = text.split_once(']').map_or("", |(_, bytes)| bytes).split_whitespace();
        bytes.map(|byte| u8::from_str_radix(byte, 16).expect("hex")).collect::<Vec<u8>>()
    };
    let values = GOLDEN.split('[').skip(1).map(value).filter(|bytes| !bytes.is_empty());
    values.chain([STATUS.to_vec()]).collect()
}

/// A blob's footer and trailer, each with bits turned now and then, and with sums that are right.
fn tail(draw: &mut SeededRng, blobs: &[Vec<u8>]) -> Vec<u8> {
    let blob = &blobs[draw.below(blobs.len() as u64) as usize];
    let (before, trailer) = blob.split_at(blob.len() - TRAILER_BYTES);
    let from = Trailer::decode("golden", trailer).expect("it is golden").footer_offset as usize;
    let footer = spoiled(draw, &[before[from..].to_vec()]);
    let mut trailer = trailer.to_vec();
    if draw.below(4) == 0 {
        let at = 12 + draw.below(36) as usize;
        let len = 1 + draw.below(8) as usize;
        trailer[at..48].iter_mut().take(len).for_each(|byte| *byte = 0xff);
    }
    trailer[40..48].copy_from_slice(&(footer.len() as u64).to_le_bytes());
    trailer[48..56].copy_from_slice(&xxh3_64(&footer).to_le_bytes());
    let sum = xxh3_64(&trailer[..56]);
    trailer[56..].copy_from_slice(&sum.to_le_bytes());
    [footer, trailer].concat()
}

fn read_tail(tail: &[u8]) -> bool {
    let Ok(footer) = FooterReader::new("a blob", tail) else { return false };
    let trailer = footer.trailer;
    assert!(trailer.blob_bytes() >= TRAILER_BYTES as u64);
    for entry in footer.flatten() {
        let _op = entry.op(trailer.id.worker);
        let _bucket = entry.change.bucket();
        let run = match &entry.change {
            Change::Put { content: Content::Run(place), .. }
            | Change::PartPut { place, .. }
            | Change::Moved { content: Content::Run(place), .. }
            | Change::PartMoved { place, .. } => place,
            _ => continue,
        };
        assert!(run.end_in(run.container).is_none_or(|end| end >= run.offset));
    }
    true
}

/// Drops the result of a read, which is of no matter.
fn looked_at<T>(_: T) {}

fn read_all(bytes: &[u8]) {
    looked_at(Trailer::decode("a blob", bytes));
    looked_at(Status::decode(bytes));
    looked_at(postcard::take_from_bytes::<FeedRequest>(bytes).map(|(ask, _)| ask));
    if let Ok((reported, payload)) = postcard::take_from_bytes::<FeedReply>(bytes) {
        looked_at(FeedUpdate::read(reported, Bytes::copy_from_slice(payload)));
    }
    looked_at(Head::decode(BackupId::default(), bytes));
    let sum = SegmentSum { bytes: bytes.len() as u64, rows: 1, sum: xxh3_64(bytes) };
    looked_at(read_segment("a segment", bytes, sum, 100, &mut |_| Ok(())));
    looked_at(decode::<Head>("head", bytes));
    looked_at(decode::<LogRecord>("record", bytes));
    looked_at(decode::<BlobRow>("row", bytes));
    looked_at(decode::<Number>("number", bytes));
    looked_at(decode::<Record>("record", bytes));
    looked_at(decode::<Numbered>("numbered", bytes));
    looked_at(std::str::from_utf8(bytes).map(StandaloneId::parse));
    looked_at(BlobContent::decode(bytes));
    looked_at(decode::<BundleContent>("row", bytes));
    looked_at(decode::<PackedPart>("row", bytes));
    looked_at(decode::<PackedVersion>("row", bytes));
    looked_at(decode::<RetiredRow>("row", bytes));
    looked_at(decode::<Announcement>("announcement", bytes));
    looked_at(decode::<Claim>("claim", bytes));
    looked_at(decode::<Identity>("identity", bytes));
    looked_at(decode::<VersionRow>("row", bytes));
    looked_at(decode::<PartRow>("row", bytes));
    looked_at(decode::<UploadRow>("row", bytes));
    looked_at(decode::<BucketRecord>("row", bytes));
    looked_at(parse_blob(bytes));
    looked_at(crate::format::rows::parse_bundle(bytes));
    looked_at(crate::format::rows::parse_held(bytes));
    looked_at(crate::format::rows::upload_of_part(bytes));
    looked_at(rows::parse_keyed(bytes));
    looked_at(rows::parse_piece(bytes));
    looked_at(rows::parse_open_stream(bytes));
    looked_at(rows::chunk_number(bytes));
    looked_at(std::str::from_utf8(bytes).map(BlobName::parse));
}

#[test]
fn stored_bytes_from_anybody_are_read_or_refused() {
    let begun = Instant::now();
    let (corpus, mut read, mut ran) = (corpus(), 0_u64, 0);
    let is_blob = |bytes: &&Vec<u8>| {
        let at = bytes.len().saturating_sub(TRAILER_BYTES);
        Trailer::decode("golden", &bytes[at..]).is_ok()
    };
    let blobs: Vec<Vec<u8>> = corpus.iter().filter(is_blob).cloned().collect();
    for mut draw in rounds(ROUNDS) {
        let bytes = spoiled(&mut draw, &corpus);
        read_all(&bytes);
        read += u64::from(read_tail(&tail(&mut draw, &blobs)));
        ran += 1;
    }
    println!("{ran} rounds, {read} footers read, {:?}", begun.elapsed());
    assert!(read > ROUNDS / 10, "some footers are read: {read}");
}

/// A trailer as its writer may have it, with its sum right.
#[test]
fn a_footer_beyond_the_end_of_numbers_is_refused() {
    let mut trailer = [0; TRAILER_BYTES];
    trailer[..8].copy_from_slice(b"LARDRPAK");
    trailer[8..12].copy_from_slice(&2_u32.to_le_bytes());
    trailer[32..40].copy_from_slice(&(u64::MAX - 10).to_le_bytes());
    let sum = xxh3_64(&trailer[..56]);
    trailer[56..].copy_from_slice(&sum.to_le_bytes());
    let refused = Trailer::decode("a blob", &trailer);
    assert!(refused.is_err(), "it would be {} bytes long", refused.unwrap().blob_bytes());
}
