//! `hetseq report`: where the time of a run went. Reads `metrics.jsonl`; what it means is in `hetseq_metrics::report`, what
//! it looks like in `text`.

mod text;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use hetseq_metrics::report::Settings;
use hetseq_metrics::{Event, Report};

use crate::args::UsageError;
use crate::output::{print_line, say};

/// Show where the time of a run went, how well it was predicted, and what to improve first.
///
/// For each worker: its share, its speed, and how long it computed or was idle. For each rank: computing, exchanging
/// gradients, waiting for others, for samples, and its own work. A run that was resumed is added up. It may still be
/// running.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// A run directory, or its metrics.jsonl
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn report(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let path = if args.run.is_dir() { args.run.join("metrics.jsonl") } else { args.run.clone() };
    if !path.is_file() {
        return Err(UsageError(not_there(&args.run)).into());
    }
    let mut foreign = 0u64;
    let report = {
        let mut lines = BufReader::new(fs_err::File::open(&path)?).split(b'\n');
        let mut failed = None;
        let events = std::iter::from_fn(|| {
            loop {
                match lines.next()? {
                    Ok(line) if line.trim_ascii().is_empty() => {}
                    Ok(line) => match serde_json::from_slice::<Event>(&line) {
                        Ok(event) => return Some(event),
                        Err(_) => foreign += 1,
                    },
                    Err(error) => {
                        failed = Some(error);
                        return None;
                    }
                }
            }
        });
        let report = Report::new(events, settings(&path));
        match failed {
            Some(error) => return Err(error.into()),
            None => report,
        }
    };
    let Some(report) = report else {
        let why = match foreign {
            0 => "no update is done yet".to_owned(),
            n => format!("none of its {n} lines is an update that this version can read"),
        };
        return Err(UsageError(format!("{} tells of no update: {why}", path.display())).into());
    };
    if foreign > 0 {
        say(&format!("{}: {foreign} lines are no events that this version can read; left out", path.display()));
    }
    if args.json {
        print_line(&serde_json::to_string(&report)?);
    } else {
        text::lines(&report).iter().for_each(|line| print_line(line));
    }
    Ok(ExitCode::SUCCESS)
}

/// From the config beside it, if there is one; it is only for advice.
fn settings(metrics: &Path) -> Settings {
    let text = fs_err::read_to_string(metrics.with_file_name("config.toml")).unwrap_or_default();
    let config: toml::Table = text.parse().unwrap_or_default();
    let value = |section: &str, key: &str| config.get(section)?.get(key)?.as_str();
    Settings {
        half_wire: value("comm", "wire") == Some("bf16"),
        split_by_hand: value("batch", "split").is_some_and(|split| split != "measured"),
    }
}

/// Names the nearest run beside it.
fn not_there(run: &Path) -> String {
    if run.is_dir() {
        return format!(
            "{} holds no metrics.jsonl: it is no run directory, or nothing was trained there yet (rank 0 writes it)",
            run.display()
        );
    }
    let wanted = run.file_name().unwrap_or_default().to_string_lossy();
    let parent = run.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let beside = fs_err::read_dir(parent).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let runs = beside.filter(|path| path.join("metrics.jsonl").is_file());
    let likeness = |path: &Path| {
        strsim::normalized_damerau_levenshtein(&wanted, &path.file_name().unwrap_or_default().to_string_lossy())
    };
    let nearest = runs.map(|path| (likeness(&path), path)).max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest.filter(|(likeness, _)| *likeness >= 0.4) {
        Some((_, path)) => format!("there is no run at {}; did you mean {}?", run.display(), path.display()),
        None => format!("there is no run at {}; say a run directory, such as runs/mnist", run.display()),
    }
}
