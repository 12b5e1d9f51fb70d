//! The heartbeat thread of a rank. Heartbeats continue while the rank computes or saves, so that
//! silence means a dead peer and nothing else. Between collectives the thread also writes what a
//! collective left queued for slow links. Started by `stream/mod.rs`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::CommError;
use crate::lock::locked;
use crate::signal::Signal;

use super::link::StreamLink;
use super::{SharedLink, await_writable};

/// The heartbeat thread, which runs until this is dropped.
pub(super) struct Heartbeat {
    stop: Arc<AtomicBool>,
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts the thread. Links that are dropped later, because their peer was lost, are left out
    /// from then on.
    pub(super) fn start<'a>(
        links: impl Iterator<Item = &'a SharedLink>,
        every: Duration,
    ) -> Result<Heartbeat, CommError> {
        let links: Vec<Weak<Mutex<StreamLink>>> = links.map(Arc::downgrade).collect();
        let (stop, signal) = (Arc::new(AtomicBool::new(false)), Signal::new()?);
        let (stopped, wake) = (stop.clone(), signal.clone());
        let work = move || {
            while !stopped.load(Ordering::Acquire) {
                let links: Vec<SharedLink> = links.iter().filter_map(Weak::upgrade).collect();
                links.iter().for_each(|link| locked(link).heartbeat(every));
                await_writable(&links, &wake, every / 2);
            }
        };
        let thread = std::thread::Builder::new().name("hetseq-heartbeat".to_owned()).spawn(work);
        let thread = thread.map_err(|reason| CommError::System { what: "start a thread", reason })?;
        Ok(Heartbeat { stop, signal, thread: Some(thread) })
    }

    /// Wakes the thread to check which links it has to write to.
    pub(super) fn wake(&self) {
        self.signal.raise();
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.signal.raise();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread shows up as a lost connection anyway.
            let _ = thread.join();
        }
    }
}
