//! Totals over the updates of a process group, per device and rank. Pure; the trainer feeds it the
//! content of the update headers.

use crate::{RankReport, WorkerReport};

/// One device's totals.
#[derive(Debug, Clone)]
struct DeviceTotals {
    rank: usize,
    name: String,
    samples: u64,
    compute_s: f64,
    last_samples: u64,
}

/// One rank's seconds in an update besides computing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RankSeconds {
    pub data_s: f64,
    pub exchange_s: f64,
    pub wait_s: f64,
    pub host_s: f64,
}

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub struct WorkerTotals {
    devices: Vec<DeviceTotals>,
    ranks: Vec<RankReport>,
    updates: u64,
    wall_s: f64,
}

impl WorkerTotals {
    /// Adds a device. Devices must be added in the order of their ranks.
    pub fn add_device(&mut self, rank: usize, host: &str, device: &str) {
        for rank in self.ranks.len()..=rank {
            self.ranks.push(RankReport { rank, host: host.to_owned(), ..RankReport::default() });
        }
        self.devices.push(DeviceTotals { rank, name: device.to_owned(), samples: 0, compute_s: 0.0, last_samples: 0 });
    }

    /// Adds an update that took `wall_s`. `work[i]` is (samples, own compute seconds) of device
    /// `i`.
    pub fn observe(
        &mut self,
        wall_s: f64,
        work: impl IntoIterator<Item = (u64, f64)>,
        ranks: impl IntoIterator<Item = RankSeconds>,
    ) {
        self.updates += 1;
        self.wall_s += wall_s;
        let mut slowest = vec![0.0f64; self.ranks.len()];
        for (device, (samples, compute_s)) in self.devices.iter_mut().zip(work) {
            device.samples += samples;
            device.compute_s += compute_s;
            device.last_samples = samples;
            slowest[device.rank] = slowest[device.rank].max(compute_s);
        }
        for ((totals, compute_s), seconds) in self.ranks.iter_mut().zip(slowest).zip(ranks) {
            totals.compute_s += compute_s;
            totals.data_s += seconds.data_s;
            totals.exchange_s += seconds.exchange_s;
            totals.wait_s += seconds.wait_s;
            totals.host_s += seconds.host_s;
        }
    }

    /// Resets the totals and keeps the devices, so that the following updates are counted
    /// separately.
    pub fn reset(&mut self) {
        (self.updates, self.wall_s) = (0, 0.0);
        for device in &mut self.devices {
            (device.samples, device.compute_s) = (0, 0.0);
        }
        for rank in &mut self.ranks {
            *rank = RankReport { rank: rank.rank, host: std::mem::take(&mut rank.host), ..RankReport::default() };
        }
    }

    /// The number of updates and their time.
    pub fn span(&self) -> (u64, f64) {
        (self.updates, self.wall_s)
    }

    pub fn ranks(&self) -> Vec<RankReport> {
        self.ranks.clone()
    }

    pub fn report(&self) -> Vec<WorkerReport> {
        let last_update: u64 = self.devices.iter().map(|device| device.last_samples).sum();
        let rate = |amount: f64, per: f64| if per > 0.0 { amount / per } else { 0.0 };
        let report = |device: &DeviceTotals| {
            let rank = &self.ranks[device.rank];
            let busy_s = device.compute_s + rank.data_s + rank.exchange_s + rank.host_s;
            WorkerReport {
                rank: device.rank,
                host: rank.host.clone(),
                device: device.name.clone(),
                samples: device.last_samples,
                share: rate(device.last_samples as f64, last_update as f64),
                samples_per_second: rate(device.samples as f64, device.compute_s),
                idle: (1.0 - rate(busy_s, self.wall_s)).clamp(0.0, 1.0),
                compute_s: device.compute_s,
            }
        };
        self.devices.iter().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_share_and_idle_time_per_device() {
        let mut workers = WorkerTotals::default();
        workers.add_device(0, "fast", "cpu:0");
        workers.add_device(1, "slow", "cpu:0");
        let seconds = RankSeconds { data_s: 0.01, exchange_s: 0.02, wait_s: 0.5, host_s: 0.03 };
        workers.observe(1.0, [(30, 0.8), (10, 0.9)], [RankSeconds::default(), seconds]);
        workers.observe(1.0, [(30, 0.8), (10, 0.8)], [RankSeconds::default(), seconds]);
        let report = workers.report();
        assert_eq!((report[0].share, report[1].share), (0.75, 0.25));
        assert!((report[0].samples_per_second - 60.0 / 1.6).abs() < 1e-9);
        assert!((report[0].idle - 0.2).abs() < 1e-9 && (report[1].idle - (1.0 - 1.82 / 2.0)).abs() < 1e-9);
        let rank = &workers.ranks()[1];
        assert_eq!((rank.host.as_str(), rank.wait_s, workers.span()), ("slow", 1.0, (2, 2.0)));
        workers.reset();
        assert_eq!((workers.span(), workers.ranks()[1].host.as_str()), ((0, 0.0), "slow"));
    }

    #[test]
    fn no_updates_cause_no_division_by_zero() {
        let mut workers = WorkerTotals::default();
        workers.add_device(0, "host", "cpu:0");
        assert_eq!(workers.report()[0].samples_per_second, 0.0);
    }
}
