//! Rendezvous tests in which the test plays one party by hand, to misbehave in ways that
//! `Group::join` never does.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{JoinHandle, sleep, spawn};

use super::auth::LocalParty;
use super::handshake::{Handshake, HandshakeError, Hello, MemberList, Message};
use super::*;
use crate::frame::{Accept, Frame, FrameKind, read_frame};
use crate::secret::Credentials;
use crate::{Group, RankEnv, Rendezvous};

fn rank_env(rank: usize, world: usize, port: u16) -> RankEnv {
    let rendezvous = Rendezvous::Tcp { host: "127.0.0.1".to_owned(), port };
    RankEnv { rank: Some(rank), world, rendezvous, source: "the test" }
}

fn join(rank: usize, world: usize, port: u16) -> JoinHandle<Result<Group, CommError>> {
    let options = Options { join: Duration::from_secs(10), name: Some(format!("host{rank}")), ..Options::default() };
    spawn(move || Group::join(&rank_env(rank, world, port), &Identity::new(), &options))
}

/// Returns a free port from the system; unlike a fixed one it is not reused soon.
fn free_port() -> u16 {
    TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap().local_addr().unwrap().port()
}

fn dial(port: u16) -> TcpStream {
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(_) => sleep(Duration::from_millis(10)),
        }
    }
}

/// Authenticates with rank 0 as `rank` and sends a hello with `hello_rank`.
fn join_by_hand(rank: usize, hello_rank: u64, world: u64, port: u16) -> Handshake {
    join_with_identity(rank, hello_rank, world, port, Identity::new())
}

fn join_with_identity(rank: usize, hello_rank: u64, world: u64, port: u16, identity: Identity) -> Handshake {
    let mut handshake = Handshake::new(dial(port), HANDSHAKE_TIMEOUT).unwrap();
    auth::dial(
        &mut handshake,
        &LocalParty { rank: Some(rank), generation: 0, credentials: &Credentials::None, encrypt: false },
        0,
    )
    .unwrap();
    let hello = Hello {
        rank: Some(hello_rank),
        world,
        name: format!("raw{rank}"),
        listener: Some("127.0.0.1:9".parse().unwrap()),
        timing: HeartbeatTiming::new(Duration::from_secs(60)),
        identity,
    };
    handshake.send(&Message::Hello(hello)).unwrap();
    handshake
}

