//! Fuzzing of the messages about the next generation: into the machine, and into a rank whose peers
//! send arbitrary frames before, in and after its collectives. `hetseq-fuzz` sets seed and time.
//!
//! Nothing may panic or allocate without bounds, and no call may take longer than its deadlines. Which ranks continue does not
//! matter here: ranks are trusted to follow the protocol, not to be free of bugs.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use hetseq_fuzz::{Rng, bounded, damage, fuzz};

use crate::buffers::Payload;
use crate::error::CommError;
use crate::frame::{CHUNK_BYTES, Frame, FrameKind};
use crate::reduce;
use crate::regroup::{Accepted, Arbiter, Input, Output, RankSet, Regroup, RegroupMessage, RegroupSetup};
use crate::regrouping::tests::{GENERATION, Peer, rank_and_peers};
use crate::regrouping::{Intent, RegroupRules};
use crate::transport::LinkEnd;

/// What a rank may allocate in one call: a chunk for each of its at most three peers, whose frames
/// are small but may claim to be large.
const MEMORY_LIMIT_BYTES: usize = 3 * CHUNK_BYTES + (256 << 10);

fn rank_set(world: usize, rng: &mut Rng) -> RankSet {
    (0..world).filter(|_| rng.below(3) > 0).collect()
}

/// A valid message of a group of `world` ranks.
fn message(world: usize, rng: &mut Rng) -> RegroupMessage {
    match rng.below(6) {
        0 => RegroupMessage::Suspect { lost: rank_set(world, rng) },
        1 => RegroupMessage::Prepare,
        2 => {
            let accepted = Accepted { ballot: rng.below(world), members: rank_set(world, rng) };
            let accepted = (rng.below(2) == 0).then_some(accepted);
            let (has_newcomer, leaves) = (rng.below(2) == 0, rng.below(4) == 0);
            RegroupMessage::Promise { lost: rank_set(world, rng), has_newcomer, accepted, leaves }
        }
        3 => RegroupMessage::Propose { members: rank_set(world + 1, rng) },
        4 => RegroupMessage::Accept,
        _ => RegroupMessage::Install { members: rank_set(world + 1, rng) },
    }
}

/// The payload of a message: valid, damaged, or arbitrary bytes.
fn payload(world: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = postcard::to_stdvec(&message(world, rng)).unwrap();
    match rng.below(4) {
        0 => damage(&mut bytes, rng),
        1 => {
            let count = rng.below(40);
            bytes = rng.bytes(count);
        }
        _ => {}
    }
    bytes
}

#[test]
fn arbitrary_messages_do_not_break_the_machine() {
    fuzz("regroup messages", |rng| {
        let world = 1 + rng.below(6);
        let arbiter = if rng.below(2) == 0 { Arbiter::Quorum } else { Arbiter::Directory };
        let (rank, min_workers) = (rng.below(world), 1 + rng.below(2));
        let (leaves, has_newcomer) = (rng.below(4) == 0, rng.below(2) == 0);
        let setup = RegroupSetup { rank, world, arbiter, min_workers, leaves, has_newcomer };
        let (mut machine, mut outputs) = Regroup::start(setup, &rank_set(world, rng));
        for _ in 0..20 {
            let from = rng.below(world + 1);
            let input = match rng.below(10) {
                0 => Input::LinkLost(from),
                1 => Input::Arbitrated(Ok(rank_set(world + 1, rng))),
                _ => {
                    let payload = payload(world, rng);
                    match bounded(64 * payload.len() + (4 << 10), || postcard::from_bytes(&payload)) {
                        Ok(message) => Input::Received { from, message },
                        Err(_) => continue,
                    }
                }
            };
            let waiting = machine.waiting_for().to_string();
            assert!(!waiting.is_empty());
            outputs.extend(bounded(16 << 10, || machine.step(input)));
        }
        let is_end = |output: &&Output| matches!(output, Output::Install { .. } | Output::Stop(_));
        assert!(outputs.iter().filter(is_end).count() <= 1);
        for output in outputs {
            match output {
                Output::Send { to, .. } => assert!(to < world && to != setup.rank),
                Output::Install { members } => assert!(members.contains(setup.rank) && members.fits(world + 1)),
                Output::AskDirectory { .. } | Output::Stop(_) => {}
            }
        }
    });
}

