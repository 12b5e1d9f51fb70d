//! `hetseq export`.

use std::process::ExitCode;

use hetseq_train::export::{Exported, Precision, export};

use crate::args::{ExportArgs, PrecisionArg};
use crate::output::{print_line, say};

pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let precision = match args.precision {
        PrecisionArg::F32 => Precision::F32,
        PrecisionArg::F16 => Precision::F16,
        PrecisionArg::Bf16 => Precision::Bf16,
    };
    let Exported { checkpoint, files } = export(&args.from, &args.to, precision)?;
    say(&format!("{} -> {}", checkpoint.display(), args.to.display()));
    for file in files {
        print_line(&args.to.join(file).display().to_string());
    }
    Ok(ExitCode::SUCCESS)
}
