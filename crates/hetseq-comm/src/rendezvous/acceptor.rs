//! Accepts connections on a listener, in a thread. Each connection does its handshake in a separate
//! thread, so that a silent or hostile one delays no other. `limits.rs` decides which connections
//! are accepted when there are too many.
//!
//! It knows neither the handshake nor what happens to the peer afterwards: `rank0.rs`, `pairing.rs`
//! and `door.rs` do, and use this.

use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::HANDSHAKE_TIMEOUT;
use super::handshake::{Handshake, HandshakeError, canonical};
use super::limits::{AcceptDecision, AcceptLimits, OpenConnection, decide};
use crate::error::CommError;
use crate::lock::locked;
use crate::socket;

/// Pause after a failed `accept` or thread start, for example without free file descriptors.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Runs the handshake on a new connection and returns the identified peer.
type Handler<T> = dyn Fn(Handshake) -> Result<T, HandshakeError> + Send + Sync;

/// The outcome of one connection.
pub(super) enum AcceptEvent<T> {
    Accepted(T),
    Rejected { address: SocketAddr, reason: HandshakeError },
}

/// An open listener. Dropping it frees the port and ends handshakes in progress.
pub(super) struct Acceptor<T> {
    handle: Arc<AcceptorHandle>,
    events: Receiver<AcceptEvent<T>>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the accept thread, the handshake threads and the owner.
pub(super) struct AcceptorHandle {
    listener: TcpListener,
    state: Mutex<State>,
}

struct State {
    limits: AcceptLimits,
    active: Vec<ActiveHandshake>,
    /// Under the same lock as `active`: no connection can be added after `close` has emptied it.
    is_closing: bool,
}

/// A connection whose handshake is in progress.
struct ActiveHandshake {
    ip: IpAddr,
    started: Instant,
    stream: TcpStream,
    is_evicted: Arc<AtomicBool>,
}

impl<T: Send + 'static> Acceptor<T> {
    pub(super) fn open(
        listener: TcpListener,
        limits: AcceptLimits,
        handler: impl Fn(Handshake) -> Result<T, HandshakeError> + Send + Sync + 'static,
    ) -> Result<Acceptor<T>, CommError> {
        let state = Mutex::new(State { limits, active: Vec::new(), is_closing: false });
        let handle = Arc::new(AcceptorHandle { listener, state });
        // No sender is kept here, so the channel closes once the accept thread and all handshakes
        // have ended.
        let (sender, events) = channel();
        let accept_loop = AcceptLoop { handle: handle.clone(), handler: Arc::new(handler), sender };
        let thread = std::thread::Builder::new().name("hetseq-acceptor".to_owned()).spawn(move || accept_loop.run());
        let thread = thread.map_err(|source| CommError::System { what: "start a thread", reason: source })?;
        Ok(Acceptor { handle, events, thread: Some(thread) })
    }

    /// Returns the events since the last call; waits up to `timeout` for the first.
    pub(super) fn poll(&self, timeout: Duration) -> Vec<AcceptEvent<T>> {
        self.next(timeout).into_iter().chain(self.events.try_iter()).collect()
    }

    /// Returns the next event, or `Disconnected` once the acceptor is closed.
    pub(super) fn next(&self, timeout: Duration) -> Result<AcceptEvent<T>, RecvTimeoutError> {
        self.events.recv_timeout(timeout)
    }

    pub(super) fn set_limits(&self, limits: AcceptLimits) {
        locked(&self.handle.state).limits = limits;
    }

    /// Returns a handle that closes the acceptor from a thread other than the one that polls it.
    pub(super) fn handle(&self) -> Arc<AcceptorHandle> {
        self.handle.clone()
    }
}

