//! `hetseq export`: writes a model directory for other programs.

use std::process::ExitCode;

use hetseq_train::checkpoint::export::{Exported, export};

use crate::args::ExportArgs;
use crate::output::{eprint_line, print_line};

pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let to = args.to.dir();
    let Exported { checkpoint, files } = export(&args.from, to, args.precision)?;
    eprint_line(&format!("{} -> {}", checkpoint.display(), to.display()));
    for file in files {
        print_line(&to.join(file).display().to_string());
    }
    Ok(ExitCode::SUCCESS)
}
