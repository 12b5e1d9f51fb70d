//! Authentication, the first exchange on every new connection: which rank, which group, and proof
//! that both sides know the secret.
//!
//! Both sides first send an auth request in clear, so that two sides that do not match can report
//! the reason. Then each proves that it knows the secret, either by hashes over both requests or by
//! a key exchange after which everything is encrypted (`encryption/`). Joining (answered by rank 0)
//! and connections between ranks use the same exchange. Nothing that a peer sends is acted upon
//! before this has succeeded, and until then its messages must be small.

use super::handshake::{AuthRequest, Handshake, HandshakeError, Message, unexpected};
use super::refusal::Refusal;
use crate::encryption;
use crate::frame::FrameError;
use crate::secret::{Claim, Credentials, Nonce, Role, SecretKey, SecretKind, random};

/// The generation of a dialer that does not know the group.
pub(super) const UNKNOWN: u64 = 0;

/// This side of an authentication.
pub(super) struct LocalParty<'a> {
    pub(super) rank: Option<usize>,
    pub(super) generation: u64,
    pub(super) credentials: &'a Credentials,
    pub(super) encrypt: bool,
}

/// Authenticates as the dialing side; `expected_rank` is the rank that should answer.
pub(super) fn dial(
    handshake: &mut Handshake,
    local: &LocalParty<'_>,
    expected_rank: usize,
) -> Result<(), HandshakeError> {
    let requests = exchange_requests(handshake, local, expected_rank)?;
    prove(handshake, local, requests)
}

/// The auth requests of both sides, as the dialer sees them.
pub(super) struct ExchangedRequests {
    nonce: Nonce,
    theirs: AuthRequest,
}

/// The first half of [`dial`]. It does not need the secret itself: a dialer may read it from a file
/// after this, when the other side certainly has it.
pub(super) fn exchange_requests(
    handshake: &mut Handshake,
    local: &LocalParty<'_>,
    expected_rank: usize,
) -> Result<ExchangedRequests, HandshakeError> {
    let nonce = random().map_err(HandshakeError::Io)?;
    handshake.send(&Message::AuthRequest(local.auth_request(nonce)))?;
    let theirs = match handshake.receive()? {
        Message::AuthRequest(request) => request,
        other => return Err(unexpected("auth request", &other)),
    };
    if theirs.generation != local.generation || theirs.rank != Some(expected_rank as u64) {
        return Err(HandshakeError::WeRefused(Refusal::OtherGroup));
    }
    if theirs.encrypt != local.encrypt {
        return Err(HandshakeError::WeRefused(Refusal::Encryption { dialer: local.encrypt }));
    }
    if theirs.secret != local.credentials.kind() {
        let (dialer, answerer) = (local.credentials.kind(), theirs.secret);
        return Err(HandshakeError::WeRefused(Refusal::SecretKind { dialer, answerer }));
    }
    Ok(ExchangedRequests { nonce, theirs })
}

/// The second half of [`dial`]: proves that this side knows the secret, and requires it of the other.
pub(super) fn prove(
    handshake: &mut Handshake,
    local: &LocalParty<'_>,
    requests: ExchangedRequests,
) -> Result<(), HandshakeError> {
    let ExchangedRequests { nonce, theirs } = requests;
    let key = match local.key() {
        Ok(Some(key)) => key,
        Ok(None) => {
            handshake.mark_authenticated();
            return Ok(());
        }
        Err(refusal) => {
            // Sent to the other side too: users look into its log first.
            handshake.send(&Message::Refused(refusal.clone()))?;
            return Err(HandshakeError::WeRefused(refusal));
        }
    };
    let claim = Claim {
        generation: local.generation,
        dialer_rank: rank_in_claim(local.wire_rank()),
        answerer_rank: rank_in_claim(theirs.rank),
        dialer_nonce: nonce,
        answerer_nonce: theirs.nonce,
    };
    if local.encrypt {
        let (offer, message) = encryption::offer(key, &claim).map_err(HandshakeError::Io)?;
        handshake.send(&Message::Encryption(message))?;
        match handshake.receive()? {
            Message::Encryption(answer) => match offer.accept(&answer) {
                Ok(encryption) => handshake.enable_encryption(encryption),
                Err(_) => return Err(HandshakeError::WeRefused(Refusal::SecretWrong)),
            },
            other => return Err(unexpected("encryption", &other)),
        }
    } else {
        handshake.send(&Message::Proof(key.prove(Role::Dialer, &claim)))?;
        match handshake.receive()? {
            Message::Proof(proof) if key.verify(Role::Answerer, &claim, &proof) => {}
            Message::Proof(_) => return Err(HandshakeError::WeRefused(Refusal::SecretWrong)),
            other => return Err(unexpected("proof", &other)),
        }
    }
    handshake.mark_authenticated();
    Ok(())
}

