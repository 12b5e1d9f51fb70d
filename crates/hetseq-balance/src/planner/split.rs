//! How the planner splits an update: adopts newer timings if they gain enough, rechecks idle
//! devices, and predicts the result.

use super::timing::{self, DeviceTiming, Rechecks};
use super::{AssignedWork, Device, Plan, Planner, Replanned, SplitMode};
use crate::error::BalanceError;
use crate::predict::Prediction;
use crate::profile::DeviceProfile;
use crate::share::{DeviceLoad, Share, share};
use crate::table::CostTable;

/// The relative gain that makes a new plan worth it.
const DEAD_BAND: f64 = 0.02;
/// The sample of a recheck is assumed to take this part of the update.
const RECHECK_PART: f64 = 0.9;

/// Shares and their predicted times.
struct Assignment {
    shares: Vec<Share>,
    work: Vec<AssignedWork>,
    prediction: Prediction,
}

impl Planner {
    /// Plans an update whose samples cost `tokens`, which should ascend.
    ///
    /// Adopts what was measured since the last adoption, as far as it is not noise, if that is
    /// predicted to gain more than 2 %.
    pub fn share(&mut self, split: SplitMode, tokens: &[u32]) -> Result<Plan, BalanceError> {
        let latest = self.latest();
        let mut assignment = self.assign(split, tokens, &self.adopted, &latest)?;
        let mut replanned = None;
        if split == SplitMode::Measured && std::mem::take(&mut self.has_new_block) {
            let denoised = timing::denoised(&self.adopted, &latest, &self.errors());
            if let Some(better) = self.better(tokens, &assignment, &denoised, &latest)? {
                let (before_s, after_s) = (assignment.prediction.update_s, better.prediction.update_s);
                replanned = Some(Replanned { gain: 1.0 - after_s / before_s, before_s, after_s });
                (assignment, self.adopted) = (better, denoised);
            }
        }
        self.last_s = assignment.prediction.update_s;
        if split == SplitMode::Measured
            && let Some(rechecks) = self.start_rechecks(tokens)
        {
            let timings = |timings: &[DeviceTiming]| rechecks.apply(timings);
            assignment = self.assign(split, tokens, &timings(&self.adopted), &timings(&latest))?;
        }
        let left_out =
            if split == SplitMode::Measured { self.left_out(tokens, &assignment, &latest) } else { Vec::new() };
        let Assignment { shares, work, prediction } = assignment;
        Ok(Plan { shares, work, prediction, replanned, left_out })
    }

    /// The assignment by the denoised timings, if that gains enough.
    fn better(
        &self,
        tokens: &[u32],
        now: &Assignment,
        denoised: &[DeviceTiming],
        latest: &[DeviceTiming],
    ) -> Result<Option<Assignment>, BalanceError> {
        if !timing::differ(&self.adopted, denoised, self.last_s) {
            return Ok(None);
        }
        let other = self.assign(SplitMode::Measured, tokens, denoised, latest)?;
        // Noise alone may show a gain by one of the two, so both must show it.
        let denoised_s = (update_s(&now.work, denoised), update_s(&other.work, denoised));
        let latest_s = (now.prediction.update_s, other.prediction.update_s);
        let is_better = |(before_s, after_s): (f64, f64)| after_s < before_s * (1.0 - DEAD_BAND);
        Ok(Some(other).filter(|_| is_better(denoised_s) && is_better(latest_s)))
    }

