//! The mean of several checkpoints of one run, which often scores a little better than the last
//! one. Writes a directory like [`export`](crate::checkpoint::export) does. A run cannot resume
//! from it, because the optimizer state has no mean. Called by `hetseq average`.

use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_optim::Layout;

use crate::checkpoint::export::{copy_files, create_dir_atomically};
use crate::checkpoint::weights::{NamedTensor, read_tensors};
use crate::checkpoint::{CheckpointPart, Checkpoints, WEIGHTS, step_of, verify, write_flat};
use crate::error::TrainError;

/// The result of averaging.
#[derive(Debug)]
pub struct Averaged {
    /// The newest of the checkpoints. The files next to the weights are copied from it.
    pub newest: PathBuf,
    pub files: Vec<String>,
}

/// Returns the newest `count` checkpoints of a run that have an intact model, oldest first.
pub fn last(run: &Path, count: usize) -> Result<Vec<PathBuf>, TrainError> {
    let checkpoints = Checkpoints::at(run);
    let paths = checkpoints.newest_first()?;
    if paths.is_empty() {
        let text = format!("there is no checkpoint in {}: with --last, pass a run directory", run.display());
        return Err(TrainError::Config(text));
    }
    let mut intact = Vec::new();
    for path in paths {
        if intact.len() == count {
            break;
        }
        match verify(&path, CheckpointPart::Model) {
            Ok(_) => intact.insert(0, path),
            Err(TrainError::Damaged { path, reason }) => {
                tracing::warn!("{} is damaged and not used: {reason}", path.display());
            }
            Err(error) => return Err(error),
        }
    }
    if intact.len() < count {
        return Err(TrainError::Config(format!(
            "{} has only {} intact checkpoints, not {count}; ask for fewer, or raise checkpoint.keep for the next run",
            run.display(),
            intact.len()
        )));
    }
    Ok(intact)
}

/// Writes the mean of the checkpoints' weights to the new directory `to`, which is complete or
/// absent afterwards.
pub fn average(checkpoints: &[PathBuf], to: &Path) -> Result<Averaged, TrainError> {
    check_target(to)?;
    let newest = newest(checkpoints)?;
    for path in checkpoints {
        verify(path, CheckpointPart::Model)?;
    }
    let (layout, mean) = mean(checkpoints)?;
    let doing = format!("averaging {} checkpoints to {}", checkpoints.len(), to.display());
    let write = |dir: &Path| copy_files(&newest, dir, |weights| write_flat(weights, &layout, &mean));
    let files = create_dir_atomically(to, write).map_err(TrainError::io(doing))?;
    Ok(Averaged { newest, files })
}

fn check_target(to: &Path) -> Result<(), TrainError> {
    let is_free = match fs::read_dir(to) {
        Ok(mut entries) => entries.next().is_none(),
        Err(_) => fs::symlink_metadata(to).is_err(),
    };
    match is_free {
        true => Ok(()),
        false => Err(TrainError::Config(format!(
            "{} exists already and is not an empty directory; choose a new one",
            to.display()
        ))),
    }
}

/// Returns the checkpoint with the highest number, else the last of the list. Each one must exist
/// and be listed once.
fn newest(checkpoints: &[PathBuf]) -> Result<PathBuf, TrainError> {
    let mut seen: Vec<(PathBuf, &PathBuf)> = Vec::new();
    for path in checkpoints {
        if !path.join(WEIGHTS).is_file() {
            return Err(TrainError::Config(no_checkpoint(path)));
        }
        // `best` and `last` are links.
        let real = fs::canonicalize(path).map_err(TrainError::io("looking for checkpoints"))?;
        if let Some((_, twin)) = seen.iter().find(|(other, _)| *other == real) {
            let (path, twin) = (path.display(), twin.display());
            return Err(TrainError::Config(format!("{twin} and {path} are the same checkpoint; list it once")));
        }
        seen.push((real, path));
    }
    let step = |real: &Path| real.file_name()?.to_str().and_then(step_of);
    let newest = seen.into_iter().max_by_key(|(real, _)| step(real));
    newest.map(|(real, _)| real).ok_or_else(|| TrainError::Config("list the checkpoints to average".to_owned()))
}

