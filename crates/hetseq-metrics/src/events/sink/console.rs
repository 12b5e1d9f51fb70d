//! What a run shows on standard error: turns its events into lines, and keeps its status line
//! current. Pure except for the clock that it is given; `terminal` writes what it returns.
//!
//! Rank 0 shows everything. The other ranks show a line a minute and the end, so that a log of any
//! rank says how far the run is.

use std::time::Duration;

use super::status_line::{RunStatus, UpdateStatus, ValidationStatus};
use super::summary::RunSummary;
use crate::format::count;
use crate::{Change, Event, duration, thousands};

/// A log has a line at least this often, also if updates are slow.
const LINE_AT_LEAST: Duration = Duration::from_secs(10);
/// How often the ranks besides rank 0 report.
const FOLLOWER_LINE: Duration = Duration::from_secs(60);

/// How much to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Verbosity {
    /// Warnings and the end.
    Quiet,
    #[default]
    Normal,
    /// Also new plans.
    Verbose,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Console {
    status: RunStatus,
    summary: RunSummary,
    verbosity: Verbosity,
    /// The number of updates per line of a log; on a terminal there are none.
    line_every: Option<u64>,
    /// Set on ranks besides rank 0: the name of this rank.
    follower: Option<String>,
    last_line: Option<Duration>,
}

impl Console {
    /// Shows a run. `line_every`: the number of updates per line of a log; none on a terminal, which
    /// has a status line.
    pub(super) fn new(verbosity: Verbosity, line_every: Option<u64>) -> Self {
        Console { verbosity, line_every, ..Console::default() }
    }

    /// Shows a run on another rank than rank 0, by this name.
    pub(super) fn follower(verbosity: Verbosity, name: &str) -> Self {
        Console { verbosity, follower: Some(name.to_owned()), ..Console::default() }
    }

    /// The status line; empty if there is none.
    pub(super) fn status(&self, now: Duration, width: usize) -> String {
        let has_line = self.line_every.is_none() && self.follower.is_none() && self.verbosity > Verbosity::Quiet;
        if has_line { self.status.line(now, width) } else { String::new() }
    }

    /// The part of an update that each rank, or device, computes now.
    pub(super) fn set_shares(&mut self, shares: Vec<f64>) {
        self.status.shares = shares;
    }

    /// The progress of a validation. Returns a line from time to time.
    pub(super) fn validating(&mut self, done: u64, samples: u64, now: Duration) -> Option<String> {
        let started = self.status.validation.map_or(now, |validation| validation.started);
        self.status.validation = Some(ValidationStatus { done, samples, started });
        if self.line_every.is_none() || self.verbosity == Verbosity::Quiet {
            return None;
        }
        // A short validation needs no line.
        if done > 0 && !self.is_due(now, LINE_AT_LEAST) {
            return None;
        }
        self.last_line = Some(now);
        self.status.validation_log_line(now).filter(|_| done > 0)
    }

    fn is_due(&self, now: Duration, every: Duration) -> bool {
        self.last_line.is_none_or(|at| now.saturating_sub(at) >= every)
    }

    /// Takes an event; `now` is the time since the start. Returns the lines to show.
    pub(super) fn event(&mut self, event: &Event, now: Duration) -> Vec<String> {
        let lines = if self.follower.is_some() { self.followed(event, now) } else { self.shown(event, now) };
        if self.verbosity > Verbosity::Quiet || is_important(event) { lines } else { Vec::new() }
    }

    /// What a rank besides rank 0 shows.
    fn followed(&mut self, event: &Event, now: Duration) -> Vec<String> {
        match event {
            Event::Start { .. } => {
                _ = self.shown(event, now);
                self.last_line = Some(now);
                let name = self.follower.as_deref().unwrap_or_default();
                return vec![format!("{name}: training; rank 0 shows the progress, and this rank a line a minute")];
            }
            Event::Update { .. } => {
                _ = self.shown(event, now);
                if self.is_due(now, FOLLOWER_LINE) {
                    self.last_line = Some(now);
                    return vec![self.status.log_line(now)];
                }
            }
            Event::End { update, outcome, seconds, .. } => {
                let name = self.follower.as_deref().unwrap_or_default();
                let at = thousands(*update);
                return vec![format!("{name}: {outcome} after update {at} in {}", duration(*seconds))];
            }
            _ => {}
        }
        Vec::new()
    }

