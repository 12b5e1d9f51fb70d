//! Meetings in which one party is played by hand, to misbehave in ways that `Group::join` never does.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{JoinHandle, sleep, spawn};

use super::greeting::Party;
use super::talk::{Hello, Message, Roster, Talk, TalkError};
use super::*;
use crate::frame::{Accept, Frame, Kind, read_frame};
use crate::secret::Credentials;
use crate::{Group, Place, Rendezvous};

fn place(rank: usize, world: usize, port: u16) -> Place {
    let rendezvous = Rendezvous::Tcp { host: "127.0.0.1".to_owned(), port };
    Place { rank: Some(rank), world, rendezvous, source: "the test" }
}

fn join(rank: usize, world: usize, port: u16) -> JoinHandle<Result<Group, CommError>> {
    let options = Options { join: Duration::from_secs(10), name: Some(format!("host{rank}")), ..Options::default() };
    spawn(move || Group::join(&place(rank, world, port), &Identity::new(), &options))
}

/// A free port from the system; unlike a fixed one it is not used again soon.
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

/// Greets rank 0 as `rank` and says hello with `hello_rank`.
fn sit_down(rank: usize, hello_rank: u64, world: u64, port: u16) -> Talk {
    let mut talk = Talk::new(dial(port), HANDSHAKE).unwrap();
    greeting::dial(
        &mut talk,
        &Party { rank: Some(rank), generation: 0, credentials: &Credentials::None, encrypt: false },
        0,
    )
    .unwrap();
    let hello = Hello {
        rank: Some(hello_rank),
        world,
        name: format!("raw{rank}"),
        listener: Some("127.0.0.1:9".parse().unwrap()),
        pace: Pace::new(Duration::from_secs(60)),
        identity: Identity::new(),
    };
    talk.send(&Message::Hello(hello)).unwrap();
    talk
}

fn roster(talk: &mut Talk) -> Roster {
    match talk.receive().unwrap() {
        Message::Roster(roster) => roster,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reminds_after_two_seconds_then_every_ten() {
    let start = Instant::now();
    let mut reminder = Reminder::new(start);
    let due: Vec<u64> = (0..30).filter(|s| reminder.is_due(start + Duration::from_secs(*s))).collect();
    assert_eq!(due, [2, 12, 22]);
}

#[test]
fn a_restarted_rank_takes_its_own_place() {
    let port = free_port();
    let zero = join(0, 3, port);
    let first_life = sit_down(1, 1, 3, port);
    sleep(Duration::from_millis(200));
    drop(first_life);
    let ranks = [zero, join(1, 3, port), join(2, 3, port)];
    let groups = ranks.map(|rank| rank.join().unwrap().unwrap());
    assert_eq!(groups[0].host(1), "host1");
}

#[test]
fn a_waiting_rank_whose_machine_is_gone_is_noticed_by_the_system() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let kept = stream.try_clone().unwrap();
    let is_watched = || socket2::SockRef::from(&kept).keepalive().unwrap();
    let talk = Talk::new(stream, HANDSHAKE).unwrap();
    assert!(is_watched());
    let _connection = talk.into_connection();
    assert!(!is_watched(), "the run has limits of its own");
}

#[test]
fn a_rank_that_cannot_reach_another_ends_the_run_for_all() {
    let port = free_port();
    let (zero, one) = (join(0, 3, port), join(1, 3, port));
    let mut two = sit_down(2, 2, 3, port);
    let members = roster(&mut two).members;
    assert_eq!(members[1].name, "host1");
    // Rank 1 waits at its door; rank 2 gives up instead of coming.
    two.send(&Message::Failed("cannot reach rank 1 (host1)".to_owned())).unwrap();
    for rank in [zero, one] {
        let text = rank.join().unwrap().unwrap_err().to_string();
        assert!(text.contains("rank 2 (raw2): cannot reach rank 1 (host1)"), "{text}");
    }
}

#[test]
fn a_rank_lost_before_the_start_ends_the_run_for_all() {
    let port = free_port();
    let (zero, one) = (join(0, 3, port), join(1, 3, port));
    let mut two = sit_down(2, 2, 3, port);
    roster(&mut two);
    drop(two);
    for rank in [zero, one] {
        let text = rank.join().unwrap().unwrap_err().to_string();
        assert!(text.contains("rank 2 (raw2): it closed the connection"), "{text}");
    }
}

#[test]
fn a_rank_that_has_the_start_learns_of_one_that_could_not_get_it() {
    let port = free_port();
    let zero = join(0, 3, port);
    let (mut one, mut two) = (sit_down(1, 1, 3, port), sit_down(2, 2, 3, port));
    let generation = roster(&mut two).generation;
    roster(&mut one);
    two.send(&Message::Ready).unwrap();
    // Gone for good, and rank 0's system knows it when the start is due.
    let stream = two.into_connection().stream;
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    sleep(Duration::from_millis(300));
    one.send(&Message::Ready).unwrap();
    assert_eq!(one.receive().unwrap(), Message::Start);
    let accept = Accept { generation, limit_bytes: 4096 };
    let word = read_frame(&mut one.into_connection().stream, accept).unwrap();
    let reason = String::from_utf8(word.payload.to_vec()).unwrap();
    assert_eq!(word.kind, Kind::Abort, "{reason}");
    assert!(reason.contains("rank 2 (raw2)"), "{reason}");
    let text = zero.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("rank 2 (raw2)"), "{text}");
}

