//! Compares a checkpoint with its manifest, and selects an intact one if it is damaged. Called
//! before weights are used: by resume, evaluation, generation, export, averaging and `task.init`.
//!
//! A checkpoint that the user names must be intact. For a run directory, the first intact
//! checkpoint is used and a warning names the damaged ones. This module never writes to the disk.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::manifest::{self, CheckpointManifest, FileDigest};
use super::{STATE, WEIGHTS, step_of, tensors};
use crate::checkpoint::weights;
use crate::error::TrainError;
use crate::trainer::state::State;

/// The files to compare with the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckpointPart {
    /// The files that other programs load.
    Model,
    /// These and the files that only a resume needs.
    All,
}

/// Fails with [`TrainError::Damaged`] if the checkpoint at `path` differs from what was saved.
/// `path` may be a single file of a checkpoint.
///
/// Checkpoints of older versions have no manifest. Their files only have to be complete as far as
/// the format shows, and a warning says so. Other directories and weight files pass.
pub(crate) fn verify(path: &Path, part: CheckpointPart) -> Result<Option<CheckpointManifest>, TrainError> {
    let is_file = path.is_file();
    let dir = if is_file { path.parent().unwrap_or(Path::new("")) } else { path };
    let Some(manifest) = read_manifest(dir)? else {
        let is_checkpoint = dir.join("trainer").exists() || (step_at(dir).is_some() && !weights::exist_at(dir));
        if is_checkpoint && !is_file {
            check_formats(dir, part)?;
            tracing::warn!(
                "{} was saved without a manifest by an older version: it cannot be checked against what was saved",
                dir.display()
            );
        }
        return Ok(None);
    };
    let only = path.file_name().filter(|_| is_file).and_then(|name| name.to_str());
    for (name, expected) in &manifest.files {
        let is_selected = match only {
            Some(only) => name == only,
            None => part == CheckpointPart::All || !name.starts_with("trainer/"),
        };
        if !is_selected {
            continue;
        }
        let found = FileDigest::of(&dir.join(name)).map_err(|error| unreadable(dir, name, error))?;
        if let Some(difference) = found.difference(expected) {
            return Err(damaged(dir, format!("{name} {difference}{}", edit_hint(name))));
        }
    }
    check_name(dir, manifest.update)?;
    Ok(Some(manifest))
}

/// Returns the first of `paths` that `open` does not report as damaged, with the result of `open`.
/// A warning names each damaged one. Returns `None` without paths, and an error if all are damaged.
pub(crate) fn first_intact<T>(
    paths: &[PathBuf],
    open: impl Fn(&Path) -> Result<T, TrainError>,
) -> Result<Option<(PathBuf, T)>, TrainError> {
    let mut first_damage = None;
    for path in paths {
        match open(path) {
            Ok(opened) => return Ok(Some((path.clone(), opened))),
            Err(TrainError::Damaged { path, reason }) => {
                if paths.len() > 1 {
                    tracing::warn!("{} is damaged and not used: {reason}", path.display());
                }
                first_damage.get_or_insert(TrainError::Damaged { path, reason });
            }
            Err(error) => return Err(error),
        }
    }
    first_damage.map_or(Ok(None), Err)
}

/// Checks that the trainer state belongs to the same checkpoint as the other files.
pub(super) fn check_state(dir: &Path, state: &State, manifest: Option<&CheckpointManifest>) -> Result<(), TrainError> {
    check_name(dir, state.cursor.updates)?;
    let Some(manifest) = manifest else { return Ok(()) };
    let (update, task) = (state.cursor.updates, &state.task);
    if (update, task) != (manifest.update, &manifest.task) {
        let reason = format!(
            "{STATE} belongs to update {update} of task {task}, but the manifest to update {} of task {}",
            manifest.update, manifest.task
        );
        return Err(damaged(dir, reason));
    }
    Ok(())
}

/// Checks that a directory `step-N` holds update N. A copy made by the user may have any other
/// name.
fn check_name(dir: &Path, update: u64) -> Result<(), TrainError> {
    match step_at(dir) {
        Some(step) if step != update => Err(damaged(dir, format!("it holds update {update}, not update {step}"))),
        _ => Ok(()),
    }
}

/// Returns N for a directory named `step-N`, or for a link to one.
fn step_at(dir: &Path) -> Option<u64> {
    let real = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    real.file_name().and_then(|name| step_of(name.to_str()?))
}

fn read_manifest(dir: &Path) -> Result<Option<CheckpointManifest>, TrainError> {
    let bytes = match fs::read(dir.join(manifest::FILE)) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(unreadable(dir, manifest::FILE, error)),
    };
    let manifest =
        CheckpointManifest::from_json(&bytes).map_err(|reason| damaged(dir, format!("{} {reason}", manifest::FILE)))?;
    if manifest.format != manifest::FORMAT {
        let reason = format!(
            "its manifest has format {}, this program reads format {}: use a newer version",
            manifest.format,
            manifest::FORMAT
        );
        return Err(TrainError::Checkpoint { path: dir.to_owned(), reason });
    }
    Ok(Some(manifest))
}

/// Finds the damage that is visible without a manifest: missing, truncated or empty files.
fn check_formats(dir: &Path, part: CheckpointPart) -> Result<(), TrainError> {
    let read = |name: &str| fs::read(dir.join(name)).map_err(|error| unreadable(dir, name, error));
    let names: &[&str] = if part == CheckpointPart::All { &[WEIGHTS, super::store::SLOTS] } else { &[WEIGHTS] };
    for name in names {
        let tensors = tensors::count(&read(name)?).map_err(|error| damaged(dir, format!("{name}: {error}")))?;
        if *name == WEIGHTS && tensors == 0 {
            return Err(damaged(dir, format!("{name} holds no tensors")));
        }
    }
    if part == CheckpointPart::All {
        let state = serde_json::from_slice::<State>(&read(STATE)?);
        state.map_err(|error| damaged(dir, format!("{STATE}: {error}")))?;
    }
    Ok(())
}

/// A missing file is damage. A file that fails to read may be intact, so that is an I/O error and
/// the user decides.
pub(super) fn unreadable(dir: &Path, name: &str, error: Error) -> TrainError {
    match error.kind() {
        ErrorKind::NotFound => damaged(dir, format!("{name} is missing")),
        _ => TrainError::Io { doing: format!("reading the checkpoint {}", dir.display()), reason: error },
    }
}

/// Advice for files that people edit by hand, such as a model's `config.json`.
fn edit_hint(name: &str) -> String {
    match name.ends_with(".safetensors") || name == STATE {
        true => String::new(),
        false => format!("; if it was changed on purpose, delete {}", manifest::FILE),
    }
}

fn damaged(dir: &Path, reason: String) -> TrainError {
    TrainError::Damaged { path: dir.to_owned(), reason }
}
