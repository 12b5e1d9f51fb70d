//! `hetseq bench`.

mod comm;
mod data;

use std::process::ExitCode;

use anyhow::Context;
use hetseq_metrics::median;
use hetseq_train::bench::{StepReport, StepRequest};
use hetseq_train::{ConfigSource, Tasks};

use crate::args::{BenchArgs, BenchStepArgs, read_config};
use crate::output::{print_line, say};
use crate::prep::write_digits;

/// The image task with a fixed batch; the data are drawn.
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
    let scratch = Scratch::new()?;
    let source = match &args.config {
        Some(path) => read_config(path, &args.sets)?,
        None => {
            write_digits(&scratch.0, 1024, 16, 1)?;
            let mut sets = vec![format!("task.data={:?}", scratch.0.display().to_string())];
            sets.extend(args.sets.iter().cloned());
            ConfigSource::from_text("bench", DIGITS.to_owned(), &sets)
        }
    };
    let mut rounds: Vec<Vec<StepReport>> = vec![Vec::new(); args.devices.len()];
    for round in 0..args.rounds {
        for (devices, reports) in args.devices.iter().zip(&mut rounds) {
            say(&format!("round {}/{}: {devices}", round + 1, args.rounds));
            let request = StepRequest {
                devices: devices.clone(),
                batch: args.batch as usize,
                steps: args.steps as usize,
                warmup: args.warmup as usize,
            };
            reports.push(tasks.bench_step(&source, &request)?);
        }
    }
    let first = rounds.first().cloned().unwrap_or_default();
    for (name, reports) in args.devices.iter().zip(rounds) {
        // Of each round by itself: what slows the whole machine down for a while slows both sides.
        let ratios = reports.iter().zip(&first).map(|(report, first)| first.step_ms / report.step_ms).collect();
        let speed_up = median(ratios);
        let report = typical(reports)?;
        if args.json {
            let mut object = serde_json::to_value(&report)?;
            object["run_devices"] = name.as_str().into();
            object["speed_up"] = speed_up.into();
            print_line(&object.to_string());
        } else {
            print_line(&format!(
                "{name:<8} {} devices: {:.1} ms a step, {:.0} samples/s, {:.2} cores busy, {speed_up:.2} times the first",
                report.devices, report.step_ms, report.samples_per_second, report.cpu_over_wall
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The round with the median step time.
fn typical(mut rounds: Vec<StepReport>) -> anyhow::Result<StepReport> {
    rounds.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    rounds.get(rounds.len() / 2).cloned().context("no round was timed")
}

/// A directory that goes away with the process.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("hetseq-bench-{}", std::process::id()));
        fs_err::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs_err::remove_dir_all(&self.0);
    }
}
