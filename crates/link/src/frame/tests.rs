use larder_protocol::region::{Name, Slot};
use larder_types::{BucketId, ObjectKey};
use proptest::prelude::*;

use super::*;

fn fetched(key: &str, bytes: u64) -> Fetched {
    let name = Name { bucket: BucketId(1), key: ObjectKey::new(key).unwrap(), slot: Slot::Null };
    Fetched { name, entry: None, bytes, is_withheld: false }
}

/// Splits a stream that arrives in these pieces.
fn apart(pieces: &[Bytes]) -> Result<(Vec<(Fetched, u64)>, bool), String> {
    let (mut frames, mut all) = (Unframer::default(), Vec::<(Fetched, u64)>::new());
    for piece in pieces {
        frames.push(piece.clone());
        loop {
            while let Some(bytes) = frames.bytes() {
                all.last_mut().unwrap().1 += bytes.len() as u64;
            }
            match frames.entry()? {
                Some(fetched) => all.push((fetched, 0)),
                None => break,
            }
        }
    }
    Ok((all, frames.is_between()))
}

proptest! {
    #[test]
    fn a_stream_is_the_same_however_it_is_cut(
        lens in proptest::collection::vec(0..300_u64, 1..6),
        mut cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        lost in 0..3_usize,
    ) {
        let mut stream = Vec::new();
        for (n, len) in lens.iter().enumerate() {
            stream.extend(head(&fetched(&format!("key-{n}"), *len)).unwrap());
            stream.extend(vec![7; *len as usize]);
        }
        let whole = stream.len();
        stream.truncate(whole - lost);
        let stream = Bytes::from(stream);
        cuts.sort_by_key(|cut| cut.index(stream.len()));
        let mut at = 0;
        let mut pieces = Vec::new();
        for end in cuts.iter().map(|cut| cut.index(stream.len())).chain([stream.len()]) {
            pieces.push(stream.slice(at..end));
            at = end;
        }
        let (all, is_whole) = apart(&pieces).unwrap();
        prop_assert_eq!(is_whole, lost == 0);
        if lost == 0 {
            let came: Vec<_> = all.iter().map(|(fetched, len)| (fetched.bytes, *len)).collect();
            prop_assert_eq!(came, lens.iter().map(|len| (*len, *len)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn hostile_frames_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), len in 0..64_u8) {
        let _any = apart(&[bytes.clone().into()]);
        let framed = [&[len, 0, 0, 0, 1], &bytes[..]].concat();
        let _any = apart(&[framed.into()]);
    }
}

#[test]
fn a_head_that_is_too_long_is_refused_before_it_arrives() {
    let len = (FETCHED_BYTES_MAX as u32 + 1).to_le_bytes();
    assert!(apart(&[Bytes::copy_from_slice(&len)]).is_err());
}
