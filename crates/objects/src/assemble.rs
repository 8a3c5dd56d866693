//! Completes an upload: finds its parts, size, etag and checksum.
//!
//! Pure, and shared by every store, because S3's rules for it are many and the same everywhere.

use larder_types::limits::{OBJECT_BYTES_MAX, PART_BYTES_MIN, PART_NUMBER_MAX};
use larder_types::{
    ChecksumAlgorithm, ChecksumKind, ETag, ObjectChecksum, PartRef, UploadRow, crc,
};
use md5::Digest;

use crate::{BodyError, CompleteOptions, ListedPart, NamedPart, ObjectError};

/// A completed upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembled {
    /// Its parts in order.
    pub parts: Vec<PartRef>,
    /// Bytes.
    pub size: u64,
    /// Entity tag: MD5 of the parts' MD5s.
    pub etag: ETag,
    /// Checksum of the kind that the upload chose.
    pub checksum: Option<ObjectChecksum>,
}

/// Checks the parts that a client names against those stored, and makes the whole of them.
/// `stored` has the upload's parts in ascending order.
///
/// # Errors
/// [`ObjectError::InvalidPartOrder`], [`ObjectError::InvalidPart`], [`ObjectError::PartTooSmall`],
/// [`ObjectError::TooLarge`], [`ObjectError::Body`].
pub fn assemble(
    upload: &UploadRow,
    stored: &[ListedPart],
    options: &CompleteOptions,
) -> Result<Assembled, ObjectError> {
    let named = &options.parts;
    let in_range = named.iter().all(|part| (1..=PART_NUMBER_MAX).contains(&part.number));
    if named.is_empty() || !in_range || !named.is_sorted_by(|a, b| a.number < b.number) {
        return Err(ObjectError::InvalidPartOrder);
    }
    let mut chosen = Vec::with_capacity(named.len());
    for part in named {
        chosen.push(stored_part(stored, part)?);
    }
    for part in &chosen[..chosen.len() - 1] {
        if part.metax.size < PART_BYTES_MIN {
            let (number, bytes) = (part.number, part.metax.size);
            return Err(ObjectError::PartTooSmall { number, bytes });
        }
    }
    let size: u64 = chosen.iter().map(|part| part.metax.size).sum();
    if size > OBJECT_BYTES_MAX {
        return Err(ObjectError::TooLarge { what: "the object", limit_bytes: OBJECT_BYTES_MAX });
    }
    if options.size.is_some_and(|expected| expected != size) {
        return Err(BodyError::Incomplete.into());
    }
    let checksum = checksum_of(upload, &chosen)?;
    if let Some((algorithm, expected)) = &options.checksum
        && !checksum
            .as_ref()
            .is_some_and(|made| made.algorithm == *algorithm && made.value == *expected)
    {
        return Err(BodyError::BadChecksum("checksum of the whole object").into());
    }
    let parts =
        chosen.iter().map(|part| PartRef { number: part.number, len: part.metax.size }).collect();
    Ok(Assembled { parts, size, etag: etag_of(&chosen), checksum })
}

fn stored_part<'a>(
    stored: &'a [ListedPart],
    named: &NamedPart,
) -> Result<&'a ListedPart, ObjectError> {
    let invalid = ObjectError::InvalidPart { number: named.number };
    let at = stored
        .binary_search_by_key(&named.number, |part| part.number)
        .map_err(|_| invalid.clone())?;
    let part = &stored[at];
    let checksum_holds = named.checksum.as_ref().is_none_or(|(algorithm, value)| {
        let has = part.metax.checksum.as_ref();
        has.is_some_and(|has| has.algorithm == *algorithm && has.value == *value)
    });
    if part.metax.etag.text() == named.etag && checksum_holds { Ok(part) } else { Err(invalid) }
}

fn etag_of(parts: &[&ListedPart]) -> ETag {
    let mut digest = md5::Md5::new();
    for part in parts {
        let (ETag::Md5(md5) | ETag::Parts(md5, _)) = &part.metax.etag;
        digest.update(md5);
    }
    ETag::Parts(digest.finalize().into(), parts.len() as u32)
}

/// The checksum that the upload chose; by default CRC-64/NVME of all bytes, if every part has one.
fn checksum_of(
    upload: &UploadRow,
    parts: &[&ListedPart],
) -> Result<Option<ObjectChecksum>, ObjectError> {
    let (algorithm, kind) =
        upload.checksum.unwrap_or((ChecksumAlgorithm::Crc64Nvme, ChecksumKind::FullObject));
    let mut values = Vec::with_capacity(parts.len());
    for part in parts {
        match part.metax.checksum.as_ref().filter(|checksum| checksum.algorithm == algorithm) {
            Some(checksum) => values.push((checksum.value.as_slice(), part.metax.size)),
            None if upload.checksum.is_none() => return Ok(None),
            None => return Err(ObjectError::InvalidPart { number: part.number }),
        }
    }
    Ok(Some(match kind {
        ChecksumKind::Composite => ObjectChecksum {
            algorithm,
            kind,
            value: hash(algorithm, &values.iter().map(|(v, _)| *v).collect::<Vec<_>>().concat()),
            parts: Some(parts.len() as u32),
        },
        ChecksumKind::FullObject => {
            ObjectChecksum { algorithm, kind, value: combine(algorithm, &values)?, parts: None }
        }
    }))
}