/// Authenticates as the answering side. Returns the handshake with the rank that the dialer claims
/// and, if there is a secret, has proven its right to.
pub(super) fn answer(handshake: Handshake, local: &LocalParty<'_>) -> Result<(Handshake, Option<u64>), HandshakeError> {
    answer_one_of(handshake, local, &[local.generation])
}

/// Like [`answer`], also for a dialer that does not know the group: a newcomer.
pub(super) fn answer_newcomers(
    handshake: Handshake,
    local: &LocalParty<'_>,
) -> Result<(Handshake, Option<u64>), HandshakeError> {
    answer_one_of(handshake, local, &[local.generation, UNKNOWN])
}

fn answer_one_of(
    mut handshake: Handshake,
    local: &LocalParty<'_>,
    generations: &[u64],
) -> Result<(Handshake, Option<u64>), HandshakeError> {
    let theirs = match from_unauthenticated(handshake.receive()) {
        Ok(Message::AuthRequest(request)) => request,
        Ok(other) => return Err(unexpected("auth request", &other)),
        Err(HandshakeError::Frame(FrameError::Version { theirs, ours })) => {
            return Err(handshake.refuse(Refusal::Protocol { theirs, ours }));
        }
        Err(error) => return Err(error),
    };
    if !generations.contains(&theirs.generation) {
        return Err(handshake.refuse(Refusal::OtherGroup));
    }
    let local = &LocalParty { generation: theirs.generation, ..*local };
    if theirs.encrypt != local.encrypt {
        return Err(handshake.refuse(Refusal::Encryption { dialer: theirs.encrypt }));
    }
    if theirs.secret != local.credentials.kind() {
        let (dialer, answerer) = (theirs.secret, local.credentials.kind());
        return Err(handshake.refuse(Refusal::SecretKind { dialer, answerer }));
    }
    let key = match local.key() {
        Ok(key) => key,
        Err(refusal) => return Err(handshake.refuse(refusal)),
    };
    let nonce = random().map_err(HandshakeError::Io)?;
    handshake.send(&Message::AuthRequest(local.auth_request(nonce)))?;
    if let Some(key) = key {
        // The claim contains a nonce drawn just now, so a recorded proof proves nothing.
        let claim = Claim {
            generation: local.generation,
            dialer_rank: rank_in_claim(theirs.rank),
            answerer_rank: rank_in_claim(local.wire_rank()),
            dialer_nonce: theirs.nonce,
            answerer_nonce: nonce,
        };
        match (from_unauthenticated(handshake.receive())?, local.encrypt) {
            (Message::Proof(proof), false) if key.verify(Role::Dialer, &claim, &proof) => {
                handshake.send(&Message::Proof(key.prove(Role::Answerer, &claim)))?;
            }
            (Message::Encryption(offer), true) => match encryption::answer(key, &claim, &offer) {
                Ok((encryption, message)) => {
                    handshake.send(&Message::Encryption(message))?;
                    handshake.enable_encryption(encryption);
                }
                Err(_) => return Err(handshake.refuse(Refusal::SecretWrong)),
            },
            (Message::Proof(_), false) => return Err(handshake.refuse(Refusal::SecretWrong)),
            (other, _) => return Err(unexpected("proof", &other)),
        }
    }
    handshake.mark_authenticated();
    Ok((handshake, theirs.rank))
}

impl LocalParty<'_> {
    fn auth_request(&self, nonce: Nonce) -> AuthRequest {
        AuthRequest {
            rank: self.wire_rank(),
            generation: self.generation,
            nonce,
            secret: self.credentials.kind(),
            encrypt: self.encrypt,
        }
    }

    /// The key that the other side must prove to know; `None` only if no secret is configured at
    /// all. A secret that is configured but missing is an error: it authenticates no peer.
    fn key(&self) -> Result<Option<&SecretKey>, Refusal> {
        match (self.credentials.kind(), self.credentials.key()) {
            (_, Some(key)) => Ok(Some(key)),
            (SecretKind::None, None) if !self.encrypt => Ok(None),
            (kind @ SecretKind::None, None) => Err(Refusal::SecretKind { dialer: kind, answerer: kind }),
            (SecretKind::Given | SecretKind::File, None) => Err(Refusal::NoSecretYet),
        }
    }

    fn wire_rank(&self) -> Option<u64> {
        self.rank.map(|rank| rank as u64)
    }
}

