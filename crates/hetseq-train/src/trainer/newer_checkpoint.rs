//! A newer checkpoint on another rank than 0. Without a shared run directory, a rank that took over
//! the lead, or that had to stop alone, has saved on its own disk: the next start continues from
//! the newest checkpoint of all ranks. Called by `setup.rs`.
//!
//! Only checkpoints of the same run count, by the id that all ranks of a run store. If rank 0 has
//! nothing of a run, because its machine is new or its disk is lost, any run that fits the config
//! does. `--resume never` and `--resume PATH` leave the decision to rank 0.

use std::path::{Path, PathBuf};

use hetseq_metrics::Change;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{self, Checkpoints, Restored, STATE, first_intact};
use crate::config::{Reset, Resume};
use crate::error::TrainError;
use crate::run::RunOptions;
use crate::run_dir::events::at_update;
use crate::trainer::session::Session;
use crate::trainer::start_point::{StartPoint, config_changes_since, resume_state};
use crate::trainer::state::State;

use super::messages;

/// What rank 0 asks the others for. All use its command line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Question {
    is_asked: bool,
    /// The run that continues; none if rank 0 does not know.
    run: Option<String>,
    /// Of rank 0's own checkpoint.
    updates: Option<u64>,
    reset: Reset,
}

/// The answer of a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Answer {
    /// Nothing that is newer.
    Nothing,
    /// A newer checkpoint.
    Newer(FoundCheckpoint),
    /// A newer checkpoint, and why it cannot be used.
    Unusable { path: PathBuf, reason: String },
}

/// A checkpoint on the disk of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct FoundCheckpoint {
    pub(super) updates: u64,
    pub(super) path: PathBuf,
    /// Config keys that changed since then.
    pub(super) changed: Vec<Change>,
}

/// The newest checkpoint of the ranks other than 0.
pub(super) struct NewerCheckpoint {
    pub(super) rank: usize,
    pub(super) found: FoundCheckpoint,
    /// Its content, on the rank that has it.
    pub(super) restored: Option<Restored>,
}

impl Question {
    pub(super) fn new(start: &StartPoint, options: &RunOptions) -> Question {
        Question {
            is_asked: options.resume == Resume::Auto,
            run: start.run.clone(),
            updates: start.path.is_some().then_some(start.restored.state.cursor.updates),
            reset: options.reset,
        }
    }

    /// Whether a checkpoint of `run` belongs to the run that starts now.
    fn is_of_this_run(&self, run: Option<&str>) -> bool {
        match &self.run {
            Some(own) => run == Some(own),
            // A checkpoint without an id is of an older version: no other can belong to it.
            None => self.updates.is_none(),
        }
    }
}

/// Finds the newest checkpoint that is newer than rank 0's, if there is one. A collective;
/// `question` is that of rank 0. `new_state` is the state of a new run.
pub(super) fn find_newer_checkpoint(
    session: &mut Session,
    store: &Checkpoints,
    new_state: &State,
    question: Option<Question>,
) -> Result<Option<NewerCheckpoint>, TrainError> {
    if session.group.world() == 1 {
        return Ok(None);
    }
    let rank = session.group.rank();
    let asked = messages::encode(&question)?;
    let asked = session.group.broadcast_bytes(0, asked)?;
    let question: Option<Question> = messages::decode(0, &asked)?;
    let (answer, restored) = match question.filter(|question| question.is_asked && rank > 0) {
        Some(question) => answer(session, store, new_state, &question)?,
        None => (Answer::Nothing, None),
    };
    let answers = session.group.all_gather_bytes(&messages::encode_json(&answer)?)?;
    let decode = |(rank, bytes): (usize, &Vec<u8>)| messages::decode_json(rank, bytes);
    let answers = answers.iter().enumerate().map(decode).collect::<Result<Vec<Answer>, _>>()?;
    if rank == 0 {
        warn_of_unusable(session, store, &answers);
    }
    Ok(newest(answers).map(|(owner, found)| NewerCheckpoint {
        rank: owner,
        found,
        restored: restored.filter(|_| owner == rank),
    }))
}

/// The newest of the checkpoints that can be used, on the lowest rank that has it.
fn newest(answers: Vec<Answer>) -> Option<(usize, FoundCheckpoint)> {
    let found = answers.into_iter().enumerate().filter_map(|(rank, answer)| match answer {
        Answer::Newer(found) => Some((rank, found)),
        _ => None,
    });
    // Of equals, `max_by_key` returns the last.
    found.collect::<Vec<_>>().into_iter().rev().max_by_key(|(_, found)| found.updates)
}