fn no_checkpoint(path: &Path) -> String {
    let there = path.display();
    match Checkpoints::at(path).newest() {
        Err(error) => error.to_string(),
        Ok(Some(newest)) => format!(
            "{there} is a run: add --last N to average its newest checkpoints, or list them, such as {}",
            newest.display()
        ),
        Ok(None) if path.exists() => format!("there is no {WEIGHTS} in {there}, so it is not a checkpoint"),
        Ok(None) => format!("there is no checkpoint {there}"),
    }
}

/// Computes the mean. Holds one checkpoint in memory at a time, plus the sums. These are f64, so
/// their rounding error is far below that of the weights.
fn mean(checkpoints: &[PathBuf]) -> Result<(Layout, Vec<f32>), TrainError> {
    let mut layout = Layout::new([])?;
    let mut sums: Vec<f64> = Vec::new();
    for (number, path) in checkpoints.iter().enumerate() {
        let file = path.join(WEIGHTS);
        let tensors = read_tensors(&file).map_err(TrainError::checkpoint(path))?;
        if number == 0 {
            layout = Layout::new(tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())))?;
            sums = vec![0.0; layout.len()];
        }
        if let Some(difference) = difference(&layout, &checkpoints[0].join(WEIGHTS), &tensors, &file) {
            let text = format!("{difference}; only checkpoints of the same model can be averaged");
            return Err(TrainError::Config(text));
        }
        // Both are sorted by name.
        let values = tensors.iter().flat_map(|tensor| &tensor.values);
        sums.iter_mut().zip(values).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    let count = checkpoints.len() as f64;
    Ok((layout, sums.into_iter().map(|sum| (sum / count) as f32).collect()))
}

