//! Where the time of a run went: from its events to one table. Pure; `hetseq report` reads and prints.
//!
//! A run may have been stopped and resumed, on other machines too. Each [`Event::Start`] begins a process group; what is
//! counted per group, as in its last [`Event::Workers`], is added up over the groups. Events of earlier versions lack some
//! of it; then the report lacks it too, and [`Report::missing`] says so.

mod advice;
mod group;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::format::median;
use crate::{Event, RankReport, WorkerReport};
use group::Group;

/// An update that took this many times as long as predicted was disturbed.
const DISTURBED: f64 = 1.15;

/// What the config of the run says, as far as advice depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// `comm.wire = "bf16"`.
    pub half_wire: bool,
    /// `batch.split` is something else than `"measured"`.
    pub split_by_hand: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    pub task: String,
    /// Ranks and devices of the last process group.
    pub world: usize,
    pub devices: usize,
    pub parameters: usize,
    /// How often the run was started or resumed.
    pub process_groups: usize,
    /// Of the last process group: `finished`, `stopped`, `failed`; none while it runs, or if it was killed.
    pub outcome: Option<String>,
    pub updates: u64,
    pub samples: u64,
    /// Over the time of updates alone.
    pub samples_per_second: f64,
    pub spent: Spent,
    /// None if no update was predicted.
    pub prediction: Option<Fit>,
    /// Since the last plan.
    pub prediction_of_last_plan: Option<Fit>,
    pub workers: Vec<WorkerTotal>,
    pub ranks: Vec<RankTotal>,
    pub plans: Vec<PlanTold>,
    /// What these events cannot tell.
    pub missing: Vec<String>,
    /// What to improve, the most worthwhile first; the last resort is that there is nothing.
    pub advice: Vec<String>,
}

/// Seconds of the whole run, on the clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spent {
    pub wall_s: f64,
    pub updates_s: f64,
    pub validation_s: f64,
    /// Training stood still for a checkpoint.
    pub checkpoints_s: f64,
    /// Starting, measuring, and whatever nothing was told of.
    pub other_s: f64,
    /// Part of `updates_s`: the slowest rank waited for samples.
    pub data_wait_s: f64,
    /// Part of `updates_s`: longer than predicted, until a new plan took that into account.
    pub lost_until_replanned_s: f64,
}

/// How well updates were predicted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Fit {
    pub updates: usize,
    /// Medians.
    pub measured_s: f64,
    pub predicted_s: f64,
    /// Median of the differences, against what was measured: 0.02 is 2 %.
    pub error: f64,
}

/// One device, over all process groups that it was part of.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WorkerTotal {
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
pub struct RankTotal {
    #[serde(flatten)]
    pub seconds: RankReport,
    /// Of its updates in all.
    pub wall_s: f64,
    /// What the seconds do not account for.
    pub other_s: f64,
}

/// Who does how much was decided.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanTold {
    pub update: u64,
    pub predicted_s: f64,
    pub before_s: Option<f64>,
    pub gain: Option<f64>,
    pub samples: Vec<u64>,
    /// What it had cost until then that the old plan no longer fitted.
    pub lost_s: f64,
}