fn hash(algorithm: ChecksumAlgorithm, bytes: &[u8]) -> Vec<u8> {
    match crc::of(algorithm, bytes) {
        Some(crc) => crc,
        None if algorithm == ChecksumAlgorithm::Sha1 => sha1::Sha1::digest(bytes).to_vec(),
        None => sha2::Sha256::digest(bytes).to_vec(),
    }
}

/// CRC of all bytes from the CRCs and lengths of the parts.
fn combine(algorithm: ChecksumAlgorithm, parts: &[(&[u8], u64)]) -> Result<Vec<u8>, ObjectError> {
    let mut whole = crc::of(algorithm, b"")
        .ok_or(BodyError::BadChecksum("checksum type: SHA checksums of uploads are composite"))?;
    for (value, len) in parts {
        whole = crc::combined(algorithm, &whole, value, *len).expect("a CRC, as was seen above");
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use larder_types::{Attributes, HybridClock, Metax, ObjectKey, OpId, PgId, UploadId};

    use super::*;

    fn upload(checksum: Option<(ChecksumAlgorithm, ChecksumKind)>) -> UploadRow {
        UploadRow {
            upload: UploadId { pg: PgId(0), op: OpId::default() },
            key: ObjectKey::new("k").unwrap(),
            clock: HybridClock(0),
            attributes: Attributes::default(),
            checksum,
        }
    }

    fn part(number: u16, bytes: &[u8], algorithm: ChecksumAlgorithm) -> ListedPart {
        let metax = Metax {
            checksum: Some(ObjectChecksum {
                algorithm,
                kind: ChecksumKind::FullObject,
                value: hash(algorithm, bytes),
                parts: None,
            }),
            ..Metax::new(
                bytes.len() as u64,
                HybridClock(0),
                ETag::Md5(md5::Md5::digest(bytes).into()),
            )
        };
        ListedPart { number, metax }
    }

    fn named(parts: &[ListedPart]) -> CompleteOptions {
        let parts = parts
            .iter()
            .map(|part| NamedPart {
                number: part.number,
                etag: part.metax.etag.text(),
                checksum: None,
            })
            .collect();
        CompleteOptions { parts, ..CompleteOptions::default() }
    }

    #[test]
    fn a_crc_of_parts_is_the_crc_of_the_whole() {
        let big = vec![7u8; PART_BYTES_MIN as usize];
        for algorithm in
            [ChecksumAlgorithm::Crc32, ChecksumAlgorithm::Crc32c, ChecksumAlgorithm::Crc64Nvme]
        {
            let parts = [part(1, &big, algorithm), part(5, b"tail", algorithm)];
            let chosen = Some((algorithm, ChecksumKind::FullObject));
            let made = assemble(&upload(chosen), &parts, &named(&parts)).unwrap();
            let whole = [&big[..], b"tail"].concat();
            assert_eq!(made.checksum.unwrap().value, hash(algorithm, &whole));
            assert_eq!(made.size, whole.len() as u64);
        }
    }

    #[test]
    fn the_etag_is_the_md5_of_the_parts_md5s() {
        let parts = [part(1, b"only", ChecksumAlgorithm::Sha256)];
        let made = assemble(&upload(None), &parts, &named(&parts)).unwrap();
        let digest = md5::Md5::digest(md5::Md5::digest(b"only"));
        assert_eq!(made.etag, ETag::Parts(digest.into(), 1));
        assert_eq!(made.checksum, None, "no part has the default's checksum");
    }

    #[test]
    fn wrong_parts_are_refused() {
        let parts =
            [part(1, b"small", ChecksumAlgorithm::Sha1), part(2, b"last", ChecksumAlgorithm::Sha1)];
        let refuse = |options| assemble(&upload(None), &parts, &options).unwrap_err();
        assert_eq!(refuse(named(&parts)), ObjectError::PartTooSmall { number: 1, bytes: 5 });
        assert_eq!(refuse(CompleteOptions::default()), ObjectError::InvalidPartOrder);
        let mut reversed = named(&parts);
        reversed.parts.reverse();
        assert_eq!(refuse(reversed), ObjectError::InvalidPartOrder);
        let mut other = named(&parts[1..]);
        other.parts[0].etag = "0".repeat(32);
        assert_eq!(refuse(other), ObjectError::InvalidPart { number: 2 });
        let mut missing = named(&parts[1..]);
        missing.parts[0].number = 9;
        assert_eq!(refuse(missing), ObjectError::InvalidPart { number: 9 });
        let size = CompleteOptions { size: Some(5), ..named(&parts[1..]) };
        assert_eq!(refuse(size), ObjectError::Body(BodyError::Incomplete));
    }
}
