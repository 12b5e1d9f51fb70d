//! What asks a rank to stop: signals, `hetseq stop`, and `elastic.leave_when`. Ctrl-C (SIGINT) and
//! `hetseq stop` end the run: all ranks finish the update in progress, or drop a validation in
//! progress, rank 0 saves, all exit. SIGTERM, SIGUSR1 (Slurm, before the time limit), SIGHUP (a dropped
//! connection) and `leave_when` mean one machine: its rank leaves, and the others continue without
//! it if they can (`leave.rs`).
//!
//! Schedulers signal all ranks at about the same time, which must become one stop and not one leave
//! after another. So a rank waits for a moment before it announces that it leaves.
//!
//! Only a second Ctrl-C quits without a checkpoint, and only some time after the first: `timeout`
//! signals the process and then its group, and schedulers send one signal after another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// How long a rank that is asked to leave waits for requests to others.
const OTHERS_WINDOW: Duration = Duration::from_secs(2);

/// What has asked this rank to stop, if anything has.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag(Arc<SharedFlag>);

#[derive(Debug, Default)]
struct SharedFlag {
    asked: Mutex<Option<(StopCause, Instant)>>,
    /// Other ranks can continue without this one.
    may_leave: AtomicBool,
    /// Whether SIGTERM was received, also after another signal.
    terminated: Arc<AtomicBool>,
}

/// What asked a rank to stop. Other ranks report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StopCause {
    CtrlC,
    Terminate,
    User1,
    Hangup,
    /// `hetseq stop`.
    StopCommand,
    /// `elastic.leave_when`.
    Busy(BusyCondition),
}

/// A condition of `elastic.leave_when`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum BusyCondition {
    Command,
    Load,
    User,
}

impl StopCause {
    fn of(signal: i32) -> Self {
        match signal {
            SIGINT => StopCause::CtrlC,
            SIGTERM => StopCause::Terminate,
            SIGUSR1 => StopCause::User1,
            _ => StopCause::Hangup,
        }
    }

    /// Whether it means the whole run, and not only the machine of this rank.
    pub(crate) fn ends_run(self) -> bool {
        matches!(self, StopCause::CtrlC | StopCause::StopCommand)
    }
}

impl fmt::Display for StopCause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            StopCause::CtrlC => "Ctrl-C (SIGINT)",
            StopCause::Terminate => "SIGTERM",
            StopCause::User1 => "SIGUSR1",
            StopCause::Hangup => "SIGHUP",
            StopCause::StopCommand => "hetseq stop",
            StopCause::Busy(BusyCondition::Command) => "the command of elastic.leave_when",
            StopCause::Busy(BusyCondition::Load) => "the load (elastic.leave_when)",
            StopCause::Busy(BusyCondition::User) => "a user who has logged in (elastic.leave_when)",
        })
    }
}

/// A rank that was asked to stop, and by what. Equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StopRequest {
    pub(crate) rank: usize,
    pub(crate) cause: StopCause,
}

/// What a rank tells the others about a request to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    pub(crate) cause: StopCause,
    /// It need not wait for requests to other ranks.
    pub(crate) is_due: bool,
}

