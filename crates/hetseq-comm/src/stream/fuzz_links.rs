//! Fuzzing of a link after the handshake: a member that sends damaged streams, in pieces, plain or
//! encrypted. `hetseq-fuzz` sets seed and time.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hetseq_fuzz::{bounded, damage, fuzz};

use crate::buffers::Pool;
use crate::connection::Connection;
use crate::encryption::tests::EncryptedEnds;
use crate::frame::FrameKind;
use crate::fuzz_frames::{bytes_of, damage_header, frames, read_limit};
use crate::lock::locked;
use crate::transport::Received;

use super::link::StreamLink;

const GENERATION: u64 = 9;

#[test]
fn a_damaged_stream_ends_its_link() {
    const KINDS: [FrameKind; 7] = [
        FrameKind::Heartbeat,
        FrameKind::Regroup,
        FrameKind::AllReduce,
        FrameKind::BroadcastBytes,
        FrameKind::Failed,
        FrameKind::Goodbye,
        FrameKind::Handshake,
    ];
    let ends = EncryptedEnds::new();
    fuzz("links", |rng| {
        let (near, mut far) = UnixStream::pair().unwrap();
        let [mut sender, receiver] = ends.connect();
        let is_encrypted = rng.below(2) == 0;
        let connection = Connection { socket: near.into(), encryption: is_encrypted.then_some(receiver) };
        let frames = frames(&KINDS, rng);
        let mut stream = bytes_of(&frames, GENERATION);
        let is_signed = rng.below(2) == 0;
        if is_signed {
            damage_header(&mut stream, rng);
        }
        if is_encrypted {
            let plain = std::mem::take(&mut stream);
            sender.encryptor.write(&mut stream, &plain).unwrap();
        }
        if !is_signed {
            damage(&mut stream, rng);
        }
        let link = StreamLink::new(connection, GENERATION, &Pool::new(1), Duration::from_secs(60)).unwrap();
        let mut link = locked(&link);
        let mut taken = Vec::new();
        // A record is at most 64 KiB; its length is trusted before it is decrypted.
        let limit_bytes = read_limit(stream.len()) + (256 << 10);
        let pieces = stream.chunks(1 + rng.below(200)).map(Some).chain([None]);
        for piece in pieces {
            match piece {
                Some(piece) => far.write_all(piece).unwrap(),
                None => far.shutdown(std::net::Shutdown::Write).unwrap(),
            }
            bounded(limit_bytes, || {
                link.heartbeat(Duration::from_secs(60));
                link.read_ahead();
                // A message about the next generation keeps what is behind it from being read.
                loop {
                    match link.next() {
                        Received::Frame(frame) => taken.push(frame),
                        _ if link.take_regroup().is_none() => break,
                        _ => {}
                    }
                }
            });
            // An ended link reads nothing more, and the socket would fill up.
            if link.ended().is_some() {
                break;
            }
        }
        assert!(link.ended().is_some(), "the stream has ended, the link has not");
        assert!(is_signed || taken.iter().all(|frame| frames.contains(frame)), "a damaged frame was accepted");
    });
}
