//! Progress of a preparation, on standard error or not at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hetseq_data::DataError;
use hetseq_data::prep::{PrepObserver, PrepOutcome};
use hetseq_data::source::corpus::CorpusManifest;
use hetseq_metrics::duration;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::eprint_line;

/// The time between two lines if there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// A progress bar on a terminal, else a line every [`LINE_INTERVAL`]. Also stops the preparation,
/// in a state from which it can resume, on a signal.
pub(super) struct PrepProgress {
    bar: ProgressBar,
    is_stopped: Arc<AtomicBool>,
    state: Mutex<State>,
}

struct State {
    what: String,
    total: u64,
    last_line: Instant,
}

/// The result of a preparation.
pub(super) struct Prepared<C> {
    pub(super) manifest: CorpusManifest<C>,
    /// The directory was already complete.
    pub(super) was_there: bool,
    pub(super) seconds: f64,
}

impl<C> Prepared<C> {
    /// The size of all shards.
    pub(super) fn bytes(&self) -> u64 {
        self.manifest.shards.iter().map(|shard| shard.bytes).sum()
    }

    /// How long it took, as the end of a sentence.
    pub(super) fn took(&self) -> String {
        match self.was_there {
            true => "; it was already complete".to_owned(),
            false => format!(", in {}", duration(self.seconds)),
        }
    }
}

/// Runs a preparation with progress. Returns `None` if a signal stopped it, after saying so.
pub(super) fn with_progress<C>(
    prepare: impl FnOnce(&PrepProgress) -> Result<PrepOutcome<C>, DataError>,
) -> anyhow::Result<Option<Prepared<C>>> {
    let (progress, started) = (PrepProgress::new()?, Instant::now());
    let outcome = prepare(&progress);
    // Also after an error, whose message would otherwise follow the rest of the bar.
    progress.end();
    match outcome? {
        PrepOutcome::Finished { manifest, was_there } => {
            Ok(Some(Prepared { manifest, was_there, seconds: started.elapsed().as_secs_f64() }))
        }
        PrepOutcome::Stopped => {
            eprint_line("stopped; run the same command again to resume");
            Ok(None)
        }
    }
}

impl PrepProgress {
    fn new() -> anyhow::Result<Self> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGUSR1] {
            // A second signal ends the process at once.
            signal_hook::flag::register_conditional_default(signal, is_stopped.clone())?;
            signal_hook::flag::register(signal, is_stopped.clone())?;
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg:24} {wide_bar} {bytes:>10} of {total_bytes} {eta:>6}")?;
        bar.set_style(style);
        let state = Mutex::new(State { what: String::new(), total: 0, last_line: Instant::now() });
        Ok(PrepProgress { bar, is_stopped, state })
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn print_without_bar(&self, line: &str) {
        if self.bar.is_hidden() {
            eprint_line(line);
        }
    }
}

impl PrepObserver for PrepProgress {
    fn begin(&self, what: &str, bytes: u64) {
        self.bar.set_message(what.to_owned());
        self.bar.set_length(bytes);
        self.bar.set_position(0);
        self.bar.reset_eta();
        self.print_without_bar(what);
        if let Ok(mut state) = self.state.lock() {
            *state = State { what: what.to_owned(), total: bytes, last_line: Instant::now() };
        }
    }

    fn progress(&self, bytes: u64) {
        self.bar.set_position(bytes);
        if let Ok(mut state) = self.state.lock()
            && state.last_line.elapsed() >= LINE_INTERVAL
        {
            state.last_line = Instant::now();
            let mb = |bytes: u64| bytes as f64 / 1e6;
            self.print_without_bar(&format!("{}: {:.0} of {:.0} MB", state.what, mb(bytes), mb(state.total)));
        }
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }
}

/// Shows no progress.
pub(crate) struct Quiet;

impl PrepObserver for Quiet {
    fn begin(&self, _what: &str, _bytes: u64) {}

    fn progress(&self, _bytes: u64) {}

    fn is_stopped(&self) -> bool {
        false
    }
}
