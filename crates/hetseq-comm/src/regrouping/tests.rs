//! A rank that regroups, with peers simulated frame by frame.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread::{scope, sleep};

use super::*;
use crate::connection::Connection;
use crate::frame::{Accept, FRAME_LIMIT_BYTES, read_frame};
use crate::heartbeat_timing::HeartbeatTiming;
use crate::options::Options;
use crate::{reduce, stream};

pub(crate) const GENERATION: u64 = 77;

/// The other end of a link.
pub(crate) struct Peer {
    pub(crate) socket: UnixStream,
}

impl Peer {
    pub(crate) fn send_frame(&mut self, frame: &Frame, generation: u64) -> std::io::Result<()> {
        self.socket.write_all(&[&frame.header(generation)[..], &frame.payload].concat())
    }

    pub(crate) fn send(&mut self, message: &RegroupMessage) {
        self.send_frame(&regroup_frame(message), GENERATION).unwrap();
    }

    /// Returns the next message about the membership; `None` if the link has ended.
    fn next_message(&mut self) -> Option<RegroupMessage> {
        self.socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        loop {
            let frame = read_frame(&mut self.socket, Accept::only(GENERATION, FRAME_LIMIT_BYTES)).ok()?;
            if frame.kind == FrameKind::Regroup {
                return Some(postcard::from_bytes(&frame.payload).unwrap());
            }
        }
    }

    /// Follows the proposer until the link ends.
    pub(crate) fn follow(mut self) {
        while let Some(message) = self.next_message() {
            match message {
                RegroupMessage::Prepare => {
                    let lost = RankSet::new();
                    self.send(&RegroupMessage::Promise { lost, has_newcomer: false, accepted: None, leaves: false });
                }
                RegroupMessage::Propose { .. } => self.send(&RegroupMessage::Accept),
                _ => {}
            }
        }
    }

    /// Sends these frames again and again until the link ends.
    pub(crate) fn flood(mut self, frames: &[Frame], generation: u64) {
        let bytes = frames.iter().flat_map(|frame| [&frame.header(generation)[..], &frame.payload].concat());
        let bytes: Vec<u8> = bytes.collect::<Vec<u8>>().repeat(200);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) && self.socket.write_all(&bytes).is_ok() {}
    }
}

pub(crate) fn regroup_frame(message: &RegroupMessage) -> Frame {
    Frame::control(FrameKind::Regroup, postcard::to_stdvec(message).unwrap())
}

fn barrier_frame() -> Frame {
    Frame { sequence: 1, ..Frame::control(FrameKind::Barrier, Vec::new()) }
}

/// One rank of a group, and the far ends of its links in rank order.
pub(crate) fn rank_and_peers(rank: usize, world: usize, silence: u64, progress: u64) -> (Mesh, Vec<Peer>) {
    let (mut connections, mut peers) = (Vec::new(), Vec::new());
    for peer in 0..world {
        connections.push((peer != rank).then(|| {
            let (near, far) = UnixStream::pair().unwrap();
            peers.push(Peer { socket: far });
            Connection { socket: near.into(), encryption: None }
        }));
    }
    let (silence, progress) = (Duration::from_millis(silence), Duration::from_millis(progress));
    let options = Options { silence, progress, ..Options::default() };
    let hosts = (0..world).map(|rank| format!("host{rank}")).collect();
    let timing = HeartbeatTiming::of(silence, Duration::ZERO);
    (stream::mesh(rank, GENERATION, hosts, connections, timing, &options).unwrap(), peers)
}

pub(crate) fn by_quorum() -> RegroupRules {
    RegroupRules { directory: None, min_workers: 1 }
}

fn regroup(mesh: &mut Mesh) -> Result<Regrouped, CommError> {
    mesh.regroup(&by_quorum(), &by_quorum(), &mut Vec::new(), Intent::Continue)
}

