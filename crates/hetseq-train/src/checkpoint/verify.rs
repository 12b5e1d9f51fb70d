//! Whether a checkpoint is as it was saved, and which one to use if not. Called wherever weights are about to be used: by a
//! resume, evaluation, generation, export, averaging and `task.init`.
//!
//! A checkpoint that a user names must be intact. Of a run the first intact one is taken, with a warning that says so.
//! Nothing here changes the disk.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::manifest::{self, Content, Manifest};
use super::{STATE, WEIGHTS, step_of, tensors};
use crate::error::TrainError;
use crate::state::State;
use crate::weights;

/// What is compared with the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// What other programs load.
    Model,
    /// With what only a resume needs.
    All,
}

/// Fails with [`TrainError::Damaged`] if the checkpoint at `path` is not as it was saved; `path` may be one file of it. A
/// checkpoint of an older version has no manifest: its files must be whole as far as their format shows, and a warning
/// says that. Other directories and files of weights pass.
pub(crate) fn verify(path: &Path, part: Part) -> Result<Option<Manifest>, TrainError> {
    let is_file = path.is_file();
    let dir = if is_file { path.parent().unwrap_or(Path::new("")) } else { path };
    let Some(manifest) = read_manifest(dir)? else {
        let is_checkpoint = dir.join("trainer").exists() || (step_at(dir).is_some() && !weights::are_at(dir));
        if is_checkpoint && !is_file {
            check_formats(dir, part)?;
            tracing::warn!(
                "{} was saved without a manifest, by an older version: it cannot be compared with what was saved",
                dir.display()
            );
        }
        return Ok(None);
    };
    let only = path.file_name().filter(|_| is_file).and_then(|name| name.to_str());
    for (name, expected) in &manifest.files {
        let is_wanted = match only {
            Some(only) => name == only,
            None => part == Part::All || !name.starts_with("trainer/"),
        };
        if !is_wanted {
            continue;
        }
        let found = Content::of(&dir.join(name)).map_err(|error| unreadable(dir, name, error))?;
        if let Some(difference) = found.difference(expected) {
            return Err(damaged(dir, format!("{name} {difference}{}", on_purpose(name))));
        }
    }
    check_name(dir, manifest.update)?;
    Ok(Some(manifest))
}

/// The first of `paths` that `open` does not find damaged, with what it returns; a warning names the damaged ones. None if
/// there are no paths; an error if all are damaged.
pub(crate) fn first_intact<T>(
    paths: &[PathBuf],
    open: impl Fn(&Path) -> Result<T, TrainError>,
) -> Result<Option<(PathBuf, T)>, TrainError> {
    let mut all_damaged = None;
    for path in paths {
        match open(path) {
            Ok(opened) => return Ok(Some((path.clone(), opened))),
            Err(TrainError::Damaged { path, reason }) => {
                if paths.len() > 1 {
                    tracing::warn!("{} is damaged and not used: {reason}", path.display());
                }
                all_damaged.get_or_insert(TrainError::Damaged { path, reason });
            }
            Err(error) => return Err(error),
        }
    }
    all_damaged.map_or(Ok(None), Err)
}

/// The state must be of the same checkpoint as everything else.
pub(super) fn check_state(dir: &Path, state: &State, manifest: Option<&Manifest>) -> Result<(), TrainError> {
    check_name(dir, state.cursor.updates)?;
    let Some(manifest) = manifest else { return Ok(()) };
    let (update, task) = (state.cursor.updates, &state.task);
    if (update, task) != (manifest.update, &manifest.task) {
        let (saved, of) = (manifest.update, &manifest.task);
        let reason =
            format!("{STATE} is of update {update} of task {task}, the manifest of update {saved} of task {of}");
        return Err(damaged(dir, reason));
    }
    Ok(())
}

/// A directory `step-N` holds update N; one that a user has copied elsewhere may have any name.
fn check_name(dir: &Path, update: u64) -> Result<(), TrainError> {
    match step_at(dir) {
        Some(step) if step != update => Err(damaged(dir, format!("it holds update {update}, not update {step}"))),
        _ => Ok(()),
    }
}

/// What the name of a directory, or of the one that a link leads to, says.
fn step_at(dir: &Path) -> Option<u64> {
    let real = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    real.file_name().and_then(|name| step_of(name.to_str()?))
}

fn read_manifest(dir: &Path) -> Result<Option<Manifest>, TrainError> {
    let bytes = match fs::read(dir.join(manifest::FILE)) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(unreadable(dir, manifest::FILE, error)),
    };
    let manifest: Manifest = serde_json::from_slice(&bytes)
        .map_err(|error| damaged(dir, format!("{} cannot be read: {error}", manifest::FILE)))?;
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

/// What can be seen without a manifest: files that are missing, cut short or empty.
fn check_formats(dir: &Path, part: Part) -> Result<(), TrainError> {
    let read = |name: &str| fs::read(dir.join(name)).map_err(|error| unreadable(dir, name, error));
    let names: &[&str] = if part == Part::All { &[WEIGHTS, super::SLOTS] } else { &[WEIGHTS] };
    for name in names {
        let tensors = tensors::count(&read(name)?).map_err(|error| damaged(dir, format!("{name}: {error}")))?;
        if *name == WEIGHTS && tensors == 0 {
            return Err(damaged(dir, format!("{name} holds no tensors")));
        }
    }
    if part == Part::All {
        let state = serde_json::from_slice::<State>(&read(STATE)?);
        state.map_err(|error| damaged(dir, format!("{STATE}: {error}")))?;
    }
    Ok(())
}

/// A file that is missing is damage. One that the system fails to read may be whole, so the user decides.
pub(super) fn unreadable(dir: &Path, name: &str, error: Error) -> TrainError {
    match error.kind() {
        ErrorKind::NotFound => damaged(dir, format!("{name} is missing")),
        _ => TrainError::Io { doing: format!("reading the checkpoint {}", dir.display()), reason: error },
    }
}

/// People edit the small files, such as a model's `config.json`.
fn on_purpose(name: &str) -> String {
    match name.ends_with(".safetensors") || name == STATE {
        true => String::new(),
        false => format!("; if it was changed on purpose, delete {}", manifest::FILE),
    }
}

fn damaged(dir: &Path, reason: String) -> TrainError {
    TrainError::Damaged { path: dir.to_owned(), reason }
}