    fn shown(&mut self, event: &Event, now: Duration) -> Vec<String> {
        match event {
            Event::Start { .. } => return self.start(event, now),
            Event::Update { .. } => return self.update(event, now).into_iter().collect(),
            Event::Valid { update, loss, metrics, seconds, .. } => {
                self.status.validation = None;
                let valid = self.summary.note_valid(*update, *loss, metrics);
                return vec![format!("valid  {valid}  ({})", duration(*seconds))];
            }
            Event::Checkpoint { update, path, best, .. } => {
                self.summary.note_checkpoint(*update, path, *best);
                let mark = if *best { "  (best so far)" } else { "" };
                return vec![format!("saved  {}{mark}", path.display())];
            }
            Event::Workers { workers, .. } => self.summary.workers.clone_from(workers),
            // The report lists all plans, and they need no action.
            Event::Plan { update, gain: Some(gain), predicted_s, .. } if self.verbosity == Verbosity::Verbose => {
                return vec![format!(
                    "re-planned from update {}: {} per update, {:.0} % less than with the old plan",
                    thousands(*update),
                    duration(*predicted_s),
                    100.0 * gain
                )];
            }
            Event::Plan { .. } => {}
            Event::NotFinite { update, ranks, samples, in_a_row } => {
                let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
                let first: Vec<String> = samples.iter().take(8).map(u32::to_string).collect();
                let more = if samples.len() > first.len() { ", ..." } else { "" };
                return vec![format!(
                    "warning: skipped update {}: the gradient of rank {} is not finite, {in_a_row} in a row (samples {}{more})",
                    thousands(*update),
                    ranks.join(", "),
                    first.join(", ")
                )];
            }
            Event::Lost { rank, host, reason, .. } => return vec![format!("lost   rank {rank} ({host}): {reason}")],
            Event::Left { rank, host, reason, shares, .. } => {
                let part = shares.iter().find(|share| share.rank == *rank).map_or(0.0, |share| share.before);
                return vec![format!(
                    "left   rank {rank} ({host}), asked by {reason}: the others take over its {:.0} % of each update",
                    100.0 * part
                )];
            }
            Event::Healed { update, rank, host, .. } => {
                let at = thousands(*update);
                return vec![format!(
                    "warning: after update {at} the parameters of rank {rank} ({host}) differed from those of all others; it has \
                     taken theirs. If this happens again, test the memory of that machine"
                )];
            }
            Event::Regrouped { update, world, devices, seconds, .. } => {
                self.status.pace.restart(now, *update);
                let (ranks, devices) = (count(*world as u64, "rank"), count(*devices as u64, "device"));
                let (at, took) = (thousands(*update), duration(*seconds));
                return vec![format!("continuing after update {at} with {ranks} and {devices} ({took})")];
            }
            Event::CaughtUp { .. } => {}
            Event::Joined { update, rank, host, world, devices, seconds, .. } => {
                self.status.pace.restart(now, *update);
                let (ranks, devices) = (count(*world as u64, "rank"), count(*devices as u64, "device"));
                let (at, waited) = (thousands(*update), duration(*seconds));
                return vec![
                    format!("joined rank {rank} ({host})"),
                    format!("continuing after update {at} with {ranks} and {devices} (the others waited {waited})"),
                ];
            }
            Event::Lead { update, host, total_updates } => {
                self.status.total = *total_updates;
                self.status.pace.restart(now, *update);
                let what = "writes checkpoints and metrics from now on: rank 0 is gone";
                return vec![format!("this rank ({host}) {what}")];
            }
            Event::Warning { message } => return vec![format!("warning: {message}")],
            Event::EarlyStop { update, message, .. } => {
                return vec![format!("stopping early after update {}: {message}", thousands(*update))];
            }
            Event::End { update, outcome, seconds, skipped, .. } => {
                self.status = RunStatus::default();
                let at = thousands(*update);
                let summary = self.summary.lines(*skipped).into_iter().map(|line| format!("  {line}"));
                let end = format!("{outcome} after update {at} in {}", duration(*seconds));
                return std::iter::once(end).chain(summary).collect();
            }
        }
        Vec::new()
    }