/// Describes the first difference between the tensors of two files. `layout` is that of the first.
fn difference(layout: &Layout, first: &Path, tensors: &[NamedTensor], second: &Path) -> Option<String> {
    let (first, second) = (first.display(), second.display());
    let missing = layout.entries().iter().find(|entry| !tensors.iter().any(|tensor| tensor.name == entry.name));
    if let Some(entry) = missing {
        return Some(format!("{first} has the tensor {}, but {second} does not", entry.name));
    }
    tensors.iter().find_map(|NamedTensor { name, shape, .. }| match layout.get(name) {
        None => Some(format!("{second} has the tensor {name}, but {first} does not")),
        Some(entry) if entry.shape != *shape => {
            Some(format!("{name} is {:?} in {first}, but {shape:?} in {second}", entry.shape))
        }
        Some(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::weights::read_all;

    fn layout(tensors: &[(&str, &[usize])]) -> Layout {
        Layout::new(tensors.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec()))).unwrap()
    }

    /// A checkpoint of a model with `values`. The content of its `config.json` is the step.
    fn checkpoint(run: &Path, step: u64, tensors: &[(&str, &[usize])], values: &[f32]) -> PathBuf {
        let dir = Checkpoints::at(run).path(step);
        fs::create_dir_all(dir.join("trainer")).unwrap();
        write_flat(&dir.join(WEIGHTS), &layout(tensors), values).unwrap();
        fs::write(dir.join("config.toml"), "").unwrap();
        fs::write(dir.join("config.json"), step.to_string()).unwrap();
        dir
    }

    const MODEL: [(&str, &[usize]); 2] = [("b", &[2]), ("a", &[1, 1])];

    #[test]
    fn writes_the_mean_and_the_files_of_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let steps = [9, 10, 100].map(|step| {
            let value = step as f32;
            checkpoint(dir.path(), step, &MODEL, &[value, -1.0, 1e-8 * value])
        });
        let to = dir.path().join("deep/mean");
        let given = [steps[2].clone(), steps[0].clone(), steps[1].clone()];
        let averaged = average(&given, &to).unwrap();
        assert!(averaged.newest.ends_with("step-100"), "{averaged:?}");
        assert_eq!(averaged.files, ["config.json", WEIGHTS]);
        assert_eq!(fs::read_to_string(to.join("config.json")).unwrap(), "100");
        let same = |name: &str| Some(name.to_owned());
        let tiny = [100.0f32, 9.0, 10.0].map(|value| f64::from(1e-8 * value)).iter().sum::<f64>() / 3.0;
        let mean = read_all(&to, &layout(&MODEL), &same).unwrap();
        assert_eq!(mean, [119.0 / 3.0, -1.0, tiny as f32]);
        assert_eq!(fs::read_dir(dir.path().join("deep")).unwrap().count(), 1, "temporary files are left");

        // An empty target directory is accepted, a non-empty one is not.
        fs::create_dir(dir.path().join("empty")).unwrap();
        average(&given[1..2], &dir.path().join("empty")).unwrap();
        let refusal = average(&given, &dir.path().join("empty")).unwrap_err();
        assert!(refusal.is_usage() && refusal.to_string().contains("empty exists already"), "{refusal}");
        // The mean can be averaged with others again.
        average(&[to, steps[0].clone()], &dir.path().join("again")).unwrap();
    }

    #[test]
    fn the_newest_checkpoints_of_a_run() {
        let dir = tempfile::tempdir().unwrap();
        for step in [9, 10, 100] {
            checkpoint(dir.path(), step, &MODEL, &[0.0; 3]);
        }
        let steps = |count| -> Vec<PathBuf> { last(dir.path(), count).unwrap() };
        assert_eq!(steps(2), [10, 100].map(|step| Checkpoints::at(dir.path()).path(step)));
        assert_eq!(steps(3).len(), 3);
        for (refusal, part) in [
            (last(dir.path(), 4).unwrap_err(), "has only 3 intact checkpoints, not 4"),
            (last(&dir.path().join("checkpoints/step-9"), 1).unwrap_err(), "pass a run directory"),
        ] {
            assert!(refusal.is_usage() && refusal.to_string().contains(part), "{refusal}");
        }
    }

    #[test]
    fn checkpoints_of_different_models_are_refused_without_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        let first = checkpoint(dir.path(), 1, &MODEL, &[0.0; 3]);
        let shape = checkpoint(dir.path(), 2, &[("b", &[1, 2]), ("a", &[1, 1])], &[0.0; 3]);
        let fewer = checkpoint(dir.path(), 3, &[("b", &[2])], &[0.0; 2]);
        let more = checkpoint(dir.path(), 4, &[("b", &[2]), ("a", &[1, 1]), ("c", &[1])], &[0.0; 4]);
        let to = dir.path().join("mean");
        let twice = dir.path().join("checkpoints/../checkpoints/step-1");
        for (given, parts) in [
            (vec![first.clone(), shape], &["b is [2] in", "step-1", "[1, 2] in", "step-2"][..]),
            (
                vec![first.clone(), fewer],
                &["step-1/model.safetensors has the tensor a", "step-3/model.safetensors does not"],
            ),
            (
                vec![first.clone(), more],
                &["step-4/model.safetensors has the tensor c", "step-1/model.safetensors does not"],
            ),
            (vec![first.clone(), twice], &["are the same checkpoint"]),
            (vec![first.clone(), dir.path().join("nowhere")], &["there is no checkpoint", "nowhere"]),
            (vec![first.clone(), dir.path().join("checkpoints")], &["there is no model.safetensors in"]),
            (vec![dir.path().to_owned()], &["is a run", "--last", "step-4"]),
            (Vec::new(), &["list the checkpoints"]),
        ] {
            let refusal = average(&given, &to).unwrap_err();
            assert!(refusal.is_usage(), "{refusal}");
            for part in parts {
                assert!(refusal.to_string().contains(part), "{refusal}");
            }
        }
        fs::write(first.join(WEIGHTS), "damaged").unwrap();
        let damaged = average(&[first], &to).unwrap_err();
        assert!(!damaged.is_usage() && damaged.to_string().contains("is damaged"), "{damaged}");
        assert!(!to.exists());
    }
}
