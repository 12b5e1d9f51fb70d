//! Borrowed machines: `elastic.leave_when` says when a machine is needed for something else. While a
//! rank trains, [`BusyWatch`] asks it to leave when that holds. [`wait_until_free`] then waits until
//! it has passed; after that the caller starts the same command again, in a new process, so that a
//! machine that is needed for something else holds no memory of a run.
//!
//! `conditions.rs` measures, `presence.rs` decides.

mod conditions;
mod presence;
mod timed_command;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use conditions::Conditions;
use presence::Presence;

use crate::config::LeaveWhen;
use crate::trainer::stop::{StopCause, StopFlag};

/// How often conditions are checked.
const INTERVAL: Duration = Duration::from_secs(1);

/// Watches this machine until it is dropped, or until it has asked the rank to leave.
pub(crate) struct BusyWatch {
    has_ended: Arc<AtomicBool>,
}

impl BusyWatch {
    pub(crate) fn start(rules: &LeaveWhen, stop: StopFlag) -> std::io::Result<Self> {
        let has_ended: Arc<AtomicBool> = Arc::default();
        let (ended, rules) = (Arc::clone(&has_ended), rules.clone());
        let watch = move || {
            let mut conditions = Conditions::new(&rules);
            let mut presence = Presence::new(seconds(rules.after_s));
            let started = Instant::now();
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(INTERVAL);
                if let Some(condition) = presence.observe(conditions.holds(), started.elapsed()) {
                    let cause = StopCause::Busy(condition);
                    tracing::warn!("this machine is needed for something else: asked to leave by {cause}");
                    return stop.ask(cause);
                }
            }
        };
        std::thread::Builder::new().name("leave-when".to_owned()).spawn(watch)?;
        Ok(BusyWatch { has_ended })
    }
}

impl Drop for BusyWatch {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

/// Returns when no condition has held for `free_s`.
pub fn wait_until_free(rules: &LeaveWhen) {
    let mut conditions = Conditions::new(rules);
    let mut absence = Presence::new(seconds(rules.free_s));
    let started = Instant::now();
    loop {
        let is_free = conditions.holds().is_none().then_some(());
        if absence.observe(is_free, started.elapsed()).is_some() {
            return;
        }
        std::thread::sleep(INTERVAL);
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