    fn start(&mut self, event: &Event, now: Duration) -> Vec<String> {
        let Event::Start {
            task,
            world,
            devices,
            parameters,
            frozen_parameters,
            train_samples,
            padding,
            total_updates,
            resumed_at,
            best_metric,
            changed,
            ..
        } = event
        else {
            return Vec::new();
        };
        self.status.total = *total_updates;
        self.status.pace.restart(now, *resumed_at);
        self.summary.best_metric.clone_from(best_metric);
        let (ranks, devices) = (count(*world as u64, "rank"), count(*devices as u64, "device"));
        let padding = if *padding > 0.0 { format!(" ({:.1} % padding)", padding * 100.0) } else { String::new() };
        let frozen = match *frozen_parameters {
            0 => String::new(),
            frozen => format!(" ({} frozen)", thousands(frozen as u64)),
        };
        let mut lines = vec![format!(
            "{task}: {} parameters{frozen}, {} training samples{padding}, {ranks} with {devices}, {} to go",
            thousands(*parameters as u64),
            thousands(*train_samples as u64),
            count(total_updates.saturating_sub(*resumed_at), "update"),
        )];
        if *resumed_at > 0 {
            lines.push(format!("resumed after update {}", thousands(*resumed_at)));
        }
        for Change { key, was, is } in changed {
            let (was, is) = (was.as_deref().unwrap_or("not set"), is.as_deref().unwrap_or("not set"));
            lines.push(format!("  {key} changed from {was} to {is}"));
        }
        lines
    }

    fn update(&mut self, event: &Event, now: Duration) -> Option<String> {
        let Event::Update { update, epoch, loss, terms, samples, tokens, grad_norm, lr, seconds, data_wait_s, .. } =
            event
        else {
            return None;
        };
        self.summary.note_update(*seconds, *data_wait_s);
        let per_second = |amount: u64| amount as f64 / seconds.max(1e-9);
        let status = UpdateStatus {
            update: *update,
            epoch: *epoch,
            loss: *loss,
            terms: terms.iter().map(|(name, value)| (name.clone(), *value)).collect(),
            grad_norm: *grad_norm,
            lr: *lr,
            samples_per_s: per_second(*samples),
            tokens_per_s: tokens.map(per_second),
        };
        self.status.note(now, status);
        let every = self.line_every?;
        let is_last = *update == self.status.total;
        if !update.is_multiple_of(every.max(1)) && !is_last && !self.is_due(now, LINE_AT_LEAST) {
            return None;
        }
        self.last_line = Some(now);
        Some(self.status.log_line(now))
    }
}

