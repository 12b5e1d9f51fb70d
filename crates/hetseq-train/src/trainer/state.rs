//! Everything a resume needs besides the flat buffers. Small; stored as `trainer/state.json` and
//! sent from rank 0 to all ranks.

use std::collections::BTreeMap;

use hetseq_data::Cursor;
use hetseq_optim::Position;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Reset, RunConfig, current_task_name};
use crate::task::{Better, Metric, OpenedTask, Split};
use crate::trainer::loss_scale::LossScale;

/// Raised when the meaning of a stored field changes.
pub(crate) const FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) format: u32,
    pub(crate) version: String,
    pub(crate) task: String,
    /// Random; equal in all checkpoints of a run, whichever rank wrote them. None in those of older
    /// versions.
    #[serde(default)]
    pub(crate) run: Option<String>,
    pub(crate) cursor: Cursor,
    /// The update at which the schedule began; not zero after `--reset schedule`.
    pub(crate) schedule_start: u64,
    /// The epoch at which the schedule began. Negative after `--reset data`, which resets the epoch
    /// of the data and not that of the schedule.
    #[serde(default)]
    pub(crate) schedule_epoch: i64,
    pub(crate) optimizer: String,
    pub(crate) scalars: BTreeMap<String, f64>,
    pub(crate) plan: PlanKeys,
    /// For messages about other data. None in checkpoints of older versions.
    #[serde(default)]
    pub(crate) data: Option<DataSummary>,
    /// The best validation whose checkpoint is on disk or being written: the link `best` points to
    /// it.
    pub(crate) best: Option<Best>,
    /// The best of all validations, also if its checkpoint could not be written: `valid.patience`
    /// counts from it.
    #[serde(default)]
    pub(crate) record: Option<Best>,
    #[serde(default)]
    pub(crate) loss_scale: LossScale,
    pub(crate) limits: RunLimits,
    /// The last update, estimated when the limits were set: a resume must not change the schedule.
    /// None if not yet estimated.
    pub(crate) total_updates: Option<u64>,
    /// Set if the run was stopped before the validation after this update was complete: the epoch of
    /// the update. A resume begins with that validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unfinished_validation: Option<u64>,
}

/// The configured end of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunLimits {
    pub(crate) max_updates: Option<u64>,
    pub(crate) max_epochs: Option<u64>,
}

/// Settings that the position in the data depends on: with other values the same position means
/// other samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlanKeys {
    #[serde(rename = "run.seed")]
    pub(crate) seed: u64,
    #[serde(rename = "batch.global")]
    pub(crate) global: String,
    #[serde(rename = "batch.curriculum_epochs")]
    pub(crate) curriculum_epochs: u64,
    pub(crate) data: String,
}

/// The data of a run, in words and numbers that a user knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataSummary {
    /// The paths of the task's table, by their keys.
    paths: BTreeMap<String, String>,
    train_samples: u64,
    valid_samples: u64,
}

impl DataSummary {
    pub(crate) fn of(task: &OpenedTask, config: &RunConfig) -> Self {
        let path = |key: &String| Some((key.clone(), config.task.get(key)?.as_str()?.to_owned()));
        let samples = |split| task.data.lengths(split).samples() as u64;
        DataSummary {
            paths: task.keys.paths.iter().filter_map(path).collect(),
            train_samples: samples(Split::Train),
            valid_samples: samples(Split::Valid),
        }
    }

    /// What differs from the data of now, in words.
    fn difference(&self, now: &DataSummary) -> String {
        let counts =
            |data: &DataSummary| [data.train_samples, data.valid_samples].map(hetseq_metrics::thousands).join(" + ");
        let samples = match counts(self) == counts(now) {
            true => format!("{} training + validation samples as before, but with other content", counts(now)),
            false => format!("{} training + validation samples then, {} now", counts(self), counts(now)),
        };
        let keys = now.paths.keys().filter(|key| self.paths.get(*key) != now.paths.get(*key));
        let paths: String = keys
            .map(|key| {
                let [was, is] = [self, now].map(|data| data.paths.get(key).map_or("not set", String::as_str));
                format!("; task.{key} was {was} and is {is} now")
            })
            .collect();
        format!("{samples}{paths}")
    }
}

