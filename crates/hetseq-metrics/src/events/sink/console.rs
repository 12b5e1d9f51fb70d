//! The display of a run on standard error: a progress bar on a terminal, plain lines elsewhere.
//! Runs on the thread of `terminal`.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tracing::Level;

use crate::{Change, Event, Sink, WorkerReport, duration, thousands};

/// See the [module](self).
pub struct Console {
    bar: Option<ProgressBar>,
    line_every: u64,
    last_line: Option<Instant>,
    total: u64,
    last_workers: Vec<WorkerReport>,
    /// Validations since the last checkpoint, by update: a checkpoint is complete some time after
    /// its validation.
    valids: Vec<(u64, String)>,
    last_valid: Option<String>,
    best_valid: Option<String>,
    last_checkpoint: Option<String>,
    /// The total time of the updates, and the part of it in which they waited for data.
    seconds: f64,
    data_wait_s: f64,
}

/// Plain output has a line at least this often, also if updates are slow.
const LINE_AT_LEAST: Duration = Duration::from_secs(10);

impl Console {
    /// `line_every`: the number of updates per line of plain output.
    pub fn new(line_every: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
            let style = "{bar:24.cyan/dim} {pos}/{len}  {msg}  {elapsed}<{eta}";
            bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Console {
            bar,
            line_every: line_every.max(1),
            last_line: None,
            total: 0,
            last_workers: Vec::new(),
            valids: Vec::new(),
            last_valid: None,
            best_valid: None,
            last_checkpoint: None,
            seconds: 0.0,
            data_wait_s: 0.0,
        }
    }

    /// Prints a line above the progress bar.
    pub(super) fn print(&mut self, line: &str) {
        match &self.bar {
            // Before the first event there is no bar to redraw.
            Some(bar) if self.total > 0 => bar.suspend(|| _ = writeln!(std::io::stderr(), "{line}")),
            _ => _ = writeln!(std::io::stderr(), "{line}"),
        }
    }

    /// The lines at the end of a run.
    fn summary(&self, skipped: u64) -> Vec<String> {
        let mut lines = Vec::new();
        if self.last_workers.len() > 1 {
            lines.extend(worker_table(&self.last_workers));
        }
        lines.extend(self.last_valid.as_ref().map(|valid| format!("last valid       {valid}")));
        lines.extend(self.best_valid.as_ref().map(|valid| format!("best valid       {valid}")));
        lines.extend(self.last_checkpoint.as_ref().map(|path| format!("last checkpoint  {path}")));
        if self.seconds > 0.0 {
            lines.push(format!("data wait        {:.1} % of the time", 100.0 * self.data_wait_s / self.seconds));
        }
        if skipped > 0 {
            let samples = count(skipped as usize, "sample");
            lines.push(format!("skipped          {samples} that could not be read (see the warnings)"));
        }
        lines
    }

    fn print_start(&mut self, event: &Event) {
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
            changed,
            ..
        } = event
        else {
            return;
        };
        self.total = *total_updates;
        if let Some(bar) = &self.bar {
            bar.set_length(*total_updates);
            bar.set_position(*resumed_at);
        }
        let (ranks, devices) = (count(*world, "rank"), count(*devices, "device"));
        let padding = if *padding > 0.0 { format!(" ({:.1} % padding)", padding * 100.0) } else { String::new() };
        let frozen = match *frozen_parameters {
            0 => String::new(),
            frozen => format!(" ({} frozen)", thousands(frozen as u64)),
        };
        self.print(&format!(
            "{task}: {} parameters{frozen}, {} training samples{padding}, {ranks} with {devices}, {} to go",
            thousands(*parameters as u64),
            thousands(*train_samples as u64),
            count(total_updates.saturating_sub(*resumed_at) as usize, "update"),
        ));
        if *resumed_at > 0 {
            self.print(&format!("resumed after update {}", thousands(*resumed_at)));
        }
        for Change { key, was, is } in changed {
            let (was, is) = (was.as_deref().unwrap_or("not set"), is.as_deref().unwrap_or("not set"));
            self.print(&format!("  {key} changed from {was} to {is}"));
        }
    }

    fn update_line(&mut self, update: u64, line: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(update);
            bar.set_message(line.to_owned());
            return;
        }
        let overdue = self.last_line.is_none_or(|at| at.elapsed() >= LINE_AT_LEAST);
        if update.is_multiple_of(self.line_every) || update == self.total || overdue {
            self.last_line = Some(Instant::now());
            let total = thousands(self.total);
            self.print(&format!("update {}/{total}  {line}", thousands(update)));
        }
    }
}

