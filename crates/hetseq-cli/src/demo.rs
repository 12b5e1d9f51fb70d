//! `hetseq demo`: processes of different speeds train one model on this machine, first split
//! evenly, then by measured speed. The final summary is read from the run's `metrics.jsonl`.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::bail;
use hetseq_metrics::events::sink::worker_table;
use hetseq_metrics::{Event, WorkerReport, median};

use crate::args::{DemoArgs, UsageError};
use crate::local_ranks::LocalRanks;
use crate::output::{eprint_line, print_line};
use crate::prep::write_digits;
use crate::stopped;

const EVEN_UPDATES: u64 = 40;
const UPDATES: u64 = 200;
/// Updates after a change of split that are left out of the medians: the first ones are not yet
/// representative.
const SETTLING: u64 = 8;
/// Far more than the demo takes.
const TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) fn demo(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    if args.slowdown.is_empty() || args.slowdown.iter().any(|factor| !(1.0..=100.0).contains(factor)) {
        return Err(UsageError("--slowdown: expected factors from 1 to 100, such as 1,2,4".to_owned()).into());
    }
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => std::env::temp_dir().join(format!("hetseq-demo-{}", std::process::id())),
    };
    fs_err::create_dir_all(&dir)?;
    let world = args.slowdown.len();
    eprint_line(&format!("drawing 8,000 digits in {}", dir.display()));
    write_digits(&dir.join("data"), 7000, 1000, 1)?;
    let config = write_config(&dir, &args.slowdown)?;
    let slowdown = args.slowdown.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    eprint_line(&match world {
        1 => format!("starting 1 worker, slowed down by {slowdown}: {UPDATES} updates"),
        _ => format!(
            "starting {world} workers, slowed down by {slowdown}: {EVEN_UPDATES} updates split evenly, then \
             {} by measured speed",
            UPDATES - EVEN_UPDATES
        ),
    });
    fs_err::create_dir_all(dir.join("logs"))?;
    let workers = LocalRanks::start(world, |rank, command| {
        command.arg("train").arg(&config).args(["--resume", "never", "--no-resume-hint"]);
        // Only rank 0 shows its progress on the terminal.
        if rank > 0 {
            let log = fs_err::File::create(dir.join(format!("logs/rank-{rank}.log")))?.into_parts().0;
            command.stdout(log.try_clone()?).stderr(log);
        }
        Ok(())
    })?;
    let codes: Vec<Option<i32>> = workers.wait(Some(TIMEOUT))?.iter().map(ExitStatus::code).collect();
    if codes.contains(&Some(75)) {
        // With one rank: the others are needed for the comparison only.
        eprint_line(&format!(
            "stopped. To continue the training on this machine alone: {} train {}",
            program(),
            quoted(&config)
        ));
        return Ok(stopped());
    }
    if codes.iter().any(|code| *code != Some(0)) {
        bail!("a worker failed (exit codes {codes:?}); see {}", dir.join("logs").display());
    }
    report(&dir, world)?;
    print_next_steps(&dir, &config);
    Ok(ExitCode::SUCCESS)
}

/// The name by which this program was called, and a path, for a shell.
fn program() -> String {
    std::env::args().next().map_or_else(|| "hetseq".to_owned(), |name| quoted(Path::new(&name)))
}

fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    shlex::try_quote(&path).map_or_else(|_| path.clone(), std::borrow::Cow::into_owned)
}

fn print_next_steps(dir: &Path, config: &Path) {
    let (program, run) = (program(), quoted(&dir.join("run")));
    print_line(&format!("run directory: {}", dir.join("run").display()));
    print_line("\nwhat to try next:");
    for (command, what) in [
        (format!("{program} report {run}"), "where the time of each worker went"),
        (format!("{program} eval {run}"), "evaluate the best checkpoint"),
        (format!("{program} train {} --resume never", quoted(config)), "the same training on this machine alone"),
        (format!("{program} devices"), "what this machine can compute on"),
        (format!("{program} train --help"), "train on several machines, stop and resume"),
    ] {
        print_line(&format!("  # {what}\n  {command}"));
    }
}

fn write_config(dir: &Path, slowdown: &[f64]) -> anyhow::Result<PathBuf> {
    let path = dir.join("demo.toml");
    let (data, run) = (dir.join("data").display().to_string(), dir.join("run").display().to_string());
    let text = format!(
        "# One model, workers of different speeds. Try: hetseq eval demo.toml\n\
         [run]\ntask = \"images\"\ndir = {run:?}\nmax_updates = {UPDATES}\ndevices = \"cpu:1\"\nlog_every = 20\n\n\
         [task]\ndata = {data:?}\ndropout = 0.25\n\n\
         [batch]\nglobal = 504\nsplit = \"measured\"\neven_updates = {EVEN_UPDATES}\n\n\
         [optim]\nname = \"adam\"\nlr = 0.001\nclip_norm = 5.0\nschedule = {{ kind = \"cosine\", warmup_updates = 10 }}\n\n\
         [checkpoint]\nevery = \"100 updates\"\nbest = \"accuracy\"\n\n\
         [comm]\njoin_s = 30.0\n\n[emulate]\nslowdown = {slowdown:?}\n"
    );
    fs_err::write(&path, text)?;
    Ok(path)
}

fn report(dir: &Path, world: usize) -> anyhow::Result<()> {
    let text = fs_err::read_to_string(dir.join("run/metrics.jsonl"))?;
    let (mut even, mut measured, mut accuracy) = (Vec::new(), Vec::new(), None);
    let mut workers: Vec<Vec<WorkerReport>> = Vec::new();
    for line in text.lines() {
        let Ok(event) = serde_json::from_str(line) else { continue };
        match event {
            Event::Update { update, seconds, .. } if (SETTLING..=EVEN_UPDATES).contains(&update) => even.push(seconds),
            Event::Update { update, seconds, .. } if update > EVEN_UPDATES + SETTLING => measured.push(seconds),
            Event::Valid { metrics, .. } => accuracy = metrics.get("accuracy").copied(),
            Event::Workers { workers: report, .. } => workers.push(report),
            _ => {}
        }
    }
    let (even, measured) = (median(even), median(measured));
    let titles = ["split evenly", "split by measured speed"];
    for (title, table) in titles.iter().zip(&workers).filter(|_| world > 1) {
        print_line(&format!("\n{title}:"));
        for line in worker_table(table) {
            print_line(&format!("  {line}"));
        }
    }
    let (even_ms, measured_ms, gain) = (1e3 * even, 1e3 * measured, even / measured);
    print_line(&match world {
        // There is nothing to split.
        1 => format!("\nan update takes {measured_ms:.0} ms"),
        _ if gain < 1.02 => format!(
            "\nan update takes {even_ms:.0} ms split evenly and {measured_ms:.0} ms split by measured speed: no gain, \
             because other programs used this machine or the workers were about equally fast"
        ),
        _ => format!(
            "\nan update takes {even_ms:.0} ms split evenly and {measured_ms:.0} ms split by measured speed: {gain:.2} \
             times as fast"
        ),
    });
    if let Some(accuracy) = accuracy {
        print_line(&format!("accuracy on digits not seen in training: {:.1} %", 100.0 * accuracy));
    }
    Ok(())
}
