//! The first exchange on every new connection: who are you, which group is this for, and do you know
//! the secret.
//!
//! The same for joining (generation 0, answered by rank 0) and for connections between ranks. Nothing
//! that a stranger says is acted upon before this has succeeded.

use super::refusal::Refusal;
use super::talk::{Greeting, Message, Talk, TalkError, unexpected};
use crate::frame::FrameError;
use crate::secret::{Claim, Key, Role, random};

/// One end of a greeting.
pub(super) struct Party<'a> {
    pub(super) rank: usize,
    pub(super) generation: u64,
    pub(super) key: Option<&'a Key>,
}

/// Greets as the one who dialled; `whom` is the rank that should answer.
pub(super) fn dial(talk: &mut Talk, me: &Party<'_>, whom: usize) -> Result<(), TalkError> {
    let nonce = random().map_err(TalkError::Io)?;
    talk.send(&Message::Greeting(me.greeting(nonce)))?;
    let theirs = receive(talk)?;
    if theirs.generation != me.generation || theirs.rank != whom as u64 {
        return Err(TalkError::WeRefused(Refusal::OtherGroup));
    }
    let claim = Claim {
        generation: me.generation,
        dialer_rank: me.rank as u64,
        answerer_rank: theirs.rank,
        dialer_nonce: nonce,
        answerer_nonce: theirs.nonce,
    };
    match (me.key, theirs.has_secret) {
        (None, false) => Ok(()),
        (None, true) => Err(TalkError::WeRefused(Refusal::SecretNeeded)),
        (Some(_), false) => Err(TalkError::WeRefused(Refusal::SecretUnexpected)),
        (Some(key), true) => {
            talk.send(&Message::Proof(key.prove(Role::Dialer, &claim)))?;
            match talk.receive()? {
                Message::Proof(proof) if key.verify(Role::Answerer, &claim, &proof) => Ok(()),
                Message::Proof(_) => Err(TalkError::WeRefused(Refusal::SecretWrong)),
                other => Err(unexpected("proof", &other)),
            }
        }
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
    match (me.key, theirs.has_secret) {
        (Some(_), false) => return Err(talk.refuse(Refusal::SecretNeeded)),
        (None, true) => return Err(talk.refuse(Refusal::SecretUnexpected)),
        _ => {}
    }
    let nonce = random().map_err(TalkError::Io)?;
    talk.send(&Message::Greeting(me.greeting(nonce)))?;
    if let Some(key) = me.key {
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
    Ok((talk, theirs.rank))
}

impl Party<'_> {
    fn greeting(&self, nonce: crate::secret::Nonce) -> Greeting {
        Greeting { rank: self.rank as u64, generation: self.generation, nonce, has_secret: self.key.is_some() }
    }
}

fn receive(talk: &mut Talk) -> Result<Greeting, TalkError> {
    match talk.receive()? {
        Message::Greeting(greeting) => Ok(greeting),
        other => Err(unexpected("greeting", &other)),
    }
}
