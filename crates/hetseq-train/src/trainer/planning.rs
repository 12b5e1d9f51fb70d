//! Splitting updates among devices: requests each update's micro-batches from the loader according
//! to the plan, and reports measured times back to the planner.

use hetseq_balance::{AssignedWork, Plan, SplitMode, WorkTime};
use hetseq_metrics::{Event, RankSeconds};

use crate::data::loader::LoadRequest;
use crate::error::TrainError;
use crate::run::run_dir;
use crate::task::{Split, Task};
use crate::trainer::header::{DeviceTime, LostDevice, MergedHeader, RankTime};

use super::Trainer;
use super::prefetch_queue::RequestedUpdate;

impl<T: Task> Trainer<T> {
    /// Requests the next update from the loader, `run.prefetch` updates ahead. Its split follows
    /// from the headers merged so far, so it is the same on all ranks.
    pub(super) fn request_next(&mut self) -> Result<(), TrainError> {
        let Some(update) = self.sampler.at(&self.prefetch.next) else { return Ok(()) };
        let number = self.prefetch.next.updates;
        let plan = self.planner.share(self.split_mode(number), &update.tokens)?;
        self.prefetch.next.advance(update.samples.len() as u64, update.updates_in_epoch);
        self.emit_plan(number, &plan);
        let devices = self.session.cluster.local_micro_batches(&plan.shares, &update.samples, &update.tokens);
        let requested = RequestedUpdate { work: plan.work, predicted_s: plan.prediction.update_s };
        self.prefetch.requested.push_back(requested);
        self.loader.request(LoadRequest { split: Split::Train, epoch: update.epoch, devices })
    }

    /// Emits the first plan, and each plan that differs from the one before.
    fn emit_plan(&mut self, number: u64, plan: &Plan) {
        let is_first = number == self.timings.start_update;
        if !is_first && plan.replanned.is_none() {
            return;
        }
        self.events.emit(&Event::Plan {
            update: number + 1,
            predicted_s: plan.prediction.update_s,
            before_s: plan.replanned.map(|replanned| replanned.before_s),
            gain: plan.replanned.map(|replanned| replanned.gain),
            samples: plan.work.iter().map(|work| work.samples).collect(),
            factors: self.planner.factors(),
        });
        for &device in plan.left_out.iter().filter(|device| !self.prefetch.left_out.contains(device)) {
            let name = self.session.cluster.name(device);
            let message = format!("{name} gets nothing to compute: updates would take longer with it");
            self.events.emit(&Event::Warning { message });
        }
        self.prefetch.left_out.clone_from(&plan.left_out);
    }

    /// The split mode of the update that follows `updates` updates.
    pub(super) fn split_mode(&self, updates: u64) -> SplitMode {
        match self.config.batch.split {
            SplitMode::Measured if updates - self.timings.start_update < self.config.batch.even_updates => {
                SplitMode::Equal
            }
            split => split,
        }
    }

    /// Passes the times of an update to the planner, and warns about devices that failed or ran out
    /// of memory.
    pub(super) fn observe_times(&mut self, requested: &RequestedUpdate, merged: &MergedHeader) {
        let done = |(work, time): (&AssignedWork, &DeviceTime)| WorkTime {
            base_s: work.base_s,
            micros: time.micros,
            after_micros: time.after_micros,
        };
        self.planner.observe(&requested.work.iter().zip(&merged.devices).map(done).collect::<Vec<_>>());
        if self.timings.updates_done > 0 {
            let hosts: Vec<u64> = merged.ranks.iter().map(|rank| rank.host_micros).collect();
            let exchanges: Vec<(u64, u64)> =
                merged.ranks.iter().map(|rank| (rank.exchange_micros, rank.wait_micros)).collect();
            self.planner.observe_hosts(&hosts);
            self.planner.observe_exchange(&exchanges);
        }
        for (device, time) in merged.devices.iter().enumerate() {
            if let Some(most) = time.most_tokens {
                let tokens = u32::try_from(most).unwrap_or(u32::MAX);
                let updates = self.planner.cap_tokens(device, tokens);
                let name = self.session.cluster.name(device);
                let message = format!(
                    "{name} ran out of memory: its micro-batches now have at most {most} tokens; twice as many are tried \
                     after {updates} updates"
                );
                self.events.emit(&Event::Warning { message });
            }
        }
        for LostDevice { device, reason, has_replacement } in &merged.lost {
            if !has_replacement {
                self.planner.retire(*device);
            }
            let name = self.session.cluster.name(*device);
            let replacement =
                if *has_replacement { "the CPU of its rank replaces it" } else { "others compute its samples" };
            let message = format!("{name} failed and is not used any more; {replacement}: {reason}");
            self.events.emit(&Event::Warning { message });
        }
        self.timings.work = requested.work.clone();
    }

    /// On rank 0: writes the current profile of the group to the run directory.
    pub(super) fn write_profile(&self) {
        if self.session.group.rank() == 0 {
            self.session.cluster.write(&run_dir(&self.config), &self.planner.profile());
        }
    }

    pub(super) fn observe_workers(&mut self, seconds: f64, next: &MergedHeader) {
        let s = |micros: u64| micros as f64 * 1e-6;
        let device = |(work, time): (&AssignedWork, &DeviceTime)| {
            (work.samples, s(time.micros.saturating_add(time.after_micros)))
        };
        let rank = |rank: &RankTime| RankSeconds {
            data_s: s(rank.data_micros),
            exchange_s: s(rank.exchange_micros),
            wait_s: s(rank.wait_micros),
            host_s: s(rank.host_micros),
        };
        let work = self.timings.work.iter().zip(&next.devices).map(device);
        self.workers.observe(seconds, work, next.ranks.iter().map(rank));
        // The updates with an equal split are reported separately.
        if self.timings.updates_done == self.config.batch.even_updates {
            self.emit_workers();
            self.workers.reset();
        }
    }

    pub(super) fn emit_workers(&mut self) {
        if self.timings.updates_done == 0 {
            return;
        }
        self.write_profile();
        let (updates, wall_s) = self.workers.span();
        let event = Event::Workers {
            update: self.state.cursor.updates,
            updates,
            wall_s,
            workers: self.workers.report(),
            ranks: self.workers.ranks(),
        };
        self.events.emit(&event);
    }
}
