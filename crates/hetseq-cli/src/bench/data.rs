//! `hetseq bench data`: samples per second out of prepared data.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use hetseq_data::prep::{Hdf5Settings, PrepFormat, PrepSettings, Prepared, VocabularySource, prepare};
use hetseq_data::pretrain::{PretrainConfig, PretrainData};
use hetseq_data::source::corpus::CorpusSplit;
use hetseq_data::{EpochPlan, GlobalBatch, PlanSpec};
use hetseq_metrics::{median, thousands};
use hetseq_random::Key;
use serde_json::json;

use super::Scratch;
use crate::args::{BenchDataArgs, UsageError};
use crate::output::{print_line, say};
use crate::prep::Quiet;

/// Words of made-up text: about 16 MB.
const MADE_UP_WORDS: u64 = 2_500_000;

/// What was measured of one directory.
struct Measured {
    dir: PathBuf,
    data: PretrainData,
    open_seconds: f64,
    samples_per_second: Vec<f64>,
    tokens_per_second: Vec<f64>,
}

pub(super) fn data(args: &BenchDataArgs) -> anyhow::Result<ExitCode> {
    let scratch = Scratch::new()?;
    let dirs = match args.dirs.is_empty() {
        true => make_up(&scratch.0, args.max_seq_length)?,
        false => args.dirs.clone(),
    };
    let config = PretrainConfig { max_seq_length: args.max_seq_length, ..PretrainConfig::default() };
    let mut measured = Vec::new();
    for dir in dirs {
        let started = Instant::now();
        let data = PretrainData::open(&dir, CorpusSplit::Train, &config)?;
        let open_seconds = started.elapsed().as_secs_f64();
        if data.is_empty() {
            return Err(UsageError(format!("{} holds no samples to train on", dir.display())).into());
        }
        let (samples_per_second, tokens_per_second) = (Vec::new(), Vec::new());
        measured.push(Measured { dir, data, open_seconds, samples_per_second, tokens_per_second });
    }
    for round in 0..args.rounds {
        for side in &mut measured {
            say(&format!("round {}/{}: {}", round + 1, args.rounds, side.dir.display()));
            run(side, args, u64::from(round))?;
        }
    }
    measured.into_iter().try_for_each(|side| report(side, args))?;
    Ok(ExitCode::SUCCESS)
}

/// Collates batch after batch of an epoch, on one thread, as the loader does.
fn run(side: &mut Measured, args: &BenchDataArgs, epoch: u64) -> anyhow::Result<()> {
    let batch = GlobalBatch::Sequences(args.batch as usize);
    let spec = PlanSpec { seed: 1, batch, curriculum_epochs: 0, shuffle: true };
    let plan = EpochPlan::new(&side.data.costs(), &spec, epoch);
    let key = Key::root(1).name("sample").index(epoch);
    let (mut samples, mut tokens) = (0u64, 0u64);
    let started = Instant::now();
    for update in (0..plan.updates()).cycle() {
        let batch = side.data.collate(plan.update(update).samples, &|id| key.index(u64::from(id)))?;
        samples += batch.batch as u64;
        tokens += batch.tokens();
        if started.elapsed().as_secs_f64() >= args.seconds {
            break;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    side.samples_per_second.push(samples as f64 / seconds);
    side.tokens_per_second.push(tokens as f64 / seconds);
    Ok(())
}

fn report(side: Measured, args: &BenchDataArgs) -> anyhow::Result<()> {
    let kind = match side.data {
        PretrainData::Text(_) => "compact",
        PretrainData::Stored(_) => "hdf5",
    };
    let (samples, tokens) = (median(side.samples_per_second), median(side.tokens_per_second));
    // Opening is part of the work, and in NVIDIA's layout most of it: everything is decoded then.
    let first_epoch = side.data.len() as f64 / (side.open_seconds + side.data.len() as f64 / samples);
    if args.json {
        let object = json!({
            "dir": side.dir.display().to_string(), "kind": kind, "samples": side.data.len(), "batch": args.batch,
            "open_seconds": side.open_seconds, "samples_per_second": samples, "tokens_per_second": tokens,
            "first_epoch_samples_per_second": first_epoch,
        });
        print_line(&object.to_string());
    } else {
        print_line(&format!(
            "{kind:<8} {} samples/s, {} tokens/s; {} samples, opened in {:.2} s, with that {} samples/s in the first \
             epoch; {}",
            thousands(samples as u64),
            thousands(tokens as u64),
            thousands(side.data.len() as u64),
            side.open_seconds,
            thousands(first_epoch as u64),
            side.dir.display()
        ));
    }
    Ok(())
}

/// Prepares made-up text in both forms.
fn make_up(dir: &Path, max_seq_length: usize) -> anyhow::Result<Vec<PathBuf>> {
    let text = dir.join("text.txt");
    say("making up text and preparing it");
    fs_err::write(&text, made_up_text(MADE_UP_WORDS))?;
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
            format,
            shard_mib: Some(1),
            seed: 1,
        };
        let Prepared::Finished { .. } = prepare(&settings, &Quiet).context("preparing made-up text")? else {
            bail!("stopped");
        };
        dirs.push(settings.output);
    }
    Ok(dirs)
}

/// Sentences of words of syllables, frequent and rare ones as in a language.
fn made_up_text(words: u64) -> String {
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
