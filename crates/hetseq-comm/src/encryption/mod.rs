//! Encryption of a connection: without the secret, traffic can neither be read nor changed
//! unnoticed.
//!
//! It is the Noise protocol `NNpsk0` (crate `snow`) with a key derived from the shared secret. Both
//! sides draw ephemeral keys, so recorded traffic stays secret even if the secret leaks later. The
//! purpose of the connection (protocol version, run, ranks, both nonces of the authentication) is
//! part of the handshake, so a handshake for one purpose is invalid for another. After that, bytes
//! are sent in records of up to 65,535 bytes,
//!
//! ```text
//! 0..2 length of the rest, little-endian   2.. ciphertext and its 16-byte tag
//! ```
//!
//! whose nonces are counters on both sides: a record that was changed, replayed, dropped or
//! reordered does not decrypt. This module knows neither frames nor deadlines. `rendezvous/auth.rs`
//! creates an [`Encryption`]; `rendezvous/handshake.rs` and `stream/` use it.

use std::io::{Error, ErrorKind, Read, Write};
use std::sync::Arc;

use snow::{Builder, HandshakeState, StatelessTransportState};

use crate::frame::PROTOCOL;
use crate::secret::{Claim, SecretKey};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The largest message that Noise allows.
const RECORD_LIMIT_BYTES: usize = 65_535;
const TAG_BYTES: usize = 16;
const PLAIN_LIMIT_BYTES: usize = RECORD_LIMIT_BYTES - TAG_BYTES;
/// The upper limit of both handshake messages.
const HANDSHAKE_LIMIT_BYTES: usize = 256;

/// Both directions of an encrypted connection.
pub(crate) struct Encryption {
    pub(crate) decryptor: Decryptor,
    pub(crate) encryptor: Encryptor,
}

/// The dialer's side of a handshake that waits for the answer.
pub(crate) struct EncryptionOffer(Box<HandshakeState>);

/// Starts a handshake; returns the state and the message to send.
pub(crate) fn offer(key: &SecretKey, claim: &Claim) -> Result<(EncryptionOffer, Vec<u8>), Error> {
    let mut state = handshake(key, claim, |builder| builder.build_initiator())?;
    let message = message(&mut state)?;
    Ok((EncryptionOffer(Box::new(state)), message))
}

impl EncryptionOffer {
    /// Completes the handshake. Fails if the other side does not know the secret, or answers
    /// another handshake.
    pub(crate) fn accept(mut self, answer: &[u8]) -> Result<Encryption, Error> {
        self.0.read_message(answer, &mut [0; HANDSHAKE_LIMIT_BYTES]).map_err(failed)?;
        Encryption::new(*self.0)
    }
}

/// Answers an offer; returns the encryption and the message to send. Fails if the other side does
/// not know the secret, or replays an offer of another connection.
pub(crate) fn answer(key: &SecretKey, claim: &Claim, offer: &[u8]) -> Result<(Encryption, Vec<u8>), Error> {
    let mut state = handshake(key, claim, |builder| builder.build_responder())?;
    state.read_message(offer, &mut [0; HANDSHAKE_LIMIT_BYTES]).map_err(failed)?;
    let message = message(&mut state)?;
    Ok((Encryption::new(state)?, message))
}

