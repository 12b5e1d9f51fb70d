//! `hetseq prep verify`: read everything, and say what is there.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use hetseq_data::error::CorpusError;
use hetseq_data::pretrain::{PretrainConfig, PretrainData};
use hetseq_data::source::corpus::{self, CorpusSplit, Manifest};
use hetseq_data::source::pairs::PairCounts;
use hetseq_data::{DataError, ParallelData};
use hetseq_metrics::thousands;
use hetseq_random::Key;
use serde_json::json;

use crate::args::PrepVerifyArgs;
use crate::output::print_line;

pub(super) fn verify(args: &PrepVerifyArgs) -> anyhow::Result<ExitCode> {
    let is_parallel = corpus::format(&args.dir)?.as_deref() == Some(Manifest::<PairCounts>::PAIRS);
    let object = if is_parallel { verify_pairs(args)? } else { verify_text(args)? };
    if args.json {
        print_line(&serde_json::to_string(&object).context("printing")?);
    }
    Ok(ExitCode::SUCCESS)
}

/// A corpus of `hetseq prep translate`.
fn verify_pairs(args: &PrepVerifyArgs) -> anyhow::Result<serde_json::Value> {
    let mut object = json!({ "dir": args.dir.display().to_string() });
    let manifest = Manifest::<PairCounts>::read(&args.dir)?.context("corpus.json went away while it was read")?;
    for split in CorpusSplit::ALL {
        let data = match ParallelData::open(&args.dir, split) {
            // There need not be held-out text.
            Err(DataError::Corpus(CorpusError::NoSuchSplit { .. })) if split == CorpusSplit::Valid => continue,
            opened => opened?,
        };
        let found = data.verify(args.vocab_size)?;
        let counts = manifest.counts(split);
        let listed = (counts.pairs, counts.source.tokens, counts.target.tokens);
        if (found.pairs, found.source_tokens, found.target_tokens) != listed {
            let problem = format!("its shards hold {found:?}, and it says {listed:?}");
            let (path, field) = (args.dir.join(corpus::MANIFEST_FILE), "counts");
            return Err(DataError::from(CorpusError::Damaged { path, field, problem }).into());
        }
        object[split.name()] = json!({
            "kind": Manifest::<PairCounts>::PAIRS,
            "pairs": found.pairs,
            "source_tokens": found.source_tokens,
            "target_tokens": found.target_tokens,
            "fingerprint": data.fingerprint(),
        });
        if !args.json {
            let [pairs, source, target] = [found.pairs, found.source_tokens, found.target_tokens].map(thousands);
            let fingerprint = data.fingerprint();
            print_line(&format!(
                "{}: pairs, whole: {pairs} with {source} and {target} tokens, {fingerprint}",
                split.name()
            ));
        }
    }
    Ok(object)
}

/// A corpus of `hetseq prep bert`, or shards in NVIDIA's layout.
fn verify_text(args: &PrepVerifyArgs) -> anyhow::Result<serde_json::Value> {
    let config = PretrainConfig { vocabulary: args.vocab_size, ..PretrainConfig::default() };
    let mut object = json!({ "dir": args.dir.display().to_string() });
    for split in CorpusSplit::ALL {
        let data = match PretrainData::open(&args.dir, split, &config) {
            // There need not be held-out text.
            Err(DataError::Corpus(CorpusError::NoSuchSplit { .. })) if split == CorpusSplit::Valid => continue,
            opened => opened?,
        };
        // Shards in NVIDIA's layout were read whole when they were opened.
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
            print_line(&format!("{}: {kind}, whole: {samples} samples, {}", split.name(), data.fingerprint()));
            let entropy = sums.entropy();
            print_line(&format!(
                "  loss of a model that knows only how frequent the masked words are: {entropy:.3} nats"
            ));
        }
    }
    Ok(object)
}

/// Of all samples of an epoch: what another program can add up, to compare.
#[derive(Default)]
struct Sums {
    tokens: u64,
    masked: u64,
    next: i64,
    /// Ids, each times its column (from 1), and times 1,000 more in the second segment.
    ids_sum: i64,
    /// Masked ids, each times its column (from 1).
    masked_sum: i64,
    /// How often each id was masked.
    occurrences: BTreeMap<i32, u64>,
}

impl Sums {
    /// Of the masked words, in nats: what a model must fall below to have learnt more than frequencies.
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
        for (&place, &id) in batch.masked_positions.iter().zip(&batch.masked_ids) {
            *sums.occurrences.entry(id).or_default() += 1;
            sums.masked_sum += i64::from(id) * (1 + i64::from(place) % batch.seq as i64);
        }
    }
    Ok(sums)
}
