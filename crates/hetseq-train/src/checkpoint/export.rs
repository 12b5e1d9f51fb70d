//! Exports a checkpoint for other programs: the weights and the files needed to load them, without
//! the files that only a resume needs. Called by `hetseq export`.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;
use half::{bf16, f16};
use hetseq_kernels::Dtype;
use safetensors::tensor::{Dtype as FileDtype, SafeTensors};

use crate::checkpoint::weights;
use crate::checkpoint::{Checkpoints, WEIGHTS};
use crate::error::TrainError;
use hetseq_fs::sync_dir;

/// The result of an export: its source and the exported files.
#[derive(Debug)]
pub struct Exported {
    pub checkpoint: PathBuf,
    pub files: Vec<String>,
}

/// Entries of a checkpoint that are not exported.
const NOT_EXPORTED: [&str; 2] = ["trainer", "config.toml"];

/// Copies a checkpoint to the new directory `to`, which is complete or absent afterwards. `from` is
/// a checkpoint, or a run whose best intact checkpoint is used, else its newest.
pub fn export(from: &Path, to: &Path, dtype: Dtype) -> Result<Exported, TrainError> {
    let checkpoint = Checkpoints::resolve(from)?;
    if fs::symlink_metadata(to).is_ok() {
        return Err(TrainError::Config(format!("{} exists already; choose a new directory", to.display())));
    }
    weights::check(&checkpoint).map_err(TrainError::checkpoint(&checkpoint))?;
    let doing = format!("exporting {} to {}", checkpoint.display(), to.display());
    let files = create_dir_atomically(to, |dir| {
        copy_files(&checkpoint, dir, |weights| match dtype {
            Dtype::F32 => fs::copy(checkpoint.join(WEIGHTS), weights).map(drop),
            _ => convert(&checkpoint.join(WEIGHTS), weights, dtype),
        })
    });
    Ok(Exported { files: files.map_err(TrainError::io(doing))?, checkpoint })
}

