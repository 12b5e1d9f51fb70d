//! What is sealed comes back; what somebody meddled with does not.

use proptest::prelude::*;

use super::*;

fn claim() -> Claim {
    Claim { generation: 1, dialer_rank: 2, answerer_rank: 0, dialer_nonce: [3; 32], answerer_nonce: [4; 32] }
}

/// Dialer and answerer.
fn sealed_pair() -> (Seal, Seal) {
    let key = Key::new("squirrel");
    let (offer, message) = offer(&key, &claim()).unwrap();
    let (theirs, message) = answer(&key, &claim(), &message).unwrap();
    (offer.accept(&message).unwrap(), theirs)
}

/// Each piece in records of its own.
fn sealed(sealer: &mut Sealer, pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let seal = |piece: &&[u8]| {
        let mut bytes = Vec::new();
        sealer.write(&mut bytes, piece).unwrap();
        bytes
    };
    pieces.iter().map(seal).collect()
}

/// All that opens, and how it ended.
fn opened(mut opener: Opener, bytes: &[u8]) -> (Vec<u8>, Result<(), ErrorKind>) {
    let mut reader = Opened { from: bytes, opener: Some(&mut opener) };
    let mut plain = Vec::new();
    let end = reader.read_to_end(&mut plain);
    (plain, end.map(|_| ()).map_err(|error| error.kind()))
}

#[test]
fn both_directions_carry_pieces_of_any_size() {
    let (mut dialer, mut answerer) = sealed_pair();
    let large: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    for (from, to) in [(&mut dialer.sealer, answerer.opener), (&mut answerer.sealer, dialer.opener)] {
        let pieces: [&[u8]; 4] = [b"a", &large, b"", b"end"];
        let stream = sealed(from, &pieces).concat();
        assert!(!stream.windows(16).any(|window| window == &large[..16]), "it is not encrypted");
        assert_eq!(opened(to, &stream), (pieces.concat(), Ok(())));
    }
}

#[test]
fn a_small_buffer_gets_all_of_it_bit_by_bit() {
    let (mut dialer, mut answerer) = sealed_pair();
    let stream = sealed(&mut dialer.sealer, &[b"squirrels", b"and", b"badgers"]).concat();
    let (mut from, mut plain) = (&stream[..], Vec::<u8>::new());
    loop {
        let mut some = [0; 4];
        match answerer.opener.read(&mut from, &mut some).unwrap() {
            0 => break,
            count => plain.extend(&some[..count]),
        }
    }
    assert_eq!(plain, b"squirrelsandbadgers");
}

#[test]
fn another_secret_or_purpose_gives_no_seal() {
    let (right, wrong) = (Key::new("right"), Key::new("wrong"));
    let (first, message) = offer(&right, &claim()).unwrap();
    assert!(answer(&wrong, &claim(), &message).is_err());
    for other in [
        Claim { generation: 2, ..claim() },
        Claim { dialer_rank: 3, ..claim() },
        Claim { answerer_rank: 1, ..claim() },
        Claim { dialer_nonce: [5; 32], ..claim() },
        // So a recorded offer is of no use at a door that draws a nonce for each who comes.
        Claim { answerer_nonce: [5; 32], ..claim() },
    ] {
        assert!(answer(&right, &other, &message).is_err(), "{other:?}");
    }
    // An answer to another offer.
    let (_, second) = offer(&right, &claim()).unwrap();
    let (_, reply) = answer(&right, &claim(), &second).unwrap();
    assert!(first.accept(&reply).is_err());
}

#[test]
fn records_that_are_dropped_repeated_swapped_or_cut_do_not_open() {
    let meddled = |meddle: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let (mut dialer, answerer) = sealed_pair();
        let mut records = sealed(&mut dialer.sealer, &[b"one", b"two", b"three"]);
        meddle(&mut records);
        opened(answerer.opener, &records.concat())
    };
    let broken = Err(ErrorKind::InvalidData);
    assert_eq!(meddled(&|records| drop(records.remove(1))), (b"one".to_vec(), broken));
    assert_eq!(meddled(&|records| records.insert(1, records[0].clone())), (b"one".to_vec(), broken));
    assert_eq!(meddled(&|records| records.swap(1, 2)), (b"one".to_vec(), broken));
    let cut = |records: &mut Vec<Vec<u8>>| {
        records[1].pop();
        records.truncate(2);
    };
    assert_eq!(meddled(&cut), (b"one".to_vec(), Err(ErrorKind::UnexpectedEof)));
    // One's own words sent back.
    let (mut dialer, _) = sealed_pair();
    let own = sealed(&mut dialer.sealer, &[b"one"]).concat();
    assert_eq!(opened(dialer.opener, &own), (Vec::new(), broken));
}

#[test]
fn what_is_no_record_is_an_error() {
    for bytes in [&[5, 0, 1, 2, 3, 4, 5][..], b"HSQF a frame in clear, where a sealed one is due", &[0xff]] {
        let (plain, end) = opened(sealed_pair().0.opener, bytes);
        assert!(plain.is_empty() && end.is_err(), "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn a_changed_bit_anywhere_ends_the_stream_at_that_record(at in 0usize..90, bit in 0u8..8) {
        let (mut dialer, answerer) = sealed_pair();
        let records = sealed(&mut dialer.sealer, &[b"squirrel", b"badger", b"hedgehog"]);
        let mut stream = records.concat();
        let at = at % stream.len();
        stream[at] ^= 1 << bit;
        let (plain, end) = opened(answerer.opener, &stream);
        let whole = records.iter().scan(0, |sum, record| { *sum += record.len(); Some(*sum) });
        let intact = whole.take_while(|end| *end <= at).count();
        prop_assert_eq!(plain, [&b"squirrel"[..], b"badger", b"hedgehog"][..intact].concat());
        prop_assert!(end.is_err());
    }
}
