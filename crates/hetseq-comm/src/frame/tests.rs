//! Encoding round trips, and the rejection of every kind of invalid frame.

use proptest::prelude::*;

use super::*;

const ACCEPT: Accept = Accept::only(9, FRAME_LIMIT_BYTES);

fn bytes_of(frame: &Frame, generation: u64) -> Vec<u8> {
    let mut bytes = frame.header(generation).to_vec();
    bytes.extend_from_slice(&frame.payload);
    bytes
}

fn sample() -> Frame {
    Frame { kind: FrameKind::AllGatherBytes, last: true, sequence: 3, payload: Payload::new(b"hello".to_vec()) }
}

fn set_header_checksum(bytes: &mut [u8]) {
    let checksum = crc32c::crc32c(&bytes[..32]);
    bytes[32..36].copy_from_slice(&checksum.to_le_bytes());
}

fn rejected(bytes: &[u8]) -> FrameError {
    match read_frame(&mut &bytes[..], ACCEPT) {
        Err(ReadError::Frame(error)) => error,
        other => panic!("expected a rejected frame, got {other:?}"),
    }
}

#[test]
fn each_kind_of_invalid_frame_is_named() {
    let good = bytes_of(&sample(), 9);
    // A header with a valid checksum but another value.
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        set_header_checksum(&mut bytes);
        rejected(&bytes)
    };
    assert!(matches!(with(0, b'G'), FrameError::Magic { .. }));
    assert_eq!(with(4, 99), FrameError::Version { theirs: 99, ours: PROTOCOL });
    assert!(matches!(with(5, 99), FrameError::UnknownKind { kind: 99, .. }));
    assert!(matches!(with(7, 1), FrameError::UnknownKind { .. }));
    assert_eq!(with(8, 8), FrameError::Generation { theirs: 8, ours: 9 });
    assert!(matches!(with(28, 4), FrameError::Checksum { .. }));
    let mut empty = bytes_of(&Frame { payload: Payload::new(Vec::new()), ..sample() }, 9);
    empty[6] = 0;
    set_header_checksum(&mut empty);
    assert_eq!(rejected(&empty), FrameError::Empty);
    let mut damaged = good.clone();
    damaged[16] ^= 1;
    assert!(matches!(rejected(&damaged), FrameError::Checksum { .. }));
    let mut damaged = good.clone();
    damaged[HEADER_BYTES] = b'0';
    assert!(matches!(rejected(&damaged), FrameError::Checksum { .. }));
}

/// Ranks compare their builds only after a handshake, so both must be able to read it.
#[test]
fn a_changed_handshake_needs_a_new_protocol_number() {
    let messages = crate::rendezvous::fuzz_handshake::sample_messages().concat();
    let handshake = bytes_of(&Frame::control(FrameKind::Handshake, messages), 9);
    let found = (PROTOCOL, crc32c::crc32c(&handshake));
    assert_eq!(found, (9, 1_044_600_537), "the handshake has changed: raise PROTOCOL, and update both numbers here");
}

#[test]
fn a_length_above_the_limit_is_rejected_before_the_payload() {
    let mut bytes = bytes_of(&sample(), 9);
    bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    set_header_checksum(&mut bytes);
    // Only the header is there: reading the payload would give `Cut`.
    assert!(matches!(rejected(&bytes[..HEADER_BYTES]), FrameError::TooLarge { .. }));
    let small = Accept::only(9, 4);
    let good = bytes_of(&sample(), 9);
    let read = read_frame(&mut &good[..], small);
    assert!(matches!(read, Err(ReadError::Frame(FrameError::TooLarge { bytes: 5, .. }))));
}

#[test]
fn a_closed_stream_differs_from_a_cut_one() {
    assert!(matches!(read_frame(&mut &[][..], ACCEPT), Err(ReadError::Closed)));
    let good = bytes_of(&sample(), 9);
    for length in 1..good.len() {
        assert!(matches!(read_frame(&mut &good[..length], ACCEPT), Err(ReadError::Cut)));
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        kind in 0..FrameKind::ALL.len(), last: bool, sequence: u64, generation: u64,
        payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let last = last || payload.is_empty();
        let frame = Frame { kind: FrameKind::ALL[kind], last, sequence, payload: Payload::new(payload) };
        let mut bytes = bytes_of(&frame, generation);
        bytes.extend(b"the next frame");
        let mut rest = &bytes[..];
        let accept = Accept::only(generation, FRAME_LIMIT_BYTES);
        prop_assert_eq!(read_frame(&mut rest, accept).unwrap(), frame);
        prop_assert_eq!(rest, b"the next frame");
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read_frame(&mut &bytes[..], ACCEPT).is_err());
    }

    // Random bytes hardly ever pass the magic; damaged real frames reach the later checks.
    #[test]
    fn a_damaged_frame_is_rejected(at in 0usize..41, flip in 1u8..=255) {
        let mut bytes = bytes_of(&sample(), 9);
        bytes[at] ^= flip;
        prop_assert!(read_frame(&mut &bytes[..], ACCEPT).is_err());
    }
}
