//! The lines at the end of a run: its devices, its validations, its last checkpoint. Kept by
//! `console`; the table of devices is also printed by `hetseq demo`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::format::{count, rate};
use crate::{WorkerReport, thousands};

/// What the end of a run reports.
#[derive(Debug, Default)]
pub(super) struct RunSummary {
    /// The metric by which a validation is the best.
    pub(super) best_metric: String,
    pub(super) workers: Vec<WorkerReport>,
    /// Validations since the last checkpoint, by update: a checkpoint is complete some time after
    /// its validation. With the metric that decides.
    valids: Vec<(u64, String)>,
    last_valid: Option<String>,
    best_valid: Option<String>,
    last_checkpoint: Option<String>,
    /// The total time of the updates, and the part of it in which they waited for data.
    seconds: f64,
    data_wait_s: f64,
}

impl RunSummary {
    pub(super) fn note_update(&mut self, seconds: f64, data_wait_s: f64) {
        self.seconds += seconds;
        self.data_wait_s += data_wait_s;
    }

    /// Takes a validation. Returns it as text.
    pub(super) fn note_valid(&mut self, update: u64, loss: f64, metrics: &BTreeMap<String, f64>) -> String {
        let metric = |(name, value): (&String, &f64)| format!("  {name} {value:.4}");
        let loss = format!("update {}  loss {loss:.4}", thousands(update));
        let deciding = metrics.get_key_value(&self.best_metric).map(metric).unwrap_or_default();
        self.valids.push((update, format!("{loss}{deciding}")));
        let text = loss + &metrics.iter().map(metric).collect::<String>();
        self.last_valid = Some(text.clone());
        text
    }

    pub(super) fn note_checkpoint(&mut self, update: u64, path: &Path, is_best: bool) {
        self.last_checkpoint = Some(path.display().to_string());
        if is_best && let Some((_, valid)) = self.valids.iter().find(|(at, _)| *at == update) {
            self.best_valid = Some(valid.clone());
        }
        self.valids.retain(|(at, _)| *at > update);
    }

    /// The lines, with the number of samples that could not be read.
    pub(super) fn lines(&self, skipped: u64) -> Vec<String> {
        let mut lines = Vec::new();
        if self.workers.len() > 1 {
            lines.extend(worker_table(&self.workers));
        }
        let by = if self.best_metric.is_empty() { String::new() } else { format!("  (by {})", self.best_metric) };
        // The rows of usual runs fit into 80 columns.
        lines.extend(self.last_valid.as_ref().map(|valid| format!("last valid  {valid}")));
        lines.extend(self.best_valid.as_ref().map(|valid| format!("best valid  {valid}{by}")));
        lines.extend(self.last_checkpoint.as_ref().map(|path| format!("checkpoint  {path}")));
        if self.seconds > 0.0 {
            lines.push(format!("data wait   {:.1} % of the time", 100.0 * self.data_wait_s / self.seconds));
        }
        if skipped > 0 {
            let samples = count(skipped, "sample");
            lines.push(format!("skipped     {samples} that could not be read (see the warnings)"));
        }
        lines
    }
}

/// A table of each device's speed, share and idle time. Also printed by `hetseq demo`.
pub fn worker_table(workers: &[WorkerReport]) -> Vec<String> {
    let mut lines =
        vec![format!("{:<5} {:<16} {:<8} {:>12} {:>7} {:>6}", "rank", "host", "device", "samples/s", "share", "idle")];
    for worker in workers {
        lines.push(format!(
            "{:<5} {:<16} {:<8} {:>12} {:>6.1}% {:>5.1}%",
            worker.rank,
            worker.host,
            worker.device,
            rate(worker.samples_per_second),
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
    fn the_end_names_the_best_metric_the_data_wait_and_skipped_samples() {
        let mut summary = RunSummary { best_metric: "accuracy".to_owned(), ..RunSummary::default() };
        let metrics = |accuracy| BTreeMap::from([("accuracy".to_owned(), accuracy), ("top5".to_owned(), 1.0)]);
        for (update, accuracy) in [(10, 0.9), (20, 0.8)] {
            summary.note_update(2.0, 0.006);
            summary.note_valid(update, 0.5, &metrics(accuracy));
            summary.note_checkpoint(update, Path::new("run/checkpoints/step-20"), update == 10);
        }
        let lines = [
            "last valid  update 20  loss 0.5000  accuracy 0.8000  top5 1.0000",
            "best valid  update 10  loss 0.5000  accuracy 0.9000  (by accuracy)",
            "checkpoint  run/checkpoints/step-20",
            "data wait   0.3 % of the time",
        ];
        assert_eq!(summary.lines(0), lines);
        assert_eq!(summary.lines(1)[4], "skipped     1 sample that could not be read (see the warnings)");
    }
}
