//! What `crate::fuzz` needs of the handshake: sample messages, recorded greetings, and a door to try them at.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::greeting::{self, Party};
use super::refusal::{Reader, Refusal};
use super::talk::{Greeting, Hello, Member, Message, Roster, Talk, decode as decode_message};
use crate::identity::{Difference, Identity};
use crate::pace::Pace;
use crate::secret::{Credentials, Key, SecretKind};

const PACE: Pace = Pace::of(Duration::from_secs(60), Duration::from_secs(1));

/// One of each kind, encoded.
pub(crate) fn sample_messages() -> Vec<Vec<u8>> {
    let address: SocketAddr = "[fd00::1]:700".parse().unwrap();
    let difference =
        Difference { key: "optim.lr".to_owned(), on_zero: Some("0.1".to_owned()), on_other: Some("0.2".to_owned()) };
    let messages = [
        Message::Greeting(Greeting {
            rank: Some(1),
            generation: 7,
            nonce: [5; 32],
            secret: SecretKind::File,
            encrypt: true,
        }),
        Message::Proof([9; 32]),
        Message::Seal(vec![3; 48]),
        Message::Hello(Hello {
            rank: Some(1),
            world: 2,
            name: "alpha".to_owned(),
            listener: Some(address),
            pace: PACE,
            identity: Identity::new().with("optim.lr", 0.1).with("run.seed", 7),
        }),
        Message::Roster(Roster {
            generation: 7,
            you: 1,
            members: vec![
                Member { name: "alpha".to_owned(), listener: None, pace: PACE },
                Member {
                    name: "beta".to_owned(),
                    listener: Some(address),
                    pace: Pace::of(Duration::MAX, Duration::MAX),
                },
            ],
        }),
        Message::Accepted,
        Message::Ready,
        Message::Failed("out of paper".to_owned()),
        Message::Start,
        Message::Refused(Refusal::Mismatch {
            zero_name: "alpha".to_owned(),
            rank: None,
            name: "beta".to_owned(),
            differences: vec![difference],
            reader: Reader::Other,
        }),
        Message::Refused(Refusal::Missing {
            ranks: vec![1, 2],
            world: 3,
            rendezvous: "tcp://alpha:700".to_owned(),
            waited: Duration::from_secs(3),
            notes: vec!["10.0.0.1:9 (silent)".to_owned()],
        }),
        Message::Refused(Refusal::Taken { rank: 1, name: "beta".to_owned(), address: "10.0.0.1:9".to_owned() }),
        Message::Refused(Refusal::SecretKind { newcomer: SecretKind::None, here: SecretKind::Given }),
        Message::Refused(Refusal::NoSecretYet),
        Message::Refused(Refusal::SecretWrong),
        Message::Refused(Refusal::Encryption { newcomer: true }),
        Message::Refused(Refusal::OtherGroup),
        Message::Refused(Refusal::Protocol { theirs: 1, ours: 2 }),
        Message::Refused(Refusal::UnderWay { seconds_ago: 9, world: 3 }),
        Message::Refused(Refusal::Moved),
        Message::Refused(Refusal::Failed { rank: 2, name: "beta".to_owned(), reason: "no route".to_owned() }),
    ];
    messages.iter().map(|message| postcard::to_stdvec(message).unwrap()).collect()
}

/// Reads one message, and words it if it is a refusal.
pub(crate) fn decode(payload: &[u8]) {
    if let Err(error) = decode_message(payload) {
        let _ = (error.kind(), error.into_error("rank 0").to_string());
    }
}

fn credentials() -> Credentials {
    Credentials::Given(Key::new("squirrel"))
}

/// Whether a party that knows the secret lets in who is at the other end; as the answerer if the other dialled.
pub(crate) fn lets_in(socket: TcpStream, by_dialer: bool, encrypt: bool) -> bool {
    let credentials = credentials();
    let party = |rank| Party { rank: Some(rank), generation: 7, credentials: &credentials, encrypt };
    let Ok(mut talk) = Talk::new(socket, Duration::from_secs(2)) else { return false };
    if by_dialer { greeting::answer(talk, &party(0)).is_ok() } else { greeting::dial(&mut talk, &party(1), 0).is_ok() }
}

/// All that one side says in a greeting that succeeds.
pub(crate) fn recorded_greeting(by_dialer: bool, encrypt: bool) -> Vec<u8> {
    let pair = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    };
    let ((dialer, dialer_far), (answerer, answerer_far)) = (pair(), pair());
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            let (mut said, mut piece) = (Vec::new(), [0; 1024]);
            while let Ok(count @ 1..) = from.read(&mut piece) {
                said.extend(&piece[..count]);
                let _ = to.write_all(&piece[..count]);
            }
            let _ = to.shutdown(std::net::Shutdown::Write);
            said
        })
    };
    let by = [copy(dialer_far.try_clone().unwrap(), answerer_far.try_clone().unwrap()), copy(answerer_far, dialer_far)];
    let answering = std::thread::spawn(move || lets_in(answerer, true, encrypt));
    assert!(lets_in(dialer, false, encrypt), "the dialer lets the answerer in");
    assert!(answering.join().unwrap(), "the answerer lets the dialer in");
    let [dialer, answerer] = by.map(|said| said.join().unwrap());
    if by_dialer { dialer } else { answerer }
}
