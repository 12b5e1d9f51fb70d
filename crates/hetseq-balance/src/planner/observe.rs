//! How the planner learns: measured times of updates become blocks, and blocks become measurements.

use super::{Planner, WorkTime};

/// The shortest block. Slightly below 0.1 s, so that an update of 100 ms is a block even if it runs
/// a bit faster.
const BLOCK_S: f64 = 0.08;

/// The length of the updates since the last measurement: sums over updates of the longest time of
/// any device or rank. The parts overlap.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub(super) struct Block {
    compute_s: f64,
    host_s: f64,
    exchange_s: f64,
}

impl Block {
    fn seconds(&self) -> f64 {
        self.compute_s.max(self.host_s).max(self.exchange_s)
    }
}

impl Planner {
    /// Adds the times of all devices, in order, for an update that was split as in
    /// [`Plan::work`](super::Plan::work).
    pub fn observe(&mut self, times: &[WorkTime]) {
        for (device, time) in self.devices.iter_mut().zip(times) {
            device.drift.observe(time.base_s, time.micros);
            if time.base_s > 0.0 {
                device.after.observe(time.after_micros);
                device.cap.calm_update();
            }
        }
        self.block.compute_s += self.longest_s(times.iter().map(|time| time.micros.saturating_add(time.after_micros)));
        self.close_block();
    }

    /// Adds each rank's own time besides computing and exchanging.
    pub fn observe_hosts(&mut self, host_micros: &[u64]) {
        for (rank, &micros) in self.ranks.iter_mut().zip(host_micros) {
            rank.host.observe(micros);
        }
        self.block.host_s += self.longest_s(host_micros.iter().copied());
        self.close_block();
    }

    /// Adds, per rank, the microseconds in which it was busy with an exchange and in which it
    /// waited in it.
    pub fn observe_exchange(&mut self, exchanges: &[(u64, u64)]) {
        for (rank, &(busy, waited)) in self.ranks.iter_mut().zip(exchanges) {
            rank.observe_exchange(busy, waited);
        }
        self.block.exchange_s += self.longest_s(exchanges.iter().map(|&(busy, waited)| busy.saturating_add(waited)));
        self.close_block();
    }

    /// The time that an update adds to the block. At most the predicted time, since one long delay
    /// must not fill a block.
    fn longest_s(&self, micros: impl Iterator<Item = u64>) -> f64 {
        let longest_s = micros.max().unwrap_or(0) as f64 * 1e-6;
        if self.last_s > 0.0 { longest_s.min(self.last_s) } else { longest_s }
    }

    /// Turns the means of the block into measurements if it is long enough.
    fn close_block(&mut self) {
        let block_s = self.block.seconds();
        if block_s < BLOCK_S {
            return;
        }
        for device in &mut self.devices {
            device.drift.close(block_s);
            device.after.close(block_s);
        }
        for rank in &mut self.ranks {
            rank.close(block_s);
        }
        (self.block, self.has_new_block) = (Block::default(), true);
    }
}