#[test]
fn a_door_between_ranks_opens_only_to_this_group() {
    let port = free_port();
    let (zero, one) = (join(0, 3, port), join(1, 3, port));
    let mut two = sit_down(2, 2, 3, port);
    let roster = roster(&mut two);
    let door = roster.members[1].listener.unwrap();
    let knock = |rank: usize, generation: u64| {
        let mut talk = Talk::new(TcpStream::connect(door).unwrap(), HANDSHAKE).unwrap();
        greeting::dial(
            &mut talk,
            &Party { rank: Some(rank), generation, credentials: &Credentials::None, encrypt: false },
            1,
        )?;
        talk.receive().map(|message| (message, talk))
    };
    let earlier_run = knock(2, roster.generation ^ 1);
    assert!(matches!(earlier_run, Err(TalkError::RefusedUs(refusal::Refusal::OtherGroup))));
    let nobody = knock(7, roster.generation);
    assert!(matches!(nobody, Err(TalkError::RefusedUs(refusal::Refusal::Taken { rank: 7, .. }))));
    let (message, _link) = knock(2, roster.generation).unwrap();
    assert_eq!(message, Message::Accepted);
    two.send(&Message::Ready).unwrap();
    assert_eq!(two.receive().unwrap(), Message::Start);
    zero.join().unwrap().unwrap();
    one.join().unwrap().unwrap();
}

#[test]
fn a_rank_that_gave_up_its_connection_may_dial_again() {
    let port = free_port();
    let (zero, one) = (join(0, 4, port), join(1, 4, port));
    let (mut two, mut three) = (sit_down(2, 2, 4, port), sit_down(3, 3, 4, port));
    let roster = roster(&mut two);
    let door = roster.members[1].listener.unwrap();
    let knock = |rank: usize| {
        let mut talk = Talk::new(TcpStream::connect(door).unwrap(), HANDSHAKE).unwrap();
        let (generation, credentials) = (roster.generation, &Credentials::None);
        greeting::dial(&mut talk, &Party { rank: Some(rank), generation, credentials, encrypt: false }, 1).unwrap();
        talk.receive().map(|message| (message, talk))
    };
    drop(knock(2).unwrap());
    let second = knock(2).unwrap();
    assert_eq!(second.0, Message::Accepted);
    // While the second holds, a third is one too many.
    assert!(matches!(knock(2), Err(TalkError::RefusedUs(refusal::Refusal::Taken { rank: 2, .. }))));
    let _last = knock(3).unwrap();
    two.send(&Message::Ready).unwrap();
    three.receive().unwrap();
    three.send(&Message::Ready).unwrap();
    zero.join().unwrap().unwrap();
    one.join().unwrap().unwrap();
}

#[test]
fn odd_handshakes_are_turned_away_and_the_run_goes_on() {
    let port = free_port();
    let zero = join(0, 2, port);
    // Claims one rank in the greeting and another in the hello.
    let mut liar = sit_down(1, 0, 2, port);
    assert!(matches!(liar.receive(), Err(TalkError::Closed)));
    // A rank 0 that dials.
    let mut twin = sit_down(0, 0, 2, port);
    assert!(matches!(twin.receive(), Err(TalkError::RefusedUs(refusal::Refusal::Taken { .. }))));
    // A message out of order.
    let mut hasty = Talk::new(dial(port), HANDSHAKE).unwrap();
    hasty.send(&Message::Start).unwrap();
    assert!(matches!(hasty.receive(), Err(TalkError::Closed)));
    // Another version of the protocol gets a frame back, from which it learns ours.
    let mut stream = dial(port);
    let mut header = crate::frame::Frame::control(crate::frame::Kind::Handshake, vec![0; 8]).header(0);
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
fn a_slow_talker_does_not_win_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let dripping = spawn(move || {
        let frame = Frame::control(Kind::Handshake, Vec::new()).header(0);
        for byte in frame {
            if slow.write_all(&[byte]).is_err() {
                return;
            }
            sleep(Duration::from_millis(20));
        }
    });
    let start = Instant::now();
    let mut talk = Talk::new(stream, Duration::from_millis(200)).unwrap();
    assert!(matches!(talk.receive(), Err(TalkError::TimedOut)));
    assert!(start.elapsed() < Duration::from_secs(1));
    drop(talk);
    dripping.join().unwrap();
}
