//! Ending a run before its last planned update: the learning rate has become too small
//! (`run.stop_min_lr`), or validation no longer improves (`valid.patience`).
//!
//! All ranks end after the same update: rank 0 decides on the rate and sends the decision in the
//! header of an update, and all ranks hold the same validations. The decision depends only on the
//! config and on checkpoints: a run that ended early ends again when it is restarted, and an
//! interrupted run ends where it would have ended.

use hetseq_data::Cursor;
use hetseq_metrics::Event;
use hetseq_optim::Position;

use crate::config::Config;
use crate::error::TrainError;
use crate::trainer::header::MergedHeader;
use crate::trainer::state::Best;

use super::leave::Verdict;
use super::{Pause, RunOutcome, Trainer};

/// Why a run ends early.
#[derive(Debug, Clone, PartialEq)]
struct EarlyStop {
    /// The config key of the rule.
    rule: &'static str,
    message: String,
}

/// The reason to end if `lr` is too small for the update at `at`. Warm-up, which begins at 0, does
/// not count.
fn lr_too_small<C>(config: &Config<C>, at: Position, lr: f64) -> Option<EarlyStop> {
    let least = config.run.stop_min_lr?;
    let is_warm = at.update >= config.optim.schedule().warmup_updates;
    (is_warm && lr <= least).then(|| EarlyStop {
        rule: "run.stop_min_lr",
        message: format!(
            "the learning rate has fallen to {lr:e}, and run.stop_min_lr = {least:e}; lower it to continue"
        ),
    })
}

/// The reason to end if the last validations did not improve on the record. A record of another
/// metric than the configured one is ignored.
fn out_of_patience<C>(config: &Config<C>, record: Option<&Best>, metric: &str) -> Option<EarlyStop> {
    let patience = config.valid.patience?;
    let record = record.filter(|record| record.metric == metric && record.since >= patience)?;
    let Best { value, update, since, .. } = record;
    let validations = if *since == 1 { "validation has".to_owned() } else { format!("{since} validations have") };
    Some(EarlyStop {
        rule: "valid.patience",
        message: format!(
            "the last {validations} not improved on {metric} {value:.6} of update {update}, and valid.patience = \
             {patience}; raise it to continue"
        ),
    })
}

impl Trainer {
    /// Why the run ends early at `cursor`, if it does.
    fn early_stop(&self, cursor: &Cursor) -> Option<EarlyStop> {
        let at = self.learner.state.position(cursor);
        let small = || lr_too_small(&self.config, at, self.learner.lr_at(cursor));
        self.out_of_patience().or_else(small)
    }

    /// Whether the run ends before the update at `cursor`.
    pub(super) fn ends_before(&self, cursor: &Cursor) -> bool {
        self.early_stop(cursor).is_some()
    }

    /// Whether the validation just done ends the run. Equal on all ranks, since the record does not
    /// depend on what rank 0 could save.
    pub(super) fn patience_has_run_out(&self) -> bool {
        self.out_of_patience().is_some()
    }

    fn out_of_patience(&self) -> Option<EarlyStop> {
        out_of_patience(&self.config, self.learner.state.record.as_ref(), &self.config.checkpoint.best)
    }

    /// Before the first update of this process, or of this group: a run that ended early, and was
    /// restarted, ends again. One that was asked to stop saves even here, so that a stop always leaves
    /// a checkpoint.
    pub(super) fn end_at_once(&mut self, merged: &MergedHeader) -> Result<Option<Pause>, TrainError> {
        let verdict = if merged.stop.is_some() { self.confer()? } else { Verdict::Continue };
        let outcome = match verdict {
            Verdict::Continue if merged.ends => RunOutcome::Finished,
            Verdict::Continue => return Ok(None),
            Verdict::Leave(leaving) => return self.prepare_leave(leaving).map(Some),
            Verdict::Stop(request) => {
                self.announce_stop(request);
                self.save()?;
                RunOutcome::Stopped
            }
        };
        self.finish_saves()?;
        // The header was the last exchange. With this one all ranks end as rank 0 does.
        self.session.group.barrier()?;
        if merged.ends {
            self.emit_early_stop();
            return Ok(Some(Pause::Ended(RunOutcome::Finished)));
        }
        Ok(Some(Pause::Ended(outcome)))
    }

    /// Ends the run after an update that was validated and saved.
    pub(super) fn end_early(&mut self) -> Result<RunOutcome, TrainError> {
        self.finish_saves()?;
        self.final_sync()?;
        self.emit_early_stop();
        Ok(RunOutcome::Finished)
    }

    fn emit_early_stop(&mut self) {
        let cursor = self.learner.state.cursor.clone();
        if let Some(EarlyStop { rule, message }) = self.early_stop(&cursor) {
            let (update, rule) = (cursor.updates, rule.to_owned());
            self.observer.events.emit(&Event::EarlyStop { update, rule, message });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSource;

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
        let stops = |config: &Config<_>, update, lr| lr_too_small(config, Position { update, epoch: 0 }, lr).is_some();
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
        let message = out_of_patience(&config_with, Some(&best(2)), "loss").unwrap().message;
        assert!(
            message.starts_with("the last 2 validations have not improved on loss 0.250000 of update 30"),
            "{message}"
        );
    }
}
