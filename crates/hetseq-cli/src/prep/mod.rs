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

/// Writes drawn digits as idx files. The test images are drawn with another seed.
pub(crate) fn write_digits(dir: &Path, train: usize, test: usize, seed: u64) -> anyhow::Result<()> {
    fs_err::create_dir_all(dir)?;
    for (split, count, seed) in [("train", train, seed), ("t10k", test, !seed)] {
        let drawn = digits::draw(seed, count, 28)?;
        idx::write_images(&dir.join(format!("{split}-images-idx3-ubyte.gz")), &drawn.images, true)?;
        idx::write_labels(&dir.join(format!("{split}-labels-idx1-ubyte.gz")), &drawn.labels, true)?;
    }
    Ok(())
}
