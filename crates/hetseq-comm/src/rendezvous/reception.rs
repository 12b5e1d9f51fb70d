//! A door that strangers may knock at: a thread accepts connections and greets each in a thread of its own, so that
//! a silent or hostile one delays nobody. Who is let in when many come is decided in `admission.rs`.
//!
//! It does not know what a greeting is or what becomes of who came; `host.rs`, `pairing.rs` and `doorkeeper.rs` do.

use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::HANDSHAKE;
use super::admission::{Admission, Limits, Visitor, decide};
use super::talk::{Talk, TalkError, canonical};
use crate::error::CommError;
use crate::link::locked;
use crate::socket;

/// How long to wait when the system cannot accept, for lack of file descriptors say.
const SHORTAGE: Duration = Duration::from_millis(100);

/// How to greet: everything up to knowing who it is.
type Greet<T> = dyn Fn(Talk) -> Result<T, TalkError> + Send + Sync;

pub(super) enum Arrival<T> {
    Came(T),
    TurnedAway { address: SocketAddr, why: TalkError },
}

/// Closed when dropped: the port is free then, and whoever is being greeted is cut off.
pub(super) struct Reception<T> {
    door: Arc<Door>,
    done: Receiver<Arrival<T>>,
    acceptor: Option<JoinHandle<()>>,
}

/// What the accepting thread shares with its owner.
pub(super) struct Door {
    listener: TcpListener,
    state: Mutex<State>,
}

struct State {
    limits: Limits,
    inside: Vec<Inside>,
    /// In here, so that nobody can slip in between the last look at who is inside and the closing.
    is_closing: bool,
}

/// A connection that is being greeted.
struct Inside {
    ip: IpAddr,
    since: Instant,
    stream: TcpStream,
    pushed_out: Arc<AtomicBool>,
}

impl<T: Send + 'static> Reception<T> {
    pub(super) fn open(
        listener: TcpListener,
        limits: Limits,
        greet: impl Fn(Talk) -> Result<T, TalkError> + Send + Sync + 'static,
    ) -> Result<Reception<T>, CommError> {
        let state = Mutex::new(State { limits, inside: Vec::new(), is_closing: false });
        let door = Arc::new(Door { listener, state });
        // No sender is kept here: when the door is closed and all greetings have ended, the channel ends too.
        let (report, done) = channel();
        let acceptor = Acceptor { door: door.clone(), greet: Arc::new(greet), report };
        let thread = std::thread::Builder::new().name("hetseq-door".to_owned()).spawn(move || acceptor.run());
        let thread = thread.map_err(|source| CommError::System { what: "start a thread", reason: source })?;
        Ok(Reception { door, done, acceptor: Some(thread) })
    }

    /// Who has been greeted since the last call; waits up to `patience` for the first.
    pub(super) fn poll(&self, patience: Duration) -> Vec<Arrival<T>> {
        self.next(patience).into_iter().chain(self.done.try_iter()).collect()
    }

    /// The next who has been greeted; it is `Disconnected` once the door is closed.
    pub(super) fn next(&self, patience: Duration) -> Result<Arrival<T>, RecvTimeoutError> {
        self.done.recv_timeout(patience)
    }

    pub(super) fn limit(&self, limits: Limits) {
        locked(&self.door.state).limits = limits;
    }

    /// To close the door from another thread than the one that waits at it.
    pub(super) fn door(&self) -> Arc<Door> {
        self.door.clone()
    }
}

impl Door {
    pub(super) fn close(&self) {
        let inside = {
            let mut state = locked(&self.state);
            state.is_closing = true;
            std::mem::take(&mut state.inside)
        };
        socket::wake(&self.listener);
        for inside in inside {
            // Fails only when it is gone already.
            let _ = inside.stream.shutdown(Shutdown::Both);
        }
    }

    fn is_closing(&self) -> bool {
        locked(&self.state).is_closing
    }

