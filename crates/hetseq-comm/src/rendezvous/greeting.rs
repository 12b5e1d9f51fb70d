//! The first exchange on every new connection: who are you, which group is this for, and do you know
//! the secret.
//!
//! The same for joining (answered by rank 0) and for connections between ranks. Nothing that a stranger says is acted
//! upon before this has succeeded, and until then it may say little.

use super::refusal::Refusal;
use super::talk::{Greeting, Message, Talk, TalkError, unexpected};
use crate::frame::FrameError;
use crate::secret::{Claim, Credentials, Nonce, Role, SecretKind, random};

/// One end of a greeting.
pub(super) struct Party<'a> {
    pub(super) rank: usize,
    pub(super) generation: u64,
    pub(super) credentials: &'a Credentials,
}

/// Greets as the one who dialled; `whom` is the rank that should answer.
pub(super) fn dial(talk: &mut Talk, me: &Party<'_>, whom: usize) -> Result<(), TalkError> {
    let nonce = random().map_err(TalkError::Io)?;
    talk.send(&Message::Greeting(me.greeting(nonce)))?;
    let theirs = receive(talk)?;
    if theirs.generation != me.generation || theirs.rank != whom as u64 {
        return Err(TalkError::WeRefused(Refusal::OtherGroup));
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
        dialer_rank: me.rank as u64,
        answerer_rank: theirs.rank,
        dialer_nonce: nonce,
        answerer_nonce: theirs.nonce,
    };
    talk.send(&Message::Proof(key.prove(Role::Dialer, &claim)))?;
    match talk.receive()? {
        Message::Proof(proof) if key.verify(Role::Answerer, &claim, &proof) => {
            talk.trust();
            Ok(())
        }
        Message::Proof(_) => Err(TalkError::WeRefused(Refusal::SecretWrong)),
        other => Err(unexpected("proof", &other)),
    }
}

/// Greets as the one who was dialled; gives the talk back with the rank that the other claims and, with
/// a secret, has proven to be entitled to.
pub(super) fn answer(mut talk: Talk, me: &Party<'_>) -> Result<(Talk, u64), TalkError> {
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
            dialer_rank: theirs.rank,
            answerer_rank: me.rank as u64,
            dialer_nonce: theirs.nonce,
            answerer_nonce: nonce,
        };
        match talk.receive()? {
            Message::Proof(proof) if key.verify(Role::Dialer, &claim, &proof) => {}
            Message::Proof(_) => return Err(talk.refuse(Refusal::SecretWrong)),
            other => return Err(unexpected("proof", &other)),
        }
        talk.send(&Message::Proof(key.prove(Role::Answerer, &claim)))?;
    }
    talk.trust();
    Ok((talk, theirs.rank))
}

impl Party<'_> {
    fn greeting(&self, nonce: Nonce) -> Greeting {
        Greeting { rank: self.rank as u64, generation: self.generation, nonce, secret: self.credentials.kind() }
    }
}

fn receive(talk: &mut Talk) -> Result<Greeting, TalkError> {
    match talk.receive()? {
        Message::Greeting(greeting) => Ok(greeting),
        other => Err(unexpected("greeting", &other)),
    }
}
