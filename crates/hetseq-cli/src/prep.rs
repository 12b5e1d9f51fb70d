//! `hetseq prep`.

mod bert;
mod verify;

use std::path::Path;
use std::process::ExitCode;

use hetseq_data::source::{digits, idx};

use crate::args::{PrepArgs, PrepDigitsArgs};
use crate::output::print_line;

pub(crate) fn prep(args: &PrepArgs) -> anyhow::Result<ExitCode> {
    match args {
        PrepArgs::Digits(PrepDigitsArgs { dir, train, test, seed }) => {
            write_digits(dir, *train as usize, *test as usize, *seed)?;
            print_line(&format!("{}: {train} training and {test} test images of drawn digits", dir.display()));
            Ok(ExitCode::SUCCESS)
        }
        PrepArgs::Bert(args) => bert::prep(args),
        PrepArgs::Verify(args) => verify::verify(args),
    }
}

pub(crate) use bert::Quiet;

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
