//! Whether the data is what was prepared. The ranks compare their data by the checksums that are stored with it, so each rank
//! has to compare its files with these: a damaged copy would train with the others, and the checkpoints would be wrong.
//!
//! Reading a large corpus takes long. A run waits a few seconds for it, then trains while one thread reads on; no checkpoint
//! is saved before the data of all ranks has passed. [`Crew`](crate::crew::Crew) begins it, the trainer asks.

use std::time::{Duration, Instant, SystemTime};

use hetseq_comm::Group;
use hetseq_data::source::checksum::cache_dir;
use hetseq_data::{Sealed, Status, Verification};
use hetseq_metrics::bytes;

use crate::error::TrainError;
use crate::roster::undecodable;
use crate::task::TaskError;

/// A run does not begin before this, if the data has not passed earlier.
const START_WAIT: Duration = Duration::from_secs(5);
/// What takes longer is said.
const QUIET: Duration = Duration::from_secs(2);
/// While ranks wait for each other they say so every few seconds, so that none counts as stuck.
const ROUND: Duration = Duration::from_secs(5);

pub(crate) struct DataCheck {
    task: &'static str,
    /// None if nothing of the data has a checksum, which is then so on all ranks.
    verification: Option<Verification>,
    is_in_background: bool,
    /// On all ranks.
    has_passed: bool,
}

impl DataCheck {
    /// Begins to read the files, and waits for a few seconds.
    pub(crate) fn begin(task: &'static str, files: Vec<Sealed>) -> Result<Self, TrainError> {
        Self::begin_within(START_WAIT, task, files)
    }