/// Creates the directory `to`, which is complete or absent afterwards: `write` fills a directory
/// with a temporary name, which is renamed once everything is on disk.
pub(crate) fn create_dir_atomically<T>(to: &Path, write: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let temporary = to.with_file_name(format!(".tmp-{}", to.file_name().unwrap_or_default().to_string_lossy()));
    let create = || {
        if temporary.exists() {
            fs::remove_dir_all(&temporary)?;
        }
        hetseq_fs::create_dir_all(&temporary)?;
        let written = write(&temporary)?;
        sync_dir(&temporary)?;
        fs::rename(&temporary, to)?;
        sync_dir(to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
        Ok(written)
    };
    create().inspect_err(|_| _ = fs::remove_dir_all(&temporary))
}

/// Copies the files that other programs load from the checkpoint at `from`, except the weights,
/// which `write_weights` writes. Returns the file names.
pub(crate) fn copy_files(
    from: &Path,
    to: &Path,
    write_weights: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = fs::read_dir(from)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<_>>()?;
    names.retain(|name| !NOT_EXPORTED.contains(&name.as_str()));
    names.sort_unstable();
    for name in &names {
        match name == WEIGHTS {
            true => write_weights(&to.join(name))?,
            false => _ = fs::copy(from.join(name), to.join(name))?,
        }
        fs::File::open(to.join(name))?.sync_all()?;
    }
    Ok(names)
}

/// Writes the f32 weights of `from` in half precision.
fn convert(from: &Path, to: &Path, dtype: Dtype) -> io::Result<()> {
    let failed = |error: safetensors::SafeTensorError| io::Error::other(format!("{}: {error}", from.display()));
    let refused = |reason: String| Err(io::Error::other(format!("{}: {reason}", from.display())));
    let bytes = fs::read(from)?;
    let file = SafeTensors::deserialize(&bytes).map_err(failed)?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(failed)?;
    let is_f16 = dtype == Dtype::F16;
    let stored = if is_f16 { FileDtype::F16 } else { FileDtype::BF16 };
    let rounded = |bytes: [u8; 4]| {
        let value = f32::from_le_bytes(bytes);
        if is_f16 { f16::from_f32(value).to_le_bytes() } else { bf16::from_f32(value).to_le_bytes() }
    };
    let overflows = |half: [u8; 2]| match is_f16 {
        true => !f16::from_le_bytes(half).is_finite(),
        false => !bf16::from_le_bytes(half).is_finite(),
    };
    let mut halves = Vec::new();
    for (name, tensor) in file.iter() {
        if tensor.dtype() != FileDtype::F32 {
            return refused(format!("{name} is {:?}; only F32 can be converted", tensor.dtype()));
        }
        let data: Vec<u8> = tensor.data().as_chunks::<4>().0.iter().flat_map(|&bytes| rounded(bytes)).collect();
        // All weights are finite, so a non-finite result exceeds the largest value of the type.
        if data.as_chunks::<2>().0.iter().any(|&half| overflows(half)) {
            return refused(format!("{name} has values too large for {stored:?}; export it as f32 or bf16"));
        }
        halves.push((name, tensor.shape().to_vec(), data));
    }
    let views = halves.iter().map(|(name, shape, data)| {
        safetensors::tensor::TensorView::new(stored, shape.clone(), data).map(|view| (name, view))
    });
    let views = views.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let content = safetensors::serialize(views, metadata.metadata().clone()).map_err(failed)?;
    fs::write(to, content)
}

#[cfg(test)]
mod tests {
    use hetseq_optim::Layout;

    use super::*;
    use crate::checkpoint::write_flat;

    fn layout() -> Layout {
        Layout::new([("a".to_owned(), vec![2, 2]), ("b".to_owned(), vec![1])]).unwrap()
    }

    /// A run with one checkpoint.
    fn run(dir: &Path) -> PathBuf {
        let step = dir.join("run/checkpoints/step-7");
        fs::create_dir_all(step.join("trainer")).unwrap();
        write_flat(&step.join(WEIGHTS), &layout(), &[1.0, -2.0, 1e-3, 0.1, 5.0]).unwrap();
        fs::write(step.join("config.toml"), "").unwrap();
        fs::write(step.join("config.json"), "{}").unwrap();
        dir.join("run")
    }

    #[test]
    fn weights_and_the_files_next_to_them_are_exported() {
        let dir = tempfile::tempdir().unwrap();
        let (run, to) = (run(dir.path()), dir.path().join("model"));
        let exported = export(&run, &to, Dtype::F32).unwrap();
        assert_eq!(exported.files, ["config.json", "model.safetensors"]);
        assert!(exported.checkpoint.ends_with("step-7"));
        let same = |name: &str| Some(name.to_owned());
        assert_eq!(weights::read_all(&to, &layout(), &same).unwrap(), [1.0, -2.0, 1e-3, 0.1, 5.0]);
        let refusal = export(&run, &to, Dtype::F32).unwrap_err();
        assert!(refusal.is_usage() && refusal.to_string().contains("exists already"), "{refusal}");
        // A checkpoint path works too; no temporary files are left.
        export(&exported.checkpoint, &dir.path().join("other"), Dtype::F32).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn half_precision_export_rounds_the_weights() {
        let dir = tempfile::tempdir().unwrap();
        let run = run(dir.path());
        let same = |name: &str| Some(name.to_owned());
        for (precision, tenth) in
            [(Dtype::F16, f16::from_f32(0.1).to_f32()), (Dtype::Bf16, bf16::from_f32(0.1).to_f32())]
        {
            let to = dir.path().join(format!("{precision:?}"));
            export(&run, &to, precision).unwrap();
            let values = weights::read_all(&to, &layout(), &same).unwrap();
            assert_eq!((values[0], values[1], values[3], values[4]), (1.0, -2.0, tenth, 5.0));
            let bytes = fs::read(to.join(WEIGHTS)).unwrap();
            let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
            assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        }
    }

    #[test]
    fn damaged_empty_or_non_finite_models_are_refused_without_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        let (run, to) = (run(dir.path()), dir.path().join("model"));
        let file = run.join("checkpoints/step-7").join(WEIGHTS);
        let whole = fs::read(&file).unwrap();
        let empty = Layout::new([]).unwrap();
        let refuse = |dtype: Dtype, part: &str| {
            let refusal = export(&run, &to, dtype).unwrap_err();
            assert!(!refusal.is_usage() && refusal.to_string().contains(part), "{refusal}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{part}");
        };
        write_flat(&file, &empty, &[]).unwrap();
        refuse(Dtype::F32, "holds no tensors");
        for length in [0, whole.len() - 1] {
            fs::write(&file, &whole[..length]).unwrap();
            refuse(Dtype::F32, "is damaged");
        }
        write_flat(&file, &layout(), &[1.0, 2.0, 3.0, 4.0, f32::NAN]).unwrap();
        refuse(Dtype::F32, "b is NaN at element 0");
        write_flat(&file, &layout(), &[1.0, 2.0, 3.0, 1e6, 5.0]).unwrap();
        refuse(Dtype::F16, "a has values too large for F16");
        export(&run, &to, Dtype::Bf16).unwrap();
    }

    #[test]
    fn a_missing_checkpoint_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let refusal = export(dir.path(), &dir.path().join("x"), Dtype::F32).unwrap_err();
        assert!(refusal.is_usage() && refusal.to_string().contains("there is no checkpoint in"), "{refusal}");
    }
}