fn member_list(handshake: &mut Handshake) -> MemberList {
    match handshake.receive().unwrap() {
        Message::MemberList(list) => list,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reminders_come_after_two_seconds_then_every_ten() {
    let start = Instant::now();
    let mut reminder = Reminder::new(start);
    let due: Vec<u64> = (0..30).filter(|s| reminder.is_due(start + Duration::from_secs(*s))).collect();
    assert_eq!(due, [2, 12, 22]);
}

#[test]
fn a_restarted_rank_replaces_its_old_connection() {
    let port = free_port();
    let zero = join(0, 3, port);
    let first_process = join_by_hand(1, 1, 3, port);
    sleep(Duration::from_millis(200));
    drop(first_process);
    let ranks = [zero, join(1, 3, port), join(2, 3, port)];
    let groups = ranks.map(|rank| rank.join().unwrap().unwrap());
    assert_eq!(groups[0].host(1), "host1");
}

#[test]
fn a_restarted_rank_waits_until_its_old_connection_is_closed() {
    let port = free_port();
    let zero = join(0, 3, port);
    let first_process = join_by_hand(1, 1, 3, port);
    sleep(Duration::from_millis(200));
    let restarted = join(1, 3, port);
    // As if rank 0's system had not noticed yet that the process is gone.
    sleep(Duration::from_secs(1));
    drop(first_process);
    let ranks = [zero, restarted, join(2, 3, port)];
    let groups = ranks.map(|rank| rank.join().unwrap().unwrap());
    assert_eq!(groups[0].host(1), "host1");
}

#[test]
fn waiting_ranks_are_told_which_rank_was_refused_and_why() {
    let port = free_port();
    let zero = join(0, 4, port);
    let mut early = join_by_hand(2, 2, 4, port);
    sleep(Duration::from_millis(200));
    for _ in 0..2 {
        let mut wrong = join_with_identity(1, 1, 4, port, Identity::new().with("seed", 7));
        assert!(matches!(wrong.receive(), Err(HandshakeError::RefusedUs(refusal::Refusal::Mismatch(_)))));
    }
    let mut late = join_by_hand(3, 3, 4, port);
    let reason = "rank 1 (raw1) differs from rank 0: seed: absent on rank 0 (host0), 7 on rank 1 (raw1); waiting up to";
    for waiting in [&mut early, &mut late] {
        match waiting.receive().unwrap() {
            Message::Waiting(text) => assert!(text.starts_with(reason), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    // The right one is not told about itself, and the others get no second message.
    let mut right = join_by_hand(1, 1, 4, port);
    for rank in [&mut right, &mut early, &mut late] {
        assert_eq!(member_list(rank).members.len(), 4);
    }
    drop(right);
    zero.join().unwrap().unwrap_err();
}

#[test]
fn keepalive_is_on_only_during_the_handshake() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let clone = stream.try_clone().unwrap();
    let has_keepalive = || socket2::SockRef::from(&clone).keepalive().unwrap();
    let handshake = Handshake::new(stream, HANDSHAKE_TIMEOUT).unwrap();
    assert!(has_keepalive());
    let _connection = handshake.into_connection();
    assert!(!has_keepalive(), "the run has its own timeouts");
}

#[test]
fn a_rank_that_cannot_reach_another_cancels_the_run_for_all() {
    let port = free_port();
    let (zero, one) = (join(0, 3, port), join(1, 3, port));
    let mut two = join_by_hand(2, 2, 3, port);
    let members = member_list(&mut two).members;
    assert_eq!(members[1].name, "host1");
    // Rank 1 waits for a connection; rank 2 reports a failure instead.
    two.send(&Message::Failed("cannot reach rank 1 (host1)".to_owned())).unwrap();
    for rank in [zero, one] {
        let text = rank.join().unwrap().unwrap_err().to_string();
        assert!(text.contains("rank 2 (raw2) failed: cannot reach rank 1 (host1)"), "{text}");
    }
}

#[test]
fn a_rank_lost_before_the_start_cancels_the_run_for_all() {
    let port = free_port();
    let (zero, one) = (join(0, 3, port), join(1, 3, port));
    let mut two = join_by_hand(2, 2, 3, port);
    member_list(&mut two);
    drop(two);
    for rank in [zero, one] {
        let text = rank.join().unwrap().unwrap_err().to_string();
        assert!(text.contains("rank 2 (raw2) failed: it closed the connection"), "{text}");
    }
}

#[test]
fn a_started_rank_is_aborted_if_another_cannot_get_the_start() {
    let port = free_port();
    let zero = join(0, 3, port);
    let (mut one, mut two) = (join_by_hand(1, 1, 3, port), join_by_hand(2, 2, 3, port));
    let generation = member_list(&mut two).generation;
    member_list(&mut one);
    two.send(&Message::Ready).unwrap();
    // Reset the connection, so that rank 0's system knows it before the start is sent.
    let stream = two.into_connection().socket;
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    sleep(Duration::from_millis(300));
    one.send(&Message::Ready).unwrap();
    assert_eq!(one.receive().unwrap(), Message::Start);
    let accept = Accept::only(generation, 4096);
    let frame = read_frame(&mut one.into_connection().socket, accept).unwrap();
    let reason = String::from_utf8(frame.payload.to_vec()).unwrap();
    assert_eq!(frame.kind, FrameKind::Abort, "{reason}");
    assert!(reason.contains("rank 2 (raw2)"), "{reason}");
    let text = zero.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("rank 2 (raw2)"), "{text}");
}

#[test]
fn a_listener_between_ranks_accepts_only_this_group() {
    let port = free_port();
    let (zero, one) = (join(0, 3, port), join(1, 3, port));
    let mut two = join_by_hand(2, 2, 3, port);
    let list = member_list(&mut two);
    let address = list.members[1].listener.unwrap();
    let connect = |rank: usize, generation: u64| {
        let mut handshake = Handshake::new(TcpStream::connect(address).unwrap(), HANDSHAKE_TIMEOUT).unwrap();
        auth::dial(
            &mut handshake,
            &LocalParty { rank: Some(rank), generation, credentials: &Credentials::None, encrypt: false },
            1,
        )?;
        handshake.receive().map(|message| (message, handshake))
    };
    let earlier_run = connect(2, list.generation ^ 1);
    assert!(matches!(earlier_run, Err(HandshakeError::RefusedUs(refusal::Refusal::OtherGroup))));
    let unknown_rank = connect(7, list.generation);
    assert!(matches!(unknown_rank, Err(HandshakeError::RefusedUs(refusal::Refusal::RankTaken { rank: 7, .. }))));
    let (message, _link) = connect(2, list.generation).unwrap();
    assert_eq!(message, Message::Accepted);
    two.send(&Message::Ready).unwrap();
    assert_eq!(two.receive().unwrap(), Message::Start);
    zero.join().unwrap().unwrap();
    one.join().unwrap().unwrap();
}

#[test]
fn a_rank_that_closed_its_connection_may_dial_again() {
    let port = free_port();
    let (zero, one) = (join(0, 4, port), join(1, 4, port));
    let (mut two, mut three) = (join_by_hand(2, 2, 4, port), join_by_hand(3, 3, 4, port));
    let list = member_list(&mut two);
    let address = list.members[1].listener.unwrap();
    let connect = |rank: usize| {
        let mut handshake = Handshake::new(TcpStream::connect(address).unwrap(), HANDSHAKE_TIMEOUT).unwrap();
        let (generation, credentials) = (list.generation, &Credentials::None);
        auth::dial(&mut handshake, &LocalParty { rank: Some(rank), generation, credentials, encrypt: false }, 1)
            .unwrap();
        handshake.receive().map(|message| (message, handshake))
    };
    drop(connect(2).unwrap());
    let second = connect(2).unwrap();
    assert_eq!(second.0, Message::Accepted);
    // While the second connection is open, a third is rejected.
    assert!(matches!(connect(2), Err(HandshakeError::RefusedUs(refusal::Refusal::RankTaken { rank: 2, .. }))));
    let _last = connect(3).unwrap();
    two.send(&Message::Ready).unwrap();
    three.receive().unwrap();
    three.send(&Message::Ready).unwrap();
    zero.join().unwrap().unwrap();
    one.join().unwrap().unwrap();
}

#[test]
fn invalid_handshakes_are_rejected_and_the_run_starts() {
    let port = free_port();
    let zero = join(0, 2, port);
    // Claims one rank in the auth request and another in the hello.
    let mut inconsistent = join_by_hand(1, 0, 2, port);
    assert!(matches!(inconsistent.receive(), Err(HandshakeError::Closed)));
    // A rank 0 that dials.
    let mut second_rank0 = join_by_hand(0, 0, 2, port);
    assert!(matches!(second_rank0.receive(), Err(HandshakeError::RefusedUs(refusal::Refusal::RankTaken { .. }))));
    // A message out of order.
    let mut out_of_order = Handshake::new(dial(port), HANDSHAKE_TIMEOUT).unwrap();
    out_of_order.send(&Message::Start).unwrap();
    assert!(matches!(out_of_order.receive(), Err(HandshakeError::Closed)));
    // Another protocol version gets a frame back, whose header contains our version.
    let mut stream = dial(port);
    let mut header = crate::frame::Frame::control(crate::frame::FrameKind::Handshake, vec![0; 8]).header(0);
    header[4] = 200;
    stream.write_all(&header).unwrap();
    stream.write_all(&[0; 8]).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[4], crate::frame::PROTOCOL);
    join(1, 2, port).join().unwrap().unwrap();
    zero.join().unwrap().unwrap();
}

#[test]
fn a_slow_sender_does_not_extend_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let sender = spawn(move || {
        let frame = Frame::control(FrameKind::Handshake, Vec::new()).header(0);
        for byte in frame {
            if slow.write_all(&[byte]).is_err() {
                return;
            }
            sleep(Duration::from_millis(20));
        }
    });
    let mut handshake = Handshake::new(stream, Duration::from_millis(200)).unwrap();
    assert!(matches!(handshake.receive(), Err(HandshakeError::TimedOut)));
    drop(handshake);
    sender.join().unwrap();
}