/// Regroups and checks that this takes no longer than a few seconds.
fn regroup_soon(mesh: &mut Mesh) -> Result<Regrouped, CommError> {
    let start = Instant::now();
    let result = regroup(mesh);
    assert!(start.elapsed() < Duration::from_secs(8), "took {:?}: {result:?}", start.elapsed());
    result
}

#[test]
fn a_peer_that_was_given_up_loses_the_link_while_the_others_are_asked() {
    let (mut mesh, mut peers) = rank_and_peers(0, 3, 300, 60_000);
    let (mut other, mut silent) = (peers.pop().unwrap(), peers.pop().unwrap());
    let (mut beating, heartbeat) =
        (other.socket.try_clone().unwrap(), Frame::control(FrameKind::Heartbeat, Vec::new()));
    scope(|scope| {
        scope.spawn(move || {
            while beating.write_all(&heartbeat.header(GENERATION)).is_ok() {
                sleep(Duration::from_millis(20));
            }
        });
        assert!(matches!(reduce::barrier(&mut mesh), Err(CommError::Silent { rank: 1, .. })));
        scope.spawn(move || {
            assert_eq!(silent.next_message(), None);
            assert_eq!(other.next_message(), Some(RegroupMessage::Prepare));
            other.socket.shutdown(std::net::Shutdown::Both).unwrap();
        });
        assert!(matches!(regroup_soon(&mut mesh), Err(CommError::NoQuorum { .. })));
    });
}

/// The heartbeat thread must not read them as frames of the old generation.
#[test]
fn frames_of_the_next_generation_follow_the_decision() {
    let decision = regroup_frame(&RegroupMessage::Install { members: [0, 1].into() });
    for _ in 0..300 {
        // The thread wakes every 10 ms.
        let (mut mesh, mut peers) = rank_and_peers(1, 2, 200, 5_000);
        peers[0].send_frame(&decision, GENERATION).unwrap();
        peers[0].send_frame(&barrier_frame(), GENERATION + 1).unwrap();
        assert_eq!(regroup(&mut mesh).unwrap().survivors, [0, 1]);
        reduce::barrier(&mut mesh).unwrap();
    }
}

#[test]
fn a_rank_that_leaves_does_not_wait_for_a_message_to_be_taken() {
    let (mut mesh, mut peers) = rank_and_peers(0, 2, 200, 20_000);
    let mut peer = peers.pop().unwrap();
    peer.send(&RegroupMessage::Suspect { lost: RankSet::new() });
    while !mesh.transport.has_regroup(1) {
        sleep(Duration::from_millis(1));
    }
    scope(|scope| {
        scope.spawn(move || {
            while read_frame(&mut peer.socket, Accept::only(GENERATION, FRAME_LIMIT_BYTES)).unwrap().kind
                != FrameKind::Goodbye
            {}
        });
        let start = Instant::now();
        mesh.leave(LinkEnd::Goodbye);
        assert!(start.elapsed() < Duration::from_secs(5), "took {:?}", start.elapsed());
    });
}

/// Floods a rank that waits for an answer; returns the ranks that continue.
fn survivors_of_flood(frames: &[Frame]) -> Vec<usize> {
    let (mut mesh, mut peers) = rank_and_peers(0, 2, 60_000, 300);
    let flooding = peers.pop().unwrap();
    scope(|scope| {
        scope.spawn(move || flooding.flood(frames, GENERATION));
        let regrouped = regroup_soon(&mut mesh).unwrap();
        assert_eq!(regrouped.lost.len(), 1);
        regrouped.survivors
    })
}

#[test]
fn a_flood_does_not_extend_the_wait() {
    let suspect = RegroupMessage::Suspect { lost: [0, 1].into() };
    assert_eq!(survivors_of_flood(&[barrier_frame()]), [0]);
    assert_eq!(survivors_of_flood(&[regroup_frame(&suspect)]), [0]);
    assert_eq!(survivors_of_flood(&[barrier_frame(), regroup_frame(&suspect)]), [0]);
}

