//! What `generate` and `predict` share: where results go, progress, and how a signal stops them.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use hetseq_fs::AtomicFile;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Writes to a file, or to standard output without a path. The file appears only if `write`
/// succeeds.
pub(crate) fn write_to(
    path: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let Some(path) = path else { return write(&mut std::io::BufWriter::new(std::io::stdout().lock())) };
    let mut out = AtomicFile::create(path).with_context(|| format!("writing {}", path.display()))?;
    let code = write(&mut out)?;
    if code == ExitCode::SUCCESS {
        out.commit().with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(code)
}

/// A flag that Ctrl-C and SIGTERM set.
pub(crate) fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stopped.clone())?;
    }
    Ok(stopped)
}

/// A progress bar, which is visible only on a terminal. `total` is given if it is known.
pub(crate) fn progress(total: Option<u64>, what: &str) -> anyhow::Result<ProgressBar> {
    let of_total = total.map_or("", |_| " of {human_len}");
    let style = format!("{{spinner}} {{human_pos}}{of_total} {what}, {{per_sec}}, {{elapsed}}");
    let style = ProgressStyle::with_template(&style)?;
    Ok(ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr()).with_style(style))
}
