//! Checking data files against their checksums. Ranks compare only the checksums stored with the
//! data, so each rank must compare its files with them: training with a damaged copy would give
//! wrong checkpoints.
//!
//! Reading a large corpus takes long. A run waits a few seconds for it, then trains while one
//! thread continues to read; no checkpoint is saved before the data of all ranks has passed.
//! [`Session`](crate::trainer::session::Session) starts the check, the trainer polls it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hetseq_comm::Group;
use hetseq_data::source::checksum::cache_dir;
use hetseq_data::{ChecksummedFile, Status, Verification};
use hetseq_metrics::bytes;

use crate::error::TrainError;
use crate::trainer::messages;
use crate::trainer::running_time::RunningInstant;

/// How long the start of a run waits for the check.
const START_WAIT: Duration = Duration::from_secs(5);
/// A check that takes longer is logged.
const LOG_AFTER: Duration = Duration::from_secs(2);
/// Ranks that wait for each other exchange messages at this interval, so that none counts as stuck.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct DataCheck {
    task: Arc<str>,
    /// None if no file has a checksum, which is then so on all ranks.
    verification: Option<Verification>,
    is_in_background: bool,
    /// The data of all ranks has passed.
    has_passed: bool,
}

impl DataCheck {
    /// Starts to read the files, and waits for a few seconds.
    pub(crate) fn begin(task: &Arc<str>, files: Vec<ChecksummedFile>) -> Result<Self, TrainError> {
        Self::begin_within(START_WAIT, task, files)
    }

    fn begin_within(limit: Duration, task: &Arc<str>, files: Vec<ChecksummedFile>) -> Result<Self, TrainError> {
        let has_none = files.is_empty();
        let verification = Verification::start(files, cache_dir().as_deref(), SystemTime::now());
        let mut check =
            DataCheck { task: task.clone(), verification: None, is_in_background: false, has_passed: has_none };
        let mut status = verification.wait(LOG_AFTER.min(limit));
        if status == Status::Running {
            tracing::info!("comparing {} of data with its checksums", bytes(verification.total_bytes()));
            status = verification.wait(limit.saturating_sub(LOG_AFTER));
        }
        match status {
            Status::Failed(reason) => return Err(check.damage_error(reason)),
            Status::Passed => {}
            Status::Running => {
                verification.continue_in_background();
                check.is_in_background = true;
                tracing::info!(
                    "{}; this continues in the background, and no checkpoint is saved before it has passed",
                    progress(&verification)
                );
            }
        }
        check.verification = Some(verification).filter(|_| !has_none);
        Ok(check)
    }

    /// Called at each update: fails as soon as this rank has found damage.
    pub(crate) fn poll(&mut self) -> Result<(), TrainError> {
        let Some(verification) = self.verification.as_ref().filter(|_| self.is_in_background) else { return Ok(()) };
        match verification.status() {
            Status::Failed(reason) => Err(self.damage_error(reason)),
            Status::Running => Ok(()),
            Status::Passed => {
                tracing::info!("{}: all of it matches", progress(verification));
                self.is_in_background = false;
                Ok(())
            }
        }
    }

    /// Forgets whether the data of all ranks has passed: the ranks have changed.
    pub(crate) fn ask_again(&mut self) {
        self.has_passed = self.verification.is_none();
    }

    /// Waits until the data of all ranks has passed. A collective: all ranks call it at the same
    /// point. If the data of one is damaged, all return the same error. `timeout` limits reading
    /// without progress.
    pub(crate) fn finish(&mut self, group: &mut Group, timeout: Duration) -> Result<(), TrainError> {
        if self.has_passed {
            return Ok(());
        }
        let (mut last_read, mut advanced) = (0, RunningInstant::now());
        let mut round = Duration::ZERO;
        loop {
            let mut status = self.verification.as_ref().map_or(Status::Passed, |verification| verification.wait(round));
            if let (Status::Running, Some(verification)) = (&status, &self.verification) {
                if round > Duration::ZERO {
                    tracing::info!("waiting for the data check: {}", progress(verification));
                }
                if verification.read_bytes() != last_read {
                    (last_read, advanced) = (verification.read_bytes(), RunningInstant::now());
                } else if advanced.elapsed() > timeout {
                    let seconds = timeout.as_secs();
                    status = Status::Failed(format!(
                        "{}; nothing more could be read for {seconds} s (comm.progress_s): check the disk or the network",
                        progress(verification)
                    ));
                }
            }
            if have_all_passed(&self.task, group, &status)? {
                self.has_passed = true;
                return self.poll();
            }
            if status == Status::Passed && round.is_zero() {
                tracing::info!("waiting until the data of the other ranks has passed its checksums");
            }
            round = POLL_INTERVAL;
        }
    }

