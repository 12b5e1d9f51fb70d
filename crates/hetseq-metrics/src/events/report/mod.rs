//! The report of a run: where its time went, computed from its events. Pure; `hetseq report` reads
//! the events and prints it.
//!
//! A run may be stopped and resumed, also on other machines. Each [`Event::Start`] begins a process
//! group. Totals per group, from its last [`Event::Workers`], are added up over the groups. A group
//! whose ranks change counts again from zero after each [`Event::Regrouped`], so its totals are the
//! last ones before each of these and the last ones of all. A worker is identified by its host, its
//! rank's number at the start of the group, and its device. Events of earlier versions lack some
//! fields; [`Report::missing`] lists what the report lacks then.

mod advice;
mod membership_change;
mod process_group;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::format::median;
use crate::{Event, RankReport, WorkerReport};
use process_group::{ProcessGroup, WorkersEvent};

pub use membership_change::{Continuation, LeadRecord, LeftRecord, LostRecord, MembershipChange};

/// An update that took this many times as long as predicted was disturbed.
const DISTURBED: f64 = 1.15;

/// The config values that advice depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// `comm.wire_dtype` is `"bf16"`.
    pub bf16_wire: bool,
    /// `batch.split` is not `"measured"`.
    pub split_by_hand: bool,
}

/// See the [module](self).
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    pub task: String,
    /// Ranks and devices of the last process group, when its events begin.
    pub world: usize,
    pub devices: usize,
    pub parameters: usize,
    /// The number of starts and resumes.
    pub process_groups: usize,
    /// Of the last process group: `finished`, `stopped`, `failed`; `None` while it runs or if it
    /// was killed.
    pub outcome: Option<String>,
    pub updates: u64,
    pub samples: u64,
    /// Within the time of updates.
    pub samples_per_second: f64,
    pub spent: TimeSpent,
    /// `None` if no update was predicted.
    pub prediction: Option<PredictionFit>,
    /// Since the last plan.
    pub prediction_of_last_plan: Option<PredictionFit>,
    pub workers: Vec<WorkerSummary>,
    pub ranks: Vec<RankSummary>,
    pub plans: Vec<PlanRecord>,
    /// Each time that ranks were lost or left.
    pub membership_changes: Vec<MembershipChange>,
    /// Each time that a rank's parameters differed from those of the majority.
    pub healed: Vec<HealedRecord>,
    /// Each time that a process joined the run.
    pub joined: Vec<JoinedRecord>,
    /// What the events do not contain.
    pub missing: Vec<String>,
    /// What to improve, the largest gain first; never empty.
    pub advice: Vec<String>,
}

/// A process that joined the run while it trained.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JoinedRecord {
    /// Updates done before.
    pub update: u64,
    pub rank: usize,
    pub host: String,
    /// All ranks and devices, with it.
    pub world: usize,
    pub devices: usize,
    /// How long the others waited.
    pub seconds: f64,
}

/// A rank that took the state of the others, because its own was wrong.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HealedRecord {
    /// Updates done before.
    pub update: u64,
    /// Its number at the start of its process group.
    pub rank: usize,
    pub host: String,
}

/// Wall-clock seconds of the whole run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TimeSpent {
    pub wall_s: f64,
    pub updates_s: f64,
    pub validation_s: f64,
    /// Pauses of training for checkpoints.
    pub checkpoints_s: f64,
    /// Updates and validations that were interrupted because ranks were lost, until that was
    /// noticed.
    pub interrupted_s: f64,
    /// From noticing that ranks were lost, or agreeing that they leave, until the others continued.
    pub regrouping_s: f64,
    /// Starting, measuring, and everything else.
    pub other_s: f64,
    /// Part of `updates_s`: the slowest rank waited for samples.
    pub data_wait_s: f64,
    /// Part of `updates_s`: the time over prediction until a new plan reacted.
    pub lost_until_replanned_s: f64,
}

/// The error of predicted update times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PredictionFit {
    pub updates: usize,
    /// Medians.
    pub measured_s: f64,
    pub predicted_s: f64,
    /// Median of the relative differences from the measured time: 0.02 is 2 %.
    pub error: f64,
}

/// One device, over all process groups that it was part of.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WorkerSummary {
    pub rank: usize,
    pub host: String,
    pub device: String,
    /// Its part of the samples.
    pub share: f64,
    /// While computing.
    pub samples_per_second: f64,
    /// Parts of the time of its updates.
    pub computing: f64,
    pub idle: f64,
}

/// One rank, over all process groups that it was part of.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RankSummary {
    #[serde(flatten)]
    pub seconds: RankReport,
    /// The total time of its updates.
    pub wall_s: f64,
    /// What the seconds do not account for.
    pub other_s: f64,
}

