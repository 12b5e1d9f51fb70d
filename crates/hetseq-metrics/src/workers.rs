//! Who did how much: sums over the updates of a process group, one row per device. Pure; the trainer feeds it what the
//! update headers carry.

use crate::WorkerReport;

/// One device's running sums.
#[derive(Debug, Clone)]
struct Row {
    rank: usize,
    host: String,
    device: String,
    samples: u64,
    compute_s: f64,
    last_samples: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Workers {
    rows: Vec<Row>,
    wall_s: f64,
}

impl Workers {
    pub fn add_device(&mut self, rank: usize, host: &str, device: &str) {
        self.rows.push(Row {
            rank,
            host: host.to_owned(),
            device: device.to_owned(),
            samples: 0,
            compute_s: 0.0,
            last_samples: 0,
        });
    }

    /// One update took `wall_s`; device `i` computed `work[i] = (samples, own compute seconds)` of it.
    pub fn observe(&mut self, wall_s: f64, work: impl IntoIterator<Item = (u64, f64)>) {
        self.wall_s += wall_s;
        for (row, (samples, compute_s)) in self.rows.iter_mut().zip(work) {
            row.samples += samples;
            row.compute_s += compute_s;
            row.last_samples = samples;
        }
    }

    /// Forget the sums, keep the devices: what follows is measured by itself.
    pub fn reset(&mut self) {
        self.wall_s = 0.0;
        for row in &mut self.rows {
            (row.samples, row.compute_s) = (0, 0.0);
        }
    }

    pub fn report(&self) -> Vec<WorkerReport> {
        let last_update: u64 = self.rows.iter().map(|row| row.last_samples).sum();
        let rate = |amount: f64, per: f64| if per > 0.0 { amount / per } else { 0.0 };
        self.rows
            .iter()
            .map(|row| WorkerReport {
                rank: row.rank,
                host: row.host.clone(),
                device: row.device.clone(),
                samples: row.last_samples,
                share: rate(row.last_samples as f64, last_update as f64),
                samples_per_second: rate(row.samples as f64, row.compute_s),
                idle: (1.0 - rate(row.compute_s, self.wall_s)).clamp(0.0, 1.0),
            })
            .collect()
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
        workers.observe(1.0, [(30, 0.9), (10, 1.0)]);
        workers.observe(1.0, [(30, 0.9), (10, 0.8)]);
        let report = workers.report();
        assert_eq!((report[0].share, report[1].share), (0.75, 0.25));
        assert!((report[0].samples_per_second - 60.0 / 1.8).abs() < 1e-9);
        assert!((report[0].idle - 0.1).abs() < 1e-9 && (report[1].idle - 0.1).abs() < 1e-9);
    }

    #[test]
    fn nothing_observed_is_not_a_division_by_zero() {
        let mut workers = Workers::default();
        workers.add_device(0, "host", "cpu:0");
        assert_eq!(workers.report()[0].samples_per_second, 0.0);
    }
}
