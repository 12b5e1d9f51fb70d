//! The heartbeats of a rank, from a thread of their own: they flow while the rank computes or saves, so that silence means
//! death and nothing else. It also writes what a collective has left for slow lines while the rank is elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::CommError;
use crate::link::locked;
use crate::signal::Signal;
use crate::tcp::{self, Wire};

/// Beats until it is dropped.
pub(crate) struct Heart {
    stop: Arc<AtomicBool>,
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    pub(crate) fn start(wires: Vec<Arc<Mutex<Wire>>>, every: Duration) -> Result<Heart, CommError> {
        let (stop, signal) = (Arc::new(AtomicBool::new(false)), Signal::new()?);
        let (stopped, raised) = (stop.clone(), signal.clone());
        let work = move || {
            while !stopped.load(Ordering::Acquire) {
                wires.iter().for_each(|wire| locked(wire).beat(every));
                tcp::await_room(&wires, &raised, every / 2);
            }
        };
        let thread = std::thread::Builder::new().name("hetseq-heart".to_owned()).spawn(work);
        let thread = thread.map_err(|reason| CommError::System { what: "start a thread", reason })?;
        Ok(Heart { stop, signal, thread: Some(thread) })
    }

    /// Has it look which wires it has to write to now.
    pub(crate) fn look(&self) {
        self.signal.raise();
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.signal.raise();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say that a lost connection would not.
            let _ = thread.join();
        }
    }
}
