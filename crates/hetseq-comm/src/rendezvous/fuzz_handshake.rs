//! Helpers of the rendezvous for the tests in `crate::fuzz_frames` and `crate::fuzz_files`: sample
//! messages, recorded authentications and a party to replay them to, notices.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::auth::{self, LocalParty};
use super::card::MemberCard;
use super::handshake::{
    AuthRequest, Enter, Handshake, Hello, Member, MemberList, Message, Running, Welcome, decode as decode_message,
};
use super::mismatch::{Mismatch, Reader};
use super::notice;
use super::refusal::Refusal;
use crate::heartbeat_timing::HeartbeatTiming;
use crate::identity::{Difference, Identity};
use crate::secret::{Credentials, SecretKey, SecretKind};

const TIMING: HeartbeatTiming = HeartbeatTiming::of(Duration::from_secs(60), Duration::from_secs(1));

/// Returns one message of each kind, encoded.
pub(crate) fn sample_messages() -> Vec<Vec<u8>> {
    let address: SocketAddr = "[fd00::1]:700".parse().unwrap();
    let difference =
        Difference { key: "optim.lr".to_owned(), on_zero: Some("0.1".to_owned()), on_other: Some("0.2".to_owned()) };
    let mismatch = Mismatch {
        rank0_name: "alpha".to_owned(),
        rank: None,
        name: "beta".to_owned(),
        differences: vec![difference],
        reader: Reader::Other,
    };
    let hello = Hello {
        rank: Some(1),
        world: 2,
        name: "alpha".to_owned(),
        listener: Some(address),
        timing: TIMING,
        identity: Identity::new().with("optim.lr", 0.1).with("run.seed", 7),
    };
    let card = MemberCard { id: 5, host: "alpha".to_owned(), addresses: vec![address] };
    let messages = [
        Message::AuthRequest(AuthRequest {
            rank: Some(1),
            generation: 7,
            nonce: [5; 32],
            secret: SecretKind::File,
            encrypt: true,
        }),
        Message::Proof([9; 32]),
        Message::Encryption(vec![3; 48]),
        Message::Hello(hello.clone()),
        Message::MemberList(MemberList {
            generation: 7,
            your_rank: 1,
            members: vec![
                Member { name: "alpha".to_owned(), listener: None, timing: TIMING },
                Member {
                    name: "beta".to_owned(),
                    listener: Some(address),
                    timing: HeartbeatTiming::of(Duration::MAX, Duration::MAX),
                },
            ],
        }),
        Message::Accepted,
        Message::Ready,
        Message::Failed("out of paper".to_owned()),
        Message::Start,
        Message::Knock(hello.clone()),
        Message::Enter(Box::new(Enter { hello, card: card.clone() })),
        Message::Running(Running {
            group: 7,
            rank: 0,
            members: vec![card.clone(), card.clone()],
            seen_file: Some(("newcomer-5.json".to_owned(), "{}".to_owned())),
        }),
        Message::Prepared { sees_directory: true },
        Message::Welcome(Welcome {
            generation: 9,
            first_generation: 7,
            members: vec![card],
            timing: TIMING,
            has_directory: false,
        }),
        Message::Waiting("rank 2 (beta) differs from rank 0".to_owned()),
        Message::Refused(Refusal::Mismatch(mismatch.clone())),
        Message::Refused(Refusal::Missing {
            ranks: vec![1, 2],
            world: 3,
            rendezvous: "tcp://alpha:700".to_owned(),
            waited: Duration::from_secs(3),
            notes: vec!["10.0.0.1:9 (silent)".to_owned()],
            refused: Box::new([mismatch]),
        }),
        Message::Refused(Refusal::RankTaken { rank: 1, name: "beta".to_owned(), address: "10.0.0.1:9".to_owned() }),
        Message::Refused(Refusal::SecretKind { dialer: SecretKind::None, answerer: SecretKind::Given }),
        Message::Refused(Refusal::NoSecretYet),
        Message::Refused(Refusal::SecretWrong),
        Message::Refused(Refusal::Encryption { dialer: true }),
        Message::Refused(Refusal::OtherGroup),
        Message::Refused(Refusal::Protocol { theirs: 1, ours: 2 }),
        Message::Refused(Refusal::AlreadyStarted { seconds_ago: 9, world: 3 }),
        Message::Refused(Refusal::NotYet),
        Message::Refused(Refusal::Moved),
        Message::Refused(Refusal::Failed { rank: 2, name: "beta".to_owned(), reason: "no route".to_owned() }),
    ];
    messages.iter().map(|message| postcard::to_stdvec(message).unwrap()).collect()
}

/// Decodes one message, and formats it if it is a refusal.
pub(crate) fn decode(payload: &[u8]) {
    if let Err(error) = decode_message(payload) {
        let _ = (error.kind(), error.into_error("rank 0").to_string());
    }
}

/// Returns how many notices in `dir` are valid or reported as a problem.
pub(crate) fn count_notices(dir: &Path) -> usize {
    let (notices, problems) = notice::list(dir);
    notices.len() + problems.len()
}

fn credentials() -> Credentials {
    Credentials::Given(SecretKey::new("squirrel"))
}

/// Whether a party that knows the secret authenticates the other side of `socket`. `by_dialer`
/// means that the other side dials and this party answers.
pub(crate) fn authenticates(socket: TcpStream, by_dialer: bool, encrypt: bool) -> bool {
    let credentials = credentials();
    let party = |rank| LocalParty { rank: Some(rank), generation: 7, credentials: &credentials, encrypt };
    let Ok(mut handshake) = Handshake::new(socket, Duration::from_secs(2)) else { return false };
    if by_dialer {
        auth::answer(handshake, &party(0)).is_ok()
    } else {
        auth::dial(&mut handshake, &party(1), 0).is_ok()
    }
}

/// Returns all bytes that one side sends in a successful authentication.
pub(crate) fn recorded_auth(by_dialer: bool, encrypt: bool) -> Vec<u8> {
    let pair = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    };
    let ((dialer, dialer_far), (answerer, answerer_far)) = (pair(), pair());
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            let (mut sent, mut piece) = (Vec::new(), [0; 1024]);
            while let Ok(count @ 1..) = from.read(&mut piece) {
                sent.extend(&piece[..count]);
                let _ = to.write_all(&piece[..count]);
            }
            let _ = to.shutdown(std::net::Shutdown::Write);
            sent
        })
    };
    let copies =
        [copy(dialer_far.try_clone().unwrap(), answerer_far.try_clone().unwrap()), copy(answerer_far, dialer_far)];
    let answering = std::thread::spawn(move || authenticates(answerer, true, encrypt));
    assert!(authenticates(dialer, false, encrypt), "the dialer accepts the answerer");
    assert!(answering.join().unwrap(), "the answerer accepts the dialer");
    let [dialer, answerer] = copies.map(|copy| copy.join().unwrap());
    if by_dialer { dialer } else { answerer }
}
