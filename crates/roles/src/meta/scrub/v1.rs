//! The file with the state of a server's scrub: `docs/formats/scrub.md`.

use larder_protocol::scrub::Scrub;
use larder_types::codec::CodecError;

use crate::meta::summed;

/// Encodes the file.
pub(super) fn encode_file(scrub: &Scrub) -> Vec<u8> {
    summed::encode_file(scrub)
}

/// Decodes the file.
pub(super) fn decode_file(bytes: &[u8]) -> Result<Scrub, CodecError> {
    summed::decode_file("the state of the scrub", bytes)
}

#[cfg(test)]
mod tests {
    use larder_protocol::scrub::Tally;
    use larder_types::PgId;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;
    use crate::meta::summed::SUM_BYTES;

    const GOLDEN: &str = "01e8070101d00f01a01f02000180f1040356616203f0a204010201d00fb81703f0a2040102017e0628c24a982dd1";

    fn scrub() -> Scrub {
        let mut scrub = Scrub::new(1000);
        let tally = Tally { right: 3, bytes: 70_000, bad: 1, unanswered: 2 };
        scrub.begin(2000, [PgId(1)].into(), 300);
        scrub.found(tally, None);
        scrub.end(3000);
        scrub.begin(4000, [PgId(0), PgId(1)].into(), 80_000);
        scrub.found(tally, Some(b"Vab".to_vec()));
        scrub
    }

    #[test]
    fn the_file_keeps_its_bytes() {
        let bytes = encode_file(&scrub());
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, GOLDEN, "bytes that another release wrote must be read");
        assert_eq!(decode_file(&bytes), Ok(scrub()));
    }

    #[test]
    fn a_file_that_is_damaged_or_newer_is_refused() {
        let bytes = encode_file(&scrub());
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            assert!(decode_file(&flipped).is_err(), "a bit of byte {at}");
        }
        assert!(decode_file(&bytes[..bytes.len() - 1]).is_err());
        assert!(decode_file(&[]).is_err());
        let mut newer = bytes[..bytes.len() - SUM_BYTES].to_vec();
        newer[0] = 9;
        newer.extend(xxh3_64(&newer).to_le_bytes());
        assert!(matches!(decode_file(&newer), Err(CodecError::Version { found: 9, .. })));
    }
}
