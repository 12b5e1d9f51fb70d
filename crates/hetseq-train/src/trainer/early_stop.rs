//! The end of a run before its last planned update: the learning rate has become too small (`run.stop_min_lr`), or
//! validation no longer improves (`valid.patience`).
//!
//! All ranks end after the same update: rank 0 decides on the rate and tells the others by the header of an update, and all
//! hold the same validations. What they decide on is in the config and in checkpoints: a run that ended early and is started
//! again ends again, and one that was interrupted ends where it would have ended.

use hetseq_data::Cursor;
use hetseq_metrics::Event;
use hetseq_optim::Position;

use crate::config::Config;
use crate::error::TrainError;
use crate::header::Agreed;
use crate::state::Best;
use crate::task::Task;

use super::{End, Trainer};

/// Why a run ends early.
#[derive(Debug, Clone, PartialEq)]
struct EarlyStop {
    /// The key of the config that says so.
    rule: &'static str,
    message: String,
}

/// A rate of `lr` for the update at `at` is too small to go on. Warm-up, which begins at 0, does not count.
fn too_small<C>(config: &Config<C>, at: Position, lr: f64) -> Option<EarlyStop> {
    let least = config.run.stop_min_lr?;
    let is_warm = at.update >= config.optim.schedule().warmup_updates;
    (is_warm && lr <= least).then(|| EarlyStop {
        rule: "run.stop_min_lr",
        message: format!("the learning rate has fallen to {lr:e}, and run.stop_min_lr = {least:e}; lower it to go on"),
    })
}

/// The last validations did not improve on the record. A record by another metric than today's says nothing.
fn out_of_patience<C>(config: &Config<C>, record: Option<&Best>, metric: &str) -> Option<EarlyStop> {
    let patience = config.valid.patience?;
    let record = record.filter(|record| record.metric == metric && record.since >= patience)?;
    let Best { value, update, since, .. } = record;
    let validations = if *since == 1 { "validation has".to_owned() } else { format!("{since} validations have") };
    Some(EarlyStop {
        rule: "valid.patience",
        message: format!(
            "the last {validations} not improved on {metric} {value:.6} of update {update}, and valid.patience = \
             {patience}; raise it to go on"
        ),
    })
}

impl<T: Task> Trainer<T> {
    /// Why the run ends early when it stands at `cursor`.
    fn early_stop(&self, cursor: &Cursor) -> Option<EarlyStop> {
        let small = || too_small(&self.config, self.state.position(cursor), self.lr_at(cursor));
        self.out_of_patience().or_else(small)
    }

    /// Whether the run ends before the update at `cursor`.
    pub(super) fn ends_before(&self, cursor: &Cursor) -> bool {
        self.early_stop(cursor).is_some()
    }

    /// Whether validation has ended the run just now: on all ranks or on none, as the record does not depend on what has
    /// reached rank 0's disk.
    pub(super) fn patience_is_out(&self) -> bool {
        self.out_of_patience().is_some()
    }

    fn out_of_patience(&self) -> Option<EarlyStop> {
        out_of_patience(&self.config, self.state.record.as_ref(), self.best_metric.name)
    }

    /// Before the first update of this process: a run that had ended early, and is started again, ends again. One that was
    /// asked to stop saves even then, so that a stop always leaves a checkpoint.
    pub(super) fn end_at_once(&mut self, agreed: &Agreed) -> Result<Option<End>, TrainError> {
        if !agreed.ends && agreed.stop.is_none() {
            return Ok(None);
        }
        if let Some(rank) = agreed.stop {
            self.announce_stop(rank);
            self.save()?;
        }
        self.finish_saves()?;
        if agreed.ends {
            self.tell_early_stop();
        }
        // The header was the last exchange; with this one all ranks end as rank 0 does.
        self.crew.group.barrier()?;
        Ok(Some(if agreed.ends { End::Finished } else { End::Stopped }))
    }

    /// After an update that turned out to be the last, validated and saved.
    pub(super) fn end_early(&mut self) -> Result<End, TrainError> {
        self.finish_saves()?;
        self.tell_early_stop();
        self.settle()?;
        Ok(End::Finished)
    }

    fn tell_early_stop(&mut self) {
        if let Some(EarlyStop { rule, message }) = self.early_stop(&self.state.cursor) {
            let update = self.state.cursor.updates;
            self.observer.tell(&Event::EarlyStop { update, rule: rule.to_owned(), message });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::ConfigSource;

    const TEXT: &str = "[run]\ntask = 'toy'\nmax_updates = 9\n[task]\n[batch]\nglobal = 8\n[optim]\nname = 'sgd'\n\
                        lr = 0.1\nschedule = { kind = 'cosine', warmup_updates = 4 }\n";

    fn config(sets: &[&str]) -> Config<toml::Table> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        ConfigSource::from_text("toy.toml", TEXT.to_owned(), &sets).parse().unwrap()
    }

    fn best(since: u64) -> Best {
        Best { metric: "loss".to_owned(), value: 0.25, update: 30, since }
    }

    #[test]
    fn a_small_rate_ends_a_run_but_not_its_warm_up() {
        let stops = |config: &Config<_>, update, lr| too_small(config, Position { update, epoch: 0 }, lr).is_some();
        let config_with = config(&["run.stop_min_lr=0.01"]);
        assert!(!stops(&config_with, 0, 0.0));
        assert!(!stops(&config_with, 3, 0.01));
        assert!(!stops(&config_with, 4, 0.0101));
        assert!(stops(&config_with, 4, 0.01));
        assert!(stops(&config_with, 9, 0.0));
        assert!(!stops(&config(&[]), 9, 0.0));
    }

    #[test]
    fn patience_counts_validations_since_the_best() {
        let config_with = config(&["valid.patience=2"]);
        let stops = |best: &Best, metric| out_of_patience(&config_with, Some(best), metric).is_some();
        assert!(!stops(&best(1), "loss"));
        assert!(stops(&best(2), "loss"));
        assert!(stops(&best(3), "loss"));
        assert!(!stops(&best(2), "accuracy"));
        assert_eq!(out_of_patience(&config_with, None, "loss"), None);
        assert_eq!(out_of_patience(&config(&[]), Some(&best(9)), "loss"), None);
        let told = out_of_patience(&config_with, Some(&best(2)), "loss").unwrap().message;
        assert!(told.starts_with("the last 2 validations have not improved on loss 0.250000 of update 30"), "{told}");
    }
}