    fn begin_within(limit: Duration, task: &'static str, files: Vec<Sealed>) -> Result<Self, TrainError> {
        let has_none = files.is_empty();
        let verification = Verification::start(files, cache_dir().as_deref(), SystemTime::now());
        let mut check = DataCheck { task, verification: None, is_in_background: false, has_passed: has_none };
        let mut status = verification.wait(QUIET.min(limit));
        if status == Status::Running {
            tracing::info!("comparing {} of data with its checksums", bytes(verification.total_bytes()));
            status = verification.wait(limit.saturating_sub(QUIET));
        }
        match status {
            Status::Failed(reason) => return Err(check.damaged(reason)),
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

    /// At each update: an error as soon as this rank has found one.
    pub(crate) fn poll(&mut self) -> Result<(), TrainError> {
        let Some(verification) = self.verification.as_ref().filter(|_| self.is_in_background) else { return Ok(()) };
        match verification.status() {
            Status::Failed(reason) => Err(self.damaged(reason)),
            Status::Running => Ok(()),
            Status::Passed => {
                tracing::info!("{}: all of it matches", progress(verification));
                self.is_in_background = false;
                Ok(())
            }
        }
    }

    /// Waits until the data of all ranks has passed; all ranks call it at the same point. If the data of one is damaged, all
    /// return the same error. `patience` is how long reading may stand still.
    pub(crate) fn finish(&mut self, group: &mut Group, patience: Duration) -> Result<(), TrainError> {
        if self.has_passed {
            return Ok(());
        }
        let (mut last_read, mut advanced) = (0, Instant::now());
        let mut round = Duration::ZERO;
        loop {
            let mut mine = self.verification.as_ref().map_or(Status::Passed, |verification| verification.wait(round));
            if let (Status::Running, Some(verification)) = (&mine, &self.verification) {
                if round > Duration::ZERO {
                    tracing::info!("waiting until the data has passed: {}", progress(verification));
                }
                if verification.read_bytes() != last_read {
                    (last_read, advanced) = (verification.read_bytes(), Instant::now());
                } else if advanced.elapsed() > patience {
                    let seconds = patience.as_secs();
                    mine = Status::Failed(format!(
                        "{}; nothing more could be read for {seconds} s (comm.progress_s): check the disk or the network",
                        progress(verification)
                    ));
                }
            }
            let have_all_passed = exchange(self.task, group, &mine)?;
            if have_all_passed {
                self.has_passed = true;
                return self.poll();
            }
            if mine == Status::Passed && round.is_zero() {
                tracing::info!("waiting until the data of the other ranks has passed its checksums");
            }
            round = ROUND;
        }
    }

    fn damaged(&self, reason: String) -> TrainError {
        damaged(self.task, reason)
    }
}

/// Whether the data of all ranks has passed.
fn exchange(task: &'static str, group: &mut Group, mine: &Status) -> Result<bool, TrainError> {
    let mine: Option<Result<(), &String>> = match mine {
        Status::Running => None,
        Status::Passed => Some(Ok(())),
        Status::Failed(reason) => Some(Err(reason)),
    };
    let bytes = postcard::to_stdvec(&mine).map_err(|error| undecodable(group.rank(), &error))?;
    let mut have_passed = true;
    for (rank, bytes) in group.agree(&bytes)?.iter().enumerate() {
        let theirs: Option<Result<(), String>> =
            postcard::from_bytes(bytes).map_err(|error| undecodable(rank, &error))?;
        match theirs {
            Some(Ok(())) => {}
            None => have_passed = false,
            Some(Err(reason)) if group.world() == 1 => return Err(damaged(task, reason)),
            Some(Err(reason)) => {
                return Err(damaged(task, format!("rank {rank} ({}): {reason}", group.host(rank))));
            }
        }
    }
    Ok(have_passed)
}

fn damaged(task: &'static str, reason: String) -> TrainError {
    TrainError::Task { task, reason: TaskError::Other(reason) }
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

    use super::*;

    fn shard(dir: &Path, is_damaged: bool) -> Vec<Sealed> {
        let path = dir.join(if is_damaged { "bad.tokens" } else { "good.tokens" });
        let mut builder = ShardBuilder::new(1000);
        let (ids, ends) = ((0..1000).collect::<Vec<u32>>(), vec![1000]);
        builder.append(&EncodedDocuments { ids, sentence_ends: ends, document_ends: vec![1] });
        builder.write(&path).unwrap();
        if is_damaged {
            let mut content = fs_err::read(&path).unwrap();
            content[150] ^= 1;
            fs_err::write(&path, content).unwrap();
        }
        vec![TokenShard::open(&path).unwrap().sealed()]
    }

    #[test]
    fn damage_is_refused_at_the_start_or_ends_the_run_soon() {
        let dir = tempfile::tempdir().unwrap();
        let refusal = DataCheck::begin("toy", shard(dir.path(), true)).err().unwrap().to_string();
        assert!(refusal.contains("task toy: ") && refusal.contains("bad.tokens"), "{refusal}");
        // As if there were so much to read that the run had to begin without.
        if let Ok(mut check) = DataCheck::begin_within(Duration::ZERO, "toy", shard(dir.path(), true)) {
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
            let groups = Group::local(2, &Options::default()).into_iter().enumerate();
            let ends: Vec<Result<(), String>> = std::thread::scope(|scope| {
                let rank = |(rank, mut group): (usize, Group)| {
                    let files = shard(dir.path(), is_damaged && rank == 1);
                    let verification = Verification::start(files, None, SystemTime::now());
                    let mut check = DataCheck {
                        task: "toy",
                        verification: Some(verification),
                        is_in_background: true,
                        has_passed: false,
                    };
                    scope.spawn(move || {
                        let end = check.finish(&mut group, Duration::from_secs(60)).map_err(|error| error.to_string());
                        group.close();
                        end
                    })
                };
                let ranks: Vec<_> = groups.map(rank).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            assert_eq!(ends[0], ends[1], "all ranks end alike");
            match &ends[0] {
                Ok(()) => assert!(!is_damaged),
                Err(reason) => assert!(reason.contains("rank 1 (") && reason.contains("bad.tokens"), "{reason}"),
            }
        }
    }
}
