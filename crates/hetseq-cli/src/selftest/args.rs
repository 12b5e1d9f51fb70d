//! Command-line arguments of `hetseq selftest`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use hetseq_train::bench::TrialFault;

/// Test the devices of this machine: exactness, training, speed and memory
///
/// Compares each device with one CPU core: single operations, the gradients of every built-in
/// model, and the losses of a short training, also together with the CPU. Data is generated.
/// Without a GPU it tests the CPU. Writes a report that can be attached to an issue. Ends with exit
/// code 1 if a check failed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq selftest                                  every GPU, else the CPU
  hetseq selftest --devices gpu:0,cpu              these devices, one after the other
  hetseq selftest --devices gpu:0 --only training  some of the checks")]
pub(crate) struct SelftestArgs {
    /// Devices to test, as in run.devices; each is tested separately (default: every GPU, else cpu)
    #[arg(long, value_name = "NAMES")]
    pub(crate) devices: Option<String>,
    /// File of the report (default: hetseq-selftest-HOST-DATE.md in the current directory)
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Run only checks whose name contains this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Vec<String>,
    /// Seconds after which a check that has not ended counts as failed
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = crate::args::at_least_one())]
    pub(crate) timeout: u32,
    /// Passed to the process that tests a device
    #[arg(long, hide = true, requires = "data")]
    pub(crate) examine: Option<String>,
    /// Directory of the generated data, for that process
    #[arg(long, hide = true)]
    pub(crate) data: Option<PathBuf>,
    /// First check to run, for that process
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) first: usize,
    /// A fault to emulate, for tests
    #[arg(long, hide = true)]
    pub(crate) emulate: Option<EmulatedFault>,
}

/// A fault of the tested device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EmulatedFault {
    Wrong,
    NotFinite,
    Lost,
    /// The process ends as if the driver had crashed.
    Crash,
    /// The process does nothing any more.
    Hang,
}

impl EmulatedFault {
    /// The fault to emulate in a short training.
    pub(super) fn of_trial(self) -> Option<TrialFault> {
        match self {
            EmulatedFault::Wrong => Some(TrialFault::Wrong),
            EmulatedFault::NotFinite => Some(TrialFault::NotFinite),
            EmulatedFault::Lost => Some(TrialFault::Lost),
            EmulatedFault::Crash | EmulatedFault::Hang => None,
        }
    }

    /// Emulates a fault of the whole process.
    pub(super) fn strike(self) {
        match self {
            EmulatedFault::Crash => std::process::abort(),
            EmulatedFault::Hang => loop {
                std::thread::park();
            },
            _ => {}
        }
    }
}
