//! What is computed next, and where: the sampler gives the samples of an update, the planner splits
//! them among the devices of all ranks, the loader reads this rank's part ahead of time. Times of
//! past updates come back to the planner. Driven by the loop.

use std::collections::VecDeque;

use hetseq_balance::{AssignedWork, Plan, Planner, SplitMode, WorkTime};
use hetseq_data::Cursor;
use hetseq_metrics::Event;

use crate::config::Batching;
use crate::data::loader::{LoadRequest, Loader};
use crate::data::update_sampler::{PlannedUpdate, UpdateSampler};
use crate::error::TrainError;
use crate::profiling::cluster::ClusterProfile;
use crate::task::Split;
use crate::trainer::header::{DeviceTime, LostDevice, MergedHeader};

use super::observer::Observer;

pub(crate) struct Pipeline {
    pub(super) sampler: UpdateSampler,
    pub(super) planner: Planner,
    pub(super) loader: Loader,
    split: SplitMode,
    even_updates: u64,
    /// Updates that were done before this process started.
    start_update: u64,
    /// The update of the first plan since the start, or since ranks were lost.
    first_planned: u64,
    /// Whether times of ranks since then are known.
    has_learned: bool,
    /// Updates that were requested from the loader and are not done yet, oldest first.
    requested: VecDeque<RequestedUpdate>,
    /// The position of the next update to request.
    next: Cursor,
    /// Devices without work in the last plan that was reported.
    left_out: Vec<usize>,
}

/// The plan of a requested update.
#[derive(Default)]
pub(super) struct RequestedUpdate {
    /// Of all devices of the group.
    pub(super) work: Vec<AssignedWork>,
    pub(super) predicted_s: f64,
}

impl Pipeline {
    /// A pipeline whose first update is the one at `cursor`.
    pub(super) fn new(
        sampler: UpdateSampler,
        planner: Planner,
        loader: Loader,
        batch: &Batching,
        cursor: &Cursor,
    ) -> Self {
        Pipeline {
            sampler,
            planner,
            loader,
            split: batch.split,
            even_updates: batch.even_updates,
            start_update: cursor.updates,
            first_planned: cursor.updates,
            has_learned: false,
            requested: VecDeque::new(),
            next: cursor.clone(),
            left_out: Vec::new(),
        }
    }

    /// Requests the next update from the loader, `run.prefetch` updates ahead. Its split follows
    /// from the headers merged so far, so it is the same on all ranks.
    pub(super) fn request_next(&mut self, cluster: &ClusterProfile, observer: &mut Observer) -> Result<(), TrainError> {
        let Some(update) = self.sampler.at(&self.next) else { return Ok(()) };
        let number = self.next.updates;
        let plan = self.planner.share(self.split_mode(number), &update.tokens)?;
        self.next.advance(update.samples.len() as u64, update.updates_in_epoch);
        self.emit_plan(number, &plan, cluster, observer);
        let devices = cluster.local_micro_batches(&plan.shares, &update.samples, &update.tokens);
        self.requested.push_back(RequestedUpdate { work: plan.work, predicted_s: plan.prediction.update_s });
        self.loader.request(LoadRequest { split: Split::Train, epoch: update.epoch, devices })
    }

    /// Requests the part of `update` that is computed again: the samples at these positions.
    pub(super) fn request_missing(
        &mut self,
        update: &PlannedUpdate,
        missing: &[usize],
        cluster: &ClusterProfile,
    ) -> Result<(), TrainError> {
        let samples: Vec<u32> = missing.iter().map(|&at| update.samples[at]).collect();
        let tokens: Vec<u32> = missing.iter().map(|&at| update.tokens[at]).collect();
        let mut requested = RequestedUpdate::default();
        let mut devices = vec![Vec::new(); cluster.local.len()];
        if !missing.is_empty() {
            // The planner itself must not learn from an update of this size.
            let plan = self.planner.clone().share(self.split_mode(self.next.updates), &tokens)?;
            devices = cluster.local_micro_batches(&plan.shares, &samples, &tokens);
            requested = RequestedUpdate { work: plan.work, predicted_s: 0.0 };
        }
        self.next.advance(update.samples.len() as u64, update.updates_in_epoch);
        self.requested.push_back(requested);
        self.loader.request(LoadRequest { split: Split::Train, epoch: update.epoch, devices })
    }

