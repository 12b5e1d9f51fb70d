//! Signals that ask a run to stop: SIGTERM, SIGINT, SIGUSR1 (Slurm, before the time limit) and
//! SIGHUP (a dropped connection). All ranks finish the update in progress, or drop a validation in
//! progress, rank 0 saves, all exit.
//! Only a second Ctrl-C quits without a checkpoint, and only some time after the first: `timeout`
//! signals the process and then its group, and schedulers send one signal after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

use fs_err as fs;
use hetseq_metrics::terminal;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

/// A second Ctrl-C within this time counts as a repeat of the first.
const REPEAT_WINDOW: Duration = Duration::from_secs(2);

/// How long quitting waits until its message is shown.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// What asked this rank to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag {
    /// The first signal; 0 before there is one.
    first: Arc<AtomicI32>,
    /// Whether SIGTERM was received, also after another signal.
    terminated: Arc<AtomicBool>,
}

/// What asked a rank to stop. Other ranks report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StopSignal {
    CtrlC,
    Terminate,
    User1,
    Hangup,
}

impl StopSignal {
    fn of(signal: i32) -> Self {
        match signal {
            SIGINT => StopSignal::CtrlC,
            SIGTERM => StopSignal::Terminate,
            SIGUSR1 => StopSignal::User1,
            _ => StopSignal::Hangup,
        }
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            StopSignal::CtrlC => "Ctrl-C (SIGINT)",
            StopSignal::Terminate => "SIGTERM",
            StopSignal::User1 => "SIGUSR1",
            StopSignal::Hangup => "SIGHUP",
        })
    }
}

/// The first rank that was asked to stop, and by what. Equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StopRequest {
    pub(crate) rank: usize,
    pub(crate) signal: StopSignal,
}

impl StopRequest {
    /// The first request of the ranks, which are in rank order.
    pub(crate) fn first(ranks: impl IntoIterator<Item = Option<StopSignal>>) -> Option<Self> {
        ranks.into_iter().enumerate().find_map(|(rank, signal)| Some(StopRequest { rank, signal: signal? }))
    }
}

impl StopFlag {
    /// Starts to handle signals. Before this, a signal ends the process: there is nothing to save.
    pub(crate) fn listen(&self) -> io::Result<()> {
        // `nohup` starts processes with SIGHUP ignored. The other signals are handled even if a
        // shell ignores them.
        let hangup = Some(SIGHUP).filter(|&signal| !is_ignored(signal));
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1].into_iter().chain(hangup))?;
        // Sent for a file beyond `ulimit -f`. It kills the process unless there is a handler; then
        // the write fails instead.
        flag::register(SIGXFSZ, Arc::default())?;
        let stop = self.clone();
        let mut requests = Requests::default();
        let listen = move || {
            for signal in signals.forever() {
                let reply = requests.take(signal, Instant::now());
                if signal == SIGTERM {
                    stop.terminated.store(true, Ordering::Relaxed);
                }
                if reply == Reply::Stop {
                    stop.first.store(signal, Ordering::Relaxed);
                }
                if reply == Reply::Quit {
                    terminal::hide();
                }
                if let Some(message) = reply.message(signal) {
                    tracing::warn!("{message}");
                }
                if reply == Reply::Quit {
                    terminal::flush(FLUSH_TIMEOUT);
                    low_level::exit(128 + signal);
                }
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
        Ok(())
    }

    pub(crate) fn is_set(&self) -> bool {
        self.get().is_some()
    }

    /// Becomes true when SIGTERM is received.
    pub(crate) fn terminated(&self) -> Arc<AtomicBool> {
        self.terminated.clone()
    }

    /// What asked this rank to stop.
    pub(crate) fn get(&self) -> Option<StopSignal> {
        Some(self.first.load(Ordering::Relaxed)).filter(|&signal| signal != 0).map(StopSignal::of)
    }
}

/// The signals received so far.
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
            (true, Some(first)) if signal == SIGINT && now.duration_since(first) >= REPEAT_WINDOW => Reply::Quit,
            (true, None) if signal == SIGINT => Reply::IgnoreFirst,
            (true, _) => Reply::Ignore,
        }
    }
}

impl Reply {
    fn message(self, signal: i32) -> Option<String> {
        let name = StopSignal::of(signal);
        let again = format!("Press Ctrl-C again after {} s to quit without saving", REPEAT_WINDOW.as_secs());
        match self {
            Reply::Stop => {
                let again = if signal == SIGINT { format!(". {again}") } else { String::new() };
                Some(format!(
                    "{name}: stopping after the update in progress; a validation in progress is repeated by the resume. A \
                     checkpoint is saved, and all ranks exit with code 75{again}"
                ))
            }
            Reply::Ignore => None,
            Reply::IgnoreFirst => Some(format!("{name}: the run is stopping already and will save. {again}")),
            Reply::Quit => Some(format!("second {name}: quitting without saving")),
        }
    }
}

/// Whether this process was started with `signal` ignored. Known on Linux only, from a mask.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The replies to signals, each with its arrival time in milliseconds.
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
        // The first Ctrl-C, after a signal of a scheduler.
        assert_eq!(replies(&[(SIGTERM, 0), (SIGINT, 5000), (SIGINT, 7000)]), [Stop, IgnoreFirst, Quit]);
    }

    #[test]
    fn the_first_rank_that_was_asked_is_named() {
        let ranks = [None, Some(StopSignal::Hangup), Some(StopSignal::CtrlC)];
        assert_eq!(StopRequest::first(ranks), Some(StopRequest { rank: 1, signal: StopSignal::Hangup }));
        assert_eq!(StopRequest::first([None, None]), None);
        let flag = StopFlag::default();
        assert_eq!((flag.is_set(), flag.get()), (false, None));
        flag.first.store(SIGUSR1, Ordering::Relaxed);
        assert_eq!((flag.is_set(), flag.get()), (true, Some(StopSignal::User1)));
    }

    #[test]
    fn only_an_interrupt_offers_to_quit() {
        let message = |signal| Reply::Stop.message(signal).unwrap();
        assert!(message(SIGINT).contains("Press Ctrl-C again after 2 s"));
        assert!(message(SIGHUP).starts_with("SIGHUP: stopping") && message(SIGHUP).ends_with("code 75"));
        assert_eq!(Reply::Ignore.message(SIGTERM), None);
    }
}