#[test]
fn a_proposer_that_asks_without_end_is_given_up() {
    let (mut mesh, mut peers) = rank_and_peers(1, 2, 60_000, 60_000);
    let flooding = peers.pop().unwrap();
    scope(|scope| {
        // It does not read the answers, either.
        scope.spawn(move || flooding.flood(&[regroup_frame(&RegroupMessage::Prepare)], GENERATION));
        assert!(matches!(regroup_soon(&mut mesh), Err(CommError::NoQuorum { .. })));
    });
}

#[test]
fn a_flood_of_stale_frames_makes_no_progress() {
    let (mut mesh, mut peers) = rank_and_peers(1, 2, 60_000, 300);
    let mut peer = peers.pop().unwrap();
    peer.send(&RegroupMessage::Install { members: [0, 1].into() });
    regroup_soon(&mut mesh).unwrap();
    scope(|scope| {
        let stale = Frame { payload: crate::buffers::Payload::new(vec![0; 4_000]), ..barrier_frame() };
        scope.spawn(move || peer.flood(&[stale], GENERATION));
        let start = Instant::now();
        let error = reduce::barrier(&mut mesh).unwrap_err();
        assert!(matches!(error, CommError::NoProgress { rank: 0, .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(8), "took {:?}", start.elapsed());
        drop(mesh);
    });
}

#[test]
fn an_abort_ends_the_run_also_while_the_others_regroup() {
    let (mut mesh, mut peers) = rank_and_peers(0, 3, 60_000, 60_000);
    let (mut aborting, lost) = (peers.pop().unwrap(), peers.pop().unwrap());
    drop(lost);
    assert!(reduce::barrier(&mut mesh).unwrap_err().is_lost_rank());
    aborting.send_frame(&Frame::control(FrameKind::Abort, b"the disk is full".to_vec()), GENERATION).unwrap();
    let error = regroup_soon(&mut mesh).unwrap_err();
    assert!(!error.is_lost_rank() && !error.is_cut_off(), "{error}");
    assert!(error.to_string().starts_with("rank 2 (host2) stopped: the disk is full"), "{error}");
}

#[test]
fn a_peer_that_sends_invalid_data_is_not_a_member_any_more() {
    let (mut mesh, mut peers) = rank_and_peers(0, 3, 60_000, 60_000);
    let (other, mut invalid) = (peers.pop().unwrap(), peers.pop().unwrap());
    // A barrier carries nothing.
    let filled = Frame { payload: crate::buffers::Payload::new(vec![1; 10]), ..barrier_frame() };
    invalid.send_frame(&filled, GENERATION).unwrap();
    scope(|scope| {
        scope.spawn(move || invalid.follow());
        scope.spawn(move || other.follow());
        assert!(matches!(reduce::barrier(&mut mesh), Err(CommError::Garbled { rank: 1, .. })));
        let regrouped = regroup_soon(&mut mesh).unwrap();
        assert_eq!(regrouped.survivors, [0, 2]);
        assert!(regrouped.lost[0].reason.contains("invalid data"), "{:?}", regrouped.lost);
        drop(mesh);
    });
}

#[test]
fn a_message_that_no_group_can_need_is_rejected() {
    let (mut mesh, mut peers) = rank_and_peers(0, 2, 60_000, 60_000);
    let message = RegroupMessage::Suspect { lost: (0..200_000).collect() };
    scope(|scope| {
        let mut peer = peers.pop().unwrap();
        scope.spawn(move || peer.send_frame(&regroup_frame(&message), GENERATION));
        let regrouped = regroup_soon(&mut mesh).unwrap();
        assert_eq!(regrouped.survivors, [0]);
        assert!(regrouped.lost[0].reason.contains("the limit is"), "{:?}", regrouped.lost);
    });
}
