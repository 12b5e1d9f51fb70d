//! The status line of a run, and its line in a log: which fields, in which order, and which of them
//! fit into the window. Pure: time and width are arguments. `console` keeps it current, `terminal`
//! draws it.

use std::time::Duration;

use super::pace::Pace;
use crate::format::{clock, rate};
use crate::thousands;

/// Columns of the bar: at least, and at most.
const BAR: (usize, usize) = (8, 24);
/// More shares than this are not shown.
const MAX_SHARES: usize = 16;
/// The weight of an update in the average speed.
const SMOOTHING: f64 = 0.1;

/// The current state of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct RunStatus {
    /// The last update of the run; 0 if it is not known.
    pub(super) total: u64,
    pub(super) pace: Pace,
    /// The last update, once there is one.
    pub(super) last: Option<UpdateStatus>,
    /// The part of an update that each rank computes, or each device if there is one rank.
    pub(super) shares: Vec<f64>,
    /// The validation in progress.
    pub(super) validation: Option<ValidationStatus>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct UpdateStatus {
    pub(super) update: u64,
    pub(super) epoch: u64,
    pub(super) loss: f64,
    /// Named parts of the loss.
    pub(super) terms: Vec<(String, f64)>,
    pub(super) grad_norm: f64,
    pub(super) lr: f64,
    pub(super) samples_per_s: f64,
    pub(super) tokens_per_s: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ValidationStatus {
    pub(super) done: u64,
    pub(super) samples: u64,
    pub(super) started: Duration,
}

/// A field of the line. Of those that do not fit, the one with the highest rank is left out first.
struct Field {
    rank: u8,
    text: String,
}

fn field(rank: u8, text: String) -> Option<Field> {
    Some(Field { rank, text })
}

impl RunStatus {
    /// Takes an update. Its speed is averaged with those of earlier ones, which vary.
    pub(super) fn note(&mut self, now: Duration, mut update: UpdateStatus) {
        if let Some(last) = &self.last {
            let mean = |new: f64, old: f64| old + SMOOTHING * (new - old);
            update.samples_per_s = mean(update.samples_per_s, last.samples_per_s);
            let tokens = update.tokens_per_s.zip(last.tokens_per_s).map(|(new, old)| mean(new, old));
            update.tokens_per_s = tokens.or(update.tokens_per_s);
        }
        self.pace.note(now, update.update);
        self.last = Some(update);
        self.validation = None;
    }

    /// The status line, in at most `width` columns. Empty before there is anything to show.
    pub(super) fn line(&self, now: Duration, width: usize) -> String {
        match &self.validation {
            Some(validation) => {
                let part = validation.done as f64 / validation.samples.max(1) as f64;
                with_bar(Some(part), self.validation_fields(validation, now), width)
            }
            None => self.training_line(now, width),
        }
    }

    fn training_line(&self, now: Duration, width: usize) -> String {
        if self.total == 0 && self.last.is_none() {
            return String::new();
        }
        let progress = self.pace.progress(now);
        let eta = self.pace.seconds_left(now, self.total).filter(|_| self.total > 0);
        let mut fields = vec![field(0, self.count())];
        if self.total > 0 {
            fields.push(field(10, percent(progress, self.total as f64)));
        }
        fields.push(eta.and_then(|eta| field(2, format!("ETA {}", clock(eta)))));
        if let Some(last) = &self.last {
            fields.extend([
                field(1, format!("loss {:.4}", last.loss)),
                terms(&last.terms).and_then(|terms| field(8, terms)),
                field(4, format!("lr {:.2e}", last.lr)),
                field(3, format!("{} samples/s", rate(last.samples_per_s))),
                last.tokens_per_s.and_then(|tokens| field(6, format!("{} tokens/s", rate(tokens)))),
                field(9, format!("epoch {}", last.epoch)),
                shares(&self.shares).and_then(|shares| field(7, shares)),
                field(11, format!("norm {:.3}", last.grad_norm)),
            ]);
        }
        with_bar((self.total > 0).then(|| progress / self.total as f64), fields, width)
    }

    /// The line of the validation in progress in a log.
    pub(super) fn validation_log_line(&self, now: Duration) -> Option<String> {
        let validation = self.validation.as_ref()?;
        Some(with_bar(None, self.validation_fields(validation, now), usize::MAX))
    }

    fn validation_fields(&self, validation: &ValidationStatus, now: Duration) -> Vec<Option<Field>> {
        let ValidationStatus { done, samples, started } = *validation;
        let (done, all) = (done as f64, samples as f64);
        let passed = now.saturating_sub(started).as_secs_f64();
        let left = (done > 0.0 && passed > 0.0).then(|| passed / done * (all - done));
        vec![
            field(0, "validating".to_owned()),
            field(1, format!("{}/{} samples", thousands(validation.done), thousands(samples))),
            left.and_then(|left| field(2, format!("ETA {}", clock(left)))),
            field(3, percent(done, all)),
            self.last.as_ref().and_then(|last| field(4, format!("after update {}", thousands(last.update)))),
        ]
    }

    /// The line of an update in a log.
    pub(super) fn log_line(&self, now: Duration) -> String {
        let Some(last) = &self.last else { return String::new() };
        let mut fields = vec![format!("update {}", self.count())];
        if self.total > 0 {
            fields.push(percent(last.update as f64, self.total as f64));
        }
        fields.push(format!("epoch {}  loss {:.4}", last.epoch, last.loss));
        fields.extend(terms(&last.terms));
        fields.push(format!("norm {:.3}  lr {:.2e}", last.grad_norm, last.lr));
        fields.push(format!("{} samples/s", rate(last.samples_per_s)));
        fields.extend(last.tokens_per_s.map(|tokens| format!("{} tokens/s", rate(tokens))));
        fields.extend(shares(&self.shares));
        if let Some(left) = self.pace.seconds_left(now, self.total).filter(|_| self.total > last.update) {
            fields.push(format!("ETA {}", clock(left)));
        }
        fields.join("  ")
    }

    /// Updates done, of how many.
    fn count(&self) -> String {
        let done = thousands(self.pace.updates());
        if self.total > 0 { format!("{done}/{}", thousands(self.total)) } else { done }
    }
}

/// With decimals, so that the first updates of a long run are not 0 %.
fn percent(done: f64, all: f64) -> String {
    let percent = 100.0 * done / all.max(1.0);
    if percent < 0.995 { format!("{percent:.2} %") } else { format!("{percent:.1} %") }
}

/// A single term is the loss itself.
fn terms(terms: &[(String, f64)]) -> Option<String> {
    let terms: Vec<String> = terms.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    (terms.len() > 1).then(|| format!("({})", terms.join(", ")))
}

fn shares(shares: &[f64]) -> Option<String> {
    let shown: Vec<String> = shares.iter().map(|share| format!("{:.0}", 100.0 * share)).collect();
    (2..=MAX_SHARES).contains(&shown.len()).then(|| format!("shares {} %", shown.join("/")))
}

/// The fields that fit, behind a bar of which `part` is full.
fn with_bar(part: Option<f64>, fields: Vec<Option<Field>>, width: usize) -> String {
    /// The rank of the bar among the fields.
    const BAR_RANK: u8 = 5;
    let mut fields: Vec<Field> = fields.into_iter().flatten().collect();
    let mut part = part;
    let length = |fields: &[Field]| {
        fields.iter().map(|field| field.text.chars().count()).sum::<usize>() + 2 * fields.len().saturating_sub(1)
    };
    loop {
        let bar = if part.is_some() { BAR.0 + 2 } else { 0 };
        if length(&fields) + bar <= width {
            break;
        }
        let worst = fields.iter().map(|field| field.rank).max().unwrap_or(0);
        if part.is_some() && worst < BAR_RANK {
            part = None;
        } else if fields.len() > 1 {
            fields.retain(|field| field.rank != worst);
        } else {
            // Not even the first field: cut it.
            let cut = |field: &Field| field.text.chars().take(width).collect();
            return fields.first().map_or_else(String::new, cut);
        }
    }
    let bar = part.map(|part| bar(part, (width - length(&fields) - 2).min(BAR.1)));
    let texts: Vec<String> = bar.into_iter().chain(fields.into_iter().map(|field| field.text)).collect();
    texts.join("  ")
}

/// A bar in steps of an eighth of a column.
fn bar(part: f64, columns: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (part.clamp(0.0, 1.0) * (8 * columns) as f64).round() as usize;
    let (full, rest) = (eighths / 8, PARTS[eighths % 8]);
    let empty = columns - full - usize::from(!rest.is_empty());
    format!("{}{rest}{}", "█".repeat(full), "░".repeat(empty))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of several ranks in its third epoch, resumed after update 400.
    fn status() -> RunStatus {
        let mut status = RunStatus { total: 12_000, shares: vec![0.572, 0.286, 0.142], ..RunStatus::default() };
        status.pace.restart(Duration::ZERO, 400);
        for update in 401..=412 {
            let terms = vec![("mlm".to_owned(), 1.9012), ("nsp".to_owned(), 0.4332)];
            let now = Duration::from_millis(1500 * (update - 400));
            let update = UpdateStatus {
                update,
                epoch: 3,
                loss: 2.334_44,
                terms,
                grad_norm: 1.2345,
                lr: 9.87e-4,
                samples_per_s: 1234.5,
                tokens_per_s: Some(158_016.0),
            };
            status.note(now, update);
        }
        status
    }

    fn lines(status: &RunStatus, now: Duration) -> String {
        let line = |width| {
            let line = status.line(now, width);
            assert!(line.chars().count() <= width, "{width}: {line}");
            format!("{width:>3} |{line}|\n")
        };
        [24, 40, 80, 120, 200].map(line).concat()
    }

    #[test]
    fn the_line_fits_into_any_window() {
        let status = status();
        let now = Duration::from_millis(1500 * 12 + 600);
        for width in 0..300 {
            assert!(status.line(now, width).chars().count() <= width);
        }
        insta::assert_snapshot!("status line", lines(&status, now));
    }

    #[test]
    fn images_of_a_slow_model_on_one_device() {
        let mut status = RunStatus { total: 5000, ..RunStatus::default() };
        status.pace.restart(Duration::ZERO, 0);
        let start = lines(&status, Duration::from_secs(1));
        for update in 1..=2 {
            let terms = vec![("loss".to_owned(), 6.9)];
            let lr = 0.1;
            let update = UpdateStatus {
                update,
                epoch: 1,
                loss: 6.9,
                terms,
                lr,
                samples_per_s: 0.137,
                ..UpdateStatus::default()
            };
            status.note(Duration::from_secs(7 * update.update), update);
        }
        let log = status.log_line(Duration::from_secs(14));
        let slow = format!("{start}\n{}\n{log}", lines(&status, Duration::from_secs(18)));
        insta::assert_snapshot!("status line of a slow model", slow);
    }

    #[test]
    fn a_validation_has_its_own_progress() {
        let mut status = status();
        let started = Duration::from_secs(20);
        status.validation = Some(ValidationStatus { done: 3200, samples: 10_000, started });
        insta::assert_snapshot!("status line of a validation", lines(&status, Duration::from_secs(28)));
    }

    #[test]
    fn a_log_line_has_all_fields() {
        insta::assert_snapshot!("log line", status().log_line(Duration::from_secs(18)));
    }

    #[test]
    fn a_run_without_a_known_end_has_no_bar() {
        let status = RunStatus { total: 0, ..status() };
        let line = status.line(Duration::from_secs(18), 60);
        assert!(line.starts_with("412  loss 2.3344  lr 9.87e-4"), "{line}");
    }
}
