//! `hetseq prep`: prepares and checks training data.

pub(crate) mod args;
mod bert;
mod progress;
mod translate;
mod verify;

use std::path::Path;
use std::process::ExitCode;

use hetseq_data::source::{digits, folder, idx};

use crate::args::UsageError;
use crate::output::print_line;
pub(crate) use args::PrepArgs;
use args::{PrepDigitsArgs, PrepImageFolderArgs};

pub(crate) fn prep(args: &PrepArgs) -> anyhow::Result<ExitCode> {
    match args {
        PrepArgs::Digits(PrepDigitsArgs { to, train, test, seed }) => {
            let dir = to.dir();
            keep_other_images(dir, *train as usize, *test as usize, *seed)?;
            write_digits(dir, *train as usize, *test as usize, *seed)?;
            print_line(&format!("{}: {train} training and {test} test images of drawn digits", dir.display()));
        }
        PrepArgs::ImageFolder(PrepImageFolderArgs { to, train, valid, seed }) => {
            let dir = to.dir();
            // The files of an earlier call would stay and mix with the new ones.
            if folder::has_train_folder(dir) {
                return Err(UsageError(format!(
                    "{} already has a folder `train`; choose a new directory",
                    dir.display()
                ))
                .into());
            }
            folder::draw::write(&dir.join("valid"), !seed, *valid as usize)?;
            folder::draw::write(&dir.join("train"), *seed, *train as usize)?;
            print_line(&format!("{}: {train} training and {valid} validation images in class folders", dir.display()));
        }
        PrepArgs::Bert(args) => return bert::prep(args),
        PrepArgs::Translate(args) => return translate::prep(args),
        PrepArgs::Verify(args) => return verify::verify(args),
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) use progress::Quiet;
pub(crate) use translate::PrepTranslateArgs;

/// The number of images and the seed of each split. The test images are drawn with another seed.
fn splits(train: usize, test: usize, seed: u64) -> [(&'static str, usize, u64); 2] {
    [("train", train, seed), ("t10k", test, !seed)]
}

/// Refuses a directory that has other images, such as those of MNIST: they would be overwritten.
fn keep_other_images(dir: &Path, train: usize, test: usize, seed: u64) -> anyhow::Result<()> {
    for (split, count, seed) in splits(train, test, seed) {
        let [images, labels] =
            ["images-idx3-ubyte", "labels-idx1-ubyte"].map(|kind| dir.join(format!("{split}-{kind}")));
        let files = [images, labels].map(|path| [path.with_extension("gz"), path]);
        if !files.iter().flatten().any(|path| path.exists()) {
            continue;
        }
        let drawn = digits::draw(seed, count, 28)?;
        let is_other = |path: &Path, is_same: bool| path.exists() && !is_same;
        let [images, labels] = files;
        let images =
            images.iter().find(|path| is_other(path, idx::read_images(path).is_ok_and(|old| old == drawn.images)));
        let labels =
            labels.iter().find(|path| is_other(path, idx::read_labels(path).is_ok_and(|old| old == drawn.labels)));
        if let Some(path) = images.or(labels) {
            let message =
                format!("{} has other data already; choose another --out, or remove it first", path.display());
            return Err(UsageError(message).into());
        }
    }
    Ok(())
}

/// Writes drawn digits as idx files.
pub(crate) fn write_digits(dir: &Path, train: usize, test: usize, seed: u64) -> anyhow::Result<()> {
    fs_err::create_dir_all(dir)?;
    for (split, count, seed) in splits(train, test, seed) {
        let drawn = digits::draw(seed, count, 28)?;
        idx::write_images(&dir.join(format!("{split}-images-idx3-ubyte.gz")), &drawn.images, true)?;
        idx::write_labels(&dir.join(format!("{split}-labels-idx1-ubyte.gz")), &drawn.labels, true)?;
    }
    Ok(())
}