fn handshake(
    key: &SecretKey,
    claim: &Claim,
    build: impl FnOnce(Builder<'_>) -> Result<HandshakeState, snow::Error>,
) -> Result<HandshakeState, Error> {
    let prologue = [b"hetseq encryption v1".as_slice(), &[PROTOCOL], &claim.to_bytes()].concat();
    let psk = key.for_encryption();
    let params = PATTERN.parse().map_err(failed)?;
    let builder = Builder::new(params).prologue(&prologue).and_then(|builder| builder.psk(0, &psk)).map_err(failed)?;
    build(builder).map_err(failed)
}

fn message(state: &mut HandshakeState) -> Result<Vec<u8>, Error> {
    let mut message = vec![0; HANDSHAKE_LIMIT_BYTES];
    let length = state.write_message(&[], &mut message).map_err(failed)?;
    message.truncate(length);
    Ok(message)
}

impl Encryption {
    fn new(state: HandshakeState) -> Result<Encryption, Error> {
        Ok(Encryption::of(Arc::new(state.into_stateless_transport_mode().map_err(failed)?)))
    }

    fn of(transport: Arc<StatelessTransportState>) -> Encryption {
        let decryptor = Decryptor {
            transport: transport.clone(),
            count: 0,
            record: Vec::new(),
            received: 0,
            plain: Vec::new(),
            taken: 0,
        };
        Encryption { decryptor, encryptor: Encryptor { transport, count: 0, record: Vec::new() } }
    }
}

fn failed(error: snow::Error) -> Error {
    Error::new(ErrorKind::InvalidData, format!("encryption failed: {error}"))
}

/// Encrypts the outgoing direction.
pub(crate) struct Encryptor {
    transport: Arc<StatelessTransportState>,
    count: u64,
    record: Vec<u8>,
}

impl Encryptor {
    pub(crate) fn write(&mut self, to: &mut impl Write, plain: &[u8]) -> Result<(), Error> {
        for part in plain.chunks(PLAIN_LIMIT_BYTES) {
            self.record.resize(2 + part.len() + TAG_BYTES, 0);
            let length = self.transport.write_message(self.count, part, &mut self.record[2..]).map_err(failed)?;
            // Fits, because a part has a limited size.
            self.record[..2].copy_from_slice(&(length as u16).to_le_bytes());
            self.count += 1;
            to.write_all(&self.record)?;
        }
        Ok(())
    }
}

/// Decrypts the incoming direction.
pub(crate) struct Decryptor {
    transport: Arc<StatelessTransportState>,
    count: u64,
    /// The length and the record, of which `received` bytes are there: a non-blocking socket may
    /// stop anywhere.
    record: Vec<u8>,
    received: usize,
    /// Decrypted bytes that did not fit into the caller's buffer, and how many of them are taken.
    plain: Vec<u8>,
    taken: usize,
}

impl Decryptor {
    /// Returns the records completed and the bytes of the next one, to detect whether anything
    /// arrived.
    pub(crate) fn progress(&self) -> (u64, usize) {
        (self.count, self.received)
    }

    /// Like [`Read::read`]. After an error nothing more can be read, unless the error is
    /// `WouldBlock` or a timeout.
    pub(crate) fn read(&mut self, from: &mut impl Read, into: &mut [u8]) -> Result<usize, Error> {
        if into.is_empty() {
            return Ok(0);
        }
        while self.taken == self.plain.len() {
            let Some(length) = self.next_record(from)? else { return Ok(0) };
            if into.len() >= length {
                let decrypted = self.decrypt_into(into)?;
                // An empty record is not the end.
                if decrypted > 0 {
                    return Ok(decrypted);
                }
            } else {
                let mut plain = std::mem::take(&mut self.plain);
                plain.resize(length, 0);
                self.decrypt_into(&mut plain)?;
                (self.plain, self.taken) = (plain, 0);
            }
        }
        let rest = &self.plain[self.taken..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Ok(count)
    }

    /// Reads a whole record; returns the size of its content, or `None` at the end of the stream.
    fn next_record(&mut self, from: &mut impl Read) -> Result<Option<usize>, Error> {
        loop {
            let length = self
                .record
                .first_chunk()
                .filter(|_| self.received >= 2)
                .map(|head| usize::from(u16::from_le_bytes(*head)));
            let plain = match length.map(|length| length.checked_sub(TAG_BYTES)) {
                Some(None) => return Err(Error::new(ErrorKind::InvalidData, "not an encrypted record")),
                Some(plain) => plain,
                None => None,
            };
            self.record.resize(2 + length.unwrap_or(0), 0);
            if plain.is_some() && self.received == self.record.len() {
                return Ok(plain);
            }
            match from.read(&mut self.record[self.received..]) {
                Ok(0) if self.received == 0 => return Ok(None),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn decrypt_into(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let decrypted = self.transport.read_message(self.count, &self.record[2..], into).map_err(|_| {
            let what = "an encrypted record cannot be decrypted: it was changed, lost or sent twice in transit";
            Error::new(ErrorKind::InvalidData, what)
        })?;
        self.count += 1;
        self.received = 0;
        Ok(decrypted)
    }
}

/// A reader that decrypts if the connection is encrypted.
pub(crate) struct DecryptedReader<'a, R> {
    pub(crate) from: R,
    pub(crate) decryptor: Option<&'a mut Decryptor>,
}

impl<R: Read> Read for DecryptedReader<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        match &mut self.decryptor {
            Some(decryptor) => decryptor.read(&mut self.from, into),
            None => self.from.read(into),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
