//! Encrypted data decrypts to itself; tampered data does not decrypt.

use proptest::prelude::*;

use super::*;

fn claim() -> Claim {
    Claim { generation: 1, dialer_rank: 2, answerer_rank: 0, dialer_nonce: [3; 32], answerer_nonce: [4; 32] }
}

/// The dialer and the answerer.
fn encrypted_pair() -> (Encryption, Encryption) {
    let key = SecretKey::new("squirrel");
    let (offer, message) = offer(&key, &claim()).unwrap();
    let (theirs, message) = answer(&key, &claim(), &message).unwrap();
    (offer.accept(&message).unwrap(), theirs)
}

/// Both ends of a connection, to be used for many inputs: the handshake takes longer than a test
/// of one input.
pub(crate) struct EncryptedEnds([Arc<StatelessTransportState>; 2]);

impl EncryptedEnds {
    pub(crate) fn new() -> EncryptedEnds {
        let (dialer, answerer) = encrypted_pair();
        EncryptedEnds([dialer, answerer].map(|end| end.encryptor.transport))
    }

    /// Returns both ends, each at its first record.
    pub(crate) fn connect(&self) -> [Encryption; 2] {
        self.0.each_ref().map(|transport| Encryption::of(transport.clone()))
    }
}

/// Encrypts each piece in its own records.
fn encrypted(encryptor: &mut Encryptor, pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let encrypt = |piece: &&[u8]| {
        let mut bytes = Vec::new();
        encryptor.write(&mut bytes, piece).unwrap();
        bytes
    };
    pieces.iter().map(encrypt).collect()
}

/// Returns everything that decrypts, and how it ended.
fn decrypted(mut decryptor: Decryptor, bytes: &[u8]) -> (Vec<u8>, Result<(), ErrorKind>) {
    let mut reader = DecryptedReader { from: bytes, decryptor: Some(&mut decryptor) };
    let mut plain = Vec::new();
    let end = reader.read_to_end(&mut plain);
    (plain, end.map(|_| ()).map_err(|error| error.kind()))
}

#[test]
fn both_directions_carry_pieces_of_any_size() {
    let (mut dialer, mut answerer) = encrypted_pair();
    let large: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    for (from, to) in [(&mut dialer.encryptor, answerer.decryptor), (&mut answerer.encryptor, dialer.decryptor)] {
        let pieces: [&[u8]; 4] = [b"a", &large, b"", b"end"];
        let stream = encrypted(from, &pieces).concat();
        assert!(!stream.windows(16).any(|window| window == &large[..16]), "it is not encrypted");
        assert_eq!(decrypted(to, &stream), (pieces.concat(), Ok(())));
    }
}

#[test]
fn a_small_buffer_gets_everything_in_pieces() {
    let (mut dialer, mut answerer) = encrypted_pair();
    let stream = encrypted(&mut dialer.encryptor, &[b"squirrels", b"and", b"badgers"]).concat();
    let (mut from, mut plain) = (&stream[..], Vec::<u8>::new());
    loop {
        let mut some = [0; 4];
        match answerer.decryptor.read(&mut from, &mut some).unwrap() {
            0 => break,
            count => plain.extend(&some[..count]),
        }
    }
    assert_eq!(plain, b"squirrelsandbadgers");
}

#[test]
fn another_secret_or_purpose_gives_no_encryption() {
    let (right, wrong) = (SecretKey::new("right"), SecretKey::new("wrong"));
    let (first, message) = offer(&right, &claim()).unwrap();
    assert!(answer(&wrong, &claim(), &message).is_err());
    for other in [
        Claim { generation: 2, ..claim() },
        Claim { dialer_rank: 3, ..claim() },
        Claim { answerer_rank: 1, ..claim() },
        Claim { dialer_nonce: [5; 32], ..claim() },
        // So a recorded offer is useless for an answerer that draws a new nonce per connection.
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
fn records_that_are_dropped_repeated_swapped_or_cut_do_not_decrypt() {
    let after_tampering = |tamper: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let (mut dialer, answerer) = encrypted_pair();
        let mut records = encrypted(&mut dialer.encryptor, &[b"one", b"two", b"three"]);
        tamper(&mut records);
        decrypted(answerer.decryptor, &records.concat())
    };
    let broken = Err(ErrorKind::InvalidData);
    assert_eq!(after_tampering(&|records| drop(records.remove(1))), (b"one".to_vec(), broken));
    assert_eq!(after_tampering(&|records| records.insert(1, records[0].clone())), (b"one".to_vec(), broken));
    assert_eq!(after_tampering(&|records| records.swap(1, 2)), (b"one".to_vec(), broken));
    let cut = |records: &mut Vec<Vec<u8>>| {
        records[1].pop();
        records.truncate(2);
    };
    assert_eq!(after_tampering(&cut), (b"one".to_vec(), Err(ErrorKind::UnexpectedEof)));
    // Its own records sent back.
    let (mut dialer, _) = encrypted_pair();
    let own = encrypted(&mut dialer.encryptor, &[b"one"]).concat();
    assert_eq!(decrypted(dialer.decryptor, &own), (Vec::new(), broken));
}

#[test]
fn an_invalid_record_is_an_error() {
    for bytes in [&[5, 0, 1, 2, 3, 4, 5][..], b"HSQF a plain frame instead of an encrypted one", &[0xff]] {
        let (plain, end) = decrypted(encrypted_pair().0.decryptor, bytes);
        assert!(plain.is_empty() && end.is_err(), "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn a_changed_bit_anywhere_ends_the_stream_at_that_record(at in 0usize..90, bit in 0u8..8) {
        let (mut dialer, answerer) = encrypted_pair();
        let records = encrypted(&mut dialer.encryptor, &[b"squirrel", b"badger", b"hedgehog"]);
        let mut stream = records.concat();
        let at = at % stream.len();
        stream[at] ^= 1 << bit;
        let (plain, end) = decrypted(answerer.decryptor, &stream);
        let whole = records.iter().scan(0, |sum, record| { *sum += record.len(); Some(*sum) });
        let intact = whole.take_while(|end| *end <= at).count();
        prop_assert_eq!(plain, [&b"squirrel"[..], b"badger", b"hedgehog"][..intact].concat());
        prop_assert!(end.is_err());
    }
}