impl Report {
    /// None if no update was done.
    pub fn new(events: impl IntoIterator<Item = Event>, settings: Settings) -> Option<Report> {
        let mut groups: Vec<Group> = Vec::new();
        for event in events {
            if groups.is_empty() || matches!(event, Event::Start { .. }) {
                groups.push(Group::default());
            }
            if let Some(group) = groups.last_mut() {
                group.take(event);
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

    fn add(&mut self, group: &Group) {
        if let Some(start) = &group.start {
            self.process_groups += 1;
            self.task.clone_from(&start.task);
            (self.world, self.devices, self.parameters) = (start.world, start.devices, start.parameters);
        }
        self.outcome = group.end.as_ref().map(|end| end.outcome.clone());
        self.updates += group.updates.len() as u64;
        self.samples += group.updates.iter().map(|update| update.samples).sum::<u64>();
        let updates_s: f64 = group.updates.iter().map(|update| update.seconds).sum();
        let told_s = updates_s + group.validation_s + group.checkpoints_s;
        let wall_s = group.end.as_ref().map_or(told_s, |end| end.seconds.max(told_s));
        self.spent.wall_s += wall_s;
        self.spent.updates_s += updates_s;
        self.spent.validation_s += group.validation_s;
        self.spent.checkpoints_s += group.checkpoints_s;
        self.spent.other_s += wall_s - told_s;
        self.spent.data_wait_s += group.updates.iter().map(|update| update.data_wait_s).sum::<f64>();
        for (plan, lost_s) in group.plans.iter().zip(group.lost_until_replanned()) {
            self.spent.lost_until_replanned_s += lost_s;
            self.plans.push(PlanTold { lost_s, ..plan.clone() });
        }
        if let Some(workers) = &group.workers {
            workers.ranks.iter().for_each(|rank| self.add_rank(rank, workers.wall_s));
            workers.workers.iter().for_each(|worker| self.add_worker(worker, workers.wall_s));
        }
    }

    fn add_rank(&mut self, seconds: &RankReport, wall_s: f64) {
        let is_same = |total: &RankTotal| total.seconds.rank == seconds.rank && total.seconds.host == seconds.host;
        let at = self.ranks.iter().position(is_same).unwrap_or_else(|| {
            let seconds = RankReport { rank: seconds.rank, host: seconds.host.clone(), ..RankReport::default() };
            self.ranks.push(RankTotal { seconds, ..RankTotal::default() });
            self.ranks.len() - 1
        });
        let total = &mut self.ranks[at];
        let told_s = seconds.compute_s + seconds.data_s + seconds.exchange_s + seconds.wait_s + seconds.host_s;
        total.seconds.compute_s += seconds.compute_s;
        total.seconds.data_s += seconds.data_s;
        total.seconds.exchange_s += seconds.exchange_s;
        total.seconds.wait_s += seconds.wait_s;
        total.seconds.host_s += seconds.host_s;
        total.wall_s += wall_s.max(told_s);
        total.other_s += (wall_s - told_s).max(0.0);
    }

    /// Until [`Report::finish`], `share` is a number of samples, and `computing` and `idle` are seconds.
    fn add_worker(&mut self, told: &WorkerReport, wall_s: f64) {
        let is_same =
            |total: &WorkerTotal| (total.rank, &total.host, &total.device) == (told.rank, &told.host, &told.device);
        let at = self.workers.iter().position(is_same).unwrap_or_else(|| {
            let (host, device) = (told.host.clone(), told.device.clone());
            self.workers.push(WorkerTotal { rank: told.rank, host, device, ..WorkerTotal::default() });
            self.workers.len() - 1
        });
        let total = &mut self.workers[at];
        total.share += told.samples_per_second * told.compute_s;
        total.computing += told.compute_s;
        total.idle += told.idle * wall_s;
    }

    fn finish(&mut self, groups: &[Group]) {
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
        self.prediction = fit(groups.iter().flat_map(Group::predicted));
        let since = groups.iter().rposition(|group| !group.plans.is_empty());
        self.prediction_of_last_plan = since.and_then(|group| {
            let planned = groups[group].plans.last().map_or(0, |plan| plan.update);
            let of_last = |from: u64| move |group: &Group| group.predicted_from(from).collect::<Vec<_>>();
            let later = groups[group + 1..].iter().flat_map(of_last(0));
            fit(of_last(planned)(&groups[group]).into_iter().chain(later))
        });
        self.missing = missing(self, groups);
    }
}

impl Report {
    /// They told parts alone, and no seconds that could be added up: the last process group's count.
    fn workers_of_earlier_versions(&mut self, groups: &[Group]) {
        let Some(told) = groups.iter().rev().find_map(|group| group.workers.as_ref()) else { return };
        let total = |told: &WorkerReport| WorkerTotal {
            rank: told.rank,
            host: told.host.clone(),
            device: told.device.clone(),
            share: told.share,
            samples_per_second: told.samples_per_second,
            computing: 1.0 - told.idle,
            idle: told.idle,
        };
        self.workers = told.workers.iter().map(total).collect();
    }
}

fn worker_wall_s(groups: &[Group], worker: &WorkerTotal) -> f64 {
    let is_there =
        |told: &&WorkerReport| (told.rank, &told.host, &told.device) == (worker.rank, &worker.host, &worker.device);
    let told = groups.iter().filter_map(|group| group.workers.as_ref());
    told.filter(|told| told.workers.iter().any(|told| is_there(&told))).map(|told| told.wall_s).sum()
}

/// From pairs of measured and predicted seconds.
fn fit(updates: impl Iterator<Item = (f64, f64)>) -> Option<Fit> {
    let (measured, predicted): (Vec<f64>, Vec<f64>) = updates.unzip();
    let error = |(measured, predicted): (&f64, &f64)| (measured - predicted).abs() / measured;
    let errors: Vec<f64> = measured.iter().zip(&predicted).map(error).collect();
    (!measured.is_empty()).then(|| Fit {
        updates: measured.len(),
        measured_s: median(measured),
        predicted_s: median(predicted),
        error: median(errors),
    })
}

fn missing(report: &Report, groups: &[Group]) -> Vec<String> {
    let mut missing = Vec::new();
    if report.process_groups == 0 {
        missing.push("how the run began: there is no event `start`".to_owned());
    }
    if report.prediction.is_none() {
        missing.push("how long updates were predicted to take: no event `update` has `predicted_s`".to_owned());
    }
    if report.ranks.is_empty() {
        missing.push("where each rank's time went: no event `workers` has `ranks`".to_owned());
    }
    let told: u64 = groups.iter().filter_map(|group| group.workers.as_ref()).map(|workers| workers.updates).sum();
    if !report.ranks.is_empty() && told < report.updates {
        missing.push(format!(
            "where the ranks' time went in {} of the {} updates: no event `workers` came after them, as when a process \
             is killed",
            report.updates - told,
            report.updates
        ));
    }
    missing
}
