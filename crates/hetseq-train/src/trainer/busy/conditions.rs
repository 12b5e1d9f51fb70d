//! The conditions of `elastic.leave_when`, measured on this machine: what a command answers, how many
//! threads of other programs want to run, who is logged in. What is read is parsed by pure functions.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use fs_err as fs;

use super::timed_command::{output_within, succeeds_within};
use crate::config::LeaveWhen;
use crate::trainer::stop::BusyCondition;

/// The longest that a command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// How soon the load follows what runs, as the first number of `uptime`.
const LOAD_DECAY_S: f64 = 60.0;

pub(super) struct Conditions {
    rules: LeaveWhen,
    /// The smoothed number of threads of other programs that run, and when it was measured.
    load: Option<(f64, Instant)>,
    /// The user who runs this process.
    own_user: Option<String>,
    has_warned: bool,
}

impl Conditions {
    pub(super) fn new(rules: &LeaveWhen) -> Self {
        let own_user = || output_within("id -un", COMMAND_TIMEOUT).ok().map(|name| name.trim().to_owned());
        let own_user = rules.user.then(own_user).flatten();
        Conditions { rules: rules.clone(), load: None, own_user, has_warned: false }
    }

    /// The first condition that holds now. One that cannot be measured does not hold.
    pub(super) fn holds(&mut self) -> Option<BusyCondition> {
        let checks = [
            (BusyCondition::Load, self.is_loaded()),
            (BusyCondition::User, self.has_user()),
            (BusyCondition::Command, self.command_succeeds()),
        ];
        let mut holding = None;
        for (condition, result) in checks {
            match result {
                Ok(holds) if holds => _ = holding.get_or_insert(condition),
                Ok(_) => {}
                Err(reason) if !std::mem::replace(&mut self.has_warned, true) => {
                    tracing::warn!("elastic.leave_when: {reason}; this condition counts as not given");
                }
                Err(_) => {}
            }
        }
        holding
    }

    fn command_succeeds(&self) -> Result<bool, String> {
        self.rules.command.as_ref().map_or(Ok(false), |command| succeeds_within(command, COMMAND_TIMEOUT))
    }

    fn has_user(&self) -> Result<bool, String> {
        if !self.rules.user {
            return Ok(false);
        }
        let sessions = output_within("who", COMMAND_TIMEOUT)?;
        Ok(other_user(&sessions, self.own_user.as_deref().unwrap_or_default()).is_some())
    }

    fn is_loaded(&mut self) -> Result<bool, String> {
        let Some(limit) = self.rules.load else { return Ok(false) };
        let now = Instant::now();
        let running = running_threads_of_others()?;
        let load = match self.load {
            Some((load, before)) => smoothed(load, running as f64, now.duration_since(before).as_secs_f64()),
            None => 0.0,
        };
        self.load = Some((load, now));
        Ok(load > limit)
    }
}

/// The first user with a session who is not `own`. `sessions` is what `who` prints.
fn other_user<'a>(sessions: &'a str, own: &str) -> Option<&'a str> {
    sessions.lines().filter_map(|line| line.split_whitespace().next()).find(|user| *user != own)
}

/// The load after `elapsed_s` in which `running` threads ran.
fn smoothed(load: f64, running: f64, elapsed_s: f64) -> f64 {
    let kept = (-elapsed_s / LOAD_DECAY_S).exp();
    load * kept + running * (1.0 - kept)
}

/// How many threads run or could run now, without those of this process and its descendants.
fn running_threads_of_others() -> Result<u64, String> {
    let own = running_threads_of_family(std::process::id());
    let path = Path::new("/proc/loadavg");
    let text = fs::read_to_string(path).map_err(|error| format!("the load is not known: {error}"))?;
    let all = running_threads(&text).ok_or_else(|| format!("the load is not known: {} is {text:?}", path.display()))?;
    Ok(all.saturating_sub(own))
}

/// The number of running threads of the machine, from `/proc/loadavg`: `0.20 0.18 0.12 3/80 11206`.
fn running_threads(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// The state and the parent of a process or thread, from its `stat`: `7 (a name) R 1 ...`. The name
/// may contain anything.
fn state_and_parent(stat: &str) -> Option<(&str, u32)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?, fields.next()?.parse().ok()?))
}

/// The process `root` and its descendants. `parents` maps processes to their parents.
fn family(root: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let is_of_family = |process: u32| {
        let chain = std::iter::successors(Some(process), |process| parents.get(process).copied());
        // A chain through a process that has just ended and whose number is reused could be a loop.
        chain.take(100).any(|process| process == root)
    };
    parents.keys().copied().filter(|&process| is_of_family(process)).collect()
}

/// Processes that end meanwhile do not count.
fn running_threads_of_family(root: u32) -> u64 {
    let numbers = |dir: &Path| -> Vec<u32> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    };
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let parent = |process: u32| Some((process, state_and_parent(&read(format!("/proc/{process}/stat")))?.1));
    let parents: BTreeMap<u32, u32> = numbers(Path::new("/proc")).into_iter().filter_map(parent).collect();
    let threads = |process: u32| {
        let dir = format!("/proc/{process}/task");
        numbers(Path::new(&dir)).into_iter().map(move |thread| format!("{dir}/{thread}/stat"))
    };
    let stats = family(root, &parents).into_iter().flat_map(threads).map(read);
    stats.filter(|stat| state_and_parent(stat).is_some_and(|(state, _)| state == "R")).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_parsed() {
        assert_eq!(running_threads("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(running_threads("0.20 0.18"), None);
        assert_eq!(state_and_parent("71 (a) b (c) R 12 71 0 -1"), Some(("R", 12)));
        assert_eq!(state_and_parent("71 (a"), None);
        let sessions =
            "ann      tty2         2026-11-18 08:02 (:0)\nben      pts/0        2026-11-18 09:10 (10.0.0.7)\n";
        assert_eq!(other_user(sessions, "ann"), Some("ben"));
        assert_eq!(other_user(sessions, "carl"), Some("ann"));
        assert_eq!(other_user("ann  tty2\n\n", "ann"), None);
    }

    #[test]
    fn descendants_are_of_the_family() {
        let parents = [(1, 0), (2, 1), (5, 2), (6, 5), (7, 1), (8, 9), (9, 8)].into();
        assert_eq!(family(2, &parents), [2, 5, 6]);
    }

    #[test]
    fn the_load_follows_what_runs_within_minutes() {
        let after = |seconds: u32, running: f64| (0..seconds).fold(0.0, |load, _| smoothed(load, running, 1.0));
        assert!((after(60, 4.0) - 4.0 * (1.0 - (-1f64).exp())).abs() < 1e-9);
        assert!(after(600, 4.0) > 3.99 && after(5, 4.0) < 0.4);
        // Also if it is measured seldom.
        assert!((smoothed(0.0, 4.0, 60.0) - after(60, 4.0)).abs() < 1e-9);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_condition_that_cannot_be_measured_does_not_hold() {
        let rules = |command: &str| LeaveWhen { command: Some(command.to_owned()), ..LeaveWhen::default() };
        assert_eq!(Conditions::new(&rules("true")).holds(), Some(BusyCondition::Command));
        assert_eq!(Conditions::new(&rules("false")).holds(), None);
        assert_eq!(Conditions::new(&rules("/nonexistent/program")).holds(), None);
        let mut loaded = Conditions::new(&LeaveWhen { load: Some(1e9), user: true, ..LeaveWhen::default() });
        loaded.own_user = None;
        assert_ne!(loaded.holds(), Some(BusyCondition::Load));
        assert!(running_threads_of_others().is_ok());
    }
}
