//! A round of work on the pool: micro-batches assigned to devices, and what became of them. The
//! same for training, evaluation and inference, so that all three survive a failed device. Driven
//! by `pool`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::data::loader::Job;
use crate::devices::handle::DeviceHandle;
use crate::devices::thread::{DeviceCommand, Work, WorkDone};
use crate::error::TrainError;
use crate::task::{Answer, ComputeError};

use super::Devices;
use super::failover::round_robin;

pub(super) struct Round {
    work: Work,
    /// Per device, in the order in which they were assigned.
    pub(super) parts: Vec<Vec<RoundPart>>,
    /// Not assigned yet: for the next device that has nothing to do.
    pub(super) queue: VecDeque<Arc<Job>>,
}

/// Micro-batches assigned to a device in one command.
pub(super) struct RoundPart {
    pub(super) jobs: Vec<Arc<Job>>,
    /// Taken over from another device. The planner does not expect this work, so its time is not
    /// reported.
    pub(super) is_extra: bool,
    /// Why another device failed with it.
    pub(super) earlier_failure: Option<String>,
    pub(super) done: Option<WorkDone>,
}

impl Round {
    fn new(work: Work, devices: usize, queue: VecDeque<Arc<Job>>) -> Self {
        Round { work, parts: (0..devices).map(|_| Vec::new()).collect(), queue }
    }

    /// What the devices do, for messages.
    pub(super) fn doing(&self) -> &'static str {
        match self.work {
            Work::Train { .. } => "computing gradients",
            Work::Evaluate => "evaluating",
            Work::Predict => "predicting",
        }
    }

    /// The results of each device.
    pub(super) fn into_done(self) -> impl Iterator<Item = Vec<WorkDone>> {
        self.parts.into_iter().map(|parts| parts.into_iter().filter_map(|part| part.done).collect())
    }

    /// Takes the finished predictions out of the round, with their jobs.
    pub(super) fn take_predicted(&mut self) -> Vec<(Arc<Job>, Vec<Answer>)> {
        let mut predicted = Vec::new();
        for parts in &mut self.parts {
            let (done, left) = std::mem::take(parts).into_iter().partition(|part| part.done.is_some());
            *parts = left;
            let done: Vec<RoundPart> = done;
            for RoundPart { jobs, done, .. } in done {
                // Each part of a queue is one job.
                if let (Some(WorkDone::Predicted(predictions)), [job]) = (done, &jobs[..]) {
                    predicted.push((job.clone(), predictions));
                }
            }
        }
        predicted
    }

    fn is_busy(&self, device: usize) -> bool {
        self.parts[device].iter().any(|part| part.done.is_none())
    }

    pub(super) fn assign(
        &mut self,
        at: usize,
        handle: &DeviceHandle,
        jobs: Vec<Arc<Job>>,
        (is_extra, earlier_failure): (bool, Option<String>),
    ) {
        handle.send(DeviceCommand::Run { work: self.work.clone(), jobs: jobs.clone() });
        self.parts[at].push(RoundPart { jobs, is_extra, earlier_failure, done: None });
    }
}

impl Devices {
    /// Gives each device its own jobs, and the jobs of lost devices to the others.
    pub(super) fn begin_round(&mut self, work: Work, jobs: Vec<Vec<Arc<Job>>>) {
        let mut round = Round::new(work, self.handles.len(), VecDeque::new());
        let mut orphaned = Vec::new();
        for (at, jobs) in jobs.into_iter().enumerate() {
            match self.handles.get(at) {
                Some(handle) if !handle.is_lost => round.assign(at, handle, jobs, (false, None)),
                _ => orphaned.extend(jobs),
            }
        }
        for (at, jobs) in round_robin(&self.alive(), orphaned) {
            round.assign(at, &self.handles[at], jobs, (true, None));
        }
        self.round = Some(round);
    }

    /// Starts a round whose jobs go to whichever device is free.
    pub(super) fn begin_queue(&mut self, work: Work, jobs: Vec<Arc<Job>>) {
        self.round = Some(Round::new(work, self.handles.len(), jobs.into()));
    }

    /// Returns the round once all its work is done. Never blocks. If a device failed, reassigns its
    /// work to the others.
    pub(super) fn poll_round(&mut self) -> Result<Option<Round>, TrainError> {
        let Some(mut round) = self.round.take() else { return Ok(None) };
        let doing = round.doing();
        let mut at = 0;
        while at < self.handles.len() {
            let Some(part) = round.parts[at].iter_mut().find(|part| part.done.is_none()) else {
                if let Some(job) = round.queue.pop_front_if(|_| !self.handles[at].is_lost) {
                    round.assign(at, &self.handles[at], vec![job], (false, None));
                }
                at += 1;
                continue;
            };
            match self.handles[at].poll_work(doing) {
                Ok(None) => at += 1,
                Ok(Some(done)) => part.done = Some(done),
                Err(error @ (ComputeError::Collate(_) | ComputeError::Task(_))) => {
                    return Err(self.task_failed(error));
                }
                Err(error) => {
                    self.reassign(&mut round, at, error.to_string())?;
                    // Earlier devices may have new work.
                    at = 0;
                }
            }
        }
        if !round.queue.is_empty() || (0..self.handles.len()).any(|at| round.is_busy(at)) {
            self.round = Some(round);
            return Ok(None);
        }
        Ok(Some(round))
    }

    /// Waits for the current round and returns it.
    pub(super) fn finish_round(&mut self) -> Result<Round, TrainError> {
        loop {
            let seen = self.setup.done.count();
            if let Some(round) = self.poll_round()? {
                return Ok(round);
            }
            if self.round.is_none() {
                return Ok(Round::new(Work::Evaluate, self.handles.len(), VecDeque::new()));
            }
            self.wait_for_any(seen);
        }
    }

    /// Sleeps until a device has replied since `seen`, or one may have hung.
    pub(super) fn wait_for_any(&self, seen: u64) {
        let Some(round) = &self.round else { return };
        let busy = (0..self.handles.len()).filter(|&at| round.is_busy(at));
        let limit = busy.map(|at| self.handles[at].longest_wait()).min();
        self.setup.done.wait(seen, limit.unwrap_or(Duration::from_millis(1)));
    }

    /// The error of the task's own code: not the device's fault, so no other device tries.
    fn task_failed(&self, error: ComputeError) -> TrainError {
        let task = self.setup.task.name.to_string();
        match error {
            ComputeError::Collate(reason) => TrainError::Collate { task, reason: reason.into() },
            ComputeError::Task(reason) => TrainError::Forward { task, reason: reason.into() },
            error => {
                TrainError::Device { device: "a device".to_owned(), doing: "computing", reason: error.to_string() }
            }
        }
    }
}
