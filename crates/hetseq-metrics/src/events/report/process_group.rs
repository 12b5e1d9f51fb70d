//! The events of one process group, reduced to what a report needs.

use super::membership_change::{Continuation, LeftRecord, LostRecord, MembershipChanges};
use super::{DISTURBED, HealedRecord, JoinedRecord, PlanRecord};
use crate::{Event, RankReport, WorkerReport};

#[derive(Debug, Default)]
pub(super) struct ProcessGroup {
    pub(super) start: Option<StartEvent>,
    pub(super) updates: Vec<UpdateEvent>,
    pub(super) plans: Vec<PlanRecord>,
    /// Totals of the time until the first loss of ranks, until the second, and so on. Ranks have
    /// their numbers at the start.
    pub(super) totals: Vec<WorkersEvent>,
    /// Whether the last of `totals` is of the current ranks: a later event then replaces it.
    is_current: bool,
    /// Some of `totals` have numbers of ranks that cannot be translated.
    pub(super) has_unknown_ranks: bool,
    pub(super) membership_changes: MembershipChanges,
    pub(super) healed: Vec<HealedRecord>,
    pub(super) joined: Vec<JoinedRecord>,
    pub(super) validation_s: f64,
    pub(super) checkpoints_s: f64,
    pub(super) end: Option<EndEvent>,
}

#[derive(Debug)]
pub(super) struct StartEvent {
    pub(super) task: String,
    pub(super) world: usize,
    pub(super) devices: usize,
    pub(super) parameters: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct UpdateEvent {
    pub(super) update: u64,
    pub(super) samples: u64,
    pub(super) seconds: f64,
    pub(super) data_wait_s: f64,
    pub(super) predicted_s: Option<f64>,
}

#[derive(Debug)]
pub(super) struct WorkersEvent {
    pub(super) updates: u64,
    pub(super) wall_s: f64,
    pub(super) workers: Vec<WorkerReport>,
    pub(super) ranks: Vec<RankReport>,
}

#[derive(Debug)]
pub(super) struct EndEvent {
    pub(super) outcome: String,
    pub(super) seconds: f64,
}

impl ProcessGroup {
    pub(super) fn add(&mut self, event: Event) {
        match event {
            Event::Start { task, world, devices, parameters, .. } => {
                self.start = Some(StartEvent { task, world, devices, parameters });
                self.membership_changes.start(world);
            }
            Event::Update { update, samples, seconds, data_wait_s, predicted_s, .. } => {
                let predicted_s = predicted_s.filter(|&predicted_s| predicted_s > 0.0);
                self.updates.push(UpdateEvent { update, samples, seconds, data_wait_s, predicted_s });
                self.membership_changes.add_update(update, seconds);
            }
            Event::Plan { update, predicted_s, before_s, gain, samples, .. } => {
                self.plans.push(PlanRecord { update, predicted_s, before_s, gain, samples, lost_s: 0.0 });
            }
            Event::Workers { updates, wall_s, workers, ranks, .. } => {
                self.add_totals(WorkersEvent { updates, wall_s, workers, ranks });
            }
            Event::Valid { seconds, .. } => self.validation_s += seconds,
            Event::Checkpoint { paused_seconds, .. } => self.checkpoints_s += paused_seconds,
            Event::End { outcome, seconds, .. } => self.end = Some(EndEvent { outcome, seconds }),
            Event::Lost { update, rank, host, reason } => {
                self.membership_changes.add_lost(update, LostRecord { rank, host, reason });
            }
            Event::Left { update, rank, host, reason, shares } => {
                self.membership_changes.add_left(update, LeftRecord { rank, host, reason, shares });
            }
            Event::Lead { update, host, .. } => {
                // Of the old lead, which has left by itself.
                self.end = None;
                self.membership_changes.add_lead(update, host);
            }
            Event::Regrouped { update, regroups, world, devices, seconds, interrupted_s } => {
                let before = self.totals.last().filter(|_| self.is_current).map(|totals| totals.ranks.len());
                let continuation =
                    Continuation { world, devices, interrupted_s, regroup_s: seconds, repeated_update_s: None };
                self.membership_changes.regrouped(update, regroups, before, continuation);
                self.is_current = false;
            }
            Event::Joined { update, rank, host, world, devices, seconds, .. } => {
                self.membership_changes.joined(rank, world);
                self.joined.push(JoinedRecord { update, rank, host, world, devices, seconds });
                self.is_current = false;
            }
            Event::Healed { update, rank, host, .. } => self.healed.push(HealedRecord { update, rank, host }),
            Event::CaughtUp { .. } | Event::Warning { .. } | Event::EarlyStop { .. } | Event::NotFinite { .. } => {}
        }
    }

    /// Keeps the last totals of the current ranks: each event has the totals since the start, or
    /// since ranks were lost.
    fn add_totals(&mut self, mut totals: WorkersEvent) {
        let changes = &self.membership_changes;
        totals.workers.iter_mut().for_each(|worker| worker.rank = changes.number_at_start(worker.rank));
        totals.ranks.iter_mut().for_each(|rank| rank.rank = changes.number_at_start(rank.rank));
        self.has_unknown_ranks |= changes.are_numbers_unknown();
        if std::mem::replace(&mut self.is_current, true) {
            self.totals.pop();
        }
        self.totals.push(totals);
    }

    /// Measured and predicted seconds of the updates that have both.
    pub(super) fn predicted(&self) -> impl Iterator<Item = (f64, f64)> {
        self.predicted_from(0)
    }

    pub(super) fn predicted_from(&self, first: u64) -> impl Iterator<Item = (f64, f64)> {
        let later = self.updates.iter().filter(move |update| update.update >= first && update.seconds > 0.0);
        later.filter_map(|update| update.predicted_s.map(|predicted_s| (update.seconds, predicted_s)))
    }

    /// For each plan, the time over prediction of the disturbed updates right before it. A plan is
    /// emitted before the updates of the old plan are done, so updates are compared by number.
    pub(super) fn lost_until_replanned(&self) -> Vec<f64> {
        let mut counted_below = 0;
        let mut lost = Vec::with_capacity(self.plans.len());
        for plan in &self.plans {
            let before = self.updates.iter().rev().skip_while(|update| update.update >= plan.update);
            let over = |update: &UpdateEvent| {
                let predicted_s = update.predicted_s.filter(|predicted_s| update.seconds > DISTURBED * predicted_s)?;
                (update.update >= counted_below).then_some(update.seconds - predicted_s)
            };
            let is_replanned = plan.gain.is_some();
            // An empty sum would be -0.
            lost.push(if is_replanned { before.map_while(over).fold(0.0, |sum, over| sum + over) } else { 0.0 });
            counted_below = plan.update;
        }
        lost
    }
}
