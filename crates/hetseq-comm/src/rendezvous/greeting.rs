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
use crate::secret::{Claim, Credentials, Key, Nonce, Role, SecretKind, random};

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
    let theirs = match talk.receive()? {
        Message::Greeting(greeting) => greeting,
        other => return Err(unexpected("greeting", &other)),
    };
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
    let key = match me.key() {
        Ok(Some(key)) => key,
        Ok(None) => {
            talk.trust();
            return Ok(());
        }
        Err(refusal) => {
            // Said to the other side too: its log is where people look first.
            talk.send(&Message::Refused(refusal.clone()))?;
            return Err(TalkError::WeRefused(refusal));
        }
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
    let theirs = match from_stranger(talk.receive()) {
        Ok(Message::Greeting(greeting)) => greeting,
        Ok(other) => return Err(unexpected("greeting", &other)),
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
    let key = match me.key() {
        Ok(key) => key,
        Err(refusal) => return Err(talk.refuse(refusal)),
    };
    let nonce = random().map_err(TalkError::Io)?;
    talk.send(&Message::Greeting(me.greeting(nonce)))?;
    if let Some(key) = key {
        // Over a nonce that was drawn just now: what somebody recorded earlier proves nothing.
        let claim = Claim {
            generation: me.generation,
            dialer_rank: number(theirs.rank),
            answerer_rank: number(me.numbered()),
            dialer_nonce: theirs.nonce,
            answerer_nonce: nonce,
        };
        match (from_stranger(talk.receive())?, me.encrypt) {
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

    /// What the other side must prove to know; `None` only where no secret is wanted at all. One that is wanted and not
    /// there lets nobody in.
    fn key(&self) -> Result<Option<&Key>, Refusal> {
        match (self.credentials.kind(), self.credentials.key()) {
            (_, Some(key)) => Ok(Some(key)),
            (SecretKind::None, None) if !self.encrypt => Ok(None),
            (kind @ SecretKind::None, None) => Err(Refusal::SecretKind { newcomer: kind, here: kind }),
            (SecretKind::Given | SecretKind::File, None) => Err(Refusal::NoSecretYet),
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

/// What one that knocks says before it has proven anything. It has nothing to refuse us, except that it lacks the secret:
/// other refusals carry words, which would end up in our log.
fn from_stranger(said: Result<Message, TalkError>) -> Result<Message, TalkError> {
    match said {
        Err(TalkError::RefusedUs(refusal)) if refusal != Refusal::NoSecretYet => {
            Err(unexpected("greeting or proof", &Message::Refused(refusal)))
        }
        said => said,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    fn pair() -> [Talk; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [near, listener.accept().unwrap().0].map(|stream| Talk::new(stream, Duration::from_secs(60)).unwrap())
    }

    /// What comes of a greeting at which both have the same to show: the dialer's view and the answerer's.
    fn greeted(credentials: &Credentials, encrypt: bool) -> [Result<(), &'static str>; 2] {
        let party = |rank| Party { rank: Some(rank), generation: 7, credentials, encrypt };
        let [mut dialer, answerer] = pair();
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| answer(answerer, &party(0)).map(|_| ()).map_err(|error| error.kind()));
            let dialled = dial(&mut dialer, &party(1), 0).map_err(|error| error.kind());
            drop(dialer);
            [dialled, answering.join().unwrap()]
        })
    }

    #[test]
    fn a_secret_that_is_wanted_and_not_there_lets_nobody_in() {
        let unread = Credentials::File(Err("it is not there".to_owned()));
        for encrypt in [false, true] {
            assert_eq!(greeted(&unread, encrypt), [Err("no secret"); 2]);
        }
        // Nor can anything be encrypted without one.
        assert_eq!(greeted(&Credentials::None, true), [Err("another kind of secret"); 2]);
        assert_eq!(greeted(&Credentials::None, false), [Ok(()); 2]);
        let given = Credentials::Given(Key::new("squirrel"));
        for encrypt in [false, true] {
            assert_eq!(greeted(&given, encrypt), [Ok(()); 2]);
        }
    }

    /// One that greets as if it had the secret, and then says nothing that would prove it.
    #[test]
    fn an_answerer_without_its_secret_trusts_no_greeting() {
        let unread = Credentials::File(Err("it is not there".to_owned()));
        let party = Party { rank: Some(0), generation: 7, credentials: &unread, encrypt: false };
        let [mut dialer, answerer] = pair();
        let claimed =
            Greeting { rank: Some(1), generation: 7, nonce: [5; 32], secret: SecretKind::File, encrypt: false };
        dialer.send(&Message::Greeting(claimed)).unwrap();
        assert!(matches!(answer(answerer, &party), Err(TalkError::WeRefused(Refusal::NoSecretYet))));
    }

    #[test]
    fn a_stranger_cannot_word_our_log() {
        let credentials = Credentials::Given(Key::new("squirrel"));
        let party = Party { rank: Some(0), generation: 7, credentials: &credentials, encrypt: false };
        let words = Refusal::Taken { rank: 1, name: "all is well".to_owned(), address: String::new() };
        for greets in [false, true] {
            let [mut dialer, answerer] = pair();
            if greets {
                let (nonce, secret) = ([5; 32], SecretKind::Given);
                let greeting = Greeting { rank: Some(1), generation: 7, nonce, secret, encrypt: false };
                dialer.send(&Message::Greeting(greeting)).unwrap();
            }
            dialer.send(&Message::Refused(words.clone())).unwrap();
            let error = answer(answerer, &party).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("a refused where a greeting or proof is due"), "{error}");
        }
    }
}