impl Sink for Console {
    fn event(&mut self, event: &Event) -> std::io::Result<()> {
        match event {
            Event::Start { .. } => self.print_start(event),
            Event::Update { update, epoch, loss, grad_norm, lr, samples, seconds, data_wait_s, .. } => {
                self.seconds += seconds;
                self.data_wait_s += data_wait_s;
                let speed = *samples as f64 / seconds.max(1e-9);
                let line = format!(
                    "epoch {epoch}  loss {loss:.4}  norm {grad_norm:.3}  lr {lr:.2e}  {} samples/s",
                    thousands(speed as u64)
                );
                self.update_line(*update, &line);
            }
            Event::Valid { update, loss, metrics, seconds, .. } => {
                let result = format!("update {}  loss {loss:.4}{}", thousands(*update), listed(metrics));
                self.print(&format!("valid  {result}  ({})", duration(*seconds)));
                self.valids.push((*update, result.clone()));
                self.last_valid = Some(result);
            }
            Event::Checkpoint { update, path, best, .. } => {
                let mark = if *best { "  (best so far)" } else { "" };
                self.print(&format!("saved  {}{mark}", path.display()));
                self.last_checkpoint = Some(path.display().to_string());
                if *best && let Some((_, valid)) = self.valids.iter().find(|(at, _)| at == update) {
                    self.best_valid = Some(valid.clone());
                }
                self.valids.retain(|(at, _)| at > update);
            }
            Event::Workers { workers, .. } => self.last_workers.clone_from(workers),
            // With -v only: the report lists all plans, and they need no action.
            Event::Plan { update, gain: Some(gain), predicted_s, .. } if tracing::enabled!(Level::DEBUG) => {
                self.print(&format!(
                    "re-planned from update {}: {} per update, {:.0} % less than with the old plan",
                    thousands(*update),
                    duration(*predicted_s),
                    100.0 * gain
                ));
            }
            Event::Plan { .. } => {}
            Event::NotFinite { update, ranks, samples, in_a_row } => {
                let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
                let first: Vec<String> = samples.iter().take(8).map(u32::to_string).collect();
                let more = if samples.len() > first.len() { ", ..." } else { "" };
                self.print(&format!(
                    "warning: skipped update {}: the gradient of rank {} is not finite, {in_a_row} in a row (samples {}{more})",
                    thousands(*update),
                    ranks.join(", "),
                    first.join(", ")
                ));
            }
            Event::Lost { rank, host, reason, .. } => self.print(&format!("lost   rank {rank} ({host}): {reason}")),
            Event::Healed { update, rank, host, .. } => self.print(&format!(
                "warning: after update {} the parameters of rank {rank} ({host}) differed from those of all others; it has \
                 taken theirs. If this happens again, test the memory of that machine",
                thousands(*update)
            )),
            Event::Regrouped { update, world, devices, seconds, .. } => {
                let (ranks, devices) = (count(*world, "rank"), count(*devices, "device"));
                let took = duration(*seconds);
                self.print(&format!(
                    "continuing after update {} with {ranks} and {devices} ({took})",
                    thousands(*update)
                ));
            }
            Event::Lead { update, host, total_updates } => {
                self.total = *total_updates;
                if let Some(bar) = &self.bar {
                    bar.set_length(*total_updates);
                    bar.set_position(*update);
                }
                self.print(&format!("this rank ({host}) writes checkpoints and metrics from now on: rank 0 was lost"));
            }
            Event::Warning { message } => self.print(&format!("warning: {message}")),
            Event::EarlyStop { update, message, .. } => {
                self.print(&format!("stopping early after update {}: {message}", thousands(*update)));
            }
            Event::End { update, outcome, seconds, skipped, .. } => {
                if let Some(bar) = &self.bar {
                    bar.finish_and_clear();
                }
                self.print(&format!("{outcome} after update {} in {}", thousands(*update), duration(*seconds)));
                for line in self.summary(*skipped) {
                    self.print(&format!("  {line}"));
                }
            }
        }
        Ok(())
    }
}

fn count(n: usize, noun: &str) -> String {
    format!("{} {noun}{}", thousands(n as u64), if n == 1 { "" } else { "s" })
}

fn listed(metrics: &BTreeMap<String, f64>) -> String {
    metrics.iter().map(|(name, value)| format!("  {name} {value:.4}")).collect()
}

/// A table of each device's speed, share and idle time. Also printed by `hetseq demo`.
pub fn worker_table(workers: &[WorkerReport]) -> Vec<String> {
    let mut lines =
        vec![format!("{:<5} {:<16} {:<8} {:>12} {:>7} {:>6}", "rank", "host", "device", "samples/s", "share", "idle")];
    for worker in workers {
        lines.push(format!(
            "{:<5} {:<16} {:<8} {:>12.0} {:>6.1}% {:>5.1}%",
            worker.rank,
            worker.host,
            worker.device,
            worker.samples_per_second,
            100.0 * worker.share,
            100.0 * worker.idle
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_contains_the_data_wait_and_skipped_samples() {
        let mut console = Console::new(1);
        for update in 1..=2 {
            let event = Event::Update {
                update,
                epoch: 1,
                loss: 1.0,
                terms: BTreeMap::new(),
                samples: 8,
                grad_norm: 1.0,
                skipped: false,
                lr: 0.1,
                seconds: 2.0,
                data_wait_s: 0.006,
                predicted_s: None,
                checksum: None,
            };
            console.event(&event).unwrap();
        }
        assert_eq!(console.summary(0), ["data wait        0.3 % of the time"]);
        assert_eq!(console.summary(1)[1], "skipped          1 sample that could not be read (see the warnings)");
    }
}
