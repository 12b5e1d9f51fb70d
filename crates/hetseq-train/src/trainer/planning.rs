//! Who computes what: each update is ordered from the loader by the planner's word, and the planner hears what came of it.

use hetseq_balance::{Done, Plan, Split, Work};
use hetseq_metrics::{Event, RankSeconds};

use crate::error::TrainError;
use crate::header::{Agreed, DeviceTime, LostDevice, RankTime};
use crate::loader::Order;
use crate::run::run_dir;
use crate::task::{Task, Which};

use super::{Ordered, Trainer};

impl<T: Task> Trainer<T> {
    /// Order the next update from the loader, `run.prefetch` updates ahead: its split follows from what has been agreed so
    /// far, on every rank the same.
    pub(super) fn order_next(&mut self) -> Result<(), TrainError> {
        let Some(update) = self.itinerary.at(&self.pulse.to_order) else { return Ok(()) };
        let number = self.pulse.to_order.updates;
        let plan = self.planner.share(self.split_of(number), &update.tokens)?;
        self.pulse.to_order.advance(update.samples.len() as u64, update.updates_in_epoch);
        self.tell_plan(number, &plan);
        let devices = self.crew.roster.my_micro_batches(&plan.shares, &update.samples, &update.tokens);
        self.pulse.ordered.push_back(Ordered { work: plan.work, predicted_s: plan.prediction.update_s });
        self.loader.order(Order { which: Which::Train, epoch: update.epoch, devices })
    }

    /// The first plan, and each that is not as the one before.
    fn tell_plan(&mut self, number: u64, plan: &Plan) {
        let is_first = number == self.pulse.first;
        if !is_first && plan.replanned.is_none() {
            return;
        }
        self.observer.tell(&Event::Plan {
            update: number + 1,
            predicted_s: plan.prediction.update_s,
            before_s: plan.replanned.map(|replanned| replanned.before_s),
            gain: plan.replanned.map(|replanned| replanned.gain),
            samples: plan.work.iter().map(|work| work.samples).collect(),
            factors: self.planner.factors(),
        });
        for &device in plan.left_out.iter().filter(|device| !self.pulse.left_out.contains(device)) {
            let name = self.crew.roster.name(device);
            let message = format!("{name} gets nothing to compute: updates would take longer with it");
            self.observer.tell(&Event::Warning { message });
        }
        self.pulse.left_out.clone_from(&plan.left_out);
    }

    /// How the update after `updates` updates is split.
    pub(super) fn split_of(&self, updates: u64) -> Split {
        match self.config.batch.split {
            Split::Measured if updates - self.pulse.first < self.config.batch.even_updates => Split::Equal,
            split => split,
        }
    }

    /// What the planner and the table of workers learn from an update.
    pub(super) fn learn(&mut self, ordered: &Ordered, agreed: &Agreed) {
        let done = |(work, time): (&Work, &DeviceTime)| Done {
            base_s: work.base_s,
            micros: time.micros,
            after_micros: time.after_micros,
        };
        self.planner.observe(&ordered.work.iter().zip(&agreed.devices).map(done).collect::<Vec<_>>());
        if self.pulse.done > 0 {
            let hosts: Vec<u64> = agreed.ranks.iter().map(|rank| rank.host_micros).collect();
            let exchanges: Vec<(u64, u64)> =
                agreed.ranks.iter().map(|rank| (rank.exchange_micros, rank.wait_micros)).collect();
            self.planner.observe_hosts(&hosts);
            self.planner.observe_exchange(&exchanges);
        }
        for (device, time) in agreed.devices.iter().enumerate() {
            if let Some(most) = time.most_tokens {
                let tokens = u32::try_from(most).unwrap_or(u32::MAX);
                let updates = self.planner.cap_tokens(device, tokens);
                let name = self.crew.roster.name(device);
                let message = format!(
                    "{name} ran out of memory: its micro-batches have at most {most} tokens, and twice as many after \
                     {updates} updates"
                );
                self.observer.tell(&Event::Warning { message });
            }
        }
        for LostDevice { device, reason, has_stand_in } in &agreed.lost {
            if !has_stand_in {
                self.planner.retire(*device);
            }
            let name = self.crew.roster.name(*device);
            let who =
                if *has_stand_in { "the CPU of its rank computes in its place" } else { "others compute its samples" };
            let message = format!("{name} failed and is not used any more; {who}: {reason}");
            self.observer.tell(&Event::Warning { message });
        }
        self.pulse.work = ordered.work.clone();
    }

    /// Rank 0 writes down what is known of the group by now.
    pub(super) fn keep_profile(&self) {
        if self.crew.group.rank() == 0 {
            self.crew.roster.keep(&run_dir(&self.config), &self.planner.profile());
        }
    }

    pub(super) fn observe_workers(&mut self, seconds: f64, next: &Agreed) {
        let s = |micros: u64| micros as f64 * 1e-6;
        let device =
            |(work, time): (&Work, &DeviceTime)| (work.samples, s(time.micros.saturating_add(time.after_micros)));
        let rank = |rank: &RankTime| RankSeconds {
            data_s: s(rank.data_micros),
            exchange_s: s(rank.exchange_micros),
            wait_s: s(rank.wait_micros),
            host_s: s(rank.host_micros),
        };
        let work = self.pulse.work.iter().zip(&next.devices).map(device);
        self.workers.observe(seconds, work, next.ranks.iter().map(rank));
        // The even phase is reported by itself.
        if self.pulse.done == self.config.batch.even_updates {
            self.tell_workers();
            self.workers.reset();
        }
    }

    pub(super) fn tell_workers(&mut self) {
        if self.pulse.done == 0 {
            return;
        }
        self.keep_profile();
        let (updates, wall_s) = self.workers.span();
        let event = Event::Workers {
            update: self.state.cursor.updates,
            updates,
            wall_s,
            workers: self.workers.report(),
            ranks: self.workers.ranks(),
        };
        self.observer.tell(&event);
    }
}
