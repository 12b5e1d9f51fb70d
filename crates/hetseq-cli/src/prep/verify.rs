//! `hetseq prep verify`: reads all prepared data, checks it and prints totals.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use hetseq_data::error::CorpusError;
use hetseq_data::pretrain::{PretrainConfig, PretrainData};
use hetseq_data::source::corpus::{self, CorpusManifest, CorpusSplit};
use hetseq_data::source::data_kind::DataKind;
use hetseq_data::source::parallel_corpus::PairCounts;
use hetseq_data::{DataError, ParallelData};
use hetseq_metrics::thousands;
use hetseq_random::Key;
use serde_json::json;

use crate::args::UsageError;
use crate::output::print_line;
use crate::prep::args::PrepVerifyArgs;

pub(super) fn verify(args: &PrepVerifyArgs) -> anyhow::Result<ExitCode> {
    if DataKind::of(&args.dir)? == Some(DataKind::Images) {
        let dir = args.dir.display();
        return Err(UsageError(format!(
            "{dir} holds images; `hetseq prep verify` checks text for BERT, pairs for translation and HDF5 shards. Images need no \
             check: a run reads all idx files when it starts, and reports files in class folders that it cannot read"
        ))
        .into());
    }
    let is_parallel = corpus::format(&args.dir)?.as_deref() == Some(CorpusManifest::<PairCounts>::PAIRS);
    let object = if is_parallel { verify_pairs(args)? } else { verify_text(args)? };
    if args.json {
        print_line(&serde_json::to_string(&object).context("printing")?);
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks a corpus of `hetseq prep translate`.
fn verify_pairs(args: &PrepVerifyArgs) -> anyhow::Result<serde_json::Value> {
    let mut object = json!({ "dir": args.dir.display().to_string() });
    let manifest =
        CorpusManifest::<PairCounts>::read(&args.dir)?.context("corpus.json was removed while it was read")?;
    for split in CorpusSplit::ALL {
        let data = match ParallelData::open(&args.dir, split) {
            // Held-out text is optional.
            Err(DataError::Corpus(CorpusError::NoSuchSplit { .. })) if split == CorpusSplit::Valid => continue,
            opened => opened?,
        };
        let found = data.verify(args.vocab_size)?;
        let counts = manifest.counts(split);
        let listed = (counts.pairs, counts.source.tokens, counts.target.tokens);
        if (found.pairs, found.source_tokens, found.target_tokens) != listed {
            let problem = format!("the shards hold {found:?}, but it lists {listed:?}");
            let (path, field) = (args.dir.join(corpus::MANIFEST_FILE), "counts");
            return Err(DataError::from(CorpusError::Damaged { path, field, problem }).into());
        }
        object[split.name()] = json!({
            "kind": CorpusManifest::<PairCounts>::PAIRS,
            "pairs": found.pairs,
            "source_tokens": found.source_tokens,
            "target_tokens": found.target_tokens,
            "fingerprint": data.fingerprint(),
        });
        if !args.json {
            let [pairs, source, target] = [found.pairs, found.source_tokens, found.target_tokens].map(thousands);
            let fingerprint = data.fingerprint();
            print_line(&format!(
                "{}: pairs, intact: {pairs} with {source} and {target} tokens, {fingerprint}",
                split.name()
            ));
        }
    }
    Ok(object)
}

/// Checks a corpus of `hetseq prep bert`, or shards in NVIDIA's layout.
fn verify_text(args: &PrepVerifyArgs) -> anyhow::Result<serde_json::Value> {
    let config = PretrainConfig { vocabulary: args.vocab_size, ..PretrainConfig::default() };
    let mut object = json!({ "dir": args.dir.display().to_string() });
    for split in CorpusSplit::ALL {
        let data = match PretrainData::open(&args.dir, split, &config) {
            // Held-out text is optional.
            Err(DataError::Corpus(CorpusError::NoSuchSplit { .. })) if split == CorpusSplit::Valid => continue,
            opened => opened?,
        };
        // Opening shards in NVIDIA's layout has already read all of them.
        if let PretrainData::Text(samples) = &data {
            samples.corpus().verify()?;
        }
        let kind = match data {
            PretrainData::Text(_) => "compact",
            PretrainData::Stored(_) => "hdf5",
        };
        let sums = sums(&data)?;
        object[split.name()] = json!({
            "kind": kind,
            "samples": data.len(),
            "vocabulary": data.vocabulary_size(),
            "fingerprint": data.fingerprint(),
            "tokens": sums.tokens,
            "masked": sums.masked,
            "next": sums.next,
            "ids_sum": sums.ids_sum,
            "masked_sum": sums.masked_sum,
            "masked_entropy": sums.entropy(),
        });
        if !args.json {
            let samples = thousands(data.len() as u64);
            print_line(&format!("{}: {kind}, intact: {samples} samples, {}", split.name(), data.fingerprint()));
            let entropy = sums.entropy();
            print_line(&format!(
                "  loss of a model that only knows the frequencies of the masked words: {entropy:.3} nats"
            ));
        }
    }
    Ok(object)
}

/// Sums over all samples of an epoch, which other programs can compute too for a comparison.
#[derive(Default)]
struct Sums {
    tokens: u64,
    masked: u64,
    next: i64,
    /// Sum of ids, each times its column (from 1) plus 1,000 in the second segment.
    ids_sum: i64,
    /// Sum of masked ids, each times its column (from 1).
    masked_sum: i64,
    /// How often each id was masked.
    occurrences: BTreeMap<i32, u64>,
}

impl Sums {
    /// Entropy of the masked words in nats. A model with a lower loss has learned more than
    /// frequencies.
    fn entropy(&self) -> f64 {
        let part = |&count: &u64| count as f64 / self.masked as f64;
        self.occurrences.values().map(|count| -part(count) * part(count).ln()).sum()
    }
}

fn sums(data: &PretrainData) -> anyhow::Result<Sums> {
    const BATCH: usize = 1024;
    let mut sums = Sums::default();
    let key = Key::root(1).name("verify");
    let ids: Vec<u32> = (0..data.len() as u32).collect();
    for ids in ids.chunks(BATCH) {
        let batch = data.collate(ids, &|id| key.index(u64::from(id)))?;
        sums.tokens += batch.tokens();
        sums.masked += batch.masked_ids.len() as u64;
        sums.next += batch.next_sentence.iter().flatten().map(|&label| i64::from(label)).sum::<i64>();
        for (at, (&id, &segment)) in batch.input_ids.iter().zip(&batch.segment_ids).enumerate() {
            sums.ids_sum += i64::from(id) * (1 + at as i64 % batch.seq as i64 + 1000 * i64::from(segment));
        }
        for (&position, &id) in batch.masked_positions.iter().zip(&batch.masked_ids) {
            *sums.occurrences.entry(id).or_default() += 1;
            sums.masked_sum += i64::from(id) * (1 + i64::from(position) % batch.seq as i64);
        }
    }
    Ok(sums)
}
