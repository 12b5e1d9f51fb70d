//! `hetseq stop`: asks the run in a directory to save and stop, and waits until it has. The request is
//! a file in that directory (`hetseq_train::StopFile`), so it works from every machine that sees it.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use hetseq_metrics::{Event, thousands};
use hetseq_train::{Checkpoints, StopFile};

use crate::output::{eprint_line, print_line};

/// Stop a run on all its machines, with a checkpoint
///
/// From any machine that sees the run directory of rank 0. All ranks finish the update in progress,
/// save a checkpoint and exit with code 75, as after Ctrl-C. The same command as before resumes the
/// run.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  hetseq stop runs/bert")]
pub(crate) struct StopArgs {
    /// Run directory
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Give up if the run has not stopped after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// After this without an answer, a message says that it may take longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The end of `metrics.jsonl` in which the last event is looked for.
const TAIL_BYTES: u64 = 1 << 16;

pub(crate) fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    let dir = &args.run;
    let mut request = StopFile::write(dir)?;
    if let Some(end) = end_of(dir) {
        request.withdraw();
        print_line(&format!("the run in {} has ended already: {end}", dir.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let mut has_hinted = false;
    let is_late = || started.elapsed() >= Duration::from_secs(args.timeout);
    while !request.is_taken()? {
        if is_late() {
            request.withdraw();
            bail!(
                "no process has taken the request within {} s: nothing seems to train in {}, or its machine hangs. If this is \
                 another machine's copy of the directory, run the command there",
                args.timeout,
                dir.display()
            );
        }
        if started.elapsed() >= PATIENCE && !std::mem::replace(&mut has_hinted, true) {
            eprint_line("the run has not taken the request yet; network file systems may need up to a minute");
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    loop {
        if let Some(end) = end_of(dir) {
            print_line(&end);
            if let Some(path) = Checkpoints::at(dir).newest()? {
                print_line(&path.display().to_string());
            }
            return Ok(ExitCode::SUCCESS);
        }
        if is_late() {
            bail!("the run has taken the request, but has not stopped within {} s: see its log", args.timeout);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// How the run in `dir` has ended; none if it has not.
fn end_of(dir: &Path) -> Option<String> {
    let mut file = fs_err::File::open(dir.join("metrics.jsonl")).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).ok()?;
    last_end(&tail)
}

fn last_end(lines: &[u8]) -> Option<String> {
    let events = lines.split(|&byte| byte == b'\n').rev();
    match events.filter_map(|line| serde_json::from_slice::<Event>(line).ok()).next()? {
        Event::End { update, outcome, .. } => Some(format!("{outcome} after update {}", thousands(update))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::last_end;

    #[test]
    fn only_an_end_at_the_end_counts() {
        let end = r#"{"event":"end","update":1412,"outcome":"stopped","seconds":9.0}"#;
        let warning = r#"{"event":"warning","message":"x"}"#;
        let last = |lines: &[&str]| last_end(lines.join("\n").as_bytes());
        assert_eq!(last(&["t\":1}", warning, end, ""]).as_deref(), Some("stopped after update 1,412"));
        assert_eq!(last(&[end, warning]), None);
        assert_eq!(last(&[]), None);
    }
}
