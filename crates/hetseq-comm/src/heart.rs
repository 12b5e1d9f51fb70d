//! The heartbeats of a rank, from a thread of their own: they flow while the rank computes or saves, so that silence means
//! death and nothing else.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::CommError;
use crate::link::locked;
use crate::tcp::Wire;

/// Beats until it is dropped.
pub(crate) struct Heart {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    pub(crate) fn start(wires: Vec<Arc<Mutex<Wire>>>, every: Duration) -> Result<Heart, CommError> {
        let stop = Arc::<(Mutex<bool>, Condvar)>::default();
        let stopped = stop.clone();
        let work = move || {
            let (flag, changed) = &*stopped;
            let mut stop = locked(flag);
            while !*stop {
                drop(stop);
                wires.iter().for_each(|wire| locked(wire).beat(every));
                let waited = changed.wait_timeout_while(locked(flag), every / 2, |stop| !*stop);
                stop = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            }
        };
        let thread = std::thread::Builder::new().name("hetseq-heart".to_owned()).spawn(work);
        let thread = thread.map_err(|reason| CommError::System { what: "start a thread", reason })?;
        Ok(Heart { stop, thread: Some(thread) })
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        let (flag, changed) = &*self.stop;
        *locked(flag) = true;
        changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say that a lost connection would not.
            let _ = thread.join();
        }
    }
}