/// A validation that was better than all earlier ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Best {
    pub(crate) metric: String,
    pub(crate) value: f64,
    pub(crate) update: u64,
    /// Validations since then, none of them better. Only [`State::record`] counts them.
    #[serde(default)]
    pub(crate) since: u64,
}

impl Best {
    /// Records a validation after `update`: either it is the new record, or it adds to
    /// [`Best::since`].
    pub(crate) fn note(record: &mut Option<Best>, metric: &Metric, update: u64) {
        if Best::is_beaten(record.as_ref(), metric) {
            let Metric { name, value, .. } = metric.clone();
            *record = Some(Best { metric: name, value, update, since: 0 });
        } else if let Some(record) = record {
            record.since += 1;
        }
    }

    /// Whether `metric` is better. Any finite value is, if `best` is of another metric.
    pub(crate) fn is_beaten(best: Option<&Best>, metric: &Metric) -> bool {
        match (best.filter(|best| best.metric == metric.name), metric.better) {
            (None, _) => metric.value.is_finite(),
            (Some(best), Better::Lower) => metric.value < best.value,
            (Some(best), Better::Higher) => metric.value > best.value,
        }
    }
}

impl State {
    /// The state of a new run. `data` is the fingerprint of its data.
    pub(crate) fn new<C>(config: &Config<C>, data: &str, summary: DataSummary) -> Self {
        State {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            task: config.run.task.clone(),
            run: None,
            cursor: Cursor::default(),
            schedule_start: 0,
            schedule_epoch: 0,
            optimizer: config.optim.name.as_str().to_owned(),
            scalars: BTreeMap::new(),
            plan: PlanKeys {
                seed: config.run.seed,
                global: config.batch.global.to_string(),
                curriculum_epochs: config.batch.curriculum_epochs,
                data: data.to_owned(),
            },
            data: Some(summary),
            best: None,
            record: None,
            loss_scale: LossScale::default(),
            limits: RunLimits { max_updates: config.run.max_updates, max_epochs: config.run.max_epochs },
            total_updates: None,
            unfinished_validation: None,
        }
    }

    /// The epoch of the last update, counted from 1 for users.
    pub(crate) fn epoch_shown(&self) -> u64 {
        if self.cursor.update_in_epoch == 0 { self.cursor.epoch.max(1) } else { self.cursor.epoch + 1 }
    }

    /// The position in the schedule when the data is at `cursor`.
    pub(crate) fn position(&self, cursor: &Cursor) -> Position {
        let epoch = i64::try_from(cursor.epoch).unwrap_or(i64::MAX).saturating_sub(self.schedule_epoch);
        Position {
            update: cursor.updates.saturating_sub(self.schedule_start),
            epoch: u64::try_from(epoch).unwrap_or_default(),
        }
    }

    /// This checkpoint's state, to resume with the current config. `now` is the state of a new run
    /// with that config. Rejects changes that would silently alter the meaning of the state.
    pub(crate) fn resumed(mut self, now: &State, reset: Reset) -> Result<State, String> {
        if self.format != FORMAT {
            return Err(format!(
                "its format is {}, this program writes and reads {FORMAT}: resume with hetseq {}",
                self.format, self.version
            ));
        }
        self.task = current_task_name(&self.task).to_owned();
        if self.task != now.task {
            return Err(format!("its task is {}, the config's is {}", self.task, now.task));
        }
        if reset.data {
            let epochs = i64::try_from(self.cursor.epoch).unwrap_or(i64::MAX);
            self.schedule_epoch = self.schedule_epoch.saturating_sub(epochs);
            (self.cursor.epoch, self.cursor.update_in_epoch) = (0, 0);
            self.unfinished_validation = None;
        } else {
            if self.plan.data != now.plan.data {
                return Err(self.other_data(now));
            }
            for (key, then, now) in self.plan.pairs(&now.plan) {
                if then != now {
                    return Err(format!(
                        "{key} was {then} and is {now} now, so its position in the data has no meaning. Set it back, \
                         or restart the data with --reset data"
                    ));
                }
            }
        }
        if !reset.optimizer && self.optimizer != now.optimizer {
            return Err(format!(
                "its optimizer state is of {}, the config says optim.name = {}. Set it back, or drop the state with \
                 --reset optimizer",
                self.optimizer, now.optimizer
            ));
        }
        if reset.optimizer {
            self.scalars.clear();
        }
        if reset.schedule {
            self.schedule_start = self.cursor.updates;
            self.schedule_epoch = i64::try_from(self.cursor.epoch).unwrap_or(i64::MAX);
        }
        if reset.schedule || reset.data || self.limits != now.limits {
            self.total_updates = None;
        }
        // Older versions stored one value for both.
        self.record = self.record.or_else(|| self.best.clone());
        // Scores on other samples cannot be compared.
        if self.plan.data != now.plan.data {
            (self.best, self.record) = (None, None);
        }
        self.limits = now.limits;
        self.plan = now.plan.clone();
        self.data.clone_from(&now.data);
        self.optimizer.clone_from(&now.optimizer);
        Ok(self)
    }

