//! Evaluation on the local devices: loss and score sums without gradients. Called by
//! `trainer/evaluate.rs`.

use std::time::Duration;

use hetseq_random::Key;

use crate::data::loader::{self, Job};
use crate::devices::thread::{DeviceCommand, DeviceReply};
use crate::error::TrainError;
use crate::task::{Split, Task, Totals};

use super::Devices;
use super::failover::round_robin;

const EVALUATING: &str = "evaluating";

impl<T: Task> Devices<T> {
    /// Returns the sums and the compute time of each device. If one device fails, the others
    /// evaluate its samples; a second failure is an error.
    pub(crate) fn evaluate(
        &mut self,
        mut jobs: Vec<Vec<Job<T>>>,
        epoch_key: Key,
    ) -> Result<Vec<(Totals, Duration)>, TrainError> {
        let mut totals: Vec<(Totals, Duration)> = Vec::new();
        totals.resize_with(self.handles.len(), Default::default);
        let mut has_failed = false;
        loop {
            self.reassign_lost(&mut jobs);
            let mut assigned = Vec::new();
            for (at, jobs) in std::mem::take(&mut jobs).into_iter().enumerate() {
                if !self.handles[at].is_lost {
                    assigned.push((at, jobs.iter().map(|job| job.micro.clone()).collect::<Vec<_>>()));
                    self.handles[at].send(DeviceCommand::Evaluate { jobs });
                }
            }
            jobs.resize_with(self.handles.len(), Vec::new);
            for (at, micros) in assigned {
                match self.handles[at].wait_for_reply(EVALUATING) {
                    Ok(DeviceReply::Evaluated(part, compute)) => {
                        let (sums, time) = &mut totals[at];
                        crate::trainer::evaluate::merge(sums, part);
                        *time += compute;
                    }
                    Ok(_) => return Err(self.handles[at].failed(EVALUATING, "unexpected reply".to_owned())),
                    Err(reason) => {
                        if std::mem::replace(&mut has_failed, true) {
                            return Err(self.handles[at].failed(EVALUATING, reason));
                        }
                        self.drop_device(at, reason, EVALUATING)?;
                        for micro in micros {
                            jobs[at].push(loader::collate(&*self.task, Split::Valid, micro, epoch_key)?.job);
                        }
                    }
                }
            }
            // Another pass only for the samples of a device that was lost.
            if jobs.iter().all(Vec::is_empty) {
                return Ok(totals);
            }
        }
    }

    /// Moves the jobs of lost devices to the others.
    fn reassign_lost(&self, jobs: &mut Vec<Vec<Job<T>>>) {
        jobs.resize_with(self.handles.len(), Vec::new);
        let lost = (0..self.handles.len()).filter(|&at| self.handles[at].is_lost);
        let orphaned: Vec<Job<T>> = lost.flat_map(|at| std::mem::take(&mut jobs[at])).collect();
        for (at, more) in round_robin(&self.alive(), orphaned) {
            jobs[at].extend(more);
        }
    }
}
