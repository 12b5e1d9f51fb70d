//! SIGTERM, SIGINT and SIGUSR1 (as Slurm sends before the time limit) ask for a stop: the update in hand is finished on
//! all ranks and saved. A second one ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;

#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    pub(crate) fn listen() -> io::Result<Self> {
        let stop = StopFlag::default();
        for signal in [SIGTERM, SIGINT, SIGUSR1] {
            // Registered first, so that it looks at the flag before the same signal sets it.
            flag::register_conditional_shutdown(signal, 128 + signal, stop.0.clone())?;
            flag::register(signal, stop.0.clone())?;
        }
        // Sent for a file beyond `ulimit -f`, and deadly unless somebody listens: then the write fails instead.
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(stop)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
