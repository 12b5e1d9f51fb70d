//! What the next header reports about the last update, and counters since this process started.
//! Filled by the trainer after each update, read by `sync.rs` and `planning.rs`.

use hetseq_balance::AssignedWork;

use crate::trainer::header::RankTime;

#[derive(Default)]
pub(crate) struct StepTimings {
    /// Where this rank's time went in the last update, besides computing on devices.
    pub(super) rank: RankTime,
    /// What all devices of the group were assigned in the last update.
    pub(super) work: Vec<AssignedWork>,
    /// Checksum of the parameters, if one was taken after the last update.
    pub(super) checksum: Option<u64>,
    /// Updates that were done before this process started.
    pub(super) start_update: u64,
    /// Updates that this process has done.
    pub(super) updates_done: u64,
    /// Seconds that these updates waited for samples, in total.
    pub(crate) data_wait_s: f64,
}

impl StepTimings {
    /// For a process that starts after `start_update` updates.
    pub(super) fn starting_at(start_update: u64) -> Self {
        StepTimings { start_update, ..StepTimings::default() }
    }
}
