//! `hetseq prep`.

mod bert;
mod progress;
mod translate;
mod verify;

use std::path::Path;
use std::process::ExitCode;

use hetseq_data::source::{digits, folder, idx};

use crate::args::{PrepArgs, PrepDigitsArgs, PrepImageFolderArgs, UsageError};
use crate::output::print_line;

pub(crate) fn prep(args: &PrepArgs) -> anyhow::Result<ExitCode> {
    match args {
        PrepArgs::Digits(PrepDigitsArgs { dir, train, test, seed }) => {
            write_digits(dir, *train as usize, *test as usize, *seed)?;
            print_line(&format!("{}: {train} training and {test} test images of drawn digits", dir.display()));
        }
        PrepArgs::ImageFolder(PrepImageFolderArgs { dir, train, valid, seed }) => {
            // What an earlier call left would stay beside it, and nobody could tell which file is whose.
            if folder::is_here(dir) {
                return Err(UsageError(format!(
                    "{} has a folder `train` already; name a new directory",
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

/// Drawn digits as idx files; the test images are other drawings.
pub(crate) fn write_digits(dir: &Path, train: usize, test: usize, seed: u64) -> anyhow::Result<()> {
    fs_err::create_dir_all(dir)?;
    for (split, count, seed) in [("train", train, seed), ("t10k", test, !seed)] {
        let drawn = digits::draw(seed, count, 28)?;
        idx::write_images(&dir.join(format!("{split}-images-idx3-ubyte.gz")), &drawn.images, true)?;
        idx::write_labels(&dir.join(format!("{split}-labels-idx1-ubyte.gz")), &drawn.labels, true)?;
    }
    Ok(())
}