/// A plan of the run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanRecord {
    pub update: u64,
    pub predicted_s: f64,
    pub before_s: Option<f64>,
    pub gain: Option<f64>,
    pub samples: Vec<u64>,
    /// The time over prediction of the disturbed updates before this plan.
    pub lost_s: f64,
}

impl Report {
    /// Computes the report; `None` if no update was done.
    pub fn new(events: impl IntoIterator<Item = Event>, settings: Settings) -> Option<Report> {
        let mut groups: Vec<ProcessGroup> = Vec::new();
        for event in events {
            if groups.is_empty() || matches!(event, Event::Start { .. }) {
                groups.push(ProcessGroup::default());
            }
            if let Some(group) = groups.last_mut() {
                group.add(event);
            }
        }
        if groups.iter().all(|group| group.updates.is_empty()) {
            return None;
        }
        let mut report = Report::default();
        for group in &groups {
            report.add(group);
        }
        report.finish(&groups);
        report.advice = advice::advice(&report, settings);
        Some(report)
    }

    fn add(&mut self, group: &ProcessGroup) {
        if let Some(start) = &group.start {
            self.process_groups += 1;
            self.task.clone_from(&start.task);
            (self.world, self.devices, self.parameters) = (start.world, start.devices, start.parameters);
        } else if let Some(continued) = group.membership_changes.all.iter().find_map(|each| each.continued.as_ref()) {
            (self.world, self.devices) = (continued.world, continued.devices);
        }
        self.membership_changes.extend(group.membership_changes.all.iter().cloned());
        self.healed.extend(group.healed.iter().cloned());
        self.joined.extend(group.joined.iter().cloned());
        self.outcome = group.end.as_ref().map(|end| end.outcome.clone());
        self.updates += group.updates.len() as u64;
        self.samples += group.updates.iter().map(|update| update.samples).sum::<u64>();
        let updates_s: f64 = group.updates.iter().map(|update| update.seconds).sum();
        let interrupted_s = group.membership_changes.interrupted_s();
        let joining_s: f64 = group.joined.iter().map(|joined| joined.seconds).sum();
        let regrouping_s = group.membership_changes.regroup_s() + joining_s;
        let known_s = updates_s + group.validation_s + group.checkpoints_s + interrupted_s + regrouping_s;
        let wall_s = group.end.as_ref().map_or(known_s, |end| end.seconds.max(known_s));
        self.spent.wall_s += wall_s;
        self.spent.updates_s += updates_s;
        self.spent.validation_s += group.validation_s;
        self.spent.checkpoints_s += group.checkpoints_s;
        self.spent.interrupted_s += interrupted_s;
        self.spent.regrouping_s += regrouping_s;
        self.spent.other_s += wall_s - known_s;
        self.spent.data_wait_s += group.updates.iter().map(|update| update.data_wait_s).sum::<f64>();
        for (plan, lost_s) in group.plans.iter().zip(group.lost_until_replanned()) {
            self.spent.lost_until_replanned_s += lost_s;
            self.plans.push(PlanRecord { lost_s, ..plan.clone() });
        }
        for WorkersEvent { workers, ranks, wall_s, .. } in &group.totals {
            ranks.iter().for_each(|rank| self.add_rank(rank, *wall_s));
            workers.iter().for_each(|worker| self.add_worker(worker, *wall_s));
        }
    }

    fn add_rank(&mut self, seconds: &RankReport, wall_s: f64) {
        let is_same = |total: &RankSummary| total.seconds.rank == seconds.rank && total.seconds.host == seconds.host;
        let at = self.ranks.iter().position(is_same).unwrap_or_else(|| {
            let seconds = RankReport { rank: seconds.rank, host: seconds.host.clone(), ..RankReport::default() };
            self.ranks.push(RankSummary { seconds, ..RankSummary::default() });
            self.ranks.len() - 1
        });
        let total = &mut self.ranks[at];
        let known_s = seconds.compute_s + seconds.data_s + seconds.exchange_s + seconds.wait_s + seconds.host_s;
        total.seconds.compute_s += seconds.compute_s;
        total.seconds.data_s += seconds.data_s;
        total.seconds.exchange_s += seconds.exchange_s;
        total.seconds.wait_s += seconds.wait_s;
        total.seconds.host_s += seconds.host_s;
        total.wall_s += wall_s.max(known_s);
        total.other_s += (wall_s - known_s).max(0.0);
    }

    /// Until [`Report::finish`], `share` is a number of samples, and `computing` and `idle` are
    /// seconds.
    fn add_worker(&mut self, worker: &WorkerReport, wall_s: f64) {
        let at = self.workers.iter().position(|total| total.is_same_device(worker)).unwrap_or_else(|| {
            let (host, device) = (worker.host.clone(), worker.device.clone());
            self.workers.push(WorkerSummary { rank: worker.rank, host, device, ..WorkerSummary::default() });
            self.workers.len() - 1
        });
        let total = &mut self.workers[at];
        total.share += worker.samples_per_second * worker.compute_s;
        total.computing += worker.compute_s;
        total.idle += worker.idle * wall_s;
    }

