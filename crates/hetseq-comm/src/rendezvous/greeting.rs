//! The first exchange on every new connection: who are you, which group is this for, and do you know
//! the secret.
//!
//! Both sides greet in clear, so that two that do not fit can tell each other why. Then each proves that it knows the
//! secret, either by hashes over both greetings or by a handshake that from there on encrypts everything (`seal.rs`).
//! The same for joining (answered by rank 0) and for connections between ranks. Nothing that a stranger says is acted
//! upon before this has succeeded, and until then it may say little.

use super::refusal::Refusal;
use super::talk::{Greeting, Message, Talk, TalkError, unexpected};
use crate::frame::FrameError;
use crate::seal;
use crate::secret::{Claim, Credentials, Nonce, Role, SecretKind, random};

/// One end of a greeting.
pub(super) struct Party<'a> {
    pub(super) rank: Option<usize>,
    pub(super) generation: u64,
    pub(super) credentials: &'a Credentials,
    pub(super) encrypt: bool,
}

/// Greets as the one who dialled; `whom` is the rank that should answer.
pub(super) fn dial(talk: &mut Talk, me: &Party<'_>, whom: usize) -> Result<(), TalkError> {
    let nonce = random().map_err(TalkError::Io)?;
    talk.send(&Message::Greeting(me.greeting(nonce)))?;
    let theirs = receive(talk)?;
    if theirs.generation != me.generation || theirs.rank != Some(whom as u64) {
        return Err(TalkError::WeRefused(Refusal::OtherGroup));
    }
    if theirs.encrypt != me.encrypt {
        return Err(TalkError::WeRefused(Refusal::Encryption { newcomer: me.encrypt }));
    }
    if theirs.secret != me.credentials.kind() {
        let (newcomer, here) = (me.credentials.kind(), theirs.secret);
        return Err(TalkError::WeRefused(Refusal::SecretKind { newcomer, here }));
    }
    if me.credentials.kind() == SecretKind::None {
        talk.trust();
        return Ok(());
    }
    let Some(key) = me.credentials.key() else {
        // Said to the other side too: its log is where people look first.
        let refusal = Refusal::NoSecretYet;
        talk.send(&Message::Refused(refusal.clone()))?;
        return Err(TalkError::WeRefused(refusal));
    };
    let claim = Claim {
        generation: me.generation,
        dialer_rank: number(me.numbered()),
        answerer_rank: number(theirs.rank),
        dialer_nonce: nonce,
        answerer_nonce: theirs.nonce,
    };
    if me.encrypt {
        let (offer, message) = seal::offer(key, &claim).map_err(TalkError::Io)?;
        talk.send(&Message::Seal(message))?;
        match talk.receive()? {
            Message::Seal(answer) => match offer.accept(&answer) {
                Ok(seal) => talk.seal(seal),
                Err(_) => return Err(TalkError::WeRefused(Refusal::SecretWrong)),
            },
            other => return Err(unexpected("seal", &other)),
        }
    } else {
        talk.send(&Message::Proof(key.prove(Role::Dialer, &claim)))?;
        match talk.receive()? {
            Message::Proof(proof) if key.verify(Role::Answerer, &claim, &proof) => {}
            Message::Proof(_) => return Err(TalkError::WeRefused(Refusal::SecretWrong)),
            other => return Err(unexpected("proof", &other)),
        }
    }
    talk.trust();
    Ok(())
}

/// Greets as the one who was dialled; gives the talk back with the rank that the other claims and, with
/// a secret, has proven to be entitled to.
pub(super) fn answer(mut talk: Talk, me: &Party<'_>) -> Result<(Talk, Option<u64>), TalkError> {
    let theirs = match receive(&mut talk) {
        Ok(greeting) => greeting,
        Err(TalkError::Frame(FrameError::Version { theirs, ours })) => {
            return Err(talk.refuse(Refusal::Protocol { theirs, ours }));
        }
        Err(error) => return Err(error),
    };
    if theirs.generation != me.generation {
        return Err(talk.refuse(Refusal::OtherGroup));
    }
    if theirs.encrypt != me.encrypt {
        return Err(talk.refuse(Refusal::Encryption { newcomer: theirs.encrypt }));
    }
    if theirs.secret != me.credentials.kind() {
        let (newcomer, here) = (theirs.secret, me.credentials.kind());
        return Err(talk.refuse(Refusal::SecretKind { newcomer, here }));
    }
    let nonce = random().map_err(TalkError::Io)?;
    talk.send(&Message::Greeting(me.greeting(nonce)))?;
    if let Some(key) = me.credentials.key() {
        // Over a nonce that was drawn just now: what somebody recorded earlier proves nothing.
        let claim = Claim {
            generation: me.generation,
            dialer_rank: number(theirs.rank),
            answerer_rank: number(me.numbered()),
            dialer_nonce: theirs.nonce,
            answerer_nonce: nonce,
        };
        match (talk.receive()?, me.encrypt) {
            (Message::Proof(proof), false) if key.verify(Role::Dialer, &claim, &proof) => {
                talk.send(&Message::Proof(key.prove(Role::Answerer, &claim)))?;
            }
            (Message::Seal(offer), true) => match seal::answer(key, &claim, &offer) {
                Ok((seal, message)) => {
                    talk.send(&Message::Seal(message))?;
                    talk.seal(seal);
                }
                Err(_) => return Err(talk.refuse(Refusal::SecretWrong)),
            },
            (Message::Proof(_), false) => return Err(talk.refuse(Refusal::SecretWrong)),
            (other, _) => return Err(unexpected("proof", &other)),
        }
    }
    talk.trust();
    Ok((talk, theirs.rank))
}

impl Party<'_> {
    fn greeting(&self, nonce: Nonce) -> Greeting {
        Greeting {
            rank: self.numbered(),
            generation: self.generation,
            nonce,
            secret: self.credentials.kind(),
            encrypt: self.encrypt,
        }
    }

    fn numbered(&self) -> Option<u64> {
        self.rank.map(|rank| rank as u64)
    }
}

/// For a claim; no rank has the number that stands for "any".
fn number(rank: Option<u64>) -> u64 {
    rank.unwrap_or(u64::MAX)
}

fn receive(talk: &mut Talk) -> Result<Greeting, TalkError> {
    match talk.receive()? {
        Message::Greeting(greeting) => Ok(greeting),
        other => Err(unexpected("greeting", &other)),
    }
}
