//! The `tcp` engine: two threads per connection that move frames between lanes and a socket.
//!
//! The reader drains the socket all the time, so two ranks that send large vectors to each other never
//! wait for each other's writes; it also is the one that notices silence. The writer sends what is
//! queued, and a heartbeat when nothing is, so heartbeats flow while the rank computes. Who is at the
//! other end was settled by `rendezvous/`.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::connection::{Connection, ReadHalf, WriteHalf};
use crate::error::{CommError, shown};
use crate::frame::{Accept, FRAME_LIMIT_BYTES, Frame, FrameError, Kind, ReadError, read_frame_into};
use crate::lane::{Bell, End, Lane, Next};
use crate::link::Link;
use crate::options::Options;

/// A reason longer than this says no more.
pub(crate) const REASON_LIMIT_BYTES: usize = 4096;

/// Up to here copying a payload behind its header is cheaper than a second packet.
const SMALL_BYTES: usize = 16 << 10;

/// The socket and the two threads of a link.
pub(crate) struct Wire {
    stream: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl Wire {
    /// Breaks the connection; a thread that is inside a read or a write returns at once.
    fn cut(&self) {
        // Fails only when the connection is gone already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.cut();
        for thread in self.threads.drain(..) {
            // A panic there was seen as an ended lane already.
            let _ = thread.join();
        }
    }
}

/// Starts the threads of a connection whose handshake is done; `bell` is the rank's own.
pub(crate) fn link(
    connection: Connection,
    generation: u64,
    bell: &Arc<Bell>,
    options: &Options,
) -> Result<Link, CommError> {
    let (reader_bell, writer_bell) = (Arc::<Bell>::default(), Arc::<Bell>::default());
    let incoming = Lane::new(reader_bell, bell.clone());
    let outgoing = Lane::new(bell.clone(), writer_bell.clone());
    let silence = options.silence;
    let prepare = || {
        let (stream, from, to) = connection.split()?;
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        // The time limit of a read is the silence deadline. Measured in the kernel, it cannot be fooled by
        // a process that was stopped: bytes that came meanwhile are found first.
        stream.set_read_timeout(Some(silence))?;
        // A write may take long when the peer is behind; if the peer is dead, the reader notices and the
        // connection is cut, which ends the write.
        stream.set_write_timeout(None)?;
        let ends = (stream.try_clone()?, stream.try_clone()?);
        Ok((stream, ends, from, to))
    };
    let (stream, (read_end, write_end), from, to) =
        prepare().map_err(|source| CommError::System { what: "prepare a connection", reason: source })?;
    let mut wire = Wire { stream, threads: Vec::new() };
    let reader = Reader { stream: read_end, from, lane: incoming.clone(), generation, silence };
    wire.threads.push(spawn("hetseq-read", move || reader.run())?);
    let beat = options.beat();
    let writer = Writer { stream: write_end, to, lane: outgoing.clone(), bell: writer_bell, generation, beat };
    wire.threads.push(spawn("hetseq-write", move || writer.run())?);
    Ok(Link { outgoing, incoming, wire: Some(wire) })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, CommError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|source| CommError::System { what: "start a thread", reason: source })
}

/// Ends the lane even if the thread panics, so that nobody waits for it.
struct EndOnDrop<'a>(&'a Lane);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end(End::Closed("the connection was given up".to_owned()));
    }
}

struct Reader {
    stream: TcpStream,
    from: ReadHalf,
    lane: Arc<Lane>,
    generation: u64,
    silence: Duration,
}

impl Reader {
    fn run(mut self) {
        let _guard = EndOnDrop(&self.lane);
        let accept = Accept { generation: self.generation, limit_bytes: FRAME_LIMIT_BYTES };
        let end = loop {
            // Not reading is not silence: the clock runs only inside a read.
            self.lane.wait_for_room();
            match read_frame_into(&mut self.from, accept, |bytes| self.lane.buffers.take(bytes)) {
                Ok(frame) => match frame.kind {
                    Kind::Heartbeat => {}
                    Kind::Goodbye => break End::Goodbye,
                    Kind::Abort => {
                        let reason = String::from_utf8_lossy(&frame.payload);
                        break End::Aborted(shown(&reason, REASON_LIMIT_BYTES));
                    }
                    Kind::Handshake => {
                        let kind = frame.kind.name();
                        break End::Garbled(FrameError::OutOfPlace { kind });
                    }
                    _ => self.lane.push(frame),
                },
                Err(ReadError::TimedOut) => break End::Silent(self.silence),
                Err(ReadError::Frame(fault)) => break End::Garbled(fault),
                Err(ReadError::Closed) => {
                    break End::Closed("its connection closed without a goodbye".to_owned());
                }
                Err(ReadError::Cut) => {
                    break End::Closed("its connection closed in the middle of a frame".to_owned());
                }
                Err(ReadError::Io(error)) => break End::Closed(format!("connection lost: {error}")),
            }
        };
        self.lane.end(end);
        // Nothing will be read any more. The peer, if it is saying goodbye, sees this as the answer.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

struct Writer {
    stream: TcpStream,
    to: WriteHalf,
    lane: Arc<Lane>,
    bell: Arc<Bell>,
    generation: u64,
    beat: Duration,
}

impl Writer {
    fn run(mut self) {
        if self.serve().is_err() {
            // The reader sees the same broken connection and reports it.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        self.lane.stop_listening();
    }

    fn serve(&mut self) -> std::io::Result<()> {
        let mut written = Instant::now();
        loop {
            let seen = self.bell.rings();
            match self.lane.next() {
                Next::Frame(frame) => {
                    self.write(&frame)?;
                    self.lane.buffers.give(frame.payload);
                    written = Instant::now();
                }
                Next::Ended(end) => return self.part(end),
                Next::Nothing => {
                    let idle = written.elapsed();
                    if idle >= self.beat {
                        self.write(&Frame::control(Kind::Heartbeat, Vec::new()))?;
                        written = Instant::now();
                    } else {
                        self.bell.wait(seen, self.beat - idle);
                    }
                }
            }
        }
    }

    /// The last words. Only the sending half is shut down: if data from the peer arrived at a fully
    /// closed socket, the answering reset could destroy these words on their way.
    fn part(&mut self, end: End) -> std::io::Result<()> {
        match end {
            End::Goodbye => self.write(&Frame::control(Kind::Goodbye, Vec::new()))?,
            End::Aborted(reason) => {
                let reason = shown(&reason, REASON_LIMIT_BYTES).into_bytes();
                self.write(&Frame::control(Kind::Abort, reason))?;
            }
            End::Closed(_) | End::Silent(_) | End::Garbled(_) => {}
        }
        self.stream.shutdown(Shutdown::Write)
    }

    fn write(&mut self, frame: &Frame) -> std::io::Result<()> {
        let header = frame.header(self.generation);
        // A small frame leaves as one packet. Not `write_vectored`, which, unlike `write`, would raise
        // SIGPIPE at a closed connection in a program that has restored that signal's default.
        if frame.payload.len() <= SMALL_BYTES {
            return self.to.write_all(&[&header, &frame.payload[..]].concat());
        }
        self.to.write_all(&header)?;
        self.to.write_all(&frame.payload)
    }
}

#[cfg(test)]
mod tests;
