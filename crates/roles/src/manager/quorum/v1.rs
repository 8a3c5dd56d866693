//! Version 1 of the log's file: `docs/formats/quorum.md` gives it byte by byte.
//!
//! # Invariant
//!
//! Checksums of a record depend on the file's id and on the record's place in it. Bytes of another file, or of a
//! write that went astray, never verify.

use larder_protocol::manager::quorum::LogWrite;
use larder_types::codec::{CodecError, decode, encode};
use larder_types::{ClusterId, ServerId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: [u8; 8] = *b"LARDRQRM";
const VERSION: u32 = 1;
/// Bytes of the file's header.
pub(super) const FILE_HEADER_BYTES: usize = 40;
/// Bytes of a record's header.
pub(super) const RECORD_HEADER_BYTES: usize = 32;
/// Records begin at multiples of this.
const RECORD_ALIGN_BYTES: usize = 8;

const _: () = assert!(FILE_HEADER_BYTES.is_multiple_of(RECORD_ALIGN_BYTES), "the first is aligned");

/// The identity of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) cluster: ClusterId,
    /// The manager whose log it is.
    pub(crate) server: ServerId,
    /// Drawn for each file.
    pub(crate) id: u64,
}

/// The reason why a file is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadFile {
    #[error("it has no header of a manager's log")]
    Header,
    #[error("it has format version {0}, this release knows up to {VERSION}: use a newer release")]
    Version(u32),
    #[error("the record at byte {0} is damaged, and others follow it")]
    Damaged(usize),
    #[error("the record at byte {at}: {error}")]
    Record { at: usize, error: CodecError },
}

/// The content of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) header: FileHeader,
    pub(crate) writes: Vec<LogWrite>,
    /// The end of the last whole record; bytes behind it are a torn record.
    pub(crate) end: usize,
}

pub(super) fn encode_header(header: &FileHeader) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FILE_HEADER_BYTES);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(header.server.0.to_le_bytes());
    bytes.extend(header.cluster.0.to_le_bytes());
    bytes.extend(header.id.to_le_bytes());
    let sum = xxh3_64(&bytes);
    bytes.extend(sum.to_le_bytes());
    assert_eq!(bytes.len(), FILE_HEADER_BYTES, "the header is as long as described");
    bytes
}

/// The record that begins at byte `at` of the file. The first has number 1.
pub(super) fn encode_record(
    file: &FileHeader,
    at: usize,
    number: u64,
    write: &LogWrite,
) -> Vec<u8> {
    assert!(at.is_multiple_of(RECORD_ALIGN_BYTES), "records are aligned");
    let value = encode(write);
    let seed = seed(file, at);
    let mut bytes = Vec::with_capacity(RECORD_HEADER_BYTES + padded(value.len()));
    bytes.extend(number.to_le_bytes());
    bytes.extend((value.len() as u64).to_le_bytes());
    bytes.extend(xxh3_64_with_seed(&value, seed).to_le_bytes());
    let sum = xxh3_64_with_seed(&bytes, seed);
    bytes.extend(sum.to_le_bytes());
    bytes.extend(value);
    bytes.resize(padded(bytes.len()), 0);
    bytes
}

/// Decodes a file. Only one record is ever being written. So a record that does not verify is torn if it is
/// the last, and damaged if a whole header of a later one follows.
pub(crate) fn decode_file(bytes: &[u8]) -> Result<Contents, BadFile> {
    let header = decode_header(bytes)?;
    let (mut writes, mut at) = (Vec::new(), FILE_HEADER_BYTES);
    loop {
        let number = writes.len() as u64 + 1;
        let Some(value) = value_at(&header, bytes, at, number) else { break };
        let write = decode("a record of a manager's log", value)
            .map_err(|error| BadFile::Record { at, error })?;
        at += padded(RECORD_HEADER_BYTES + value.len());
        writes.push(write);
    }
    let last = writes.len() as u64 + 1;
    let mut behind = (at..bytes.len()).step_by(RECORD_ALIGN_BYTES);
    if behind.any(|at| head_at(&header, bytes, at).is_some_and(|head| head.number > last)) {
        return Err(BadFile::Damaged(at));
    }
    Ok(Contents { header, writes, end: at.min(bytes.len()) })
}

fn decode_header(bytes: &[u8]) -> Result<FileHeader, BadFile> {
    if bytes.len() < FILE_HEADER_BYTES
        || bytes[..8] != MAGIC
        || u64_at(bytes, 32) != xxh3_64(&bytes[..32])
    {
        return Err(BadFile::Header);
    }
    let word = u64_at(bytes, 8);
    let (version, server) = (word as u32, (word >> 32) as u32);
    if version != VERSION {
        return Err(BadFile::Version(version));
    }
    let cluster = ClusterId(u64_at(bytes, 16));
    Ok(FileHeader { cluster, server: ServerId(server), id: u64_at(bytes, 24) })
}

struct Head {
    number: u64,
    len: u64,
    sum: u64,
}

fn head_at(file: &FileHeader, bytes: &[u8], at: usize) -> Option<Head> {
    let head = bytes.get(at..at + RECORD_HEADER_BYTES)?;
    let verifies = u64_at(head, 24) == xxh3_64_with_seed(&head[..24], seed(file, at));
    verifies.then(|| Head { number: u64_at(head, 0), len: u64_at(head, 8), sum: u64_at(head, 16) })
}

/// The value of the whole record with this number that begins here.
fn value_at<'a>(file: &FileHeader, bytes: &'a [u8], at: usize, number: u64) -> Option<&'a [u8]> {
    let head = head_at(file, bytes, at).filter(|head| head.number == number)?;
    let value = bytes[at + RECORD_HEADER_BYTES..].get(..usize::try_from(head.len).ok()?)?;
    (head.sum == xxh3_64_with_seed(value, seed(file, at))).then_some(value)
}

fn seed(file: &FileHeader, at: usize) -> u64 {
    file.id.wrapping_add(at as u64)
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(RECORD_ALIGN_BYTES)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
