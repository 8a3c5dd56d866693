//! Versions 1 and 2 of the blob: `docs/formats/blob.md` gives them byte by byte. They differ in the changes that a
//! footer may have; 2 is written.

use larder_types::{BucketId, BucketName};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::PackError;
use crate::format::entry::{Container, Entry};
use crate::format::upload_unit::UploadUnit;
use crate::ids::{BlobId, WorkerId};
use crate::limits::FOOTER_BYTES_MAX;

/// Bytes of the trailer, the last of every blob.
pub const TRAILER_BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"LARDRPAK";
const VERSION: u32 = 2;
/// The oldest version that is read.
const VERSION_MIN: u32 = 1;

/// The last bytes of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// The blob.
    pub id: BlobId,
    /// The unit that this is: the blob itself, or a bundle.
    pub unit: UploadUnit,
    /// Where the footer begins: the bytes of bodies.
    pub footer_offset: u64,
    /// Bytes of the footer.
    pub footer_bytes: u64,
    /// XXH3-64 of the footer.
    pub footer_sum: u64,
}

impl Trailer {
    /// The blob or bundle that its bodies lie within.
    #[must_use]
    pub fn container(&self) -> Container {
        self.unit.container(self.id)
    }

    /// Bytes of the whole blob.
    #[must_use]
    pub fn blob_bytes(&self) -> u64 {
        self.footer_offset + self.footer_bytes + TRAILER_BYTES as u64
    }

    /// As it is stored.
    #[must_use]
    pub fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = self.unit.nth();
        bytes[16..24].copy_from_slice(&self.id.worker.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.id.seq.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.footer_offset.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.footer_bytes.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.footer_sum.to_le_bytes());
        let sum = xxh3_64(&bytes[0..56]);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the last bytes of the blob `name`.
    ///
    /// # Errors
    /// [`PackError::Damaged`], [`PackError::Version`].
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Self, PackError> {
        let bytes: &[u8; TRAILER_BYTES] = bytes
            .try_into()
            .map_err(|_| PackError::damaged(name, "it is too short for a trailer"))?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if bytes[0..8] != MAGIC {
            return Err(PackError::damaged(name, "it does not end as a blob does"));
        }
        if number(56) != xxh3_64(&bytes[0..56]) {
            return Err(PackError::damaged(name, "its trailer does not verify"));
        }
        let found = u32::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]));
        if !(VERSION_MIN..=VERSION).contains(&found) {
            return Err(PackError::Version { name: name.to_owned(), found, known: VERSION });
        }
        let end = number(32).checked_add(number(40));
        if end.and_then(|end| end.checked_add(TRAILER_BYTES as u64)).is_none() {
            return Err(PackError::damaged(name, "its footer lies beyond the end of any blob"));
        }
        let unit = UploadUnit::numbered(bytes[12]);
        Ok(Self {
            id: BlobId { worker: WorkerId(number(16)), seq: number(24) },
            unit: unit
                .ok_or_else(|| PackError::damaged(name, "it is a bundle that no blob has"))?,
            footer_offset: number(32),
            footer_bytes: number(40),
            footer_sum: number(48),
        })
    }
}

/// The head of a footer, before its entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FooterHead {
    /// Milliseconds since 1970 of the first change.
    pub created_ms: u64,
    /// Number of entries.
    pub entries: u64,
    /// Names of the buckets that entries are about, by id.
    pub buckets: Vec<(BucketId, BucketName)>,
}

/// Footer and trailer of a blob's unit with so many bytes of bodies. `entries` are encoded one after the other.
pub(crate) fn encode_footer(
    id: BlobId,
    unit: UploadUnit,
    body_bytes: u64,
    head: &FooterHead,
    entries: &[u8],
) -> Vec<u8> {
    let mut bytes = postcard::to_extend(head, Vec::with_capacity(entries.len() + 4096))
        .expect("plain data always encodes");
    bytes.extend_from_slice(entries);
    let trailer = Trailer {
        id,
        unit,
        footer_offset: body_bytes,
        footer_bytes: bytes.len() as u64,
        footer_sum: xxh3_64(&bytes),
    };
    bytes.extend_from_slice(&trailer.encode());
    bytes
}

/// A footer that verified, read entry by entry.
pub(crate) struct FooterReader<'a> {
    name: &'a str,
    pub(crate) trailer: Trailer,
    pub(crate) head: FooterHead,
    rest: &'a [u8],
    left: u64,
}

impl<'a> FooterReader<'a> {
    /// Reads `tail`, the bytes of the blob `name` from its footer to its end.
    ///
    /// # Errors
    /// [`PackError::Damaged`], [`PackError::Version`].
    pub(crate) fn new(name: &'a str, tail: &'a [u8]) -> Result<Self, PackError> {
        let damaged = |reason: &str| PackError::damaged(name, reason);
        let at = tail.len().checked_sub(TRAILER_BYTES);
        let at = at.ok_or_else(|| damaged("it is too short for a trailer"))?;
        let (footer, trailer) = tail.split_at(at);
        let trailer = Trailer::decode(name, trailer)?;
        if trailer.footer_bytes != footer.len() as u64 || footer.len() > FOOTER_BYTES_MAX * 2 {
            return Err(damaged("its footer is not as long as its trailer says"));
        }
        if trailer.footer_sum != xxh3_64(footer) {
            return Err(damaged("its footer does not verify"));
        }
        let (head, rest) = postcard::take_from_bytes::<FooterHead>(footer)
            .map_err(|error| damaged(&format!("its footer cannot be read: {error}")))?;
        let left = head.entries;
        Ok(Self { name, trailer, head, rest, left })
    }
}

impl Iterator for FooterReader<'_> {
    type Item = Result<Entry, PackError>;

    fn next(&mut self) -> Option<Self::Item> {
        let damaged = |reason: String| Some(Err(PackError::damaged(self.name, reason)));
        if self.left == 0 {
            let left_over = std::mem::take(&mut self.rest).len();
            return match left_over {
                0 => None,
                bytes => damaged(format!("its footer has {bytes} bytes too many")),
            };
        }
        match postcard::take_from_bytes::<Entry>(self.rest) {
            Ok((entry, rest)) => {
                self.rest = rest;
                self.left -= 1;
                Some(Ok(entry))
            }
            Err(error) => {
                (self.left, self.rest) = (0, &[]);
                damaged(format!("an entry of its footer cannot be read: {error}"))
            }
        }
    }
}
