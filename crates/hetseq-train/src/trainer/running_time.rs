//! A clock of the time in which this process ran. Time in which the whole process was paused (Ctrl-Z,
//! SIGSTOP, a debugger, a machine that slept) does not count, so a device or a disk that could not
//! answer in that time is not taken for one that hangs. Used for all waits on threads of this
//! process; waits on other ranks use real time, since the others have not paused.
//!
//! A thread notes the time twice a second. If much more has passed since its last note, the process
//! was paused.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(500);
/// The most that counts between two ticks. More than a busy machine delays a thread, usually.
const LONGEST_GAP: Duration = Duration::from_secs(2);

/// A point on this clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunningInstant(Duration);

impl RunningInstant {
    pub(crate) fn now() -> Self {
        static CLOCK: OnceLock<Mutex<RunningTime>> = OnceLock::new();
        let read = |clock: &Mutex<RunningTime>| clock.lock().unwrap_or_else(PoisonError::into_inner).at(Instant::now());
        let clock = CLOCK.get_or_init(|| {
            let tick = move || {
                loop {
                    std::thread::sleep(TICK);
                    CLOCK.get().map(read);
                }
            };
            // Without the thread, waits take longer: only calls of this function count.
            _ = std::thread::Builder::new().name("clock".to_owned()).spawn(tick);
            Mutex::new(RunningTime { counted: Duration::ZERO, last: Instant::now() })
        });
        RunningInstant(read(clock))
    }

    /// The time in which this process ran since then.
    pub(crate) fn elapsed(&self) -> Duration {
        RunningInstant::now().0.saturating_sub(self.0)
    }
}

/// Waits for a message of another thread. The timeout does not count pauses of the process.
pub(crate) fn recv_timeout<T>(receiver: &Receiver<T>, timeout: Duration) -> Result<T, RecvTimeoutError> {
    let started = RunningInstant::now();
    loop {
        let left = timeout.saturating_sub(started.elapsed());
        match receiver.recv_timeout(left.min(TICK)) {
            Err(RecvTimeoutError::Timeout) if started.elapsed() < timeout => {}
            result => return result,
        }
    }
}

struct RunningTime {
    counted: Duration,
    last: Instant,
}

impl RunningTime {
    fn at(&mut self, now: Instant) -> Duration {
        self.counted += now.saturating_duration_since(self.last).min(LONGEST_GAP);
        self.last = now;
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_pause_of_the_process_does_not_count() {
        let start = Instant::now();
        let mut clock = RunningTime { counted: Duration::ZERO, last: start };
        let mut at = |seconds: f64| clock.at(start + Duration::from_secs_f64(seconds)).as_secs_f64();
        assert_eq!([at(0.5), at(1.0), at(1.5)], [0.5, 1.0, 1.5]);
        // Stopped for an hour.
        assert_eq!([at(3601.5), at(3602.0)], [3.5, 4.0]);
        // A clock that goes backwards does not count either.
        assert_eq!(at(3601.0), 4.0);
    }

    #[test]
    fn a_wait_ends_with_a_message_or_after_the_timeout() {
        let (sender, receiver) = channel();
        sender.send(7).unwrap();
        assert_eq!(recv_timeout(&receiver, Duration::ZERO), Ok(7));
        assert_eq!(recv_timeout(&receiver, Duration::from_millis(20)), Err(RecvTimeoutError::Timeout));
        drop(sender);
        assert_eq!(recv_timeout(&receiver, Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected));
    }
}
