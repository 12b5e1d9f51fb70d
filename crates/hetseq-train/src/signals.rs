//! Signals that ask a run to stop: SIGTERM, SIGINT, SIGUSR1 (Slurm, before the time limit) and SIGHUP (a dropped connection).
//! All ranks finish the update in progress, rank 0 saves, all exit. Only a second Ctrl-C quits without a checkpoint, and only
//! when it is a new decision: `timeout` signals the process and then its group, schedulers send one signal after another.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fs_err as fs;
use hetseq_metrics::terminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

/// A second Ctrl-C within this time is taken for a repeat of the first.
const REPEAT: Duration = Duration::from_secs(2);

/// Quitting waits this long for its own message.
const LAST_WORDS: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Until this is called, a signal ends the process: there is nothing to save yet.
    pub(crate) fn listen(&self) -> io::Result<()> {
        // `nohup` asks for this. The other signals are meant for this process even where a shell ignores them.
        let hangup = Some(SIGHUP).filter(|&signal| !is_ignored(signal));
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1].into_iter().chain(hangup))?;
        // Sent for a file beyond `ulimit -f`, and deadly unless somebody listens: then the write fails instead.
        flag::register(SIGXFSZ, Arc::default())?;
        let stop = self.0.clone();
        let mut requests = Requests::default();
        let listen = move || {
            for signal in signals.forever() {
                let reply = requests.take(signal, Instant::now());
                if reply == Reply::Stop {
                    stop.store(true, Ordering::Relaxed);
                }
                if let Some(words) = reply.in_words(signal) {
                    tracing::warn!("{words}");
                }
                if reply == Reply::Quit {
                    terminal::flush(LAST_WORDS);
                    low_level::exit(128 + signal);
                }
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
        Ok(())
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What was asked so far.
#[derive(Default)]
struct Requests {
    is_stopping: bool,
    interrupted: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Stop,
    /// The run is stopping already.
    Ignore,
    /// The run is stopping already, and this is the first Ctrl-C.
    IgnoreFirst,
    Quit,
}

impl Requests {
    fn take(&mut self, signal: i32, now: Instant) -> Reply {
        let interrupted = self.interrupted;
        if signal == SIGINT {
            self.interrupted.get_or_insert(now);
        }
        match (std::mem::replace(&mut self.is_stopping, true), interrupted) {
            (false, _) => Reply::Stop,
            (true, Some(first)) if signal == SIGINT && now.duration_since(first) >= REPEAT => Reply::Quit,
            (true, None) if signal == SIGINT => Reply::IgnoreFirst,
            (true, _) => Reply::Ignore,
        }
    }
}

impl Reply {
    fn in_words(self, signal: i32) -> Option<String> {
        let name = match signal {
            SIGINT => "Ctrl-C (SIGINT)",
            SIGTERM => "SIGTERM",
            SIGUSR1 => "SIGUSR1",
            _ => "SIGHUP",
        };
        let again = format!("Press Ctrl-C again after {} s to quit without saving", REPEAT.as_secs());
        match self {
            Reply::Stop => {
                let again = if signal == SIGINT { format!(". {again}") } else { String::new() };
                Some(format!(
                    "{name}: stopping. All ranks finish the update in progress, rank 0 saves a checkpoint, and the run exits \
                     with code 75{again}"
                ))
            }
            Reply::Ignore => None,
            Reply::IgnoreFirst => Some(format!("{name}: the run is stopping already and will save. {again}")),
            Reply::Quit => Some(format!("second {name}: quitting without saving")),
        }
    }
}

/// Whether this process was started with `signal` ignored. Linux says so in a mask; elsewhere it is not known.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is replied to signals that arrive after so many milliseconds.
    fn replies(signals: &[(i32, u64)]) -> Vec<Reply> {
        let (start, mut requests) = (Instant::now(), Requests::default());
        signals.iter().map(|&(signal, at)| requests.take(signal, start + Duration::from_millis(at))).collect()
    }

    #[test]
    fn only_a_later_second_interrupt_quits() {
        use Reply::{Ignore, IgnoreFirst, Quit, Stop};
        assert_eq!(replies(&[(SIGTERM, 0), (SIGTERM, 1), (SIGTERM, 9000)]), [Stop, Ignore, Ignore]);
        assert_eq!(replies(&[(SIGUSR1, 0), (SIGTERM, 30_000), (SIGHUP, 60_000)]), [Stop, Ignore, Ignore]);
        assert_eq!(replies(&[(SIGINT, 0), (SIGINT, 1), (SIGINT, 1999), (SIGINT, 2000)]), [Stop, Ignore, Ignore, Quit]);
        // Ctrl-C for the first time, whatever a scheduler sent before.
        assert_eq!(replies(&[(SIGTERM, 0), (SIGINT, 5000), (SIGINT, 7000)]), [Stop, IgnoreFirst, Quit]);
    }

    #[test]
    fn only_an_interrupt_offers_to_quit() {
        let words = |signal| Reply::Stop.in_words(signal).unwrap();
        assert!(words(SIGINT).contains("Press Ctrl-C again after 2 s"));
        assert!(words(SIGHUP).starts_with("SIGHUP: stopping") && words(SIGHUP).ends_with("code 75"));
        assert_eq!(Reply::Ignore.in_words(SIGTERM), None);
    }
}