    fn other_data(&self, now: &State) -> String {
        let difference = match (&self.data, &now.data) {
            (Some(then), Some(now)) => then.difference(now),
            _ => format!("its fingerprint was {} and is {} now", self.plan.data, now.plan.data),
        };
        format!(
            "the data is not the one that it was trained on ({difference}), so its position in the data has no meaning. Set the \
             data back, or start at the beginning of the new data with --reset data"
        )
    }
}

impl PlanKeys {
    fn pairs(&self, now: &PlanKeys) -> [(&'static str, String, String); 3] {
        [
            ("run.seed", self.seed.to_string(), now.seed.to_string()),
            ("batch.global", self.global.clone(), now.global.clone()),
            ("batch.curriculum_epochs", self.curriculum_epochs.to_string(), now.curriculum_epochs.to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            format: FORMAT,
            version: "0".to_owned(),
            task: "images".to_owned(),
            run: None,
            cursor: Cursor { epoch: 2, update_in_epoch: 3, updates: 43, samples: 999 },
            schedule_start: 0,
            schedule_epoch: 0,
            optimizer: "adam".to_owned(),
            scalars: BTreeMap::from([("step".to_owned(), 43.0)]),
            plan: PlanKeys { seed: 1, global: "64".to_owned(), curriculum_epochs: 0, data: "aa".to_owned() },
            data: None,
            best: None,
            record: None,
            loss_scale: LossScale::default(),
            limits: RunLimits { max_updates: Some(100), max_epochs: None },
            total_updates: Some(100),
            unfinished_validation: None,
        }
    }

    #[test]
    fn the_position_is_only_valid_for_the_same_plan() {
        let mut now = state();
        now.plan.global = "32".to_owned();
        let error = state().resumed(&now, Reset::default()).unwrap_err();
        assert!(error.contains("batch.global was 64 and is 32 now"), "{error}");
        let reset = Reset { data: true, ..Reset::default() };
        let resumed = state().resumed(&now, reset).unwrap();
        assert_eq!((resumed.cursor.epoch, resumed.cursor.updates), (0, 43));
        assert_eq!(resumed.plan.global, "32");
    }

    #[test]
    fn other_data_is_described() {
        let summary = |path: &str, train_samples| {
            let paths = BTreeMap::from([("data".to_owned(), path.to_owned())]);
            Some(DataSummary { paths, train_samples, valid_samples: 100 })
        };
        let (then, mut now) = (State { data: summary("/a", 3000), ..state() }, state());
        (now.plan.data, now.data) = ("bb".to_owned(), summary("/b", 500));
        let error = then.clone().resumed(&now, Reset::default()).unwrap_err();
        let expected =
            "(3,000 + 100 training + validation samples then, 500 + 100 now; task.data was /a and is /b now)";
        assert!(error.contains(expected) && error.contains("--reset data"), "{error}");
        now.data = then.data.clone();
        let error = then.resumed(&now, Reset::default()).unwrap_err();
        assert!(error.contains("samples as before, but with other content)"), "{error}");
        // A checkpoint of an older version.
        let error = state().resumed(&now, Reset::default()).unwrap_err();
        assert!(error.contains("its fingerprint was aa and is bb now"), "{error}");
    }

    #[test]
    fn other_data_resets_the_best_and_the_total() {
        let best = Best { metric: "loss".to_owned(), value: 0.1, update: 40, since: 0 };
        let old = State { best: Some(best), ..state() };
        let reset = Reset { data: true, ..Reset::default() };
        let same = old.clone().resumed(&state(), reset).unwrap();
        assert!(same.best.is_some());
        assert_eq!(same.record, same.best, "older versions saved no record");
        assert_eq!(same.total_updates, None);
        let mut now = state();
        now.plan.data = "bb".to_owned();
        let other = old.resumed(&now, reset).unwrap();
        assert_eq!((other.best, other.record), (None, None));
    }

    #[test]
    fn another_optimizer_needs_a_reset() {
        let mut now = state();
        now.optimizer = "sgd".to_owned();
        assert!(state().resumed(&now, Reset::default()).is_err());
        let reset = Reset { optimizer: true, schedule: true, data: false };
        let resumed = state().resumed(&now, reset).unwrap();
        assert_eq!((resumed.optimizer.as_str(), resumed.schedule_start), ("sgd", 43));
        assert!(resumed.scalars.is_empty());
    }

    #[test]
    fn the_schedule_keeps_its_length_until_the_limits_change() {
        let mut now = state();
        assert_eq!(state().resumed(&now, Reset::default()).unwrap().total_updates, Some(100));
        now.limits.max_updates = Some(200);
        assert_eq!(state().resumed(&now, Reset::default()).unwrap().total_updates, None);
    }

    #[test]
    fn the_schedule_keeps_its_position_unless_it_is_reset() {
        let at = |reset| {
            let resumed = state().resumed(&state(), reset).unwrap();
            resumed.position(&resumed.cursor)
        };
        let expected = Position { update: 43, epoch: 2 };
        assert_eq!(at(Reset::default()), expected);
        assert_eq!(at(Reset { data: true, ..Reset::default() }), expected);
        let from_start = Position { update: 0, epoch: 0 };
        assert_eq!(at(Reset { schedule: true, ..Reset::default() }), from_start);
        assert_eq!(at(Reset { schedule: true, data: true, ..Reset::default() }), from_start);
    }

    #[test]
    fn a_record_counts_the_validations_since_it() {
        let mut record = None;
        let since = |record: &Option<Best>| record.as_ref().map(|record| (record.update, record.since));
        for (update, value, expected) in
            [(2, f64::NAN, None), (4, 0.5, Some((4, 0))), (6, 0.5, Some((4, 1))), (8, f64::NAN, Some((4, 2)))]
        {
            Best::note(&mut record, &Metric::lower("loss", value), update);
            assert_eq!(since(&record), expected, "{update}");
        }
        Best::note(&mut record, &Metric::lower("loss", 0.4), 10);
        assert_eq!(since(&record), Some((10, 0)));
        // Each metric has a separate record.
        Best::note(&mut record, &Metric::higher("accuracy", 0.1), 12);
        assert_eq!(since(&record), Some((12, 0)));
    }

    #[test]
    fn better_depends_on_the_metric() {
        let best = |metric: &str, value| Some(Best { metric: metric.to_owned(), value, update: 1, since: 0 });
        let (loss, accuracy) = (|value| Metric::lower("loss", value), |value| Metric::higher("accuracy", value));
        assert!(Best::is_beaten(best("loss", 0.5).as_ref(), &loss(0.4)));
        assert!(!Best::is_beaten(best("loss", 0.5).as_ref(), &loss(f64::NAN)));
        assert!(Best::is_beaten(best("accuracy", 0.5).as_ref(), &accuracy(0.6)));
        assert!(!Best::is_beaten(best("accuracy", 0.5).as_ref(), &accuracy(0.4)));
        assert!(Best::is_beaten(best("loss", 0.5).as_ref(), &accuracy(0.1)));
    }
}
