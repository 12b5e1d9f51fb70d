//! Who did how much: sums over the updates of a process group, one row per device. Pure; the trainer feeds it what the
//! update headers carry.

use crate::{RankReport, WorkerReport};

/// One device's running sums.
#[derive(Debug, Clone)]
struct Row {
    rank: usize,
    device: String,
    samples: u64,
    compute_s: f64,
    last_samples: u64,
}

/// What one rank did in an update beside what its devices did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RankSeconds {
    pub data_s: f64,
    pub exchange_s: f64,
    pub wait_s: f64,
    pub host_s: f64,
}

#[derive(Debug, Clone, Default)]
pub struct Workers {
    rows: Vec<Row>,
    ranks: Vec<RankReport>,
    updates: u64,
    wall_s: f64,
}

impl Workers {
    /// Devices are added rank by rank.
    pub fn add_device(&mut self, rank: usize, host: &str, device: &str) {
        for rank in self.ranks.len()..=rank {
            self.ranks.push(RankReport { rank, host: host.to_owned(), ..RankReport::default() });
        }
        self.rows.push(Row { rank, device: device.to_owned(), samples: 0, compute_s: 0.0, last_samples: 0 });
    }

    /// One update took `wall_s`; device `i` computed `work[i] = (samples, own compute seconds)` of it.
    pub fn observe(
        &mut self,
        wall_s: f64,
        work: impl IntoIterator<Item = (u64, f64)>,
        ranks: impl IntoIterator<Item = RankSeconds>,
    ) {
        self.updates += 1;
        self.wall_s += wall_s;
        let mut slowest = vec![0.0f64; self.ranks.len()];
        for (row, (samples, compute_s)) in self.rows.iter_mut().zip(work) {
            row.samples += samples;
            row.compute_s += compute_s;
            row.last_samples = samples;
            slowest[row.rank] = slowest[row.rank].max(compute_s);
        }
        for ((sums, compute_s), seconds) in self.ranks.iter_mut().zip(slowest).zip(ranks) {
            sums.compute_s += compute_s;
            sums.data_s += seconds.data_s;
            sums.exchange_s += seconds.exchange_s;
            sums.wait_s += seconds.wait_s;
            sums.host_s += seconds.host_s;
        }
    }

    /// Forget the sums, keep the devices: what follows is measured by itself.
    pub fn reset(&mut self) {
        (self.updates, self.wall_s) = (0, 0.0);
        for row in &mut self.rows {
            (row.samples, row.compute_s) = (0, 0.0);
        }
        for rank in &mut self.ranks {
            *rank = RankReport { rank: rank.rank, host: std::mem::take(&mut rank.host), ..RankReport::default() };
        }
    }

    /// How many updates were observed, and how long they took.
    pub fn span(&self) -> (u64, f64) {
        (self.updates, self.wall_s)
    }

    pub fn ranks(&self) -> Vec<RankReport> {
        self.ranks.clone()
    }

    pub fn report(&self) -> Vec<WorkerReport> {
        let last_update: u64 = self.rows.iter().map(|row| row.last_samples).sum();
        let rate = |amount: f64, per: f64| if per > 0.0 { amount / per } else { 0.0 };
        let report = |row: &Row| {
            let rank = &self.ranks[row.rank];
            let busy_s = row.compute_s + rank.data_s + rank.exchange_s + rank.host_s;
            WorkerReport {
                rank: row.rank,
                host: rank.host.clone(),
                device: row.device.clone(),
                samples: row.last_samples,
                share: rate(row.last_samples as f64, last_update as f64),
                samples_per_second: rate(row.samples as f64, row.compute_s),
                idle: (1.0 - rate(busy_s, self.wall_s)).clamp(0.0, 1.0),
                compute_s: row.compute_s,
            }
        };
        self.rows.iter().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_share_and_idle_are_of_the_own_time() {
        let mut workers = Workers::default();
        workers.add_device(0, "fast", "cpu:0");
        workers.add_device(1, "slow", "cpu:0");
        let beside = RankSeconds { data_s: 0.01, exchange_s: 0.02, wait_s: 0.5, host_s: 0.03 };
        workers.observe(1.0, [(30, 0.8), (10, 0.9)], [RankSeconds::default(), beside]);
        workers.observe(1.0, [(30, 0.8), (10, 0.8)], [RankSeconds::default(), beside]);
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
    fn nothing_observed_is_not_a_division_by_zero() {
        let mut workers = Workers::default();
        workers.add_device(0, "host", "cpu:0");
        assert_eq!(workers.report()[0].samples_per_second, 0.0);
    }
}
