//! The `hetseq` binary with the built-in tasks. A binary with custom tasks looks the same: see
//! `examples/custom-task`.

use std::process::ExitCode;

fn main() -> ExitCode {
    hetseq_cli::main(hetseq_train::Tasks::builtin())
}
