//! `hetseq report`: where the time of a run went. Reads `metrics.jsonl`; `hetseq_metrics::report`
//! analyses the events, `text` formats the report.

mod text;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use hetseq_metrics::report::Settings;
use hetseq_metrics::{Event, Report};

use crate::args::UsageError;
use crate::output::{eprint_line, print_line};

/// Show where the time of a run went and what to improve first
///
/// For each device: its share, its speed, and how long it computed or was idle. For each rank: the
/// time it computed, exchanged gradients, waited for other ranks or for samples, and spent on the
/// host. Also how well updates were predicted, and which ranks were lost. The times of all resumes
/// are added up. The run may still be running.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq report runs/mnist
  hetseq report runs/mnist --json | jq .spent")]
pub(crate) struct ReportArgs {
    /// Run directory, its metrics.jsonl, or the TOML file of the run
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn report(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let run = run_of_config(&args.run).unwrap_or_else(|| args.run.clone());
    let path = if run.is_dir() { run.join("metrics.jsonl") } else { run.clone() };
    if !path.is_file() {
        let mut message = not_found(&run);
        if run != args.run {
            message = format!("the run of {} has not begun: {message}", args.run.display());
        }
        return Err(UsageError(message).into());
    }
    let mut unreadable = 0u64;
    let report = {
        let mut lines = BufReader::new(fs_err::File::open(&path)?).split(b'\n');
        let mut failed = None;
        let events = std::iter::from_fn(|| {
            loop {
                match lines.next()? {
                    Ok(line) if line.trim_ascii().is_empty() => {}
                    Ok(line) => match serde_json::from_slice::<Event>(&line) {
                        Ok(event) => return Some(event),
                        Err(_) => unreadable += 1,
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
        let reason = match unreadable {
            0 => "no update is complete yet".to_owned(),
            n => format!("none of its {n} lines is an update that this version can read"),
        };
        return Err(UsageError(format!("{} has no updates: {reason}", path.display())).into());
    };
    if unreadable > 0 {
        eprint_line(&format!("{}: skipped {unreadable} lines that this version cannot read", path.display()));
    }
    if args.json {
        print_line(&serde_json::to_string(&report)?);
    } else {
        text::lines(&report).iter().for_each(|line| print_line(line));
    }
    Ok(ExitCode::SUCCESS)
}

/// The run directory that a config names, if the argument is a config.
fn run_of_config(path: &Path) -> Option<PathBuf> {
    if path.extension()? != "toml" {
        return None;
    }
    let config: toml::Table = fs_err::read_to_string(path).ok()?.parse().ok()?;
    let dir = config.get("run").and_then(|run| run.get("dir")?.as_str()).map(hetseq_fs::expand_home);
    Some(dir.map_or_else(|| Path::new("runs").join(path.file_stem().unwrap_or_default()), PathBuf::from))
}

/// Settings from the config next to the metrics, if there is one. They only affect the advice.
fn settings(metrics: &Path) -> Settings {
    let text = fs_err::read_to_string(metrics.with_file_name("config.toml")).unwrap_or_default();
    let config: toml::Table = text.parse().unwrap_or_default();
    let value = |section: &str, key: &str| config.get(section)?.get(key)?.as_str();
    Settings {
        // `wire` is the name that older versions wrote.
        bf16_wire: value("comm", "wire_dtype").or(value("comm", "wire")) == Some("bf16"),
        split_by_hand: value("batch", "split").is_some_and(|split| split != "measured"),
    }
}

/// The message for a missing run, with the most similar name in the same directory.
fn not_found(run: &Path) -> String {
    if run.is_dir() {
        return format!(
            "{} has no metrics.jsonl: it is not a run directory, or nothing was trained there yet (rank 0 writes the file)",
            run.display()
        );
    }
    let name = run.file_name().unwrap_or_default().to_string_lossy();
    let parent = run.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let siblings = fs_err::read_dir(parent).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let runs = siblings.filter(|path| path.join("metrics.jsonl").is_file());
    let similarity = |path: &Path| {
        strsim::normalized_damerau_levenshtein(&name, &path.file_name().unwrap_or_default().to_string_lossy())
    };
    let nearest = runs.map(|path| (similarity(&path), path)).max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest.filter(|(similarity, _)| *similarity >= 0.4) {
        Some((_, path)) => format!("there is no run at {}; did you mean {}?", run.display(), path.display()),
        None => format!("there is no run at {}; pass the directory of one", run.display()),
    }
}