    /// Emits the first plan, and each plan that differs from the one before.
    fn emit_plan(&mut self, number: u64, plan: &Plan, cluster: &ClusterProfile, observer: &mut Observer) {
        let is_first = number == self.first_planned;
        if !is_first && plan.replanned.is_none() {
            return;
        }
        observer.events.emit(&Event::Plan {
            update: number + 1,
            predicted_s: plan.prediction.update_s,
            before_s: plan.replanned.map(|replanned| replanned.before_s),
            gain: plan.replanned.map(|replanned| replanned.gain),
            samples: plan.work.iter().map(|work| work.samples).collect(),
            factors: self.planner.factors(),
        });
        for &device in plan.left_out.iter().filter(|device| !self.left_out.contains(device)) {
            let name = cluster.name(device);
            observer.warn(format!("{name} gets nothing to compute: updates would take longer with it"));
        }
        self.left_out.clone_from(&plan.left_out);
    }

    /// The split mode of the update that follows `updates` updates.
    pub(super) fn split_mode(&self, updates: u64) -> SplitMode {
        match self.split {
            SplitMode::Measured if updates - self.start_update < self.even_updates => SplitMode::Equal,
            split => split,
        }
    }

    /// The plan of the update that is computed now.
    pub(super) fn take_requested(&mut self) -> RequestedUpdate {
        self.requested.pop_front().unwrap_or_default()
    }

    /// What the plan of the next update assigns to the devices of all ranks.
    pub(super) fn next_work(&self) -> &[AssignedWork] {
        self.requested.front().map_or(&[], |requested| &requested.work)
    }

    /// The number of updates that were done before the group started: it is counted from there.
    pub(super) fn start_update(&self) -> u64 {
        self.start_update
    }

    pub(super) fn set_start_update(&mut self, updates: u64) {
        self.start_update = updates;
    }

    /// Continues at `cursor` with another group of ranks. What was requested is dropped.
    pub(super) fn restart(&mut self, planner: Planner, loader: Loader, cursor: &Cursor) {
        (self.planner, self.loader, self.next) = (planner, loader, cursor.clone());
        (self.first_planned, self.has_learned) = (cursor.updates, false);
        self.requested.clear();
        self.left_out.clear();
    }

    /// Passes the times of an update to the planner, and warns about devices that failed or ran out
    /// of memory.
    pub(super) fn learn(
        &mut self,
        requested: &RequestedUpdate,
        merged: &MergedHeader,
        cluster: &ClusterProfile,
        observer: &mut Observer,
    ) {
        let done = |(work, time): (&AssignedWork, &DeviceTime)| WorkTime {
            base_s: work.base_s,
            micros: time.micros,
            after_micros: time.after_micros,
        };
        self.planner.observe(&requested.work.iter().zip(&merged.devices).map(done).collect::<Vec<_>>());
        // The first header has no times of ranks: they are of the update before.
        if std::mem::replace(&mut self.has_learned, true) {
            let hosts: Vec<u64> = merged.ranks.iter().map(|rank| rank.host_micros).collect();
            let exchanges: Vec<(u64, u64)> =
                merged.ranks.iter().map(|rank| (rank.exchange_micros, rank.wait_micros)).collect();
            self.planner.observe_hosts(&hosts);
            self.planner.observe_exchange(&exchanges);
        }
        for (device, time) in merged.devices.iter().enumerate() {
            let Some(most) = time.most_tokens else { continue };
            let updates = self.planner.cap_tokens(device, u32::try_from(most).unwrap_or(u32::MAX));
            observer.warn(format!(
                "{} ran out of memory: its micro-batches now have at most {most} tokens; twice as many are tried after \
                 {updates} updates",
                cluster.name(device)
            ));
        }
        for LostDevice { device, reason, has_replacement } in &merged.lost {
            if !has_replacement {
                self.planner.retire(*device);
            }
            let name = cluster.name(*device);
            let replacement =
                if *has_replacement { "the CPU of its rank replaces it" } else { "others compute its samples" };
            observer.warn(format!("{name} failed and is not used any more; {replacement}: {reason}"));
        }
    }
}
