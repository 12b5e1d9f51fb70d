//! `hetseq bench data`: times reading samples from prepared data.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use hetseq_data::prep::PrepOutcome;
use hetseq_data::prep::bert::{Hdf5Settings, PrepFormat, PrepSettings, VocabularySource, prepare};
use hetseq_data::pretrain::{PretrainConfig, PretrainData};
use hetseq_data::source::corpus::CorpusSplit;
use hetseq_data::source::text::DEFAULT_FIELD;
use hetseq_data::{EpochPlan, GlobalBatch, PlanSpec};
use hetseq_metrics::{median, thousands};
use hetseq_random::Key;
use serde_json::json;

use super::ScratchDir;
use crate::args::UsageError;
use crate::bench::args::BenchDataArgs;
use crate::output::{eprint_line, print_line};
use crate::prep::Quiet;

/// Words of generated text: about 16 MB.
const GENERATED_WORDS: u64 = 2_500_000;

/// A directory and its measurements.
struct DataTiming {
    dir: PathBuf,
    data: PretrainData,
    open_seconds: f64,
    samples_per_second: Vec<f64>,
    tokens_per_second: Vec<f64>,
}

pub(super) fn data(args: &BenchDataArgs) -> anyhow::Result<ExitCode> {
    let scratch = ScratchDir::new("bench")?;
    let dirs = match args.dirs.is_empty() {
        true => prepare_generated(&scratch.0, args.max_seq_length)?,
        false => args.dirs.clone(),
    };
    let config = PretrainConfig { max_seq_length: args.max_seq_length, ..PretrainConfig::default() };
    let mut timings = Vec::new();
    for dir in dirs {
        let started = Instant::now();
        let data = PretrainData::open(&dir, CorpusSplit::Train, &config)?;
        let open_seconds = started.elapsed().as_secs_f64();
        if data.is_empty() {
            return Err(UsageError(format!("{} has no training samples", dir.display())).into());
        }
        let (samples_per_second, tokens_per_second) = (Vec::new(), Vec::new());
        timings.push(DataTiming { dir, data, open_seconds, samples_per_second, tokens_per_second });
    }
    for round in 0..args.rounds {
        for timing in &mut timings {
            eprint_line(&format!("round {}/{}: {}", round + 1, args.rounds, timing.dir.display()));
            run(timing, args, u64::from(round))?;
        }
    }
    timings.into_iter().try_for_each(|timing| report(timing, args))?;
    Ok(ExitCode::SUCCESS)
}

/// Collates the batches of an epoch in order, on one thread, as the loader does.
fn run(timing: &mut DataTiming, args: &BenchDataArgs, epoch: u64) -> anyhow::Result<()> {
    let batch = GlobalBatch::Sequences(args.batch as usize);
    let spec = PlanSpec { seed: 1, batch, curriculum_epochs: 0, shuffle: true };
    let plan = EpochPlan::new(&timing.data.lengths(), &spec, epoch);
    let key = Key::root(1).name("sample").index(epoch);
    let (mut samples, mut tokens) = (0u64, 0u64);
    let started = Instant::now();
    for update in (0..plan.updates()).cycle() {
        let batch = timing.data.collate(plan.update(update).samples, &|id| key.index(u64::from(id)))?;
        samples += batch.batch as u64;
        tokens += batch.tokens();
        if started.elapsed().as_secs_f64() >= args.seconds {
            break;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    timing.samples_per_second.push(samples as f64 / seconds);
    timing.tokens_per_second.push(tokens as f64 / seconds);
    Ok(())
}

fn report(timing: DataTiming, args: &BenchDataArgs) -> anyhow::Result<()> {
    let kind = match timing.data {
        PretrainData::Text(_) => "compact",
        PretrainData::Stored(_) => "hdf5",
    };
    let (samples, tokens) = (median(timing.samples_per_second), median(timing.tokens_per_second));
    // Opening is part of the work, and for NVIDIA's layout most of it: it decodes everything.
    let first_epoch = timing.data.len() as f64 / (timing.open_seconds + timing.data.len() as f64 / samples);
    if args.json {
        let object = json!({
            "dir": timing.dir.display().to_string(), "kind": kind, "samples": timing.data.len(), "batch": args.batch,
            "open_seconds": timing.open_seconds, "samples_per_second": samples, "tokens_per_second": tokens,
            "first_epoch_samples_per_second": first_epoch,
        });
        print_line(&object.to_string());
    } else {
        print_line(&format!(
            "{kind:<8} {} samples/s, {} tokens/s; {} samples opened in {:.2} s: {} samples/s in the first epoch; {}",
            thousands(samples as u64),
            thousands(tokens as u64),
            thousands(timing.data.len() as u64),
            timing.open_seconds,
            thousands(first_epoch as u64),
            timing.dir.display()
        ));
    }
    Ok(())
}

/// Generates text and prepares it in both formats.
fn prepare_generated(dir: &Path, max_seq_length: usize) -> anyhow::Result<Vec<PathBuf>> {
    let text = dir.join("text.txt");
    eprint_line("generating text and preparing it");
    fs_err::write(&text, generated_text(GENERATED_WORDS))?;
    let hdf5 = Hdf5Settings {
        max_seq_length,
        max_predictions: max_seq_length / 6,
        dupe_factor: 1,
        short_seq_prob: 0.1,
        whole_word: false,
    };
    let mut dirs = Vec::new();
    for (name, format) in [("compact", PrepFormat::Compact), ("hdf5", PrepFormat::Hdf5(hdf5))] {
        let settings = PrepSettings {
            inputs: vec![text.clone()],
            valid: Vec::new(),
            valid_fraction: 0.0,
            output: dir.join(name),
            vocabulary: VocabularySource::Trained { size: 8000, cased: false },
            sentences: None,
            field: DEFAULT_FIELD.to_owned(),
            format,
            shard_mib: Some(1),
            seed: 1,
        };
        let PrepOutcome::Finished { .. } = prepare(&settings, &Quiet).context("preparing generated text")? else {
            bail!("stopped");
        };
        dirs.push(settings.output);
    }
    Ok(dirs)
}

/// Sentences of artificial words, whose frequencies are distributed about as in a natural language.
fn generated_text(words: u64) -> String {
    const SYLLABLES: [&str; 16] =
        ["ka", "lo", "mi", "sen", "tar", "u", "ber", "qui", "no", "sto", "la", "ri", "en", "do", "pha", "ge"];
    let key = Key::root(1).name("made-up text");
    let mut text = String::new();
    for at in 0..words {
        let key = key.index(at);
        // The product of two uniform numbers favours low ranks about as word frequencies do.
        let rank = key.below(0, 200) * key.below(1, 200) / 4;
        let word = Key::root(2).index(rank);
        for syllable in 0..=word.below(0, 3) {
            text.push_str(SYLLABLES[word.below(1 + syllable, 16) as usize]);
        }
        text.push_str(match at % 17 {
            16 if key.below(2, 20) == 0 => ".\n\n",
            16 => ".\n",
            _ => " ",
        });
    }
    text
}