impl AcceptorHandle {
    pub(super) fn close(&self) {
        let active = {
            let mut state = locked(&self.state);
            state.is_closing = true;
            std::mem::take(&mut state.active)
        };
        socket::interrupt_accept(&self.listener);
        for connection in active {
            // Fails only if the connection is closed already.
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
    }

    fn is_closing(&self) -> bool {
        locked(&self.state).is_closing
    }

    /// Registers a connection if the limits allow it, and evicts another one if they demand it.
    /// Returns the flag that is set when the new connection is evicted itself.
    fn register(&self, stream: &TcpStream, ip: IpAddr) -> Result<Arc<AtomicBool>, HandshakeError> {
        let mut state = locked(&self.state);
        if state.is_closing {
            return Err(HandshakeError::Closing);
        }
        let now = Instant::now();
        let open_connection =
            |active: &ActiveHandshake| OpenConnection { ip: active.ip, age: now.duration_since(active.started) };
        let open: Vec<OpenConnection> = state.active.iter().map(open_connection).collect();
        match decide(&open, ip, &state.limits) {
            AcceptDecision::Accept => {}
            AcceptDecision::Evict(index) => {
                let evicted = state.active.swap_remove(index);
                evicted.is_evicted.store(true, Ordering::Release);
                let _ = evicted.stream.shutdown(Shutdown::Both);
            }
            AcceptDecision::Reject => return Err(HandshakeError::TooManyConnections),
        }
        let stream = stream.try_clone().map_err(HandshakeError::Io)?;
        let is_evicted = Arc::new(AtomicBool::new(false));
        state.active.push(ActiveHandshake { ip, started: now, stream, is_evicted: is_evicted.clone() });
        Ok(is_evicted)
    }

    fn unregister(&self, is_evicted: &Arc<AtomicBool>) {
        locked(&self.state).active.retain(|active| !Arc::ptr_eq(&active.is_evicted, is_evicted));
    }
}

impl<T> Drop for Acceptor<T> {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It holds no lock where it could panic, and no other code waits for it.
            let _ = thread.join();
        }
    }
}

struct AcceptLoop<T> {
    handle: Arc<AcceptorHandle>,
    handler: Arc<Handler<T>>,
    sender: Sender<AcceptEvent<T>>,
}

impl<T: Send + 'static> AcceptLoop<T> {
    fn run(self) {
        loop {
            let accepted = self.handle.listener.accept();
            if self.handle.is_closing() {
                return;
            }
            match accepted {
                Ok((stream, address)) => self.start_handshake(stream, canonical(address)),
                // A connection that closed before it was accepted must not delay the next one.
                Err(error) if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) => {}
                Err(_) => std::thread::sleep(ERROR_PAUSE),
            }
        }
    }

    fn start_handshake(&self, stream: TcpStream, address: SocketAddr) {
        let is_evicted = match self.handle.register(&stream, address.ip()) {
            Ok(is_evicted) => is_evicted,
            Err(reason) => {
                drop(stream);
                self.report(AcceptEvent::Rejected { address, reason });
                // Copied first, to not sleep while holding the lock.
                let pause = locked(&self.handle.state).limits.reject_pause;
                std::thread::sleep(pause);
                return;
            }
        };
        let (handle, handler, sender) = (self.handle.clone(), self.handler.clone(), self.sender.clone());
        let evicted = is_evicted.clone();
        let run = move || {
            let result = Handshake::new(stream, HANDSHAKE_TIMEOUT).and_then(|handshake| handler(handshake));
            handle.unregister(&evicted);
            let event = match result {
                Ok(peer) => AcceptEvent::Accepted(peer),
                Err(_) if evicted.load(Ordering::Acquire) => {
                    AcceptEvent::Rejected { address, reason: HandshakeError::TooManyConnections }
                }
                Err(_) if handle.is_closing() => AcceptEvent::Rejected { address, reason: HandshakeError::Closing },
                Err(reason) => AcceptEvent::Rejected { address, reason },
            };
            // Fails only if the acceptor is dropped, and then the event has no reader.
            let _ = sender.send(event);
        };
        if let Err(error) = std::thread::Builder::new().name("hetseq-auth".to_owned()).spawn(run) {
            // The connection closes, and an honest rank dials again.
            self.handle.unregister(&is_evicted);
            self.report(AcceptEvent::Rejected { address, reason: HandshakeError::Io(error) });
            std::thread::sleep(ERROR_PAUSE);
        }
    }

    fn report(&self, event: AcceptEvent<T>) {
        let _ = self.sender.send(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_acceptor_registers_no_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ip = stream.peer_addr().unwrap().ip();
        let state = State { limits: AcceptLimits::AFTER_START, active: Vec::new(), is_closing: false };
        let handle = AcceptorHandle { listener, state: Mutex::new(state) };
        assert!(handle.register(&stream, ip).is_ok());
        handle.close();
        assert!(matches!(handle.register(&stream, ip), Err(HandshakeError::Closing)));
        assert!(locked(&handle.state).active.is_empty());
    }
}
