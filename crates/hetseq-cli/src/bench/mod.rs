//! `hetseq bench`: benchmarks of training steps (here), of the network (`comm`) and of reading data
//! (`data`).

pub(crate) mod args;
mod comm;
mod data;

pub(crate) use args::BenchArgs;

use std::process::ExitCode;

use anyhow::Context;
use hetseq_metrics::median;
use hetseq_train::bench::{StepReport, StepRequest, step_of_geometry};
use hetseq_train::{ConfigSource, Tasks};

use crate::args::read_config;
use crate::output::{eprint_line, print_line};
use crate::prep::write_digits;
use args::BenchStepArgs;

/// Config of the default benchmark: the image task on drawn digits.
const DIGITS: &str = "[run]\ntask = \"images\"\nmax_updates = 1\n[task]\ndropout = 0.25\n[batch]\nglobal = 1\n\
                      [optim]\nname = \"adam\"\nlr = 0.001\n";

pub(crate) fn bench(tasks: &Tasks, args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match args {
        BenchArgs::Step(args) => step(tasks, args),
        BenchArgs::Comm(args) => comm::comm(args),
        BenchArgs::Data(args) => data::data(args),
    }
}

fn step(tasks: &Tasks, args: &BenchStepArgs) -> anyhow::Result<ExitCode> {
    let scratch = ScratchDir::new("bench")?;
    let source = match (&args.config, &args.path) {
        (Some(_), _) => None,
        (None, Some(path)) => Some(read_config(path, &args.sets)?),
        (None, None) => {
            write_digits(&scratch.0, 1024, 16, 1)?;
            let mut sets = vec![format!("task.data={:?}", scratch.0.display().to_string())];
            sets.extend(args.sets.iter().cloned());
            Some(ConfigSource::from_text("bench", DIGITS.to_owned(), &sets))
        }
    };
    let one = |devices: &str| {
        let mut request = StepRequest {
            devices: devices.to_owned(),
            batch: args.batch.map(|batch| batch as usize),
            steps: args.steps as usize,
            warmup: args.warmup as usize,
        };
        match (&source, &args.config) {
            (Some(source), _) => {
                request.batch = request.batch.or(Some(1024));
                tasks.bench_step(source, &request)
            }
            (None, config) => step_of_geometry(config.as_deref().unwrap_or_default(), args.dropout, &request),
        }
    };
    let choices = args.devices();
    let mut rounds: Vec<Vec<StepReport>> = vec![Vec::new(); choices.len()];
    for round in 0..args.rounds {
        for (devices, reports) in choices.iter().zip(&mut rounds) {
            eprint_line(&format!("round {}/{}: {devices}", round + 1, args.rounds));
            reports.push(one(devices)?);
        }
    }
    report(args, &choices, rounds)
}

/// Prints a line for each choice of devices, with its speed relative to the first.
fn report(args: &BenchStepArgs, choices: &[String], rounds: Vec<Vec<StepReport>>) -> anyhow::Result<ExitCode> {
    let first = rounds.first().cloned().unwrap_or_default();
    for (name, reports) in choices.iter().zip(rounds) {
        // Ratios within a round: a disturbance of the machine slows down all choices in that round.
        let ratios = reports.iter().zip(&first).map(|(report, first)| first.step_ms / report.step_ms).collect();
        let speed_up = median(ratios);
        let report = typical(reports)?;
        if args.json {
            let mut object = serde_json::to_value(&report)?;
            object["config"] = args.config.clone().into();
            object["run_devices"] = name.as_str().into();
            object["speed_up"] = speed_up.into();
            print_line(&object.to_string());
        } else {
            print_line(&format!(
                "{name:<8} {} devices: {:.1} ms per step (best {:.1}; {:.1} upload, {:.1} download), {:.0} samples/s, {:.0} \
                 tokens/s, {:.2} cores busy, at most {} MB, {speed_up:.2} times as fast as the first",
                report.devices,
                report.step_ms,
                report.best_ms,
                report.upload_ms,
                report.download_ms,
                report.samples_per_second,
                report.tokens_per_s,
                report.cpu_over_wall,
                report.peak_rss_mb,
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The round with the median step time.
fn typical(mut rounds: Vec<StepReport>) -> anyhow::Result<StepReport> {
    rounds.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    rounds.get(rounds.len() / 2).cloned().context("no rounds were timed")
}

/// A temporary directory, removed on drop.
pub(crate) struct ScratchDir(pub(crate) std::path::PathBuf);

impl ScratchDir {
    pub(crate) fn new(command: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("hetseq-{command}-{}", std::process::id()));
        fs_err::create_dir_all(&path)?;
        Ok(ScratchDir(path))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        _ = fs_err::remove_dir_all(&self.0);
    }
}
