//! `hetseq predict`: labels the samples of a file and writes them, with progress and a summary.

mod args;

use std::io::ErrorKind;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hetseq_metrics::thousands;
use hetseq_train::inference::{PredictOptions, PredictionFormat};
use hetseq_train::{Tasks, TrainError};

pub(crate) use args::PredictArgs;

use crate::inference_output::{progress, stop_flag, write_to};
use crate::output::eprint_line;

pub(crate) fn predict(tasks: &Tasks, args: &PredictArgs) -> anyhow::Result<ExitCode> {
    let devices = hetseq_train::devices_named(&args.devices)
        .map_err(|reason| TrainError::Config(format!("--devices: {reason}")))?;
    let mut options = PredictOptions::new(devices, args.input.clone());
    options.batch_tokens = args.batch_tokens.max(1);
    options.sets = args.sets.clone();
    let mut predictor = tasks.predictor(&args.model, options)?;
    let samples = predictor.samples();
    eprint_line(&format!("predicting with {}", predictor.checkpoint().display()));
    let (stopped, progress, started) = (stop_flag()?, progress(Some(samples as u64), "samples")?, Instant::now());
    let done = |count: usize| {
        progress.inc(count as u64);
        !stopped.load(Ordering::Relaxed)
    };
    let answers = predictor.predict(&done)?;
    progress.finish_and_clear();
    let Some(answers) = answers else {
        eprint_line(&format!("stopped before all {samples} samples were predicted; nothing is written"));
        return Ok(crate::stopped());
    };
    let format = if args.json { PredictionFormat::JsonLines } else { PredictionFormat::Text };
    write_to(args.out.as_deref(), |out| {
        match predictor.write(&answers, format, out).and_then(|()| out.flush()) {
            // The reader has enough, as `head` does.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written?,
        }
        Ok(ExitCode::SUCCESS)
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let speed = samples as f64 / seconds.max(1e-9);
    eprint_line(&format!("{} samples in {seconds:.1} s ({speed:.0} samples/s)", thousands(samples as u64)));
    Ok(ExitCode::SUCCESS)
}