/// A frame that a correct peer would not send now.
fn frame(world: usize, rng: &mut Rng) -> (Frame, u64) {
    const KINDS: [FrameKind; 5] =
        [FrameKind::Heartbeat, FrameKind::Barrier, FrameKind::AllGatherBytes, FrameKind::AllReduce, FrameKind::Failed];
    // Mostly messages of this generation: those of others end the link.
    let generation = GENERATION + [0, 0, 0, 0, 0, 0, 1, 1, 2][rng.below(9)];
    if rng.below(4) > 0 {
        return (Frame::control(FrameKind::Regroup, payload(world, rng)), generation);
    }
    let (sequence, payload) = (rng.below(4) as u64, Payload::new(vec![0; [0, 0, 3, 5_000][rng.below(4)]]));
    let kind = KINDS[if rng.below(4) > 0 { rng.below(4) } else { 4 }];
    (Frame { kind, last: true, sequence, payload }, generation)
}

/// Sends frames at arbitrary times, then stays, or closes the link.
fn disturb(mut peer: Peer, world: usize, mut rng: Rng) -> Option<UnixStream> {
    for _ in 0..rng.below(12) {
        let (frame, generation) = frame(world, &mut rng);
        let mut bytes = [&frame.header(generation)[..], &frame.payload].concat();
        if rng.below(40) == 0 {
            damage(&mut bytes, &mut rng);
        }
        if peer.socket.write_all(&bytes).is_err() {
            return None;
        }
        if rng.below(3) == 0 {
            sleep(Duration::from_millis(rng.below(20) as u64));
        }
    }
    (rng.below(2) == 0).then_some(peer.socket)
}

/// A rank that tries collectives and regroups until it must stop.
fn train(rank: usize, world: usize, directory: Option<&std::path::Path>, rng: &mut Rng) {
    let soon = |start: Instant, what: &str| {
        // Silence and progress limits are a fraction of a second.
        assert!(start.elapsed() < Duration::from_secs(10), "{what} took {:?}", start.elapsed());
    };
    let (mut mesh, peers) = rank_and_peers(rank, world, 60, 100);
    let rules = RegroupRules { directory: directory.map(std::path::Path::to_owned), min_workers: 1 };
    scope(|scope| {
        let seeds: Vec<u64> = peers.iter().map(|_| rng.below(1 << 40) as u64).collect();
        let disturbing: Vec<_> = peers
            .into_iter()
            .zip(seeds)
            .map(|(peer, seed)| scope.spawn(move || disturb(peer, world, Rng::new(seed))))
            .collect();
        if rng.below(3) == 0 {
            sleep(Duration::from_millis(rng.below(20) as u64));
        }
        // Regrouping may keep all ranks, so bound the number of attempts.
        for _ in 0..6 {
            let start = Instant::now();
            let is_barrier = rng.below(2) == 0;
            let result: Result<(), CommError> = bounded(MEMORY_LIMIT_BYTES, || match is_barrier {
                true => reduce::barrier(&mut mesh),
                false => reduce::all_gather_bytes(&mut mesh, &[1; 100]).map(drop),
            });
            soon(start, "a collective");
            if result.is_ok() {
                continue;
            }
            let start = Instant::now();
            let regrouped =
                bounded(MEMORY_LIMIT_BYTES, || mesh.regroup(&rules, &rules, &mut Vec::new(), Intent::Continue));
            soon(start, "a regroup");
            match regrouped {
                Ok(regrouped) => assert!(mesh.world() == regrouped.survivors.len() && mesh.rank < mesh.world()),
                Err(error) => {
                    assert!(error.is_cut_off(), "{error}");
                    break;
                }
            }
        }
        let start = Instant::now();
        mesh.leave(LinkEnd::Goodbye);
        soon(start, "leaving");
        drop(disturbing);
    });
}

#[test]
fn arbitrary_frames_do_not_hang_a_rank() {
    // Ranks mostly wait, so several at once.
    scope(|scope| {
        for worker in 0..4 {
            scope.spawn(move || {
                fuzz(&format!("frames for a rank, part {worker}"), |rng| {
                    // Each part has other inputs.
                    (0..worker).for_each(|_| drop(rng.bytes(1)));
                    let world = 2 + rng.below(3);
                    let rank = rng.below(world);
                    // Only where the rank has a quorum alone: others wait before they ask.
                    let has_directory = rng.below(4) == 0 && (rank, world) == (0, 2);
                    let dir = has_directory.then(|| tempfile::tempdir().unwrap());
                    train(rank, world, dir.as_ref().map(tempfile::TempDir::path), rng);
                });
            });
        }
    });
}
