//! A door that strangers may knock at: accepts connections and greets each in its own thread, so that
//! a silent or hostile one delays nobody.
//!
//! It decides nothing; `host.rs` and `pairing.rs` say how to greet and what to do with who came.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::HANDSHAKE;
use super::talk::{Talk, TalkError};
use crate::error::CommError;

/// How to greet: everything up to knowing who it is.
type Greet<T> = dyn Fn(Talk) -> Result<T, TalkError> + Send + Sync;

pub(super) enum Arrival<T> {
    Came(T),
    TurnedAway { address: SocketAddr, why: TalkError },
}

pub(super) struct Reception<T> {
    listener: TcpListener,
    greet: Arc<Greet<T>>,
    /// Connections being greeted. Above the limit nobody is let in until one is done, which takes at
    /// most the handshake's time.
    pending: usize,
    limit: usize,
    done: Receiver<Arrival<T>>,
    report: Sender<Arrival<T>>,
}

impl<T: Send + 'static> Reception<T> {
    pub(super) fn open(
        listener: TcpListener,
        expected: usize,
        greet: impl Fn(Talk) -> Result<T, TalkError> + Send + Sync + 'static,
    ) -> Result<Reception<T>, CommError> {
        let what = "prepare a listener";
        listener.set_nonblocking(true).map_err(|source| CommError::System { what, reason: source })?;
        let (report, done) = channel();
        // Room for all who should come and as many strangers.
        let limit = 64.max(2 * expected);
        Ok(Reception { listener, greet: Arc::new(greet), pending: 0, limit, done, report })
    }

    /// Who has been greeted since the last call; waits up to `patience` for the first.
    pub(super) fn poll(&mut self, patience: Duration) -> Vec<Arrival<T>> {
        while self.pending < self.limit {
            match self.listener.accept() {
                Ok((stream, address)) => self.admit(stream, address),
                // Nobody at the door, or a shortage (of file descriptors, say) that may pass.
                Err(_) => break,
            }
        }
        let first = self.done.recv_timeout(patience);
        let arrivals: Vec<_> = first.into_iter().chain(self.done.try_iter()).collect();
        self.pending -= arrivals.len();
        arrivals
    }

    fn admit(&mut self, stream: TcpStream, address: SocketAddr) {
        let (greet, report) = (self.greet.clone(), self.report.clone());
        let run = move || {
            let greeted = Talk::new(stream, HANDSHAKE).and_then(|talk| greet(talk));
            let arrival = match greeted {
                Ok(guest) => Arrival::Came(guest),
                Err(why) => Arrival::TurnedAway { address, why },
            };
            // Fails only when the meeting is over, and then nobody is interested.
            let _ = report.send(arrival);
        };
        match std::thread::Builder::new().name("hetseq-greet".to_owned()).spawn(run) {
            Ok(_) => self.pending += 1,
            // The connection closes, and an honest rank dials again.
            Err(error) => tracing::warn!(%address, %error, "no thread to greet a connection"),
        }
    }
}