    fn damage_error(&self, reason: String) -> TrainError {
        damage_error(&self.task, reason)
    }
}

/// Exchanges the status of all ranks. Returns whether the data of all has passed.
fn have_all_passed(task: &str, group: &mut Group, status: &Status) -> Result<bool, TrainError> {
    let status: Option<Result<(), String>> = match status {
        Status::Running => None,
        Status::Passed => Some(Ok(())),
        Status::Failed(reason) => Some(Err(reason.clone())),
    };
    let mut have_passed = true;
    for (rank, status) in messages::all_gather(group, &status)?.into_iter().enumerate() {
        match status {
            Some(Ok(())) => {}
            None => have_passed = false,
            Some(Err(reason)) if group.world() == 1 => return Err(damage_error(task, reason)),
            Some(Err(reason)) => {
                return Err(damage_error(task, format!("rank {rank} ({}): {reason}", group.host(rank))));
            }
        }
    }
    Ok(have_passed)
}

fn damage_error(task: &str, reason: String) -> TrainError {
    TrainError::Task { task: task.to_owned(), reason: Box::new(reason.into()) }
}

fn progress(verification: &Verification) -> String {
    let (read, total) = (verification.read_bytes(), verification.total_bytes());
    format!("{} of {} of data compared with its checksums", bytes(read), bytes(total))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hetseq_comm::Options;
    use hetseq_data::source::tokens::{EncodedDocuments, ShardBuilder, TokenShard};

    use std::time::Instant;

    use super::*;

    fn shard(dir: &Path, is_damaged: bool) -> Vec<ChecksummedFile> {
        let path = dir.join(if is_damaged { "bad.tokens" } else { "good.tokens" });
        let mut builder = ShardBuilder::new(1000);
        let (ids, sentence_ends) = ((0..1000).collect::<Vec<u32>>(), vec![1000]);
        builder.append(&EncodedDocuments { ids, sentence_ends, document_ends: vec![1] });
        builder.write(&path).unwrap();
        if is_damaged {
            let mut content = fs_err::read(&path).unwrap();
            content[150] ^= 1;
            fs_err::write(&path, content).unwrap();
        }
        vec![TokenShard::open(&path).unwrap().checksummed_file()]
    }

    #[test]
    fn damage_is_an_error_at_the_start_or_soon_after() {
        let dir = tempfile::tempdir().unwrap();
        let error = DataCheck::begin(&"toy".into(), shard(dir.path(), true)).err().unwrap().to_string();
        assert!(error.contains("task toy: ") && error.contains("bad.tokens"), "{error}");
        // As with a corpus too large to check before the run starts.
        if let Ok(mut check) = DataCheck::begin_within(Duration::ZERO, &"toy".into(), shard(dir.path(), true)) {
            let until = Instant::now() + Duration::from_secs(60);
            while check.poll().is_ok() {
                assert!(Instant::now() < until, "it passed");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn no_rank_saves_before_the_data_of_all_has_passed() {
        let dir = tempfile::tempdir().unwrap();
        for is_damaged in [false, true] {
            let groups = Group::local(2, &Options::default()).unwrap().into_iter().enumerate();
            let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
                let rank = |(rank, mut group): (usize, Group)| {
                    let files = shard(dir.path(), is_damaged && rank == 1);
                    let verification = Verification::start(files, None, SystemTime::now());
                    let mut check = DataCheck {
                        task: "toy".into(),
                        verification: Some(verification),
                        is_in_background: true,
                        has_passed: false,
                    };
                    scope.spawn(move || {
                        let result =
                            check.finish(&mut group, Duration::from_secs(60)).map_err(|error| error.to_string());
                        group.close();
                        result
                    })
                };
                let ranks: Vec<_> = groups.map(rank).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            assert_eq!(results[0], results[1], "all ranks return the same result");
            match &results[0] {
                Ok(()) => assert!(!is_damaged),
                Err(reason) => assert!(reason.contains("rank 1 (") && reason.contains("bad.tokens"), "{reason}"),
            }
        }
    }
}