/// This rank's newest intact checkpoint, if it is newer than rank 0's and of the same run.
fn answer(
    session: &Session,
    store: &Checkpoints,
    new_state: &State,
    question: &Question,
) -> Result<(Answer, Option<Restored>), TrainError> {
    let steps = store.steps()?.into_iter().rev().filter(|&step| Some(step) > question.updates);
    let paths: Vec<PathBuf> = steps.map(|step| store.path(step)).collect();
    let unusable = |path: &Path, reason: String| (Answer::Unusable { path: path.to_owned(), reason }, None);
    let (own, other): (Vec<PathBuf>, _) =
        paths.into_iter().partition(|path| question.is_of_this_run(run_of(path).as_deref()));
    match first_intact(&own, |path| checkpoint::load(path, &session.layout)) {
        Ok(None) => Ok(other.first().map_or((Answer::Nothing, None), |path| {
            unusable(path, "it belongs to another run than rank 0's".to_owned())
        })),
        Ok(Some((path, restored))) => match resume_state(session, &path, restored, new_state, question.reset) {
            Ok(restored) => {
                let updates = restored.state.cursor.updates;
                let changed = config_changes_since(&path, &session.task);
                Ok((Answer::Newer(FoundCheckpoint { updates, path, changed }), Some(restored)))
            }
            // Rank 0's run, but not its config: the user has to decide, as for rank 0's own.
            Err(error) if question.run.is_some() => Err(error),
            Err(error) => Ok(unusable(&path, error.to_string())),
        },
        Err(error) => Ok(unusable(&own[0], error.to_string())),
    }
}

/// The run of the checkpoint at `path`, without checking the rest of it.
fn run_of(path: &Path) -> Option<String> {
    let state: serde_json::Value = serde_json::from_slice(&fs_err::read(path.join(STATE)).ok()?).ok()?;
    state["run"].as_str().map(str::to_owned)
}

fn warn_of_unusable(session: &Session, store: &Checkpoints, answers: &[Answer]) {
    for (rank, answer) in answers.iter().enumerate() {
        // In a shared run directory, rank 0 has seen it too.
        if let Answer::Unusable { path, reason } = answer
            && !(path.starts_with(store.dir()) && path.exists())
        {
            let (host, path) = (session.group.host(rank), path.display());
            tracing::warn!("the newer checkpoint {path} of rank {rank} ({host}) is not used: {reason}");
        }
    }
}

impl NewerCheckpoint {
    /// Says on rank 0 what it continues from.
    pub(super) fn announce(&self, session: &Session, dir: &Path) {
        let (rank, path, host) = (self.rank, self.found.path.display(), session.group.host(self.rank));
        tracing::info!("resuming from {path} of rank {rank} ({host}), which is newer than rank 0's");
        tracing::warn!(
            "{} lacks updates that rank {rank} ({host}) has done up to {}: they are in the metrics.jsonl of its run directory",
            dir.join("metrics.jsonl").display(),
            at_update(self.found.updates)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(run: Option<&str>, updates: Option<u64>) -> Question {
        Question { is_asked: true, run: run.map(str::to_owned), updates, reset: Reset::default() }
    }

    #[test]
    fn only_checkpoints_of_the_same_run_count() {
        let is_used = |question: &Question| [Some("a"), Some("b"), None].map(|run| question.is_of_this_run(run));
        assert_eq!(is_used(&question(Some("a"), Some(3))), [true, false, false]);
        // It was lost before it saved anything.
        assert_eq!(is_used(&question(Some("a"), None)), [true, false, false]);
        // Its disk is new.
        assert_eq!(is_used(&question(None, None)), [true, true, true]);
        // It was saved by an older version.
        assert_eq!(is_used(&question(None, Some(3))), [false, false, false]);
    }

    #[test]
    fn the_newest_wins_and_the_lowest_rank_of_equals() {
        let newer = |updates| {
            Answer::Newer(FoundCheckpoint { updates, path: PathBuf::from(format!("step-{updates}")), changed: vec![] })
        };
        let unusable = Answer::Unusable { path: PathBuf::new(), reason: String::new() };
        let rank = |answers: &[Answer]| newest(answers.to_vec()).map(|(rank, found)| (rank, found.updates));
        assert_eq!(rank(&[Answer::Nothing, unusable.clone()]), None);
        assert_eq!(rank(&[Answer::Nothing, newer(4), newer(9), newer(9), unusable]), Some((2, 9)));
    }
}
