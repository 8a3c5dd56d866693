use proptest::prelude::*;

use super::*;
use crate::limits::READ_BYTES;
use crate::receive::Receiver;

fn bytes_of(frame: &Outgoing) -> Vec<u8> {
    frame.slices().concat()
}

fn addressed(kind: Kind, body: &str, payload: &'static [u8], number: u64) -> Outgoing {
    let frame = Outgoing::new(kind, &body, Bytes::from_static(payload)).unwrap();
    let mut frame = frame.numbered(number);
    frame.address(1);
    frame
}

fn received(receiver: &mut Receiver, bytes: &[u8]) -> Result<Vec<Frame>, FrameError> {
    let mut frames = Vec::new();
    for part in bytes.chunks(READ_BYTES) {
        receiver.room().extend_from_slice(part);
        while let Some(frame) = receiver.frame()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn open() -> Receiver {
    let mut receiver = Receiver::new();
    receiver.agreed(Bounds::agreed(1));
    receiver
}

/// The bytes of `docs/formats/rpc.md`.
#[test]
fn a_frame_is_written_as_it_always_was() {
    let golden = include_str!("../../tests/golden/frame.hex");
    let frame = addressed(Kind::Request, "golden", b"payload", 0x0102);
    let hex: String = bytes_of(&frame).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.split_whitespace().collect::<String>());
}

#[test]
fn a_cancel_is_written_as_it_always_was() {
    let golden = include_str!("../../tests/golden/cancel.hex");
    let mut frame = Outgoing::bare(Kind::Cancel, Status::Done).numbered(0x0102);
    frame.address(4);
    let hex: String = bytes_of(&frame).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.split_whitespace().collect::<String>());
}

#[test]
fn frames_are_received_whole_wherever_the_bytes_are_cut() {
    let first = bytes_of(&addressed(Kind::Request, "first", b"with a payload", 1));
    let second = bytes_of(&addressed(Kind::Message, "second", b"", 0));
    let bytes = [first, second].concat();
    for cut in 0..bytes.len() {
        let mut receiver = open();
        let mut frames = received(&mut receiver, &bytes[..cut]).unwrap();
        frames.extend(received(&mut receiver, &bytes[cut..]).unwrap());
        let [first, second] = <[Frame; 2]>::try_from(frames).unwrap();
        assert_eq!(first.header.number, 1);
        assert_eq!(first.decode::<String>().unwrap(), "first");
        assert_eq!(&first.into_payload()[..], b"with a payload");
        assert_eq!(second.header.kind, Kind::Message);
        assert!(second.into_payload().is_empty());
    }
}

#[test]
fn a_payload_of_the_largest_length_is_a_slice_of_what_was_read() {
    let payload = Bytes::from(vec![7; PAYLOAD_BYTES_MAX]);
    let mut frame = Outgoing::new(Kind::Answer, &(), payload.clone()).unwrap();
    frame.address(1);
    let frames = received(&mut open(), &bytes_of(&frame)).unwrap();
    let [frame] = <[Frame; 1]>::try_from(frames).unwrap();
    assert_eq!(frame.into_payload(), payload);
}

#[test]
fn what_is_too_long_is_refused_at_both_ends() {
    let long = Bytes::from(vec![0; PAYLOAD_BYTES_MAX + 1]);
    assert!(matches!(Outgoing::new(Kind::Request, &(), long), Err(FrameError::TooLong { .. })));
    let body = "x".repeat(BODY_BYTES_MAX);
    assert!(Outgoing::new(Kind::Request, &body, Bytes::new()).is_err());

    let header = |body_len, payload_len| Header {
        version: 1,
        kind: Kind::Request,
        status: Status::Done,
        number: 1,
        body_len,
        payload_len,
        body_sum: 0,
    };
    let largest = (BODY_BYTES_MAX as u32, PAYLOAD_BYTES_MAX as u32);
    for (body, payload) in [(largest.0 + 1, 0), (0, largest.1 + 1), (u32::MAX, u32::MAX)] {
        let refused = received(&mut open(), &header(body, payload).encode());
        assert_eq!(refused.unwrap_err(), FrameError::TooLong { body, payload });
    }
    // Before the hellos a frame of any size to speak of is refused.
    let early = received(&mut Receiver::new(), &header(HELLO_BYTES_MAX as u32 + 1, 0).encode());
    assert!(matches!(early, Err(FrameError::TooLong { .. })));
}

#[test]
fn a_length_that_is_only_named_makes_nothing_be_allocated_beyond_the_bound() {
    let mut receiver = open();
    let frame = addressed(Kind::Request, "x", b"", 1);
    let mut header = *frame.header();
    header.payload_len = PAYLOAD_BYTES_MAX as u32;
    received(&mut receiver, &header.encode()).unwrap();
    let room = receiver.room().capacity();
    assert!(room <= 2 * (BODY_BYTES_MAX + PAYLOAD_BYTES_MAX + READ_BYTES), "{room}");
}

#[test]
fn frames_of_another_version_are_refused_except_goodbye() {
    let mut frame = addressed(Kind::Request, "x", b"", 1);
    frame.address(2);
    assert_eq!(received(&mut open(), &bytes_of(&frame)).unwrap_err(), FrameError::Version(2));
    let mut frame = addressed(Kind::Goodbye, "x", b"", 0);
    frame.address(2);
    assert_eq!(received(&mut open(), &bytes_of(&frame)).unwrap().len(), 1);
}

#[test]
fn a_body_with_bytes_left_over_is_not_decoded() {
    let frames = received(&mut open(), &bytes_of(&addressed(Kind::Request, "abc", b"", 1)));
    assert_eq!(frames.unwrap()[0].decode::<u8>(), Err(FrameError::Body));
}

proptest! {
    #[test]
    fn random_bytes_are_refused_or_awaited(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut receiver = open();
        match received(&mut receiver, &bytes) {
            Ok(frames) => prop_assert!(frames.is_empty()),
            Err(error) => prop_assert_ne!(error, FrameError::Body),
        }
    }

    #[test]
    fn a_changed_byte_never_goes_unnoticed_in_header_or_body(
        at in 0_usize..HEADER_BYTES + 8,
        by in 1_u8..,
    ) {
        let frame = addressed(Kind::Request, "mutated", b"payload", 3);
        let mut bytes = bytes_of(&frame);
        bytes[at] ^= by;
        prop_assert!(received(&mut open(), &bytes).is_err());
    }

    #[test]
    fn a_header_with_a_valid_checksum_and_wrong_content_is_refused_or_awaited(
        kind in any::<u8>(),
        status in any::<u8>(),
        body_len in any::<u32>(),
        payload_len in any::<u32>(),
        body_sum in any::<u64>(),
    ) {
        let header = Header {
            version: 1, kind: Kind::Request, status: Status::Done, number: 0,
            body_len, payload_len, body_sum,
        };
        let mut bytes = header.encode();
        (bytes[3], bytes[4]) = (kind, status);
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..32]);
        bytes[32..].copy_from_slice(&sum.to_le_bytes());
        let mut receiver = open();
        let followed = [&bytes[..], &[0; 300]].concat();
        drop(received(&mut receiver, &followed));
        prop_assert!(
            receiver.room().capacity() <= 2 * (BODY_BYTES_MAX + PAYLOAD_BYTES_MAX + READ_BYTES)
        );
    }
}
