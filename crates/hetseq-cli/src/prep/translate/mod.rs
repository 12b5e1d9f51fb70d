//! `hetseq prep translate`: turns the arguments into settings, shows progress and prints a summary.

mod args;

use std::process::ExitCode;

use hetseq_data::TranslateTokenizer;
use hetseq_data::prep::translate::{SubwordModel, SubwordSource, TranslateSettings, prepare};
use hetseq_data::source::corpus::{CorpusManifest, CorpusSplit};
use hetseq_data::source::parallel_corpus::{PairCounts, SideCounts};
use hetseq_metrics::{count, thousands};
use serde_json::json;

use self::args::ModelArg;
pub(crate) use self::args::PrepTranslateArgs;
use super::progress::{Prepared, with_progress};
use crate::output::print_line;
use crate::stopped;
use crate::table::TextTable;

pub(super) fn prep(args: &PrepTranslateArgs) -> anyhow::Result<ExitCode> {
    let settings = settings(args);
    let prepared = with_progress(|progress| prepare(&settings, progress))?;
    let Some(prepared) = prepared else { return Ok(stopped()) };
    let tokenizer = TranslateTokenizer::read(&settings.output)?;
    if args.json {
        print_line(&summary_json(&settings, &prepared, &tokenizer).to_string());
    } else {
        let mut lines = pairs(&prepared.manifest).lines();
        lines.push(String::new());
        lines.extend(sides(&prepared.manifest, &tokenizer).lines());
        lines.push(String::new());
        lines.push(conclusion(&settings, &prepared, &tokenizer));
        lines.iter().for_each(|line| print_line(line));
    }
    Ok(ExitCode::SUCCESS)
}

fn settings(args: &PrepTranslateArgs) -> TranslateSettings {
    let model = match args.model {
        ModelArg::Bpe => SubwordModel::Bpe,
        ModelArg::Unigram => SubwordModel::Unigram,
    };
    let vocabulary = match &args.tokenizer {
        Some(path) => SubwordSource::Given { path: path.clone() },
        None => SubwordSource::Trained { size: args.vocab_size, model, separate: args.separate },
    };
    TranslateSettings {
        source: args.source.clone(),
        target: args.target.clone(),
        valid_source: args.valid_source.clone(),
        valid_target: args.valid_target.clone(),
        output: args.out.clone(),
        vocabulary,
        languages: [args.source_lang.clone(), args.target_lang.clone()],
        min_length: args.min_length,
        max_length: args.max_length,
        max_ratio: args.max_ratio,
        shard_mib: args.shard_mb,
    }
}

/// The table of pairs that were read, dropped and kept.
fn pairs(manifest: &CorpusManifest<PairCounts>) -> TextTable {
    let mut table = TextTable::new(["<pairs", "train", "valid", "<first occurrence"]);
    let [train, valid] = CorpusSplit::ALL.map(|split| manifest.counts(split));
    table.row(["read".to_owned(), thousands(train.read), thousands(valid.read), String::new()]);
    let mut reasons: Vec<_> = train.dropped.keys().chain(valid.dropped.keys()).collect();
    reasons.sort();
    reasons.dedup();
    for reason in reasons {
        let by_split = [train, valid].map(|counts| counts.dropped.get(reason));
        let [in_train, in_valid] = by_split.map(|dropped| thousands(dropped.map_or(0, |dropped| dropped.pairs)));
        let first_lines =
            by_split.iter().flatten().map(|dropped| format!("{}, line {}", dropped.first_file, dropped.first_line));
        let first_lines = first_lines.collect::<Vec<_>>().join("; ");
        table.row([format!("dropped: {}", reason.description()), in_train, in_valid, first_lines]);
    }
    table.row(["kept".to_owned(), thousands(train.pairs), thousands(valid.pairs), String::new()]);
    table
}

/// The table of token counts of the kept pairs.
fn sides(manifest: &CorpusManifest<PairCounts>, tokenizer: &TranslateTokenizer) -> TextTable {
    let mut table = TextTable::new(["<split", "<side", "tokens", "unknown", "per word", "per line", "longest"]);
    let [source, target] = tokenizer.languages();
    let names = [source.as_deref().unwrap_or("source"), target.as_deref().unwrap_or("target")];
    for split in CorpusSplit::ALL {
        let counts = manifest.counts(split);
        if counts.pairs == 0 {
            continue;
        }
        for (name, side) in names.into_iter().zip([&counts.source, &counts.target]) {
            table.row([
                split.name().to_owned(),
                name.to_owned(),
                thousands(side.tokens),
                thousands(side.unknown),
                format!("{:.2}", fertility(side, counts.pairs)),
                format!("{:.1}", side.tokens as f64 / counts.pairs as f64),
                thousands(side.longest),
            ]);
        }
    }
    table
}

/// Tokens per word. `</s>`, one per line, belongs to no word.
fn fertility(side: &SideCounts, pairs: u64) -> f64 {
    side.tokens.saturating_sub(pairs) as f64 / side.words.max(1) as f64
}

fn conclusion(settings: &TranslateSettings, prepared: &Prepared<PairCounts>, tokenizer: &TranslateTokenizer) -> String {
    let [source, target] =
        [tokenizer.source_vocabulary(), tokenizer.target_vocabulary()].map(|size| thousands(size as u64));
    format!(
        "{}: {}, {}, {:.1} MB{}",
        settings.output.display(),
        match tokenizer.is_joint() {
            true => format!("{target} tokens in the vocabulary of both sides"),
            false => format!("{source} and {target} tokens in the vocabularies"),
        },
        count(prepared.manifest.shards.len() as u64, "shard"),
        prepared.bytes() as f64 / 1e6,
        prepared.took()
    )
}

fn summary_json(
    settings: &TranslateSettings,
    prepared: &Prepared<PairCounts>,
    tokenizer: &TranslateTokenizer,
) -> serde_json::Value {
    let manifest = &prepared.manifest;
    json!({
        "dir": settings.output.display().to_string(),
        "format": manifest.format,
        "joint": tokenizer.is_joint(),
        "source_vocabulary": tokenizer.source_vocabulary(),
        "target_vocabulary": tokenizer.target_vocabulary(),
        "train": manifest.train,
        "valid": manifest.valid,
        "shards": manifest.shards.len(),
        "bytes": prepared.bytes(),
        "seconds": prepared.seconds,
        "was_there": prepared.was_there,
    })
}