/// The rank in a [`Claim`]; `u64::MAX`, which no rank has, means "any".
fn rank_in_claim(rank: Option<u64>) -> u64 {
    rank.unwrap_or(u64::MAX)
}

/// Checks a message from a dialer that has not proven anything yet. The only refusal it may send is
/// that it lacks the secret: other refusals carry text, which would end up in this rank's log.
fn from_unauthenticated(received: Result<Message, HandshakeError>) -> Result<Message, HandshakeError> {
    match received {
        Err(HandshakeError::RefusedUs(refusal)) if refusal != Refusal::NoSecretYet => {
            Err(unexpected("auth request or proof", &Message::Refused(refusal)))
        }
        received => received,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    fn pair() -> [Handshake; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [near, listener.accept().unwrap().0].map(|stream| Handshake::new(stream, Duration::from_secs(60)).unwrap())
    }

    /// Authenticates two sides with the same credentials; the results of dialer and answerer.
    fn authenticate(credentials: &Credentials, encrypt: bool) -> [Result<(), &'static str>; 2] {
        let party = |rank| LocalParty { rank: Some(rank), generation: 7, credentials, encrypt };
        let [mut dialer, answerer] = pair();
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| answer(answerer, &party(0)).map(|_| ()).map_err(|error| error.kind()));
            let dialed = dial(&mut dialer, &party(1), 0).map_err(|error| error.kind());
            drop(dialer);
            [dialed, answering.join().unwrap()]
        })
    }

    #[test]
    fn a_configured_but_missing_secret_authenticates_no_peer() {
        let unread = Credentials::File(Err("it does not exist".to_owned()));
        for encrypt in [false, true] {
            assert_eq!(authenticate(&unread, encrypt), [Err("no secret"); 2]);
        }
        // Encryption is not possible without a secret either.
        assert_eq!(authenticate(&Credentials::None, true), [Err("different kind of secret"); 2]);
        assert_eq!(authenticate(&Credentials::None, false), [Ok(()); 2]);
        let given = Credentials::Given(SecretKey::new("squirrel"));
        for encrypt in [false, true] {
            assert_eq!(authenticate(&given, encrypt), [Ok(()); 2]);
        }
    }

    /// The dialer claims to have the secret and then sends no proof.
    #[test]
    fn an_answerer_without_its_secret_trusts_no_auth_request() {
        let unread = Credentials::File(Err("it does not exist".to_owned()));
        let party = LocalParty { rank: Some(0), generation: 7, credentials: &unread, encrypt: false };
        let [mut dialer, answerer] = pair();
        let request =
            AuthRequest { rank: Some(1), generation: 7, nonce: [5; 32], secret: SecretKind::File, encrypt: false };
        dialer.send(&Message::AuthRequest(request)).unwrap();
        assert!(matches!(answer(answerer, &party), Err(HandshakeError::WeRefused(Refusal::NoSecretYet))));
    }

    #[test]
    fn an_unauthenticated_peer_cannot_write_text_into_the_log() {
        let credentials = Credentials::Given(SecretKey::new("squirrel"));
        let party = LocalParty { rank: Some(0), generation: 7, credentials: &credentials, encrypt: false };
        let refusal = Refusal::RankTaken { rank: 1, name: "all is well".to_owned(), address: String::new() };
        for sends_request in [false, true] {
            let [mut dialer, answerer] = pair();
            if sends_request {
                let (nonce, secret) = ([5; 32], SecretKind::Given);
                let request = AuthRequest { rank: Some(1), generation: 7, nonce, secret, encrypt: false };
                dialer.send(&Message::AuthRequest(request)).unwrap();
            }
            dialer.send(&Message::Refused(refusal.clone())).unwrap();
            let error = answer(answerer, &party).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("sent `refused` instead of `auth request or proof`"), "{error}");
        }
    }
}