    /// Splits by the timings `split_by` and predicts by `predict_by`.
    fn assign(
        &self,
        split: SplitMode,
        tokens: &[u32],
        split_by: &[DeviceTiming],
        predict_by: &[DeviceTiming],
    ) -> Result<Assignment, BalanceError> {
        let even = CostTable::proportional(1.0);
        let active = self.devices.iter().zip(split_by).filter(|(device, _)| !device.is_retired);
        let loads: Vec<DeviceLoad> = active.map(|(device, timing)| load(device, timing, split, &even)).collect();
        let mut active_shares = share(tokens, &loads)?.into_iter();
        let share_of =
            |device: &Device| if device.is_retired { None } else { active_shares.next() }.unwrap_or_default();
        let shares: Vec<Share> = self.devices.iter().map(share_of).collect();
        let work: Vec<AssignedWork> =
            self.devices.iter().zip(&shares).map(|(device, share)| device.work(share, tokens)).collect();
        let seconds = |((device, work), timing): ((&Device, &AssignedWork), &DeviceTiming)| {
            let after_s = if work.samples > 0 { timing.after_s } else { 0.0 };
            (device.rank, work.base_s * timing.factor, after_s)
        };
        let prediction = Prediction::new(
            self.devices.iter().zip(&work).zip(predict_by).map(seconds),
            self.ranks.iter().map(|rank| (rank.host.seconds(), rank.net_s())),
        );
        Ok(Assignment { shares, work, prediction })
    }

    /// Starts rechecks of devices that had no work for long: each gets a sample to measure its
    /// speed. `None` if there are no such devices.
    fn start_rechecks(&mut self, tokens: &[u32]) -> Option<Rechecks> {
        let shortest = tokens.iter().copied().min()?.max(1);
        let time_s = self.last_s * RECHECK_PART;
        let mut rechecks = Rechecks::default();
        for (at, device) in self.devices.iter_mut().enumerate() {
            let one_s = device.profile.table.seconds(1, shortest);
            if !device.is_retired && device.drift.needs_recheck() && time_s > 0.0 && one_s > 0.0 {
                device.drift.start_recheck();
                // Without overheads: otherwise a device behind a slow link would never be
                // rechecked.
                rechecks.push(at, time_s / one_s);
            }
        }
        (!rechecks.is_empty()).then_some(rechecks)
    }

    /// Devices without work that would finish even one sample after all others.
    fn left_out(&self, tokens: &[u32], assignment: &Assignment, latest: &[DeviceTiming]) -> Vec<usize> {
        let Some(shortest) = tokens.iter().copied().min() else { return Vec::new() };
        let update_s = assignment.prediction.update_s;
        let is_left_out = |&at: &usize| {
            let one_s = latest[at].finish_s(self.devices[at].profile.table.seconds(1, shortest.max(1)));
            !self.devices[at].is_retired && assignment.work[at].samples == 0 && one_s > update_s
        };
        (0..self.devices.len()).filter(is_left_out).collect()
    }
}

/// A device as input for `share`.
fn load<'a>(device: &'a Device, timing: &DeviceTiming, split: SplitMode, even: &'a CostTable) -> DeviceLoad<'a> {
    let DeviceProfile { ref table, weight, max_samples, .. } = device.profile;
    let max_tokens = device.cap.tokens();
    let (split_by, factor, overhead_s) = match split {
        SplitMode::Measured => (table, timing.factor, timing.overhead_s()),
        SplitMode::Weights => (even, 1.0 / weight, 0.0),
        SplitMode::Equal => (even, 1.0, 0.0),
    };
    DeviceLoad { table: split_by, factor, overhead_s, max_tokens, max_samples, measured: Some(table) }
}

/// The time at which the last device is done.
fn update_s(work: &[AssignedWork], timings: &[DeviceTiming]) -> f64 {
    let finish_s = |(work, timing): (&AssignedWork, &DeviceTiming)| match work.samples {
        0 => timing.rank_s,
        _ => timing.finish_s(work.base_s),
    };
    work.iter().zip(timings).map(finish_s).fold(0.0, f64::max)
}

impl Device {
    fn work(&self, share: &Share, tokens: &[u32]) -> AssignedWork {
        let mut work = AssignedWork::default();
        for micro in &share.micro {
            let longest = tokens[micro.clone()].iter().copied().max().unwrap_or(1).max(1);
            work.samples += micro.len() as u64;
            work.tokens += micro.len() as u64 * u64::from(longest);
            work.base_s += self.profile.table.seconds(u32::try_from(micro.len()).unwrap_or(u32::MAX), longest);
        }
        work
    }
}
