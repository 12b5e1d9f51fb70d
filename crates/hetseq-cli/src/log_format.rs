//! How messages of `tracing` look: as the other lines on standard error, `warning: ...` and not
//! ` WARN hetseq_train::trainer: ...`. Set up by `main`.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use hetseq_metrics::terminal::LogLines;

/// `--verbose` shows the debug messages of this program only, not those of its dependencies.
/// `--quiet` shows warnings and errors.
pub(crate) fn log_to_stderr(is_verbose: bool, is_quiet: bool) {
    let (own, others) = match (is_verbose, is_quiet) {
        (_, true) => (LevelFilter::WARN, LevelFilter::WARN),
        (true, _) => (LevelFilter::DEBUG, LevelFilter::INFO),
        _ => (LevelFilter::INFO, LevelFilter::INFO),
    };
    let levels = Targets::new().with_default(others).with_target("hetseq", own);
    let lines = tracing_subscriber::fmt::layer().with_writer(LogLines::default).event_format(PlainLines);
    tracing_subscriber::registry().with(lines.with_filter(levels)).init();
}

struct PlainLines;

impl<S, N> FormatEvent<S, N> for PlainLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        match *event.metadata().level() {
            Level::ERROR => out.write_str("error: ")?,
            Level::WARN => out.write_str("warning: ")?,
            _ => {}
        }
        // A message of a library does not say by itself what it is about.
        let target = event.metadata().target();
        if !target.starts_with("hetseq") {
            write!(out, "{target}: ")?;
        }
        context.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}