    fn finish(&mut self, groups: &[ProcessGroup]) {
        let rate = |amount: f64, per: f64| if per > 0.0 { amount / per } else { 0.0 };
        self.samples_per_second = rate(self.samples as f64, self.spent.updates_s);
        let samples: f64 = self.workers.iter().map(|worker| worker.share).sum();
        let walls: Vec<f64> = self.workers.iter().map(|worker| worker_wall_s(groups, worker)).collect();
        for (worker, wall_s) in self.workers.iter_mut().zip(walls) {
            worker.samples_per_second = rate(worker.share, worker.computing);
            worker.share = rate(worker.share, samples);
            worker.computing = rate(worker.computing, wall_s).min(1.0);
            worker.idle = rate(worker.idle, wall_s);
        }
        if samples == 0.0 {
            self.workers_of_earlier_versions(groups);
        }
        self.prediction = fit(groups.iter().flat_map(ProcessGroup::predicted));
        let since = groups.iter().rposition(|group| !group.plans.is_empty());
        self.prediction_of_last_plan = since.and_then(|group| {
            let planned = groups[group].plans.last().map_or(0, |plan| plan.update);
            let of_last = |from: u64| move |group: &ProcessGroup| group.predicted_from(from).collect::<Vec<_>>();
            let later = groups[group + 1..].iter().flat_map(of_last(0));
            fit(of_last(planned)(&groups[group]).into_iter().chain(later))
        });
        self.missing = missing(self, groups);
    }
}

impl Report {
    /// Earlier versions recorded fractions, and no seconds that could be added up. So the values of
    /// the last process group are used.
    fn workers_of_earlier_versions(&mut self, groups: &[ProcessGroup]) {
        let Some(last) = groups.iter().rev().find_map(|group| group.totals.last()) else { return };
        let summary = |worker: &WorkerReport| WorkerSummary {
            rank: worker.rank,
            host: worker.host.clone(),
            device: worker.device.clone(),
            share: worker.share,
            samples_per_second: worker.samples_per_second,
            computing: 1.0 - worker.idle,
            idle: worker.idle,
        };
        self.workers = last.workers.iter().map(summary).collect();
    }
}

impl WorkerSummary {
    fn is_same_device(&self, worker: &WorkerReport) -> bool {
        (self.rank, &self.host, &self.device) == (worker.rank, &worker.host, &worker.device)
    }
}

/// The time of the totals that the worker is part of.
fn worker_wall_s(groups: &[ProcessGroup], worker: &WorkerSummary) -> f64 {
    let events = groups.iter().flat_map(|group| &group.totals);
    let with_worker = events.filter(|event| event.workers.iter().any(|other| worker.is_same_device(other)));
    with_worker.map(|event| event.wall_s).sum()
}

/// Computes the fit from pairs of measured and predicted seconds; `None` if there are none.
fn fit(updates: impl Iterator<Item = (f64, f64)>) -> Option<PredictionFit> {
    let (measured, predicted): (Vec<f64>, Vec<f64>) = updates.unzip();
    let error = |(measured, predicted): (&f64, &f64)| (measured - predicted).abs() / measured;
    let errors: Vec<f64> = measured.iter().zip(&predicted).map(error).collect();
    (!measured.is_empty()).then(|| PredictionFit {
        updates: measured.len(),
        measured_s: median(measured),
        predicted_s: median(predicted),
        error: median(errors),
    })
}

fn missing(report: &Report, groups: &[ProcessGroup]) -> Vec<String> {
    let mut missing = Vec::new();
    if report.process_groups == 0 {
        missing.push("how the run started: there is no `start` event".to_owned());
    }
    if report.prediction.is_none() {
        missing.push("how long updates were predicted to take: no `update` event has `predicted_s`".to_owned());
    }
    if report.ranks.is_empty() {
        missing.push("where each rank's time went: no `workers` event has `ranks`".to_owned());
    }
    if groups.iter().any(|group| group.has_unknown_ranks) {
        missing.push(
            "which rank is which after a loss: events of an earlier loss are not in this file, so the ranks after it \
             have their numbers of that time"
                .to_owned(),
        );
    }
    let counted: u64 = groups.iter().flat_map(|group| &group.totals).map(|totals| totals.updates).sum();
    if !report.ranks.is_empty() && counted < report.updates {
        missing.push(format!(
            "where the ranks' time went in {} of the {} updates: no `workers` event follows them, for example \
             because a process was killed",
            report.updates - counted,
            report.updates
        ));
    }
    missing
}
