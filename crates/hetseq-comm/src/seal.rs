//! Encryption of a connection: who does not know the secret can neither read what passes nor change it unnoticed.
//!
//! The Noise protocol `NNpsk0` (crate `snow`) with a key made from the shared secret: both sides draw fresh keys, so what
//! was recorded stays closed even to one who learns the secret later. What the connection is for (protocol version, run,
//! ranks, both nonces of the greeting) goes into the handshake, so a handshake for one purpose is of no use for another.
//! Afterwards bytes travel in records of up to 65,535 bytes,
//!
//! ```text
//! 0..2 bytes that follow, little-endian   2.. ciphertext and its 16-byte tag
//! ```
//!
//! whose nonces count up on both sides: a record that was changed, replayed, dropped or reordered does not open. It knows
//! neither frames nor deadlines. `rendezvous/greeting.rs` makes a [`Seal`]; `rendezvous/talk.rs` and `tcp.rs` use it.

use std::io::{Error, ErrorKind, Read, Write};
use std::sync::Arc;

use snow::{Builder, HandshakeState, StatelessTransportState};

use crate::frame::PROTOCOL;
use crate::secret::{Claim, Key};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The largest message that Noise allows.
const RECORD_LIMIT_BYTES: usize = 65_535;
const TAG_BYTES: usize = 16;
const PLAIN_LIMIT_BYTES: usize = RECORD_LIMIT_BYTES - TAG_BYTES;
/// Both handshake messages are shorter.
const HANDSHAKE_LIMIT_BYTES: usize = 256;

/// Both directions of a connection, once its handshake is done.
pub(crate) struct Seal {
    pub(crate) opener: Opener,
    pub(crate) sealer: Sealer,
}

/// The dialer's side of a handshake, waiting for the answer.
pub(crate) struct Offer(Box<HandshakeState>);

/// Begins a handshake: what to send, and what to do with the answer.
pub(crate) fn offer(key: &Key, claim: &Claim) -> Result<(Offer, Vec<u8>), Error> {
    let mut state = handshake(key, claim, |builder| builder.build_initiator())?;
    let message = message(&mut state)?;
    Ok((Offer(Box::new(state)), message))
}

impl Offer {
    /// Fails if the other side does not know the secret, or answers another handshake than ours.
    pub(crate) fn accept(mut self, answer: &[u8]) -> Result<Seal, Error> {
        self.0.read_message(answer, &mut [0; HANDSHAKE_LIMIT_BYTES]).map_err(failed)?;
        Seal::new(*self.0)
    }
}

/// Answers an offer: the seal, and what to send. Fails if the other side does not know the secret, or recorded an offer
/// that was for another occasion.
pub(crate) fn answer(key: &Key, claim: &Claim, offer: &[u8]) -> Result<(Seal, Vec<u8>), Error> {
    let mut state = handshake(key, claim, |builder| builder.build_responder())?;
    state.read_message(offer, &mut [0; HANDSHAKE_LIMIT_BYTES]).map_err(failed)?;
    let message = message(&mut state)?;
    Ok((Seal::new(state)?, message))
}

fn handshake(
    key: &Key,
    claim: &Claim,
    build: impl FnOnce(Builder<'_>) -> Result<HandshakeState, snow::Error>,
) -> Result<HandshakeState, Error> {
    let prologue = [b"hetseq seal v1".as_slice(), &[PROTOCOL], &claim.to_bytes()].concat();
    let psk = key.for_sealing();
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

impl Seal {
    fn new(state: HandshakeState) -> Result<Seal, Error> {
        let transport = Arc::new(state.into_stateless_transport_mode().map_err(failed)?);
        let opener =
            Opener { transport: transport.clone(), count: 0, record: Vec::new(), come: 0, plain: Vec::new(), taken: 0 };
        Ok(Seal { opener, sealer: Sealer { transport, count: 0, record: Vec::new() } })
    }
}

fn failed(error: snow::Error) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the encryption failed: {error}"))
}

/// Encrypts one direction.
pub(crate) struct Sealer {
    transport: Arc<StatelessTransportState>,
    count: u64,
    record: Vec<u8>,
}

impl Sealer {
    pub(crate) fn write(&mut self, to: &mut impl Write, plain: &[u8]) -> Result<(), Error> {
        for part in plain.chunks(PLAIN_LIMIT_BYTES) {
            self.record.resize(2 + part.len() + TAG_BYTES, 0);
            let length = self.transport.write_message(self.count, part, &mut self.record[2..]).map_err(failed)?;
            // Fits by the size of a part.
            self.record[..2].copy_from_slice(&(length as u16).to_le_bytes());
            self.count += 1;
            to.write_all(&self.record)?;
        }
        Ok(())
    }
}

/// Decrypts the other direction.
pub(crate) struct Opener {
    transport: Arc<StatelessTransportState>,
    count: u64,
    /// Its length and the record, of which `come` bytes are there: a socket that does not block may stop anywhere.
    record: Vec<u8>,
    come: usize,
    /// What was opened and does not all fit where it was asked for.
    plain: Vec<u8>,
    taken: usize,
}

impl Opener {
    /// How far it has come, to tell whether anything came at all: whole records, and bytes of the next.
    pub(crate) fn progress(&self) -> (u64, usize) {
        (self.count, self.come)
    }

    /// As [`Read::read`]. After an error nothing more can be read, unless the error is that nothing is there yet.
    pub(crate) fn read(&mut self, from: &mut impl Read, into: &mut [u8]) -> Result<usize, Error> {
        if into.is_empty() {
            return Ok(0);
        }
        while self.taken == self.plain.len() {
            let Some(length) = self.next_record(from)? else { return Ok(0) };
            if into.len() >= length {
                let opened = self.open_into(into)?;
                // An empty record is no end.
                if opened > 0 {
                    return Ok(opened);
                }
            } else {
                let mut plain = std::mem::take(&mut self.plain);
                plain.resize(length, 0);
                self.open_into(&mut plain)?;
                (self.plain, self.taken) = (plain, 0);
            }
        }
        let rest = &self.plain[self.taken..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Ok(count)
    }

    /// Reads a whole record; how much it holds, or `None` at the end of the stream.
    fn next_record(&mut self, from: &mut impl Read) -> Result<Option<usize>, Error> {
        loop {
            let length =
                self.record.first_chunk().filter(|_| self.come >= 2).map(|head| usize::from(u16::from_le_bytes(*head)));
            let plain = match length.map(|length| length.checked_sub(TAG_BYTES)) {
                Some(None) => return Err(Error::new(ErrorKind::InvalidData, "not an encrypted record")),
                Some(plain) => plain,
                None => None,
            };
            self.record.resize(2 + length.unwrap_or(0), 0);
            if plain.is_some() && self.come == self.record.len() {
                return Ok(plain);
            }
            match from.read(&mut self.record[self.come..]) {
                Ok(0) if self.come == 0 => return Ok(None),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.come += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn open_into(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let opened = self.transport.read_message(self.count, &self.record[2..], into).map_err(|_| {
            let what = "an encrypted record does not open: it was changed, lost or sent twice on the way";
            Error::new(ErrorKind::InvalidData, what)
        })?;
        self.count += 1;
        self.come = 0;
        Ok(opened)
    }
}

/// What comes from the line, decrypted if need be.
pub(crate) struct Opened<'a, R> {
    pub(crate) from: R,
    pub(crate) opener: Option<&'a mut Opener>,
}

impl<R: Read> Read for Opened<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        match &mut self.opener {
            Some(opener) => opener.read(&mut self.from, into),
            None => self.from.read(into),
        }
    }
}

#[cfg(test)]
mod tests;