impl StopRequest {
    /// The first request, if the ranks must deal with the requests now: one is due, or all ranks have
    /// one. The announcements are in rank order.
    pub(crate) fn due(ranks: impl IntoIterator<Item = Option<Announcement>>) -> Option<Self> {
        let ranks: Vec<Option<Announcement>> = ranks.into_iter().collect();
        let is_due = ranks.iter().flatten().any(|announced| announced.is_due) || ranks.iter().all(Option::is_some);
        let first = || ranks.iter().enumerate().find_map(|(rank, announced)| Some((rank, announced.as_ref()?.cause)));
        is_due.then(first).flatten().map(|(rank, cause)| StopRequest { rank, cause })
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
                    stop.0.terminated.store(true, Ordering::Relaxed);
                }
                if matches!(reply, Reply::Stop | Reply::IgnoreFirst) {
                    stop.ask(StopCause::of(signal));
                }
                if reply == Reply::Quit {
                    terminal::hide();
                }
                if let Some(message) = reply.message(signal, stop.may_leave()) {
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

    /// Asks this rank to stop. The first reason counts, but the end of the run before a leave.
    pub(crate) fn ask(&self, cause: StopCause) {
        let mut asked = self.0.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.is_none_or(|(first, _)| cause.ends_run() && !first.ends_run()) {
            *asked = Some((cause, Instant::now()));
        }
    }

    /// Sets whether other ranks can continue without this one.
    pub(crate) fn set_may_leave(&self, may_leave: bool) {
        self.0.may_leave.store(may_leave, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.get().is_some()
    }

    /// Becomes true when SIGTERM is received.
    pub(crate) fn terminated(&self) -> Arc<AtomicBool> {
        self.0.terminated.clone()
    }

    /// What asked this rank to stop.
    pub(crate) fn get(&self) -> Option<StopCause> {
        self.asked().map(|(cause, _)| cause)
    }

    /// What to tell the other ranks now.
    pub(crate) fn announcement(&self) -> Option<Announcement> {
        let (cause, since) = self.asked()?;
        Some(Announcement { cause, is_due: is_due(cause, self.may_leave(), since.elapsed()) })
    }

    fn asked(&self) -> Option<(StopCause, Instant)> {
        *self.0.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_leave(&self) -> bool {
        self.0.may_leave.load(Ordering::Relaxed)
    }
}

/// Whether the ranks must deal with a request that this rank has had for some time.
fn is_due(cause: StopCause, may_leave: bool, waited: Duration) -> bool {
    cause.ends_run() || !may_leave || waited >= OTHERS_WINDOW
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
    fn message(self, signal: i32, may_leave: bool) -> Option<String> {
        let name = StopCause::of(signal);
        let again = format!("Press Ctrl-C again after {} s to quit without saving", REPEAT_WINDOW.as_secs());
        match self {
            Reply::Stop if may_leave && !name.ends_run() => Some(format!(
                "{name}: leaving after the update in progress. This rank exits with code 75 and the others continue without it; \
                 if they are too few, or are asked to stop, too, all save and exit"
            )),
            Reply::Stop => {
                let again = if signal == SIGINT { format!(". {again}") } else { String::new() };
                Some(format!(
                    "{name}: stopping after this update; a checkpoint is saved, and all ranks exit with code 75{again}"
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
    fn requests_are_dealt_with_when_one_is_due_or_all_have_one() {
        let announced = |cause, is_due| Some(Announcement { cause, is_due });
        let (hangup, user1) = (StopCause::Hangup, StopCause::User1);
        let ranks = [None, announced(hangup, false), announced(user1, true)];
        assert_eq!(StopRequest::due(ranks), Some(StopRequest { rank: 1, cause: hangup }));
        assert_eq!(StopRequest::due([None, announced(hangup, false)]), None);
        let all = [announced(user1, false), announced(hangup, false)];
        assert_eq!(StopRequest::due(all), Some(StopRequest { rank: 0, cause: user1 }));
        assert_eq!(StopRequest::due([None, None]), None);
    }

    #[test]
    fn a_leave_waits_for_requests_to_other_ranks() {
        let soon = Duration::from_millis(1999);
        assert!(!is_due(StopCause::Terminate, true, soon));
        assert!(is_due(StopCause::Terminate, true, OTHERS_WINDOW));
        // The others cannot continue, or must not.
        assert!(is_due(StopCause::Terminate, false, Duration::ZERO));
        assert!(is_due(StopCause::CtrlC, true, Duration::ZERO));
        assert!(is_due(StopCause::StopCommand, true, Duration::ZERO));
    }

    #[test]
    fn the_end_of_the_run_replaces_a_leave() {
        let flag = StopFlag::default();
        assert_eq!((flag.is_set(), flag.announcement()), (false, None));
        flag.ask(StopCause::User1);
        flag.ask(StopCause::Terminate);
        assert_eq!((flag.is_set(), flag.get()), (true, Some(StopCause::User1)));
        flag.ask(StopCause::StopCommand);
        flag.ask(StopCause::CtrlC);
        assert_eq!(flag.announcement(), Some(Announcement { cause: StopCause::StopCommand, is_due: true }));
    }

    #[test]
    fn only_an_interrupt_offers_to_quit() {
        let message = |signal, may_leave| Reply::Stop.message(signal, may_leave).unwrap();
        assert!(message(SIGINT, true).contains("Press Ctrl-C again after 2 s"));
        assert!(message(SIGHUP, false).starts_with("SIGHUP: stopping") && message(SIGHUP, false).ends_with("code 75"));
        assert!(message(SIGTERM, true).starts_with("SIGTERM: leaving"));
        assert_eq!(Reply::Ignore.message(SIGTERM, true), None);
    }
}