/// What `-q` shows.
fn is_important(event: &Event) -> bool {
    matches!(
        event,
        Event::Warning { .. }
            | Event::NotFinite { .. }
            | Event::Lost { .. }
            | Event::Left { .. }
            | Event::Healed { .. }
            | Event::Regrouped { .. }
            | Event::CaughtUp { .. }
            | Event::Joined { .. }
            | Event::Lead { .. }
            | Event::EarlyStop { .. }
            | Event::End { .. }
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn events() -> Vec<Event> {
        let start = Event::Start {
            version: "0".to_owned(),
            task: "images".to_owned(),
            seed: 1,
            world: 2,
            devices: 3,
            parameters: 1_206_922,
            frozen_parameters: 0,
            train_samples: 7000,
            valid_samples: 1000,
            updates_per_epoch: 70,
            padding: 0.0,
            total_updates: 200,
            resumed_at: 140,
            best_metric: "accuracy".to_owned(),
            changed: Vec::new(),
        };
        let update = |update| Event::Update {
            update,
            epoch: 3,
            loss: 0.25,
            terms: BTreeMap::from([("loss".to_owned(), 0.25)]),
            samples: 100,
            tokens: None,
            grad_norm: 1.0,
            skipped: false,
            lr: 0.001,
            seconds: 30.0,
            data_wait_s: 0.0,
            predicted_s: None,
            checksum: None,
        };
        let plan = Event::Plan {
            update: 143,
            predicted_s: 1.5,
            before_s: Some(2.0),
            gain: Some(0.25),
            samples: vec![50, 30, 20],
            factors: vec![1.0; 3],
        };
        let metrics = BTreeMap::from([("accuracy".to_owned(), 0.97)]);
        let (terms, seconds) = (BTreeMap::new(), 4.2);
        let valid = Event::Valid { update: 144, epoch: 3, loss: 0.5, terms, samples: 1000, seconds, metrics };
        let path = "run/checkpoints/step-144".into();
        let checkpoint = Event::Checkpoint { update: 144, path, best: true, seconds: 0.1, paused_seconds: 0.0 };
        let warning = Event::Warning { message: "cpu:1 gets nothing to compute".to_owned() };
        let outcome = "stopped".to_owned();
        let end = Event::End { update: 144, outcome, seconds: 150.0, data_wait_s: 0.0, skipped: 0 };
        let mut events = vec![start];
        events.extend((141..=144).map(update));
        events.extend([plan, valid, checkpoint, warning, end]);
        events
    }

    /// The lines of all events, one event every 30 s.
    fn log(mut console: Console) -> String {
        console.set_shares(vec![0.6, 0.4]);
        let times = (0..).map(|step| Duration::from_secs(30 * step));
        events().iter().zip(times).flat_map(|(event, now)| console.event(event, now)).map(|line| line + "\n").collect()
    }

    #[test]
    fn lines_of_a_log() {
        let rank_0 = |verbosity| log(Console::new(verbosity, Some(2)));
        let rank_1 = log(Console::follower(Verbosity::Normal, "rank 1 (beta)"));
        let text = format!(
            "## rank 0\n{}\n## rank 0 with -v\n{}\n## rank 0 with -q\n{}\n## rank 1\n{rank_1}",
            rank_0(Verbosity::Normal),
            rank_0(Verbosity::Verbose),
            rank_0(Verbosity::Quiet)
        );
        insta::assert_snapshot!("log of a run", text);
    }

    #[test]
    fn a_terminal_has_a_status_line_instead_of_lines_of_updates() {
        let mut console = Console::new(Verbosity::Normal, None);
        let events = events();
        assert_eq!(console.event(&events[0], Duration::ZERO).len(), 2);
        assert!(console.event(&events[1], Duration::from_secs(1)).is_empty());
        assert!(console.status(Duration::from_secs(1), 80).contains("141/200"));
        assert_eq!(console.validating(10, 1000, Duration::from_secs(1)), None);
        assert!(console.status(Duration::from_secs(2), 80).contains("validating  10/1,000 samples"));
        console.event(events.last().unwrap(), Duration::from_secs(3));
        assert_eq!(console.status(Duration::from_secs(3), 80), "");
    }

    #[test]
    fn a_long_validation_has_lines_in_a_log() {
        let mut console = Console::new(Verbosity::Normal, Some(50));
        for event in &events()[..2] {
            console.event(event, Duration::from_secs(1));
        }
        let at = |seconds| Duration::from_secs(seconds);
        let lines: Vec<_> = (2..30).filter_map(|s| console.validating(10 * s, 1000, at(s))).collect();
        assert_eq!(
            lines,
            [
                "validating  110/1,000 samples  ETA 1:12  11.0 %  after update 141",
                "validating  210/1,000 samples  ETA 1:11  21.0 %  after update 141"
            ]
        );
    }
}
