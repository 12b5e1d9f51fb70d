//! `hetseq prep bert`: turns the arguments into settings, shows progress and prints a summary.

use std::process::ExitCode;

use hetseq_data::prep::bert::{Hdf5Settings, PrepFormat, PrepSettings, VocabularySource, prepare};
use hetseq_data::source::corpus::TextCounts;
use hetseq_data::source::text::SentenceStyle;
use hetseq_metrics::{count, thousands};
use serde_json::json;

use super::progress::{Prepared, with_progress};
use crate::args::UsageError;
use crate::output::print_line;
use crate::prep::args::{FormatArg, PrepBertArgs, SentencesArg};
use crate::stopped;

pub(super) fn prep(args: &PrepBertArgs) -> anyhow::Result<ExitCode> {
    let settings = settings(args)?;
    let prepared = with_progress(|progress| prepare(&settings, progress))?;
    let Some(prepared) = prepared else { return Ok(stopped()) };
    if args.json {
        print_line(&summary_json(&settings, &prepared).to_string());
    } else {
        summary(&settings, &prepared).iter().for_each(|line| print_line(line));
    }
    Ok(ExitCode::SUCCESS)
}

fn settings(args: &PrepBertArgs) -> Result<PrepSettings, UsageError> {
    let vocabulary = match (&args.vocab, &args.tokenizer) {
        (Some(path), _) => VocabularySource::Vocabulary { path: path.clone(), cased: args.cased },
        (None, Some(path)) => VocabularySource::Tokenizer { path: path.clone() },
        (None, None) => VocabularySource::Trained { size: args.vocab_size, cased: args.cased },
    };
    let format = match (args.format, args.hdf5.given()) {
        (FormatArg::Compact, Some(flag)) => {
            return Err(UsageError(format!("{flag} needs --format hdf5; with compact, the task sets it for training")));
        }
        (FormatArg::Compact, None) => PrepFormat::Compact,
        (FormatArg::Hdf5, _) => PrepFormat::Hdf5(Hdf5Settings {
            max_seq_length: args.hdf5.max_seq_length.unwrap_or(128),
            max_predictions: args.hdf5.max_predictions.unwrap_or(20),
            dupe_factor: args.hdf5.dupe_factor.unwrap_or(5),
            short_seq_prob: args.hdf5.short_seq_prob.unwrap_or(0.1),
            whole_word: args.hdf5.whole_word,
        }),
    };
    let sentences = match args.sentences {
        SentencesArg::Auto => None,
        SentencesArg::Lines => Some(SentenceStyle::Lines),
        SentencesArg::Paragraphs => Some(SentenceStyle::Paragraphs),
        SentencesArg::Wrapped => Some(SentenceStyle::Wrapped),
    };
    Ok(PrepSettings {
        inputs: args.inputs.clone(),
        valid: args.valid.clone(),
        valid_fraction: args.valid_fraction,
        output: args.out.clone(),
        vocabulary,
        sentences,
        field: args.field.clone(),
        format,
        shard_mib: args.shard_mb,
        seed: args.seed,
    })
}

fn summary(settings: &PrepSettings, prepared: &Prepared<TextCounts>) -> Vec<String> {
    let manifest = &prepared.manifest;
    let mut lines = Vec::new();
    for (name, counts) in [("train", manifest.train), ("valid", manifest.valid)] {
        if counts != TextCounts::default() {
            lines.push(format!(
                "{name}: {}, {}, {}, {:.2} % unknown",
                count(counts.documents, "document"),
                count(counts.sentences, "sentence"),
                count(counts.tokens, "token"),
                100.0 * unknown_share(&counts)
            ));
        }
    }
    if settings.valid_fraction > 0.0 && manifest.valid.documents == 0 {
        lines.push("valid: empty, there are too few documents".to_owned());
    }
    let bytes = prepared.bytes();
    lines.push(format!(
        "{}: {} tokens in the vocabulary, {}, {:.1} MB{}",
        settings.output.display(),
        thousands(manifest.vocabulary as u64),
        count(manifest.shards.len() as u64, "shard"),
        bytes as f64 / 1e6,
        prepared.took()
    ));
    lines
}

fn summary_json(settings: &PrepSettings, prepared: &Prepared<TextCounts>) -> serde_json::Value {
    let manifest = &prepared.manifest;
    json!({
        "dir": settings.output.display().to_string(),
        "format": manifest.format,
        "vocabulary": manifest.vocabulary,
        "train": manifest.train,
        "valid": manifest.valid,
        "unknown_share": unknown_share(&manifest.train),
        "shards": manifest.shards.len(),
        "bytes": prepared.bytes(),
        "seconds": prepared.seconds,
        "was_there": prepared.was_there,
    })
}

fn unknown_share(counts: &TextCounts) -> f64 {
    counts.unknown as f64 / counts.tokens.max(1) as f64
}