    /// Makes a place for a connection, if it may come in.
    fn admit(&self, stream: &TcpStream, ip: IpAddr) -> Result<Arc<AtomicBool>, TalkError> {
        let mut state = locked(&self.state);
        if state.is_closing {
            return Err(TalkError::Closing);
        }
        let now = Instant::now();
        let visitor = |inside: &Inside| Visitor { ip: inside.ip, age: now.duration_since(inside.since) };
        let visitors: Vec<Visitor> = state.inside.iter().map(visitor).collect();
        match decide(&visitors, ip, &state.limits) {
            Admission::LetIn => {}
            Admission::InPlaceOf(index) => {
                let out = state.inside.swap_remove(index);
                out.pushed_out.store(true, Ordering::Release);
                let _ = out.stream.shutdown(Shutdown::Both);
            }
            Admission::TurnAway => return Err(TalkError::Crowded),
        }
        let stream = stream.try_clone().map_err(TalkError::Io)?;
        let pushed_out = Arc::new(AtomicBool::new(false));
        state.inside.push(Inside { ip, since: now, stream, pushed_out: pushed_out.clone() });
        Ok(pushed_out)
    }

    fn leave(&self, place: &Arc<AtomicBool>) {
        locked(&self.state).inside.retain(|inside| !Arc::ptr_eq(&inside.pushed_out, place));
    }
}

impl<T> Drop for Reception<T> {
    fn drop(&mut self) {
        self.door.close();
        if let Some(thread) = self.acceptor.take() {
            // It holds no lock while it could panic, and nobody waits for it but this.
            let _ = thread.join();
        }
    }
}

struct Acceptor<T> {
    door: Arc<Door>,
    greet: Arc<Greet<T>>,
    report: Sender<Arrival<T>>,
}

impl<T: Send + 'static> Acceptor<T> {
    fn run(self) {
        loop {
            let accepted = self.door.listener.accept();
            if self.door.is_closing() {
                return;
            }
            match accepted {
                Ok((stream, address)) => self.receive(stream, canonical(address)),
                // One that is gone before it was let in must not hold up the next.
                Err(error) if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) => {}
                Err(_) => std::thread::sleep(SHORTAGE),
            }
        }
    }

    fn receive(&self, stream: TcpStream, address: SocketAddr) {
        let place = match self.door.admit(&stream, address.ip()) {
            Ok(place) => place,
            Err(why) => {
                drop(stream);
                self.report(Arrival::TurnedAway { address, why });
                // Not while holding the lock.
                let pause = locked(&self.door.state).limits.pause;
                std::thread::sleep(pause);
                return;
            }
        };
        let (door, greet, report, taken) = (self.door.clone(), self.greet.clone(), self.report.clone(), place.clone());
        let run = move || {
            let greeted = Talk::new(stream, HANDSHAKE).and_then(|talk| greet(talk));
            door.leave(&taken);
            let arrival = match greeted {
                Ok(guest) => Arrival::Came(guest),
                Err(_) if taken.load(Ordering::Acquire) => Arrival::TurnedAway { address, why: TalkError::Crowded },
                Err(_) if door.is_closing() => Arrival::TurnedAway { address, why: TalkError::Closing },
                Err(why) => Arrival::TurnedAway { address, why },
            };
            // Fails only when the meeting is over, and then nobody is interested.
            let _ = report.send(arrival);
        };
        if let Err(error) = std::thread::Builder::new().name("hetseq-greet".to_owned()).spawn(run) {
            // The connection closes, and an honest rank dials again.
            self.door.leave(&place);
            self.report(Arrival::TurnedAway { address, why: TalkError::Io(error) });
            std::thread::sleep(SHORTAGE);
        }
    }

    fn report(&self, arrival: Arrival<T>) {
        let _ = self.report.send(arrival);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_comes_in_behind_a_closed_door() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ip = stream.peer_addr().unwrap().ip();
        let state = State { limits: Limits::UNDER_WAY, inside: Vec::new(), is_closing: false };
        let door = Door { listener, state: Mutex::new(state) };
        assert!(door.admit(&stream, ip).is_ok());
        door.close();
        assert!(matches!(door.admit(&stream, ip), Err(TalkError::Closing)));
        assert!(locked(&door.state).inside.is_empty());
    }
}
